//! Queue pairs: unconnected, then ready.
//!
//! Requests are staged while tasks run and posted together when the core's loop comes round, one
//! doorbell for all; a full doorbell is posted at once. Each request owns its [`Piece`] until it is
//! over and gives it back with the outcome. Dropping a request leaves it to the adapter; its piece
//! is freed when it is over. Requests that are wanted together are a [`List`], over with the last.
//!
//! A failure breaks a queue pair for good. What is in flight then ends as flushed, and a new queue
//! pair is to be made and connected: not every adapter can bring one back.

mod core;
mod entries;
mod list;
mod managed;
mod payload;
mod request;

use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;
use lunette_verbs_proto::gid;
use lunette_verbs_proto::handshake::{Card, Peer, Psn};
use lunette_verbs_proto::negotiate::{Agreement, Capabilities};
use lunette_verbs_proto::{receive_queue, send_queue};

pub(crate) use self::core::PairCore;
pub use self::core::{Arrival, PairCounts};
pub use self::list::{List, Listed, Moved};
use self::payload::{Inline, OfDevice, OfLent, OfPiece, Payload};
pub use self::request::Request;
use crate::completion::{CompletionQueue, Inner, Owner};
use crate::connection_manager::Managed;
use crate::context::Context;
use crate::device_memory::DeviceMemory;
use crate::error::{RequestError, SetupError};
use crate::events::PairNotices;
use crate::lent::Lent;
use crate::memory::Piece;
use crate::provider::{
    Access, Cause, Operation, Patience, QueueSizes, RawShared, RemoteMemory, Route, Step,
};
use crate::shared_receives::SharedReceives;

/// Most bytes of an inline request.
pub const INLINE_BYTES_MAX: usize = 64;

/// What ends with the queue pair.
struct Handle {
    core: Rc<PairCore>,
    /// Held, so that they outlive the queue pair.
    receives: Option<SharedReceives>,
    /// Its connection, where the connection manager made it.
    managed: Option<Managed>,
    queue: CompletionQueue,
    slot: u16,
    entries: u32,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Nothing reaches memory through it afterwards, so everything in flight is over.
        self.core.destroy();
        self.queue.inner().dismiss(self.slot, self.entries);
    }
}

/// State of a queue pair that waits for its peer.
#[derive(Debug)]
pub struct Unconnected {
    card: Card,
    gid_index: u8,
    is_global: bool,
    is_iwarp: bool,
    device_name: String,
}

/// State of a queue pair that sends and receives.
#[derive(Debug)]
pub struct Ready {
    agreement: Agreement,
    /// Not known of peers that came by the connection manager.
    peer: Option<Peer>,
    is_iwarp: bool,
}

/// A reliable connection, owned by one core. Dropping it ends it, and everything in flight with it.
pub struct QueuePair<State> {
    handle: Handle,
    state: State,
}

impl QueuePair<Unconnected> {
    /// A queue pair that receives may be posted to, with a random first packet number.
    ///
    /// # Errors
    /// [`SetupError`]; nothing is left behind then.
    pub fn new(
        context: &Context,
        queue: &CompletionQueue,
        sizes: QueueSizes,
        access: Access,
        random: &mut SplitMix64,
    ) -> Result<Self, SetupError> {
        Self::create(context, queue, None, sizes, access, random)
    }

    /// As [`QueuePair::new`], with the receives of `shared`, where its messages arrive; what
    /// `sizes` says of receives does not matter.
    ///
    /// # Errors
    /// As there.
    pub fn sharing(
        context: &Context,
        shared: &SharedReceives,
        sizes: QueueSizes,
        access: Access,
        random: &mut SplitMix64,
    ) -> Result<Self, SetupError> {
        // Its own receives are none; one place is the least that the accounting knows.
        let sizes = QueueSizes {
            receives: 1,
            ..sizes
        };
        Self::create(context, shared.queue(), Some(shared), sizes, access, random)
    }

    fn create(
        context: &Context,
        queue: &CompletionQueue,
        shared: Option<&SharedReceives>,
        sizes: QueueSizes,
        access: Access,
        random: &mut SplitMix64,
    ) -> Result<Self, SetupError> {
        let info = context.info().map_err(SetupError::Refused)?;
        check(sizes, info.queue_depth_max)?;
        let chosen = gid::choose(&info.gids, None);
        let is_global = chosen.is_some_and(|entry| entry.kind != gid::GidKind::InfiniBand);
        let entries = sizes.sends + sizes.receives;
        let inner = queue.inner();
        let receives = shared.map(SharedReceives::raw);
        let raw = context.device().queue_pair(&inner.raw(), receives, sizes);
        let mut raw = raw.map_err(SetupError::Refused)?;
        raw.step(&Step::Init(access)).map_err(SetupError::Refused)?;
        let (slot, generation) = inner.admit(entries)?;
        let token = receives.map(RawShared::token);
        let card = Card {
            gid: chosen.map_or([0; 16], |entry| entry.gid),
            lid: info.lid,
            qp_num: raw.number(),
            psn: Psn::draw(random),
            capabilities: Capabilities {
                mtu_bytes: info.mtu_bytes,
                reads_out_max: info.reads_out_max,
                reads_in_max: info.reads_in_max,
                has_atomics: info.has_atomics,
            },
        };
        let core = Rc::new(PairCore::new(
            raw,
            sizes,
            token,
            (slot, generation),
            Rc::downgrade(inner),
        ));
        inner.place(slot, Owner::Pair(Rc::clone(&core)));
        let handle = Handle {
            core,
            receives: shared.cloned(),
            managed: None,
            queue: queue.clone(),
            slot,
            entries,
        };
        let state = Unconnected {
            card,
            gid_index: chosen.map_or(0, |entry| entry.index),
            is_global,
            is_iwarp: info.is_iwarp,
            device_name: info.name,
        };
        Ok(Self { handle, state })
    }

    /// What the peer has to know, for the handshake.
    #[must_use]
    pub const fn card(&self) -> Card {
        self.state.card
    }

    /// Connects to the peer that the handshake found.
    ///
    /// # Errors
    /// [`SetupError::Refused`] as the adapter has it, [`SetupError::Endless`] of a patience without
    /// end, [`SetupError::Unsupported`] of iWARP, which the [connection
    /// manager](crate::connection_manager) connects; the queue pair is gone then.
    pub fn connect(self, peer: Peer, patience: Patience) -> Result<QueuePair<Ready>, SetupError> {
        if self.state.is_iwarp {
            return Err(SetupError::Unsupported);
        }
        if !patience.is_finite() {
            return Err(SetupError::Endless);
        }
        let route = Route {
            own_gid_index: self.state.gid_index,
            own_psn: self.state.card.psn.value(),
            peer_gid: peer.card.gid,
            peer_lid: peer.card.lid,
            is_global: self.state.is_global,
            peer_qp: peer.card.qp_num,
            peer_psn: peer.card.psn.value(),
            agreement: peer.agreement,
            patience,
        };
        let core = &self.handle.core;
        core.step(&Step::Rtr(route)).map_err(SetupError::Refused)?;
        core.step(&Step::Rts(route)).map_err(SetupError::Refused)?;
        Ok(QueuePair {
            handle: self.handle,
            state: Ready {
                agreement: peer.agreement,
                peer: Some(peer),
                is_iwarp: false,
            },
        })
    }
}

fn check(sizes: QueueSizes, depth_max: u32) -> Result<(), SetupError> {
    let deepest = depth_max.min(send_queue::DEPTH_MAX);
    let sends = sizes.sends.is_power_of_two() && (2..=deepest).contains(&sizes.sends);
    let receives_max = depth_max.min(receive_queue::DEPTH_MAX);
    let receives = (1..=receives_max).contains(&sizes.receives);
    if sends && receives && sizes.inline_bytes as usize <= INLINE_BYTES_MAX {
        Ok(())
    } else {
        Err(SetupError::Size)
    }
}

impl<State> QueuePair<State> {
    /// Posts a receive. The piece belongs to the adapter until it comes back as an [`Arrival`].
    ///
    /// # Errors
    /// [`RequestError::Full`], [`RequestError::Broken`] or [`RequestError::Refused`] (also of a
    /// queue pair that shares receives), and the piece.
    pub fn post_receive(&self, piece: Piece) -> Result<(), (RequestError, Piece)> {
        self.handle.core.post_receive(piece)
    }

    /// Whether requests are built where the adapter reads them.
    #[must_use]
    pub fn is_built(&self) -> bool {
        self.handle.core.is_built()
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> PairCounts {
        self.handle.core.counts()
    }

    /// What the device has told it so far.
    #[must_use]
    pub fn notices(&self) -> PairNotices {
        self.handle.core.notices()
    }

    /// Why the device declared it broken, if it did: everything in flight ended at once then, with
    /// [`RequestError::Declared`] or its completion.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.handle.core.cause()
    }
}

impl QueuePair<Ready> {
    /// The peer that the handshake found; not known of one that came by the connection manager.
    #[must_use]
    pub const fn peer(&self) -> Option<&Peer> {
        self.state.peer.as_ref()
    }

    /// What both sides can do.
    #[must_use]
    pub const fn agreement(&self) -> &Agreement {
        &self.state.agreement
    }

    /// Whether writes may carry immediate data: not over iWARP.
    #[must_use]
    pub const fn has_immediates(&self) -> bool {
        !self.state.is_iwarp
    }

    /// Whether a write that is done has reached the peer's memory. Over iWARP it has only been
    /// handed to the connection, and a wrong key is told by the connection's end; a read of the
    /// same peer that is done confirms the writes before it.
    #[must_use]
    pub const fn confirms_writes(&self) -> bool {
        !self.state.is_iwarp
    }

    /// Its number, by which shared receives tell where a message came from.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        self.handle.core.number()
    }

    /// Whether requests may be made.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.handle.core.is_open()
    }

    /// Requests that may be made now.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.handle.core.credits()
    }

    /// Waits until a request may be made.
    ///
    /// # Errors
    /// [`RequestError::Broken`].
    pub async fn credit(&self) -> Result<(), RequestError> {
        poll_fn(|cx| self.poll_credit(cx)).await
    }

    /// The same, for who waits for other things besides.
    ///
    /// # Errors
    /// [`RequestError::Broken`].
    pub fn poll_credit(&self, cx: &std::task::Context<'_>) -> Poll<Result<(), RequestError>> {
        let core = &self.handle.core;
        if !core.is_open() {
            Poll::Ready(Err(RequestError::Broken))
        } else if core.credits() > 0 {
            Poll::Ready(Ok(()))
        } else {
            core.wait_for_credit(cx.waker());
            Poll::Pending
        }
    }

    /// Writes the first `len` bytes of a piece to the peer's memory, which holds them when the
    /// request is done if [`QueuePair::confirms_writes`] says so.
    pub fn write(&self, from: Piece, len: usize, to: RemoteMemory, deadline: Time) -> Request {
        self.request(Operation::Write(to), OfPiece(from, len), deadline)
    }

    /// As [`QueuePair::write`]; the peer's next receive ends with `immediate` when the bytes are
    /// there.
    pub fn write_immediate(
        &self,
        from: Piece,
        len: usize,
        to: RemoteMemory,
        immediate: u32,
        deadline: Time,
    ) -> Request {
        let operation = Operation::WriteImmediate(to, immediate);
        let payload = OfPiece(from, len);
        self.request_if(self.has_immediates(), operation, payload, deadline)
    }

    /// Writes a few bytes, which are copied now.
    pub fn write_inline(&self, bytes: &[u8], to: RemoteMemory, deadline: Time) -> Request {
        self.request(Operation::Write(to), Inline(bytes), deadline)
    }

    /// As [`QueuePair::write_inline`]; the peer's next receive ends with `immediate` when the bytes are there, and
    /// those of the writes before it.
    pub fn write_inline_immediate(
        &self,
        bytes: &[u8],
        to: RemoteMemory,
        immediate: u32,
        deadline: Time,
    ) -> Request {
        let operation = Operation::WriteImmediate(to, immediate);
        self.request_if(self.has_immediates(), operation, Inline(bytes), deadline)
    }

    /// Ends the peer's next receive with `immediate`, without bytes.
    pub fn notify(&self, immediate: u32, deadline: Time) -> Request {
        let nowhere = RemoteMemory {
            address: 0,
            rkey: 0,
        };
        let operation = Operation::WriteImmediate(nowhere, immediate);
        let payload = Inline(&[]);
        self.request_if(self.has_immediates(), operation, payload, deadline)
    }

    /// Sends the first `len` bytes of a piece to the peer's next receive.
    pub fn send(&self, from: Piece, len: usize, deadline: Time) -> Request {
        self.request(Operation::Send, OfPiece(from, len), deadline)
    }

    /// Sends a few bytes, which are copied now, to the peer's next receive.
    pub fn send_inline(&self, bytes: &[u8], deadline: Time) -> Request {
        self.request(Operation::Send, Inline(bytes), deadline)
    }

    /// Reads the peer's memory into the first `len` bytes of a piece.
    pub fn read(&self, into: Piece, len: usize, from: RemoteMemory, deadline: Time) -> Request {
        let is_agreed = self.state.agreement.reads_out > 0;
        let payload = OfPiece(into, len);
        self.request_if(is_agreed, Operation::Read(from), payload, deadline)
    }

    /// Writes a part of a device's memory to the peer's memory. The request has no piece.
    pub fn write_device(
        &self,
        from: &DeviceMemory,
        range: Range<usize>,
        to: RemoteMemory,
        deadline: Time,
    ) -> Request {
        match from.part(&range) {
            None => Request::refused(RequestError::Length, None),
            Some((address, len)) => {
                let payload = OfDevice {
                    memory: from.clone(),
                    address,
                    len_bytes: len,
                };
                self.request(Operation::Write(to), payload, deadline)
            }
        }
    }

    /// Reads the peer's memory into a part of a device's memory. The request has no piece.
    pub fn read_device(
        &self,
        into: &DeviceMemory,
        range: Range<usize>,
        from: RemoteMemory,
        deadline: Time,
    ) -> Request {
        match into.part(&range) {
            None => Request::refused(RequestError::Length, None),
            Some((address, len)) => {
                let payload = OfDevice {
                    memory: into.clone(),
                    address,
                    len_bytes: len,
                };
                let is_agreed = self.state.agreement.reads_out > 0;
                self.request_if(is_agreed, Operation::Read(from), payload, deadline)
            }
        }
    }

    /// Writes memory of the program's to the peer's memory. The request has no piece, and keeps what is
    /// lent until it is over. For when the peer's memory holds it see [`QueuePair::write`].
    pub fn write_lent(&self, from: Lent, to: RemoteMemory, deadline: Time) -> Request {
        self.request(Operation::Write(to), OfLent(from), deadline)
    }

    /// Reads the peer's memory into memory of the program's, which must be exposed: a region is refused
    /// ([`RequestError::Refused`]). The request has no piece, and keeps what is lent until it is over.
    pub fn read_lent(&self, into: Lent, from: RemoteMemory, deadline: Time) -> Request {
        let may_be = self.state.agreement.reads_out > 0 && into.is_writable();
        self.request_if(may_be, Operation::Read(from), OfLent(into), deadline)
    }

    /// Makes requests that are over together, in their order. More than there are [`credits`](QueuePair::credits) are
    /// refused ([`RequestError::Full`]), as are all if the queue pair is broken, and nothing is done. From the first that
    /// cannot be made on none is, and the list fails: with [`RequestError::Refused`] of a read into what must not be
    /// written, or where no reads were agreed on; with [`RequestError::Length`] of more bytes than go inline. Those before
    /// it are done.
    pub fn list(&self, requests: Vec<Listed>, deadline: Time) -> List {
        let is_read = |request: &Listed| matches!(request.moved, Moved::Into(_));
        if self.state.agreement.reads_out == 0 && requests.iter().any(is_read) {
            return List::refused(RequestError::Refused, requests);
        }
        self.handle.core.list(requests, deadline)
    }

    /// Swaps a word of the peer's memory if it is `compare`; what it was is in the first 8 bytes of
    /// the piece afterwards, in this machine's byte order.
    pub fn compare_swap(
        &self,
        into: Piece,
        at: RemoteMemory,
        (compare, swap): (u64, u64),
        deadline: Time,
    ) -> Request {
        let operation = Operation::CompareSwap {
            remote: at,
            compare,
            swap,
        };
        self.request_if(self.has_atomics(), operation, OfPiece(into, 8), deadline)
    }

    /// Adds to a word of the peer's memory; what it was is in the first 8 bytes of the piece
    /// afterwards, in this machine's byte order.
    pub fn fetch_add(&self, into: Piece, at: RemoteMemory, add: u64, deadline: Time) -> Request {
        let operation = Operation::FetchAdd { remote: at, add };
        self.request_if(self.has_atomics(), operation, OfPiece(into, 8), deadline)
    }

    const fn has_atomics(&self) -> bool {
        let agreement = &self.state.agreement;
        agreement.has_atomics && agreement.reads_out > 0
    }

    /// What was not agreed on is refused here: at an adapter it would break the queue pair.
    fn request_if<P: Payload>(
        &self,
        is_agreed: bool,
        operation: Operation,
        payload: P,
        deadline: Time,
    ) -> Request {
        if is_agreed {
            self.request(operation, payload, deadline)
        } else {
            Request::refused(RequestError::Refused, payload.into_piece())
        }
    }

    fn request<P: Payload>(&self, operation: Operation, payload: P, deadline: Time) -> Request {
        self.handle.core.request(operation, payload, deadline)
    }

    /// The next receive that ended, in order. Shared receives end elsewhere, at
    /// [`SharedReceives::arrival`].
    ///
    /// # Errors
    /// [`RequestError::Broken`], when the queue pair is broken and nothing is left.
    pub async fn arrival(&self) -> Result<Arrival, RequestError> {
        poll_fn(|cx| self.handle.core.poll_arrival(cx)).await
    }

    /// Breaks the queue pair: what is in flight ends as flushed.
    pub fn abort(&self) {
        self.handle.core.abort();
    }
}

impl<State> fmt::Debug for QueuePair<State> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair({:?})", self.handle.core)
    }
}

/// The queue that a queue pair tells about its batches.
type Tells = std::rc::Weak<Inner>;
