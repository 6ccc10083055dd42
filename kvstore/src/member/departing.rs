//! A node that is to leave: what it does first, with all that it serves, and when it goes.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_channel::oneshot;
use lunette_cluster::Membership;
use lunette_cluster::proto::member::MAP_CHANGE_MIN;
use lunette_runtime::{Sender, time};
use lunette_runtime_core::time::Time;

use super::Mail;
use super::steering::send;

/// How long it waits for a map without those who have just left: two changes of the map.
const SETTLE_WAIT: Duration = MAP_CHANGE_MIN.saturating_mul(2);
/// How often it looks.
const SETTLE_LOOK: Duration = Duration::from_millis(10);

/// Ends when the cores have parked what they are to.
pub(super) type Parking<'a> = &'a mut Pin<Box<dyn Future<Output = ()>>>;

/// The node is to leave.
pub(super) struct Departure {
    /// While drives take what only memory has.
    parking: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// When it goes, once that is over.
    at: Time,
    /// Who is told when it has left.
    asked: Vec<oneshot::Sender<()>>,
}

impl Departure {
    /// From now on drives take what only memory has. Where the map has been this one for a while, its homes know all, and it
    /// is to stay: of those that end at one time the others may be gone before this one.
    pub(super) async fn begin(cores: &[Sender<Mail>], membership: &Membership) -> Self {
        if membership.map_may_change_at() <= time::now() {
            membership.abstain();
        }
        let parking = told_all(cores, Mail::Park).await;
        Self {
            parking: Some(Box::pin(parking)),
            at: Time::MAX,
            asked: Vec::new(),
        }
    }

    pub(super) fn asked_by(mut self, asked: oneshot::Sender<()>) -> Self {
        self.asked.push(asked);
        self
    }

    pub(super) const fn parking(&mut self) -> Option<Parking<'_>> {
        self.parking.as_mut()
    }

    /// It goes as soon as others can serve at once what it has served: when a map without it is possible.
    pub(super) fn has_parked(&mut self, membership: &Membership) {
        self.parking = None;
        self.at = if has_others(membership) {
            membership.map_may_change_at()
        } else {
            time::now()
        };
    }

    /// For how long it stays, as far as is known: also until the map is of those that are there, so that who ends last knows
    /// what those knew who ended just before.
    pub(super) fn left(&self, membership: &Membership) -> Duration {
        let now = time::now();
        let proposes = membership.proposes() && !membership.is_map_settled();
        let is_due = !proposes || now >= self.at + SETTLE_WAIT;
        let left = self.at.since(now);
        if is_due { left } else { left.max(SETTLE_LOOK) }
    }

    /// It has left.
    pub(super) fn end(self) {
        for asked in self.asked {
            if asked.send(()).is_err() {
                tracing::debug!("whoever asked for it is gone");
            }
        }
    }
}

/// Whether others serve beside this node.
fn has_others(membership: &Membership) -> bool {
    let map = membership.map().filter(|_| membership.is_serving());
    map.is_some_and(|map| map.members().len() > 1)
}

/// Has the cores finish what they have begun, then serve nobody, and have their drives keep what they know.
pub(super) async fn finish(cores: &[Sender<Mail>], membership: &Membership) {
    membership.abstain();
    told_all(cores, Mail::Leaving).await.await;
    for core in cores {
        send(core, Mail::Left).await;
    }
    told_all(cores, Mail::Remember).await.await;
}

/// Tells all cores, and ends when each has said that it has done that, or ends itself.
async fn told_all(
    cores: &[Sender<Mail>],
    mail: fn(oneshot::Sender<()>) -> Mail,
) -> impl Future<Output = ()> + use<> {
    let mut doing = Vec::with_capacity(cores.len());
    for core in cores {
        let (done, told) = oneshot::channel();
        send(core, mail(done)).await;
        doing.push(told);
    }
    async move {
        for told in doing {
            if told.await.is_err() {
                tracing::debug!("a core has nothing to say to that");
            }
        }
    }
}
