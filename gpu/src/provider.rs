//! The seam below which copies are addresses: the CUDA driver, or the fake device.
//!
//! An enum per object, no type parameter, so that nothing above knows which one it talks to. What
//! is above this seam has checked ranges, owners and depths; [`fake`](crate::fake) checks again.

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use lunette_gpu_proto::fault::Fault;
use lunette_gpu_proto::kernel::Job;
use lunette_gpu_proto::sums::SumJob;
use lunette_runtime::CoreWaker;

use crate::{cuda, fake};

/// Bytes of a handle between processes.
pub(crate) const IPC_HANDLE_BYTES: usize = 64;

/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: u32 = 801;

/// What a device is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device's name.
    pub name: String,
    /// Its number.
    pub index: usize,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// How many streaming multiprocessors it has.
    pub multiprocessors: u32,
    /// Compute capability: 90 for 9.0.
    pub capability: u32,
    /// The driver's version: 12080 for 12.8.
    pub driver_version: u32,
    /// Whether many copies go in one call.
    pub has_batches: bool,
    /// Whether memory can be made a dma-buf.
    pub has_dma_buf: bool,
    /// Whether adapters reach its memory by its address (nvidia-peermem).
    pub has_peer_memory: bool,
    /// Whether memory can be handed to other processes by descriptor.
    pub has_shareable: bool,
}

/// A copy of bytes that lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawCopy {
    pub(crate) from: Address,
    pub(crate) to: Address,
    pub(crate) len: usize,
}

/// Where bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// In memory of the device.
    Device(u64),
    /// In memory of this process, whose provenance has been exposed.
    Host(u64),
}

impl Address {
    /// As the driver has it: one space for both.
    pub(crate) const fn bits(self) -> u64 {
        match self {
            Self::Device(bits) | Self::Host(bits) => bits,
        }
    }
}

/// What came of a list of copies: how many have been queued, and why not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    pub(crate) count: usize,
    pub(crate) result: Result<(), Fault>,
}

impl Queued {
    pub(crate) const fn all(count: usize) -> Self {
        Self {
            count,
            result: Ok(()),
        }
    }

    pub(crate) const fn none(fault: Fault) -> Self {
        Self {
            count: 0,
            result: Err(fault),
        }
    }
}

/// What the driver knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PointerInfo {
    /// Whether it is plain memory of this device.
    pub(crate) is_own: bool,
    /// The allocation in which it lies.
    pub(crate) base: u64,
    pub(crate) len: u64,
}

/// A device with its context.
#[derive(Debug)]
pub(crate) enum RawContext {
    Cuda(cuda::Context),
    Fake(fake::FakeContext),
}

/// Memory of a device, given back when dropped.
#[derive(Debug)]
pub(crate) enum RawMemory {
    Cuda(cuda::Memory),
    Fake(fake::FakeMemory),
}

/// Pinned memory of the host; pinned until dropped.
#[derive(Debug)]
pub(crate) enum RawPin {
    Cuda(cuda::Pin),
    Fake(fake::FakePin),
}

/// A stream. It is empty when it is dropped.
#[derive(Debug)]
pub(crate) enum RawStream {
    Cuda(cuda::Stream),
    Fake(fake::FakeStream),
}

/// An event, used again and again.
#[derive(Debug)]
pub(crate) enum RawEvent {
    Cuda(cuda::Event),
    Fake(fake::FakeEvent),
}

impl RawContext {
    pub(crate) fn info(&self) -> DeviceInfo {
        match self {
            Self::Cuda(context) => context.info().clone(),
            Self::Fake(context) => context.info(),
        }
    }

    pub(crate) fn alloc(&self, len: u64) -> Result<RawMemory, Fault> {
        match self {
            Self::Cuda(context) => context.alloc(len).map(RawMemory::Cuda),
            Self::Fake(context) => context.alloc(len, false).map(RawMemory::Fake),
        }
    }

    /// Memory that can be handed to other processes by descriptor. It may be longer than asked for.
    pub(crate) fn alloc_shareable(&self, len: u64) -> Result<RawMemory, Fault> {
        match self {
            Self::Cuda(context) => context.alloc_shareable(len).map(RawMemory::Cuda),
            Self::Fake(context) => context.alloc(len, true).map(RawMemory::Fake),
        }
    }

    /// Another process's memory, by descriptor.
    pub(crate) fn import(&self, memory: BorrowedFd<'_>, len: u64) -> Result<RawMemory, Fault> {
        match self {
            Self::Cuda(context) => context.import(memory, len).map(RawMemory::Cuda),
            Self::Fake(context) => context.import(memory, len).map(RawMemory::Fake),
        }
    }

    /// Another process's memory, by handle.
    pub(crate) fn open_ipc(&self, handle: [u8; IPC_HANDLE_BYTES]) -> Result<RawMemory, Fault> {
        match self {
            Self::Cuda(context) => context.open_ipc(handle).map(RawMemory::Cuda),
            Self::Fake(context) => context.open_ipc(handle).map(RawMemory::Fake),
        }
    }

    pub(crate) fn pointer(&self, address: u64) -> Result<PointerInfo, Fault> {
        match self {
            Self::Cuda(context) => context.pointer(address),
            Self::Fake(context) => context.pointer(address),
        }
    }

    /// What another process opens an allocation by, which begins at this address.
    pub(crate) fn ipc_handle(&self, base: u64) -> Result<[u8; IPC_HANDLE_BYTES], Fault> {
        match self {
            Self::Cuda(context) => context.ipc_handle(base),
            Self::Fake(context) => context.ipc_handle(base),
        }
    }

    /// A dma-buf of this range of an allocation.
    pub(crate) fn dma_buf(&self, address: u64, len: u64) -> Result<OwnedFd, Fault> {
        match self {
            Self::Cuda(context) => context.dma_buf(address, len),
            Self::Fake(context) => context.dma_buf(address, len),
        }
    }

    /// Of an imitated device: a file of the allocation that begins at this address.
    pub(crate) fn imitation(&self, base: u64) -> Option<OwnedFd> {
        match self {
            Self::Cuda(_) => None,
            Self::Fake(context) => context.imitation(base),
        }
    }

    /// Lets copies inside this allocation be seen by adapters in order.
    pub(crate) fn order_memory_operations(&self, base: u64) -> Result<(), Fault> {
        match self {
            Self::Cuda(context) => context.order_memory_operations(base),
            Self::Fake(_) => Ok(()),
        }
    }

    /// What pins memory on another thread, where that takes long.
    pub(crate) fn pinner(&self) -> Result<Option<cuda::Pinner>, Fault> {
        match self {
            Self::Cuda(context) => context.pinner().map(Some),
            Self::Fake(_) => Ok(None),
        }
    }

    /// Takes what a pinner has pinned.
    pub(crate) fn adopt(&self, registration: Arc<cuda::Registration>) -> Result<RawPin, Fault> {
        match self {
            Self::Cuda(context) => context.adopt(registration).map(RawPin::Cuda),
            Self::Fake(_) => unreachable!("a fake context has no pinner"),
        }
    }

    /// What another device of this process has pinned at this address.
    pub(crate) fn find_pin(&self, start: usize) -> Option<Result<RawPin, Fault>> {
        match self {
            Self::Cuda(context) => Some(context.find_pin(start)?.map(RawPin::Cuda)),
            Self::Fake(_) => None,
        }
    }

    /// # Safety
    /// `start..+len`, whose provenance is exposed, is memory of this process until the result is
    /// dropped; where it is for reading only, that is said.
    pub(crate) unsafe fn pin(
        &self,
        start: usize,
        len: usize,
        is_read_only: bool,
    ) -> Result<RawPin, Fault> {
        if let Some(found) = self.find_pin(start) {
            return found;
        }
        match self {
            Self::Cuda(context) => {
                // SAFETY: passed on from the caller.
                let pinned = unsafe { context.pinner()?.pin(start, len, is_read_only) }?;
                context.adopt(pinned).map(RawPin::Cuda)
            }
            Self::Fake(context) => context.pin(start as u64, len).map(RawPin::Fake),
        }
    }

    pub(crate) fn stream(&self, is_urgent: bool) -> Result<RawStream, Fault> {
        match self {
            Self::Cuda(context) => context.stream(is_urgent).map(RawStream::Cuda),
            Self::Fake(context) => context.stream().map(RawStream::Fake),
        }
    }

    pub(crate) fn event(&self) -> Result<RawEvent, Fault> {
        match self {
            Self::Cuda(context) => context.event().map(RawEvent::Cuda),
            Self::Fake(context) => context.event().map(RawEvent::Fake),
        }
    }
}

impl RawMemory {
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Cuda(memory) => memory.address(),
            Self::Fake(memory) => memory.address(),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Cuda(memory) => memory.len(),
            Self::Fake(memory) => memory.len(),
        }
    }

    /// A descriptor of shareable memory.
    pub(crate) fn export(&self) -> Result<OwnedFd, Fault> {
        match self {
            Self::Cuda(memory) => memory.export(),
            Self::Fake(memory) => memory.export(),
        }
    }
}

impl RawPin {
    /// By which address the device reaches the first byte.
    pub(crate) fn device_address(&self) -> u64 {
        match self {
            Self::Cuda(pin) => pin.device_address(),
            Self::Fake(pin) => pin.device_address(),
        }
    }
}

impl RawStream {
    /// Queues copies, one by one or all in one call.
    ///
    /// # Safety
    /// What the copies name stays as it is until an event that is recorded behind them has come, or
    /// the stream has been synchronised. Only the device writes the destinations meanwhile, and whoever has a
    /// handle to memory that is exposed: nobody borrows that.
    pub(crate) unsafe fn copy(&self, copies: &[RawCopy], is_batch: bool) -> Queued {
        match self {
            Self::Cuda(stream) => {
                // SAFETY: passed on from the caller.
                unsafe { stream.copy(copies, is_batch) }
            }
            Self::Fake(stream) => stream.copy(copies, is_batch),
        }
    }

    /// Queues a launch of at most so many blocks.
    ///
    /// # Safety
    /// As for [`RawStream::copy`], of all that the job names.
    pub(crate) unsafe fn launch(&self, job: &Job, blocks: u32) -> Result<(), Fault> {
        match self {
            Self::Cuda(stream) => {
                // SAFETY: passed on from the caller.
                unsafe { stream.launch(job, blocks) }
            }
            Self::Fake(stream) => stream.launch(job, blocks),
        }
    }

    /// Queues a launch of so many blocks, which copy stripes and sum them.
    ///
    /// # Safety
    /// As for [`RawStream::copy`], of all that the job and its list name.
    pub(crate) unsafe fn launch_sums(&self, job: &SumJob, blocks: u32) -> Result<(), Fault> {
        match self {
            Self::Cuda(stream) => {
                // SAFETY: passed on from the caller.
                unsafe { stream.launch_sums(job, blocks) }
            }
            Self::Fake(stream) => stream.launch_sums(job, blocks),
        }
    }

    pub(crate) fn record(&self, event: &RawEvent) -> Result<(), Fault> {
        match (self, event) {
            (Self::Cuda(stream), RawEvent::Cuda(event)) => stream.record(event),
            (Self::Fake(stream), RawEvent::Fake(event)) => stream.record(event),
            _ => unreachable!("an event of the same device"),
        }
    }

    /// Goes on only when the event has come.
    pub(crate) fn wait(&self, event: &RawEvent) -> Result<(), Fault> {
        match (self, event) {
            (Self::Cuda(stream), RawEvent::Cuda(event)) => stream.wait(event),
            (Self::Fake(stream), RawEvent::Fake(event)) => stream.wait(event),
            _ => unreachable!("an event of the same device"),
        }
    }

    /// Wakes a core when the stream comes to it; never after an error.
    pub(crate) fn notify(&self, waker: CoreWaker) -> Result<(), Fault> {
        match self {
            Self::Cuda(stream) => stream.notify(waker),
            Self::Fake(stream) => stream.notify(waker),
        }
    }

    /// Whether its device goes on by tasks of this core, so that the core must turn once more after
    /// something was queued.
    pub(crate) const fn needs_turn(&self) -> bool {
        match self {
            Self::Cuda(_) => false,
            Self::Fake(_) => true,
        }
    }

    /// Waits until the stream has done everything, or never will.
    pub(crate) fn synchronize(&self) -> Result<(), Fault> {
        match self {
            Self::Cuda(stream) => stream.synchronize(),
            Self::Fake(stream) => stream.synchronize(),
        }
    }
}

impl RawEvent {
    /// Puts it into a stream of an engine.
    ///
    /// # Safety
    /// `engine` is a live stream of this device.
    pub(crate) unsafe fn record_in_engine(&self, engine: *mut c_void) -> Result<(), Fault> {
        match self {
            Self::Cuda(event) => {
                // SAFETY: passed on from the caller.
                unsafe { event.record_in(engine) }
            }
            Self::Fake(_) => Err(Fault::Unsupported(NOT_SUPPORTED)),
        }
    }

    /// Lets a stream of an engine wait for it.
    ///
    /// # Safety
    /// As above.
    pub(crate) unsafe fn hold_engine(&self, engine: *mut c_void) -> Result<(), Fault> {
        match self {
            Self::Cuda(event) => {
                // SAFETY: passed on from the caller.
                unsafe { event.hold(engine) }
            }
            Self::Fake(_) => Err(Fault::Unsupported(NOT_SUPPORTED)),
        }
    }

    /// Whether the stream in which it was recorded last has come to it.
    pub(crate) fn has_come(&self) -> Result<bool, Fault> {
        match self {
            Self::Cuda(event) => event.has_come(),
            Self::Fake(event) => event.has_come(),
        }
    }
}
