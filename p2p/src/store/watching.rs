//! Files that an object lies in: whether they are as they were.
//!
//! A file is stamped, a tick of its system's clock is waited for, and then it is read. So a change that comes while it is
//! read, or later, has another stamp, and one whose stamp is the same was read. Files that an object comes into are stamped
//! when all of it is there, and not read again: what somebody else has written by then receivers find.

use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::Duration;

use lunette_p2p_proto::Shape;
use lunette_runtime::fs::FileStamp;
use lunette_runtime::time;

use super::Inner;
use super::backing::Backing;
use super::local::Local;
use super::{Held, Store};
use crate::error::{HoldFault, SourceFault};
use crate::gate::unless;

/// How often it is looked whether a file was changed.
const LOOK: Duration = Duration::from_millis(250);

/// The stamps of an object's files.
#[derive(Debug)]
pub(super) struct Watch(Vec<Option<FileStamp>>);

impl Watch {
    /// Computes the checksums of all chunks.
    ///
    /// # Errors
    /// [`HoldFault::Source`], if a file is not read, or changes meanwhile; [`HoldFault::NoMemory`].
    pub(super) async fn begin(
        backing: &Backing,
        shape: &Shape,
    ) -> Result<(Self, Vec<u32>), HoldFault> {
        let stamps = backing.stamps().await?;
        time::sleep(FileStamp::TICK_MAX * 2).await;
        let sums = backing.sums(shape).await?;
        for (buffer, (now, before)) in backing.stamps().await?.iter().zip(&stamps).enumerate() {
            if now != before {
                return Err(SourceFault::Changed { buffer }.into());
            }
        }
        Ok((Self(stamps), sums))
    }

    /// Looks whether files were changed, and verifies those that were.
    async fn look(&mut self, local: &Local, backing: &Backing) -> Result<(), SourceFault> {
        let shape = &local.content.record.shape;
        for (buffer, seen) in self.0.iter_mut().enumerate() {
            let now = match backing.stamp(buffer).await {
                Ok(now) if now == *seen => continue,
                Ok(None) => continue,
                Ok(Some(now)) => now,
                // Readers are told by the system what it does not read; here it is asked again.
                Err(error) => {
                    tracing::debug!(%error, "whether a file was changed");
                    continue;
                }
            };
            let (len_bytes, wanted_bytes) = (now.len_bytes(), shape.buffers()[buffer]);
            if len_bytes < wanted_bytes {
                return Err(SourceFault::Shortened {
                    buffer,
                    len_bytes,
                    wanted_bytes,
                });
            }
            time::sleep(FileStamp::TICK_MAX * 2).await;
            backing.verify(buffer, shape, &local.content.sums).await?;
            *seen = Some(now);
        }
        Ok(())
    }
}

impl Store {
    /// Looks after the files of an object that was registered, until it is let go of.
    pub(super) async fn watch(&self, held: &Held, watch: Watch) -> Result<(), HoldFault> {
        let (inner, local) = (Rc::downgrade(&self.inner), Rc::clone(held.local()));
        let watching = async move { local.keep_watch(&inner, watch).await };
        self.spawn_watch(held, watching).await
    }

    /// Looks after the files that an object comes into, from when all of it is there until it is let go of.
    pub(super) async fn watch_whole(&self, held: &Held) -> Result<(), HoldFault> {
        let (inner, local) = (Rc::downgrade(&self.inner), Rc::clone(held.local()));
        let watching = async move {
            if let Some(watch) = local.written().await {
                local.keep_watch(&inner, watch).await;
            }
        };
        self.spawn_watch(held, watching).await
    }

    async fn spawn_watch(
        &self,
        held: &Held,
        watching: impl Future<Output = ()> + 'static,
    ) -> Result<(), HoldFault> {
        if self.inner.spawn(watching) {
            return Ok(());
        }
        drop(self.inner.let_go(held.local()).await);
        Err(HoldFault::Task)
    }
}

impl Local {
    /// Waits until all is here and nothing is written any more: how the files are then. `None` if it is let go of before.
    async fn written(&self) -> Option<Watch> {
        let backing = self.backing.as_ref()?;
        if !self.is_whole() {
            self.settled.opened().await;
        }
        let stamping = async {
            // What comes a second time is written once more.
            while !self.flights.borrow().is_empty() {
                time::sleep(LOOK).await;
            }
            backing.stamps().await
        };
        let stamps = unless(&self.closing, stamping).await?;
        stamps.map(Watch).ok()
    }

    async fn keep_watch(self: &Rc<Self>, inner: &Weak<Inner>, mut watch: Watch) {
        let Some(backing) = &self.backing else {
            return;
        };
        let looking = async {
            loop {
                time::sleep(LOOK).await;
                if let Err(fault) = watch.look(self, backing).await {
                    break fault;
                }
            }
        };
        let Some(fault) = unless(&self.closing, looking).await else {
            return;
        };
        tracing::warn!(object = %self.name, %fault, "it is served no more");
        self.source_fault.replace(Some(fault));
        if let Some(inner) = inner.upgrade() {
            drop(inner.let_go(self).await);
        }
    }
}
