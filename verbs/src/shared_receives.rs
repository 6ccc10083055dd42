//! One pool of receives for many queue pairs.
//!
//! Receives of its own for each peer cost memory for every one of them, and are mostly idle. A pool
//! is as deep as what all peers together have in flight. It breaks with none of its queue pairs: a
//! receive that was not used serves the next message of any other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use lunette_verbs_proto::id::WrId;
use lunette_verbs_proto::receive_queue::{self, ReceiveQueue, place_of};
use lunette_verbs_proto::status::Status;

use crate::completion::{CompletionQueue, Owner};
use crate::context::Context;
use crate::error::{RequestError, SetupError};
use crate::memory::Piece;
use crate::provider::{Cause, Completion, RawShared, ReceiveRequest};
use crate::queue_pair::Arrival;

/// A pool of receives. Clones share it; each of its queue pairs holds one.
#[derive(Clone)]
pub struct SharedReceives {
    handle: Rc<Handle>,
}

/// What ends with the last holder.
struct Handle {
    // The adapter lets go before memory is given back.
    raw: RawShared,
    core: Rc<SharedCore>,
    queue: CompletionQueue,
    slot: u16,
    generation: u16,
    depth: u32,
}

pub(crate) struct SharedCore {
    /// What events name it by.
    token: u64,
    state: RefCell<State>,
}

struct State {
    receives: ReceiveQueue,
    receiving: Box<[Option<Piece>]>,
    arrived: VecDeque<(u32, Arrival)>,
    waker: Option<Waker>,
    /// Why nothing arrives any more.
    broken: Option<Cause>,
}

impl SharedReceives {
    /// A pool of `depth` receives, whose queue pairs complete to `queue`.
    ///
    /// # Errors
    /// [`SetupError`]; nothing is left behind then.
    pub fn new(context: &Context, queue: &CompletionQueue, depth: u32) -> Result<Self, SetupError> {
        if !(1..=receive_queue::DEPTH_MAX).contains(&depth) {
            return Err(SetupError::Size);
        }
        let raw = context.device().shared_receives(depth);
        let raw = raw.map_err(SetupError::Refused)?;
        let (slot, generation) = queue.inner().admit(depth)?;
        let state = State {
            receives: ReceiveQueue::new(depth),
            receiving: (0..depth).map(|_| None).collect(),
            arrived: VecDeque::with_capacity(depth as usize),
            waker: None,
            broken: None,
        };
        let core = Rc::new(SharedCore {
            token: raw.token(),
            state: RefCell::new(state),
        });
        queue.inner().place(slot, Owner::Shared(Rc::clone(&core)));
        let handle = Handle {
            raw,
            core,
            queue: queue.clone(),
            slot,
            generation,
            depth,
        };
        Ok(Self {
            handle: Rc::new(handle),
        })
    }

    /// Posts a receive. The piece belongs to the adapter until it comes back as an [`Arrival`], or
    /// until the pool and all its queue pairs are gone.
    ///
    /// # Errors
    /// [`RequestError::Full`], [`RequestError::Refused`] or [`RequestError::Broken`], and the
    /// piece.
    pub fn post(&self, piece: Piece) -> Result<(), (RequestError, Piece)> {
        let handle = &self.handle;
        let mut state = handle.core.state.borrow_mut();
        if state.broken.is_some() {
            return Err((RequestError::Broken, piece));
        }
        let Ok(sequence) = state.receives.stage() else {
            return Err((RequestError::Full, piece));
        };
        let id = WrId {
            slot: handle.slot,
            generation: handle.generation,
            is_receive: true,
            sequence,
        };
        let request = ReceiveRequest {
            id: id.to_bits(),
            address: piece.address(),
            len_bytes: u32::try_from(piece.len()).expect("pieces are bounded by a chunk"),
            lkey: piece.lkey(),
        };
        let place = usize::from(place_of(sequence));
        state.receiving[place] = Some(piece);
        // SAFETY: the piece is owned by its place until the receive has completed, or until this
        // handle is dropped, which every queue pair of the pool holds: raw goes first there.
        let posted = unsafe { handle.raw.post(&request) };
        if posted.is_ok() {
            return Ok(());
        }
        state.receives.refused(sequence);
        let piece = state.receiving[place].take();
        Err((
            RequestError::Refused,
            piece.expect("it was put there above"),
        ))
    }

    /// The next receive that ended, and the number of the queue pair that used it.
    ///
    /// # Errors
    /// [`RequestError::Declared`], when the device declared the pool or its completion queue broken
    /// and nothing is left: make another one.
    pub async fn arrival(&self) -> Result<(u32, Arrival), RequestError> {
        poll_fn(|cx| {
            let mut state = self.handle.core.state.borrow_mut();
            if let Some(arrival) = state.arrived.pop_front() {
                return Poll::Ready(Ok(arrival));
            }
            if let Some(cause) = state.broken {
                return Poll::Ready(Err(RequestError::Declared(cause)));
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Receives that are posted.
    #[must_use]
    pub fn posted(&self) -> u32 {
        self.handle.core.state.borrow().receives.posted()
    }

    pub(crate) fn raw(&self) -> &RawShared {
        &self.handle.raw
    }

    pub(crate) fn queue(&self) -> &CompletionQueue {
        &self.handle.queue
    }
}

impl SharedCore {
    pub(crate) const fn token(&self) -> u64 {
        self.token
    }

    /// Nothing arrives any more.
    pub(crate) fn broken(&self, cause: Cause) {
        let mut state = self.state.borrow_mut();
        state.broken.get_or_insert(cause);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes a completion in. False if nothing here waits for it.
    pub(crate) fn completed(&self, id: WrId, status: Status, completion: &Completion) -> bool {
        if !id.is_receive {
            return false;
        }
        let mut state = self.state.borrow_mut();
        let Ok(received) = state.receives.complete(id.sequence, status) else {
            return false;
        };
        let piece = state.receiving[usize::from(received.place)].take();
        let arrival = Arrival {
            piece: piece.expect("a posted receive has its piece"),
            len_bytes: completion.len_bytes,
            immediate: completion.immediate,
            status,
        };
        state.arrived.push_back((completion.pair, arrival));
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue.inner().dismiss(self.slot, self.depth);
    }
}

impl fmt::Debug for SharedReceives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (raw, posted) = (&self.handle.raw, self.posted());
        write!(f, "SharedReceives({raw:?}, {posted} posted)")
    }
}
