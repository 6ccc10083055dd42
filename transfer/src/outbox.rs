//! The send side of a connection: frames queue up, one task sends them.
//!
//! Everything that is queued within one turn of the loop leaves in one system call, whoever queued
//! it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use lunette_runtime::arena::Region;
use lunette_runtime::net::{Message, Pin, TcpStream};
use lunette_runtime_core::ids::RequestId;
use lunette_transfer_proto::frame::{FrameKind, PayloadDigest, encode_frame};

use crate::error::CloseReason;

/// Messages kept for reuse.
const SPARE_MESSAGES_MAX: usize = 2;

/// Bytes to send behind a frame, and their checksum, which the sender does not compute again.
#[derive(Debug)]
pub struct Payload {
    /// The bytes, pinned until they have been sent. At least one.
    pub region: Region,
    /// Their CRC32C.
    pub crc32c: u32,
    /// What their owner wants dropped when they have been sent, or will not be.
    pub pin: Option<Pin>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Box<Message>>,
    spare: VecDeque<Box<Message>>,
    /// Bytes queued and in flight.
    pending_bytes: usize,
    closed: bool,
    sender: Option<Waker>,
    /// Waits until less is pending.
    throttled: Option<Waker>,
}

/// A queue of outgoing frames. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox {
    state: Rc<RefCell<State>>,
}

impl Outbox {
    /// Queues a frame. After the close it is dropped: nobody is there to read it.
    pub(crate) fn push(
        &self,
        kind: FrameKind,
        code: u16,
        id: RequestId,
        body: &[u8],
        payload: Option<Payload>,
    ) {
        let digest = payload.as_ref().map(|payload| PayloadDigest {
            len_bytes: u32::try_from(payload.region.len()).expect("a payload is bounded"),
            crc32c: payload.crc32c,
        });
        self.append(|message| {
            message.control(|out| encode_frame(out, kind, code, id, body, digest));
            match payload {
                None => {}
                Some(Payload {
                    region, pin: None, ..
                }) => message.payload(region),
                Some(Payload {
                    region,
                    pin: Some(pin),
                    ..
                }) => {
                    message.payload_pinned(region, pin);
                }
            }
        });
    }

    /// Queues control bytes that are frames already.
    pub(crate) fn push_encoded(&self, frames: &[u8]) {
        self.append(|message| message.control(|out| out.extend_from_slice(frames)));
    }

    fn append(&self, write: impl FnOnce(&mut Message)) {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return;
        }
        if state.queue.back().is_none_or(|message| message.is_full()) {
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

    /// Waits until at most `bytes_max` are queued and in flight, or the outbox is closed.
    pub(crate) async fn drained_below(&self, bytes_max: usize) {
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            if state.closed || state.pending_bytes <= bytes_max {
                return Poll::Ready(());
            }
            state.throttled = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ends sending. What is queued is dropped; what is in flight is left to its completion.
    pub(crate) fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        let queue = std::mem::take(&mut state.queue);
        let wakers = [state.sender.take(), state.throttled.take()];
        drop(state);
        drop(queue);
        for waker in wakers.into_iter().flatten() {
            waker.wake();
        }
    }

    /// Sends what is queued until the outbox is closed or the connection fails.
    pub(crate) async fn run(&self, stream: &TcpStream) -> CloseReason {
        while let Some(message) = self.next().await {
            let len = message.len();
            let (result, mut message) = stream.send_message(message).await;
            if let Err(error) = result {
                return CloseReason::Io(error);
            }
            message.clear();
            let mut state = self.state.borrow_mut();
            state.pending_bytes -= len;
            if state.spare.len() < SPARE_MESSAGES_MAX {
                state.spare.push_back(message);
            }
            let throttled = state.throttled.take();
            drop(state);
            if let Some(waker) = throttled {
                waker.wake();
            }
        }
        CloseReason::Local
    }

    async fn next(&self) -> Option<Box<Message>> {
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            if let Some(message) = state.queue.pop_front() {
                return Poll::Ready(Some(message));
            }
            if state.closed {
                return Poll::Ready(None);
            }
            state.sender = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}
