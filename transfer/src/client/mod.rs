//! The asking side: a connection, and calls on it, by tasks of a core or by a thread.

mod calls;
mod flight;
mod line;
mod replies;

use std::fmt;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use lunette_auth::Sealer;
use lunette_runtime::net::{Outbox, TcpStream};
use lunette_runtime::time;
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::hello::{Agreement, Handshake, Hello};

use self::calls::{Caller, Shared};
use self::flight::Flight;
use crate::error::{CallError, CallFailure, CloseReason, ConnectError};
use crate::frames::Payload;
use crate::guard::{Guard, GuardFault};
use crate::inbound::Inbound;
use crate::room::Room;

pub(crate) use self::calls::Told;
pub(crate) use self::line::LINE_IN_FLIGHT;
pub use self::line::{Line, LineSink};

/// How long a peer may answer nothing at all, before its connection is given up. Calls end by their
/// own deadlines; this is for the host that is gone without a word, to which each of them would be
/// sent again.
const UNANSWERED_MAX: Duration = Duration::from_secs(20);

/// A reply.
#[derive(Debug)]
pub struct Reply {
    /// What came of the request.
    pub status: u16,
    /// The reply's body.
    pub body: Vec<u8>,
    /// Length of the payload, which lies at the front of the room.
    pub payload_len_bytes: u32,
    /// The room that the call was given, the caller's again.
    pub room: Option<Room>,
}

/// What goes with a request besides its body.
#[derive(Debug, Default)]
pub struct Attachments {
    /// Bytes to send. Pinned until they have been sent.
    pub payload: Option<Payload>,
    /// Where the reply's payload is to be received. Lent until the call's future ends.
    pub room: Option<Room>,
    /// Another room for it, once it is known what it is.
    pub arrange: Option<Arrange>,
}

/// Chooses where a payload goes by the reply's body, which comes before it: other pieces of the same memory, say,
/// where it is made of many objects and some are missing.
pub struct Arrange(Box<Choose>);

type Choose = dyn FnOnce(&[u8]) -> Option<Room>;

impl Arrange {
    /// `choose` is told the body if a payload follows. The room that it returns takes the place of the call's own,
    /// which is let go, and comes back in its stead; without one, or if it is too small for the payload, all stays as
    /// it is. The call's own room must have place for as many bytes. Nothing of the connection may be used in it.
    #[must_use]
    pub fn by(choose: impl FnOnce(&[u8]) -> Option<Room> + 'static) -> Self {
        Self(Box::new(choose))
    }

    fn choose(self, body: &[u8], payload_len_bytes: u32) -> Option<Room> {
        let room = (self.0)(body)?;
        (room.len() >= payload_len_bytes as usize).then_some(room)
    }
}

impl fmt::Debug for Arrange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrange").finish_non_exhaustive()
    }
}

impl Attachments {
    /// Whether nothing goes with the request.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.payload.is_none() && self.room.is_none() && self.arrange.is_none()
    }
}

/// A connection to a peer that answers calls. Clones are handles to the same one; it closes when
/// the last handle drops and no call is in flight.
#[derive(Clone, Debug)]
pub struct Connection {
    shared: Rc<Shared>,
    _closes: Rc<CloseOnDrop>,
}

#[derive(Debug)]
struct CloseOnDrop(Rc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A connection that has shaken hands, and is nobody's yet.
struct Greeted {
    agreement: Agreement,
    stream: TcpStream,
    inbound: Inbound,
    outbox: Outbox,
    /// Seals what is sent, if that is to be sealed.
    sealer: Option<Sealer>,
}

impl Greeted {
    /// Connects, authenticates both sides if there is a guard, and shakes hands, within `timeout`.
    async fn connect(
        address: SocketAddr,
        hello: Hello,
        timeout: Duration,
        guard: Option<&Guard>,
    ) -> Result<Self, ConnectError> {
        let deadline = time::now() + timeout;
        let stream = TcpStream::connect_timeout(address, timeout).await?;
        Self::over(stream, hello, deadline, guard).await
    }

    async fn over(
        stream: TcpStream,
        hello: Hello,
        deadline: Time,
        guard: Option<&Guard>,
    ) -> Result<Self, ConnectError> {
        if let Err(error) = stream.set_unanswered_max(UNANSWERED_MAX) {
            tracing::debug!(%error, "a connection may outlive its peer");
        }
        let mut inbound = Inbound::new(stream.clone())?;
        let authenticated = match guard {
            None => None,
            Some(guard) => {
                let handshake = guard.initiator(deadline);
                Some(inbound.authenticate(handshake, true).await?)
            }
        };
        let (authenticated, mut sealer) = match authenticated {
            None => (None, None),
            Some(peer) => (Some(peer.epoch), peer.sealer),
        };
        let outbox = Outbox::default();
        let mut handshake = Handshake::initiator(hello, deadline);
        let mut frame = Vec::new();
        handshake.start(&mut frame);
        if let Some(sealer) = &mut sealer {
            let plain = std::mem::take(&mut frame);
            sealer
                .seal(&plain, &mut frame)
                .map_err(CloseReason::Record)?;
        }
        let len = frame.len();
        let (sent, _) = stream.send_all(frame, 0, len).await;
        sent.map_err(CloseReason::Io)?;
        let agreement = inbound.handshake(handshake, &outbox).await?;
        if authenticated.is_some_and(|epoch| epoch != agreement.session_epoch) {
            return Err(GuardFault::Epoch.into());
        }
        Ok(Self {
            agreement,
            stream,
            inbound,
            outbox,
            sealer,
        })
    }
}

impl Connection {
    /// Connects to `address` and shakes hands, within `timeout`.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        address: SocketAddr,
        hello: Hello,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        Self::connect_guarded(address, hello, timeout, None).await
    }

    /// As [`connect`](Self::connect), and authenticates both sides first.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect_guarded(
        address: SocketAddr,
        hello: Hello,
        timeout: Duration,
        guard: Option<&Guard>,
    ) -> Result<Self, ConnectError> {
        let greeted = Greeted::connect(address, hello, timeout, guard).await?;
        Ok(Self::of(greeted))
    }

    /// Shakes hands over what is connected.
    pub(crate) async fn over(
        stream: TcpStream,
        hello: Hello,
        deadline: Time,
        guard: Option<&Guard>,
    ) -> Result<Self, ConnectError> {
        let greeted = Greeted::over(stream, hello, deadline, guard).await?;
        Ok(Self::of(greeted))
    }

    fn of(greeted: Greeted) -> Self {
        let Greeted {
            agreement,
            stream,
            inbound,
            outbox,
            sealer,
        } = greeted;
        let shared = Rc::new(Shared::new(agreement, stream, outbox));
        calls::attend(&shared, inbound, sealer);
        let closes = Rc::new(CloseOnDrop(Rc::clone(&shared)));
        Self {
            shared,
            _closes: closes,
        }
    }

    /// What the handshake agreed on, and what the peer said of itself.
    #[must_use]
    pub fn agreement(&self) -> &Agreement {
        &self.shared.agreement
    }

    /// Why nothing more is asked on this connection: it has ended, or its peer has said that it reads no more, and only answers
    /// what it has read.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        self.shared.state.borrow().closed
    }

    /// Asks the peer for `op`; `body` appends the request's body. The call waits while as many are
    /// in flight as the connection allows. Dropping the future gives the call up: its room is freed
    /// as soon as no receive into it is in flight, and a late reply is discarded.
    ///
    /// # Errors
    /// [`CallFailure`], with the room.
    pub async fn call(
        &self,
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
        attachments: Attachments,
        timeout: Duration,
    ) -> Result<Reply, CallFailure> {
        let stop = std::future::pending();
        self.call_until(op, body, attachments, timeout, stop).await
    }

    /// As [`call`](Self::call), but gives the call up when `stop` ends, and waits until nothing of a
    /// reply can land in the room any more: [`CallError::Cancelled`] says so.
    ///
    /// # Errors
    /// [`CallFailure`], with the room.
    pub async fn call_until(
        &self,
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
        attachments: Attachments,
        timeout: Duration,
        stop: impl Future<Output = ()>,
    ) -> Result<Reply, CallFailure> {
        let shared = &self.shared;
        let deadline = time::now() + timeout;
        if shared.must_wait() && time::timeout(timeout, shared.slot_is_free()).await.is_err() {
            let (error, room) = (CallError::DeadlineExceeded, attachments.room);
            return Err(CallFailure { error, room });
        }
        let caller = Caller::Future(None);
        let (id, waiter) = shared.start(op, body, attachments, deadline, caller)?;
        let mut flight = Flight::new(Rc::clone(shared), id, waiter);
        let mut stop = pin!(stop);
        let mut is_stopped = false;
        poll_fn(|cx| {
            if !is_stopped && stop.as_mut().poll(cx).is_ready() {
                is_stopped = true;
                flight.cancel();
            }
            Pin::new(&mut flight).poll(cx)
        })
        .await
    }

    /// How often something has come from the peer, a part of a reply's payload too. Where it is the same as a while ago, the
    /// peer has said nothing since.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.shared.heard.get()
    }

    /// Whether another call can be started at once.
    pub(crate) fn has_slot(&self) -> bool {
        !self.shared.must_wait()
    }

    /// Asks as [`call`](Self::call) does, without a deadline, and tells `told` how it ended.
    ///
    /// # Errors
    /// [`CallFailure`], with the room: nothing was asked, and nobody will be told.
    ///
    /// # Panics
    /// If there is no slot ([`has_slot`](Self::has_slot)).
    pub(crate) fn start(
        &self,
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
        attachments: Attachments,
        told: Rc<dyn Told>,
        token: usize,
    ) -> Result<RequestId, CallFailure> {
        let caller = Caller::Told(told, token);
        let started = self
            .shared
            .start(op, body, attachments, Time::MAX, caller)?;
        Ok(started.0)
    }

    /// Gives up a call that somebody is told of: it ends as cancelled unless it ends otherwise first, now
    /// or when its room is not lent to a receive any more.
    pub(crate) fn give_up(&self, id: RequestId) {
        self.shared.give_up(id);
    }

    /// Bytes that were asked and are still to be handed to the system.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.shared.outbox.pending_bytes()
    }

    /// Waits until at most `bytes_max` of what was asked are still to be handed to the system, or the
    /// connection has ended.
    pub async fn drained_below(&self, bytes_max: usize) {
        self.shared.outbox.drained_below(bytes_max).await;
    }

    /// Waits until the connection has ended, with all calls on it, and says why.
    pub async fn ended(&self) -> CloseReason {
        self.ending().await
    }

    /// As [`ended`](Self::ended), without keeping the connection open.
    pub fn ending(&self) -> impl Future<Output = CloseReason> + use<> {
        let shared = Rc::clone(&self.shared);
        poll_fn(move |cx| {
            let mut state = shared.state.borrow_mut();
            if state.is_over {
                return Poll::Ready(state.closed.unwrap_or(CloseReason::Local));
            }
            if !state
                .watching
                .iter()
                .any(|known| known.will_wake(cx.waker()))
            {
                state.watching.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Ends the connection. Calls in flight end with [`CallError::Disconnected`] (those that the peer said it did not read: with
    /// [`CallError::NotRead`], by then), each when nothing of
    /// a reply can land in its room any more.
    pub fn close(&self) {
        self.shared.close();
    }
}
