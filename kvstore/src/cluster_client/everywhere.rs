//! What is asked of every core of every member.

use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt};
use lunette_cluster::proto::map::{ClusterMap, Epoch};
use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::placement::{Seat, has_seat, seats};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::ClusterClient;
use crate::error::{StoreError, StoreErrorKind};

/// Seats that are asked at a time.
const ASKED_AT_ONCE_MAX: usize = 1024;
/// After so long in which nobody has answered, those who are asked may be members no more.
const SILENCE_MAX: Duration = Duration::from_millis(500);

impl ClusterClient {
    /// What all of them answer, each with the map that it knows: nobody is left out that one of them knows of. A client that has asked
    /// nobody for anything in a while may not have heard of those who have joined since, nor of those who are gone; then all are asked
    /// again.
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
            let told = self.told_under(&map, asked, |told| {
                told.as_ref().map_or(Epoch(0), |(epoch, _)| *epoch)
            });
            match told.await? {
                Told::All(told) => {
                    return Ok(told.into_iter().flatten().map(|(_, of)| of).collect());
                }
                Told::Newer(epoch, _) => self.know_map(epoch, until).await?,
            }
        }
    }

    /// What all answer who are asked because this map has them, in no order; or that there is a newer one, as soon as that is known: who
    /// is gone answers nothing.
    ///
    /// # Errors
    /// Of the first that fails.
    pub(super) async fn told_under<T, E>(
        &self,
        map: &ClusterMap,
        asked: impl Iterator<Item = impl Future<Output = Result<T, E>>>,
        epoch_of: impl Fn(&T) -> Epoch,
    ) -> Result<Told<T>, E> {
        let mut asked = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE_MAX);
        let (mut all, mut newest) = (Vec::new(), Epoch(0));
        loop {
            let changed = self.asking.next_map();
            newest = newest.max(self.asking.map().epoch());
            if newest > map.epoch() {
                return Ok(Told::Newer(newest, all));
            }
            match time::timeout(SILENCE_MAX, select(asked.next(), changed)).await {
                Ok(Either::Left((None, _))) => return Ok(Told::All(all)),
                Ok(Either::Left((Some(told), _))) => {
                    let told = told?;
                    newest = newest.max(epoch_of(&told));
                    all.push(told);
                }
                Ok(Either::Right(_)) => {}
                Err(_silent) => self.asking.stale.raise(),
            }
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

/// What those answer who are asked under one map.
pub(super) enum Told<T> {
    All(Vec<T>),
    /// There is this one by now, and so many had answered.
    Newer(Epoch, Vec<T>),
}
