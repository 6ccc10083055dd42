//! The answering side: accepts connections and hands requests to a [`Service`].

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use lunette_auth::Sealer;
use lunette_auth::handshake::append_busy;
use lunette_runtime::net::{Outbox, TcpListener, TcpStream};
use lunette_runtime::{JoinError, Scope, time};
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::frame::{FrameKind, GOAWAY_HAS_READ, PayloadDigest};
use lunette_transfer_proto::hello::{Agreement, Handshake, Hello, HelloRefusal};
use lunette_transfer_proto::receiver::{FrameView, PayloadVerdict};

use crate::client::LINE_IN_FLIGHT;
use crate::drain::{Begun, Drain};
use crate::error::{CloseReason, ConnectError};
use crate::fed::{Fed, answer_fed};
use crate::frames::{Payload, push_frame};
use crate::guard::{Guard, GuardFault};
use crate::inbound::{Inbound, Sink};
use crate::room::Room;
use crate::sealed;

/// Bytes of replies that may wait for one peer before its next requests are left unread.
pub const REPLY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long what was read is waited for when nothing more is. It may wait for others, who may be gone.
const ANSWERS_WAIT: Duration = Duration::from_secs(1);
/// Pause after the system refused a connection (no descriptors left, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// How connections are served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// What this side says of itself.
    pub hello: Hello,
    /// Most connections at a time; further ones are refused as busy. When more than half as many are open, those of threads
    /// ([`Line`](crate::Line)) are ended as they come: who has one has a core's connection besides, or needs room for it.
    pub connections_max: usize,
    /// How long a peer may take for its hello.
    pub handshake_timeout: Duration,
    /// How long a peer may pause in the middle of a payload, or answer nothing at all.
    pub stall_timeout: Duration,
    /// Authenticates peers before anything else of them is read, if there is one.
    pub guard: Option<Guard>,
    /// Bytes of replies that may wait for one peer before its next requests are left unread; at most
    /// [`REPLY_BYTES_MAX`].
    pub reply_bytes_max: usize,
}

/// Names a connection among those that one call of [`serve`] has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u64);

/// A request as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The connection that it came on.
    pub connection: ConnectionId,
    /// What is asked.
    pub op: u16,
    /// The request's body.
    pub body: &'a [u8],
    /// Length of the payload that follows, 0 if none does.
    pub payload_len_bytes: u32,
    /// CRC32C of that payload.
    pub payload_crc32c: u32,
    /// Whether it came by a message beside the connection: no payload goes with its answer then.
    pub is_message: bool,
}

/// An answer.
#[derive(Debug, Default)]
pub struct Response {
    /// What came of the request.
    pub status: u16,
    /// The answer's body.
    pub body: Vec<u8>,
    /// Bytes that go with it.
    pub payload: Option<Payload>,
}

impl Response {
    /// Itself without its bytes, and those, if they are fed.
    fn into_fed(mut self) -> Result<(Self, (Fed, PayloadDigest)), Self> {
        match self.payload.take().map(Payload::into_fed) {
            Some(Ok(fed)) => Ok((self, fed)),
            Some(Err(payload)) => Err(Self {
                payload: Some(payload),
                ..self
            }),
            None => Err(self),
        }
    }
}

/// What a service does with a request.
#[derive(Debug)]
pub enum Intake<P> {
    /// Answers at once. The request's payload, if any, is discarded.
    Answer(Response),
    /// Answers when the future ends, unless the connection ends first: the future is dropped then. The
    /// request's payload, if any, is discarded.
    Later(Later),
    /// Receives the payload first. The room has at least the payload's length.
    Receive {
        /// What the service wants back with the payload.
        pending: P,
        /// Where the payload goes.
        room: Room,
    },
}

/// An answer that is not there yet.
pub struct Later(Pin<Box<dyn Future<Output = Response>>>);

impl Later {
    /// The output of `response`.
    pub fn new(response: impl Future<Output = Response> + 'static) -> Self {
        Self(Box::pin(response))
    }

    /// The answer, when it is there.
    pub async fn answer(self) -> Response {
        self.0.await
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

/// What comes of a request whose payload has been received.
#[derive(Debug)]
pub enum Answer {
    /// It is answered at once.
    Now(Response),
    /// As [`Intake::Later`].
    Later(Later),
}

impl From<Response> for Answer {
    fn from(response: Response) -> Self {
        Self::Now(response)
    }
}

/// How the receipt of a payload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadOutcome {
    /// Every byte is in place and the checksum fits.
    Intact,
    /// The checksum does not fit; the bytes must not be used.
    Corrupt,
    /// The connection ended first. The answer will reach nobody.
    Lost,
}

/// Ends one connection, from this side.
#[derive(Clone, Debug)]
pub struct Closer(TcpStream);

impl Closer {
    /// Begins to end it: what is being received is received no further.
    /// [`Service::on_ended`] follows.
    pub fn close(&self) {
        self.0.shutdown();
    }
}

/// What answers requests. Calls come one at a time; the service belongs to one core.
pub trait Service: 'static {
    /// What is kept while a payload arrives.
    type Pending;

    /// A request arrived.
    fn on_request(&self, request: RequestHead<'_>) -> Intake<Self::Pending>;

    /// The payload of a request has arrived, or will not. Called exactly once for each
    /// [`Intake::Receive`]; the room is the service's again.
    fn on_payload(&self, pending: Self::Pending, room: Room, outcome: PayloadOutcome) -> Answer;

    /// A connection was opened or has ended; `open` of them are open now.
    fn on_connections(&self, open: usize) {
        let _ = open;
    }

    /// A peer has introduced itself; its requests follow. `closer` ends the connection.
    fn on_agreed(&self, connection: ConnectionId, agreement: &Agreement, closer: Closer) {
        let _ = (connection, agreement, closer);
    }

    /// A connection whose peer had introduced itself has ended: no byte of it lands in any room any
    /// more, and each of its payloads has been told of.
    fn on_ended(&self, connection: ConnectionId) {
        let _ = connection;
    }
}

/// Serves connections to `listener` until `drain` begins and every connection has ended.
///
/// Then each connection is told how many requests were read, when the payload that it is receiving is
/// complete: those that were not are not carried out, and their callers [learn it](crate::CallError::NotRead). It ends
/// when what was read is answered and the answers are sent, or a second later. Dropping the future closes
/// every connection.
pub async fn serve<S: Service>(
    listener: TcpListener,
    service: Rc<S>,
    options: ServeOptions,
    drain: Drain,
) {
    let options = Rc::new(options);
    let open = Rc::new(Cell::new(0));
    let mut ids = (0..).map(ConnectionId);
    let connections = Scope::new();
    let retire = drain.listen();
    loop {
        let accepted = select(listener.accept(), poll_fn(|cx| retire.poll(cx.waker()))).await;
        let stream = match accepted {
            None => break,
            Some(Ok(stream)) => stream,
            Some(Err(error)) => {
                tracing::warn!(%error, "accept");
                time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if open.get() >= options.connections_max {
            spawned(connections.spawn(refuse(stream, options.guard.is_some())));
            continue;
        }
        if let Err(error) = stream.set_unanswered_max(options.stall_timeout) {
            tracing::debug!(%error, "a connection may outlive its peer");
        }
        let options = Rc::clone(&options);
        let retire = drain.listen();
        let counted = Counted::new(&open, &service);
        let id = ids.next().expect("numbers do not end");
        spawned(connections.spawn(async move {
            let reason = serve_connection(id, stream, &counted, &options, retire).await;
            tracing::debug!(?reason, "connection ended");
            drop(counted);
        }));
    }
    drop(listener);
    connections.join().await;
}

/// A connection for which there is no task is closed, and its peer sees that.
fn spawned(result: Result<(), JoinError>) -> bool {
    if let Err(error) = &result {
        tracing::warn!(%error, "a connection is closed at once");
    }
    result.is_ok()
}

/// The output of `future`, or `None` if `stop` ends first.
pub(crate) async fn select<F: Future>(
    future: F,
    stop: impl Future<Output = ()>,
) -> Option<F::Output> {
    let (mut future, mut stop) = (pin!(future), pin!(stop));
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        stop.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Counts an open connection while it lives.
struct Counted<S: Service> {
    open: Rc<Cell<usize>>,
    service: Rc<S>,
}

impl<S: Service> Counted<S> {
    fn new(open: &Rc<Cell<usize>>, service: &Rc<S>) -> Self {
        open.set(open.get() + 1);
        service.on_connections(open.get());
        Self {
            open: Rc::clone(open),
            service: Rc::clone(service),
        }
    }
}

impl<S: Service> Counted<S> {
    /// Whether it is a thread's, and others need the room.
    fn is_in_the_way(&self, agreement: &Agreement, options: &ServeOptions) -> bool {
        let is_of_thread = agreement.in_flight_max == LINE_IN_FLIGHT;
        is_of_thread && self.open.get() > options.connections_max / 2
    }
}

impl<S: Service> Drop for Counted<S> {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
        self.service.on_connections(self.open.get());
    }
}

/// Says that the house is full, in the words of the handshake that its peer expects.
async fn refuse(stream: TcpStream, is_guarded: bool) {
    let mut frame = Vec::new();
    if is_guarded {
        append_busy(&mut frame);
    } else {
        HelloRefusal::Busy.append_frame(&mut frame);
    }
    let len = frame.len();
    if let (Err(error), _) = stream.send_all(frame, 0, len).await {
        tracing::debug!(%error, "refusing a connection");
    }
}

async fn serve_connection<S: Service>(
    id: ConnectionId,
    stream: TcpStream,
    counted: &Counted<S>,
    options: &ServeOptions,
    retire: Begun,
) -> Result<CloseReason, ConnectError> {
    let service = Rc::clone(&counted.service);
    let mut inbound = Inbound::new(stream.clone())?;
    let outbox = Outbox::default();
    let (sender, feeding) = (Scope::new(), Rc::new(Scope::new()));
    let deadline = time::now() + options.handshake_timeout;
    let authenticated = match &options.guard {
        None => None,
        Some(guard) => {
            let handshake = guard.responder(deadline);
            let authenticated = inbound.authenticate(handshake, false).await;
            Some(authenticated.inspect_err(|_| stream.shutdown())?)
        }
    };
    let (epoch, sealer) = match authenticated {
        None => (None, None),
        Some(peer) => (Some(peer.epoch), peer.sealer),
    };
    if !spawned(sender.spawn(send(stream.clone(), outbox.clone(), sealer))) {
        stream.shutdown();
        return Ok(CloseReason::Local);
    }
    let result = match agree(&mut inbound, &outbox, options, epoch, deadline).await {
        Ok(agreement) if counted.is_in_the_way(&agreement, options) => {
            push_goaway(&outbox, 0);
            Ok(CloseReason::Local)
        }
        Ok(agreement) => {
            service.on_agreed(id, &agreement, Closer(stream.clone()));
            let mut answering = Answering {
                id,
                service,
                outbox: outbox.clone(),
                stall_timeout: options.stall_timeout,
                reply_bytes_max: options.reply_bytes_max.min(REPLY_BYTES_MAX),
                retire,
                read: 0,
                arriving: None,
                later: Scope::new(),
                feeding: Rc::clone(&feeding),
                closer: Closer(stream.clone()),
            };
            let reason = inbound.run(&mut answering).await;
            if reason == CloseReason::Local {
                answering.say_farewell().await;
            }
            answering.lose();
            answering.service.on_ended(id);
            Ok(reason)
        }
        Err(error) => Err(error),
    };
    // A refusal, and answers to a peer that has finished asking, still leave.
    let last_words = time::timeout(options.handshake_timeout, outbox.drained_below(0)).await;
    tracing::trace!(?last_words, "outbox");
    outbox.close();
    drop(feeding);
    stream.shutdown();
    sender.join().await;
    result
}

/// Shakes hands with a peer that was authenticated under this epoch, if that was asked for.
async fn agree(
    inbound: &mut Inbound,
    outbox: &Outbox,
    options: &ServeOptions,
    authenticated: Option<u64>,
    deadline: Time,
) -> Result<Agreement, ConnectError> {
    let handshake = Handshake::acceptor(options.hello.clone(), deadline);
    let agreement = inbound.handshake(handshake, outbox).await?;
    if authenticated.is_some_and(|epoch| epoch != agreement.session_epoch) {
        return Err(GuardFault::Epoch.into());
    }
    Ok(agreement)
}

async fn send(stream: TcpStream, outbox: Outbox, sealer: Option<Sealer>) {
    let sent = sealed::send(&stream, &outbox, sealer).await;
    tracing::trace!(?sent, "sender ended");
    outbox.close();
    // The receiving side learns it from its receive.
    stream.shutdown();
}

/// A payload that arrives: whose it is, and where it goes.
struct Arriving<P> {
    id: RequestId,
    pending: P,
    /// `None` while it is lent to a receive.
    room: Option<Room>,
}

/// Says that so many requests were read on the connection, and that no more are.
fn push_goaway(outbox: &Outbox, read: u64) {
    let (kind, read) = (FrameKind::Goaway, RequestId(read));
    push_frame(outbox, kind, GOAWAY_HAS_READ, read, &[], None);
}

fn answer(outbox: &Outbox, id: RequestId, response: Response) {
    let Response {
        status,
        body,
        payload,
    } = response;
    push_frame(outbox, FrameKind::Response, status, id, &body, payload);
}

/// One connection's answering side.
struct Answering<S: Service> {
    id: ConnectionId,
    service: Rc<S>,
    outbox: Outbox,
    stall_timeout: Duration,
    reply_bytes_max: usize,
    retire: Begun,
    /// Requests that were read.
    read: u64,
    arriving: Option<Arriving<S::Pending>>,
    /// Answers that are not there yet.
    later: Scope,
    /// Answers that have been begun, and whose bytes are still coming: these are ended before the connection is.
    feeding: Rc<Scope>,
    closer: Closer,
}

impl<S: Service> Answering<S> {
    fn answer(&self, id: RequestId, response: Response) {
        answer(&self.outbox, id, response);
    }

    fn answer_later(&self, id: RequestId, Later(response): Later) {
        let (outbox, closer) = (self.outbox.clone(), self.closer.clone());
        let feeding = Rc::downgrade(&self.feeding);
        let answering = async move {
            let (response, fed) = match response.await.into_fed() {
                Ok(begun) => begun,
                Err(response) => return answer(&outbox, id, response),
            };
            let feed = async move { answer_fed(&outbox, id, response, fed).await };
            let scope = feeding.upgrade();
            if !scope.is_some_and(|scope| spawned(scope.spawn(feed))) {
                closer.close();
            }
        };
        if !spawned(self.later.spawn(answering)) {
            // Nobody would ever answer.
            self.closer.close();
        }
    }

    /// Nothing more is read. Waits until what was read is answered.
    async fn say_farewell(&self) {
        assert!(self.arriving.is_none(), "asked to between two frames");
        push_goaway(&self.outbox, self.read);
        if time::timeout(ANSWERS_WAIT, self.later.join())
            .await
            .is_err()
        {
            tracing::debug!(count = self.later.len(), "requests are not answered");
        }
    }

    /// The connection ended: a payload that was arriving will not be complete.
    fn lose(&mut self) {
        if let Some(Arriving { pending, room, .. }) = self.arriving.take() {
            let room = room.expect("no receive is in flight any more");
            drop(self.service.on_payload(pending, room, PayloadOutcome::Lost));
        }
    }

    fn arriving(&mut self, id: RequestId) -> Option<&mut Arriving<S::Pending>> {
        let arriving = self.arriving.as_mut()?;
        assert_eq!(arriving.id, id, "one payload arrives at a time");
        Some(arriving)
    }
}

impl<S: Service> Sink for Answering<S> {
    fn on_frame(&mut self, frame: FrameView<'_>) -> Result<(), CloseReason> {
        let FrameView { header, body } = frame;
        match header.kind {
            FrameKind::Request => {}
            FrameKind::Goaway => return Err(CloseReason::Peer),
            kind => return Err(CloseReason::UnexpectedFrame(kind)),
        }
        assert!(self.arriving.is_none(), "one payload arrives at a time");
        self.read += 1;
        let request = RequestHead {
            connection: self.id,
            op: header.code,
            body,
            payload_len_bytes: header.payload.len_bytes,
            payload_crc32c: header.payload.crc32c,
            is_message: false,
        };
        match self.service.on_request(request) {
            Intake::Answer(response) => self.answer(header.id, response),
            Intake::Later(response) => self.answer_later(header.id, response),
            Intake::Receive { pending, room } => {
                let len = header.payload.len_bytes as usize;
                assert!(
                    0 < len && len <= room.len(),
                    "a service makes room for the payload"
                );
                self.arriving = Some(Arriving {
                    id: header.id,
                    pending,
                    room: Some(room),
                });
            }
        }
        Ok(())
    }

    fn on_staged(&mut self, id: RequestId, offset: usize, bytes: &[u8]) {
        if let Some(arriving) = self.arriving(id) {
            arriving
                .room
                .as_mut()
                .expect("no receive is in flight")
                .place(offset, bytes);
        }
    }

    fn on_payload_end(&mut self, id: RequestId, verdict: PayloadVerdict) {
        let Some(Arriving { pending, room, .. }) = self.arriving.take() else {
            return;
        };
        let outcome = match verdict {
            PayloadVerdict::Intact => PayloadOutcome::Intact,
            PayloadVerdict::Corrupt { .. } => PayloadOutcome::Corrupt,
        };
        let room = room.expect("no receive is in flight");
        match self.service.on_payload(pending, room, outcome) {
            Answer::Now(response) => self.answer(id, response),
            Answer::Later(response) => self.answer_later(id, response),
        }
    }

    fn lend(&mut self, id: RequestId) -> Option<Room> {
        self.arriving(id)?.room.take()
    }

    fn give_back(&mut self, id: RequestId, room: Room, stopped: bool) -> Result<(), CloseReason> {
        let arriving = self
            .arriving(id)
            .expect("what was lent belongs to an arrival");
        arriving.room = Some(room);
        if stopped {
            Err(CloseReason::Stalled)
        } else {
            Ok(())
        }
    }

    fn stop(&self) -> impl Future<Output = ()> + use<S> {
        time::sleep(self.stall_timeout)
    }

    fn retire(&self) -> impl Future<Output = ()> + use<S> {
        let retire = self.retire.clone();
        poll_fn(move |cx| retire.poll(cx.waker()))
    }

    fn is_ready(&self) -> bool {
        self.outbox.pending_bytes() <= self.reply_bytes_max
    }

    async fn ready(&self) {
        self.outbox.drained_below(self.reply_bytes_max).await;
    }
}
