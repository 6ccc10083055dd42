//! The sending half of a connection that several tasks write to: what they say queues up, one task
//! sends it.
//!
//! Everything that is queued within one turn of the loop leaves in one system call, whoever queued it.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::stream::TcpStream;
use crate::arena::Region;
use crate::op::OpError;
use crate::vectored::{Message, Pin};

/// Messages kept for reuse.
const SPARE_MESSAGES_MAX: usize = 2;

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Box<Message>>,
    /// What goes behind the stretch that is open.
    behind: VecDeque<Box<Message>>,
    spare: VecDeque<Box<Message>>,
    /// Bytes queued and in flight, and those that a stretch will have.
    pending_bytes: usize,
    is_stretched: bool,
    is_closed: bool,
    sender: Option<Waker>,
    /// Wait until less is pending.
    throttled: Vec<Waker>,
    /// Wait until no stretch is open.
    stretching: Vec<Waker>,
}

/// A queue of outgoing messages. Clones share it.
///
/// It has no bound of its own: who queues waits with [`Outbox::drained_below`] as its protocol allows.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    state: Rc<RefCell<State>>,
}

/// A place in the queue that is filled by and by: what else is queued meanwhile goes behind it. Dropped before it is
/// full, it closes the outbox: whoever reads the connection would take what follows for what is missing.
#[derive(Debug)]
pub struct Stretch {
    outbox: Outbox,
    /// Bytes that it still has room for.
    left_bytes: usize,
}

impl State {
    /// Appends to a queue what `write` does, which is so many parts at most; by how many bytes that is longer.
    fn push(
        queue: &mut VecDeque<Box<Message>>,
        spare: &mut VecDeque<Box<Message>>,
        parts: usize,
        write: impl FnOnce(&mut Message),
    ) -> usize {
        if queue
            .back()
            .is_none_or(|message| !message.has_room_for(parts))
        {
            queue.push_back(spare.pop_back().unwrap_or_else(Message::new));
        }
        let message = queue.back_mut().expect("just made sure of");
        let before = message.len();
        write(message);
        message.len() - before
    }

    /// The sender goes on.
    fn wake(mut state: RefMut<'_, Self>) {
        let sender = state.sender.take();
        drop(state);
        if let Some(waker) = sender {
            waker.wake();
        }
    }
}

impl Outbox {
    /// Queues what `write` appends, which is at most four parts. After the close it is dropped: nobody
    /// is there to read it.
    pub fn append(&self, write: impl FnOnce(&mut Message)) {
        self.append_parts(4, write);
    }

    /// Queues what `write` appends, which is so many parts at most.
    pub fn append_parts(&self, parts: usize, write: impl FnOnce(&mut Message)) {
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        if state.is_closed {
            return;
        }
        let queue = if state.is_stretched {
            &mut state.behind
        } else {
            &mut state.queue
        };
        state.pending_bytes += State::push(queue, &mut state.spare, parts, write);
        State::wake(guard);
    }

    /// Queues what `write` appends, which is so many parts at most, and keeps the place behind it for `len_bytes` that are
    /// still to come: what is queued from then on goes behind those. They count as [pending](Self::pending_bytes).
    /// It waits while another stretch is open. `None`, and nothing is queued, after the close.
    pub async fn begin(
        &self,
        parts: usize,
        write: impl FnOnce(&mut Message),
        len_bytes: usize,
    ) -> Option<Stretch> {
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            if state.is_stretched && !state.is_closed {
                state.stretching.push(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        if state.is_closed {
            return None;
        }
        state.is_stretched = true;
        let queued = State::push(&mut state.queue, &mut state.spare, parts, write);
        state.pending_bytes += queued + len_bytes;
        State::wake(guard);
        Some(Stretch {
            outbox: self.clone(),
            left_bytes: len_bytes,
        })
    }

    /// Queues these bytes, and empties them.
    pub fn append_bytes(&self, bytes: &mut Vec<u8>) {
        if !bytes.is_empty() {
            self.append(|message| message.control(|out| out.extend_from_slice(bytes)));
            bytes.clear();
        }
    }

    /// Bytes queued and in flight, and those that an open [`Stretch`] will have.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.state.borrow().pending_bytes
    }

    /// Waits until at most `bytes_max` are [pending](Self::pending_bytes), or the outbox is closed.
    pub async fn drained_below(&self, bytes_max: usize) {
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            if state.is_closed || state.pending_bytes <= bytes_max {
                return Poll::Ready(());
            }
            state.throttled.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ends sending. What is queued is dropped; what is in flight is left to its completion.
    pub fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.is_closed = true;
        let queue = std::mem::take(&mut state.queue);
        let behind = std::mem::take(&mut state.behind);
        let sender = state.sender.take();
        let throttled = std::mem::take(&mut state.throttled);
        let stretching = std::mem::take(&mut state.stretching);
        drop(state);
        drop((queue, behind));
        for waker in sender.into_iter().chain(throttled).chain(stretching) {
            waker.wake();
        }
    }

    /// Sends what is queued until the outbox is closed. One task at a time; dropping the future
    /// leaves what is in flight to its completion.
    ///
    /// # Errors
    /// [`OpError`]: the connection failed.
    pub async fn run(&self, stream: &TcpStream) -> Result<(), OpError> {
        while let Some(message) = self.next().await {
            let len = message.len();
            let (result, message) = stream.send_message(message).await;
            result?;
            self.is_sent(message, len);
        }
        Ok(())
    }

    /// As [`run`](Self::run), but sends what `change` appends for the bytes of each message.
    ///
    /// # Errors
    /// That of `change`, or [`OpError`]: the connection failed.
    pub async fn run_changed<E: From<OpError>>(
        &self,
        stream: &TcpStream,
        mut change: impl FnMut(&[u8], &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut plain, mut changed) = (Vec::new(), Vec::new());
        while let Some(message) = self.next().await {
            plain.clear();
            message.append_to(&mut plain);
            changed.clear();
            change(&plain, &mut changed)?;
            let len = changed.len();
            let (result, back) = stream.send_all(changed, 0, len).await;
            result?;
            changed = back;
            self.is_sent(message, plain.len());
        }
        Ok(())
    }

    /// The bytes of a message have left.
    fn is_sent(&self, mut message: Box<Message>, len: usize) {
        message.clear();
        let mut state = self.state.borrow_mut();
        state.pending_bytes -= len;
        if state.spare.len() < SPARE_MESSAGES_MAX {
            state.spare.push_back(message);
        }
        let throttled = std::mem::take(&mut state.throttled);
        drop(state);
        for waker in throttled {
            waker.wake();
        }
    }

    async fn next(&self) -> Option<Box<Message>> {
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            if let Some(message) = state.queue.pop_front() {
                return Poll::Ready(Some(message));
            }
            if state.is_closed {
                return Poll::Ready(None);
            }
            state.sender = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Stretch {
    /// Bytes that are still to come.
    #[must_use]
    pub const fn left_bytes(&self) -> usize {
        self.left_bytes
    }

    /// Queues a region, pinned until it has been sent. After the close it is dropped.
    ///
    /// # Panics
    /// If it is longer than what is [left](Self::left_bytes).
    pub fn append(&mut self, region: Region) {
        let left_bytes = self.left_bytes.checked_sub(region.len());
        self.left_bytes = left_bytes.expect("a stretch has no more than it began with");
        let mut guard = self.outbox.state.borrow_mut();
        let state = &mut *guard;
        if state.is_closed {
            return;
        }
        State::push(&mut state.queue, &mut state.spare, 1, |message| {
            message.payload(region);
        });
        State::wake(guard);
    }

    /// Keeps `pin` until all that has been appended has been sent, or will not be.
    pub fn pin(&mut self, pin: Pin) {
        let mut guard = self.outbox.state.borrow_mut();
        let state = &mut *guard;
        if state.is_closed {
            return;
        }
        State::push(&mut state.queue, &mut state.spare, 0, |message| {
            message.pin(pin)
        });
        State::wake(guard);
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        if self.left_bytes > 0 {
            return self.outbox.close();
        }
        let mut guard = self.outbox.state.borrow_mut();
        let state = &mut *guard;
        state.is_stretched = false;
        state.queue.append(&mut state.behind);
        let stretching = std::mem::take(&mut state.stretching);
        State::wake(guard);
        for waker in stretching {
            waker.wake();
        }
    }
}
