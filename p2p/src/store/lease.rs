//! Keeping the lease, and writing again what is gone.
//!
//! What a holder has written ends with its lease. So others watch the names of what they hold, and write again what is
//! gone: an object is found as long as somebody holds it, also after its origin, or what the coordinator knew, is gone.
//! Three times in a lease's time they look besides, for what no watch has told.

use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::Watch;
use lunette_cluster::proto::coordination::{Change, CoordinationFault, LeaseId};
use lunette_runtime::{entropy, time};

use super::Inner;
use super::local::Local;
use crate::error::CatalogueError;

/// The pause after the coordinator did not answer.
const RETRY: Duration = Duration::from_millis(500);
/// Holders that see a name go write it again by chance one before the other, in a time of a millisecond for each that is
/// known, and no longer than this: whom it comes to late finds it written.
const TURN_MAX: Duration = Duration::from_millis(250);

impl Inner {
    pub(super) async fn keep_lease(self: Rc<Self>) {
        let third = Duration::from_secs(u64::from(self.lease_ttl_s)) / 3;
        loop {
            time::sleep(third).await;
            while let Err(error) = self.renew().await {
                tracing::warn!(%error, "the catalogue; what is held is served on");
                time::sleep(RETRY.min(third)).await;
            }
        }
    }

    async fn renew(&self) -> Result<(), CatalogueError> {
        match self.books.keep_alive(self.lease.get()).await {
            Ok(()) => {}
            Err(CoordinationFault::LeaseNotFound) => {
                let lease = LeaseId::new(entropy());
                self.books.grant(lease, self.lease_ttl_s).await?;
                self.lease.set(lease);
                tracing::info!("a new lease: the old one had ended");
            }
            Err(fault) => return Err(fault.into()),
        }
        let locals: Vec<_> = self.locals.borrow().values().cloned().collect();
        for local in locals {
            if let Some(_writing) = local.begin_writing() {
                self.put_holder(&local).await?;
                self.write_again(&local).await?;
            }
        }
        self.remove_left().await
    }

    /// Writes an object's keys, if its name is gone. What is here in part is written as well: its sums were verified by no
    /// one else.
    async fn write_again(&self, local: &Local) -> Result<(), CatalogueError> {
        if local.is_serving()
            && let Some(_writing) = local.begin_writing()
        {
            let (me, lease) = (self.me(), self.lease.get());
            self.books.claim(local, me, lease, false).await?;
        }
        Ok(())
    }

    /// Sees names go, from when something is held here.
    pub(super) async fn watch_names(self: Rc<Self>) {
        self.has_held.opened().await;
        loop {
            match self.books.watch_objects().await {
                Ok(mut watch) => {
                    if let Err(error) = self.watch_until_fault(&mut watch).await {
                        tracing::debug!(%error, "the watch on names of objects ended");
                    }
                }
                Err(error) => tracing::debug!(%error, "names of objects are not watched"),
            }
            time::sleep(RETRY).await;
        }
    }

    async fn watch_until_fault(&self, watch: &mut Watch) -> Result<(), CatalogueError> {
        loop {
            let changes = watch.next_changes().await?;
            let gone = changes.iter().filter_map(|change| match change {
                Change::Delete { key, .. } => self.served_by_key(key),
                Change::Put(_) => None,
            });
            let gone: Vec<_> = gone.collect();
            time::sleep(turn(&gone)).await;
            for local in gone {
                if self.books.object(&local.name).await?.is_none() {
                    self.write_again(&local).await?;
                }
            }
        }
    }

    /// What is served here of the name in an object's key.
    fn served_by_key(&self, key: &[u8]) -> Option<Rc<Local>> {
        let name = self.books.name_of(key)?;
        let locals = self.locals.borrow();
        let mut served = locals.values().filter(|local| local.is_serving());
        served
            .find(|local| local.name == name && !local.is_closing())
            .cloned()
    }

    /// Removes the keys of what we have let go of, where others have by now.
    async fn remove_left(&self) -> Result<(), CatalogueError> {
        let left = self.left.take();
        for (at, (name, version)) in left.iter().enumerate() {
            let is_held_here = self.locals.borrow().contains_key(version);
            let removed = self.books.remove_if_last(name, *version, self.lease.get());
            match removed.await {
                Ok(is_gone) if is_gone || is_held_here => {}
                Ok(_) => self.left.borrow_mut().push((name.clone(), *version)),
                Err(error) => {
                    self.left.borrow_mut().extend_from_slice(&left[at..]);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// When it is this holder's turn.
fn turn(gone: &[Rc<Local>]) -> Duration {
    let known = gone.iter().map(|local| local.neighbours()).max();
    let known = u64::try_from(known.unwrap_or(0)).expect("neighbours are bounded");
    let turns = Duration::from_millis(known).min(TURN_MAX);
    let turns_us = u64::try_from(turns.as_micros()).expect("a short time");
    Duration::from_micros(entropy() % (turns_us + 1))
}
