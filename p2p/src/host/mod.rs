//! A store for programs that have no core: on a core of its own, asked from any thread.
//!
//! Questions travel to the core and answers back. Memory is lent as [`SharedMemory`](lunette_runtime::arena::SharedMemory):
//! the core lets go of it when an object is not held any more, or was not to be.
//!
//! | module | subject |
//! |---|---|
//! | `handle` | [`StoreHandle`], [`HeldHandle`]: what threads ask |
//! | `filing` | objects in files |
//! | `lending` | [`LentBuffers`]: memory of threads, of the host or of devices |
//! | `updating` | [`OfferHandle`], [`UpdateHandle`]: weights in buckets |
//! | `hosted` | what answers on the core |

mod filing;
mod handle;
mod hosted;
mod lending;
mod updating;

use std::future::Future;
use std::net::SocketAddr;

use futures_channel::oneshot;
use lunette_runtime::{Answer, CoreOptions, Placement, Port, Runtime, channel, spawn_local};
use lunette_runtime_core::ids::CoreIndex;
use thiserror::Error;

pub use self::handle::{HandleError, HeldHandle, Pending, StoreHandle};
use self::handle::{QUESTIONS_MAX, Questions};
use self::hosted::{Hosted, Question};
pub use self::lending::LentBuffers;
pub use self::updating::{OfferHandle, UpdateHandle};
use crate::error::StartError;
use crate::store::{Store, StoreOptions};

/// Why a hosted store did not start.
#[derive(Debug, Error)]
pub enum HostError {
    /// Its core did not.
    #[error(transparent)]
    Core(#[from] lunette_runtime::StartError),
    /// The store on it did not.
    #[error(transparent)]
    Store(#[from] StartError),
    /// The core ended at once.
    #[error("the store's core ended at once")]
    Ended,
}

impl HostError {
    /// Whether trying again later may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Store(StartError::Lease(fault)) if fault.is_retryable())
    }
}

/// A store on a core of its own. It ends with this value; handles then say so.
#[derive(Debug)]
pub struct StoreHost {
    handle: StoreHandle,
    addresses: Vec<SocketAddr>,
    /// Has it end in good order.
    close: oneshot::Sender<()>,
    ended: Answer<()>,
    /// Ends its core when dropped.
    _runtime: Runtime,
}

type Started = Result<Vec<SocketAddr>, StartError>;

impl StoreHost {
    /// Starts a store with what `options` makes, on the core. Not for a core's thread.
    ///
    /// # Errors
    /// [`HostError`]: nothing is left running.
    pub fn start(
        core: CoreOptions,
        options: impl FnOnce() -> StoreOptions + Send + 'static,
    ) -> Result<Self, HostError> {
        pollster::block_on(Self::starting(core, options)?)
    }

    /// As [`start`](Self::start), for whoever waits otherwise. Dropping the future ends what has been started, and waits for
    /// its core.
    ///
    /// # Errors
    /// [`HostError`]: nothing is left running.
    pub fn starting(
        core: CoreOptions,
        options: impl FnOnce() -> StoreOptions + Send + 'static,
    ) -> Result<impl Future<Output = Result<Self, HostError>> + Send, HostError> {
        let runtime = Runtime::start(&Placement::Anywhere(1), core)?;
        let (questions, port) = channel(QUESTIONS_MAX);
        let questions = Questions::new(questions);
        let dropped = questions.dropped();
        let (started, answer) = oneshot::channel();
        let (close, closing) = oneshot::channel();
        let hosting = runtime.spawn_on(CoreIndex(0), move || async move {
            let store = match Store::start(options()).await {
                Ok(store) => store,
                // Whoever started it has given up otherwise. Here and below.
                Err(error) => return drop(started.send(Err(error))),
            };
            let addresses = store.engine().addresses().to_vec();
            let hosted = Hosted::new(store.clone(), dropped);
            drop(started.send(Ok(addresses)));
            host(store, hosted, port, closing).await;
        });
        let ended = hosting.map_err(|_| HostError::Ended)?;
        Ok(async move {
            let started: Started = answer.await.map_err(|_| HostError::Ended)?;
            Ok(Self {
                handle: StoreHandle::new(questions),
                addresses: started?,
                close,
                ended,
                _runtime: runtime,
            })
        })
    }

    /// Lets all go that is held, and ends it ([`Store::close`]). Not for a core's thread.
    pub fn close(self) {
        // Where nobody hears it, it has ended.
        let _told = self.close.send(());
        // A core that has failed has ended too.
        let _ended = self.ended.wait();
    }

    /// Where its engine listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A handle to it.
    #[must_use]
    pub fn handle(&self) -> StoreHandle {
        self.handle.clone()
    }
}

async fn host(
    store: Store,
    hosted: Hosted,
    questions: Port<Question>,
    closing: oneshot::Receiver<()>,
) {
    // One task of a new core: there is room, and a port is opened once.
    let answering = questions
        .open()
        .map(|open| spawn_local(hosted.answer_all(open)));
    match closing.await {
        Ok(()) => store.close().await,
        // It is dropped with its core.
        Err(_) => std::future::pending().await,
    }
    drop(answering);
}
