//! Receives that have not been handed to the ring.
//!
//! A receive for which nothing has come yet is made to wait in the kernel, is woken by who sends, and is
//! run again when the loop asks the ring to. A core that polls can ask the socket as well, which takes
//! less of everybody's time and costs nothing while there is nothing else to do. So a receive is kept
//! here first, behind all sends, is asked for at each look, and goes to the ring when the core sleeps,
//! when it was asked for in vain for long, or when there are so many that asking takes longer than being
//! told.

use std::io;
use std::os::fd::RawFd;

use io_uring::squeue;

use super::super::{Completion, Submission, Target};
use super::entry::part;
use crate::lease::Lease;

/// With more receives than these none is asked for.
pub(super) const ASKED_MAX: usize = 4;
/// How often a receive is asked for before it goes to the ring: about as long as a core polls.
pub(super) const TRIES_MAX: u32 = 128;

/// How the socket is asked.
enum Ask {
    Into(*mut u8, usize),
    List(*mut libc::msghdr),
}

/// One receive.
struct Receive {
    /// What the ring is told of it.
    entry: squeue::Entry,
    fd: RawFd,
    /// None if only the ring can do it.
    ask: Option<Ask>,
    tries: u32,
}

/// The receives, the oldest first.
#[derive(Default)]
pub(super) struct Held {
    receives: Vec<Receive>,
}

impl Held {
    /// Keeps a receive. The caller keeps its lease in place until its completion.
    pub(super) fn keep(
        &mut self,
        entry: squeue::Entry,
        target: Target,
        what: Submission,
        lease: &mut Lease,
    ) {
        let ask = match (what, lease) {
            (Submission::Receive { start, len }, lease) => {
                let (to, len) = part(lease.writable(), start, len);
                Some(Ask::Into(to, len as usize))
            }
            (Submission::ReceiveScatter, Lease::Scatter(scatter)) => {
                Some(Ask::List(scatter.header()))
            }
            _ => None,
        };
        self.receives.push(Receive {
            entry,
            fd: target.fd,
            ask,
            tries: 0,
        });
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.receives.is_empty()
    }

    /// Asks each socket once, and appends what has come. Whether there is anything to do: completions, or
    /// receives for the ring.
    pub(super) fn ask(&mut self, out: &mut Vec<Completion>) -> bool {
        if self.receives.is_empty() {
            return false;
        }
        if self.receives.len() > ASKED_MAX {
            return true;
        }
        let before = out.len();
        let mut is_due = false;
        self.receives.retain_mut(|receive| {
            let result = receive.ask();
            is_due |= receive.is_due();
            out.extend(
                result.map(|result| Completion::only(receive.entry.get_user_data(), result)),
            );
            result.is_none()
        });
        is_due || out.len() > before
    }

    /// Takes the receives that are for the ring now: all of them, if the core is going to sleep.
    pub(super) fn take(&mut self, sleeps: bool) -> impl Iterator<Item = squeue::Entry> {
        let all = sleeps || self.receives.len() > ASKED_MAX;
        let taken = self
            .receives
            .extract_if(.., move |receive| all || receive.is_due());
        taken.map(|receive| receive.entry)
    }
}

impl Receive {
    const fn is_due(&self) -> bool {
        self.ask.is_none() || self.tries >= TRIES_MAX
    }

    /// What came, as a completion's result. `None` if nothing has yet.
    fn ask(&mut self) -> Option<i32> {
        let count = match self.ask {
            None => return None,
            // SAFETY: the memory is writable for `len` bytes: it is a part of the operation's lease, which
            // the operation table keeps in place, lent, until the completion that this result becomes.
            Some(Ask::Into(to, len)) => unsafe {
                libc::recv(self.fd, to.cast(), len, libc::MSG_DONTWAIT)
            },
            // SAFETY: header, list and memory belong to the operation's lease, as above.
            Some(Ask::List(header)) => unsafe {
                libc::recvmsg(self.fd, header, libc::MSG_DONTWAIT)
            },
        };
        self.tries += 1;
        if let Ok(count) = usize::try_from(count) {
            return Some(i32::try_from(count).expect("a receive is of less than 2 GiB"));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error().expect("the call has failed") {
            libc::EAGAIN | libc::EINTR => None,
            code => Some(-code),
        }
    }
}
