//! What an engine has registered, as its program sees it.

use lunette_runtime::arena::Exposed;
use lunette_transfer_proto::engine::segment::{Kind, RegisterRefusal, SegmentId};

use super::devices::DeviceSegment;
use super::error::{RegisterDeviceError, RegisterError, RegisterFileError, RegisterNamespaceError};
use super::files::FileSegment;
use super::namespaces::NamespaceSegment;
use super::registry::{Content, RegisterOptions, Unregistered};
use super::{Engine, Inner};

impl Engine {
    /// Exposes memory to peers. An engine of several cores registers what all of them reach, by its handle
    /// ([`EngineHandle::register_shared`](super::EngineHandle::register_shared)).
    ///
    /// # Errors
    /// [`RegisterError`], with the memory; [`RegisterRefusal::OfOneCore`] where there are siblings.
    pub fn register(
        &self,
        memory: Exposed,
        options: &RegisterOptions,
    ) -> Result<SegmentId, RegisterError> {
        if self.common().are_several() {
            let refusal = RegisterRefusal::OfOneCore;
            return Err(RegisterError { refusal, memory });
        }
        self.inner.registry.borrow_mut().register(memory, options)
    }

    /// Exposes a file to peers, and to this engine's own transfers. It has no addresses, so
    /// [`RegisterOptions::by_address`] has no effect; nobody maps it.
    ///
    /// # Errors
    /// [`RegisterFileError`], with the file; [`RegisterRefusal::OfOneCore`] where there are siblings: a file
    /// is the core's that has opened it, and their handle opens it at each
    /// ([`EngineHandle::register_file`](super::EngineHandle::register_file)).
    pub fn register_file(
        &self,
        file: FileSegment,
        options: &RegisterOptions,
    ) -> Result<SegmentId, RegisterFileError> {
        if self.common().are_several() {
            let refusal = RegisterRefusal::OfOneCore;
            return Err(RegisterFileError { refusal, file });
        }
        let mut registry = self.inner.registry.borrow_mut();
        let registered = registry.register_content(Content::File(file.clone()), options);
        registered.map_err(|refusal| RegisterFileError { refusal, file })
    }

    /// Exposes memory of a device to peers, and to this engine's own transfers. Peers that come by adapters reach
    /// it there where that is possible; for others its bytes are copied by way of this machine. Nobody maps it.
    ///
    /// # Errors
    /// [`RegisterDeviceError`], with the memory; [`RegisterRefusal::OfOneCore`] where there are siblings: a device
    /// is the core's that has opened it.
    pub fn register_device(
        &self,
        device: DeviceSegment,
        options: &RegisterOptions,
    ) -> Result<SegmentId, RegisterDeviceError> {
        if self.common().are_several() {
            let refusal = RegisterRefusal::OfOneCore;
            return Err(RegisterDeviceError { refusal, device });
        }
        let mut registry = self.inner.registry.borrow_mut();
        let registered = registry.register_content(Content::Device(device.clone()), options);
        registered.map_err(|refusal| RegisterDeviceError { refusal, device })
    }

    /// Exposes a namespace to peers, and to this engine's own transfers, in whole blocks: what is not aligned
    /// fails as [`Refusal::Unaligned`](super::Refusal::Unaligned). It has no addresses; nobody maps it.
    ///
    /// # Errors
    /// [`RegisterNamespaceError`], with the namespace; [`RegisterRefusal::OfOneCore`] where there are siblings:
    /// their handle connects one at each core
    /// ([`EngineHandle::register_namespace`](super::EngineHandle::register_namespace)).
    pub fn register_namespace(
        &self,
        namespace: NamespaceSegment,
        options: &RegisterOptions,
    ) -> Result<SegmentId, RegisterNamespaceError> {
        if self.common().are_several() {
            let refusal = RegisterRefusal::OfOneCore;
            return Err(RegisterNamespaceError { refusal, namespace });
        }
        let mut registry = self.inner.registry.borrow_mut();
        let registered = registry.register_content(Content::Namespace(namespace.clone()), options);
        registered.map_err(|refusal| RegisterNamespaceError { refusal, namespace })
    }

    /// Takes a segment away, at all cores. From the first poll on no access begins; the future ends with the
    /// memory when those that had begun are over. Dropping the future does not bring the segment back. `None`
    /// if there is no such segment, or if it is no memory.
    pub async fn unregister(&self, id: SegmentId) -> Option<Exposed> {
        match self.take_away(id, Kind::Memory).await? {
            Content::Memory(exposed) => Some(exposed),
            _ => unreachable!("it is memory"),
        }
    }

    /// As [`unregister`](Self::unregister), of a file: everything that was written to it has reached the
    /// system. `None` if there is no such segment, or if it is no file.
    pub async fn unregister_file(&self, id: SegmentId) -> Option<FileSegment> {
        match self.take_away(id, Kind::File).await? {
            Content::File(file) => Some(file),
            _ => unreachable!("it is a file"),
        }
    }

    /// As [`unregister`](Self::unregister), of memory of a device. `None` if there is no such segment, or if it is
    /// none of a device.
    pub async fn unregister_device(&self, id: SegmentId) -> Option<DeviceSegment> {
        match self.take_away(id, Kind::Device).await? {
            Content::Device(device) => Some(device),
            _ => unreachable!("it is a device's"),
        }
    }

    /// As [`unregister`](Self::unregister), of a namespace. `None` if there is no such segment, or if it is no
    /// namespace.
    pub async fn unregister_namespace(&self, id: SegmentId) -> Option<NamespaceSegment> {
        match self.take_away(id, Kind::Namespace).await? {
            Content::Namespace(namespace) => Some(namespace),
            _ => unreachable!("it is a namespace"),
        }
    }

    async fn take_away(&self, id: SegmentId, kind: Kind) -> Option<Content> {
        if self.inner.registry.borrow().kind(id)? != kind {
            return None;
        }
        self.inner.unregister(id).await
    }

    /// How many segments are registered.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.inner.registry.borrow().len()
    }

    /// Memory that is registered here, for the program itself.
    #[must_use]
    pub fn memory(&self, id: SegmentId, offset_bytes: u64, len_bytes: u64) -> Option<Exposed> {
        let registry = self.inner.registry.borrow();
        registry.memory(id, offset_bytes, len_bytes)
    }

    /// Where in a segment a range of addresses lies, if it does, and if that segment was registered
    /// by address.
    #[must_use]
    pub fn find(&self, start: u64, len_bytes: u64) -> Option<(SegmentId, u64)> {
        self.inner.registry.borrow().find(start, len_bytes)
    }
}

impl Inner {
    /// Takes a segment of whatever kind away, at all cores; what was behind it at this one. `None` if there
    /// is none.
    pub(super) async fn unregister(&self, id: SegmentId) -> Option<Content> {
        let siblings = self.alive.siblings();
        if siblings.are_several() {
            let content = self.registry.borrow().content(id)?;
            return siblings.unregister(id).await.then_some(content);
        }
        Some(self.take_out(id)?.unused().await)
    }

    /// Takes a segment of this core away. Who has opened it is told to close it.
    pub(super) fn take_out(&self, id: SegmentId) -> Option<Unregistered> {
        let unregistered = self.registry.borrow_mut().unregister(id)?;
        if let Some(owner) = &self.owner {
            owner.recall(id, self.options.scheduler.settle);
        }
        Some(unregistered)
    }
}
