//! What threads and clients see without asking: keys, and short objects, of nodes whose cores do nothing meanwhile; of the
//! program's own node, and of one that is another's, as far as its clients know.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore::{
    ClientHost, ClusterClient, ClusterClientOptions, Fetched, Got, Lent, Node, NodeCore, Preferred,
    PutOptions, StoreError, StoreErrorKind, StoreHandle, Value,
};
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::{CoreOptions, Placement, Runtime, arena};
use lunette_runtime_core::ids::CoreIndex;
use lunette_transfer::Room;

use super::scene::key;
use super::threads::{bytes_of, coordinator, empty, lent, node, node_of, options};

type Answer = Vec<Result<bool, StoreError>>;
type Bytes = Result<Option<Vec<u8>>, StoreError>;

const MIB: u64 = 1 << 20;
/// How often a client asks an owner until it meets it.
const ASKED_MIN: usize = 16;
/// How long an answer that no core has to give is waited for.
const AT_ONCE: Duration = Duration::from_millis(200);

fn joined(node: &Node) -> StoreHandle {
    node.joined().expect("it joins");
    let handle = node.handle(&ClusterClientOptions::new(Vec::new()));
    handle.expect("clients on its cores")
}

/// Clients of a node on a core of their own, which have asked it so often that they see what it shows.
pub(crate) fn neighbour(node: &Node, options: ClusterClientOptions) -> ClientHost {
    node.joined().expect("it joins");
    let options = ClusterClientOptions {
        seeds: vec![node.address()],
        ..options
    };
    let host = ClientHost::start(&Placement::Anywhere(1), CoreOptions::default(), &options);
    let host = host.expect("clients on a core of their own");
    ask_often(&host.handle());
    host
}

/// Asks each core of a node, about keys that are not there.
fn ask_often(handle: &StoreHandle) {
    for round in 0..ASKED_MIN {
        let absent = (1000 + round * 64..).take(64).map(key);
        let asked = handle.exists(absent.collect()).wait();
        assert!(asked.iter().all(|asked| *asked == Ok(false)), "{asked:?}");
    }
}

pub(crate) fn default_options() -> ClusterClientOptions {
    ClusterClientOptions::new(Vec::new())
}

/// Keeps all cores of a node from doing anything for as long as `work` takes.
pub(crate) fn while_stopped<T>(node: &Node, cores: u16, work: impl FnOnce() -> T) -> T {
    let stop = |core| {
        let (go_on, wait) = mpsc::channel::<()>();
        let (told, stopped) = mpsc::channel();
        let stopping = node.spawn_on(CoreIndex(core), move || async move {
            told.send(()).expect("it is waited for");
            // It ends with its sender.
            wait.recv().expect_err("nothing is sent");
        });
        stopped.recv().expect("it runs");
        (go_on, stopping.expect("it runs"))
    };
    let stopped: Vec<_> = (0..cores).map(stop).collect();
    let done = work();
    for (go_on, stopping) in stopped {
        drop(go_on);
        stopping.wait().expect("it goes on");
    }
    done
}

/// What is seen while all cores of a node do nothing: a while after it is there to be seen.
fn seen_while_stopped<T>(node: &Node, cores: u16, look: impl Fn() -> Option<T>) -> T {
    let mut tries = (0..100).map(|_| {
        // In between they list what they have, and renew their lease.
        thread::sleep(AT_ONCE);
        while_stopped(node, cores, &look)
    });
    tries.find_map(|seen| seen).expect("no core is asked")
}

#[test]
fn keys_are_looked_up_while_no_core_answers() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 2, coordinator);
    look_up_while_stopped(&node, &joined(&node));
}

#[test]
fn keys_of_another_node_are_looked_up_while_no_core_of_it_answers() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 2, coordinator);
    let host = neighbour(&node, default_options());
    look_up_while_stopped(&node, &host.handle());
}

fn look_up_while_stopped(node: &Node, handle: &StoreHandle) {
    let put = |n: usize| {
        let put = handle.put(key(n), lent(n, 300), PutOptions::default());
        put.wait().expect("written");
    };
    (0..40).for_each(put);
    let removed = handle.remove((30..40).map(key).collect()).wait();
    assert!(removed.iter().all(|removed| *removed == Ok(true)));
    put(35);
    let looked_up = || {
        let (told, answer) = mpsc::channel();
        let handle = handle.clone();
        thread::spawn(move || told.send(handle.exists((0..60).map(key).collect()).wait()));
        answer.recv_timeout(AT_ONCE).ok()
    };
    // What is absent is known once everything that the cores had before has been listed.
    let answers = seen_while_stopped(node, 2, looked_up);
    for (n, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer, Ok(n < 30 || n == 35), "key {n}");
    }
}

#[test]
fn short_objects_are_got_while_no_core_answers() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 2, coordinator);
    get_while_stopped(&node, &joined(&node));
}

#[test]
fn short_objects_of_another_node_are_got_while_no_core_of_it_answers() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 2, coordinator);
    let host = neighbour(&node, default_options());
    get_while_stopped(&node, &host.handle());
}

fn get_while_stopped(node: &Node, handle: &StoreHandle) {
    let len = |n: usize| n * 1009 % 30_000;
    let put = |n: usize, of: usize, kind| {
        let options = PutOptions {
            kind,
            ..PutOptions::default()
        };
        let put = handle.put(key(n), lent(of, len(of)), options);
        put.wait().expect("written");
    };
    (0..30).for_each(|n| put(n, n, WriteKind::Put));
    (0..10).for_each(|n| put(n, n + 100, WriteKind::Upsert));
    let removed = handle.remove((20..30).map(key).collect()).wait();
    assert!(removed.iter().all(|removed| *removed == Ok(true)));
    let content = |n: usize| if n < 10 { n + 100 } else { n };
    let hits = || {
        let stats = handle.stat().wait().expect("asked").into_iter();
        let hits = stats.map(|(_, stat)| stat.expect("it answers").shards.hits);
        hits.sum::<u64>()
    };
    let got_all = || {
        let (told, answer) = mpsc::channel();
        let handle = handle.clone();
        thread::spawn(move || {
            for n in 0..20 {
                let (memory, pieces) = empty(len(content(n)) + 3);
                let got = handle.get(key(n), pieces).wait().expect("asked");
                let bytes = handle.get_bytes(key(n)).wait().expect("asked");
                told.send((n, got, memory, bytes))
                    .expect("it is waited for");
            }
        });
        let all = (0..20).map_while(|_| answer.recv_timeout(AT_ONCE).ok());
        let all: Vec<_> = all.collect();
        (all.len() == 20).then_some(all)
    };
    // They are listed soon, and memory is looked at once it has been asked for.
    let before = hits();
    let all = seen_while_stopped(node, 2, got_all);
    for (n, got, memory, bytes) in all {
        let expected = bytes_of(content(n), len(content(n)));
        let len_bytes = expected.len();
        assert!(
            matches!(got, Got::Hit { len_bytes: got, .. } if got == len_bytes),
            "{n}: {got:?}"
        );
        let memory = memory.into_bytes().expect("it is let go of");
        assert_eq!(&memory[..len_bytes], &expected[..], "object {n}");
        assert_eq!(bytes, Some(expected));
    }
    for n in 20..30 {
        assert_eq!(handle.get_bytes(key(n)).wait(), Ok(None), "it is removed");
    }
    let (memory, pieces) = empty(len(15) - 1);
    let error = handle.get(key(15), pieces).wait();
    error.expect_err("it is too long");
    drop(memory);
    let heard = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(5));
        hits() >= before + 40
    });
    assert!(heard, "cores hear of what was read");
}

/// An object says which it is, and of which write it comes, in each of its words.
fn stamped(n: usize, write: usize, len_words: usize) -> Vec<u8> {
    let word = (n as u64) << 32 | write as u64;
    word.to_le_bytes().repeat(len_words)
}

/// That these bytes are all of one write of that object.
fn assert_is_one(bytes: &[u8], n: usize, len_words: usize) {
    assert_eq!(bytes.len(), len_words * 8, "object {n}");
    let first: [u8; 8] = bytes[..8].try_into().expect("eight");
    assert_eq!(u64::from_le_bytes(first) >> 32, n as u64);
    assert!(bytes.chunks(8).all(|word| word == first), "object {n}");
}

/// A node with too little memory for what `read_while_written` writes.
fn small_node() -> (Runtime, Node) {
    let (coordinating, coordinator) = coordinator();
    let mut options = options(1, coordinator);
    options.memory_bytes = 4 * MIB;
    (coordinating, node_of(1, options))
}

#[test]
fn what_threads_read_by_themselves_is_one_object_also_while_its_memory_changes_hands() {
    let (_coordinating, node) = small_node();
    let handle = joined(&node);
    read_while_written(&handle, &handle);
}

#[test]
fn what_is_read_of_another_node_is_one_object_also_while_its_memory_changes_hands() {
    let (_coordinating, node) = small_node();
    let host = neighbour(&node, default_options());
    read_while_written(&joined(&node), &host.handle());
}

fn read_while_written(handle: &StoreHandle, reader: &StoreHandle) {
    const KEYS: usize = 400;
    /// As many, and more until each reader has read often enough.
    const WRITES: usize = 6000;
    const WRITES_MAX: usize = 200_000;
    const HITS_MIN: u64 = 100;
    // Twice what there is room for.
    let len_words = |n: usize| 256 + n * 37 % 5000;
    let is_over = AtomicBool::new(false);
    let reads = [(); 2].map(|()| AtomicU64::new(0));
    let have_read = || {
        reads
            .iter()
            .all(|hits| hits.load(Ordering::Relaxed) > HITS_MIN)
    };
    thread::scope(|scope| {
        let read = |hits: &AtomicU64| {
            let mut n = 0;
            while !is_over.load(Ordering::Relaxed) {
                n = (n * 5 + 7) % KEYS + 1;
                let Ok(Some(bytes)) = reader.get_bytes(key(n)).wait() else {
                    continue;
                };
                hits.fetch_add(1, Ordering::Relaxed);
                assert_is_one(&bytes, n, len_words(n));
            }
        };
        for hits in &reads {
            scope.spawn(move || read(hits));
        }
        let mut stored = 0;
        for write in 0..WRITES_MAX {
            if write >= WRITES && have_read() {
                break;
            }
            let n = write * 11 % KEYS + 1;
            let value = vec![Lent::bytes(stamped(n, write, len_words(n)))];
            let kind = if write % 3 == 0 {
                WriteKind::Put
            } else {
                WriteKind::Upsert
            };
            let options = PutOptions {
                kind,
                ..PutOptions::default()
            };
            // There may be no room now.
            let put = handle.put(key(n), value, options).wait();
            stored += u32::from(put.is_ok());
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(stored > 500, "{stored} were written");
    });
    assert!(have_read(), "{reads:?}");
}

/// A node whose lease is short.
fn short_leased() -> (Runtime, Node) {
    let (coordinating, coordinator) = coordinator();
    let mut options = options(1, coordinator);
    let cluster = options.cluster.as_mut().expect("it has one");
    cluster.lease_ttl_s = 2;
    (coordinating, node_of(1, options))
}

#[test]
fn nothing_is_seen_of_a_core_that_does_nothing_for_longer_than_its_lease() {
    let (_coordinating, node) = short_leased();
    look_beyond_the_lease(&node, &joined(&node));
}

#[test]
fn nothing_is_seen_of_another_node_that_does_nothing_for_longer_than_its_lease() {
    let (_coordinating, node) = short_leased();
    let host = neighbour(&node, default_options());
    look_beyond_the_lease(&node, &host.handle());
}

/// Looks for an object in a thread of its own; `None` if there is no answer soon.
fn sight_of(handle: &StoreHandle, n: usize) -> Option<(Answer, Bytes)> {
    let (told, answer) = mpsc::channel();
    let handle = handle.clone();
    thread::spawn(move || {
        let present = handle.exists(vec![key(n)]).wait();
        told.send((present, handle.get_bytes(key(n)).wait()))
    });
    answer.recv_timeout(AT_ONCE).ok()
}

fn look_beyond_the_lease(node: &Node, handle: &StoreHandle) {
    let put = handle.put(key(1), lent(1, 100), PutOptions::default());
    put.wait().expect("written");
    let then = seen_while_stopped(node, 1, || sight_of(handle, 1));
    assert_eq!(then, (vec![Ok(true)], Ok(Some(bytes_of(1, 100)))));
    let later = while_stopped(node, 1, || {
        thread::sleep(Duration::from_millis(2100));
        sight_of(handle, 1)
    });
    assert_eq!(later, None, "its core is asked, which does nothing");
}

#[test]
fn what_one_client_changes_another_sees_at_once() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 2, coordinator);
    let hosts = [(); 2].map(|()| neighbour(&node, default_options()));
    let handles = hosts.each_ref().map(ClientHost::handle);
    let options = PutOptions {
        kind: WriteKind::Upsert,
        ..PutOptions::default()
    };
    for n in 0..400 {
        let [one, other] = [&handles[n % 2], &handles[(n + 1) % 2]];
        let name = || key(n % 7);
        one.put(name(), lent(n, 200), options)
            .wait()
            .expect("written");
        assert_eq!(other.exists(vec![name()]).wait(), [Ok(true)], "write {n}");
        let got = other.get_bytes(name()).wait();
        assert_eq!(got, Ok(Some(bytes_of(n, 200))), "write {n}");
        if n % 3 == 0 {
            assert_eq!(one.remove(vec![name()]).wait(), [Ok(true)]);
            assert_eq!(other.exists(vec![name()]).wait(), [Ok(false)], "write {n}");
            assert_eq!(other.get_bytes(name()).wait(), Ok(None), "write {n}");
        }
    }
}

#[test]
fn tasks_see_what_a_node_of_this_host_shows() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    let own = joined(&node);
    for n in 0..20 {
        let put = own.put(key(n), lent(n, 3000), PutOptions::default());
        put.wait().expect("written");
    }
    let runtime = Runtime::start(&Placement::Anywhere(1), CoreOptions::default());
    let runtime = runtime.expect("a core");
    let options = ClusterClientOptions::new(vec![node.address()]);
    let (go_on, wait) = mpsc::channel::<()>();
    let (told, seen) = mpsc::channel();
    let looking = runtime.spawn_on(CoreIndex(0), move || async move {
        let client = ClusterClient::connect(options).await.expect("a client");
        let keys: Vec<_> = (0..40).map(key).collect();
        let get = async |n| {
            let room = Room::whole(arena().alloc(3000).expect("memory"));
            let Ok(Fetched::Hit {
                room, len_bytes, ..
            }) = client.get(&key(n), room).await
            else {
                return None;
            };
            Some(room.as_slice()[..len_bytes].to_vec())
        };
        while client.one_sided().reads < 100 {
            client.exists(&keys).await.expect("asked");
            assert_eq!(get(5).await, Some(bytes_of(5, 3000)));
        }
        told.send(None).expect("it is waited for");
        // Both cores do nothing but this.
        wait.recv().expect("the node is stopped");
        let present = client.exists(&keys).await.expect("seen");
        told.send(Some((present, get(7).await)))
            .expect("it is waited for");
    });
    let looking = looking.expect("it runs");
    assert_eq!(seen.recv().expect("it goes on"), None);
    // All keys, and all copies, are listed by then.
    thread::sleep(AT_ONCE);
    let seen = while_stopped(&node, 1, || {
        go_on.send(()).expect("it waits");
        seen.recv_timeout(AT_ONCE * 5)
    });
    let (present, got) = seen.expect("no core is asked").expect("what was seen");
    assert!(
        present
            .iter()
            .enumerate()
            .all(|(n, there)| *there == (n < 20))
    );
    assert_eq!(got, Some(bytes_of(7, 3000)));
    looking.wait().expect("no panic");
}

#[test]
fn who_asks_seldom_or_wants_to_be_sure_or_to_be_sent_bytes_asks() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    let strict = ClusterClientOptions {
        namespace: NamespaceKind::Strict,
        ..default_options()
    };
    let sent = ClusterClientOptions {
        one_sided_from_bytes: None,
        ..default_options()
    };
    node.joined().expect("it joins");
    let seldom = ClusterClientOptions::new(vec![node.address()]);
    let seldom = ClientHost::start(&Placement::Anywhere(1), CoreOptions::default(), &seldom);
    let seldom = seldom.expect("clients on a core of their own");
    let often = neighbour(&node, default_options());
    let put = often
        .handle()
        .put(key(1), lent(1, 100), PutOptions::default());
    put.wait().expect("written");
    for _ in 1..ASKED_MIN / 2 {
        assert_eq!(sight_of(&seldom.handle(), 1).expect("asked").0, [Ok(true)]);
    }
    let seen = seen_while_stopped(&node, 1, || sight_of(&often.handle(), 1));
    assert_eq!(seen.0, [Ok(true)]);
    let (strict, sent) = (neighbour(&node, strict), neighbour(&node, sent));
    for host in [seldom, strict, sent] {
        let seen = while_stopped(&node, 1, || sight_of(&host.handle(), 1));
        assert_eq!(seen, None, "it asks");
    }
}

#[test]
fn nothing_is_seen_of_a_node_that_has_ended_or_by_clients_that_have() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    let options = ClusterClientOptions {
        timeout: Duration::from_millis(500),
        ..default_options()
    };
    let hosts = [(); 2].map(|()| neighbour(&node, options.clone()));
    let [one, other] = hosts.each_ref().map(ClientHost::handle);
    let put = one.put(key(1), lent(1, 100), PutOptions::default());
    put.wait().expect("written");
    for handle in [&one, &other] {
        let seen = seen_while_stopped(&node, 1, || sight_of(handle, 1));
        assert_eq!(seen.0, [Ok(true)]);
    }
    let [host, _other_host] = hosts;
    drop(host);
    let gone = one.get_bytes(key(1)).wait();
    assert_eq!(
        gone.expect_err("its cores ended").kind,
        StoreErrorKind::ShutDown
    );
    node.shut_down().expect("in good order");
    // Nobody answers: that is a miss, or an error where the time is over before.
    let gone = other.exists(vec![key(1)]).wait().pop().expect("one each");
    assert!(!matches!(gone, Ok(true)), "{gone:?}");
    let gone = other.get_bytes(key(1)).wait();
    assert!(!matches!(gone, Ok(Some(_))), "{gone:?}");
}

#[test]
fn what_is_longer_than_is_listed_is_asked_for() {
    const LISTED_BYTES_MAX: usize = 64 << 10;
    const LISTED_KEY_BYTES_MAX: usize = 256;
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    let handle = joined(&node);
    let name = |len: usize| vec![b'k'; len];
    let objects = [
        (key(1), LISTED_BYTES_MAX, true),
        (key(2), LISTED_BYTES_MAX + 1, false),
        (name(LISTED_KEY_BYTES_MAX), 100, true),
        (name(LISTED_KEY_BYTES_MAX + 1), 100, false),
    ];
    for (key, len, _) in &objects {
        let put = handle.put(key.clone(), lent(3, *len), PutOptions::default());
        put.wait().expect("written");
    }
    let seen = |key: &Vec<u8>| {
        let (told, answer) = mpsc::channel();
        let (handle, key) = (handle.clone(), key.clone());
        thread::spawn(move || told.send(handle.get_bytes(key).wait()));
        answer.recv_timeout(AT_ONCE).ok()
    };
    for (key, len, is_listed) in &objects {
        let bytes = if *is_listed {
            seen_while_stopped(&node, 1, || seen(key))
        } else {
            assert_eq!(while_stopped(&node, 1, || seen(key)), None, "{len} bytes");
            handle.get_bytes(key.clone()).wait()
        };
        assert_eq!(bytes, Ok(Some(bytes_of(3, *len))), "{len} bytes");
    }
}

#[test]
fn who_takes_the_time_gets_long_objects_while_no_core_answers() {
    const LENS: [usize; 4] = [(64 << 10) + 1, 1 << 20, 100, 5 << 20];
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    let host = neighbour(&node, default_options());
    for (round, handle) in [joined(&node), host.handle()].into_iter().enumerate() {
        let name = |n: usize| key(n + 100 * round);
        for (n, len) in LENS.into_iter().enumerate() {
            let put = handle.put(name(n), lent(n, len), PutOptions::default());
            put.wait().expect("written");
        }
        let see_all = || {
            let rooms = LENS.iter().enumerate().map(|(n, len)| (n, empty(len + 3)));
            let (kept, wanted): (Vec<_>, Vec<_>) = rooms
                .map(|(n, (memory, pieces))| (memory, (name(n), pieces)))
                .unzip();
            let got = handle.see_all(&wanted);
            drop(wanted);
            got.iter().all(Option::is_some).then_some((kept, got))
        };
        let (memory, got) = seen_while_stopped(&node, 1, see_all);
        for (n, (memory, got)) in memory.into_iter().zip(got).enumerate() {
            let len = LENS[n];
            assert!(
                matches!(got, Some(Got::Hit { len_bytes, .. }) if len_bytes == len),
                "{n}: {got:?}"
            );
            let bytes = memory.into_bytes().expect("it is let go of");
            assert_eq!(bytes[..len], bytes_of(n, len), "object {n}");
        }
        let seen = while_stopped(&node, 1, || {
            let mut bytes = Vec::new();
            let got = handle.see(&name(1), |seen| {
                bytes.resize(seen.len(), 0);
                seen.copy_to(&mut bytes);
            });
            got.map(|_| bytes)
        });
        assert_eq!(seen, Some(bytes_of(1, LENS[1])));
        let unread = handle.see(&name(1), |seen| assert!(!seen.is_empty()));
        assert_eq!(unread, None, "nothing was copied");
        assert_eq!(
            handle.see(&name(50), |_| unreachable!("there is none")),
            None
        );
        let (_memory, pieces) = empty(LENS[1] - 1);
        assert_eq!(
            handle.see_all(&[(name(1), pieces)]),
            [None],
            "it is too long"
        );
        let removed = handle.remove(vec![name(1)]).wait();
        assert_eq!(removed, [Ok(true)]);
        assert_eq!(handle.see(&name(1), |_| {}), None);
    }
}

#[test]
fn what_is_seen_of_long_objects_is_one_also_while_its_memory_changes_hands() {
    let (_coordinating, node) = small_node();
    let host = neighbour(&node, default_options());
    let (writer, reader) = (host.handle(), host.handle());
    const KEYS: usize = 12;
    // On busy CPUs the reader may be late.
    const WRITES: usize = 3000;
    const WRITES_MAX: usize = 20 * WRITES;
    const HITS_MIN: u64 = 20;
    let len_words = |n: usize| 20_000 + n * 7919 % 40_000;
    let (is_over, hits) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let read = || {
            let (mut n, mut bytes) = (0, Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                n = (n * 5 + 7) % KEYS + 1;
                let got = reader.see(&key(n), |seen| {
                    bytes.resize(seen.len(), 0);
                    seen.copy_to(&mut bytes);
                });
                if got.is_none() {
                    continue;
                }
                hits.fetch_add(1, Ordering::Relaxed);
                assert_is_one(&bytes, n, len_words(n));
            }
        };
        let reader = scope.spawn(read);
        let options = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        let mut stored = 0;
        for write in 0..WRITES_MAX {
            if write >= WRITES && hits.load(Ordering::Relaxed) > HITS_MIN {
                break;
            }
            let n = write * 11 % KEYS + 1;
            let value = vec![Lent::bytes(stamped(n, write, len_words(n)))];
            let put = writer.put_all_waiting(vec![(key(n), value)], options);
            stored += put.iter().filter(|put| put.is_ok()).count();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(stored > 500, "{stored} were written");
        reader.join().expect("no panic");
    });
    let hits = hits.into_inner();
    assert!(hits > HITS_MIN, "{hits}");
}

/// What a thread has waited for before it leaves the rest to cores is of the time that an operation has.
#[test]
fn who_finishes_late_what_it_puts_has_no_more_time() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    let options = ClusterClientOptions {
        timeout: TIMEOUT,
        ..default_options()
    };
    let host = neighbour(&node, options);
    // A thread does not choose between members.
    let options = PutOptions {
        preferred: Preferred::new(&[node.address()]).expect("one"),
        ..PutOptions::default()
    };
    let (put, took) = while_stopped(&node, 1, || {
        let begun = Instant::now();
        let handing = host
            .handle()
            .hand_over(vec![(key(1), lent(1, 100))], options);
        thread::sleep(TIMEOUT * 3 / 4);
        (handing.finish().wait(), begun.elapsed())
    });
    let kinds = put.into_iter().map(|put| put.map_err(|error| error.kind));
    let is_late = |kind| {
        matches!(
            kind,
            Err(StoreErrorKind::TimedOut | StoreErrorKind::Interrupted)
        )
    };
    assert!(kinds.into_iter().all(is_late));
    assert!(took < TIMEOUT * 5 / 4, "{took:?}");
}

#[test]
fn what_many_gets_copy_themselves_is_bounded() {
    const BYTES_PER_CALL_MAX: usize = 256 << 10;
    const EACH: usize = BYTES_PER_CALL_MAX / 8;
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    let handle = joined(&node);
    for n in 0..8 {
        let put = handle.put(key(n), lent(n, EACH), PutOptions::default());
        put.wait().expect("written");
    }
    let get = |more: usize| {
        let (told, answer) = mpsc::channel();
        let handle = handle.clone();
        thread::spawn(move || {
            let rooms = (0..8).map(|n| (n, empty(EACH + if n == 0 { more } else { 0 })));
            let (kept, wanted): (Vec<_>, Vec<_>) = rooms
                .map(|(n, (memory, pieces))| (memory, (key(n), pieces)))
                .unzip();
            let got = handle.get_all(wanted).wait();
            told.send((kept, got))
        });
        answer.recv_timeout(AT_ONCE).ok()
    };
    let (memory, got) = seen_while_stopped(&node, 1, || get(0));
    for (n, (memory, got)) in memory.into_iter().zip(got).enumerate() {
        assert!(matches!(got, Ok(Got::Hit { .. })), "{n}: {got:?}");
        let bytes = memory.into_bytes().expect("it is let go of");
        assert_eq!(bytes, bytes_of(n, EACH), "object {n}");
    }
    let more = while_stopped(&node, 1, || get(1));
    assert!(more.is_none(), "its core copies them");
}

#[test]
fn so_many_wait_to_be_listed_and_others_are_listed_once_they_are_read() {
    const UNLISTED_MAX: usize = 4096;
    const PUT: usize = UNLISTED_MAX + 100;
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    let handle = joined(&node);
    let options = default_options();
    // In one turn of the core, the last one first.
    let put = node.spawn_on(CoreIndex(0), move || async move {
        let core = NodeCore::here().pop().expect("its own");
        let client = core.client(options).await.expect("a client");
        let value = |n| {
            let mut region = arena().alloc(100).expect("memory");
            region.as_mut_slice().copy_from_slice(&bytes_of(n, 100));
            Value::new(region.freeze())
        };
        let objects: Vec<_> = (0..PUT).map(|n| (key(n), value(n))).collect();
        let stored = client.put_all(&objects, PutOptions::default()).await;
        stored.iter().filter(|stored| stored.is_ok()).count()
    });
    assert_eq!(put.expect("it runs").wait().expect("no panic"), PUT);
    let seen = |n: usize| {
        let seen = seen_while_stopped(&node, 1, || sight_of(&handle, n));
        assert_eq!(seen, (vec![Ok(true)], Ok(Some(bytes_of(n, 100)))));
    };
    seen(PUT - 1);
    seen(PUT - UNLISTED_MAX);
    assert_eq!(while_stopped(&node, 1, || sight_of(&handle, 0)), None);
    // Its core was asked when it went on.
    seen(0);
}
