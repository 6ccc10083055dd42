//! Requests of a client, one function each: what is sent, and what its asker is told of the answer.
//!
//! Where nothing can have been done, because no connection was there or the node refused or did not read it, the asker
//! is told so and tries again. Where a connection ended after a write or a removal was sent, nobody
//! knows, and it is told that.

use std::cell::Cell;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::asker::{OperationId, PAUSE, RESEND, ReadAnswer};
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::directory::{
    Answer, AnswerMessage, Ask, AskMessage, BytesReply, ChangeMessage, ClearReply, CommitMessage,
    Found, GetMessage, Peek, PeekMessage, PeekReply, ReadMessage, StripedReply, WriteMessage,
};
use lunette_kvstore_proto::message::{FormatVersion, FormatVersions, MessageFault, Op, Status};
use lunette_kvstore_proto::owner::{WriteAnswer, WriteAsk};
use lunette_kvstore_proto::placement::{Seat, has_seat};
use lunette_kvstore_proto::version::{Form, Version};
use lunette_runtime::time;
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;
use lunette_transfer::{Attachments, CallError, CallFailure, ConnectError, Reply, Room};

use super::asking::{Asking, News};
use super::running::{Arrived, LentRoom};
use super::{adapters, one_sided};
use crate::error::StoreErrorKind;
use crate::seats::{Link, SeatFault};
use crate::value::Value;

/// Longest that one request is waited for. The operation's own deadline ends it before, but for a get's room, which is the
/// caller's again when the call is over: calls that have one last no longer than an operation may
/// ([`Asking::get_timeout`]).
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(12);

/// How often it is looked whether anybody still wants what is not answered.
const WANTED_LOOK: Duration = RESEND;

/// In which a core hears what has come while it stood still.
const TURN: Duration = Duration::from_millis(5);

/// What came of a call: a reply, or nothing.
pub(super) enum Called {
    /// In the version of the question.
    Reply(FormatVersion, Reply),
    /// No connection, though one was tried for so long; or the node has not read it. Nothing was done.
    Unsent(Duration),
    /// It was sent, and there is no answer. Of a read, for how long nothing else came from there.
    Unanswered(Duration),
    /// Asked again, it would end the same.
    Never(StoreErrorKind),
}

pub(super) async fn call(
    asking: &Asking,
    seat: Seat,
    op: Op,
    body: impl FnOnce(FormatVersion, &mut Vec<u8>),
    attachments: Attachments,
) -> (Called, Option<Room>) {
    let timeout = match attachments.room {
        Some(_) => asking.get_timeout(),
        None => CALL_TIMEOUT,
    };
    call_within(asking, seat, op, body, (attachments, timeout)).await
}

/// As [`call`], of an answer that is not waited for as long.
pub(super) async fn call_within(
    asking: &Asking,
    seat: Seat,
    op: Op,
    body: impl FnOnce(FormatVersion, &mut Vec<u8>),
    (attachments, timeout): (Attachments, Duration),
) -> (Called, Option<Room>) {
    let (began, is_read) = (time::now(), attachments.room.is_some());
    let link = match connection(asking, seat, is_read).await {
        Ok(link) => link,
        Err(fault) => {
            tracing::debug!(?seat, %fault, "a node cannot be reached");
            asking.stale.raise();
            let called = match fault {
                SeatFault::Versions { theirs } => {
                    let ours = FormatVersions::OURS;
                    Called::Never(StoreErrorKind::Versions { ours, theirs })
                }
                _ => Called::Unsent(time::now().since(began)),
            };
            return (called, attachments.room);
        }
    };
    let version = link.version;
    let body = |out: &mut Vec<u8>| body(version, out);
    let silent_for = Cell::new(Duration::ZERO);
    let silence = async {
        if !is_read {
            pending().await
        }
        silent_for.set(silence(asking, seat, &link).await);
    };
    let called = link.call_until(op.code(), body, attachments, timeout, silence);
    match called_of(asking, seat, version, called.await) {
        (Called::Unanswered(_), room) => (Called::Unanswered(silent_for.get()), room),
        called => called,
    }
}

/// The connection to a seat. A read waits no longer for one than for what comes over it.
async fn connection(asking: &Asking, seat: Seat, is_read: bool) -> Result<Link, SeatFault> {
    if let Some(link) = asking.seats.live(seat) {
        return Ok(link);
    }
    let connecting = asking.seats.connection(seat);
    if !is_read {
        return connecting.await;
    }
    let connected = Box::pin(time::timeout(asking.patience(seat), connecting)).await;
    connected.unwrap_or(Err(ConnectError::TimedOut.into()))
}

/// Ends when nothing has come over a connection for as long as a read waits for that, which it returns.
async fn silence(asking: &Asking, seat: Seat, link: &Link) -> Duration {
    loop {
        let (heard, patience) = (link.heard(), asking.patience(seat));
        time::sleep(patience).await;
        // What came while this very core stood still is heard first.
        time::sleep(TURN).await;
        if link.heard() == heard {
            tracing::debug!(?seat, ?patience, "a node says nothing");
            return patience;
        }
    }
}

/// What a call comes to; `None`, and it is dropped, a moment after nobody wants it any more. A home that hears that its asker has
/// gone on answers no more, and the connection is in use for as long as the call.
async fn while_wanted(
    mut call: Pin<&mut impl Future<Output = Called>>,
    is_wanted: impl Fn() -> bool,
) -> Option<Called> {
    loop {
        match time::timeout(WANTED_LOOK, call.as_mut()).await {
            Ok(called) => return Some(called),
            Err(_late) if is_wanted() => {}
            Err(_late) => return None,
        }
    }
}

/// As [`call`], of what brings no bytes and may be asked twice: by a message, where that can be.
async fn call_again(
    asking: &Rc<Asking>,
    seat: Seat,
    op: Op,
    body: impl Fn(FormatVersion, &mut Vec<u8>),
) -> Called {
    match adapters::ask(asking, seat, op, &body).await {
        Some(called) => called,
        None => {
            call(asking, seat, op, &body, Attachments::default())
                .await
                .0
        }
    }
}

/// What a call came to, and its room.
pub(super) fn called_of(
    asking: &Asking,
    seat: Seat,
    version: FormatVersion,
    called: Result<Reply, CallFailure>,
) -> (Called, Option<Room>) {
    match called {
        Ok(mut reply) => {
            let room = reply.room.take();
            if Status::from_code(reply.status) == Status::WrongSeat {
                asking.stale.raise();
            }
            (Called::Reply(version, reply), room)
        }
        Err(failure) => {
            tracing::debug!(?seat, error = %failure.error, "a request was not answered");
            let called = match failure.error {
                CallError::TooLong { .. } | CallError::RequestTooLong { .. } => {
                    Called::Never(failure.error.into())
                }
                CallError::Disconnected(_) => {
                    asking.stale.raise();
                    Called::Unanswered(Duration::ZERO)
                }
                CallError::NotRead => {
                    asking.stale.raise();
                    Called::Unsent(Duration::ZERO)
                }
                _ => Called::Unanswered(Duration::ZERO),
            };
            (called, failure.room)
        }
    }
}

/// With a room for the answer's bytes.
pub(super) const fn into(room: Room) -> Attachments {
    Attachments {
        payload: None,
        room: Some(room),
        arrange: None,
    }
}

/// Whether asking again never helps.
const fn is_final(status: Status) -> bool {
    matches!(
        status,
        Status::BadRequest | Status::Unsupported | Status::Internal | Status::Other(_)
    )
}

/// Gets an object by way of its home.
pub(super) async fn find(
    asking: Rc<Asking>,
    id: OperationId,
    (seat, epoch): (Seat, Epoch),
    request: RequestId,
    lent: LentRoom,
) {
    let Some(key) = asking.key_of(id) else {
        // It was given up, or has ended.
        return;
    };
    let message = GetMessage {
        epoch,
        asker: asking.id(),
        request,
        to: seat,
        namespace: asking.namespace(),
        ranges: asking.ranges_of(id),
        key: Key::new(&key).expect("it was one when the operation began"),
    };
    let write = |version, out: &mut Vec<u8>| message.encode(version, out);
    let fetched = lent.call(async |room| {
        match adapters::fetch_held(&asking, &key, &message.ranges, room).await {
            Ok(called) => called,
            Err(room) => {
                one_sided::fetch(&asking, (seat, Op::Find), write, &message.ranges, room).await
            }
        }
    });
    let Some((called, room)) = fetched.await else {
        return;
    };
    let again = vec![News::Answer(request, Answer::Unavailable)];
    let news = match called {
        Called::Unsent(for_time) | Called::Unanswered(for_time) => {
            vec![News::Unreached(request, for_time)]
        }
        Called::Never(kind) => return end(&asking, id, room, kind),
        Called::Reply(version, reply) => match Status::from_code(reply.status) {
            status @ (Status::Ok | Status::Striped) => match arrived(status, version, &reply) {
                Ok(arrived) => {
                    asking.on_arrived(id, arrived);
                    vec![News::Answer(request, found_at(seat, arrived.version()))]
                }
                Err(fault) => return end(&asking, id, room, StoreErrorKind::BadReply(fault)),
            },
            Status::NotFound => match AnswerMessage::decode(&reply.body) {
                Ok(message) => of_answers(message.answers),
                Err(fault) => return end(&asking, id, room, StoreErrorKind::BadReply(fault)),
            },
            Status::OutOfRange => {
                return end(&asking, id, room, out_of_range(version, &reply.body));
            }
            status if is_final(status) => {
                return end(&asking, id, room, StoreErrorKind::Refused(status));
            }
            _ => again,
        },
    };
    asking.give_back(id, room);
    asking.on_news(news);
}

/// What a get is answered with, where there is an object.
fn arrived(status: Status, version: FormatVersion, reply: &Reply) -> Result<Arrived, MessageFault> {
    if status == Status::Striped {
        return StripedReply::decode(version, &reply.body).map(Arrived::Striped);
    }
    let bytes = BytesReply::decode(version, &reply.body)?;
    Ok(Arrived::Bytes(bytes, reply.payload_len_bytes))
}

fn out_of_range(version: FormatVersion, body: &[u8]) -> StoreErrorKind {
    match BytesReply::decode(version, body) {
        Ok(reply) => StoreErrorKind::OutOfRange {
            object_len_bytes: reply.object_len_bytes as usize,
        },
        Err(fault) => StoreErrorKind::BadReply(fault),
    }
}

fn end(asking: &Asking, id: OperationId, room: Option<Room>, kind: StoreErrorKind) {
    asking.fail(id, kind);
    asking.give_back(id, room);
}

/// What a home that sent the bytes would have answered.
fn found_at(seat: Seat, version: Version) -> Answer {
    Answer::Found(Found {
        version,
        form: Form::Whole,
        len_bytes: 0,
        crc32c: 0,
        held_ms: 0,
        owners: vec![seat],
    })
}

fn of_answers(answers: Vec<(RequestId, Answer)>) -> Vec<News> {
    let answers = answers.into_iter();
    answers
        .map(|(request, answer)| News::Answer(request, answer))
        .collect()
}

/// Reads a copy at its owner.
pub(super) async fn read(
    asking: Rc<Asking>,
    id: OperationId,
    (seat, version): (Seat, Version),
    request: RequestId,
    lent: LentRoom,
) {
    let Some(key) = asking.key_of(id) else {
        // It was given up, or has ended.
        return;
    };
    let message = ReadMessage {
        to: seat,
        version,
        namespace: asking.namespace(),
        ranges: asking.ranges_of(id),
        key: Key::new(&key).expect("it was one when the operation began"),
    };
    let write = |version, out: &mut Vec<u8>| message.encode(version, out);
    let fetched = lent.call(async |room| {
        one_sided::fetch(&asking, (seat, Op::Read), write, &message.ranges, room).await
    });
    let Some((called, room)) = fetched.await else {
        return;
    };
    let answer = match called {
        Called::Unsent(for_time) | Called::Unanswered(for_time) => {
            asking.give_back(id, room);
            return asking.on_news(vec![News::Unreached(request, for_time)]);
        }
        Called::Never(kind) => return end(&asking, id, room, kind),
        Called::Reply(version, reply) => match Status::from_code(reply.status) {
            status @ (Status::Ok | Status::Striped) => match arrived(status, version, &reply) {
                Ok(arrived) => {
                    asking.on_arrived(id, arrived);
                    ReadAnswer::Bytes
                }
                Err(fault) => return end(&asking, id, room, StoreErrorKind::BadReply(fault)),
            },
            Status::Unavailable => ReadAnswer::Unavailable,
            Status::OutOfRange => {
                return end(&asking, id, room, out_of_range(version, &reply.body));
            }
            status if is_final(status) => {
                return end(&asking, id, room, StoreErrorKind::Refused(status));
            }
            _ => ReadAnswer::Absent,
        },
    };
    asking.give_back(id, room);
    asking.on_news(vec![News::Read(request, answer)]);
}

/// Asks a home: this core without a message.
pub(super) async fn ask(asking: Rc<Asking>, seat: Seat, epoch: Epoch, mut asks: Vec<Ask>) {
    if let Some(local) = asking.local_at(seat) {
        let who = (asking.id(), asking.over_below());
        match local.ask(who, epoch, asks).await {
            Ok(answers) => return asking.on_news(of_answers(answers)),
            Err(to_be_sent) => asks = to_be_sent,
        }
    }
    let message = AskMessage {
        epoch,
        asker: asking.id(),
        over_below: asking.over_below(),
        to: seat,
        asks,
    };
    let write = |version, out: &mut Vec<u8>| message.encode(version, out);
    let called = pin!(async {
        if message.asks.iter().all(Ask::is_read) {
            call_again(&asking, seat, Op::Ask, write).await
        } else {
            call(&asking, seat, Op::Ask, write, Attachments::default())
                .await
                .0
        }
    });
    let is_wanted = |ask: &Ask| asking.operation_of(ask.request()).is_some();
    let called = while_wanted(called, || message.asks.iter().any(is_wanted));
    let Some(called) = called.await else {
        return;
    };
    let all = |of: fn(&Ask) -> Answer| {
        let asks = message.asks.iter();
        asks.map(|ask| News::Answer(ask.request(), of(ask)))
            .collect()
    };
    let news = match called {
        Called::Unsent(for_time) => {
            let asks = message.asks.iter();
            asks.map(|ask| News::Unreached(ask.request(), for_time))
                .collect()
        }
        Called::Never(kind) => {
            for ask in &message.asks {
                asking.fail_request(ask.request(), kind);
            }
            return;
        }
        Called::Unanswered(_) => {
            let asks = message.asks.iter();
            asks.map(|ask| match ask {
                // It repeats nothing.
                Ask::Lookup { request, .. } => News::Unreached(*request, Duration::ZERO),
                Ask::Remove { request, .. } => News::Answer(*request, Answer::Interrupted),
            })
            .collect()
        }
        Called::Reply(_, reply) => match Status::from_code(reply.status) {
            Status::Ok => match AnswerMessage::decode(&reply.body) {
                Ok(message) => of_answers(message.answers),
                Err(fault) => {
                    tracing::warn!(%fault, "a node's answer makes no sense");
                    all(|_| Answer::Interrupted)
                }
            },
            _ => all(|_| Answer::Unavailable),
        },
    };
    asking.on_news(news);
}

/// What a home knows of keys at once; `None` if it does not tell soon.
pub(super) async fn peek(
    asking: &Rc<Asking>,
    to: Seat,
    epoch: Epoch,
    keys: Vec<Fingerprint>,
) -> Option<Vec<Peek>> {
    let head = (to, epoch, asking.namespace());
    let count = keys.len();
    let body = |version, out: &mut Vec<u8>| {
        PeekMessage::encode(head, keys.iter().copied(), version, out);
    };
    let called = call_again(asking, to, Op::Peek, body);
    let Called::Reply(_, reply) = time::timeout(RESEND, called).await.ok()? else {
        return None;
    };
    if Status::from_code(reply.status) != Status::Ok {
        return None;
    }
    let mut peeked = Vec::with_capacity(count);
    let decoded = PeekReply::decode(&reply.body, count, |peek| peeked.push(peek));
    if let Err(fault) = decoded {
        tracing::warn!(%fault, "a node's answer makes no sense");
        return None;
    }
    Some(peeked)
}

/// Writes at an owner: what the operation brings, or what was reserved there.
pub(super) async fn write(
    asking: Rc<Asking>,
    id: OperationId,
    seat: Seat,
    request: RequestId,
    ask: WriteAsk,
) {
    let Some(key) = asking.key_of(id) else {
        return;
    };
    asking.sights.is_written_to(&asking, seat);
    let key = Key::new(&key).expect("it was one when the operation began");
    let called = match asking.reserved_of(id) {
        Some(committed) => {
            let message = CommitMessage {
                asker: asking.id(),
                reservation: committed.id,
                to: seat,
                request,
                over_below: asking.over_below(),
                wait_ms: ask.wait_ms,
                hold_ms: committed.hold_ms,
                key,
            };
            let write = |version, out: &mut Vec<u8>| message.encode(version, out);
            let mut committed = Box::pin(async {
                call(&asking, seat, Op::Commit, write, Attachments::default())
                    .await
                    .0
            });
            let is_wanted = || asking.operation_of(request).is_some();
            let Some(called) = while_wanted(committed.as_mut(), is_wanted).await else {
                return;
            };
            called
        }
        None => {
            let Some(value) = asking.send(id) else {
                return;
            };
            let message = WriteMessage {
                kind: ask.kind,
                form: ask.form,
                namespace: ask.namespace,
                wanted: ask.wanted,
                wait_ms: ask.wait_ms,
                retention: ask.retention,
                ..WriteMessage::new((asking.id(), request), asking.over_below(), seat, key)
            };
            let sent = value.call(async |value| {
                let write = |version, out: &mut Vec<u8>| message.encode(version, out);
                adapters::write(&asking, seat, &value, write).await
            });
            let Some(called) = sent.await else {
                return;
            };
            called
        }
    };
    asking.has_called(id);
    match write_answer(called) {
        Ok(answer) => asking.on_news(vec![News::Written(request, answer)]),
        Err(kind) => asking.fail(id, kind),
    }
}

/// What came of a write, or why it never will be.
fn write_answer(called: Called) -> Result<WriteAnswer, StoreErrorKind> {
    let (version, reply) = match called {
        Called::Unsent(_) => return Ok(WriteAnswer::Aborted),
        Called::Unanswered(_) => return Ok(WriteAnswer::Interrupted),
        Called::Never(kind) => return Err(kind),
        Called::Reply(version, reply) => (version, reply),
    };
    match Status::from_code(reply.status) {
        Status::Ok => Ok(WriteAnswer::decode(version, &reply.body)?),
        status => refused_write(status),
    }
}

/// What came of a write that was refused, or why it never will be done.
pub(super) const fn refused_write(status: Status) -> Result<WriteAnswer, StoreErrorKind> {
    Ok(match status {
        Status::WrongSeat => WriteAnswer::Aborted,
        Status::Full => WriteAnswer::Full,
        Status::Unavailable => WriteAnswer::Unavailable,
        Status::NotFound => return Err(StoreErrorKind::ReservationLost),
        status @ (Status::TooLarge
        | Status::PinnedFull
        | Status::OverQuota
        | Status::Unfinished) => {
            return Err(StoreErrorKind::Refused(status));
        }
        status if is_final(status) => return Err(StoreErrorKind::Refused(status)),
        _ => WriteAnswer::Busy,
    })
}

/// Asks a member to remove everything; `None` if it cannot, and another may.
pub(super) async fn clear(
    asking: &Asking,
    message: ChangeMessage,
    until: Time,
) -> Result<Option<ClearReply>, StoreErrorKind> {
    let body = |version, out: &mut Vec<u8>| message.encode(version, out);
    let called = call(asking, message.to, Op::Clear, body, Attachments::default());
    let called = time::timeout(until.since(time::now()), called).await;
    match called {
        Ok((Called::Unsent(_), _)) => Ok(None),
        Err(_) | Ok((Called::Unanswered(_), _)) => Err(StoreErrorKind::Interrupted),
        Ok((Called::Never(kind), _)) => Err(kind),
        Ok((Called::Reply(version, reply), _)) => match Status::from_code(reply.status) {
            Status::Ok => Ok(Some(ClearReply::decode(version, &reply.body)?)),
            Status::Busy | Status::Unavailable | Status::WrongSeat => Ok(None),
            Status::Internal => Err(StoreErrorKind::Interrupted),
            status => Err(StoreErrorKind::Refused(status)),
        },
    }
}

/// Asks an owner for what can be asked twice, until there is an answer: `Busy`, `Full`, a connection that is
/// lost, bytes that are damaged are no answer.
pub(super) async fn ask_owner(
    asking: &Asking,
    seat: Seat,
    op: Op,
    body: impl Fn(FormatVersion, &mut Vec<u8>),
    value: Option<&Value>,
    until: Time,
) -> Result<(FormatVersion, Reply), StoreErrorKind> {
    let mut why = StoreErrorKind::TimedOut;
    loop {
        if time::now() >= until {
            return Err(why);
        }
        match ask_owner_once(asking, seat, op, &body, value, until).await? {
            Said::Answer(version, reply) => return Ok((version, reply)),
            Said::Refusal(status) => why = StoreErrorKind::Refused(status),
            Said::Nothing if time::now() >= until => return Err(why),
            Said::Nothing => {}
        }
        time::sleep(PAUSE).await;
    }
}

/// What an owner says that is asked once.
pub(super) enum Said {
    Answer(FormatVersion, Reply),
    /// It may be asked again.
    Refusal(Status),
    /// It was not reached, or has not answered in time.
    Nothing,
}

/// Asks an owner, as [`ask_owner`] does, once.
///
/// # Errors
/// `Refused(WrongSeat)` if it is a member no more, or what will be answered to whoever asks.
pub(super) async fn ask_owner_once(
    asking: &Asking,
    seat: Seat,
    op: Op,
    body: impl Fn(FormatVersion, &mut Vec<u8>),
    value: Option<&Value>,
    until: Time,
) -> Result<Said, StoreErrorKind> {
    let attachments = Attachments {
        payload: value.and_then(Value::payload),
        room: None,
        arrange: None,
    };
    let called = call(asking, seat, op, &body, attachments);
    match time::timeout(until.since(time::now()), called).await {
        Err(_late) => Ok(Said::Nothing),
        Ok((Called::Never(kind), _)) => Err(kind),
        Ok((Called::Reply(version, reply), _)) => {
            let status = Status::from_code(reply.status);
            Ok(if status.is_retryable() {
                Said::Refusal(status)
            } else {
                Said::Answer(version, reply)
            })
        }
        // Perhaps it is a member no more.
        Ok((Called::Unsent(_) | Called::Unanswered(_), _)) if !has_seat(&asking.map(), seat) => {
            Err(StoreErrorKind::Refused(Status::WrongSeat))
        }
        Ok((Called::Unsent(_) | Called::Unanswered(_), _)) => Ok(Said::Nothing),
    }
}
