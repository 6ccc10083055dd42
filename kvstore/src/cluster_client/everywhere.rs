//! What is asked of every core of every member.

use futures_util::future::join_all;
use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::placement::{Seat, seats};
use lunette_runtime_core::time::Time;

use super::ClusterClient;
use crate::error::{StoreError, StoreErrorKind};

impl ClusterClient {
    /// What all of them answer, each with the map that it knows: nobody is left out that one of them knows of. A client that has asked
    /// nobody for anything in a while may not have heard of those who have joined since; then all are asked again.
    pub(super) async fn ask_everywhere<T>(
        &self,
        until: Time,
        ask: impl AsyncFn(Seat) -> Result<(Epoch, T), StoreErrorKind>,
    ) -> Result<Vec<T>, StoreError> {
        loop {
            let map = self.asking.map();
            let asked = seats(&map).map(|to| {
                let address = map.member(to.node).map(|member| member.address);
                let of = move |kind| match address {
                    Some(address) => StoreError::at(address, kind),
                    None => StoreError::local(kind),
                };
                let asked = ask(to);
                Box::pin(async move { asked.await.map_err(of) })
            });
            let told = join_all(asked).await.into_iter();
            let told = told.collect::<Result<Vec<(Epoch, T)>, StoreError>>()?;
            let newest = told.iter().map(|(epoch, _)| *epoch).max();
            if newest.is_none_or(|newest| newest <= map.epoch()) {
                return Ok(told.into_iter().map(|(_, told)| told).collect());
            }
            self.know_map(newest.unwrap_or_default(), until).await?;
        }
    }

    /// Waits until it knows a map that somebody else knows, or a later one.
    pub(super) async fn know_map(&self, epoch: Epoch, until: Time) -> Result<(), StoreError> {
        while self.asking.map().epoch() < epoch {
            self.wait_for_map(until).await?;
        }
        Ok(())
    }
}
