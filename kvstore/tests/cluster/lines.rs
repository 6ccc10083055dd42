//! Threads that ask homes on other hosts themselves. Here the other hosts are this one, whose memory is not seen.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lunette_auth::Secrets;
use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, FetchedBytes, Got, Lent, NodeCore, PutOptions, StoreError,
    StoreErrorKind, StoreHandle, Stored,
};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::{FormatVersions, Status};
use lunette_kvstore_proto::placement::home_of;
use lunette_kvstore_proto::tenant::Tenant;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::arena::SharedMemory;
use lunette_runtime::{CoreOptions, Placement, Runtime, time};
use lunette_runtime_core::ids::CoreIndex;
use lunette_transfer::CallError;

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key};
use super::strangers::{Counts, Stranger};
use super::threads::{bytes_of, coordinator, empty, lent, node};

const MIB: u64 = 1 << 20;
/// Longest object that a thread gets alone.
const ALONE_BYTES_MAX: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// What a thread does, while this core goes on.
async fn on_thread<T: Send + 'static>(does: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(does);
    while !thread.is_finished() {
        time::sleep(Duration::from_micros(200)).await;
    }
    thread.join().expect("no panic")
}

async fn with_handle<T: Send + 'static>(
    handle: &StoreHandle,
    does: impl FnOnce(&StoreHandle) -> T + Send + 'static,
) -> T {
    let handle = handle.clone();
    on_thread(move || does(&handle)).await
}

fn keys(range: impl Iterator<Item = usize>) -> Vec<Vec<u8>> {
    range.map(key).collect()
}

/// How many of these keys a thread cannot look up by itself.
fn left(handle: &StoreHandle, keys: Vec<Vec<u8>>) -> usize {
    let mut looking = handle.look_up(keys);
    assert!(looking.wait(LONG), "nothing is waited for any more");
    let left = looking.left();
    let answers = looking.finish().wait();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    left
}

/// Waits until a thread has connections to the homes of these keys.
async fn lined(handle: &StoreHandle, keys: Vec<Vec<u8>>) {
    eventually("there are lines", async || {
        let keys = keys.clone();
        with_handle(handle, move |handle| left(handle, keys)).await == 0
    })
    .await;
}

/// A client that sees nobody's memory, with these options otherwise.
async fn client(scene: &Scene, change: impl FnOnce(&mut ClusterClientOptions)) -> ClusterClient {
    let mut options = ClusterClientOptions {
        one_sided_from_bytes: None,
        ..ClusterClientOptions::new(scene.addresses())
    };
    change(&mut options);
    ClusterClient::connect(options).await.expect("a client")
}

fn len(n: usize) -> usize {
    n * 997 % 9000
}

/// Puts objects with these numbers.
fn try_to_put(
    handle: &StoreHandle,
    numbers: impl Iterator<Item = usize>,
    kind: WriteKind,
) -> Vec<Result<Stored, StoreError>> {
    let objects: Vec<_> = numbers.map(|n| (key(n), lent(n, len(n)))).collect();
    let options = PutOptions {
        kind,
        ..PutOptions::default()
    };
    handle.put_all_waiting(objects, options)
}

/// The same; whether each was written.
fn put(handle: &StoreHandle, numbers: impl Iterator<Item = usize>, kind: WriteKind) -> Vec<bool> {
    let stored = try_to_put(handle, numbers, kind).into_iter();
    let written = stored.map(|stored| {
        let stored = stored.expect("stored");
        matches!(stored, Stored::Written { .. })
    });
    written.collect()
}

/// Gets objects with these numbers, with so much room more than there is to each: how many of them the thread had left to cores.
fn get(handle: &StoreHandle, numbers: impl Iterator<Item = usize>, present: usize) -> usize {
    let numbers: Vec<usize> = numbers.collect();
    let (memory, wanted): (Vec<_>, Vec<_>) = numbers
        .iter()
        .map(|&n| {
            let (memory, pieces) = empty(len(n) + 5);
            (memory, (key(n), pieces))
        })
        .unzip();
    let mut fetching = handle.fetch(wanted);
    assert!(fetching.wait(LONG), "nothing is waited for any more");
    let left = fetching.left();
    let got = fetching.finish().wait().finish();
    for ((n, memory), got) in numbers.into_iter().zip(memory).zip(got) {
        let bytes = memory.into_bytes().expect("it is let go of");
        match got.expect("an answer") {
            Got::Hit { len_bytes, .. } => {
                assert!(n < present && len_bytes == len(n), "{n}");
                assert!(bytes[..len_bytes] == bytes_of(n, len_bytes), "{n}");
            }
            Got::Miss { is_known } => {
                assert!(n >= present && is_known, "{n}: {is_known}");
                assert!(bytes.iter().all(|byte| *byte == 0), "{n}");
            }
        }
    }
    left
}

/// The bytes of an object, got with room for as many as is likely.
fn fetched_bytes(handle: &StoreHandle, n: usize) -> Option<Vec<u8>> {
    let room_bytes = handle.likely_bytes().expect("some have been got");
    let memory = SharedMemory::owned(vec![0; room_bytes]);
    let mut fetching = handle.fetch_bytes(&key(n), Lent::whole(&memory));
    assert!(fetching.wait(LONG), "nothing is waited for any more");
    match fetching.finish().wait().expect("an answer")? {
        FetchedBytes::InRoom { len_bytes } => {
            let mut bytes = memory.into_bytes().expect("it is let go of");
            bytes.truncate(len_bytes);
            Some(bytes)
        }
        FetchedBytes::Brought(bytes) => Some(bytes.as_slice().to_vec()),
    }
}

#[test]
fn threads_look_up_get_and_put_by_themselves() {
    run(0, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = client(&scene, |_| {}).await;
        let handle = client.handle().expect("room for a task");
        lined(&handle, keys(0..40)).await;
        with_handle(&handle, |handle| {
            assert_eq!(put(handle, 1..30, WriteKind::Put), [true; 29]);
            let again = put(handle, 20..40, WriteKind::Put);
            assert_eq!(again, [[false; 10], [true; 10]].concat());
            assert_eq!(left(handle, keys(1..80)), 0);
            let present = handle.exists_waiting(keys(1..80));
            for (n, present) in (1..).zip(present) {
                assert_eq!(present, Ok(n < 40), "{n}");
            }
            assert_eq!(get(handle, 1..50, 40), 0);
            for n in 1..40 {
                assert_eq!(get(handle, n..=n, 40), 0, "one alone");
            }
        })
        .await;
        for n in 1..40 {
            scene.expect(&client, n, len(n)).await;
        }
        // Nothing is known of how long a value is before one has been got.
        with_handle(&handle, |handle| {
            assert_eq!(handle.likely_bytes(), None);
            for n in 1..40 {
                let got = handle.get_bytes(key(n)).wait();
                assert_eq!(got, Ok(Some(bytes_of(n, len(n)))));
            }
            for n in 1..45 {
                let bytes = fetched_bytes(handle, n);
                assert_eq!(bytes, (n < 40).then(|| bytes_of(n, len(n))), "{n}");
            }
        })
        .await;
    });
}

/// The core that would carry all that is stopped meanwhile.
#[test]
fn threads_need_no_core() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    node.joined().expect("it joins");
    let runtime = Runtime::start(&Placement::Anywhere(1), CoreOptions::default());
    let runtime = runtime.expect("a core");
    let options = ClusterClientOptions {
        one_sided_from_bytes: None,
        ..ClusterClientOptions::new(vec![node.address()])
    };
    let begun = runtime.spawn_on(CoreIndex(0), move || async move {
        let client = ClusterClient::connect(options).await.expect("a client");
        client.handle().expect("room for a task")
    });
    let handle = begun.expect("it runs").wait().expect("no panic");
    while left(&handle, keys(0..5)) > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    let (go_on, stopped) = mpsc::channel::<()>();
    let (stops, is_stopped) = mpsc::channel();
    let stopping = runtime.spawn_on(CoreIndex(0), move || async move {
        stops.send(()).expect("it is waited for");
        stopped.recv()
    });
    let stopping = stopping.expect("it runs");
    is_stopped.recv().expect("it is");
    assert_eq!(put(&handle, 1..5, WriteKind::Upsert), [true; 4]);
    assert_eq!(get(&handle, 1..8, 5), 0);
    let present = handle.exists_waiting(keys(4..6));
    assert_eq!(present, [Ok(true), Ok(false)]);
    go_on.send(()).expect("it waits");
    assert_eq!(stopping.wait().expect("no panic"), Ok(()));
    assert_eq!(
        handle.get_bytes(key(1)).wait(),
        Ok(Some(bytes_of(1, len(1))))
    );
    // Without its core nobody answers for it.
    drop(runtime);
    let gone = handle.exists_waiting(keys(0..1)).pop().expect("one");
    assert_eq!(
        gone.expect_err("it has ended").kind,
        StoreErrorKind::ShutDown
    );
    node.shut_down().expect("in good order");
}

/// What a thread does not get by itself it gets as it would from a core, and is refused as by one.
#[test]
fn what_is_long_wrong_or_of_many_homes_is_left_to_cores() {
    run(0, || async {
        let scene = Scene::of(5, 64 * MIB).await;
        let client = client(&scene, |_| {}).await;
        let handle = client.handle().expect("room for a task");
        lined(&handle, keys(1..2)).await;
        with_handle(&handle, |handle| {
            assert!(put(handle, 1..40, WriteKind::Put).iter().all(|new| *new));
            assert_eq!(left(handle, keys(1..60)), 59, "they have too many homes");
            assert_eq!(get(handle, 1..60, 40), 59);
            // Longer than its room.
            let (memory, pieces) = empty(len(1) - 1);
            let mut fetching = handle.fetch(vec![(key(1), pieces)]);
            assert!(fetching.wait(LONG) && fetching.left() == 1);
            let got = fetching.finish().wait().finish().pop().expect("one");
            let error = got.expect_err("it does not fit");
            let is_long = matches!(error.kind, StoreErrorKind::Call(CallError::TooLong { .. }));
            assert!(is_long, "{error}");
            assert!(memory.into_bytes().is_ok_and(|bytes| bytes == vec![0; 996]));
            // An object that is long, and one without bytes.
            let long = (key(100), lent(100, ALONE_BYTES_MAX + 1));
            let objects = vec![long, (key(101), Vec::new())];
            let stored = handle.put_all_waiting(objects, PutOptions::default());
            assert!(stored.iter().all(Result::is_ok), "{stored:?}");
            for (n, len) in [(100, ALONE_BYTES_MAX + 1), (101, 0)] {
                let memory = SharedMemory::owned(vec![1; len]);
                let wanted = vec![(key(n), vec![Lent::whole(&memory)])];
                let mut fetching = handle.fetch(wanted);
                assert!(fetching.wait(LONG));
                assert!(len == 0 || fetching.left() == 1, "it is too long");
                let got = fetching.finish().wait().finish();
                let [Ok(Got::Hit { len_bytes, .. })] = got[..] else {
                    panic!("{got:?}");
                };
                assert_eq!(len_bytes, len);
                assert!(memory.into_bytes().expect("let go of") == bytes_of(n, len));
            }
            let wrong = vec![key(1), Vec::new(), vec![7; 100_000]];
            let present = handle.exists_waiting(wrong.clone());
            assert!(present.iter().all(Result::is_err), "{present:?}");
            let objects = wrong
                .into_iter()
                .map(|key| (key, lent(1, 9)))
                .collect::<Vec<_>>();
            let stored = handle.put_all_waiting(objects, PutOptions::default());
            assert!(stored[0].is_ok(), "{stored:?}");
            assert!(stored[1..].iter().all(Result::is_err), "{stored:?}");
            assert!(handle.exists_waiting(Vec::new()).is_empty());
            assert!(handle.fetch(Vec::new()).finish().wait().finish().is_empty());
        })
        .await;
    });
}

/// One alone may be of up to 1 MiB, in whatever pieces; of several each is short, and so are all of them.
#[test]
fn a_thread_gets_a_long_object_alone() {
    run(0, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = client(&scene, |_| {}).await;
        let handle = client.handle().expect("room for a task");
        lined(&handle, keys(0..40)).await;
        let long = [64 * 1024 + 1, 300_000, ALONE_BYTES_MAX];
        with_handle(&handle, move |handle| {
            let objects = (0..).zip(long).map(|(n, len)| (key(n), lent(n, len)));
            let stored = handle.put_all_waiting(objects.collect(), PutOptions::default());
            assert!(stored.iter().all(Result::is_ok), "{stored:?}");
            for (n, len) in (0..).zip(long) {
                for pieces in [1, 2, 7] {
                    let memory = SharedMemory::owned(vec![1; len]);
                    let at = |piece| len * piece / pieces;
                    let pieces = (0..pieces).map(|piece| {
                        let part = at(piece)..at(piece + 1);
                        Lent::part(&memory, part).expect("inside")
                    });
                    let mut fetching = handle.fetch(vec![(key(n), pieces.collect())]);
                    assert!(fetching.wait(LONG) && fetching.left() == 0, "{len}");
                    let got = fetching.finish().wait().finish();
                    let [Ok(Got::Hit { len_bytes, .. })] = got[..] else {
                        panic!("{got:?}");
                    };
                    assert_eq!(len_bytes, len);
                    assert!(memory.into_bytes().expect("let go of") == bytes_of(n, len));
                }
                let got = handle.get_bytes(key(n)).wait().expect("an answer");
                assert!(got == Some(bytes_of(n, len)), "{len}");
                assert_eq!(handle.likely_bytes(), Some(len), "the longest of late");
                assert!(fetched_bytes(handle, n) == Some(bytes_of(n, len)));
                assert!(fetched_bytes(handle, 0) == Some(bytes_of(0, long[0])));
            }
            let wanted = (0..2).map(|n| (key(n), empty(long[n]).1)).collect();
            let mut fetching = handle.fetch(wanted);
            assert!(
                fetching.wait(LONG) && fetching.left() == 2,
                "two are too long"
            );
            // Beside what is missing already, one that is left is not alone.
            let wanted = vec![(key(0), empty(long[0]).1), (key(9), empty(9).1)];
            let mut fetching = handle.fetch(wanted);
            assert!(fetching.wait(LONG) && fetching.left() == 2);
            let got = fetching.finish().wait().finish();
            let is_had = matches!(got[0], Ok(Got::Hit { len_bytes, .. }) if len_bytes == long[0]);
            let is_missed = matches!(got[1], Ok(Got::Miss { is_known: true }));
            assert!(is_had && is_missed, "{got:?}");
        })
        .await;
    });
}

#[test]
fn tenants_namespaces_and_secrets_are_as_of_cores() {
    run(0, || async {
        let secrets = Secrets::parse(&[7; 32]).expect("long enough");
        let scene = Scene::secret(2, 64 * MIB, secrets.clone()).await;
        let of = async |tenant: &str, namespace| {
            let client = client(&scene, |options| {
                options.secrets = Some(secrets.clone());
                options.namespace = namespace;
                if !tenant.is_empty() {
                    options.tenant = Tenant::named(tenant).expect("a name");
                }
            });
            let handle = client.await.handle().expect("room for a task");
            lined(&handle, keys(0..9)).await;
            handle
        };
        let (all, one) = (
            of("", NamespaceKind::Strict).await,
            of("one", NamespaceKind::Cache).await,
        );
        with_handle(&all, |handle| {
            assert_eq!(put(handle, 1..5, WriteKind::Put), [true; 4]);
            assert_eq!(get(handle, 1..9, 5), 0);
        })
        .await;
        with_handle(&one, |handle| {
            assert_eq!(handle.exists_waiting(keys(1..3)), [Ok(false), Ok(false)]);
            assert_eq!(put(handle, 1..3, WriteKind::Put), [true; 2]);
            assert_eq!(get(handle, 1..9, 3), 0);
        })
        .await;
    });
}

/// Members put things at their own node; their homes know where they are, and are asked in vain for them.
#[test]
fn what_members_put_is_at_their_own_node_and_got_by_cores() {
    run(0, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let options = ClusterClientOptions {
            one_sided_from_bytes: None,
            ..ClusterClientOptions::new(Vec::new())
        };
        let core = NodeCore::here().swap_remove(0);
        let inside = core.client(options).await.expect("a client");
        let inside = inside.handle().expect("room for a task");
        assert!(!inside.sends_itself());
        // Its own core is asked for those of which it is the home.
        eventually("there is a line", async || {
            let left = with_handle(&inside, |handle| {
                (0..20).map(|n| left(handle, keys(n..n + 1))).sum::<usize>()
            });
            left.await < 20
        })
        .await;
        let put = with_handle(&inside, |handle| put(handle, 1..40, WriteKind::Put));
        assert_eq!(put.await, [true; 39]);
        let outside = client(&scene, |_| {}).await;
        assert_eq!(scene.held_by(&outside, 1).await, 39);
        let handle = outside.handle().expect("room for a task");
        assert!(handle.sends_itself());
        lined(&handle, keys(1..40)).await;
        let (first, last) = with_handle(&handle, |handle| {
            let mut left = (1..40).map(|n| get(handle, n..=n, 40));
            let first = left.by_ref().take(20).sum::<usize>();
            (first, left.sum::<usize>())
        })
        .await;
        assert!(first < 20, "the first node's own it has: {first}");
        assert!(last <= 19);
        with_handle(&inside, |handle| get(handle, 1..45, 40)).await;
    });
}

/// Members come and go; what threads are told of that, they may have asked nobody for.
#[test]
fn threads_follow_the_map() {
    run(0, || async {
        let mut scene = Scene::of(1, 64 * MIB).await;
        let client = client(&scene, |options| {
            options.idle_timeout = Duration::from_millis(400);
        });
        let client = client.await;
        let handle = client.handle().expect("room for a task");
        lined(&handle, keys(0..1)).await;
        scene.add(64 * MIB).await;
        // It asks this client's core for nothing.
        let observer = scene.client().await;
        // What is under way while somebody leaves may have been done or not.
        let put = async |numbers: Range<usize>| {
            let put = |handle: &StoreHandle| try_to_put(handle, numbers, WriteKind::Upsert);
            let stored = with_handle(&handle, put).await;
            stored.iter().all(Result::is_ok)
        };
        let mut next = 1;
        eventually("the new member is put at", async || {
            next += 8;
            put(next - 8..next).await && scene.held_by(&observer, 2).await > 0
        })
        .await;
        // With it goes what it had, and it is not asked any more.
        scene.remove_first().await;
        eventually("others are put at", async || put(1..9).await).await;
        lined(&handle, keys(1..9)).await;
        let got = with_handle(&handle, |handle| get(handle, 1..9, 9));
        assert_eq!(got.await, 0);
    });
}

/// Nodes that hold nothing, and a handle to a client of theirs.
async fn strangers(
    idle_timeout: Duration,
    timeout: Duration,
) -> (StoreHandle, ClusterClient, Rc<Counts>, Stranger) {
    strangers_of(Rc::default(), idle_timeout, timeout).await
}

async fn strangers_of(
    counts: Rc<Counts>,
    idle_timeout: Duration,
    timeout: Duration,
) -> (StoreHandle, ClusterClient, Rc<Counts>, Stranger) {
    let stranger = Stranger::start(1, FormatVersions::OURS, &counts);
    stranger.join(&[&stranger]);
    let options = ClusterClientOptions {
        idle_timeout,
        timeout,
        one_sided_from_bytes: None,
        ..ClusterClientOptions::new(vec![stranger.address()])
    };
    let client = ClusterClient::connect(options).await.expect("a map");
    let handle = client.handle().expect("room for a task");
    (handle, client, counts, stranger)
}

#[test]
fn lines_are_closed_when_nothing_is_asked_on_them_and_made_again() {
    run(0, || async {
        let (handle, _client, counts, _stranger) =
            strangers(Duration::from_millis(300), LONG).await;
        for _ in 0..2 {
            line_is_there(&handle, &counts).await;
            eventually("they are closed", async || counts.open.get() == 0).await;
        }
    });
}

/// Asks until a thread has a connection of its own, beside its core's.
async fn line_is_there(handle: &StoreHandle, counts: &Counts) {
    eventually("there is a line", async || {
        let asked = with_handle(handle, |handle| handle.exists_waiting(keys(0..1)));
        assert_eq!(asked.await, [Ok(false)]);
        counts.open.get() > 1
    })
    .await;
}

/// A node of before.
#[test]
fn a_home_that_does_not_know_many_writes_is_sent_them_one_by_one() {
    run(0, || async {
        let (handle, _client, counts, _stranger) = strangers(LONG, LONG).await;
        eventually("there is a line", async || {
            let put = with_handle(&handle, |handle| put(handle, 1..3, WriteKind::Put));
            assert_eq!(put.await, [true; 2]);
            counts.open.get() > 1
        })
        .await;
        // The thread learns it, as the core has.
        let put_two = async || {
            let put = with_handle(&handle, |handle| put(handle, 1..3, WriteKind::Put));
            assert_eq!(put.await, [true; 2]);
            (counts.scatters.get(), counts.writes.get())
        };
        let (scatters, writes) = put_two().await;
        let more = put_two().await;
        assert_eq!(more, (scatters, writes + 2));
    });
}

#[test]
fn what_comes_damaged_is_not_got() {
    run(0, || async {
        let (handle, _client, counts, _stranger) = strangers(LONG, LONG).await;
        line_is_there(&handle, &counts).await;
        counts.sends_damaged.set(true);
        for _ in 0..3 {
            let is_asked_and_left = with_handle(&handle, |handle| {
                let mut fetching = handle.fetch(vec![(key(1), empty(100).1)]);
                let is_asked = !fetching.is_over();
                (is_asked, fetching.wait(LONG), fetching.left())
            });
            // The line goes on.
            assert_eq!(is_asked_and_left.await, (true, true, 1));
        }
    });
}

/// What a home answers that makes no sense is nothing: cores ask again, but of a put nobody knows what has become.
#[test]
fn what_makes_no_sense_is_no_answer() {
    run(0, || async {
        let (handle, _client, counts, _stranger) = strangers(LONG, LONG).await;
        line_is_there(&handle, &counts).await;
        counts.makes_no_sense.set(true);
        let asked = with_handle(&handle, |handle| {
            let mut looking = handle.look_up(keys(0..2));
            let is_asked = !looking.is_over();
            assert!(looking.wait(LONG) && looking.left() == 2 && is_asked);
            assert_eq!(looking.finish().wait(), [Ok(false), Ok(false)]);
            let (memory, pieces) = empty(100_000);
            let mut fetching = handle.fetch(vec![(key(1), pieces)]);
            let is_asked = !fetching.is_over();
            assert!(fetching.wait(LONG) && fetching.left() == 1 && is_asked);
            let got = fetching.finish().wait().finish();
            let error = got[0].as_ref().expect_err("a core is not told either");
            assert_eq!(error.kind, StoreErrorKind::Refused(Status::Unsupported));
            assert!(
                memory
                    .into_bytes()
                    .is_ok_and(|bytes| bytes == vec![0; 100_000])
            );
            let mut stored = try_to_put(handle, 1..3, WriteKind::Upsert);
            stored.extend(try_to_put(handle, 3..4, WriteKind::Put));
            stored
        });
        for stored in asked.await {
            let error = stored.expect_err("nobody knows");
            assert_eq!(error.kind, StoreErrorKind::Interrupted);
        }
        assert_eq!(counts.writes.get(), 0, "nothing is written twice");
    });
}

/// Whatever a home says that it takes: a thread sends it no more, and a core says why.
#[test]
fn a_home_that_takes_little_is_sent_no_more() {
    run(0, || async {
        let counts = Rc::new(Counts::default());
        counts.payload_bytes_max.set(Some(700));
        let (handle, _client, counts, _stranger) = strangers_of(counts, LONG, LONG).await;
        let put_of = async |len: usize| {
            with_handle(&handle, move |handle| {
                let objects = vec![(key(1), lent(1, len))];
                let mut stored = handle.put_all_waiting(objects, PutOptions::default());
                stored.pop().expect("one")
            })
            .await
        };
        eventually("there is a line", async || {
            assert!(put_of(700).await.is_ok());
            counts.open.get() > 1
        })
        .await;
        assert!(put_of(700).await.is_ok());
        let scatters = counts.scatters.get();
        let error = put_of(701).await.expect_err("it is too long");
        let is_long = matches!(
            error.kind,
            StoreErrorKind::Call(CallError::RequestTooLong { .. })
        );
        assert!(is_long && counts.scatters.get() == scatters, "{error}");
    });
}

#[test]
fn threads_have_no_lines_if_none_are_wanted() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = client(&scene, |options| options.lines_max = 0).await;
        let handle = client.handle().expect("room for a task");
        for _ in 0..50 {
            let left = with_handle(&handle, |handle| {
                put(handle, 1..3, WriteKind::Upsert);
                left(handle, keys(1..3)) + get(handle, 1..3, 3)
            });
            assert_eq!(left.await, 4);
        }
    });
}

#[test]
fn so_many_threads_ask_one_home_at_the_same_time() {
    run(0, || async {
        let (handle, _client, counts, _stranger) = strangers(LONG, LONG).await;
        let asking: Vec<_> = (0..12)
            .map(|_| {
                let handle = handle.clone();
                thread::spawn(move || {
                    for _ in 0..40 {
                        let present = handle.exists_waiting(keys(0..2));
                        assert_eq!(present, [Ok(false), Ok(false)]);
                    }
                })
            })
            .collect();
        while !asking.iter().all(thread::JoinHandle::is_finished) {
            time::sleep(Duration::from_millis(1)).await;
        }
        for asking in asking {
            asking.join().expect("no panic");
        }
        let most = counts.open_max.get();
        assert!((3..=5).contains(&most), "a core's and up to four: {most}");
    });
}

/// Of what may be done, nobody says that it is not; the rest is asked for again, by a core.
#[test]
fn a_home_that_answers_nothing_is_not_waited_for() {
    run(0, || async {
        let timeout = Duration::from_millis(400);
        let (handle, _client, counts, _stranger) = strangers(LONG, timeout).await;
        line_is_there(&handle, &counts).await;
        counts.is_silent.set(true);
        let asked = with_handle(&handle, |handle| handle.exists_waiting(keys(0..1)));
        assert_eq!(asked.await, [Ok(false)], "as a core finds out");
        counts.is_silent.set(false);
        eventually("there is another line", async || {
            let asked = with_handle(&handle, |handle| {
                let mut looking = handle.look_up(keys(0..1));
                let is_asked = !looking.step();
                looking.wait(LONG) && is_asked
            });
            asked.await
        })
        .await;
        counts.is_silent.set(true);
        let memory = SharedMemory::owned(vec![1; 100]);
        let value = vec![Lent::whole(&memory)];
        let put = with_handle(&handle, move |handle| {
            let mut handing = handle.hand_over(vec![(key(1), value)], PutOptions::default());
            assert!(!handing.wait(Duration::ZERO), "it is sent");
            assert!(handing.wait(LONG), "but not for ever");
            handing.finish().wait().pop().expect("one")
        });
        let error = put.await.expect_err("nobody knows");
        assert_eq!(error.kind, StoreErrorKind::Interrupted);
        assert!(memory.into_bytes().is_ok(), "it is the caller's");
    });
}

/// Threads that ask more homes than they have lines have cores ask the others.
#[test]
fn threads_have_so_many_lines() {
    const HOMES: u64 = 10;
    const LINES_MAX: usize = 6;
    run(0, || async {
        let counts = Rc::new(Counts::default());
        let nodes: Vec<_> = (1..=HOMES)
            .map(|id| Stranger::start(id, FormatVersions::OURS, &counts))
            .collect();
        let all: Vec<_> = nodes.iter().collect();
        nodes.iter().for_each(|node| node.join(&all));
        let options = ClusterClientOptions {
            one_sided_from_bytes: None,
            lines_max: LINES_MAX,
            ..ClusterClientOptions::new(vec![nodes[0].address()])
        };
        let client = ClusterClient::connect(options).await.expect("a map");
        let handle = client.handle().expect("room for a task");
        let map = client.map();
        let home = |key: &Vec<u8>| {
            let key = Key::new(key).expect("a key").fingerprint();
            home_of(&map, key).expect("there are members").node
        };
        let mut of_homes = BTreeMap::new();
        (0..1000).map(key).for_each(|key| {
            of_homes.insert(home(&key), key);
        });
        let keys: Vec<_> = of_homes.into_values().collect();
        let homes = keys.len();
        assert!(homes > LINES_MAX, "{homes}");
        let all_open = homes + LINES_MAX;
        eventually("there are as many as there may be", async || {
            let keys = keys.clone();
            with_handle(&handle, move |handle| {
                for key in keys {
                    assert_eq!(handle.exists_waiting(vec![key]), [Ok(false)]);
                }
            })
            .await;
            counts.open.get() == all_open
        })
        .await;
        with_handle(&handle, move |handle| {
            for key in keys {
                assert_eq!(handle.exists_waiting(vec![key]), [Ok(false)]);
            }
        })
        .await;
        assert_eq!(counts.open_max.get(), all_open);
    });
}
