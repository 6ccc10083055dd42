//! Every interleaving of a core that falls asleep and senders that would wake it. Run by
//! `RUSTFLAGS="--cfg loom" cargo test -p lunette-runtime --release --test loom_doorbell`.
#![cfg(loom)]
#![forbid(unsafe_code)]

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

#[path = "../src/mesh/doorbell.rs"]
mod doorbell;

use doorbell::Doorbell;

/// A core's inbox, its ring reduced to a count.
struct Inbox {
    mail: AtomicUsize,
    doorbell: Doorbell,
    /// Rings until it is heard, as an eventfd does.
    ringing: Mutex<bool>,
    rung: Condvar,
}

impl Inbox {
    fn send(&self) {
        self.mail.fetch_add(1, Ordering::Release);
        if self.doorbell.take_asleep() {
            *self.ringing.lock().expect("not poisoned") = true;
            self.rung.notify_one();
        }
    }

    /// Sleeps until `count` messages are there. A wake-up that is lost is a deadlock, which loom
    /// finds.
    fn receive(&self, count: usize) {
        while self.mail.load(Ordering::Acquire) < count {
            self.doorbell.set_asleep();
            if self.mail.load(Ordering::Acquire) < count {
                let mut ringing = self.ringing.lock().expect("not poisoned");
                while !*ringing {
                    ringing = self.rung.wait(ringing).expect("not poisoned");
                }
                *ringing = false;
            }
            self.doorbell.take_asleep();
        }
    }
}

fn model(senders: usize) {
    let mut bounded = loom::model::Builder::new();
    // Every interleaving with at most so many preemptions; more take hours and find no more.
    bounded.preemption_bound = Some(3);
    bounded.check(move || {
        let inbox = Arc::new(Inbox {
            mail: AtomicUsize::new(0),
            doorbell: Doorbell::new(),
            ringing: Mutex::new(false),
            rung: Condvar::new(),
        });
        let senders: Vec<_> = (0..senders)
            .map(|_| {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || inbox.send())
            })
            .collect();
        inbox.receive(senders.len());
        assert!(!inbox.doorbell.is_asleep(), "a core that is awake says so");
        for sender in senders {
            sender.join().expect("no panic");
        }
    });
}

#[test]
fn no_wake_up_of_one_sender_is_lost() {
    model(1);
}

#[test]
fn no_wake_up_of_two_senders_is_lost() {
    model(2);
}
