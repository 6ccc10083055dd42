//! The seam below which work requests are bytes: libibverbs, the simulated fabric, or nothing.
//!
//! An enum per object, no type parameter, so that nothing above knows which one it talks to. What
//! is above this seam has checked credits, bounds and states; [`sim`](crate::sim) checks again.
//!
//! | module | subject |
//! |---|---|
//! | [`device`] | what devices are and can do |
//! | [`events`] | what happens outside of completions |
//! | [`requests`] | work requests and their completions |
//! | [`settings`] | how queue pairs are made and moved on |
//! | [`real`] | libibverbs |
//! | [`null`] | nothing |

mod device;
mod events;
pub(crate) mod null;
pub(crate) mod real;
mod requests;
mod settings;

use std::os::fd::{AsFd, OwnedFd};
use std::task::Waker;

use lunette_runtime::PeerMemory;
use lunette_runtime_core::time::Time;
use lunette_verbs_proto::negotiate::Agreement;
use lunette_verbs_proto::qp_state::QpState;
use rustix::io::Errno;

pub(crate) use self::device::Keys;
pub use self::device::{Access, Calls, DeviceInfo};
pub(crate) use self::events::RawEvent;
pub use self::events::{Cause, DeviceEvent, PairEvent};
pub use self::requests::RemoteMemory;
pub(crate) use self::requests::{Completion, Operation, ReceiveRequest, SendRequest};
pub use self::settings::{Patience, QueueSizes};
pub(crate) use self::settings::{Route, Step};
use crate::sim;

/// Most work requests of one doorbell.
pub(crate) const DOORBELL_REQUESTS_MAX: usize = 32;
/// Most completions of one poll.
pub(crate) const POLL_COMPLETIONS_MAX: usize = 32;

/// An opened device with its protection domain.
#[derive(Debug)]
pub(crate) enum RawDevice {
    Real(real::Device),
    Sim(sim::SimDevice),
    Null(null::NullDevice),
}

/// Registered memory; registered until dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "what it holds is there to be dropped")]
pub(crate) enum RawMemory {
    Real(real::Memory),
    Sim(sim::SimMemory),
    Null,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) enum RawCompletions {
    Real(real::Completions),
    Sim(sim::SimCompletions),
    Null(null::NullCompletions),
}

/// Receives that several queue pairs share; they end when it and its queue pairs have been dropped.
#[derive(Debug)]
pub(crate) enum RawShared {
    Real(real::SharedReceives),
    Sim(sim::SimShared),
    Null,
}

/// A queue pair; it ends when dropped, and with it every access to memory.
#[derive(Debug)]
pub(crate) enum RawQueuePair {
    Real(real::QueuePair),
    Sim(sim::SimQueuePair),
    Null(null::NullQueuePair),
}

impl RawDevice {
    pub(crate) fn info(&self) -> Result<DeviceInfo, Errno> {
        match self {
            Self::Real(device) => device.info(),
            Self::Sim(device) => Ok(device.info()),
            Self::Null(_) => Ok(null::info()),
        }
    }

    /// # Safety
    /// `address..+len` is memory of this process until the result is dropped, and whoever owns it
    /// lets the adapter write it, and peers as `access` says.
    pub(crate) unsafe fn register(
        &self,
        address: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<(RawMemory, Keys), Errno> {
        match self {
            Self::Real(device) => {
                // SAFETY: passed on from the caller.
                let (memory, keys) = unsafe { device.register(address, len, access) }?;
                Ok((RawMemory::Real(memory), keys))
            }
            Self::Sim(device) => {
                // SAFETY: passed on from the caller.
                let (memory, keys) = unsafe { device.register(address, len, access) };
                Ok((RawMemory::Sim(memory), keys))
            }
            Self::Null(_) => Ok((RawMemory::Null, Keys { lkey: 1, rkey: 1 })),
        }
    }

    /// Registers a part of a dma-buf, whose first byte requests then name by `offset`; on the control thread where
    /// that takes long.
    ///
    /// # Safety
    /// The device stays until the call has ended, also if the future is dropped.
    pub(crate) async unsafe fn register_dma_buf(
        &self,
        dma_buf: OwnedFd,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<(RawMemory, Keys), Errno> {
        match self {
            Self::Real(device) => {
                // SAFETY: passed on from the caller.
                let registering = unsafe { device.register_dma_buf(dma_buf, offset, len, access) };
                let (memory, keys) = registering.await?;
                Ok((RawMemory::Real(memory), keys))
            }
            Self::Sim(device) => {
                // Any file that can be mapped stands for a dma-buf.
                let part = (dma_buf.as_fd(), offset);
                let (memory, keys) = device.register_file(part, offset, len, access)?;
                Ok((RawMemory::Sim(memory), keys))
            }
            Self::Null(_) => Ok((RawMemory::Null, Keys { lkey: 1, rkey: 1 })),
        }
    }

    /// Registers memory of a device by its address; on the control thread where that takes long.
    ///
    /// # Safety
    /// The device stays until the call has ended, also if the future is dropped, and so does `memory`, which is held until
    /// the result is dropped.
    pub(crate) async unsafe fn register_peer(
        &self,
        memory: &dyn PeerMemory,
        len: usize,
        access: Access,
    ) -> Result<(RawMemory, Keys), Errno> {
        let address = memory.address();
        match self {
            Self::Real(device) => {
                let named = usize::try_from(address).map_err(|_| Errno::FAULT)?;
                let start = std::ptr::without_provenance_mut(named);
                // SAFETY: passed on from the caller. What lies there nobody borrows, by the promise of `PeerMemory`.
                let registering = unsafe { device.register_elsewhere(start, len, access) };
                let (memory, keys) = registering.await?;
                Ok((RawMemory::Real(memory), keys))
            }
            Self::Sim(device) => {
                let (file, offset) = memory.imitation().ok_or(Errno::FAULT)?;
                let part = (file.as_fd(), offset);
                let (memory, keys) = device.register_file(part, address, len, access)?;
                Ok((RawMemory::Sim(memory), keys))
            }
            Self::Null(_) => Ok((RawMemory::Null, Keys { lkey: 1, rkey: 1 })),
        }
    }

    pub(crate) fn completions(&self, entries: u32) -> Result<RawCompletions, Errno> {
        match self {
            Self::Real(device) => device.completions(entries).map(RawCompletions::Real),
            Self::Sim(device) => Ok(RawCompletions::Sim(device.completions(entries))),
            Self::Null(_) => Ok(RawCompletions::Null(null::NullCompletions::new(entries))),
        }
    }

    pub(crate) fn queue_pair(
        &self,
        completions: &RawCompletions,
        shared: Option<&RawShared>,
        sizes: QueueSizes,
    ) -> Result<RawQueuePair, Errno> {
        match (self, completions) {
            (Self::Real(device), RawCompletions::Real(completions)) => {
                let shared = match shared {
                    None => None,
                    Some(RawShared::Real(shared)) => Some(shared),
                    Some(_) => return Err(Errno::INVAL),
                };
                let pair = device.queue_pair(completions, shared, sizes);
                pair.map(RawQueuePair::Real)
            }
            (Self::Sim(device), RawCompletions::Sim(completions)) => {
                let shared = match shared {
                    None => None,
                    Some(RawShared::Sim(shared)) => Some(shared),
                    Some(_) => return Err(Errno::INVAL),
                };
                let pair = device.queue_pair(completions, shared, sizes);
                Ok(RawQueuePair::Sim(pair))
            }
            (Self::Null(_), RawCompletions::Null(completions)) => {
                Ok(RawQueuePair::Null(completions.queue_pair()))
            }
            _ => Err(Errno::INVAL),
        }
    }

    pub(crate) fn shared_receives(&self, depth: u32) -> Result<RawShared, Errno> {
        match self {
            Self::Real(device) => device.shared_receives(depth).map(RawShared::Real),
            Self::Sim(device) => Ok(RawShared::Sim(device.shared_receives(depth))),
            Self::Null(_) => Ok(RawShared::Null),
        }
    }

    /// The next event, acknowledged. Fails when none can come any more.
    pub(crate) fn next_event(&self) -> Result<Option<RawEvent>, Errno> {
        match self {
            Self::Real(device) => device.next_event(),
            Self::Sim(device) => Ok(device.next_event()),
            Self::Null(_) => Ok(None),
        }
    }

    /// A duplicate of the descriptor that can be read when there is an event. Those of a device
    /// without one are asked for by [`RawDevice::wake_at_event`].
    pub(crate) fn events(&self) -> Result<Option<OwnedFd>, Errno> {
        match self {
            Self::Real(device) => device.events().map(Some),
            Self::Sim(_) | Self::Null(_) => Ok(None),
        }
    }

    /// Wakes at the next event of a device without a descriptor. Whether there is one already.
    pub(crate) fn wake_at_event(&self, waker: &Waker) -> bool {
        match self {
            Self::Sim(device) => device.wake_at_event(waker),
            Self::Real(_) | Self::Null(_) => false,
        }
    }
}

impl RawCompletions {
    /// What events name it by.
    pub(crate) fn token(&self) -> u64 {
        match self {
            Self::Real(completions) => completions.token(),
            Self::Sim(completions) => completions.token(),
            Self::Null(_) => 0,
        }
    }

    /// Takes completions to the front of `out` and says how many.
    pub(crate) fn poll(&mut self, out: &mut [Completion]) -> Result<usize, Errno> {
        match self {
            Self::Real(completions) => completions.poll(out),
            Self::Sim(completions) => completions.poll(out),
            Self::Null(completions) => Ok(completions.poll(out)),
        }
    }

    /// Asks for an event at the next completion. What has completed before must be polled for.
    pub(crate) fn arm(&mut self) -> Result<(), Errno> {
        match self {
            Self::Real(completions) => completions.arm(),
            Self::Sim(_) | Self::Null(_) => Ok(()),
        }
    }

    /// A duplicate of the descriptor where events arrive. Providers without one complete while
    /// they are polled only.
    pub(crate) fn channel(&self) -> Result<Option<OwnedFd>, Errno> {
        match self {
            Self::Real(completions) => completions.channel().map(Some),
            Self::Sim(_) | Self::Null(_) => Ok(None),
        }
    }

    /// Takes the events that have arrived and says how many.
    pub(crate) fn take_events(&mut self) -> usize {
        match self {
            Self::Real(completions) => completions.take_events(),
            Self::Sim(_) | Self::Null(_) => 0,
        }
    }

    /// Whether completions are read where they lie.
    pub(crate) const fn is_extended(&self) -> bool {
        match self {
            Self::Real(completions) => completions.is_extended(),
            Self::Sim(_) | Self::Null(_) => false,
        }
    }

    /// When polling makes it go on, of a provider that has no channel to say so.
    pub(crate) fn next_due(&self) -> Option<Time> {
        match self {
            Self::Real(_) | Self::Null(_) => None,
            Self::Sim(completions) => completions.next_due(),
        }
    }

    /// Wakes `waker` when that comes nearer.
    pub(crate) fn wake_at_begin(&self, waker: &Waker) {
        match self {
            Self::Real(_) | Self::Null(_) => {}
            Self::Sim(completions) => completions.wake_at_begin(waker),
        }
    }

    /// Whether anything but polling and its channel makes it go on.
    pub(crate) const fn has_times(&self) -> bool {
        matches!(self, Self::Sim(_))
    }

    /// Whether polling alone makes it go on, so that its core must not sleep.
    pub(crate) fn has_work(&self) -> bool {
        match self {
            Self::Real(_) => false,
            Self::Sim(completions) => completions.has_work(),
            Self::Null(completions) => completions.has_work(),
        }
    }
}

impl RawShared {
    /// What events name it by.
    pub(crate) fn token(&self) -> u64 {
        match self {
            Self::Real(shared) => shared.token(),
            Self::Sim(shared) => shared.token(),
            Self::Null => 0,
        }
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// What it names stays as it is until it has completed, or this and every queue pair that
    /// shares it have been dropped.
    pub(crate) unsafe fn post(&self, request: &ReceiveRequest) -> Result<(), Errno> {
        match self {
            // SAFETY: passed on from the caller.
            Self::Real(shared) => unsafe { shared.post(request) },
            Self::Sim(shared) => shared.post(request),
            Self::Null => Ok(()),
        }
    }
}

impl RawQueuePair {
    /// What events name it by.
    pub(crate) fn token(&self) -> u64 {
        match self {
            Self::Real(pair) => pair.token(),
            Self::Sim(pair) => pair.token(),
            Self::Null(_) => 0,
        }
    }

    /// Whether requests are built where the adapter reads them.
    pub(crate) const fn is_built(&self) -> bool {
        match self {
            Self::Real(pair) => pair.is_built(),
            Self::Sim(_) | Self::Null(_) => false,
        }
    }

    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Real(pair) => pair.number(),
            Self::Sim(pair) => pair.number(),
            Self::Null(_) => 1,
        }
    }

    /// To a state, as the connection manager says.
    pub(crate) fn move_on(
        &mut self,
        id: &real::connection::Id,
        to: QpState,
        agreement: Agreement,
        patience: Patience,
    ) -> Result<(), Errno> {
        match self {
            Self::Real(pair) => pair.move_on(id, to, agreement, patience),
            Self::Sim(_) | Self::Null(_) => Err(Errno::OPNOTSUPP),
        }
    }

    pub(crate) fn step(&mut self, step: &Step) -> Result<(), Errno> {
        match self {
            Self::Real(pair) => pair.step(step),
            Self::Sim(pair) => pair.step(step),
            Self::Null(_) => Ok(()),
        }
    }

    /// Posts at most [`DOORBELL_REQUESTS_MAX`] requests with one doorbell: how many were taken, and
    /// why not all.
    ///
    /// # Safety
    /// What the requests name stays as it is until each has completed or this queue pair has been
    /// dropped; what inline requests name, until this returns.
    pub(crate) unsafe fn post_sends(&mut self, requests: &[SendRequest]) -> (usize, Option<Errno>) {
        match self {
            // SAFETY: passed on from the caller.
            Self::Real(pair) => unsafe { pair.post_sends(requests) },
            // SAFETY: passed on from the caller.
            Self::Sim(pair) => unsafe { pair.post_sends(requests) },
            Self::Null(pair) => (pair.post_sends(requests), None),
        }
    }

    /// Posts receives: how many were taken, and why not all.
    ///
    /// # Safety
    /// As [`RawQueuePair::post_sends`].
    pub(crate) unsafe fn post_receives(
        &mut self,
        requests: &[ReceiveRequest],
    ) -> (usize, Option<Errno>) {
        match self {
            // SAFETY: passed on from the caller.
            Self::Real(pair) => unsafe { pair.post_receives(requests) },
            Self::Sim(pair) => pair.post_receives(requests),
            // Nobody sends to it.
            Self::Null(_) => (requests.len(), None),
        }
    }
}
