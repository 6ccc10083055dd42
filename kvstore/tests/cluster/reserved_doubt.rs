//! Commits of objects in parts, while the home of some of them is out of reach.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, Fetched, PutOptions, Reservation, Reserved,
    StoreErrorKind, Stored, Value,
};
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, time};

use super::scene::{key, pattern, room};
use super::town::{CLIENTS, MEMBER, start_two};

const CUT_OFF: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 4), 7000));
const OTHERS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 5));
const PART: u32 = 10_000;
/// In forty parts.
const LEN: usize = 395_000;
const KEEP: Duration = Duration::from_secs(30);
const KEYS: usize = 6;
const PATIENCE: Duration = Duration::from_secs(60);

fn options(kind: WriteKind) -> PutOptions {
    PutOptions {
        kind,
        stripe_len: Some(PART),
        ..PutOptions::default()
    }
}

/// A client of two members.
async fn connected(idle: Duration) -> ClusterClient {
    loop {
        let options = ClusterClientOptions {
            idle_timeout: idle,
            timeout: Duration::from_millis(300),
            ..ClusterClientOptions::new(vec![MEMBER])
        };
        if let Ok(client) = ClusterClient::connect(options).await
            && client.map().members().len() == 2
        {
            return client;
        }
        time::sleep(Duration::from_millis(50)).await;
    }
}

async fn written(client: &ClusterClient, n: usize) -> Reservation {
    let name = key(n);
    let reserved = client.reserve(&name, LEN, options(WriteKind::Upsert), KEEP);
    let Ok(Reserved::Room(reservation)) = reserved.await else {
        panic!("no room");
    };
    let bytes = Value::new(pattern(n, LEN));
    reservation.write(0, bytes).await.expect("it is written");
    reservation
}

/// What a world's clients and its events tell each other.
#[derive(Default)]
struct Told {
    is_written: Cell<bool>,
    is_cut: Cell<bool>,
    is_mended: Cell<bool>,
    /// How many were committed in the end.
    done: Cell<usize>,
    /// Commits that failed, by object.
    failures: RefCell<Vec<(usize, StoreErrorKind)>>,
}

/// Tries until it is done, or can never be.
async fn commit(mut reservation: Reservation, n: usize, told: &Told) -> bool {
    loop {
        match reservation.commit().await {
            Ok(stored) => {
                assert!(matches!(stored, Stored::Written { .. }), "{stored:?}");
                return true;
            }
            Err(failure) => {
                told.failures.borrow_mut().push((n, failure.error.kind));
                match failure.reservation {
                    Some(again) => reservation = again,
                    None => return false,
                }
            }
        }
        time::sleep(Duration::from_millis(50)).await;
    }
}

/// Writes on and on, all of it in parts.
async fn write_on() {
    let client = connected(PATIENCE).await;
    for n in 1000.. {
        let value = Value::new(pattern(n, LEN));
        let stored = client.put(&key(n), value, options(WriteKind::Put)).await;
        if let Err(error) = stored {
            assert!(error.is_retryable(), "{error}");
        }
    }
}

/// Whether bytes are what was committed, and nothing is there where nothing was.
async fn expect(client: &ClusterClient, n: usize, is_done: bool) {
    let fetched = client.get(&key(n), room(LEN)).await;
    match fetched.expect("it is answered") {
        Fetched::Hit {
            room, len_bytes, ..
        } => {
            assert!(is_done, "{n} was not done");
            assert!(
                room.as_slice()[..len_bytes] == *pattern(n, LEN).as_slice(),
                "{n}"
            );
        }
        Fetched::Miss { .. } => assert!(!is_done, "{n} was done"),
    }
}

/// Two members, the second of which is out of a client's reach for so long while that commits.
struct Scenario {
    cut: Duration,
    /// How long connections of the client stay that it does not use.
    idle: Duration,
    /// Another client fills both members.
    is_busy: bool,
    keys: usize,
}

impl Scenario {
    fn run(self) -> Rc<Told> {
        let mut world = World::new(1, WorldOptions::default());
        let core = CoreOptions::default;
        start_two(&mut world, CUT_OFF);
        let others = world.start(OTHERS, 1, core());
        let _others = self.is_busy.then(|| world.spawn(others, 0, write_on));
        let told = Rc::new(Told::default());
        let clients = world.start(CLIENTS, 1, core());
        let (tells, cut, idle) = (Rc::clone(&told), self.cut, self.idle);
        let done = world.spawn(clients, 0, move || async move {
            let client = connected(idle).await;
            self.commit_all(&client, &tells).await;
        });
        let later = |world: &World, after| world.now() + after;
        let until = later(&world, PATIENCE);
        assert!(world.run_until(until, || told.is_written.get()), "written");
        let until = later(&world, 4 * idle.min(Duration::from_millis(200)));
        world.run_until(until, || false);
        world.cut(CLIENTS, CUT_OFF.ip());
        world.cut(CUT_OFF.ip(), CLIENTS);
        told.is_cut.set(true);
        let until = later(&world, cut);
        world.run_until(until, || false);
        world.mend(CLIENTS, CUT_OFF.ip());
        world.mend(CUT_OFF.ip(), CLIENTS);
        told.is_mended.set(true);
        let until = later(&world, PATIENCE);
        assert!(world.run_until(until, || done.is_there()), "it ends");
        told
    }

    async fn commit_all(self, client: &ClusterClient, told: &Told) {
        let mut reservations = Vec::new();
        for n in 0..self.keys {
            reservations.push(written(client, n).await);
        }
        told.is_written.set(true);
        while !told.is_cut.get() {
            time::sleep(Duration::from_millis(1)).await;
        }
        let all = reservations.into_iter().enumerate();
        let all = all.map(|(n, reservation)| commit(reservation, n, told));
        let are_done = futures_util::future::join_all(all).await;
        while !told.is_mended.get() {
            time::sleep(Duration::from_millis(1)).await;
        }
        for (n, is_done) in are_done.iter().enumerate() {
            if !self.is_busy {
                expect(client, n, *is_done).await;
            }
        }
        told.done
            .set(are_done.iter().filter(|is_done| **is_done).count());
    }
}

/// All of so many failed while nobody could tell whether it was done, and were committed in the end.
fn expect_done(told: &Told, count: usize) {
    let failures = told.failures.borrow();
    for n in 0..count {
        assert!(
            failures.iter().any(|(of, _)| *of == n),
            "{n} cannot be committed"
        );
    }
    for (n, kind) in failures.iter() {
        assert_eq!(*kind, StoreErrorKind::TimedOut, "{n}");
    }
    assert_eq!(told.done.get(), count);
}

/// Connections are there, so that nobody knows whether the second member has got what was sent.
#[test]
fn what_nobody_knows_to_be_there_is_not_committed() {
    let told = Scenario {
        cut: Duration::from_secs(8),
        idle: PATIENCE,
        is_busy: false,
        keys: KEYS,
    }
    .run();
    expect_done(&told, KEYS);
}

/// Connections are not there, so that nothing is done at the second member.
#[test]
fn what_was_committed_stays_while_the_rest_is_tried_again() {
    let told = Scenario {
        cut: Duration::from_secs(8),
        idle: Duration::from_millis(50),
        is_busy: true,
        keys: 1,
    }
    .run();
    expect_done(&told, 1);
}
