//! Objects that threads hand over to another node on this host, past the core of their own clients.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lunette_kvstore::{
    ClientHost, ClusterClientOptions, Lent, Node, PutOptions, StoreError, StoreErrorKind,
    StoreHandle, Stored,
};
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::wait;

use super::scene::key;
use super::threads::{bytes_of, coordinator, lent, node, node_of, options};
use super::unasked::{default_options, neighbour, while_stopped};

const MIB: usize = 1 << 20;
/// Longest value that is handed over.
const HANDED_BYTES_MAX: usize = 4 * MIB;
/// Requests of a client to one core at a time.
const SLOTS_MAX: usize = 64;
/// How long nothing happens that a core which is stopped would have to do.
const A_WHILE: Duration = Duration::from_millis(200);

type Object = (Vec<u8>, Vec<Lent>);

fn put() -> PutOptions {
    PutOptions::default()
}

fn upsert() -> PutOptions {
    PutOptions {
        kind: WriteKind::Upsert,
        ..put()
    }
}

/// Puts that came by memory that is shared, so far.
pub(super) fn handed_over(node: &Node) -> usize {
    let reports = wait(node.watch().report(), Duration::ZERO).expect("it answers");
    let members = reports.iter().filter_map(|report| report.member);
    let handed: u64 = members.map(|member| member.handed_over).sum();
    usize::try_from(handed).expect("few")
}

/// Clients that hand over what threads put at a node.
pub(super) fn handing(node: &Node, options: ClusterClientOptions) -> ClientHost {
    let host = neighbour(node, options);
    let begun = Instant::now();
    while !host.handle().hands_over() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is met");
        thread::sleep(Duration::from_millis(1));
    }
    host
}

fn objects(numbers: impl Iterator<Item = usize>, len: impl Fn(usize) -> usize) -> Vec<Object> {
    numbers.map(|n| (key(n), lent(n, len(n)))).collect()
}

fn put_one(
    handle: &StoreHandle,
    (key, value): Object,
    options: PutOptions,
) -> Result<Stored, StoreError> {
    let stored = handle.put_all_waiting(vec![(key, value)], options);
    stored.into_iter().next().expect("one each")
}

fn assert_written(stored: &[Result<Stored, StoreError>]) {
    let is_written = |stored: &Result<_, _>| matches!(stored, Ok(Stored::Written { .. }));
    assert!(stored.iter().all(is_written), "{stored:?}");
}

#[test]
fn what_is_handed_over_is_what_others_get() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 2, coordinator);
    let host = handing(&node, default_options());
    let handle = host.handle();
    let other = neighbour(&node, default_options());
    // Lengths around what is listed, lent, and copied in a turn, and none.
    let len = |n: usize| [0, 1, 4096, 64 << 10, (64 << 10) + 1, MIB, 3 * MIB / 2][n % 7] + n / 7;
    let numbers = 0..28;
    let stored = handle.put_all_waiting(objects(numbers.clone(), len), put());
    assert_written(&stored);
    for n in numbers.clone() {
        let got = other.handle().get_bytes(key(n)).wait();
        assert_eq!(got, Ok(Some(bytes_of(n, len(n)))), "object {n}");
    }
    assert_eq!(handed_over(&node), numbers.len());
    // Of many pieces, some empty.
    let whole = bytes_of(5, 10_000);
    let pieces = whole.chunks(777).map(|piece| Lent::bytes(piece.to_vec()));
    let pieces = pieces.flat_map(|piece| [Lent::bytes(Vec::new()), piece]);
    let stored = put_one(&handle, (key(5), pieces.collect()), upsert());
    assert_written(&[stored]);
    assert_eq!(other.handle().get_bytes(key(5)).wait(), Ok(Some(whole)));
    let again = put_one(&handle, (key(6), lent(7, 100)), put());
    assert!(matches!(again, Ok(Stored::Exists { .. })), "{again:?}");
    assert_eq!(handed_over(&node), numbers.len() + 2);
    let removed = other.handle().remove(vec![key(6)]).wait();
    assert_eq!(removed, [Ok(true)]);
    assert_written(&[put_one(&handle, (key(6), lent(7, 100)), put())]);
    let got = handle.get_bytes(key(6)).wait();
    assert_eq!(got, Ok(Some(bytes_of(7, 100))));
}

#[test]
fn batches_are_longer_than_there_are_slots_and_than_the_window_and_threads_share_it() {
    let (_coordinating, coordinator) = coordinator();
    let mut options = options(1, coordinator);
    options.memory_bytes = 512 * MIB as u64;
    let node = node_of(1, options);
    let host = handing(&node, default_options());
    let handles = [(); 3].map(|()| host.handle());
    let before = handed_over(&node);
    let len = |n: usize| {
        if n.is_multiple_of(40) {
            2 * MIB
        } else {
            n * 97 % 9000
        }
    };
    const EACH: usize = 5 * SLOTS_MAX;
    thread::scope(|scope| {
        for (thread, handle) in handles.iter().enumerate() {
            let numbers = thread * EACH..(thread + 1) * EACH;
            scope.spawn(move || {
                let stored = handle.put_all_waiting(objects(numbers, len), put());
                assert_written(&stored);
            });
        }
    });
    for n in 0..3 * EACH {
        let got = handles[0].get_bytes(key(n)).wait();
        assert_eq!(got, Ok(Some(bytes_of(n, len(n)))), "object {n}");
    }
    let handed = handed_over(&node) - before;
    assert!(handed > EACH, "one of them has some room always: {handed}");
}

#[test]
fn what_cannot_be_handed_over_is_put_by_cores_in_its_place() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    let host = handing(&node, default_options());
    let handle = host.handle();
    let lens = [100, HANDED_BYTES_MAX, 100, HANDED_BYTES_MAX + 1, 100];
    let mut batch = objects(0..lens.len(), |n| lens[n]);
    batch.insert(3, (Vec::new(), lent(0, 10)));
    let stored = handle.put_all_waiting(batch, put());
    for (place, stored) in stored.iter().enumerate() {
        assert_eq!(stored.is_ok(), place != 3, "{place}: {stored:?}");
    }
    let kind = stored[3].expect_err("no key").kind;
    assert!(matches!(kind, StoreErrorKind::Key(_)), "{kind:?}");
    for (n, len) in lens.into_iter().enumerate() {
        let got = handle.get_bytes(key(n)).wait();
        assert_eq!(got, Ok(Some(bytes_of(n, len))), "object {n}");
    }
    assert_eq!(handed_over(&node), lens.len() - 1);
    let others = [
        PutOptions {
            stripe_len: Some(64 << 10),
            ..put()
        },
        PutOptions {
            is_same_node: true,
            ..put()
        },
    ];
    for (n, options) in (50..).zip(others) {
        let stored = handle.put_all_waiting(objects(n..=n, |_| 100_000), options);
        assert_written(&stored);
        let got = handle.get_bytes(key(n)).wait();
        assert_eq!(got, Ok(Some(bytes_of(n, 100_000))), "object {n}");
    }
    let none = PutOptions { copies: 0, ..put() };
    let refused = put_one(&handle, (key(60), lent(1, 1)), none);
    refused.expect_err("no copies");
    assert_eq!(handed_over(&node), lens.len() - 1, "of a part neither");
    assert_eq!(handle.put_all_waiting(Vec::<Object>::new(), put()), []);
}

#[test]
fn who_has_nobody_to_hand_over_to_puts_by_cores() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    let sent = ClusterClientOptions {
        one_sided_from_bytes: None,
        ..default_options()
    };
    let host = neighbour(&node, sent);
    let inside = node.handle(&default_options()).expect("clients");
    for (n, handle) in [host.handle(), inside].iter().enumerate() {
        assert!(!handle.hands_over());
        let stored = handle.put_all_waiting(objects(n * 10..n * 10 + 10, |_| 100), put());
        assert_written(&stored);
        let got = handle.get_bytes(key(n * 10 + 1)).wait();
        assert_eq!(got, Ok(Some(bytes_of(n * 10 + 1, 100))));
    }
    assert_eq!(handed_over(&node), 0);
}

#[test]
fn copies_that_others_are_to_have_are_made_of_what_is_handed_over() {
    let (_coordinating, coordinator) = coordinator();
    let nodes = [1, 2].map(|id| node(id, 1, coordinator));
    let host = handing(&nodes[0], default_options());
    let handle = host.handle();
    let two = PutOptions { copies: 2, ..put() };
    let stored = handle.put_all_waiting(objects(0..20, |n| n * 300), two);
    assert_written(&stored);
    let are_twice = (0..400).any(|_| {
        thread::sleep(Duration::from_millis(25));
        let located = handle.locate((0..20).map(key).collect()).wait();
        let located = located.into_iter().map(|located| located.expect("asked"));
        located
            .flatten()
            .filter(|located| located.nodes.len() == 2)
            .count()
            == 20
    });
    assert!(are_twice, "each is at two nodes");
}

#[test]
fn a_put_waits_for_a_core_that_does_something_else_and_for_no_longer_than_an_operation() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    let patience = Duration::from_secs(1);
    let impatient = ClusterClientOptions {
        timeout: patience,
        ..default_options()
    };
    let host = handing(&node, impatient);
    let handle = host.handle();
    let put_soon = |n: usize| {
        let (told, answer) = mpsc::channel();
        let handle = handle.clone();
        thread::spawn(move || told.send(put_one(&handle, (key(n), lent(n, 5000)), put())));
        answer
    };
    let waiting = while_stopped(&node, 1, || {
        let waiting = put_soon(1);
        let early = waiting.recv_timeout(A_WHILE);
        early.expect_err("nobody answers");
        waiting
    });
    assert_written(&[waiting.recv().expect("an answer")]);
    // More than there are slots for, none of which is anybody's afterwards.
    let begun = Instant::now();
    let late = while_stopped(&node, 1, || {
        let waiting: Vec<_> = (100..100 + SLOTS_MAX).map(put_soon).collect();
        waiting
            .into_iter()
            .map(|waiting| waiting.recv().expect("an answer"))
            .collect::<Vec<_>>()
    });
    assert!(begun.elapsed() < patience * 5, "no longer than that");
    for late in &late {
        let kind = late.expect_err("nobody answers").kind;
        assert_eq!(kind, StoreErrorKind::Interrupted);
    }
    let before = handed_over(&node);
    let stored = handle.put_all_waiting(objects(1000..1000 + 2 * SLOTS_MAX, |_| 20_000), put());
    assert_written(&stored);
    assert_eq!(
        handed_over(&node) - before,
        2 * SLOTS_MAX,
        "they are free again"
    );
    let got = handle.get_bytes(key(1001)).wait();
    assert_eq!(got, Ok(Some(bytes_of(1001, 20_000))));
}

#[test]
fn what_is_given_up_is_done_or_not_and_its_memory_is_free_at_once() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 1, coordinator);
    let host = handing(&node, default_options());
    let handle = host.handle();
    while_stopped(&node, 1, || {
        let mut handing = handle.hand_over(objects(0..10, |_| 3000), put());
        assert_eq!(handing.left_bytes(), 30_000);
        assert!(!handing.step(), "nobody answers");
        assert_eq!(handing.left_bytes(), 0, "all are on their way");
        handing.sleep(Duration::from_millis(10));
        drop(handing);
        let mut handing = handle.hand_over(objects(10..20, |_| 3000), put());
        assert!(!handing.step(), "nobody answers");
        let ended = handing.finish().wait();
        let kinds: Vec<_> = ended.iter().map(|ended| ended.as_ref().err()).collect();
        let interrupted = |error: &Option<&StoreError>| {
            error.is_some_and(|error| error.kind == StoreErrorKind::Interrupted)
        };
        assert!(kinds.iter().all(interrupted), "{ended:?}");
    });
    // They are done, as nobody has said otherwise.
    for n in 0..20 {
        let there = (0..200).any(|_| {
            thread::sleep(Duration::from_millis(5));
            handle.get_bytes(key(n)).wait() == Ok(Some(bytes_of(n, 3000)))
        });
        assert!(there, "object {n}");
    }
    let stored = handle.put_all_waiting(objects(100..100 + 3 * SLOTS_MAX, |_| 300), put());
    assert_written(&stored);
}

#[test]
fn puts_end_with_the_node_that_they_are_handed_to_and_go_on_with_the_next() {
    let (_coordinating, coordinator) = coordinator();
    let patience = Duration::from_secs(2);
    let impatient = ClusterClientOptions {
        timeout: patience,
        ..default_options()
    };
    let [first, second] = [1, 2].map(|id| node(id, 1, coordinator));
    second.joined().expect("it joins");
    let host = handing(&first, impatient);
    let handle = host.handle();
    let (told, answers) = mpsc::channel();
    let putting = handle.clone();
    let (stop, stopped) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        for n in 0.. {
            let stored = put_one(&putting, (key(n), lent(n, 2000)), put());
            told.send((n, stored)).expect("it is waited for");
            if stopped.try_recv().is_ok() {
                break;
            }
        }
    });
    let mut begun = answers.iter();
    let early: Vec<_> = begun.by_ref().take(50).collect();
    assert!(early.iter().all(|(_, stored)| stored.is_ok()), "{early:?}");
    first.shut_down().expect("in good order");
    // While the map is an old one, some are not known to be done, or take their time.
    let is_over = |(_, stored): &(usize, Result<Stored, StoreError>)| stored.is_ok();
    let begun_at = Instant::now();
    let mut in_a_row = 0;
    while in_a_row < 50 {
        assert!(begun_at.elapsed() < Duration::from_secs(60), "it goes on");
        let next = answers.recv_timeout(patience * 3).expect("no put hangs");
        in_a_row = if is_over(&next) { in_a_row + 1 } else { 0 };
    }
    stop.send(()).expect("it goes on");
    thread.join().expect("no panic");
}
