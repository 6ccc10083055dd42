//! Answers whose bytes come while they are sent.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::arena::Region;
use lunette_runtime::vectored::Pin;
use lunette_runtime::{JoinHandle, arena, spawn_local, time};
use lunette_runtime_core::checksum::crc32c;
use lunette_transfer::{
    Answer, Attachments, CallFailure, Connection, Drain, Feed, Intake, Later, Payload,
    PayloadOutcome, Reply, RequestHead, Response, Room, Service, serve,
};

use super::peer::{SECOND, listen};
use super::{connect, options, run};

const PIECE: usize = 100_000;
const PIECES: usize = 10;
const LEN: usize = PIECE * PIECES;
/// What is answered with bytes that are fed; all else at once.
const FED: u16 = 1;

fn pattern() -> Vec<u8> {
    (0..251).cycle().take(LEN).collect()
}

fn piece(place: usize) -> Region {
    let mut region = arena().alloc(PIECE).expect("room");
    let bytes = &pattern()[place * PIECE..][..PIECE];
    region.as_mut_slice().copy_from_slice(bytes);
    region.freeze()
}

/// Whoever asks is answered with bytes that the test feeds.
#[derive(Default)]
struct Feeding {
    feeds: Rc<RefCell<Vec<Feed>>>,
    /// What answers are pinned with: one more for each that has not been sent.
    pins: Rc<()>,
    open: Cell<usize>,
}

impl Service for Feeding {
    type Pending = ();

    fn on_request(&self, request: RequestHead<'_>) -> Intake<()> {
        let status = request.op;
        if status != FED {
            return Intake::Answer(Response {
                status,
                ..Response::default()
            });
        }
        let feeds = Rc::clone(&self.feeds);
        let pin = Pin::new(Rc::clone(&self.pins));
        Intake::Later(Later::new(async move {
            let (payload, feed) = Payload::fed(LEN, crc32c(&pattern()));
            feeds.borrow_mut().push(feed);
            Response {
                status,
                payload: Some(payload.pinned(pin)),
                ..Response::default()
            }
        }))
    }

    fn on_payload(&self, (): (), _: Room, _: PayloadOutcome) -> Answer {
        Response::default().into()
    }

    fn on_connections(&self, open: usize) {
        self.open.set(open);
    }
}

impl Feeding {
    /// The feed of the next answer that is begun.
    async fn begun(&self) -> Feed {
        loop {
            if let Some(feed) = self.feeds.borrow_mut().pop() {
                return feed;
            }
            time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn start(drain: Drain) -> (SocketAddr, Rc<Feeding>) {
    let (listener, address) = listen();
    let service = Rc::new(Feeding::default());
    let options = options(2);
    drop(spawn_local(serve(
        listener,
        Rc::clone(&service),
        options,
        drain,
    )));
    (address, service)
}

fn ask(connection: &Connection, op: u16) -> JoinHandle<Result<Reply, CallFailure>> {
    let connection = connection.clone();
    spawn_local(async move {
        let room = (op == FED).then(|| Room::whole(arena().alloc(LEN).expect("room")));
        let attachments = Attachments {
            room,
            ..Attachments::default()
        };
        connection.call(op, |_| {}, attachments, 20 * SECOND).await
    })
}

/// A few turns of the loop, and what they send.
async fn pause() {
    time::sleep(Duration::from_millis(2)).await;
}

fn is_whole(reply: Result<Reply, CallFailure>) -> bool {
    let reply = reply.expect("a reply");
    let room = reply.room.expect("the room comes back");
    room.as_slice() == pattern()
}

#[test]
fn what_an_answer_is_pinned_with_is_kept_until_it_has_been_sent() {
    run(|| async {
        let (address, service) = start(Drain::default());
        let connection = connect(address).await;
        let pins = || Rc::strong_count(&service.pins) - 1;
        // Whole, and cut short.
        for pieces in [PIECES, 1] {
            let asked = ask(&connection, FED);
            let mut feed = service.begun().await;
            assert_eq!(pins(), 1);
            for place in 0..pieces {
                pause().await;
                assert_eq!(pins(), 1, "before piece {place}");
                feed.push(piece(place));
            }
            drop(feed);
            let answered = asked.await.expect("no panic");
            assert_eq!(answered.is_ok(), pieces == PIECES);
            let deadline = time::now() + 20 * SECOND;
            while pins() > 0 {
                assert!(time::now() < deadline, "it is let go of");
                pause().await;
            }
        }
    });
}

#[test]
fn what_is_fed_is_sent_as_it_comes_and_the_rest_waits_behind_it() {
    run(|| async {
        let (address, service) = start(Drain::default());
        let connection = connect(address).await;
        let first = ask(&connection, FED);
        let mut feed = service.begun().await;
        feed.push(piece(0));
        pause().await;
        let sent_bytes = arena().used_bytes();
        let second = ask(&connection, FED);
        let mut other = service.begun().await;
        let small = ask(&connection, 7);
        for place in 0..PIECES {
            other.push(piece(place));
        }
        drop(other);
        for place in 1..PIECES {
            assert!(!first.is_finished() && !small.is_finished() && !second.is_finished());
            feed.push(piece(place));
            pause().await;
        }
        assert!(
            sent_bytes <= LEN + PIECE + PIECE,
            "a piece that is sent is let go of"
        );
        drop(feed);
        assert!(is_whole(first.await.expect("no panic")));
        assert_eq!(small.await.expect("no panic").expect("a reply").status, 7);
        assert!(is_whole(second.await.expect("no panic")));
        drop(connection);
        while service.open.get() > 0 {
            pause().await;
        }
        assert_eq!(arena().used_bytes(), 0, "nothing is leaked");
    });
}

#[test]
fn what_is_not_fed_to_its_end_is_damage_and_the_connection_goes_on() {
    run(|| async {
        let (address, service) = start(Drain::default());
        let connection = connect(address).await;
        for fed in [0, 1, PIECES - 1] {
            let asked = ask(&connection, FED);
            let mut feed = service.begun().await;
            (0..fed).for_each(|place| feed.push(piece(place)));
            pause().await;
            drop(feed);
            let failure = asked.await.expect("no panic");
            let failure = failure.expect_err("a part of it never came");
            assert!(failure.error.is_corruption() && failure.error.is_retryable());
            assert!(failure.room.is_some());
            let next = ask(&connection, 7).await.expect("no panic");
            assert_eq!(next.expect("a reply").status, 7);
        }
    });
}

#[test]
fn an_answer_that_is_being_fed_is_ended_before_its_connection_is() {
    run(|| async {
        let drain = Drain::default();
        let (address, service) = start(drain.clone());
        let connection = connect(address).await;
        let asked = ask(&connection, FED);
        let mut feed = service.begun().await;
        feed.push(piece(0));
        pause().await;
        drain.begin();
        pause().await;
        (1..PIECES).for_each(|place| feed.push(piece(place)));
        assert!(is_whole(asked.await.expect("no panic")));
        while service.open.get() > 0 {
            pause().await;
        }
    });
}

#[test]
fn who_is_gone_is_fed_no_more() {
    run(|| async {
        let (address, service) = start(Drain::default());
        let connection = connect(address).await;
        let asked = ask(&connection, FED);
        let mut feed = service.begun().await;
        feed.push(piece(0));
        pause().await;
        asked.abort();
        drop(connection);
        feed.push(piece(1));
        while service.open.get() > 0 {
            pause().await;
        }
        (2..PIECES).for_each(|place| feed.push(piece(place)));
        assert_eq!(arena().used_bytes(), 0, "nothing is kept for who is gone");
    });
}
