//! A peer whose core stands still now and then.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lunette_runtime::arena::Exposed;
use lunette_runtime::{CoreOptions, block_on, time};
use lunette_transfer::engine::RegisterOptions;

use crate::scene::engine;

/// An engine on a thread of its own, which stands still for as long as it is told.
pub(super) struct Sluggish {
    pub(super) address: SocketAddr,
    stall: mpsc::Sender<(Duration, mpsc::Sender<()>)>,
    owner: thread::JoinHandle<()>,
}

impl Sluggish {
    /// One that has registered this memory.
    pub(super) fn new(memory: impl FnOnce() -> Exposed + Send + 'static) -> Self {
        let (say, hear) = mpsc::channel();
        let (stall, stalls) = mpsc::channel::<(Duration, mpsc::Sender<()>)>();
        let owning = move || async move {
            let there = engine();
            let options = RegisterOptions::named("kv");
            there.register(memory(), &options).expect("registered");
            say.send(there.addresses()[0]).expect("heard");
            loop {
                match stalls.try_recv() {
                    // The whole core does, as if its process was stopped.
                    Ok((pause, begun)) => {
                        begun.send(()).expect("heard");
                        thread::sleep(pause);
                    }
                    Err(mpsc::TryRecvError::Disconnected) => return,
                    Err(mpsc::TryRecvError::Empty) => {
                        time::sleep(Duration::from_millis(1)).await;
                    }
                }
            }
        };
        let owner = thread::spawn(move || {
            block_on(None, CoreOptions::default(), owning).expect("a core");
        });
        Self {
            address: hear.recv().expect("said"),
            stall,
            owner,
        }
    }

    /// Has it stand still, from now on.
    pub(super) fn stand_still(&self, pause: Duration) {
        let (begun, begins) = mpsc::channel();
        self.stall.send((pause, begun)).expect("it listens");
        begins.recv().expect("it stands still");
    }

    /// Ends it.
    pub(super) fn end(self) {
        drop(self.stall);
        self.owner.join().expect("no panic");
    }
}
