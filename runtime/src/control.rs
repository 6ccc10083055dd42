//! The control thread: calls that block, kept off the cores.
//!
//! Opening, allocating and syncing files, name resolution and the like block for as long as they
//! like. There is one thread for them per process, started when it is first needed. It is not for
//! data: reads and writes go through the driver.

use std::future::Future;
use std::sync::OnceLock;
use std::thread;

use crossbeam::channel::{self, Sender, TrySendError};
use futures_channel::oneshot;
use thiserror::Error;

/// Calls that wait for the control thread.
pub const CONTROL_CALLS_MAX: usize = 256;

type Call = Box<dyn FnOnce() + Send>;

/// Why the control thread did not take a call. Nothing has been done.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ControlError {
    /// Too many calls wait already; try again later.
    #[error("too many blocking calls wait for the control thread")]
    Full,
    /// The thread could not be started, or an earlier call of it panicked.
    #[error("there is no control thread")]
    Gone,
}

impl ControlError {
    /// Whether waiting can help.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Full)
    }
}

/// Runs `call` on the control thread. It is queued when this function is called; dropping the future
/// does not take it back.
///
/// # Errors
/// Through the future: [`ControlError`].
pub fn control<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, ControlError>> {
    let (answer, answered) = oneshot::channel();
    let queued = calls().and_then(|calls| {
        let call: Call = Box::new(move || {
            // Whoever asked may be gone.
            drop(answer.send(call()));
        });
        calls.try_send(call).map_err(|error| match error {
            TrySendError::Full(_) => ControlError::Full,
            TrySendError::Disconnected(_) => ControlError::Gone,
        })
    });
    async move {
        queued?;
        answered.await.map_err(|_| ControlError::Gone)
    }
}

/// The queue of the control thread, which is started on the first call.
fn calls() -> Result<&'static Sender<Call>, ControlError> {
    static CALLS: OnceLock<Option<Sender<Call>>> = OnceLock::new();
    let sender = CALLS.get_or_init(|| {
        let (sender, receiver) = channel::bounded::<Call>(CONTROL_CALLS_MAX);
        let thread = thread::Builder::new().name("lunette-control".to_owned());
        let body = move || receiver.into_iter().for_each(|call| call());
        thread.spawn(body).ok().map(|_running| sender)
    });
    sender.as_ref().ok_or(ControlError::Gone)
}
