//! "Remove all".

use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::asker::PAUSE;
use lunette_kvstore_proto::message::directory::{ChangeMessage, ClearReply};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::version::Generation;
use lunette_runtime::{entropy, time};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;

use super::maps::any_seat;
use super::terms::term;
use super::{ClusterClient, calls};
use crate::error::{StoreError, StoreErrorKind};

/// What came of a "remove all".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleared {
    /// The cluster's generation: what is of earlier ones is dead.
    pub generation: Generation,
    /// Members that have not told, in time, that they know of it. They do within a lease, or stop serving; one
    /// that is cut off, in a cache namespace, when it is back.
    pub late: Vec<NodeId>,
}

impl ClusterClient {
    /// "Remove all": everything that was written before is dead, on every member, whoever wrote it, of whichever tenant. Waits until
    /// each member knows of it, or until the deadline of operations. What is written meanwhile may be dead too.
    ///
    /// # Errors
    /// `TimedOut`: no member could be asked, and nothing was done. `Interrupted`: it is not known whether it
    /// was done. It is not asked again then, since that would remove what others have written since, and no member begins it
    /// when this client waits no longer.
    /// `OfAllTenants`: this client is of a tenant other than the default one.
    pub async fn clear(&self) -> Result<Cleared, StoreError> {
        self.check_of_all()?;
        let until = time::now() + self.timeout;
        let reply = self.ask_to_clear(until).await.map_err(StoreError::local)?;
        let mut late = self.behind(reply.epoch).await;
        while !late.is_empty() && time::now() < until {
            time::sleep(PAUSE).await;
            late = self.behind(reply.epoch).await;
        }
        Ok(Cleared {
            generation: reply.generation,
            late,
        })
    }

    /// Asks one member after the other, beginning with any, until one can do it.
    async fn ask_to_clear(&self, until: Time) -> Result<ClearReply, StoreErrorKind> {
        let mut turn = entropy();
        while time::now() < until {
            if let Some((to, _)) = any_seat(&self.asking.map(), turn)
                && let Some(reply) = self.ask_to_clear_at(to, until).await?
            {
                return Ok(reply);
            }
            turn = turn.wrapping_add(1);
            // Those of the map that is known may all be gone.
            self.asking.renew_map(PAUSE).await;
        }
        Err(StoreErrorKind::TimedOut)
    }

    /// `None`: this one cannot, and another may, for which there is time left.
    async fn ask_to_clear_at(
        &self,
        to: Seat,
        until: Time,
    ) -> Result<Option<ClearReply>, StoreErrorKind> {
        let time_left = until.since(time::now());
        let Some(told_ns) = self.told_ns(to, time::now() + time_left / 4).await? else {
            return Ok(None);
        };
        let term = term(told_ns, until);
        calls::clear(&self.asking, ChangeMessage { to, term }, until).await
    }

    /// Members that have not told that all of their cores know this map, or a later one.
    async fn behind(&self, epoch: Epoch) -> Vec<NodeId> {
        let stats = self.stat().await.into_iter();
        let behind = stats.filter(|(_, stat)| !stat.is_ok_and(|stat| stat.epoch >= epoch.0));
        let mut behind: Vec<_> = behind.map(|(seat, _)| seat.node).collect();
        behind.dedup();
        behind
    }
}
