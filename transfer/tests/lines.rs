//! Lines: a thread that is no core's asks a service, and peers that do not keep to the rules.
#![forbid(unsafe_code)]

mod peer;

use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use lunette_auth::{Encryption, Secrets};
use lunette_runtime::arena::{Region, SharedMemory};
use lunette_runtime::{CoreOptions, Idle, arena, block_on, spawn_local, time};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::limits::BODY_BYTES_MAX;
use lunette_transfer::{
    Answer, CallError, CloseReason, Connection, Drain, Guard, Intake, Line, LineSink, Payload,
    PayloadOutcome, REPLY_BYTES_MAX, RequestHead, Response, Room, ServeOptions, Service, serve,
};
use lunette_transfer_proto::frame::{FrameKind, encode_frame};
use lunette_transfer_proto::receiver::{Receiver, ReceiverLimits, Step, WireFault};

use peer::{SECOND, fake_peer, goaway, hello, listen, next_request, response, send};

/// Is answered with a payload as long as the body says.
const FILL: u16 = 500;
const NO_GUARD: Option<&Guard> = None;

fn run<F: Future + 'static>(start: impl FnOnce() -> F) -> F::Output {
    let options = CoreOptions {
        idle: Idle::Efficient,
        ..CoreOptions::default()
    };
    block_on(None, options, start).expect("a core")
}

fn bytes_of(len: usize) -> Vec<u8> {
    let byte = |index: usize| u8::try_from(index * 7 % 251).expect("small");
    (0..len).map(byte).collect()
}

fn region_of(len: usize) -> Region {
    let mut region = arena().alloc(len.max(1)).expect("room");
    region.as_mut_slice()[..len].copy_from_slice(&bytes_of(len));
    region.freeze().slice(0, len)
}

/// Answers with the body that it was sent, and with the checksum of the payload behind it.
#[derive(Default)]
struct Mirror {
    /// Corrupts the checksum of what it sends.
    lies: Cell<bool>,
    open: Cell<usize>,
}

impl Service for Mirror {
    type Pending = (u16, Vec<u8>, usize);

    fn on_request(&self, request: RequestHead<'_>) -> Intake<Self::Pending> {
        let (len, body) = (request.payload_len_bytes as usize, request.body.to_vec());
        if len > 0 {
            return Intake::Receive {
                pending: (request.op, body, len),
                room: Room::whole(arena().alloc(len).expect("room")),
            };
        }
        let payload = (request.op == FILL).then(|| {
            let len = u32::from_le_bytes(*body.first_chunk().expect("a length"));
            let region = region_of(len as usize);
            let crc = crc32c(region.as_slice()) ^ u32::from(self.lies.get());
            Payload::region(region, crc)
        });
        Intake::Answer(Response {
            status: request.op,
            body,
            payload,
        })
    }

    fn on_payload(&self, pending: Self::Pending, room: Room, outcome: PayloadOutcome) -> Answer {
        let (status, mut body, len) = pending;
        let region = room.into_region().freeze().slice(0, len);
        body.extend(crc32c(region.as_slice()).to_le_bytes());
        let status = if outcome == PayloadOutcome::Intact {
            status
        } else {
            u16::MAX
        };
        Response {
            status,
            body,
            payload: None,
        }
        .into()
    }

    fn on_connections(&self, open: usize) {
        self.open.set(open);
    }
}

fn start(connections_max: usize, guard: Option<Guard>) -> (SocketAddr, Rc<Mirror>) {
    let (listener, address) = listen();
    let mirror = Rc::new(Mirror::default());
    let options = ServeOptions {
        guard,
        reply_bytes_max: REPLY_BYTES_MAX,
        hello: hello(),
        connections_max,
        handshake_timeout: SECOND,
        stall_timeout: SECOND,
    };
    let serving = serve(listener, Rc::clone(&mirror), options, Drain::default());
    drop(spawn_local(serving));
    (address, mirror)
}

async fn line(address: SocketAddr) -> Line {
    let line = Line::connect(address, hello(), SECOND, NO_GUARD).await;
    line.expect("it answers").expect("nothing is sealed")
}

/// What a thread does, while this core goes on.
async fn on_thread<T: Send + 'static>(does: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(does);
    while !thread.is_finished() {
        time::sleep(Duration::from_micros(200)).await;
    }
    thread.join().expect("no panic")
}

/// An answer, as it has come so far.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    status: u16,
    body: Vec<u8>,
    payload_len: usize,
    payload: Vec<u8>,
}

impl LineSink for Told {
    fn on_answer(&mut self, status: u16, body: &[u8], payload_len_bytes: usize) {
        (self.status, self.payload_len) = (status, payload_len_bytes);
        self.body.extend(body);
    }

    fn on_payload(&mut self, bytes: &[u8]) {
        assert!(!bytes.is_empty(), "it is told of nothing");
        self.payload.extend(bytes);
    }
}

/// Waits for the answer.
fn answer(line: &mut Line) -> Result<(Told, Result<(), CallError>), CloseReason> {
    let mut told = Told::default();
    loop {
        if let Some(ended) = line.look(&mut told)? {
            return Ok((told, ended));
        }
        line.sleep(Duration::from_secs(60));
    }
}

fn fill(line: &mut Line, len: usize, room_bytes: u32) -> (Told, Result<(), CallError>) {
    let len = u32::try_from(len).expect("short").to_le_bytes();
    let asked = line.ask(FILL, |out| out.extend(len), room_bytes);
    asked.expect("it is open");
    answer(line).expect("it answers")
}

#[test]
fn requests_and_answers_of_all_lengths() {
    run(|| async {
        let (address, _mirror) = start(8, None);
        let mut line = line(address).await;
        assert_eq!(line.agreement().greeting, b"hi");
        on_thread(move || {
            for (n, len) in (1..).zip([0, 1, 100, 40_000, BODY_BYTES_MAX, 7]) {
                let body = bytes_of(len);
                let asked = line.ask(n, |out| out.extend(&body), 0);
                asked.expect("it is open");
                assert!(!line.is_free(), "it is unanswered");
                let (told, ended) = answer(&mut line).expect("it answers");
                assert_eq!((told.status, &told.body, ended), (n, &body, Ok(())));
                assert!(line.is_free() && line.is_quiet());
            }
            for len in [1, 4096, 300_000, 4 << 20, 5] {
                line.payload(len).copy_from_slice(&bytes_of(len));
                let crc = crc32c(&bytes_of(len));
                let asked = line.ask_with_payload(9, |out| out.push(3), crc);
                asked.expect("it is open");
                assert!(!line.is_unread());
                let (told, ended) = answer(&mut line).expect("it answers");
                let body = [&[3][..], &crc.to_le_bytes()].concat();
                assert_eq!((told.status, told.body, ended), (9, body, Ok(())));
                // What was sent before is not sent again.
                let (told, ended) = fill(&mut line, len, 4 << 20);
                assert_eq!((told.payload_len, ended), (len, Ok(())));
                assert_eq!(told.payload, bytes_of(len));
            }
        })
        .await;
    });
}

/// Is received straight to memory, in pieces of so many bytes, as many as there are.
struct Placed {
    memory: SharedMemory,
    piece: usize,
    pieces: usize,
    /// What has come, whichever way.
    come: usize,
    /// What has been told of it, not placed.
    told: usize,
}

impl Placed {
    fn new(piece: usize, pieces: usize, memory_bytes: usize) -> Self {
        Self {
            memory: SharedMemory::owned(vec![0xee; memory_bytes]),
            piece,
            pieces,
            come: 0,
            told: 0,
        }
    }
}

impl LineSink for Placed {
    fn on_answer(&mut self, _status: u16, _body: &[u8], _payload_len_bytes: usize) {}

    fn on_payload(&mut self, bytes: &[u8]) {
        self.memory.copy_in(self.come, bytes);
        self.come += bytes.len();
        self.told += bytes.len();
    }

    fn place(&self) -> Option<(&SharedMemory, Range<usize>)> {
        let place = self.come / self.piece;
        (place < self.pieces).then(|| (&self.memory, self.come..(place + 1) * self.piece))
    }

    fn on_placed(&mut self, len_bytes: usize) {
        let (_, place) = self.place().expect("there was one");
        assert!(len_bytes > 0 && len_bytes <= place.len(), "inside it");
        self.come += len_bytes;
    }
}

/// Asks for so many bytes, which belong where the sink says.
fn fill_placed(
    line: &mut Line,
    len: usize,
    room_bytes: u32,
    mut sink: Placed,
) -> (Placed, Result<(), CallError>) {
    let asked = u32::try_from(len).expect("short").to_le_bytes();
    let asked = line.ask(FILL, |out| out.extend(asked), room_bytes);
    asked.expect("it is open");
    loop {
        if let Some(ended) = line.look(&mut sink).expect("it answers") {
            return (sink, ended);
        }
        line.sleep(Duration::from_secs(60));
    }
}

#[test]
fn long_payloads_are_received_where_they_belong() {
    run(|| async {
        let (address, mirror) = start(8, None);
        let mut line = line(address).await;
        let mut line = on_thread(move || {
            // One piece, several, some of which end within the payload or behind it, pieces that are shorter than is worth it,
            // and none for the last bytes.
            for (len, piece, pieces) in [
                (1 << 20, 1 << 20, 1),
                (1 << 20, 2 << 20, 1),
                (1 << 20, 100_000, 11),
                (1 << 20, 300_000, 2),
                (300_000, 1000, 300),
                (70_000, 70_000, 0),
                (100, 100, 1),
            ] {
                let sink = Placed::new(piece, pieces, len + 7);
                let (sink, ended) = fill_placed(&mut line, len, 4 << 20, sink);
                assert_eq!((ended, sink.come), (Ok(()), len), "{len} {piece}");
                let all_told = piece < 16 * 1024 || pieces == 0;
                assert_eq!(sink.told == len, all_told, "{len} {piece}: {}", sink.told);
                assert!(line.arrived_bytes() > len);
                let bytes = sink.memory.into_bytes().expect("nobody has it");
                assert!(bytes[..len] == bytes_of(len), "{len} {piece}");
                assert_eq!(bytes[len..], [0xee; 7]);
            }
            line
        })
        .await;
        mirror.lies.set(true);
        on_thread(move || {
            let sink = Placed::new(1 << 20, 1, 1 << 20);
            let (sink, ended) = fill_placed(&mut line, 1 << 20, 1 << 20, sink);
            let error = ended.expect_err("it is damaged");
            assert!(error.is_corruption() && sink.come == 1 << 20, "{error}");
            // What is too long for the room goes nowhere.
            let sink = Placed::new(1 << 20, 1, 1 << 20);
            let (sink, ended) = fill_placed(&mut line, 1 << 20, 100_000, sink);
            let is_long = matches!(ended, Err(CallError::TooLong { .. }));
            assert!(is_long && sink.come == 0, "{ended:?}");
            let bytes = sink.memory.into_bytes().expect("nobody has it");
            assert!(bytes.iter().all(|byte| *byte == 0xee));
        })
        .await;
    });
}

/// A payload that ends before its end is told as such, wherever it is received to.
#[test]
fn a_peer_that_ends_within_a_payload_ends_the_line() {
    run(|| async {
        let (listener, address) = listen();
        let acting = spawn_local(async move {
            let stream = fake_peer(listener).await;
            let id = next_request(&stream).await;
            let whole = response(id, &bytes_of(200_000));
            send(&stream, whole[..150_000].to_vec()).await;
        });
        let mut line = line(address).await;
        let come = on_thread(move || {
            line.ask(1, |_| {}, 200_000).expect("it is open");
            let mut sink = Placed::new(200_000, 1, 200_000);
            let reason = loop {
                match line.look(&mut sink) {
                    Ok(ended) => assert!(ended.is_none(), "it is not whole"),
                    Err(reason) => break reason,
                }
                line.sleep(Duration::from_secs(60));
            };
            let is_cut = matches!(reason, CloseReason::Wire(fault) if fault.is_retryable());
            assert!(is_cut && !line.is_free(), "{reason}");
            sink.come
        })
        .await;
        acting.await.expect("no panic");
        assert!((100_000..150_000).contains(&come), "{come}");
    });
}

#[test]
fn what_is_damaged_or_too_long_is_told_and_the_line_goes_on() {
    run(|| async {
        let (address, mirror) = start(8, None);
        let mut line = line(address).await;
        mirror.lies.set(true);
        let mut line = on_thread(move || {
            let (told, ended) = fill(&mut line, 70_000, 70_000);
            assert_eq!(told.payload.len(), 70_000, "it is told before it is known");
            let error = ended.expect_err("it is damaged");
            assert!(error.is_corruption() && error.is_retryable(), "{error}");
            line
        })
        .await;
        mirror.lies.set(false);
        on_thread(move || {
            let (told, ended) = fill(&mut line, 70_000, 69_999);
            assert_eq!(told, Told::default(), "nothing is told of it");
            let expected = CallError::TooLong {
                payload_len_bytes: 70_000,
                room_bytes: 69_999,
            };
            assert_eq!(ended, Err(expected));
            let crc = crc32c(&bytes_of(50)) ^ 1;
            line.payload(50).copy_from_slice(&bytes_of(50));
            let asked = line.ask_with_payload(9, |_| {}, crc);
            asked.expect("it is open");
            let (told, _) = answer(&mut line).expect("it answers");
            assert_eq!(told.status, u16::MAX, "the peer has found out");
            assert_eq!(fill(&mut line, 3, 3).0.payload, bytes_of(3));
        })
        .await;
    });
}

/// Whether a line has ended for the right reason.
type IsExpected = fn(CloseReason) -> bool;

/// What a peer sends before it ends, to who has asked for something; and what the line is to end for.
fn bad_answers(id: RequestId) -> Vec<(Vec<u8>, IsExpected)> {
    let frame = |kind, id| {
        let mut out = Vec::new();
        encode_frame(&mut out, kind, 0, id, b"", None);
        out
    };
    let is_finished = |reason| reason == CloseReason::Peer;
    let is_cut = |reason| matches!(reason, CloseReason::Wire(fault) if fault.is_retryable());
    let is_garbage = |reason| matches!(reason, CloseReason::Wire(WireFault::Frame(_)));
    let is_unasked = |reason| matches!(reason, CloseReason::Call(_));
    let is_misplaced = |reason| matches!(reason, CloseReason::UnexpectedFrame(_));
    let whole = response(id, b"the answer");
    let cut = |len: usize| whole[..len].to_vec();
    let goaway = frame(FrameKind::Goaway, RequestId(0));
    vec![
        (Vec::new(), is_finished),
        (goaway, is_finished),
        (response(RequestId(77), b"x"), is_unasked),
        (frame(FrameKind::Request, id), is_misplaced),
        (cut(whole.len() - 1), is_cut),
        (cut(11), is_cut),
        (vec![0; 64], is_garbage),
    ]
}

#[test]
fn a_peer_that_answers_nonsense_ends_the_line() {
    run(|| async {
        for case in 0..bad_answers(RequestId(0)).len() {
            let (listener, address) = listen();
            let acting = spawn_local(async move {
                let stream = fake_peer(listener).await;
                let id = next_request(&stream).await;
                let (bytes, is_expected) = bad_answers(id).swap_remove(case);
                send(&stream, bytes).await;
                is_expected
            });
            let mut line = line(address).await;
            let reason = on_thread(move || {
                line.ask(1, |_| {}, 100).expect("it is open");
                let reason = answer(&mut line).expect_err("that is no answer");
                assert_eq!(line.look(&mut Told::default()), Err(reason), "and again");
                assert!(!line.is_free() && !line.is_quiet() && !line.is_unread());
                reason
            })
            .await;
            let is_expected = acting.await.expect("no panic");
            assert!(is_expected(reason), "{case}: {reason}");
        }
    });
}

/// What a peer that leaves has read it may answer, and then the line is over; what it has not read is known not to be done.
#[test]
fn a_peer_that_leaves_says_whether_it_has_read_what_was_asked() {
    run(|| async {
        for has_read in [true, false] {
            let (listener, address) = listen();
            let acting = spawn_local(async move {
                let stream = fake_peer(listener).await;
                let id = next_request(&stream).await;
                send(&stream, response(id, b"once")).await;
                let id = next_request(&stream).await;
                send(&stream, goaway(if has_read { 2 } else { 1 })).await;
                time::sleep(Duration::from_millis(20)).await;
                if has_read {
                    send(&stream, response(id, b"twice")).await;
                }
            });
            let mut line = line(address).await;
            on_thread(move || {
                line.ask(1, |_| {}, 100).expect("it is open");
                answer(&mut line).expect("answered").1.expect("whole");
                line.ask(2, |_| {}, 100).expect("it is open");
                let answered = answer(&mut line);
                assert_eq!(line.is_unread(), !has_read);
                if has_read {
                    let (told, ended) = answered.expect("it was read");
                    assert_eq!((&told.payload[..], ended), (&b"twice"[..], Ok(())));
                } else {
                    assert_eq!(answered.expect_err("it was not"), CloseReason::Peer);
                }
                assert!(!line.is_free(), "nothing more is read");
                if has_read {
                    assert_eq!(line.ask(3, |_| {}, 100), Err(CloseReason::Peer));
                    assert!(line.is_unread());
                }
            })
            .await;
            acting.await.expect("no panic");
        }
    });
}

/// The same when the peer ends while a long request is still being sent, which the system refuses then.
#[test]
fn a_peer_that_leaves_while_it_is_asked_is_heard() {
    const LEN: usize = 4 << 20;
    run(|| async {
        let (listener, address) = listen();
        let acting = spawn_local(async move {
            let stream = fake_peer(listener).await;
            let (count, _) = stream.recv(vec![0; 1000], 0, 1000).await;
            count.expect("it is open");
            send(&stream, goaway(0)).await;
        });
        let mut line = line(address).await;
        on_thread(move || {
            line.payload(LEN).fill(7);
            let asked = line.ask_with_payload(1, |_| {}, crc32c(&vec![7; LEN]));
            asked.expect("it is open");
            // By now the peer has ended, without having read what it was sent.
            thread::sleep(Duration::from_millis(50));
            assert_eq!(
                answer(&mut line).expect_err("it was not read"),
                CloseReason::Peer
            );
            assert!(line.is_unread());
        })
        .await;
        acting.await.expect("no panic");
    });
}

/// An answer that comes twice, or unasked, is found when the next one is looked for, or before anything is asked.
#[test]
fn what_a_peer_says_unasked_ends_the_line() {
    run(|| async {
        for is_asked in [true, false] {
            let (listener, address) = listen();
            let acting = spawn_local(async move {
                let stream = fake_peer(listener).await;
                let id = next_request(&stream).await;
                send(&stream, response(id, b"once")).await;
                send(&stream, response(id, b"twice")).await;
                stream
            });
            let mut line = line(address).await;
            on_thread(move || {
                line.ask(1, |_| {}, 100).expect("it is open");
                let (told, ended) = answer(&mut line).expect("the first one");
                assert_eq!((&told.payload[..], ended), (&b"once"[..], Ok(())));
                line.sleep(Duration::from_secs(60));
                if is_asked {
                    line.ask(2, |_| {}, 100).expect("it is open");
                    let reason = answer(&mut line).expect_err("it was answered");
                    assert!(matches!(reason, CloseReason::Call(_)), "{reason}");
                } else {
                    assert!(line.is_free() && !line.is_quiet() && !line.is_free());
                    let asked = line.ask(2, |_| {}, 100);
                    assert!(asked.is_err() && line.is_unread());
                }
            })
            .await;
            drop(acting.await.expect("no panic"));
        }
    });
}

/// What the system does not take at once is sent as the answer is looked for, and who sleeps is woken to go on.
#[test]
fn a_slow_peer_is_sent_a_long_request_bit_by_bit() {
    const LEN: usize = 4 << 20;
    run(|| async {
        let (listener, address) = listen();
        let acting = spawn_local(async move {
            let stream = fake_peer(listener).await;
            let mut bytes = Vec::new();
            while bytes.len() < LEN {
                time::sleep(Duration::from_millis(1)).await;
                let (count, part) = stream.recv(vec![0; 200_000], 0, 200_000).await;
                bytes.extend_from_slice(&part[..count.expect("it is open")]);
            }
            // The payload is behind the head.
            let payload = bytes.split_off(bytes.len() - LEN);
            let mut receiver = Receiver::new(ReceiverLimits::open(4 << 20));
            let Ok(Step::Frame(frame)) = receiver.step(&mut &bytes[..]) else {
                panic!("no request");
            };
            send(&stream, response(frame.header.id, b"all of it")).await;
            payload
        });
        let mut line = line(address).await;
        on_thread(move || {
            line.payload(LEN).copy_from_slice(&bytes_of(LEN));
            let crc = crc32c(&bytes_of(LEN));
            let asked = line.ask_with_payload(9, |_| {}, crc);
            asked.expect("it is open");
            let (_, ended) = answer(&mut line).expect("it answers");
            assert!(matches!(ended, Err(CallError::TooLong { .. })), "{ended:?}");
        })
        .await;
        assert!(acting.await.expect("no panic") == bytes_of(LEN));
    });
}

#[test]
fn lines_are_authenticated_and_there_are_none_where_all_is_sealed() {
    let guard = |encryption, epoch| {
        let secrets = Secrets::parse(&[7; 32]).expect("long enough");
        Guard::new(secrets, epoch).with_encryption(encryption)
    };
    run(move || async move {
        for (encryption, is_open) in [(Encryption::Optional, true), (Encryption::Required, false)] {
            let (address, _mirror) = start(8, Some(guard(encryption, 1)));
            let ours = guard(Encryption::Optional, 1);
            let line = Line::connect(address, hello(), SECOND, Some(&ours)).await;
            let line = line.expect("it answers");
            assert_eq!(line.is_some(), is_open);
            if let Some(mut line) = line {
                let (told, _) = on_thread(move || fill(&mut line, 9, 9)).await;
                assert_eq!(told.payload, bytes_of(9));
            }
            let unknown = Line::connect(address, hello(), SECOND, None).await;
            assert!(unknown.is_err(), "who proves nothing has none");
        }
    });
}

/// Lines are beside connections, and do not take their place.
#[test]
fn lines_have_half_of_a_houses_room() {
    run(|| async {
        let (address, mirror) = start(4, None);
        let mut lines = Vec::new();
        for _ in 0..2 {
            lines.push(line(address).await);
        }
        let mut third = line(address).await;
        on_thread(move || {
            // Whether it finds out before it asks, or when it waits.
            third.sleep(Duration::from_secs(60));
            assert!(!third.is_quiet());
        })
        .await;
        for mut line in lines {
            let (told, _) = on_thread(move || fill(&mut line, 9, 9)).await;
            assert_eq!(told.payload, bytes_of(9));
        }
        while mirror.open.get() > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        let mut connections = Vec::new();
        for _ in 0..4 {
            let connection = Connection::connect(address, hello(), SECOND).await;
            connections.push(connection.expect("there is room for all"));
        }
    });
}
