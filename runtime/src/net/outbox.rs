//! The sending half of a connection that several tasks write to: what they say queues up, one task
//! sends it.
//!
//! Everything that is queued within one turn of the loop leaves in one system call, whoever queued it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::stream::TcpStream;
use crate::op::OpError;
use crate::vectored::Message;

/// Messages kept for reuse.
const SPARE_MESSAGES_MAX: usize = 2;

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Box<Message>>,
    spare: VecDeque<Box<Message>>,
    /// Bytes queued and in flight.
    pending_bytes: usize,
    is_closed: bool,
    sender: Option<Waker>,
    /// Wait until less is pending.
    throttled: Vec<Waker>,
}

/// A queue of outgoing messages. Clones share it.
///
/// It has no bound of its own: who queues waits with [`Outbox::drained_below`] as its protocol allows.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    state: Rc<RefCell<State>>,
}

impl Outbox {
    /// Queues what `write` appends, which is at most four parts. After the close it is dropped: nobody
    /// is there to read it.
    pub fn append(&self, write: impl FnOnce(&mut Message)) {
        self.append_parts(4, write);
    }

    /// Queues what `write` appends, which is so many parts at most.
    pub fn append_parts(&self, parts: usize, write: impl FnOnce(&mut Message)) {
        let mut state = self.state.borrow_mut();
        if state.is_closed {
            return;
        }
        if state
            .queue
            .back()
            .is_none_or(|message| !message.has_room_for(parts))
        {
            let message = state.spare.pop_back().unwrap_or_else(Message::new);
            state.queue.push_back(message);
        }
        let message = state.queue.back_mut().expect("just made sure of");
        let before = message.len();
        write(message);
        let added = message.len() - before;
        state.pending_bytes += added;
        let sender = state.sender.take();
        drop(state);
        if let Some(waker) = sender {
            waker.wake();
        }
    }

    /// Queues these bytes, and empties them.
    pub fn append_bytes(&self, bytes: &mut Vec<u8>) {
        if !bytes.is_empty() {
            self.append(|message| message.control(|out| out.extend_from_slice(bytes)));
            bytes.clear();
        }
    }

    /// Bytes queued and in flight.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.state.borrow().pending_bytes
    }

    /// Waits until at most `bytes_max` are queued and in flight, or the outbox is closed.
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
        let sender = state.sender.take();
        let throttled = std::mem::take(&mut state.throttled);
        drop(state);
        drop(queue);
        for waker in sender.into_iter().chain(throttled) {
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
