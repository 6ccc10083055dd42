//! What the program has of an object that is held here.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use lunette_p2p_proto::layout::Layout;
use lunette_p2p_proto::{ObjectName, Shape, Version};
use lunette_runtime::arena::Exposed;
use lunette_runtime::{OpError, time};
use lunette_transfer::engine::DeviceFault;

use super::Store;
use super::backing::{Backing, BackingFault};
use super::begun::Begun;
use super::local::Local;
use crate::error::{Incomplete, SourceFault};

/// How far an object has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are here, and verified.
    pub held_bytes: u64,
    /// How many of these were here, and right, when it began.
    pub resumed_bytes: u64,
    /// Of how many: for a receiver of slices those of the chunks that they are in.
    pub len_bytes: u64,
    /// Holders that answer.
    pub neighbours: usize,
}

/// An object that is held here, whole or in part, and served. Dropping it lets nothing go: the store serves it until it
/// ends itself.
#[derive(Debug)]
pub struct Held {
    store: Store,
    local: Rc<Local>,
}

impl Held {
    pub(super) const fn new(store: Store, local: Rc<Local>) -> Self {
        Self { store, local }
    }

    pub(super) const fn local(&self) -> &Rc<Local> {
        &self.local
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &ObjectName {
        &self.local.name
    }

    /// Which registration it is.
    #[must_use]
    pub fn version(&self) -> Version {
        self.local.content.record.version
    }

    /// What it is made of.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.local.content.record.shape
    }

    /// The tensors that it has, as they are told of: none, if whoever registered it told of none.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.local.content.layout
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            held_bytes: self.local.held_bytes(),
            resumed_bytes: self.local.resumed_bytes,
            len_bytes: self.local.len_bytes(),
            neighbours: self.local.neighbours(),
        }
    }

    /// Waits until all of it that is wanted is here, for at most `patience`. Dropping the future changes nothing.
    ///
    /// # Errors
    /// [`Incomplete`]: what came stays, and more comes on, unless the store lets it go meanwhile.
    pub async fn whole(&self, patience: Duration) -> Result<(), Incomplete> {
        if !self.local.is_whole() {
            // Whether it is there in time is looked at below.
            let _in_time = time::timeout(patience, self.local.settled.opened()).await;
        }
        if self.local.is_whole() {
            return Ok(());
        }
        Err(Incomplete {
            held: self.local.held_chunks(),
            chunks: self.local.wanted_chunks(),
            neighbours: self.local.neighbours(),
        })
    }

    /// Waits until what has come into files is on the disk: nothing to wait for where it came into memory.
    ///
    /// # Errors
    /// The system's: what was written since the last success may be lost.
    pub async fn sync(&self) -> Result<(), io::Error> {
        match self.local.outside() {
            Some(backing) => backing.sync().await,
            None => Ok(()),
        }
    }

    /// What the system said first when a chunk was not written to its file, if one was not. Others go on; what was not written
    /// is fetched and tried again.
    #[must_use]
    pub fn disk_fault(&self) -> Option<OpError> {
        match self.local.outside().and_then(Backing::fault) {
            Some(BackingFault::Disk(error)) => Some(error),
            Some(BackingFault::Device(_)) | None => None,
        }
    }

    /// What a device said first when a chunk was not copied to its memory, if one was not. Others go on, unless the device is
    /// lost; what was not copied is fetched and tried again.
    #[must_use]
    pub fn device_fault(&self) -> Option<DeviceFault> {
        match self.local.outside().and_then(Backing::fault) {
            Some(BackingFault::Device(fault)) => Some(fault),
            Some(BackingFault::Disk(_)) | None => None,
        }
    }

    /// Waits until a chunk more is not written to its file, or not copied to its device; forever, where it comes into memory of
    /// the host. What was said first is in [`disk_fault`](Self::disk_fault) or [`device_fault`](Self::device_fault). Dropping
    /// the future changes nothing.
    pub async fn not_written(&self) {
        match self.local.outside() {
            Some(backing) => backing.next_fault().await,
            None => std::future::pending().await,
        }
    }

    /// Why it was let go of by the store, if it was: a file that it was registered of, or has come into, is not as it was
    /// ([`Store::register_files`], [`Store::receive_files`]).
    #[must_use]
    pub fn source_fault(&self) -> Option<SourceFault> {
        self.local.source_fault.borrow().clone()
    }

    /// Serves it no more, and gives the buffers back. Others are told, and grants that they have are waited for, as
    /// long as those usually take or for ten seconds at most where nothing is known; then nobody reads the memory any
    /// more: who is late is refused by the engine. What came of an object in part can be received on later
    /// ([`ReceiveOptions::resume`](crate::ReceiveOptions::resume)).
    ///
    /// The object stays in the catalogue as long as somebody else holds it. Dropping the future changes nothing: it is
    /// let go of all the same.
    pub async fn unregister(self) -> Vec<Exposed> {
        self.let_go().await
    }

    /// The same, by a reference.
    pub(crate) async fn let_go(&self) -> Vec<Exposed> {
        self.store.inner.let_go(&self.local).await
    }

    /// Lets it go in the background, for nobody.
    pub(crate) fn leave(self) {
        drop(Begun::new(Rc::clone(&self.store.inner), self.local));
    }

    /// Nobody is to be given its buffers back: they are dropped as soon as nobody reads or writes them.
    pub(crate) fn abandon(&self) {
        self.local.abandon();
    }

    /// Whether it is being let go of, or is.
    pub(crate) fn is_let_go(&self) -> bool {
        self.local.is_closing()
    }
}
