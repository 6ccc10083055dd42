//! Keeping the lease, and writing again what is gone.
//!
//! What a holder has written ends with its lease. So others look three times in a lease's time whether an object that
//! they hold is still in the catalogue, and write it again: an object is found as long as somebody holds it, also after
//! its origin, or what the coordinator knew, is gone.

use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::coordination::{CoordinationFault, LeaseId};
use lunette_runtime::{entropy, time};

use super::Inner;
use crate::error::CatalogueError;

/// The pause after the coordinator did not answer.
const RETRY: Duration = Duration::from_millis(500);

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
        for local in locals.iter().filter(|local| !local.is_closing()) {
            self.put_holder(local).await?;
            if local.is_closing() {
                // It was let go meanwhile, and must not come back.
                self.books
                    .remove_holder(local.content.record.version, self.me())
                    .await?;
                continue;
            }
            if !local.is_serving() {
                continue;
            }
            // What is here in part is written again as well: its sums were verified by no one else.
            let (me, lease) = (self.me(), self.lease.get());
            self.books.claim(local, me, lease, false).await?;
        }
        self.remove_left().await
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
