//! The seam below which work requests are bytes: libibverbs, the simulated fabric, or nothing.
//!
//! An enum per object, no type parameter, so that nothing above knows which one it talks to. What
//! is above this seam has checked credits, bounds and states; [`sim`](crate::sim) checks again.

pub(crate) mod null;
pub(crate) mod real;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::Waker;

use lunette_verbs_proto::gid::GidEntry;
use lunette_verbs_proto::negotiate::Agreement;
use lunette_verbs_proto::qp_state::QpState;
use rustix::io::Errno;

use crate::sim;

/// Most work requests of one doorbell.
pub(crate) const DOORBELL_REQUESTS_MAX: usize = 32;
/// Most completions of one poll.
pub(crate) const POLL_COMPLETIONS_MAX: usize = 32;

/// What a device and its first port are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device's name, as in `/sys/class/infiniband`.
    pub name: String,
    /// Whether the port's link is up.
    pub is_active: bool,
    /// Whether it is an Ethernet port.
    pub is_ethernet: bool,
    /// Whether its packets are iWARP: connected by the connection manager alone, without immediate
    /// data.
    pub is_iwarp: bool,
    /// The port's address on an InfiniBand subnet.
    pub lid: u16,
    /// The port's active MTU, in bytes.
    pub mtu_bytes: u16,
    /// The port's addresses.
    pub gids: Vec<GidEntry>,
    /// Deepest queue of a queue pair.
    pub queue_depth_max: u32,
    /// Deepest completion queue.
    pub completions_max: u32,
    /// Reads and atomics in flight, as the side that asks.
    pub reads_out_max: u8,
    /// Reads and atomics in flight, as the side that serves.
    pub reads_in_max: u8,
    /// Whether it does atomics.
    pub has_atomics: bool,
}

/// What a peer may do with memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Peers may read.
    pub remote_read: bool,
    /// Peers may write.
    pub remote_write: bool,
    /// Peers may do atomics.
    pub remote_atomic: bool,
    /// The adapter's writes may pass one another: for bulk data, never for flags.
    pub relaxed_ordering: bool,
}

/// Keys of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// A piece of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Address of the first byte, in the peer's terms.
    pub address: u64,
    /// The peer's key.
    pub rkey: u32,
}

impl RemoteMemory {
    /// What lies `offset_bytes` further.
    #[must_use]
    pub const fn at(self, offset_bytes: u64) -> Self {
        Self {
            address: self.address.wrapping_add(offset_bytes),
            rkey: self.rkey,
        }
    }
}

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Write(RemoteMemory),
    WriteImmediate(RemoteMemory, u32),
    Send,
    Read(RemoteMemory),
    CompareSwap {
        remote: RemoteMemory,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote: RemoteMemory,
        add: u64,
    },
}

/// A work request for a send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRequest {
    pub(crate) id: u64,
    pub(crate) operation: Operation,
    pub(crate) address: u64,
    pub(crate) len_bytes: u32,
    pub(crate) lkey: u32,
    pub(crate) is_signalled: bool,
    /// The bytes are copied at the doorbell.
    pub(crate) is_inline: bool,
}

/// A work request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveRequest {
    pub(crate) id: u64,
    pub(crate) address: u64,
    pub(crate) len_bytes: u32,
    pub(crate) lkey: u32,
}

/// A completion as the provider has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) id: u64,
    pub(crate) status: u32,
    pub(crate) len_bytes: u32,
    pub(crate) immediate: Option<u32>,
    /// The queue pair that it is of, by number.
    pub(crate) pair: u32,
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSizes {
    /// Requests that are in flight at most: a power of two.
    pub sends: u32,
    /// Receives that are posted at most.
    pub receives: u32,
    /// Bytes that may be sent without registered memory.
    pub inline_bytes: u32,
}

impl Default for QueueSizes {
    fn default() -> Self {
        Self {
            sends: 128,
            receives: 64,
            inline_bytes: 64,
        }
    }
}

/// How stubborn a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// An unanswered packet is sent again after 4.096 us times two to the power of this: 1 to 31, for
    /// 0 would mean never.
    pub timeout_exponent: u8,
    /// How often, at most 7.
    pub retries: u8,
    /// How often a peer without a receive is asked again, at most 6: 7 would mean for ever.
    pub receiver_not_ready_retries: u8,
}

impl Patience {
    /// Whether it ends, and adapters know it.
    #[must_use]
    pub const fn is_finite(self) -> bool {
        matches!(self.timeout_exponent, 1..=31)
            && self.retries <= 7
            && self.receiver_not_ready_retries < 7
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            timeout_exponent: 14,
            retries: 7,
            receiver_not_ready_retries: 6,
        }
    }
}

/// How to reach the peer, for the way to ready-to-send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) own_gid_index: u8,
    pub(crate) own_psn: u32,
    pub(crate) peer_gid: [u8; 16],
    pub(crate) peer_lid: u16,
    pub(crate) is_global: bool,
    pub(crate) peer_qp: u32,
    pub(crate) peer_psn: u32,
    pub(crate) agreement: Agreement,
    pub(crate) patience: Patience,
}

/// A step of a queue pair's life, with what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Init(Access),
    Rtr(Route),
    Rts(Route),
    Error,
}

/// Which calls of libibverbs post and poll. Both do the same; what they cost depends on the adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calls {
    /// Lists of requests and arrays of completions, which every provider has.
    #[default]
    Lists,
    /// Requests are built and completions are read where the adapter has them (`ibv_wr_*`,
    /// `ibv_cq_ex`), by one thread without locks; lists and arrays where the provider cannot do so.
    Extended,
}

/// Something that happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The port's link came back.
    PortActive,
    /// The port's link went away.
    PortDown,
    /// The port's addresses changed.
    AddressesChanged,
    /// A completion queue overflowed or broke.
    CompletionQueueBroken,
    /// A queue pair broke.
    QueuePairBroken,
    /// The device is lost.
    DeviceLost,
    /// Any other, by its code.
    Other(u32),
}

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

    /// Registers a part of a dma-buf, whose first byte requests then name by `offset`.
    pub(crate) fn register_dma_buf(
        &self,
        dma_buf: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<(RawMemory, Keys), Errno> {
        match self {
            Self::Real(device) => {
                let (memory, keys) = device.register_dma_buf(dma_buf, offset, len, access)?;
                Ok((RawMemory::Real(memory), keys))
            }
            Self::Sim(device) => {
                let (memory, keys) = device.register_dma_buf(dma_buf, offset, len, access)?;
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

    pub(crate) fn next_event(&self) -> Option<DeviceEvent> {
        match self {
            Self::Real(device) => device.next_event(),
            Self::Sim(device) => device.next_event(),
            Self::Null(_) => None,
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

    /// Wakes at the next event of a device without a descriptor.
    pub(crate) fn wake_at_event(&self, waker: &Waker) {
        if let Self::Sim(device) = self {
            device.wake_at_event(waker);
        }
    }
}

impl RawCompletions {
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
