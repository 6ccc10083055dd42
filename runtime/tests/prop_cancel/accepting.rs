//! Accepts that are dropped and timed out, and listeners that are closed while connections arrive: a
//! connection that arrives for nobody is closed, and its peer sees that.

use std::rc::Rc;

use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{JoinHandle, spawn_local, time};

use crate::{DEADLINE, given, listen};

pub(crate) struct Accepting {
    listener: Rc<TcpListener>,
    /// Each ends with the one connection that it accepts.
    accepts: Vec<JoinHandle<()>>,
    /// Each ends when its connection does.
    peers: Vec<JoinHandle<()>>,
}

impl Accepting {
    pub(crate) fn open() -> Self {
        Self {
            listener: Rc::new(listen()),
            accepts: Vec::new(),
            peers: Vec::new(),
        }
    }

    /// Waits for a connection, for so many microseconds if that is said, and closes it.
    pub(crate) fn accept(&mut self, us: Option<u64>) {
        let listener = Rc::clone(&self.listener);
        self.accepts.push(spawn_local(async move {
            if let Some(accepted) = given(us, listener.accept()).await {
                drop(accepted.expect("there are descriptors"));
            }
        }));
    }

    pub(crate) fn connect(&mut self) {
        let address = self.listener.local_addr();
        self.peers.push(spawn_local(async move {
            // The listener may be gone by now.
            if let Ok(stream) = TcpStream::connect(address).await {
                let (end, _) = stream.recv(vec![0], 0, 1).await;
                assert!(end.is_err() || end == Ok(0), "nobody sends");
            }
        }));
    }

    /// Drops the listener and all who wait for it, and goes on with another one.
    pub(crate) fn close(&mut self) {
        for accept in self.accepts.drain(..) {
            accept.abort();
        }
        self.listener = Rc::new(listen());
    }

    /// Nobody is to accept any more: every connection ends.
    pub(crate) async fn end(self) {
        for accept in self.accepts {
            accept.abort();
        }
        drop(self.listener);
        for peer in self.peers {
            let told = time::timeout(DEADLINE, peer).await;
            told.expect("a connection that nobody has is closed")
                .expect("no panic");
        }
    }
}
