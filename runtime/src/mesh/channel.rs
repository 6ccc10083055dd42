//! Typed messages to one core, without allocations.
//!
//! Any thread sends. The receiver is a source of its core ([`Source`]), so while the core is busy a
//! message costs no system call and no wake-up of a task from afar: the core sees the ring while it
//! looks round, and a message is on its way for about as long as a cache line takes from one CPU to
//! another. A core that sleeps is woken as by any message.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use thiserror::Error;

use crate::executor::{Core, Source, SourceGuard, wake_inbox};

use super::Inbox;
use super::ring::Ring;

/// Messages that one channel may hold.
pub const CHANNEL_MESSAGES_MAX: usize = 1 << 16;

/// Why a message was not sent. It comes back.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SendError<T> {
    /// The channel holds as many messages as it may; try again later, or await [`Sender::send`].
    #[error("the channel is full")]
    Full(T),
    /// The receiver is gone.
    #[error("the receiver is gone")]
    Closed(T),
}

impl<T> SendError<T> {
    /// The message.
    pub fn into_message(self) -> T {
        match self {
            Self::Full(message) | Self::Closed(message) => message,
        }
    }

    /// Whether waiting can help.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Full(_))
    }
}

struct Shared<T> {
    ring: Ring<T>,
    senders: AtomicUsize,
    is_closed: AtomicBool,
    /// Held by who drops the messages that nobody receives any more.
    draining: Mutex<()>,
    /// Where the receiver is, once it is anywhere.
    inbox: OnceLock<Arc<Inbox>>,
    /// Senders wait for room.
    is_awaited: AtomicBool,
    waiters: Mutex<Vec<Waker>>,
}

impl<T> Shared<T> {
    /// Has a receiver that sleeps look. Between what was done before and what is read afterwards there is a
    /// fence: that of the doorbell, or one of its own.
    fn wake_receiver(&self) {
        match self.inbox.get() {
            Some(inbox) => wake_inbox(inbox),
            None => fence(Ordering::SeqCst),
        }
    }

    /// Drops what is there, when there is no receiver any more: who waits for an answer is to see that there
    /// will be none.
    fn drain(&self) {
        let draining = self.draining.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // SAFETY: the channel is closed, which is after the receiver's last look; of those who drain it
            // one at a time holds the lock. Ends with the call.
            let message = unsafe { self.ring.pop() };
            if message.is_none() {
                break;
            }
            drop(message);
        }
        drop(draining);
    }

    /// There is room, or nothing to wait for any more.
    fn wake_senders(&self) {
        if self.is_awaited.load(Ordering::Relaxed) {
            self.is_awaited.store(false, Ordering::Relaxed);
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            let waiters = std::mem::take(&mut *waiters);
            waiters.into_iter().for_each(Waker::wake);
        }
    }
}

/// A channel for `capacity` messages (at least two, at most [`CHANNEL_MESSAGES_MAX`]) to the core on
/// which its port is opened.
///
/// # Panics
/// If `capacity` is 0 or above the bound.
#[must_use]
pub fn channel<T: Send + 'static>(capacity: usize) -> (Sender<T>, Port<T>) {
    assert!(
        (1..=CHANNEL_MESSAGES_MAX).contains(&capacity),
        "a channel holds 1 to {CHANNEL_MESSAGES_MAX} messages"
    );
    let shared = Arc::new(Shared {
        ring: Ring::new(capacity),
        senders: AtomicUsize::new(1),
        is_closed: AtomicBool::new(false),
        draining: Mutex::default(),
        inbox: OnceLock::new(),
        is_awaited: AtomicBool::new(false),
        waiters: Mutex::default(),
    });
    let port = Port(Some(Arc::clone(&shared)));
    (Sender(shared), port)
}

/// The sending end, for any thread. Clones send to the same receiver.
pub struct Sender<T>(Arc<Shared<T>>);

impl<T> Sender<T> {
    /// Sends a message if there is room. Messages of one sender arrive in their order.
    ///
    /// # Errors
    /// [`SendError`], with the message.
    pub fn try_send(&self, message: T) -> Result<(), SendError<T>> {
        if self.0.is_closed.load(Ordering::Acquire) {
            return Err(SendError::Closed(message));
        }
        self.0.ring.push(message).map_err(SendError::Full)?;
        // With a fence in between, either the end of the receiver is seen here, or the message there.
        self.0.wake_receiver();
        if self.0.is_closed.load(Ordering::Relaxed) {
            self.0.drain();
        }
        Ok(())
    }

    /// Whether the receiver is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }

    /// Sends a message, waiting for room. Dropping the future sends nothing.
    ///
    /// # Errors
    /// [`SendError::Closed`], with the message.
    pub async fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut message = Some(message);
        poll_fn(|cx| self.poll_send(&mut message, cx)).await
    }

    fn poll_send(
        &self,
        message: &mut Option<T>,
        cx: &Context<'_>,
    ) -> Poll<Result<(), SendError<T>>> {
        // The second try comes after the announcement: see `Receiver::pop`.
        for announced in [false, true] {
            let next = message.take().expect("polled until it is sent");
            match self.try_send(next) {
                Err(SendError::Full(back)) => *message = Some(back),
                other => return Poll::Ready(other),
            }
            if !announced {
                let mut waiters = self
                    .0
                    .waiters
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                if !waiters.iter().any(|known| known.will_wake(cx.waker())) {
                    waiters.push(cx.waker().clone());
                }
                drop(waiters);
                self.0.is_awaited.store(true, Ordering::Relaxed);
                fence(Ordering::SeqCst);
            }
        }
        Poll::Pending
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // Release: what was sent is seen before the end.
        if self.0.senders.fetch_sub(1, Ordering::Release) == 1 {
            self.0.wake_receiver();
        }
    }
}

/// The receiving end on its way to its core.
pub struct Port<T>(Option<Arc<Shared<T>>>);

impl<T: Send + 'static> Port<T> {
    /// Receives on the current core from now on.
    ///
    /// # Errors
    /// The port, if the core has as many sources as it may have
    /// ([`SOURCES_MAX`](crate::SOURCES_MAX)).
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn open(mut self) -> Result<Receiver<T>, Self> {
        let core = Core::current();
        let Some(shared) = self.0.take() else {
            unreachable!("a port is opened once")
        };
        let waiting = Rc::default();
        let source = Polled {
            shared: Arc::clone(&shared),
            waiting: Rc::clone(&waiting),
        };
        let Ok(guard) = core.add_source(Box::new(source)) else {
            return Err(Self(Some(shared)));
        };
        let placed = shared.inbox.set(Arc::clone(core.inbox()));
        assert!(placed.is_ok(), "a port is opened once");
        Ok(Receiver {
            shared,
            waiting,
            _guard: guard,
        })
    }
}

impl<T> Drop for Port<T> {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            close(shared);
        }
    }
}

/// No message is taken any more. Those that are there are dropped, and those that are on their way by who
/// sends them.
fn close<T>(shared: &Shared<T>) {
    shared.is_closed.store(true, Ordering::Release);
    fence(Ordering::SeqCst);
    shared.drain();
    shared.wake_senders();
}

/// The receiving end, on its core.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    waiting: Rc<RefCell<Option<Waker>>>,
    _guard: SourceGuard,
}

impl<T: Send + 'static> Receiver<T> {
    /// The next message, or `None` once every sender is gone and every message has been received.
    /// Dropping the future loses none.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The next message, if there is one.
    pub fn try_recv(&mut self) -> Option<T> {
        self.pop()
    }

    fn pop(&self) -> Option<T> {
        // SAFETY: the receiver is the only one, and does not leave its core's thread.
        let message = unsafe { self.shared.ring.pop() }?;
        // A sender announces that it waits, then tries again; we make room, then look for the
        // announcement. With a fence in between on either side, one of the two sees the other.
        fence(Ordering::SeqCst);
        self.shared.wake_senders();
        Some(message)
    }

    fn poll_recv(&self, cx: &Context<'_>) -> Poll<Option<T>> {
        if let Some(message) = self.pop() {
            return Poll::Ready(Some(message));
        }
        // Acquire: what the last sender sent comes before its end.
        if self.shared.senders.load(Ordering::Acquire) == 0 {
            return Poll::Ready(self.pop());
        }
        let mut waiting = self.waiting.borrow_mut();
        match &*waiting {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => *waiting = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        close(&self.shared);
    }
}

/// The receiver's core looks at the ring.
struct Polled<T> {
    shared: Arc<Shared<T>>,
    waiting: Rc<RefCell<Option<Waker>>>,
}

impl<T> Polled<T> {
    fn has_news(&self) -> bool {
        self.shared.ring.has_next() || self.shared.senders.load(Ordering::Acquire) == 0
    }
}

impl<T> Source for Polled<T> {
    fn poll(&mut self, _budget: usize) -> usize {
        if self.waiting.borrow().is_none() || !self.has_news() {
            return 0;
        }
        let waiting = self.waiting.take();
        waiting.map_or(0, |waker| {
            waker.wake();
            1
        })
    }

    fn try_park(&mut self) -> bool {
        // The core has announced its sleep; senders ring when they see that. Who does not wait
        // does not keep the core awake.
        self.waiting.borrow().is_none() || !self.has_news()
    }

    fn unpark(&mut self) {}
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("Sender", Some(&*self.0), f)
    }
}

impl<T> fmt::Debug for Port<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("Port", self.0.as_deref(), f)
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("Receiver", Some(&*self.shared), f)
    }
}

fn debug<T>(name: &str, shared: Option<&Shared<T>>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut out = f.debug_struct(name);
    if let Some(shared) = shared {
        out.field("messages", &shared.ring.len())
            .field("capacity", &shared.ring.capacity());
    }
    out.finish_non_exhaustive()
}
