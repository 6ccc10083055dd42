//! What a task asks of the core that runs it.

use std::future::Future;
use std::panic::Location;
use std::rc::Rc;

use lunette_runtime_core::ids::CoreIndex;
use rustix::io::Errno;
use thiserror::Error;

use crate::arena::Arena;
use crate::driver::DriverKind;
use crate::executor::{
    Class, Core, CoreCounts, CoreWaker, JoinHandle, Scheduler, Source, SourceGuard,
};
#[cfg(doc)]
use crate::executor::{JoinError, SOURCES_MAX, TASKS_MAX};

/// Starts a task on the current core. It runs at the earliest in the next turn, also if the
/// returned handle is dropped.
///
/// At [`TASKS_MAX`] tasks nothing is started, and the handle answers [`JoinError::TooManyTasks`].
///
/// # Panics
/// Outside a runtime.
#[track_caller]
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let here = Location::caller();
    Scheduler::with_current(|scheduler| scheduler.spawn(None, here, future))
}

/// As [`spawn_local`], with a [`Class`] of its own, which the tasks that it spawns inherit.
///
/// # Panics
/// Outside a runtime.
#[track_caller]
pub fn spawn_local_as<F>(class: Class, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let here = Location::caller();
    Scheduler::with_current(|scheduler| scheduler.spawn(Some(class), here, future))
}

/// Whether a task that is started now on the current core will run: there are fewer than [`TASKS_MAX`], and the
/// core does not shut down. For those who have to say so while they still have what the task would take.
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn can_spawn() -> bool {
    Core::with_current(|core| core.can_spawn())
}

/// The core that the calling task runs on.
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn current_core() -> CoreIndex {
    Core::current().index()
}

/// How many cores the current runtime has.
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn core_count() -> usize {
    Core::current().peers_len()
}

/// What tasks of the current core share: its one value of this type, which is made when it is first asked
/// for, and dropped with the core at the latest. No other core sees it.
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn core_local<T: Default + 'static>() -> Rc<T> {
    Core::with_current(|core| core.local())
}

/// The current core's arena.
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn arena() -> Arena {
    Core::current().arena().clone()
}

/// The current core's driver, and what it found in this kernel.
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn driver() -> DriverKind {
    Core::current().driver_kind()
}

/// What the current core has done since it was opened.
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn core_counts() -> CoreCounts {
    Core::current().counts()
}

/// A handle that wakes the current core from any thread, for a [`Source`].
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn core_waker() -> CoreWaker {
    Core::current().waker()
}

/// Polls `source` in the current core's loop until the guard is dropped.
///
/// # Errors
/// The source, if the core has [`SOURCES_MAX`] of them.
///
/// # Panics
/// Outside a runtime.
pub fn add_source(source: impl Source + 'static) -> Result<SourceGuard, Box<dyn Source>> {
    Core::current().add_source(Box::new(source))
}

/// Why a core's memory is not known to its driver. Operations work without.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RegisterError {
    /// The driver knows no memory by index.
    #[error("this driver does not register memory")]
    Unsupported,
    /// Pinning was refused: the memory counts against the memlock limit.
    #[error("memory cannot be pinned: raise the memlock limit (ulimit -l)")]
    Memlock,
    /// Anything else that the system said.
    #[error("memory was not registered: {0}")]
    Refused(Errno),
}

/// Registers the chunks that the current core's arena has mapped so far with its driver: reads and
/// writes of files from and to them then pin no pages. Returns the number of registered chunks.
///
/// It pins every page, which takes about a millisecond for each 64 MiB of memory that has been
/// touched ([`Arena::prefault`]), and much longer where it has not: call it when a core starts.
///
/// # Errors
/// [`RegisterError`]: chunks that came before the refused one are registered.
///
/// # Panics
/// Outside a runtime.
pub fn register_arena() -> Result<usize, RegisterError> {
    Core::current()
        .register_chunks()
        .map_err(|errno| match errno {
            Errno::OPNOTSUPP => RegisterError::Unsupported,
            Errno::NOMEM => RegisterError::Memlock,
            errno => RegisterError::Refused(errno),
        })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{CoreOptions, Placement, Runtime, block_on};

    #[test]
    fn tasks_of_a_core_share_one_value_of_each_type() {
        #[derive(Default)]
        struct Count(Cell<u32>);
        #[derive(Default)]
        struct Other(Cell<u32>);

        let held = block_on(None, CoreOptions::default(), || async {
            core_local::<Count>().0.set(1);
            let seen = spawn_local(async { core_local::<Count>().0.replace(2) });
            assert_eq!(seen.await.expect("it ends"), 1);
            assert_eq!(core_local::<Count>().0.get(), 2);
            core_local::<Other>().0.get()
        });
        assert_eq!(held.expect("a core"), 0);
        let runtime = Runtime::start(&Placement::Anywhere(2), CoreOptions::default());
        let runtime = runtime.expect("two cores");
        let count = |core| {
            let counted = runtime.spawn_on(CoreIndex(core), || async {
                let count = core_local::<Count>();
                count.0.set(count.0.get() + 1);
                count.0.get()
            });
            counted.expect("it runs").wait().expect("it ends")
        };
        assert_eq!([count(0), count(0), count(1)], [1, 2, 1]);
    }
}
