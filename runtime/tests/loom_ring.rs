//! Every interleaving of senders and the receiver of a ring. Run by
//! `RUSTFLAGS="--cfg loom" cargo test -p lunette-runtime --release --test loom_ring`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;

#[path = "../src/mesh/ring.rs"]
mod ring;

use ring::Ring;

#[test]
fn every_message_arrives_once_in_the_order_of_its_sender_through_a_ring_that_is_too_small() {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(|| {
        let ring = Arc::new(Ring::new(2));
        let senders: Vec<_> = (0..2_usize)
            .map(|sender| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    // Boxes, so that a message read twice or never is a fault.
                    let mut sent = 0;
                    for number in 0..2 {
                        sent += usize::from(ring.push(Box::new((sender, number))).is_ok());
                    }
                    sent
                })
            })
            .collect();
        let mut got = Vec::new();
        for _ in 0..2 {
            // SAFETY: this thread is the only receiver.
            got.extend(unsafe { ring.pop() });
            thread::yield_now();
        }
        let sent: usize = senders
            .into_iter()
            .map(|sender| sender.join().expect("no panic"))
            .sum();
        // SAFETY: as above.
        while let Some(message) = unsafe { ring.pop() } {
            got.push(message);
        }
        assert_eq!(got.len(), sent);
        for sender in 0..2 {
            let own: Vec<usize> = got
                .iter()
                .filter(|got| got.0 == sender)
                .map(|got| got.1)
                .collect();
            assert!(own.is_sorted());
        }
    });
}

#[test]
fn what_was_not_received_is_dropped_with_the_ring() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(2));
        let sender = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.push(Arc::new(())).is_ok())
        };
        // SAFETY: this thread is the only receiver.
        drop(unsafe { ring.pop() });
        assert!(sender.join().expect("no panic"));
    });
}
