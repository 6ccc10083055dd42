//! The ring by itself.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::super::{Descriptor, Handle, OPERATIONS_MAX, Table};
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
