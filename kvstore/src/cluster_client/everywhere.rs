//! What is asked of every core of every member.

use futures_util::future::join_all;
use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::placement::{Seat, has_seat, seats};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::ClusterClient;
use crate::error::{StoreError, StoreErrorKind};

impl ClusterClient {
    /// What all of them answer, each with the map that it knows: nobody is left out that one of them knows of. A client that has asked
    /// nobody for anything in a while may not have heard of those who have joined since; then all are asked again.
    ///
    /// # Errors
    /// Of the first of them that failed; `TimedOut`: maps changed all the while, or nobody was a member.
    pub(super) async fn ask_everywhere<T>(
        &self,
        until: Time,
        ask: impl AsyncFn(Seat) -> Result<(Epoch, T), StoreErrorKind>,
    ) -> Result<Vec<T>, StoreError> {
        loop {
            let map = self.asking.map();
            if map.members().is_empty() {
                // Whoever told it of this map was the last to leave, say.
                self.wait_for_map(until).await?;
                continue;
            }
            let asked = seats(&map).map(|to| {
                let address = map.member(to.node).map(|member| member.address);
                let of = move |error: StoreError| match address {
                    Some(address) => StoreError::at(address, error.kind),
                    None => error,
                };
                let asked = self.ask_member(to, until, &ask);
                Box::pin(async move { asked.await.map_err(of) })
            });
            let told = join_all(asked).await.into_iter();
            let told = told.collect::<Result<Vec<Option<(Epoch, T)>>, StoreError>>()?;
            let told: Vec<(Epoch, T)> = told.into_iter().flatten().collect();
            let told_of = told.iter().map(|(epoch, _)| *epoch);
            let newest = told_of.fold(self.asking.map().epoch(), Epoch::max);
            if newest <= map.epoch() {
                return Ok(told.into_iter().map(|(_, told)| told).collect());
            }
            self.know_map(newest, until).await?;
        }
    }

    /// What one of them answers; `None` if it is a member no more, also if the node has begun anew.
    async fn ask_member<T>(
        &self,
        to: Seat,
        until: Time,
        ask: &impl AsyncFn(Seat) -> Result<(Epoch, T), StoreErrorKind>,
    ) -> Result<Option<(Epoch, T)>, StoreError> {
        loop {
            match ask(to).await {
                Err(StoreErrorKind::Refused(Status::WrongSeat)) => {}
                told => return told.map(Some).map_err(StoreError::local),
            }
            if !has_seat(&self.asking.map(), to) {
                return Ok(None);
            }
            self.wait_for_map(until).await?;
        }
    }

    /// Waits until it knows a map that somebody else knows, or a later one.
    ///
    /// # Errors
    /// `TimedOut`: it does not in time.
    pub(super) async fn know_map(&self, epoch: Epoch, until: Time) -> Result<(), StoreError> {
        while self.asking.map().epoch() < epoch {
            self.wait_for_map(until).await?;
        }
        if time::now() >= until {
            return Err(StoreError::local(StoreErrorKind::TimedOut));
        }
        Ok(())
    }
}
