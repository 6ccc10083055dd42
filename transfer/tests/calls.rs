//! Calls between two tasks of one core, over loopback: replies, limits, deadlines, lost peers.
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "calls/farewell.rs"]
mod farewell;
#[cfg(test)]
#[path = "calls/fed.rs"]
mod fed;
mod peer;

use std::cell::{Cell, RefCell};
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::arena::{Exposed, Region, RegionMut};
use lunette_runtime::net::TcpStream;
use lunette_runtime::{CoreOptions, Idle, Scope, arena, block_on, can_spawn, spawn_local, time};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::{
    Answer, Arrange, Attachments, CallError, CloseReason, ConnectError, Connection, Drain, Intake,
    Later, Payload, PayloadOutcome, REPLY_BYTES_MAX, RequestHead, Response, Room, ServeOptions,
    Service, serve,
};
use lunette_transfer_proto::frame::{FrameKind, PayloadDigest, encode_frame};
use lunette_transfer_proto::hello::{Handshake, HandshakeFault, Hello, HelloRefusal, VersionRange};

use peer::{SECOND, fake_peer, hello, listen, next_request, response, send};

const MIB: usize = 1 << 20;
/// What is answered by a task.
const LATER: u16 = 900;

fn run<F: Future + 'static>(start: impl FnOnce() -> F) -> F::Output {
    let options = CoreOptions {
        idle: Idle::Efficient,
        ..CoreOptions::default()
    };
    block_on(None, options, start).expect("a core")
}

/// Answers with what it was given; counts the payloads it lost.
#[derive(Default)]
struct Echo {
    corrupt: Cell<u32>,
    lost: Cell<u32>,
    open: Cell<usize>,
    /// Corrupts the checksum of what it sends.
    lies: Cell<bool>,
}

impl Service for Echo {
    type Pending = (u16, usize);

    fn on_request(&self, request: RequestHead<'_>) -> Intake<Self::Pending> {
        let len = request.payload_len_bytes as usize;
        if request.op == LATER {
            return Intake::Later(Later::new(async { Response::default() }));
        }
        if len == 0 {
            let body = request.body.to_vec();
            return Intake::Answer(Response {
                status: request.op,
                body,
                payload: None,
            });
        }
        match arena().alloc(len) {
            Ok(region) => Intake::Receive {
                pending: (request.op, len),
                room: Room::whole(region),
            },
            Err(_) => Intake::Answer(Response {
                status: 500,
                ..Response::default()
            }),
        }
    }

    fn on_payload(&self, pending: (u16, usize), room: Room, outcome: PayloadOutcome) -> Answer {
        let (status, len) = pending;
        let response = match outcome {
            PayloadOutcome::Intact => {
                let region = room.into_region().freeze().slice(0, len);
                let crc = crc32c(region.as_slice()) ^ u32::from(self.lies.get());
                let payload = Some(Payload::region(region, crc));
                Response {
                    status,
                    body: status.to_le_bytes().to_vec(),
                    payload,
                }
            }
            PayloadOutcome::Corrupt => {
                self.corrupt.set(self.corrupt.get() + 1);
                Response {
                    status: 400,
                    ..Response::default()
                }
            }
            PayloadOutcome::Lost => {
                self.lost.set(self.lost.get() + 1);
                Response::default()
            }
        };
        response.into()
    }

    fn on_connections(&self, open: usize) {
        self.open.set(open);
    }
}

fn options(connections_max: usize) -> ServeOptions {
    ServeOptions {
        guard: None,
        reply_bytes_max: REPLY_BYTES_MAX,
        hello: hello(),
        connections_max,
        handshake_timeout: Duration::from_millis(200),
        stall_timeout: Duration::from_millis(50),
    }
}

fn start_echo() -> (SocketAddr, Rc<Echo>) {
    let (listener, address) = listen();
    let service = Rc::new(Echo::default());
    let serving = serve(listener, Rc::clone(&service), options(2), Drain::default());
    drop(spawn_local(serving));
    (address, service)
}

async fn connect(address: SocketAddr) -> Connection {
    Connection::connect(address, hello(), SECOND)
        .await
        .expect("connected")
}

fn pattern(len: usize) -> Region {
    let mut region = arena().alloc(len).expect("room");
    for (index, byte) in region.as_mut_slice().iter_mut().enumerate() {
        *byte = u8::try_from(index % 251).expect("small");
    }
    region.freeze()
}

fn payload(region: &Region) -> Option<Payload> {
    let crc32c = crc32c(region.as_slice());
    Some(Payload::region(region.clone(), crc32c))
}

fn room(len: usize) -> Option<Room> {
    Some(Room::whole(arena().alloc(len).expect("room")))
}

#[test]
fn pipelined_calls_of_all_sizes_get_their_own_replies() {
    run(|| async {
        let (address, service) = start_echo();
        let connection = connect(address).await;
        assert_eq!(connection.agreement().greeting, b"hi");
        let sizes = [
            0,
            1,
            100,
            4096,
            32 * 1024 - 40,
            32 * 1024,
            100_000,
            MIB,
            4 * MIB,
        ];
        let tasks: Vec<_> = (0..200_usize)
            .map(|n| {
                let connection = connection.clone();
                // More calls than the connection allows in flight: some of them wait.
                let len = if n < sizes.len() {
                    sizes[n]
                } else {
                    n * 7 % 5000
                };
                spawn_local(async move {
                    let code = u16::try_from(n).expect("small");
                    let sent = (len > 0).then(|| pattern(len));
                    let attachments = Attachments {
                        payload: sent.as_ref().and_then(payload),
                        room: (len > 0).then(|| room(len).expect("room")),
                        arrange: None,
                    };
                    let body = |out: &mut Vec<u8>| out.extend_from_slice(&code.to_le_bytes());
                    let reply = connection.call(code, body, attachments, 10 * SECOND).await;
                    let reply = reply.expect("a reply");
                    assert_eq!(reply.status, code);
                    match sent {
                        Some(sent) => {
                            assert_eq!(reply.payload_len_bytes as usize, len);
                            let got = reply.room.expect("the room comes back");
                            assert!(got.as_slice() == sent.as_slice(), "{len} bytes");
                        }
                        None => assert_eq!(reply.body, code.to_le_bytes()),
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        drop(connection);
        while service.open.get() > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(arena().used_bytes(), 0, "nothing is leaked");
    });
}

#[test]
fn a_reply_tells_where_its_payload_goes() {
    run(|| async {
        let (address, service) = start_echo();
        let connection = connect(address).await;
        // Received with the frame, and straight to where it goes.
        for len in [100, MIB] {
            let sent = pattern(len);
            let half = || arena().alloc(len / 2).expect("room").expose();
            let all =
                |pieces: &[Exposed]| pieces.iter().flat_map(Exposed::to_vec).collect::<Vec<_>>();
            let halves = [half(), half()];
            let chosen: [fn([Exposed; 2]) -> Option<Room>; 3] = [
                |[first, then]| Some(Room::exposed(vec![then, first])),
                |[first, _]| Some(Room::exposed(vec![first])),
                |_| None,
            ];
            for (n, choose) in (0..).zip(chosen) {
                let told = Rc::new(RefCell::new(Vec::new()));
                let (note, pieces) = (Rc::clone(&told), halves.clone());
                let attachments = Attachments {
                    payload: payload(&sent),
                    room: Some(Room::exposed(halves.to_vec())),
                    arrange: Some(Arrange::by(move |body| {
                        note.borrow_mut().extend_from_slice(body);
                        choose(pieces)
                    })),
                };
                let reply = connection.call(n, |_| {}, attachments, SECOND).await;
                assert_eq!(reply.expect("a reply").payload_len_bytes as usize, len);
                assert_eq!(*told.borrow(), n.to_le_bytes(), "it is told the body");
                let mut there = all(&halves);
                if n == 0 {
                    there.rotate_left(len / 2);
                }
                assert!(there == sent.as_slice(), "{n}: {len} bytes");
                halves
                    .iter()
                    .for_each(|half| half.copy_in(0, &vec![0; len / 2]));
            }
        }
        let never = Arrange::by(|_| panic!("there is no payload"));
        let attachments = Attachments {
            arrange: Some(never),
            ..Attachments::default()
        };
        let reply = connection.call(9, |_| {}, attachments, SECOND).await;
        assert_eq!(reply.expect("a reply").status, 9);
        assert_eq!(service.corrupt.get(), 0);
    });
}

#[test]
fn damaged_payloads_are_refused_on_both_sides_and_the_connection_goes_on() {
    run(|| async {
        let (address, service) = start_echo();
        let connection = connect(address).await;
        for len in [100, MIB] {
            let sent = pattern(len);
            let wrong = Payload::region(sent.clone(), crc32c(sent.as_slice()) ^ 1);
            let attachments = Attachments {
                payload: Some(wrong),
                room: room(len),
                arrange: None,
            };
            let reply = connection
                .call(1, |_| {}, attachments, SECOND)
                .await
                .expect("a reply");
            assert_eq!(reply.status, 400);
            service.lies.set(true);
            let attachments = Attachments {
                payload: payload(&sent),
                room: room(len),
                arrange: None,
            };
            let failure = connection.call(1, |_| {}, attachments, SECOND).await;
            let failure = failure.expect_err("the peer lied about its checksum");
            assert!(failure.error.is_corruption() && failure.error.is_retryable());
            assert!(failure.room.is_some());
            service.lies.set(false);
        }
        assert_eq!(service.corrupt.get(), 2);
        let reply = connection
            .call(7, |_| {}, Attachments::default(), SECOND)
            .await;
        assert_eq!(reply.expect("a reply").status, 7);
    });
}

#[test]
fn payloads_beyond_the_room_or_the_limit_are_typed() {
    run(|| async {
        let (address, _service) = start_echo();
        let connection = connect(address).await;
        let sent = pattern(MIB);
        let attachments = Attachments {
            payload: payload(&sent),
            room: room(MIB - 1),
            arrange: None,
        };
        let failure = connection
            .call(1, |_| {}, attachments, SECOND)
            .await
            .expect_err("too long");
        let expected = CallError::TooLong {
            payload_len_bytes: 1 << 20,
            room_bytes: (1 << 20) - 1,
        };
        assert_eq!(failure.error, expected);
        let sent = pattern(4 * MIB + 1);
        let attachments = Attachments {
            payload: payload(&sent),
            room: None,
            arrange: None,
        };
        let failure = connection
            .call(1, |_| {}, attachments, SECOND)
            .await
            .expect_err("too long");
        assert!(matches!(failure.error, CallError::RequestTooLong { .. }));
        assert!(!failure.error.is_retryable());
        let reply = connection
            .call(7, |_| {}, Attachments::default(), SECOND)
            .await;
        assert_eq!(reply.expect("a reply").status, 7);
    });
}

#[test]
fn a_deadline_in_the_middle_of_a_payload_fences_it_and_the_connection_goes_on() {
    run(|| async {
        let (listener, address) = listen();
        let peer = spawn_local(fake_peer(listener));
        let connection = connect(address).await;
        let peer = peer.await.expect("peer");
        let timeout = Duration::from_millis(30);
        let caller = connection.clone();
        let call = spawn_local(async move {
            let attachments = Attachments {
                payload: None,
                room: room(MIB),
                arrange: None,
            };
            caller.call(1, |_| {}, attachments, timeout).await
        });
        let id = next_request(&peer).await;
        let reply = response(id, pattern(MIB).as_slice());
        send(&peer, reply[..300_000].to_vec()).await;
        let failure = call
            .await
            .expect("no panic")
            .expect_err("the rest never came in time");
        assert_eq!(failure.error, CallError::DeadlineExceeded);
        let room_back = failure.room.expect("the room comes back");
        // The late rest must not reach the room, which is somebody else's now.
        let mut region: RegionMut = room_back.into_region();
        region.as_mut_slice().fill(0xee);
        send(&peer, reply[300_000..].to_vec()).await;
        let caller = connection.clone();
        let call = spawn_local(async move {
            caller
                .call(
                    2,
                    |_| {},
                    Attachments {
                        payload: None,
                        room: room(10),
                        arrange: None,
                    },
                    SECOND,
                )
                .await
        });
        let id = next_request(&peer).await;
        send(&peer, response(id, b"late")).await;
        let reply = call.await.expect("no panic").expect("a reply");
        assert_eq!(&reply.room.expect("room").as_slice()[..4], b"late");
        assert!(region.as_slice().iter().all(|&byte| byte == 0xee));
    });
}

#[test]
fn a_dropped_call_frees_its_room_once_no_receive_is_in_flight() {
    run(|| async {
        let (listener, address) = listen();
        let peer = spawn_local(fake_peer(listener));
        let connection = connect(address).await;
        let peer = peer.await.expect("peer");
        let before = arena().used_bytes();
        for sent_bytes in [0, 20, 300_000] {
            let caller = connection.clone();
            let call = spawn_local(async move {
                let attachments = Attachments {
                    payload: None,
                    room: room(MIB),
                    arrange: None,
                };
                caller.call(1, |_| {}, attachments, 60 * SECOND).await
            });
            let id = next_request(&peer).await;
            let reply = response(id, &vec![5; MIB]);
            send(&peer, reply[..sent_bytes].to_vec()).await;
            time::sleep(Duration::from_millis(5)).await;
            call.abort();
            let deadline = time::now() + SECOND;
            while arena().used_bytes() > before {
                assert!(time::now() < deadline, "the room is freed");
                time::sleep(Duration::from_millis(1)).await;
            }
            send(&peer, reply[sent_bytes..].to_vec()).await;
        }
        let caller = connection.clone();
        let call = spawn_local(async move {
            caller
                .call(
                    2,
                    |_| {},
                    Attachments {
                        payload: None,
                        room: room(10),
                        arrange: None,
                    },
                    SECOND,
                )
                .await
        });
        let id = next_request(&peer).await;
        send(&peer, response(id, b"ok")).await;
        assert!(call.await.expect("no panic").is_ok());
    });
}

#[test]
fn a_peer_that_dies_mid_transfer_fails_every_call_with_its_room() {
    run(|| async {
        let (listener, address) = listen();
        let peer = spawn_local(fake_peer(listener));
        let connection = connect(address).await;
        let peer = peer.await.expect("peer");
        let failures: Rc<RefCell<Vec<CallError>>> = Rc::default();
        let calls: Vec<_> = (0..3)
            .map(|_| {
                let (caller, failures) = (connection.clone(), Rc::clone(&failures));
                spawn_local(async move {
                    let attachments = Attachments {
                        payload: None,
                        room: room(MIB),
                        arrange: None,
                    };
                    let failure = caller.call(1, |_| {}, attachments, 60 * SECOND).await;
                    let failure = failure.expect_err("the peer is gone");
                    assert!(failure.room.is_some());
                    failures.borrow_mut().push(failure.error);
                })
            })
            .collect();
        let id = next_request(&peer).await;
        send(&peer, response(id, &vec![5; MIB])[..1000].to_vec()).await;
        drop(peer);
        for call in calls {
            call.await.expect("no panic");
        }
        for error in failures.borrow().iter() {
            assert!(
                matches!(error, CallError::Disconnected(_)) && error.is_retryable(),
                "{error}"
            );
        }
        let asked = connection.call(1, |_| {}, Attachments::default(), SECOND);
        let failure = asked.await.expect_err("closed");
        assert_eq!(failure.error, CallError::NotRead, "it was not even sent");
    });
}

#[test]
fn a_client_that_dies_or_stalls_mid_payload_loses_nothing_at_the_server() {
    run(|| async {
        let (address, service) = start_echo();
        for stalls in [false, true] {
            let lost_before = service.lost.get();
            let stream = TcpStream::connect(address).await.expect("connected");
            let mut out = Vec::new();
            Handshake::initiator(hello(), time::now() + SECOND).start(&mut out);
            let digest = PayloadDigest {
                len_bytes: 1 << 20,
                crc32c: 0,
            };
            encode_frame(
                &mut out,
                FrameKind::Request,
                1,
                RequestId(1),
                &[],
                Some(digest),
            );
            out.extend_from_slice(&[1; 100_000]);
            send(&stream, out).await;
            if !stalls {
                // Not before the server has read the hello and the request.
                while arena().used_bytes() < MIB {
                    time::sleep(Duration::from_millis(1)).await;
                }
                drop(stream);
            }
            let deadline = time::now() + 5 * SECOND;
            while service.lost.get() == lost_before || service.open.get() > 0 {
                assert!(time::now() < deadline, "stalls: {stalls}");
                time::sleep(Duration::from_millis(1)).await;
            }
        }
        assert_eq!(arena().used_bytes(), 0, "nothing is leaked");
    });
}

#[test]
fn wrong_versions_garbage_and_a_full_house_are_refused_clearly() {
    run(|| async {
        let (address, service) = start_echo();
        let newer = Hello {
            versions: VersionRange { min: 9, max: 9 },
            ..hello()
        };
        let error = Connection::connect(address, newer, SECOND)
            .await
            .expect_err("no version");
        let theirs = VersionRange::OURS;
        let ours = VersionRange { min: 9, max: 9 };
        let expected = HandshakeFault::Refused(HelloRefusal::VersionMismatch { ours, theirs });
        assert_eq!(error, ConnectError::Handshake(expected));

        let stream = TcpStream::connect(address).await.expect("connected");
        send(
            &stream,
            b"GET / HTTP/1.1\r\nHost: somebody-who-is-lost\r\n\r\n".to_vec(),
        )
        .await;
        let (closed, _) = stream.recv(vec![0; 10], 0, 10).await;
        assert!(
            !matches!(closed, Ok(1..)),
            "garbage is not answered: {closed:?}"
        );

        let (one, two) = (connect(address).await, connect(address).await);
        let error = Connection::connect(address, hello(), SECOND)
            .await
            .expect_err("full");
        assert_eq!(
            error,
            ConnectError::Handshake(HandshakeFault::Refused(HelloRefusal::Busy))
        );
        assert!(error.is_backpressure());
        drop((one, two));
        while service.open.get() > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        connect(address).await;
    });
}

#[test]
fn a_connection_that_never_says_hello_is_closed() {
    run(|| async {
        let (address, service) = start_echo();
        let _silent = TcpStream::connect(address).await.expect("connected");
        let deadline = time::now() + 5 * SECOND;
        while service.open.get() == 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        while service.open.get() > 0 {
            assert!(time::now() < deadline);
            time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn an_unknown_reply_ends_the_connection() {
    run(|| async {
        let (listener, address) = listen();
        let peer = spawn_local(fake_peer(listener));
        let connection = connect(address).await;
        let peer = peer.await.expect("peer");
        send(&peer, response(RequestId(77), b"x")).await;
        while connection.closed().is_none() {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert!(matches!(connection.closed(), Some(CloseReason::Call(_))));
    });
}

#[test]
fn draining_finishes_what_has_begun_and_nothing_else() {
    run(|| async {
        let (listener, address) = listen();
        let service = Rc::new(Echo::default());
        let drain = Drain::default();
        let serving = serve(listener, Rc::clone(&service), options(2), drain.clone());
        let serving = spawn_local(serving);
        let connection = connect(address).await;

        // A put whose payload is half there when the drain begins.
        let stream = TcpStream::connect(address).await.expect("connected");
        let bytes = vec![9; MIB];
        let mut out = Vec::new();
        Handshake::initiator(hello(), time::now() + SECOND).start(&mut out);
        let digest = PayloadDigest {
            len_bytes: 1 << 20,
            crc32c: crc32c(&bytes),
        };
        let id = RequestId(1);
        encode_frame(&mut out, FrameKind::Request, 42, id, &[], Some(digest));
        out.extend_from_slice(&bytes[..MIB / 2]);
        send(&stream, out).await;
        while arena().used_bytes() < MIB {
            time::sleep(Duration::from_millis(1)).await;
        }
        drain.begin();
        while connection.closed().is_none() {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(
            connection.closed(),
            Some(CloseReason::Peer),
            "an idle one ends at once"
        );
        assert!(
            TcpStream::connect(address).await.is_err(),
            "nobody is accepted"
        );
        assert!(!serving.is_finished(), "a payload is still arriving");

        send(&stream, bytes[MIB / 2..].to_vec()).await;
        let mut got = Vec::new();
        loop {
            let (count, buffer) = stream.recv(vec![0; 1 << 16], 0, 1 << 16).await;
            match count.expect("received") {
                0 => break,
                count => got.extend_from_slice(&buffer[..count]),
            }
        }
        let echo = got.windows(MIB).any(|window| window == bytes);
        assert!(echo, "what had begun is answered: {} bytes", got.len());
        serving.await.expect("it ends when the last connection has");
    });
}

/// Has the core take no more tasks, as long as this is there.
fn full() -> Scope {
    let others = Scope::new();
    while can_spawn() {
        others.spawn(pending()).expect("there is room");
    }
    others
}

#[test]
fn what_finds_no_task_to_answer_it_ends_its_connection() {
    run(|| async {
        let (address, _) = start_echo();
        let connection = connect(address).await;
        let ask = |op| connection.call(op, |_| {}, Attachments::default(), SECOND * 60);
        assert_eq!(ask(LATER).await.expect("answered").status, 0);
        let others = full();
        assert_eq!(ask(7).await.expect("answered at once").status, 7);
        let failure = ask(LATER).await.expect_err("nobody answers");
        assert!(
            matches!(failure.error, CallError::Disconnected(_)),
            "{failure:?}"
        );
        drop(others);
        time::yield_now().await;
        let connection = connect(address).await;
        let asked = connection.call(LATER, |_| {}, Attachments::default(), SECOND);
        assert_eq!(asked.await.expect("answered").status, 0);
    });
}

#[test]
fn a_connection_without_tasks_is_closed_at_once() {
    run(|| async {
        let (listener, address) = listen();
        let options = ServeOptions {
            handshake_timeout: SECOND * 60,
            ..options(2)
        };
        let serving = serve(
            listener,
            Rc::new(Echo::default()),
            options,
            Drain::default(),
        );
        drop(spawn_local(serving));
        time::yield_now().await;
        // The task of the connection itself, and then that of what it sends.
        for left in [0, 1] {
            let few = Scope::new();
            for _ in 0..left {
                few.spawn(pending()).expect("there is room");
            }
            let others = full();
            drop(few);
            time::yield_now().await;
            let stream = TcpStream::connect(address).await.expect("connected");
            let room = arena().alloc(64).expect("room");
            let (received, _) = stream.recv(room, 0, 64).await;
            assert_eq!(received.ok(), Some(0), "{left} tasks left");
            drop(others);
            time::yield_now().await;
        }
    });
}
