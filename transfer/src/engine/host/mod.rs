//! An engine for programs that have no core: on cores of its own, asked from any thread.
//!
//! Every question travels to a core and its answer back, so a caller from a core of its own does
//! better with an [`Engine`] there. Memory is named by the segment under which it is registered.
//!
//! | module | subject |
//! |---|---|
//! | `answer` | [`Pending`], [`HandleError`] |
//! | `handle` | [`EngineHandle`]: registering, opening |
//! | `peer` | [`PeerHandle`]: transfers |
//! | `spread` | which cores carry a batch, and how many bytes each |
//! | `parts` | a batch that several cores carry |

mod answer;
mod handle;
mod parts;
mod peer;
mod spread;

use std::net::SocketAddr;

use futures_channel::oneshot;
use lunette_runtime::{Answer, CoreOptions, Placement, Runtime};
use lunette_runtime_core::ids::CoreIndex;

use super::error::StartError;
use super::siblings::Sibling;
use super::{Engine, EngineOptions};

pub use answer::{HandleError, HostError, Pending};
pub use handle::EngineHandle;
pub use peer::{HandleRequest, PeerHandle};

/// An engine on cores of its own. It ends with this value; handles then say so.
#[derive(Debug)]
pub struct EngineHost {
    handle: EngineHandle,
    addresses: Vec<SocketAddr>,
    epoch: u64,
    parts: Vec<Part>,
    /// Ends its cores when dropped.
    _runtime: Runtime,
}

/// What runs on one core.
#[derive(Debug)]
struct Part {
    /// Has it end in good order.
    close: oneshot::Sender<()>,
    ended: Answer<()>,
}

impl EngineHost {
    /// Starts an engine on cores of its own: as many as are placed. What handles post is spread over them.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn start(
        placement: &Placement,
        core: CoreOptions,
        options: &EngineOptions,
    ) -> Result<Self, HostError> {
        let runtime = Runtime::start(placement, core)?;
        let (handle, siblings) = Engine::siblings(options, runtime.cores())?;
        let mut answers = Vec::new();
        let mut parts = Vec::new();
        for (core, sibling) in (0..).map(CoreIndex).zip(siblings) {
            let (started, answer) = oneshot::channel();
            let (close, closing) = oneshot::channel();
            let hosting = runtime.spawn_on(core, move || host(sibling, started, closing));
            let ended = hosting.map_err(|_| HostError::Ended)?;
            parts.push(Part { close, ended });
            answers.push(answer);
        }
        let mut first = None;
        for answer in answers {
            let started = pollster::block_on(answer).map_err(|_| HostError::Ended)??;
            first.get_or_insert(started);
        }
        let (addresses, epoch) = first.expect("a runtime has a core");
        Ok(Self {
            handle,
            addresses,
            epoch,
            parts,
            _runtime: runtime,
        })
    }

    /// Ends it in good order on all cores. See [`Engine::close`]. Not for a core's thread.
    pub fn close(self) {
        let ending: Vec<_> = self.parts.into_iter().map(Part::close).collect();
        for ended in ending {
            // A core that has failed has ended too.
            let _ended = ended.wait();
        }
    }

    /// Where its first core listens. Who opens it by these learns of the others.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Its session epoch: the holder in what peers grant to it.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A handle to it.
    #[must_use]
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }
}

/// Where a core listens, and its engine's epoch.
type Started = (Vec<SocketAddr>, u64);

impl Part {
    fn close(self) -> Answer<()> {
        // Where nobody hears it, it has ended.
        let _told = self.close.send(());
        self.ended
    }
}

async fn host(
    sibling: Sibling,
    started: oneshot::Sender<Result<Started, StartError>>,
    closing: oneshot::Receiver<()>,
) {
    match sibling.start() {
        Ok(engine) => {
            // Whoever started it has given up otherwise.
            drop(started.send(Ok((engine.addresses().to_vec(), engine.epoch()))));
            match closing.await {
                Ok(()) => engine.close().await,
                // It is dropped with its cores.
                Err(_) => std::future::pending().await,
            }
        }
        Err(error) => drop(started.send(Err(error))),
    }
}
