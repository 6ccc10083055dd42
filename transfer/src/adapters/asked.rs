//! Requests over one queue pair: a message each, and a message for each answer. They end with it.
//!
//! ```text
//!   begin ── a slot of the table, a message ── the adapter's word that it has arrived
//!     │                                           │ it has not: lost
//!     ├── on_message: the answer                  ▼
//!     ├── is_noticed: answered by what the peer has written ── over
//!     └── end: the queue pair is given up ── lost
//! ```
//!
//! A request that is lost has been carried out, or has not: only what may be asked twice goes this way.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use lunette_runtime::time;
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::calls::{CallEnd, Calls};
use lunette_transfer_proto::frame::FrameKind;
use lunette_transfer_proto::message::{self, MessageFault};
use lunette_transfer_proto::receiver::PayloadVerdict;
use lunette_verbs::{QueuePair, Ready, Request};
use slab::Slab as Table;
use thiserror::Error;

use super::Messages;

/// Requests of one queue pair at a time. Its peer knows the number.
pub const ASKED_MAX: u32 = 32;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What the peer says of the request.
    pub status: u16,
    /// What else it says.
    pub body: Vec<u8>,
}

/// Nobody will answer: the queue pair has ended, or is to be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// The peer does not keep to the rules: its queue pair is to be given up.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AskedFault {
    /// It is no message.
    #[error(transparent)]
    Message(#[from] MessageFault),
    /// It is not an answer.
    #[error("a message that is no answer")]
    NoAnswer,
    /// It answers nothing.
    #[error("an answer to what was not asked")]
    NotAsked,
}

#[derive(Debug, Default)]
struct Waiter {
    answer: Option<Result<Answered, Lost>>,
    waker: Option<Waker>,
}

/// The requests of one queue pair: a message each, and a message for each answer. They end with it.
///
/// A request that is lost has been carried out, or has not: only what may be asked twice goes this way.
pub struct Asked {
    table: RefCell<Calls<usize>>,
    waiters: RefCell<Table<Waiter>>,
    scratch: RefCell<(Vec<u8>, Vec<u8>)>,
    /// How many more requests of all queue pairs of the adapter there may be: each answer takes a receive.
    left: Rc<Cell<usize>>,
    /// When the peer last answered anything.
    heard: Cell<Time>,
    is_over: Cell<bool>,
}

impl Asked {
    /// None, of as many as are `left` for all of the adapter.
    #[must_use]
    pub fn new(left: Rc<Cell<usize>>) -> Rc<Self> {
        Rc::new(Self {
            table: RefCell::new(Calls::new(ASKED_MAX)),
            waiters: RefCell::default(),
            scratch: RefCell::default(),
            left,
            heard: Cell::new(time::now()),
            is_over: Cell::new(false),
        })
    }

    /// Takes a request in; `None` if there may be no more of this queue pair, or of the adapter.
    fn start(&self) -> Option<(RequestId, usize)> {
        if self.left.get() == 0 || self.table.borrow().is_full() {
            return None;
        }
        let token = self.waiters.borrow_mut().insert(Waiter::default());
        let id = self.table.borrow_mut().start(Time::MAX, 0, token);
        self.left.set(self.left.get() - 1);
        Some((id.expect("a slot is free"), token))
    }

    /// Whether the peer has answered anything since then.
    #[must_use]
    pub fn has_heard_since(&self, at: Time) -> bool {
        self.heard.get() >= at
    }

    /// Takes in what has come.
    ///
    /// # Errors
    /// [`AskedFault`]: the queue pair is to be given up.
    pub fn on_message(&self, bytes: &[u8]) -> Result<(), AskedFault> {
        let frame = message::decode(bytes)?;
        if frame.header.kind != FrameKind::Response {
            return Err(AskedFault::NoAnswer);
        }
        self.heard.set(time::now());
        let answered = Answered {
            status: frame.header.code,
            body: frame.body.to_vec(),
        };
        let waker = self.finish(frame.header.id, Some(answered))?;
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// A request is over, with an answer or with what stands for one.
    fn finish(
        &self,
        id: RequestId,
        answered: Option<Answered>,
    ) -> Result<Option<Waker>, AskedFault> {
        let mut table = self.table.borrow_mut();
        let begun = table.on_response(id, 0);
        begun.map_err(|_fault| AskedFault::NotAsked)?;
        let ended = table.on_response_end(id, PayloadVerdict::Intact);
        self.left.set(self.left.get() + 1);
        let CallEnd::Done { token } = ended else {
            return Ok(None);
        };
        let mut waiters = self.waiters.borrow_mut();
        let waiter = &mut waiters[token];
        waiter.answer = answered.map(Ok);
        Ok(waiter.waker.take())
    }

    /// The queue pair has ended: all are lost.
    pub fn end(&self) {
        self.is_over.set(true);
        let mut table = self.table.borrow_mut();
        self.left.set(self.left.get() + table.in_flight());
        let lost = table.fail_all();
        drop(table);
        let mut waiters = self.waiters.borrow_mut();
        let wakers = lost.into_iter().filter_map(|(_, token)| {
            let waiter = &mut waiters[token];
            waiter.answer = Some(Err(Lost));
            waiter.waker.take()
        });
        let wakers: Vec<Waker> = wakers.collect();
        drop(waiters);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Asked({})", self.table.borrow().in_flight())
    }
}

/// A request that is under way: the peer's answer. Dropped, it is given up: its answer is for nobody.
///
/// # Errors
/// [`Lost`].
#[derive(Debug)]
#[must_use]
pub struct Asking {
    asked: Rc<Asked>,
    id: RequestId,
    token: usize,
    /// Until its message has arrived.
    sent: Option<Request>,
}

impl Asking {
    /// Asks over a queue pair; `None` if there may be no more requests now, or it is too long for a message: nothing was
    /// asked.
    pub fn begin(
        asked: &Rc<Asked>,
        (pair, messages): (&QueuePair<Ready>, &Messages),
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Self> {
        if asked.is_over.get() {
            return None;
        }
        let (id, token) = asked.start()?;
        let mut asking = Self {
            asked: Rc::clone(asked),
            id,
            token,
            sent: None,
        };
        let (out, written) = &mut *asked.scratch.borrow_mut();
        written.clear();
        body(written);
        let is_message = message::encode(out, FrameKind::Request, op, id, written);
        asking.sent = is_message.then(|| messages.send(pair, out)).flatten();
        if asking.sent.is_none() {
            asking.is_answered();
            return None;
        }
        Some(asking)
    }

    /// It is over, and no message will answer it.
    pub fn is_answered(&self) {
        if let Err(fault) = self.asked.finish(self.id, None) {
            // It has ended with its queue pair.
            tracing::trace!(%fault, "a request");
        }
    }
}

impl Future for Asking {
    type Output = Result<Answered, Lost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let asked = Rc::clone(&self.asked);
        let mut waiters = asked.waiters.borrow_mut();
        let waiter = &mut waiters[self.token];
        if let Some(answer) = waiter.answer.take() {
            return Poll::Ready(answer);
        }
        waiter.waker = Some(cx.waker().clone());
        drop(waiters);
        let Some(sent) = &mut self.sent else {
            return Poll::Pending;
        };
        match Pin::new(sent).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready((Ok(_), _piece)) => {
                self.sent = None;
                Poll::Pending
            }
            Poll::Ready((Err(error), _piece)) => {
                tracing::debug!(%error, "a message has not arrived");
                self.sent = None;
                Poll::Ready(Err(Lost))
            }
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // Its slot stays until it is answered.
        let _given_up = self.asked.table.borrow_mut().abandon(self.id);
        let gone = self.asked.waiters.borrow_mut().try_remove(self.token);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime::{CoreOptions, block_on};

    use super::*;

    fn answer(kind: FrameKind, id: RequestId) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(message::encode(&mut out, kind, 7, id, b"an answer"));
        out
    }

    #[test]
    fn what_answers_nothing_is_a_fault_and_what_is_given_up_makes_room_when_it_is_answered() {
        let test = || async {
            let left = Rc::new(Cell::new(4));
            let asked = Asked::new(Rc::clone(&left));
            let stranger = answer(FrameKind::Response, RequestId(77));
            assert_eq!(asked.on_message(&stranger), Err(AskedFault::NotAsked));
            let cut = &stranger[..stranger.len() - 1];
            assert!(matches!(asked.on_message(cut), Err(AskedFault::Message(_))));
            let begin = || asked.start().expect("room");
            let (id, token) = begin();
            let request = answer(FrameKind::Request, id);
            assert_eq!(asked.on_message(&request), Err(AskedFault::NoAnswer));
            assert_eq!(asked.on_message(&answer(FrameKind::Response, id)), Ok(()));
            let told = asked.waiters.borrow_mut().remove(token).answer;
            let told = told.expect("answered").expect("not lost");
            assert_eq!((told.status, told.body.as_slice()), (7, &b"an answer"[..]));
            let again = asked.on_message(&answer(FrameKind::Response, id));
            assert_eq!(again, Err(AskedFault::NotAsked));
            assert_eq!(left.get(), 4);

            let (id, token) = begin();
            let _given_up = asked.table.borrow_mut().abandon(id);
            asked.waiters.borrow_mut().remove(token);
            assert_eq!(left.get(), 3, "its answer takes a receive");
            assert_eq!(asked.on_message(&answer(FrameKind::Response, id)), Ok(()));
            assert_eq!(left.get(), 4);

            let (_, token) = begin();
            asked.end();
            let told = asked.waiters.borrow_mut().remove(token).answer;
            assert_eq!(told, Some(Err(Lost)));
            asked.end();
            assert_eq!(left.get(), 4);
        };
        block_on(None, CoreOptions::default(), test).expect("a core");
    }
    #[test]
    fn queue_pairs_of_an_adapter_ask_no_more_than_it_has_receives_for_and_each_no_more_than_its_peer_takes()
     {
        let test = || async {
            let per_pair = ASKED_MAX as usize;
            let left = Rc::new(Cell::new(per_pair + 2));
            let [one, other] = [(), ()].map(|()| Asked::new(Rc::clone(&left)));
            let mut of_one: Vec<_> = std::iter::from_fn(|| one.start()).collect();
            assert_eq!((of_one.len(), left.get()), (per_pair, 2));
            let of_other: Vec<_> = std::iter::from_fn(|| other.start()).collect();
            assert_eq!((of_other.len(), left.get()), (2, 0));
            // An answer makes room, for whichever asks next.
            let (id, _) = of_one.pop().expect("asked");
            assert_eq!(one.on_message(&answer(FrameKind::Response, id)), Ok(()));
            assert!(other.start().is_some() && one.start().is_none());
            drop(other);
            assert_eq!(left.get(), 3, "with a queue pair end its requests");
            assert!(one.start().is_some() && one.start().is_none());
        };
        block_on(None, CoreOptions::default(), test).expect("a core");
    }
}
