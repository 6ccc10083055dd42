//! The ring by itself.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::super::{Arrival, Descriptor, Handle, OPERATIONS_MAX, Table};
use super::*;

fn open() -> Option<Uring> {
    let uring = Uring::open(&DriverOptions::default());
    if uring.is_err() {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        println!("SKIP {name}: no io_uring here");
    }
    uring.ok()
}

#[test]
fn a_thread_may_open_rings_one_after_the_other_without_end() {
    // The kernel registers 16 of a thread's rings.
    for _ in 0..40 {
        let Some(uring) = open() else { return };
        assert!(
            uring.features().registered_ring,
            "its predecessors are gone"
        );
    }
}

#[test]
fn more_operations_than_the_queue_holds_all_complete() {
    let Some(mut uring) = open() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (server, _) = listener.accept().expect("accepted");
    let fd = Descriptor::plain(Handle::System(OwnedFd::from(server)));
    let mut table = Table::new();
    let receive = Submission::Receive { start: 0, len: 1 };
    let mut keys = Vec::new();
    for _ in 0..OPERATIONS_MAX {
        let lease = Lease::Bytes(vec![0]);
        let (key, lease) = table
            .insert(receive, Some(fd.clone()), lease)
            .expect("room");
        uring.submit(key, fd.target(), receive, lease, None);
        keys.push(key);
    }
    // Cancels and completions meet while the queue runs full again and again.
    for key in keys {
        uring.cancel(key);
    }
    drop(client);
    let mut completions = Vec::new();
    while completions.len() < OPERATIONS_MAX {
        uring.turn(Wait::For(Duration::from_millis(100)), &mut completions);
    }
    for completion in completions {
        table.complete(completion);
    }
    assert!(table.in_flight().is_empty(), "each has completed once");
}

/// A ring and the two ends of a connection: what it receives on, and the other.
struct Receiving {
    uring: Uring,
    table: Table,
    fd: Rc<Descriptor>,
    peer: TcpStream,
}

impl Receiving {
    fn open() -> Option<Self> {
        let uring = open()?;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        Some(Self {
            uring,
            table: Table::new(),
            fd: Descriptor::plain(Handle::System(OwnedFd::from(server))),
            peer,
        })
    }

    fn receive(&mut self) -> Key {
        let receive = Submission::Receive { start: 0, len: 4 };
        let lease = Lease::Bytes(vec![0; 4]);
        let inserted = self.table.insert(receive, Some(self.fd.clone()), lease);
        let (key, lease) = inserted.expect("room");
        let target = self.fd.target();
        self.uring.submit(key, target, receive, lease, None);
        key
    }

    fn send(&mut self, bytes: &[u8]) {
        self.peer.write_all(bytes).expect("room in the socket");
    }

    /// What completes, without waiting and within a second.
    fn completed(&mut self, count: usize) -> Vec<(u64, i32)> {
        let mut completions = Vec::new();
        let began = Instant::now();
        while completions.len() < count && began.elapsed() < Duration::from_secs(1) {
            if self.uring.has_work() {
                self.uring.turn(Wait::Poll, &mut completions);
            }
        }
        let results = completions.iter().map(|c| (c.user_data, c.result));
        let results = results.collect();
        for completion in completions {
            self.table.complete(completion);
        }
        results
    }
}

#[test]
fn a_held_receive_completes_without_the_ring() {
    let Some(mut one) = Receiving::open() else {
        return;
    };
    let key = one.receive();
    assert!(!one.uring.has_work(), "nothing has come");
    one.send(b"abc");
    assert_eq!(one.completed(1), [(key.user_data(), 3)]);
    assert!(!one.uring.wants_call() && one.uring.held.is_empty());
    let key = one.receive();
    one.peer.shutdown(Shutdown::Write).expect("open");
    assert_eq!(one.completed(1), [(key.user_data(), 0)], "the end is told");
}

#[test]
fn a_receive_asked_for_long_enough_goes_to_the_ring() {
    let Some(mut one) = Receiving::open() else {
        return;
    };
    let key = one.receive();
    for _ in 1..held::TRIES_MAX {
        assert!(!one.uring.has_work());
    }
    assert!(one.uring.has_work(), "this look was the last");
    let mut none = Vec::new();
    one.uring.turn(Wait::Poll, &mut none);
    assert!(none.is_empty() && one.uring.held.is_empty());
    one.send(b"abcd");
    assert_eq!(one.completed(1), [(key.user_data(), 4)]);
}

#[test]
fn more_receives_than_are_asked_for_go_to_the_ring() {
    let Some(mut one) = Receiving::open() else {
        return;
    };
    let keys: Vec<Key> = (0..=held::ASKED_MAX).map(|_| one.receive()).collect();
    assert!(one.uring.has_work());
    let mut none = Vec::new();
    one.uring.turn(Wait::Poll, &mut none);
    assert!(none.is_empty() && one.uring.held.is_empty());
    one.send(&vec![7; 4 * keys.len()]);
    let completed = one.completed(keys.len());
    assert!(completed.iter().all(|&(_, result)| result == 4));
    assert_eq!(completed.len(), keys.len());
}

#[test]
fn a_held_receive_is_cancelled_as_any_other() {
    let Some(mut one) = Receiving::open() else {
        return;
    };
    let key = one.receive();
    one.uring.cancel(key);
    let cancelled = -Errno::CANCELED.raw_os_error();
    assert_eq!(one.completed(1), [(key.user_data(), cancelled)]);
    one.send(b"abcd");
    let next = one.receive();
    assert_eq!(one.completed(1), [(next.user_data(), 4)], "nothing is lost");
}

#[test]
fn a_core_that_sleeps_hands_held_receives_over_first() {
    let Some(mut one) = Receiving::open() else {
        return;
    };
    one.receive();
    let mut peer = one.peer.try_clone().expect("a descriptor");
    let sending = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        peer.write_all(b"abcd").expect("room in the socket");
    });
    let mut completions = Vec::new();
    one.uring
        .turn(Wait::For(Duration::from_secs(5)), &mut completions);
    sending.join().expect("it sends");
    assert_eq!(completions.len(), 1, "the ring woke the core");
    one.table.complete(completions[0]);
}

#[test]
fn each_ring_of_a_bell_is_told_once_by_one_operation() {
    let Some(mut uring) = open() else {
        return;
    };
    let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
    let bell = Descriptor::plain(Handle::System(bell));
    let mut table = Table::new();
    let what = Submission::RingsMany;
    let inserted = table.insert(what, Some(Rc::clone(&bell)), Lease::Nothing);
    let (key, lease) = inserted.expect("room");
    uring.submit(key, bell.target(), what, lease, None);
    let mut told = |within: Duration| {
        let began = Instant::now();
        let mut completions = Vec::new();
        while completions.is_empty() && began.elapsed() < within {
            uring.turn(Wait::Poll, &mut completions);
        }
        completions
    };
    for _ in 0..100 {
        assert!(told(Duration::from_micros(200)).is_empty(), "it is silent");
        // Twice before it is looked, or once.
        for _ in 0..2 {
            rustix::io::write(bell.system(), &1_u64.to_ne_bytes()).expect("it never fills up");
        }
        for completion in told(Duration::from_secs(1)) {
            assert_eq!(completion.user_data, key.user_data());
            assert!(completion.flags.has_more(), "it goes on");
            table.complete(completion);
        }
        let context = &Context::from_waker(Waker::noop());
        let rung = table.poll_next(key, context);
        assert!(matches!(rung, Poll::Ready(Ok(Arrival::Rung))), "{rung:?}");
        while table.poll_next(key, context).is_ready() {}
    }
    assert_eq!(table.in_flight(), [key]);
}
