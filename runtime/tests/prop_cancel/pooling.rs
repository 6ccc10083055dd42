//! Receives into a pool of buffers that are started, dropped and timed out: what arrives for nobody
//! goes back to its pool, and what is kept is not written again.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::net::{Receives, TcpStream};
use lunette_runtime::{BufferPool, JoinHandle, PooledBytes, spawn_local, time};

use crate::{DEADLINE, Faults, connected, given, is_sent};

pub(crate) const RECEIVERS: usize = 2;
const BUFFERS: u16 = 4;
const BUFFER_BYTES: usize = 2048;

/// Bytes in a buffer of the pool, and what they were when they came.
struct Kept {
    bytes: PooledBytes,
    as_received: Vec<u8>,
}

impl Kept {
    fn check(&self) {
        assert!(*self.bytes == *self.as_received, "written again while kept");
    }
}

struct Receiver {
    client: TcpStream,
    server: TcpStream,
    /// One at a time.
    receives: Option<JoinHandle<()>>,
}

pub(crate) struct Pooling {
    pool: BufferPool,
    receivers: Vec<Receiver>,
    kept: Rc<RefCell<Vec<Kept>>>,
    faults: Faults,
}

impl Pooling {
    pub(crate) async fn open(faults: &Faults) -> Self {
        let mut receivers = Vec::new();
        for _ in 0..RECEIVERS {
            let (client, server) = connected().await;
            receivers.push(Receiver {
                client,
                server,
                receives: None,
            });
        }
        Self {
            pool: BufferPool::new(BUFFERS, BUFFER_BYTES).expect("a pool"),
            receivers,
            kept: Rc::default(),
            faults: Rc::clone(faults),
        }
    }

    pub(crate) fn send(&self, which: usize, bytes: Vec<u8>) -> JoinHandle<()> {
        let stream = self.receivers[which].client.clone();
        let len = bytes.len();
        spawn_local(async move {
            let (sent, _) = stream.send_all(bytes, 0, len).await;
            sent.expect("the peer is there");
        })
    }

    /// Receives and keeps what comes, for so many microseconds if that is said, in place of who has.
    pub(crate) fn receive(&mut self, which: usize, us: Option<u64>) {
        self.stop(which);
        let receiver = &mut self.receivers[which];
        let receives = receiver.server.receives(&self.pool);
        let (kept, faults) = (Rc::clone(&self.kept), Rc::clone(&self.faults));
        receiver.receives = Some(spawn_local(async move {
            given(us, keep_all(receives, &kept, &faults)).await;
        }));
    }

    pub(crate) fn stop(&mut self, which: usize) {
        if let Some(receives) = self.receivers[which].receives.take() {
            receives.abort();
        }
    }

    /// Gives bytes back, having looked at them.
    pub(crate) fn give_back(&self, which: usize) {
        let mut kept = self.kept.borrow_mut();
        if !kept.is_empty() {
            let index = which % kept.len();
            kept.swap_remove(index).check();
        }
    }

    /// Every buffer comes back.
    pub(crate) async fn end(mut self) {
        for which in 0..RECEIVERS {
            self.stop(which);
        }
        self.receivers.clear();
        self.kept.take().iter().for_each(Kept::check);
        // The system goes on with the one that it has filled in part.
        let deadline = time::now() + DEADLINE;
        while self.pool.available() < usize::from(BUFFERS) - 1 {
            assert!(time::now() < deadline, "lost: {:?}", self.pool);
            time::sleep(Duration::from_micros(100)).await;
            // A receiver may have been stopped with its bytes in hand.
            self.kept.take().iter().for_each(Kept::check);
        }
    }
}

async fn keep_all(mut receives: Receives, kept: &RefCell<Vec<Kept>>, faults: &Faults) {
    while let Some(bytes) = receives.next().await.expect("the peer is there") {
        if !bytes.iter().all(|&byte| is_sent(byte)) {
            faults.borrow_mut().push("of a pool, not as sent".into());
        }
        let as_received = bytes.to_vec();
        kept.borrow_mut().push(Kept { bytes, as_received });
    }
}
