//! What operators look at: metrics and health of a node, over HTTP.
//!
//! It runs on a thread and a core of its own, which sleeps when nobody asks. A core of the node is asked
//! what it has counted, and answers between two turns of its loop; it never waits for anybody here.
//!
//! | file | subject |
//! |---|---|
//! | `server` | connections: how many, how long |
//! | `http` | as much of HTTP/1.1 as is spoken |
//! | `exposition` | the text of `/metrics` |
//! | `drives` | those of drives |
//! | `health` | the object of `/health` |

mod drives;
mod exposition;
mod health;
mod http;
mod server;

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use futures_channel::oneshot;
use lunette::kvstore::NodeWatch;
use lunette::runtime::arena::ArenaOptions;
use lunette::runtime::net::{REBIND_WAIT, TcpListener};
use lunette::runtime::{CoreOptions, Idle, block_on};

use super::failure::Failure;

/// Memory of its core, which only its driver needs.
const ARENA_BYTES: usize = 1024 * 1024;

/// Who is observed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub(super) node_id: u64,
    pub(super) cores: usize,
}

/// The server, until the value is dropped.
#[derive(Debug)]
pub(super) struct Observation {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Observation {
    /// Begins to answer at `listen`.
    pub(super) fn start(
        listen: SocketAddr,
        subject: Subject,
        watch: NodeWatch,
    ) -> Result<Self, Failure> {
        let fault = |error| Failure::file(&listen.to_string(), error);
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let run = move || run(listen, (subject, watch), &tell, stopped);
        let thread = thread::Builder::new().name("metrics".to_owned()).spawn(run);
        let thread = thread.map_err(fault)?;
        let bound = told.recv().map_err(|_ended| {
            let why = "the server of metrics has ended before it listened";
            fault(io::Error::other(why))
        })?;
        Ok(Self {
            address: bound.map_err(fault)?,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it answers.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if matches!(ended, Some(Err(_))) {
            tracing::error!("the server of metrics has ended by a bug");
        }
    }
}

fn run(
    listen: SocketAddr,
    (subject, watch): (Subject, NodeWatch),
    tell: &mpsc::Sender<io::Result<SocketAddr>>,
    stopped: oneshot::Receiver<()>,
) {
    let options = CoreOptions {
        idle: Idle::Efficient,
        arena: ArenaOptions {
            bytes_max: ARENA_BYTES,
            ..ArenaOptions::default()
        },
        ..CoreOptions::default()
    };
    let telling = tell.clone();
    let ran = block_on(None, options, move || async move {
        let listener = match TcpListener::bind_within(listen, REBIND_WAIT).await {
            Ok(listener) => listener,
            Err(error) => return drop(telling.send(Err(error))),
        };
        // Whoever started it waits for this.
        drop(telling.send(Ok(listener.local_addr())));
        server::serve(listener, subject, watch, stopped).await;
    });
    if let Err(error) = ran {
        drop(tell.send(Err(io::Error::other(error))));
    }
}
