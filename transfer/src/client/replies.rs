//! What a connection's replies are told to.

use std::future::{Future, poll_fn};
use std::rc::Rc;

use lunette_runtime_core::ids::RequestId;
use lunette_transfer_proto::calls::{CallEnd, EndCause, ResponseSink};
use lunette_transfer_proto::frame::{FrameKind, GOAWAY_HAS_READ};
use lunette_transfer_proto::receiver::{FrameView, PayloadVerdict};

use super::calls::{Ending, ReplyHead, Shared};
use crate::error::{CallError, CloseReason};
use crate::inbound::Sink;
use crate::room::Room;

/// One connection's asking side.
pub(super) struct Asking {
    pub(super) shared: Rc<Shared>,
}

impl Asking {
    /// A reply is complete: its caller gets it, and a slot is free.
    fn end_call(&self, id: RequestId, verdict: PayloadVerdict) {
        let mut borrowed = self.shared.state.borrow_mut();
        let state = &mut *borrowed;
        let ended = match state.calls.on_response_end(id, verdict) {
            CallEnd::Done { token } => Some((token, Ok(()))),
            CallEnd::Corrupt {
                token,
                expected,
                computed,
            } => Some((token, Err(CallError::Corrupt { expected, computed }))),
            CallEnd::TooLong {
                token,
                payload_len_bytes,
                room_bytes,
            } => Some((
                token,
                Err(CallError::TooLong {
                    payload_len_bytes,
                    room_bytes,
                }),
            )),
            CallEnd::Discarded => None,
        };
        let ending = ended.and_then(|(token, outcome)| state.finish(token, outcome));
        for waker in state.blocked.drain(..) {
            waker.wake();
        }
        drop(borrowed);
        ending.into_iter().for_each(Ending::deliver);
    }
}

impl Sink for Asking {
    fn on_frame(&mut self, frame: FrameView<'_>) -> Result<(), CloseReason> {
        let FrameView { header, body } = frame;
        self.shared.hear();
        match header.kind {
            FrameKind::Response => {}
            FrameKind::Goaway if header.code == GOAWAY_HAS_READ => {
                self.shared.on_goaway(header.id.0);
                return Ok(());
            }
            FrameKind::Goaway => return Err(CloseReason::Peer),
            kind => return Err(CloseReason::UnexpectedFrame(kind)),
        }
        let payload_len_bytes = header.payload.len_bytes;
        let mut state = self.shared.state.borrow_mut();
        let sink = state.calls.on_response(header.id, payload_len_bytes)?;
        if sink == ResponseSink::Place
            && let Some(waiter) = state.waiter(header.id)
        {
            let chosen = waiter.arrange.take().filter(|_| payload_len_bytes > 0);
            let chosen = chosen.and_then(|arrange| arrange.choose(body, payload_len_bytes));
            if let Some(room) = chosen {
                waiter.room = Some(room);
            }
            let body = body.to_vec();
            waiter.reply = Some(ReplyHead {
                status: header.code,
                body,
                payload_len_bytes,
            });
        }
        drop(state);
        if payload_len_bytes == 0 {
            self.end_call(header.id, PayloadVerdict::Intact);
        }
        Ok(())
    }

    fn on_staged(&mut self, id: RequestId, offset: usize, bytes: &[u8]) {
        self.shared.hear();
        let mut state = self.shared.state.borrow_mut();
        if let Some(waiter) = state.waiter(id)
            && waiter.reply.is_some()
            && let Some(room) = waiter.room.as_mut()
        {
            room.place(offset, bytes);
        }
    }

    fn on_payload_end(&mut self, id: RequestId, verdict: PayloadVerdict) {
        self.end_call(id, verdict);
    }

    fn lend(&mut self, id: RequestId) -> Option<Room> {
        let mut state = self.shared.state.borrow_mut();
        state
            .waiter(id)
            .filter(|waiter| waiter.reply.is_some())?
            .room
            .take()
    }

    fn give_back(&mut self, id: RequestId, room: Room, stopped: bool) -> Result<(), CloseReason> {
        if !stopped {
            self.shared.hear();
        }
        let mut borrowed = self.shared.state.borrow_mut();
        let state = &mut *borrowed;
        let index = *state
            .calls
            .token(id)
            .expect("what was lent belongs to a call");
        state.waiters[index].room = Some(room);
        // A fence may have been asked for while the receive was in flight, stopped or not.
        let Some(fenced) = state.calls.on_fenced(id) else {
            return Ok(());
        };
        let error = match fenced.cause {
            EndCause::DeadlineExceeded => CallError::DeadlineExceeded,
            EndCause::Abandoned => CallError::Cancelled,
        };
        let ending = state.finish(fenced.token, Err(error));
        drop(borrowed);
        ending.into_iter().for_each(Ending::deliver);
        Ok(())
    }

    fn stop(&self) -> impl Future<Output = ()> + use<> {
        let shared = Rc::clone(&self.shared);
        poll_fn(move |cx| shared.fence.poll(cx.waker()))
    }

    fn retire(&self) -> impl Future<Output = ()> + use<> {
        std::future::pending()
    }

    fn is_ready(&self) -> bool {
        true
    }

    async fn ready(&self) {}
}
