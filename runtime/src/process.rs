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
    use super::*;
    use crate::{CoreOptions, StartError, block_on};

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

    #[test]
    fn a_runtime_is_refused_in_a_child_of_a_fork() {
        assert!(block_on(None, CoreOptions::default(), || async {}).is_ok());
        // SAFETY: the child calls nothing but code that takes no lock that another thread of the
        // parent may hold (the refusal comes before anything is allocated or opened), then leaves
        // without running any handler.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = block_on(None, CoreOptions::default(), || async {});
            let code = i32::from(refused != Err(StartError::Forked));
            // SAFETY: ends this process at once, as a child of a fork should.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made; the status is ours.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0), "the child was refused a core");
    }
}
