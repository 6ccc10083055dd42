//! Device memory for other processes, and for adapters.
//!
//! | who | by | what it takes |
//! |---|---|---|
//! | a process of this host | [`DeviceRegion::ipc_handle`], bytes | plain memory; the exporter outlives the importer |
//! | a process of this host | [`DeviceRegion::export`], a descriptor | [`DeviceRegion::alloc_shareable`] |
//! | an adapter of this host | [`DeviceRegion::adapter_ways`] | dma-buf, else nvidia-peermem, else a copy in host memory |

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::device::Device;
use crate::error::{ImportError, SetupError};
use crate::provider::IPC_HANDLE_BYTES;
use crate::region::{DeviceRegion, Origin};
use lunette_gpu_proto::fault::Fault;
use lunette_runtime::PeerMemory;

/// Bytes of an [`IpcHandle`] on a wire.
pub const HANDLE_WIRE_BYTES: usize = IPC_HANDLE_BYTES + 16;
/// Adapters take memory by such pages.
const PAGE_BYTES: u64 = 4096;

/// What another process of this host opens a region by. It is a capability: whoever has it reads and
/// writes the whole allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IpcHandle {
    handle: [u8; IPC_HANDLE_BYTES],
    offset_bytes: u64,
    len_bytes: u64,
}

impl std::fmt::Debug for IpcHandle {
    /// Without the handle itself, which is not for logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (offset, len) = (self.offset_bytes, self.len_bytes);
        write!(f, "IpcHandle({len} bytes at {offset})")
    }
}

impl IpcHandle {
    /// For a wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HANDLE_WIRE_BYTES] {
        let mut bytes = [0; HANDLE_WIRE_BYTES];
        let (handle, rest) = bytes.split_at_mut(IPC_HANDLE_BYTES);
        handle.copy_from_slice(&self.handle);
        rest[..8].copy_from_slice(&self.offset_bytes.to_le_bytes());
        rest[8..].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes
    }

    /// From a wire. What it says is checked when it is opened.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; HANDLE_WIRE_BYTES]) -> Self {
        let (handle, rest) = bytes.split_at(IPC_HANDLE_BYTES);
        let long = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        Self {
            handle: handle.try_into().expect("as long as a handle"),
            offset_bytes: long(&rest[..8]),
            len_bytes: long(&rest[8..]),
        }
    }
}

/// What another process of this host opens shareable memory by: the descriptor is passed over a Unix
/// socket, the numbers in any way.
#[derive(Debug)]
pub struct Export {
    /// The memory. It is kept by whoever has opened it, too.
    pub memory: OwnedFd,
    /// Bytes of the allocation, which may be more than was asked for.
    pub allocation_bytes: u64,
    /// Where in it the region begins.
    pub offset_bytes: u64,
}

/// How an adapter reaches a region, the best way first.
#[derive(Debug)]
pub enum AdapterWay {
    /// By a dma-buf of the allocation, in which the region begins at this byte.
    DmaBuf {
        /// The dma-buf. It keeps the memory on its own.
        dma_buf: OwnedFd,
        /// First byte of the region.
        offset_bytes: u64,
    },
    /// By its address, which the kernel module nvidia-peermem resolves.
    PeerMemory(ByAddress),
    /// Not at all: what is sent is copied to pinned memory of the host first, piece by piece, and what
    /// is received is copied from there.
    Staging,
}

/// A region that an adapter is given by its address, and holds.
#[derive(Debug)]
pub struct ByAddress(DeviceRegion);

// SAFETY: the addresses of a region are a device's, as its driver said when it was made or imported, and the driver gives
// them to nobody else while the region is held, which is until this is dropped. This package lends no reference to what
// lies there. Those of fake devices are behind all addresses that a process may have.
unsafe impl PeerMemory for ByAddress {
    fn address(&self) -> u64 {
        self.0.address()
    }

    fn len_bytes(&self) -> u64 {
        self.0.len()
    }

    fn imitation(&self) -> Option<(OwnedFd, u64)> {
        let Self(region) = self;
        let base = region.context().pointer(region.address()).ok()?.base;
        let file = region.context().imitation(base)?;
        Some((file, region.address() - base))
    }
}

impl DeviceRegion {
    /// What another process of this host opens this region by, with [`DeviceRegion::open_ipc`]. The
    /// memory must be held here for as long as it is open there.
    ///
    /// # Errors
    /// [`SetupError::Refused`]: not on this device or system, or not of this memory.
    pub fn ipc_handle(&self) -> Result<IpcHandle, SetupError> {
        let info = self.context().pointer(self.address())?;
        if !info.is_own {
            return Err(SetupError::Refused(Fault::Code(1)));
        }
        Ok(IpcHandle {
            handle: self.context().ipc_handle(info.base)?,
            offset_bytes: self.address() - info.base,
            len_bytes: self.len(),
        })
    }

    /// Opens a region of another process of this host.
    ///
    /// # Errors
    /// [`ImportError::Range`]: it does not lie inside what the handle names; else what the driver
    /// says.
    pub fn open_ipc(device: &Device, handle: &IpcHandle) -> Result<Self, ImportError> {
        let inner = device.inner();
        let memory = inner.context().open_ipc(handle.handle)?;
        let len = memory.len();
        if !crate::copy::fits(handle.offset_bytes, handle.len_bytes, len) {
            return Err(ImportError::Range);
        }
        let whole = Self::of(inner, Origin::Memory(memory), None, len)?;
        Ok(whole.slice(handle.offset_bytes..handle.offset_bytes + handle.len_bytes))
    }

    /// A descriptor of the whole allocation, for another process of this host, which opens it with
    /// [`DeviceRegion::import_shared`].
    ///
    /// # Errors
    /// [`SetupError::Refused`], for memory that was not made by [`DeviceRegion::alloc_shareable`] in
    /// particular.
    pub fn export(&self) -> Result<Export, SetupError> {
        let memory = self.memory();
        let memory = memory.ok_or(SetupError::Refused(Fault::Unsupported(801)))?;
        Ok(Export {
            memory: memory.export()?,
            allocation_bytes: memory.len(),
            offset_bytes: self.address() - memory.address(),
        })
    }

    /// Opens the whole of an allocation that another process exported, whose length it says.
    ///
    /// # Errors
    /// [`ImportError::Range`] of nothing; else what the driver says, of a length that is not the
    /// allocation's too.
    pub fn import_shared(
        device: &Device,
        memory: BorrowedFd<'_>,
        allocation_bytes: u64,
    ) -> Result<Self, ImportError> {
        if allocation_bytes == 0 {
            return Err(ImportError::Range);
        }
        let inner = device.inner();
        let memory = inner.context().import(memory, allocation_bytes)?;
        Ok(Self::of(
            inner,
            Origin::Memory(memory),
            None,
            allocation_bytes,
        )?)
    }

    /// A dma-buf of the allocation in which the region lies, and where it begins there.
    ///
    /// # Errors
    /// [`SetupError::Refused`]: not on this device or system; an allocation that is not made of whole
    /// pages.
    pub fn dma_buf(&self) -> Result<(OwnedFd, u64), SetupError> {
        let context = self.context();
        if !context.info().has_dma_buf {
            return Err(SetupError::Refused(Fault::Unsupported(801)));
        }
        let info = context.pointer(self.address())?;
        let is_whole = info.base.is_multiple_of(PAGE_BYTES) && info.len.is_multiple_of(PAGE_BYTES);
        if !info.is_own || !is_whole {
            return Err(SetupError::Refused(Fault::Code(1)));
        }
        let dma_buf = context.dma_buf(info.base, info.len)?;
        Ok((dma_buf, self.address() - info.base))
    }

    /// The ways by which an adapter may reach this region, the best first; [`AdapterWay::Staging`]
    /// is the last one and always there. Whether an adapter, its library and the kernel take a way is
    /// told only when it is tried, so the caller goes on to the next one then.
    pub fn adapter_ways(&self) -> impl Iterator<Item = AdapterWay> {
        let dma_buf = self.dma_buf().ok();
        let dma_buf = dma_buf.map(|(dma_buf, offset_bytes)| AdapterWay::DmaBuf {
            dma_buf,
            offset_bytes,
        });
        let has_peer_memory = self.context().info().has_peer_memory;
        let peer_memory = has_peer_memory.then(|| AdapterWay::PeerMemory(ByAddress(self.clone())));
        if dma_buf.is_some() || peer_memory.is_some() {
            self.order_for_adapters();
        }
        dma_buf
            .into_iter()
            .chain(peer_memory)
            .chain([AdapterWay::Staging])
    }

    /// Copies inside the allocation are to be over before adapters are told of them.
    fn order_for_adapters(&self) {
        let base = self.base();
        if let Err(fault) = self.context().order_memory_operations(base) {
            tracing::debug!(%fault, "memory operations are not ordered for adapters");
        }
    }
}
