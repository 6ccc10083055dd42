//! What a core owes to the process that hosts it: it takes none of its signals, and does not follow
//! it through a fork.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks every signal for the calling thread, so that the host's handlers run on the host's own
/// threads and no system call of a core is interrupted by them.
pub(crate) fn block_signals() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the set that it is given, which is ours.
    let filled = unsafe { libc::sigfillset(all.as_mut_ptr()) };
    assert_eq!(filled, 0, "a set can be filled");
    // SAFETY: the set has just been initialised, and the old mask is not asked for. Only the calling
    // thread's mask changes.
    let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut()) };
    assert_eq!(blocked, 0, "a mask can be set");
}

/// Set in a child of a fork, for ever.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Watches for forks of this process from now on.
pub(crate) fn watch_forks() {
    static WATCHING: Once = Once::new();
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    WATCHING.call_once(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed in a child of a process
        // with threads; it is a function, so it lives as long as the process.
        let watched = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if watched != 0 {
            tracing::warn!(watched, "forks of this process are not watched");
        }
    });
}

/// Whether this process is a child of one in which a core was opened. The ring and the arenas of that
/// core belong to the parent: nothing of them may be used here.
pub(crate) fn is_fork_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::panic::{self, AssertUnwindSafe};
    use std::sync::Arc;
    use std::time::Duration;

    use lunette_runtime_core::ids::CoreIndex;

    use super::*;
    use crate::clock::Clock;
    use crate::executor::Core;
    use crate::mesh::Inbox;
    use crate::{CoreOptions, Placement, Runtime, StartError, block_on};

    #[test]
    fn a_thread_with_blocked_signals_takes_none() {
        std::thread::spawn(|| {
            block_signals();
            let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: asks for the calling thread's own handle, which always exists.
            let this_thread = unsafe { libc::pthread_self() };
            // SAFETY: a signal is sent to the calling thread alone, which has just blocked it.
            let sent = unsafe { libc::pthread_kill(this_thread, libc::SIGUSR1) };
            assert_eq!(sent, 0);
            // SAFETY: `sigpending` initialises the set that it is given, which is ours.
            let asked = unsafe { libc::sigpending(pending.as_mut_ptr()) };
            assert_eq!(asked, 0);
            // SAFETY: initialised by the call above.
            let is_pending = unsafe { libc::sigismember(pending.as_ptr(), libc::SIGUSR1) };
            assert_eq!(is_pending, 1, "it waits, and has not ended this process");
        })
        .join()
        .expect("no panic");
    }

    /// The signals that the calling thread blocks, by the bits of their numbers less one.
    fn blocked_here() -> u64 {
        let status = fs::read_to_string("/proc/thread-self/status").expect("procfs");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(mask.expect("a thread has a mask").trim(), 16).expect("a number")
    }

    #[test]
    fn the_thread_of_a_started_core_has_every_signal_blocked() {
        let own = blocked_here();
        let runtime = Runtime::start(&Placement::Anywhere(2), CoreOptions::default());
        let runtime = runtime.expect("cores");
        // Nobody can block these, and the C library keeps two for itself.
        let exempt = [libc::SIGKILL, libc::SIGSTOP, 32, 33];
        let exempt = exempt.map(|signal| 1_u64 << (signal - 1));
        let all = exempt.iter().fold(u64::MAX, |mask, signal| mask & !signal);
        for core in [CoreIndex(0), CoreIndex(1)] {
            let blocked = runtime.spawn_on(core, || async { blocked_here() });
            let blocked = blocked.expect("it runs").wait().expect("it ends");
            assert_eq!(blocked & all, all, "{blocked:#x}");
        }
        drop(runtime);
        assert_eq!(blocked_here(), own, "the host's own threads take them");
    }

    /// Runs `body` in a child of a fork of this process, which ends with the code that it gives, and
    /// returns how the child ended.
    ///
    /// The child calls nothing but `body`, which takes no lock that another thread of the parent may
    /// hold, and leaves without running any handler.
    fn in_child(body: impl FnOnce() -> i32) -> i32 {
        // SAFETY: see above; each caller says why its body takes no such lock.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = body();
            // SAFETY: ends this process at once, as a child of a fork should.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made; the status is ours.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(waited, child);
        status
    }

    #[test]
    fn a_runtime_is_refused_in_a_child_of_a_fork() {
        assert!(block_on(None, CoreOptions::default(), || async {}).is_ok());
        // The refusal comes before anything is allocated or opened.
        let status = in_child(|| {
            let refused = block_on(None, CoreOptions::default(), || async {});
            i32::from(refused != Err(StartError::Forked))
        });
        assert_eq!(status, 0, "the child was refused a core");
    }

    #[test]
    fn a_core_that_is_there_already_does_not_turn_in_a_child_of_a_fork() {
        watch_forks();
        let inbox = Arc::new(Inbox::new(CoreIndex(0)).expect("a bell"));
        let options = CoreOptions::default();
        let core = Core::open(CoreIndex(0), Arc::new([inbox]), Clock::start(), &options);
        let core = core.expect("a core");
        let entered = core.enter();
        // The core is this thread's alone, and the panic is caught where it is made. What it prints is
        // kept in memory by the test's own thread.
        let status = in_child(|| {
            let turned = panic::catch_unwind(AssertUnwindSafe(|| core.step()));
            let said = turned.err().and_then(|said| said.downcast::<&str>().ok());
            let is_refused = said.is_some_and(|said| said.contains("the process that opened it"));
            i32::from(!is_refused)
        });
        assert_eq!(status, 0, "the child's core did not turn");
        // The parent's has not been touched.
        core.block_on(async { crate::time::sleep(Duration::from_millis(1)).await });
        core.shut_down();
        drop(entered);
    }
}
