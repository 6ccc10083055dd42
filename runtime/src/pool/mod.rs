//! Buffers that the system picks: many connections wait, and only those that receive hold memory.
//!
//! A [`BufferPool`] offers its buffers to the system, through a ring that the kernel reads
//! (`IORING_REGISTER_PBUF_RING`). A receive that names the pool instead of a buffer gets one when
//! bytes have come. The bytes are lent to the program as [`PooledBytes`], and the buffer goes back
//! when the last of them drops:
//!
//! ```text
//!   offered ── picked by a receive ──▶ lent (one or more PooledBytes) ── all dropped ──▶ offered
//! ```
//!
//! Where the kernel can (Linux 6.12), it fills a buffer piece by piece: small messages then share
//! one, which goes back when the kernel has moved on and every piece has been dropped.

mod ring;

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;
use std::task::Waker;

use rustix::io::Errno;
use thiserror::Error;

use crate::arena::{AllocError, RegionMut};
use crate::executor::Core;
pub(crate) use ring::OfferRing;

/// Buffers of one pool.
pub const POOL_BUFFERS_MAX: u16 = 1 << 15;
/// Pools of one core.
pub const POOLS_MAX: usize = 64;

/// Why there is no pool.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PoolError {
    /// The number of buffers is no power of two, or out of bounds, or the buffers have no length.
    #[error("a pool has a power of two of buffers, at most {POOL_BUFFERS_MAX}, of at least a byte")]
    BadSize,
    /// The core has [`POOLS_MAX`] pools.
    #[error("too many pools on this core")]
    TooManyPools,
    /// The arena has no memory for it.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// The system refused it.
    #[error("the system refused the ring of buffers: {0}")]
    Refused(Errno),
}

impl PoolError {
    /// Whether giving memory or pools back and trying again can help.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        match self {
            Self::TooManyPools => true,
            Self::Memory(error) => error.is_backpressure(),
            Self::BadSize | Self::Refused(_) => false,
        }
    }
}

/// Buffers of one length for receives of the current core's connections. Clones are handles to the
/// same pool; its memory is freed when the last handle, receive and [`PooledBytes`] have ended.
#[derive(Clone)]
pub struct BufferPool {
    inner: Rc<Inner>,
}

struct Inner {
    core: Rc<Core>,
    /// Under which the driver knows the pool.
    group: u16,
    len: u32,
    state: RefCell<State>,
    waiters: RefCell<Vec<Waker>>,
    /// Written by the system, read through `PooledBytes`; never seen as a whole.
    memory: RegionMut,
}

struct State {
    offers: Offers,
    /// By buffer.
    lent: Vec<Lent>,
}

/// Where buffers wait to be picked.
enum Offers {
    /// The kernel picks them.
    Ring { ring: OfferRing, waiting: u16 },
    /// The driver picks them.
    List(Vec<u16>),
}

/// What is out of one buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    /// Pieces held by the program.
    pieces: u32,
    /// Bytes that have been handed out since the buffer was offered.
    filled: u32,
    /// The system is still filling it.
    is_filling: bool,
}

impl BufferPool {
    /// A pool of `count` buffers (a power of two) of `len_bytes` each, from the current core's
    /// arena.
    ///
    /// # Errors
    /// [`PoolError`].
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn new(count: u16, len_bytes: usize) -> Result<Self, PoolError> {
        let len = u32::try_from(len_bytes).map_err(|_| PoolError::BadSize)?;
        if !count.is_power_of_two() || count > POOL_BUFFERS_MAX || len == 0 {
            return Err(PoolError::BadSize);
        }
        let core = Core::current();
        let bytes = usize::from(count).saturating_mul(len_bytes);
        let memory = core.arena().alloc(bytes)?;
        let ring = OfferRing::new(count);
        let (group, by_kernel) = core.register_pool(&ring)?;
        let offers = if by_kernel {
            Offers::Ring { ring, waiting: 0 }
        } else {
            Offers::List(Vec::with_capacity(usize::from(count)))
        };
        let state = State {
            offers,
            lent: vec![Lent::default(); usize::from(count)],
        };
        let inner = Inner {
            core,
            group,
            len,
            state: RefCell::new(state),
            waiters: RefCell::default(),
            memory,
        };
        for id in 0..count {
            inner.offer(&mut inner.state.borrow_mut(), id);
        }
        Ok(Self {
            inner: Rc::new(inner),
        })
    }

    /// Length of one buffer in bytes.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        self.inner.len as usize
    }

    /// Buffers that nobody holds.
    #[must_use]
    pub fn available(&self) -> usize {
        match &self.inner.state.borrow().offers {
            Offers::Ring { waiting, .. } => usize::from(*waiting),
            Offers::List(list) => list.len(),
        }
    }

    pub(crate) fn group(&self) -> u16 {
        self.inner.group
    }

    /// For a driver that picks by itself: the next buffer, or none.
    pub(crate) fn pick(&self) -> Option<(u16, NonNull<u8>, usize)> {
        let mut state = self.inner.state.borrow_mut();
        let Offers::List(list) = &mut state.offers else {
            unreachable!("the kernel picks from this pool")
        };
        let id = list.pop()?;
        Some((id, self.inner.buffer(id), self.buffer_len()))
    }

    /// For a driver that picks by itself: nothing came for a buffer that it picked.
    pub(crate) fn unpick(&self, id: u16) {
        let mut state = self.inner.state.borrow_mut();
        self.inner.offer(&mut state, id);
    }

    /// Lends the next `len` bytes of buffer `id`, which the system has picked and filled.
    /// Completions are to be taken in the order in which the system wrote them.
    pub(crate) fn take(&self, id: u16, len: u32, is_filling: bool) -> PooledBytes {
        let mut state = self.inner.state.borrow_mut();
        let lent = &mut state.lent[usize::from(id)];
        let start = lent.filled;
        assert!(
            len <= self.inner.len - start,
            "the system stays inside its buffer"
        );
        let is_first = !lent.is_filling && lent.pieces == 0;
        lent.filled += len;
        lent.pieces += 1;
        lent.is_filling = is_filling;
        if let Offers::Ring { waiting, .. } = &mut state.offers
            && is_first
        {
            *waiting -= 1;
        }
        PooledBytes {
            pool: self.clone(),
            id,
            start,
            len,
        }
    }

    /// Keeps `waker` until a buffer comes back. False if one is there already.
    pub(crate) fn wait(&self, waker: &Waker) -> bool {
        if self.available() > 0 {
            return false;
        }
        let mut waiters = self.inner.waiters.borrow_mut();
        if !waiters.iter().any(|known| known.will_wake(waker)) {
            waiters.push(waker.clone());
        }
        true
    }

    /// One piece of a buffer is given back.
    fn give_back(&self, id: u16) {
        let mut state = self.inner.state.borrow_mut();
        let lent = &mut state.lent[usize::from(id)];
        lent.pieces -= 1;
        if lent.pieces > 0 || lent.is_filling {
            return;
        }
        *lent = Lent::default();
        self.inner.offer(&mut state, id);
        drop(state);
        for waiter in self.inner.waiters.take() {
            waiter.wake();
        }
    }
}

impl Inner {
    fn buffer(&self, id: u16) -> NonNull<u8> {
        let start = usize::from(id) * self.len as usize;
        assert!(start + self.len as usize <= self.memory.len());
        // SAFETY: inside the region by the assert; valid as long as `memory`, which `self` owns.
        unsafe { self.memory.address().add(start) }
    }

    fn offer(&self, state: &mut State, id: u16) {
        match &mut state.offers {
            Offers::Ring { ring, waiting } => {
                ring.offer(id, self.buffer(id), self.len);
                *waiting += 1;
            }
            Offers::List(list) => list.push(id),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // No receive is in flight (each holds the pool), so the kernel picks no buffer any more.
        self.core.unregister_pool(self.group);
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("group", &self.inner.group)
            .field("buffer_len", &self.inner.len)
            .field("available", &self.available())
            .finish()
    }
}

/// Received bytes in a buffer of a pool. Dropping them gives the buffer back.
pub struct PooledBytes {
    pool: BufferPool,
    id: u16,
    start: u32,
    len: u32,
}

impl Deref for PooledBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let at = self.pool.inner.buffer(self.id);
        let first = at.as_ptr().wrapping_add(self.start as usize);
        // SAFETY: `take` checked that start..start+len lies in the buffer. The system has written
        // these bytes and writes only behind them until the buffer is offered again, which happens
        // after this piece has been dropped. Nobody else writes the pool's memory.
        unsafe { slice::from_raw_parts(first, self.len as usize) }
    }
}

impl Drop for PooledBytes {
    fn drop(&mut self) {
        self.pool.give_back(self.id);
    }
}

impl fmt::Debug for PooledBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledBytes")
            .field("buffer", &self.id)
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
