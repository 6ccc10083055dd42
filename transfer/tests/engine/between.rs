//! Somebody on the way between two engines.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::scene::KIB;

/// What befalls many bytes that come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// One of them is changed.
    Change,
    /// After half of them, nothing comes any more from who asks.
    HoldBackWrites,
    /// The same, from who answers.
    HoldBackReads,
}

/// Somebody on the way, who keeps what goes by, and does harm as often as told.
pub(crate) struct Between {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
    left: Arc<AtomicUsize>,
}

impl Between {
    pub(crate) fn start(to: SocketAddr, harm: Harm, times: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
        let left = Arc::new(AtomicUsize::new(times));
        let (kept, harms) = (Arc::clone(&seen), Arc::clone(&left));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.expect("accepted"), TcpStream::connect(to));
                let server = server.expect("connected");
                for (from, into, spared) in [
                    (&client, &server, Harm::HoldBackReads),
                    (&server, &client, Harm::HoldBackWrites),
                ] {
                    let from = from.try_clone().expect("a descriptor");
                    let into = into.try_clone().expect("a descriptor");
                    let (seen, left) = (Arc::clone(&kept), Arc::clone(&harms));
                    let harm = (harm != spared).then_some(harm);
                    thread::spawn(move || pass_on(from, into, &seen, harm, &left));
                }
            }
        });
        Self {
            address,
            seen,
            left,
        }
    }

    /// How often it is still to do harm.
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::SeqCst)
    }

    /// What has gone by.
    pub(crate) fn seen(&self) -> Vec<u8> {
        self.seen.lock().expect("nobody panicked").clone()
    }
}

/// Passes bytes on, with that harm to many at once while there is some left to do.
fn pass_on(
    mut from: TcpStream,
    mut into: TcpStream,
    seen: &Mutex<Vec<u8>>,
    harm: Option<Harm>,
    left: &AtomicUsize,
) {
    let mut buffer = vec![0; 128 * KIB];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        seen.lock()
            .expect("nobody panicked")
            .extend(&buffer[..count]);
        let is_bulk = count > 32 * KIB;
        let take = |left: usize| left.checked_sub(1);
        let harm = harm.filter(|_| {
            is_bulk
                && left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                    .is_ok()
        });
        let is_held_back = harm.is_some_and(|harm| harm != Harm::Change);
        if harm == Some(Harm::Change) {
            buffer[count / 2] ^= 0x10;
        }
        let passed = if is_held_back { count / 2 } else { count };
        if into.write_all(&buffer[..passed]).is_err() {
            break;
        }
        // The rest is read, and goes nowhere, until somebody gives up.
        while is_held_back && matches!(from.read(&mut buffer), Ok(1..)) {}
    }
    // Either may be closed already.
    drop((from.shutdown(Shutdown::Both), into.shutdown(Shutdown::Both)));
}
