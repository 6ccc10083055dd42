//! Those who wait for this node to be emptied.

use futures_channel::oneshot;
use lunette_cluster::Membership;
use lunette_cluster::proto::member::Draining;
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;

/// Those who may wait; further ones are refused.
const WAITING_MAX: usize = 64;

/// What has come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// The map has this node without weight.
    Yes,
    /// No other member takes objects.
    IsLast,
    /// Too many wait.
    IsBusy,
}

/// Whoever waits, until when it does.
type Waiting = (Time, oneshot::Sender<Emptied>);

#[derive(Debug, Default)]
pub(super) struct Emptying {
    waiting: Vec<Waiting>,
}

impl Emptying {
    /// The node is to be emptied, if that can be begun in time.
    pub(super) fn begin(&mut self, membership: &Membership, (until, answer): Waiting) {
        if self.waiting.len() >= WAITING_MAX {
            return tell(answer, Emptied::IsBusy);
        }
        membership.drain(until);
        self.waiting.push((until, answer));
    }

    /// Tells those who wait what there is to tell; whose time is over is told nothing.
    pub(super) fn answer(&mut self, now: Time, membership: &Membership, node: NodeId) {
        self.waiting.retain(|(until, _)| now < *until);
        if self.waiting.is_empty() {
            return;
        }
        let map = membership.map();
        let own = map.as_ref().and_then(|map| map.member(node));
        let emptied = match membership.draining() {
            Draining::Last => Emptied::IsLast,
            Draining::Yes if own.is_some_and(|own| own.is_draining) => Emptied::Yes,
            Draining::Yes | Draining::Wanted { .. } | Draining::No => return,
        };
        for (_, answer) in self.waiting.drain(..) {
            tell(answer, emptied);
        }
    }
}

fn tell(answer: oneshot::Sender<Emptied>, emptied: Emptied) {
    if answer.send(emptied).is_err() {
        tracing::debug!("whoever had this node emptied is gone");
    }
}
