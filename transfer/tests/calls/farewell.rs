//! Peers that leave: what they say that they have read, and what comes of the rest.

use std::cell::Cell;
use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::{JoinHandle, spawn_local, time};
use lunette_transfer::{
    Answer, Attachments, CallError, CallFailure, CloseReason, Connection, Drain, Intake, Later,
    PayloadOutcome, Reply, RequestHead, Response, Room, Service, serve,
};

use super::peer::{SECOND, fake_peer, goaway, listen, next_request, response, send};
use super::{connect, options, room, run};

/// Is answered after some milliseconds.
const SLOW: u16 = 1;
/// Is never answered.
const NEVER: u16 = 2;
const MS: Duration = Duration::from_millis(1);

type Asked = JoinHandle<Result<Reply, CallFailure>>;

fn ask(connection: &Connection, op: u16, timeout: Duration) -> Asked {
    let connection = connection.clone();
    spawn_local(async move {
        let attachments = Attachments {
            room: room(100),
            ..Attachments::default()
        };
        connection.call(op, |_| {}, attachments, timeout).await
    })
}

async fn error_of(asked: Asked) -> CallError {
    let failure = asked.await.expect("no panic").expect_err("not answered");
    assert!(failure.room.is_some());
    failure.error
}

#[test]
fn what_was_not_read_ends_at_once_and_what_was_is_answered() {
    run(|| async {
        let (listener, address) = listen();
        let peer = spawn_local(fake_peer(listener));
        let connection = connect(address).await;
        let peer = peer.await.expect("peer");
        let first = ask(&connection, SLOW, 60 * SECOND);
        let id = next_request(&peer).await;
        let others = [60 * SECOND, 50 * MS, 60 * SECOND];
        let [second, third, unread] = others.map(|timeout| ask(&connection, SLOW, timeout));
        time::sleep(MS).await;
        send(&peer, goaway(3)).await;
        assert_eq!(error_of(unread).await, CallError::NotRead);
        assert!(CallError::NotRead.is_retryable());
        let refused = error_of(ask(&connection, SLOW, SECOND)).await;
        assert_eq!(
            (refused, connection.closed()),
            (CallError::NotRead, Some(CloseReason::Peer))
        );

        assert!(!first.is_finished() && !second.is_finished());
        assert_eq!(
            error_of(third).await,
            CallError::DeadlineExceeded,
            "deadlines are kept"
        );
        send(&peer, response(id, b"read")).await;
        let reply = first.await.expect("no panic").expect("answered");
        assert_eq!(reply.payload_len_bytes, 4);
        assert!(!second.is_finished());
        drop(peer);
        assert_eq!(
            error_of(second).await,
            CallError::Disconnected(CloseReason::Peer)
        );
    });
}

/// Callers that wait for room on the connection do not wait for an answer that may never come.
#[test]
fn who_waits_for_a_slot_is_told_at_once() {
    run(|| async {
        let (listener, address) = listen();
        let peer = spawn_local(fake_peer(listener));
        let connection = connect(address).await;
        let peer = peer.await.expect("peer");
        let in_flight_max = connection.agreement().in_flight_max;
        let read: Vec<Asked> = (0..in_flight_max)
            .map(|_| ask(&connection, NEVER, 60 * SECOND))
            .collect();
        let waiting = ask(&connection, NEVER, 60 * SECOND);
        time::sleep(MS).await;
        send(&peer, goaway(in_flight_max.into())).await;
        assert_eq!(error_of(waiting).await, CallError::NotRead);
        assert!(read.iter().all(|asked| !asked.is_finished()));
        connection.close();
        for asked in read {
            assert_eq!(
                error_of(asked).await,
                CallError::Disconnected(CloseReason::Peer)
            );
        }
    });
}

/// Counts what it has done.
#[derive(Default)]
struct Work {
    begun: Cell<u32>,
    done: Rc<Cell<u32>>,
}

impl Service for Work {
    type Pending = ();

    fn on_request(&self, request: RequestHead<'_>) -> Intake<()> {
        self.begun.set(self.begun.get() + 1);
        let (is_slow, done) = (request.op == SLOW, Rc::clone(&self.done));
        Intake::Later(Later::new(async move {
            if !is_slow {
                pending::<()>().await;
            }
            time::sleep(50 * MS).await;
            done.set(done.get() + 1);
            Response::default()
        }))
    }

    fn on_payload(&self, (): (), _room: Room, _outcome: PayloadOutcome) -> Answer {
        unreachable!("no payload is asked for")
    }
}

/// Served until the drain begins.
fn working() -> (SocketAddr, Rc<Work>, Drain, JoinHandle<()>) {
    let (listener, address) = listen();
    let (service, drain) = (Rc::new(Work::default()), Drain::default());
    let serving = serve(listener, Rc::clone(&service), options(2), drain.clone());
    (address, service, drain, spawn_local(serving))
}

#[test]
fn who_drains_answers_what_it_has_read_and_does_nothing_else() {
    run(|| async {
        let (address, service, drain, serving) = working();
        let connection = connect(address).await;
        let read: Vec<Asked> = (0..3).map(|_| ask(&connection, SLOW, SECOND)).collect();
        while service.begun.get() < 3 {
            time::sleep(MS).await;
        }
        drain.begin();
        let unread = ask(&connection, SLOW, SECOND);
        let unread = error_of(unread).await;
        assert_eq!(
            (unread, service.done.get()),
            (CallError::NotRead, 0),
            "before the others"
        );
        for asked in read {
            asked.await.expect("no panic").expect("answered");
        }
        serving.await.expect("it ends when the last connection has");
        assert_eq!((service.begun.get(), service.done.get()), (3, 3));
    });
}

#[test]
fn who_drains_does_not_wait_for_ever_to_answer() {
    run(|| async {
        let (address, service, drain, serving) = working();
        let connection = connect(address).await;
        let never = ask(&connection, NEVER, 60 * SECOND);
        while service.begun.get() < 1 {
            time::sleep(MS).await;
        }
        drain.begin();
        assert_eq!(
            error_of(never).await,
            CallError::Disconnected(CloseReason::Peer)
        );
        serving.await.expect("it ends when the last connection has");
    });
}
