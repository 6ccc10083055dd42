//! What threads see without asking: keys, and short objects, of nodes whose cores do nothing meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lunette_kvstore::{ClusterClientOptions, Got, Lent, Node, PutOptions, StoreHandle};
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime_core::ids::CoreIndex;

use super::scene::key;
use super::threads::{bytes_of, coordinator, empty, lent, node, node_of, options};

const MIB: u64 = 1 << 20;
/// How long an answer that no core has to give is waited for.
const AT_ONCE: Duration = Duration::from_millis(200);

fn joined(node: &Node) -> StoreHandle {
    node.joined().expect("it joins");
    let handle = node.handle(&ClusterClientOptions::new(Vec::new()));
    handle.expect("clients on its cores")
}

/// Keeps all cores of a node from doing anything for as long as `work` takes.
fn while_stopped<T>(node: &Node, cores: u16, work: impl FnOnce() -> T) -> T {
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
    let handle = joined(&node);
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
    let answers = seen_while_stopped(&node, 2, looked_up);
    for (n, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer, Ok(n < 30 || n == 35), "key {n}");
    }
}

#[test]
fn short_objects_are_got_while_no_core_answers() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 2, coordinator);
    let handle = joined(&node);
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
    let all = seen_while_stopped(&node, 2, got_all);
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

#[test]
fn what_threads_read_by_themselves_is_one_object_also_while_its_memory_changes_hands() {
    const KEYS: usize = 400;
    let (_coordinating, coordinator) = coordinator();
    let mut options = options(1, coordinator);
    options.memory_bytes = 4 * MIB;
    let node = node_of(1, options);
    let handle = joined(&node);
    // Twice what there is room for.
    let len_words = |n: usize| 256 + n * 37 % 5000;
    let is_over = AtomicBool::new(false);
    let reads = thread::scope(|scope| {
        let read = || {
            let mut hits = 0_u64;
            let mut n = 0;
            while !is_over.load(Ordering::Relaxed) {
                n = (n * 5 + 7) % KEYS + 1;
                let Ok(Some(bytes)) = handle.get_bytes(key(n)).wait() else {
                    continue;
                };
                hits += 1;
                assert_eq!(bytes.len(), len_words(n) * 8, "object {n}");
                let first: [u8; 8] = bytes[..8].try_into().expect("eight");
                assert_eq!(u64::from_le_bytes(first) >> 32, n as u64);
                assert!(bytes.chunks(8).all(|word| word == first), "object {n}");
            }
            hits
        };
        let readers = [(); 2].map(|()| scope.spawn(read));
        let mut stored = 0;
        for write in 0..6000 {
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
        readers.map(|reader| reader.join().expect("no panic"))
    });
    assert!(reads.iter().all(|hits| *hits > 100), "{reads:?}");
}

#[test]
fn nothing_is_seen_of_a_core_that_does_nothing_for_longer_than_its_lease() {
    let (_coordinating, coordinator) = coordinator();
    let mut options = options(1, coordinator);
    let cluster = options.cluster.as_mut().expect("it has one");
    cluster.lease_ttl_s = 2;
    let node = node_of(1, options);
    let handle = joined(&node);
    let put = handle.put(key(1), lent(1, 100), PutOptions::default());
    put.wait().expect("written");
    let seen = || {
        let (told, answer) = mpsc::channel();
        let handle = handle.clone();
        thread::spawn(move || {
            let present = handle.exists(vec![key(1)]).wait();
            told.send((present, handle.get_bytes(key(1)).wait()))
        });
        answer.recv_timeout(AT_ONCE).ok()
    };
    let then = seen_while_stopped(&node, 1, seen);
    assert_eq!(then, (vec![Ok(true)], Ok(Some(bytes_of(1, 100)))));
    let later = while_stopped(&node, 1, || {
        thread::sleep(Duration::from_millis(2100));
        seen()
    });
    assert_eq!(later, None, "its core is asked, which does nothing");
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
