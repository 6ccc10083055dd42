//! The control thread: calls that block, kept off the cores.
//!
//! Opening, allocating and syncing files, name resolution and the like block for as long as they
//! like. There is one thread for them per process, started when it is first needed; a program whose
//! main thread only waits may have that do it instead ([`ControlHere`]). It is not for data: reads and
//! writes go through the driver.

use std::future::Future;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender, TrySendError};
use futures_channel::oneshot;
use thiserror::Error;

/// Calls that wait for the control thread.
pub const CONTROL_CALLS_MAX: usize = 256;

/// What the control thread is asked.
enum Ask {
    Call(Box<dyn FnOnce() + Send>),
    /// To end, and to give what is asked later to another thread.
    HandOver(SyncSender<Receiver<Self>>),
}

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
        let call = Box::new(move || {
            // Whoever asked may be gone.
            drop(answer.send(call()));
        });
        calls
            .try_send(Ask::Call(call))
            .map_err(|error| match error {
                TrySendError::Full(_) => ControlError::Full,
                TrySendError::Disconnected(_) => ControlError::Gone,
            })
    });
    async move {
        queued?;
        answered.await.map_err(|_| ControlError::Gone)
    }
}

/// The calling thread, while it is the control thread. Calls wait for [`serve_for`](Self::serve_for): what is done in between
/// is not to need any. Dropping it leaves them to a thread of their own again.
#[derive(Debug)]
pub struct ControlHere {
    /// None once another thread has taken its place.
    asked: Option<Receiver<Ask>>,
}

impl ControlHere {
    /// Makes the calling thread the control thread, in place of the one that is; blocks until that has done what it was asked
    /// before. For a program whose main thread would only wait, and which is to have no thread more than it needs.
    ///
    /// # Errors
    /// [`ControlError::Gone`].
    pub fn take() -> Result<Self, ControlError> {
        let (hand, handed) = sync_channel(1);
        let sent = calls()?.send(Ask::HandOver(hand));
        sent.map_err(|_no_thread| ControlError::Gone)?;
        let asked = handed.recv().map_err(|_panicked| ControlError::Gone)?;
        Ok(Self { asked: Some(asked) })
    }

    /// Does what is asked, for so long, and whatever it has begun by then.
    pub fn serve_for(&mut self, duration: Duration) {
        let until = Instant::now() + duration;
        while let Some(asked) = &self.asked {
            match asked.recv_deadline(until) {
                Ok(Ask::Call(call)) => call(),
                Ok(Ask::HandOver(to)) => self.hand_over(&to),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
        thread::sleep(until.saturating_duration_since(Instant::now()));
    }

    fn hand_over(&mut self, to: &SyncSender<Receiver<Ask>>) {
        if let Some(asked) = self.asked.take()
            && let Err(back) = to.send(asked)
        {
            // Whoever wanted it is gone: then it stays.
            self.asked = Some(back.0);
        }
    }
}

impl Drop for ControlHere {
    fn drop(&mut self) {
        // After a panic of a call there is none any more.
        if let Some(asked) = self.asked.take().filter(|_| !thread::panicking())
            && start(asked).is_none()
        {
            tracing::error!("the system refuses a control thread");
        }
    }
}

/// The queue of the control thread, which is started on the first call.
fn calls() -> Result<&'static Sender<Ask>, ControlError> {
    static CALLS: OnceLock<Option<Sender<Ask>>> = OnceLock::new();
    let sender = CALLS.get_or_init(|| {
        let (sender, asked) = channel::bounded(CONTROL_CALLS_MAX);
        start(asked).map(|()| sender)
    });
    sender.as_ref().ok_or(ControlError::Gone)
}

/// Starts the thread, if the system lets it.
fn start(asked: Receiver<Ask>) -> Option<()> {
    let thread = thread::Builder::new().name("lunette-control".to_owned());
    thread.spawn(move || run(asked)).ok().map(drop)
}

fn run(asked: Receiver<Ask>) {
    while let Ok(ask) = asked.recv() {
        match ask {
            Ask::Call(call) => call(),
            // Whoever wanted it may be gone: then it stays.
            Ask::HandOver(to) if to.send(asked.clone()).is_ok() => return,
            Ask::HandOver(_) => {}
        }
    }
}
