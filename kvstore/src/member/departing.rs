//! A node that is to leave: what it does first, with all that it serves, and when it goes.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_channel::oneshot;
use lunette_cluster::Membership;
use lunette_runtime::{Sender, time};
use lunette_runtime_core::time::Time;

use super::Mail;
use super::steering::send;

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
    /// From now on drives take what only memory has; not those of a lone member, whom nobody will believe what it had.
    pub(super) async fn begin(cores: &[Sender<Mail>], membership: &Membership) -> Self {
        let parking = if has_others(membership) {
            told_all(cores, Mail::Park).await
        } else {
            told_all(&[], Mail::Park).await
        };
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

    /// For how long it stays, as far as is known.
    pub(super) fn left(&self) -> Duration {
        self.at.since(time::now())
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

/// Has the cores finish what they have begun, and then serve nobody.
pub(super) async fn finish(cores: &[Sender<Mail>]) {
    told_all(cores, Mail::Leaving).await.await;
    for core in cores {
        send(core, Mail::Left).await;
    }
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
