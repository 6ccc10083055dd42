//! Every interleaving of threads that wake tasks and a core that takes them and ends. Run by
//! `RUSTFLAGS="--cfg loom" cargo test -p lunette-runtime --release --test loom_woken`.
#![cfg(loom)]

use std::ptr::{self, NonNull};

use loom::sync::Arc;
use loom::sync::atomic::AtomicPtr;
use loom::thread;

#[path = "../src/mesh/woken.rs"]
mod woken;

use woken::{Linked, WokenList};

struct Node {
    number: usize,
    link: AtomicPtr<Node>,
}

impl Linked for Node {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

/// A node that its list owns.
fn node(number: usize) -> NonNull<Node> {
    let link = AtomicPtr::new(ptr::null_mut());
    NonNull::from(Box::leak(Box::new(Node { number, link })))
}

fn number_of(node: NonNull<Node>) -> usize {
    // SAFETY: made by `node`, and handed over by the list, or refused by it, once.
    unsafe { Box::from_raw(node.as_ptr()) }.number
}

/// Pushes both numbers of a sender. How many the list refused.
fn send(list: &WokenList<Node>, sender: usize) -> usize {
    let mut refused = 0;
    for number in [sender * 2, sender * 2 + 1] {
        let node = node(number);
        // SAFETY: a fresh node, which lives until it is handed over.
        if !unsafe { list.push(node) } {
            number_of(node);
            refused += 1;
        }
    }
    refused
}

#[test]
fn every_node_is_handed_over_once_and_in_the_order_of_its_sender() {
    loom::model(|| {
        let list = Arc::new(WokenList::new());
        let senders: Vec<_> = (0..2)
            .map(|sender| {
                let list = Arc::clone(&list);
                thread::spawn(move || send(&list, sender))
            })
            .collect();
        let mut got = Vec::new();
        list.take(|node| got.push(number_of(node)));
        for sender in senders {
            assert_eq!(sender.join().expect("no panic"), 0);
        }
        list.take(|node| got.push(number_of(node)));
        for sender in 0..2 {
            let own: Vec<_> = got.iter().filter(|&&number| number / 2 == sender).collect();
            assert_eq!(own, [&(sender * 2), &(sender * 2 + 1)]);
        }
    });
}

#[test]
fn what_comes_after_the_end_is_refused_and_nothing_is_lost() {
    loom::model(|| {
        let list = Arc::new(WokenList::new());
        let sender = {
            let list = Arc::clone(&list);
            thread::spawn(move || send(&list, 0))
        };
        let mut got = 0;
        list.close(|node| {
            number_of(node);
            got += 1;
        });
        let refused = sender.join().expect("no panic");
        assert_eq!(got + refused, 2);
        assert!(list.is_empty());
    });
}
