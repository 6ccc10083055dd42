//! The io_uring driver.
//!
//! One ring, used by one thread, `DEFER_TASKRUN` so that completions run when the loop asks and
//! never in between, the ring's descriptor registered. Each feature is probed at start; without
//! `DEFER_TASKRUN` the ring falls back to `COOP_TASKRUN`, then to a plain one.

mod entry;
mod held;
mod passthrough;
mod polled;
mod registered;
mod setup;

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Submitter, opcode, squeue};
use rustix::io::Errno;

use super::probe::{Features, ProbeError};
use super::{Completion, CompletionFlags, DriverOptions, Key, Submission, Target, Via, Wait};
use crate::lease::Lease;
use crate::pool::OfferRing;
use held::Held;
use passthrough::Passthrough;
use polled::Polled;
use registered::{Buffers, Files};

/// Completions of the driver's own requests, above every key.
const TOKEN_OWN: u64 = u64::MAX;
const TOKEN_WAKE: u64 = u64::MAX - 1;
/// The ring for commands has a completion.
const TOKEN_PASSTHROUGH: u64 = u64::MAX - 2;
const TOKENS_FIRST: u64 = TOKEN_PASSTHROUGH;

/// One ring.
pub(crate) struct Uring {
    /// Borrows the ring; declared first so that it drops first. It carries the registered index of
    /// the ring's descriptor, which a fresh submitter would not.
    submitter: Submitter<'static>,
    ring: Box<IoUring>,
    features: Features,
    files: Files,
    buffers: Buffers,
    polled: Polled,
    passthrough: Passthrough,
    /// Whether the ring waits for that one's descriptor.
    awaits_passthrough: bool,
    /// Times of linked timeouts, until the kernel has read them.
    #[expect(clippy::vec_box, reason = "the ring holds their addresses")]
    timeouts: Vec<Box<Timespec>>,
    /// Completions that were reaped while an entry was queued; the next turn hands them out.
    early: Vec<Completion>,
    held: Held,
}

impl Uring {
    /// Opens a ring on the calling thread.
    pub(crate) fn open(options: &DriverOptions) -> Result<Self, ProbeError> {
        let (ring, defer_taskrun) = setup::build()?;
        if !ring.params().is_feature_nodrop()
            || !ring.params().is_feature_ext_arg()
            || !ring.params().is_feature_submit_stable()
        {
            return Err(ProbeError::TooOld(
                "io_uring's NODROP, EXT_ARG or SUBMIT_STABLE",
            ));
        }
        let ring = Box::new(ring);
        let submitter = ring.submitter();
        // SAFETY: the submitter borrows the ring in the box beside it. The box never moves its
        // content, is not replaced while `self` lives, and drops after the submitter (field order).
        let mut submitter =
            unsafe { std::mem::transmute::<Submitter<'_>, Submitter<'static>>(submitter) };
        let (features, files) = setup::features(&mut submitter, defer_taskrun, options)?;
        Ok(Self {
            submitter,
            ring,
            features,
            files,
            buffers: Buffers::default(),
            polled: Polled::default(),
            passthrough: Passthrough::default(),
            awaits_passthrough: false,
            timeouts: Vec::new(),
            early: Vec::new(),
            held: Held::default(),
        })
    }

    pub(crate) const fn features(&self) -> Features {
        self.features
    }

    pub(crate) fn wake_fd(&self) -> Option<RawFd> {
        self.features.message_ring.then(|| self.ring.as_raw_fd())
    }

    pub(crate) fn submit(
        &mut self,
        key: Key,
        target: Target,
        what: Submission,
        lease: &mut Lease,
        timeout: Option<Duration>,
    ) {
        match target.via {
            Via::System => {}
            Via::Polling => {
                let entry = entry::entry(target.by_number(), what, lease, |_, _| None);
                return self.polled.push(&entry.user_data(key.user_data()));
            }
            Via::Commands(namespace) => {
                return self
                    .passthrough
                    .push(key, target.fd, namespace, what, lease);
            }
        }
        let registered = |address, len| self.buffers.index_of(address, len);
        let entry = entry::entry(target, what, lease, registered).user_data(key.user_data());
        match timeout {
            None if what.is_receive() => self.held.keep(entry, target, what, lease),
            None => self.push(&[entry]),
            Some(timeout) => self.push_with_timeout(entry, timeout),
        }
    }

    /// Queues an entry that is cancelled if it has not completed in time.
    fn push_with_timeout(&mut self, entry: squeue::Entry, timeout: Duration) {
        let time = Box::new(timespec(timeout));
        let expiry = opcode::LinkTimeout::new(&raw const *time)
            .build()
            .user_data(TOKEN_OWN);
        self.timeouts.push(time);
        self.push(&[entry.flags(squeue::Flags::IO_LINK), expiry]);
    }

    pub(crate) fn cancel(&mut self, key: Key) {
        // What is to be cancelled must be there.
        self.push_held(true);
        let entry = opcode::AsyncCancel::new(key.user_data())
            .build()
            .user_data(TOKEN_OWN);
        self.push(&[entry]);
    }

    pub(crate) fn wake_ring(&mut self, target: RawFd) -> bool {
        if !self.features.message_ring {
            return false;
        }
        let entry = opcode::MsgRingData::new(Fd(target), 0, TOKEN_WAKE, None)
            .build()
            .user_data(TOKEN_OWN);
        self.push(&[entry]);
        true
    }

    pub(crate) fn register_file(&mut self, fd: RawFd) -> Option<u32> {
        self.files.add(&self.submitter, fd)
    }

    pub(crate) fn unregister_file(&mut self, slot: u32) {
        self.files.remove(&self.submitter, slot);
    }

    /// Makes memory known to the ring. The caller keeps it mapped as long as the driver lives.
    pub(crate) fn register_buffer(&mut self, address: *mut u8, len: usize) -> Result<(), Errno> {
        if !self.features.registered_buffers {
            return Err(Errno::OPNOTSUPP);
        }
        self.buffers.add(&self.submitter, address, len)
    }

    /// Lets the kernel pick buffers from `ring`. The caller keeps the ring and its buffers until
    /// [`Uring::unregister_pool`].
    pub(crate) fn register_pool(&mut self, group: u16, ring: &OfferRing) -> Result<(), Errno> {
        let flags = if self.features.incremental_pools {
            setup::INCREMENTAL
        } else {
            0
        };
        let (address, entries) = (ring.address(), ring.entries());
        // SAFETY: the caller's promise: ring and buffers outlive the registration.
        let done = unsafe {
            self.submitter
                .register_buf_ring_with_flags(address, entries, group, flags)
        };
        done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    pub(crate) fn unregister_pool(&mut self, group: u16) {
        let done = self.submitter.unregister_buf_ring(group);
        assert!(done.is_ok(), "a registered pool is forgotten: {done:?}");
    }

    pub(crate) fn has_work(&mut self) -> bool {
        self.wants_call()
            || self.polled.has_work()
            || self.passthrough.has_work()
            || !self.early.is_empty()
            || !self.ring.completion().is_empty()
            || self.held.ask(&mut self.early)
    }

    pub(crate) fn turn(&mut self, wait: Wait, out: &mut Vec<Completion>) {
        self.passthrough.turn(&mut self.early);
        if wait != Wait::Poll {
            self.await_passthrough();
        }
        self.push_held(wait != Wait::Poll);
        let result = match wait {
            _ if !self.early.is_empty() || self.polled.has_work() => self.submit_queued(),
            Wait::Poll => self.submit_queued(),
            Wait::Forever => self.submitter.submit_and_wait(1),
            Wait::For(delay) => {
                let timespec = timespec(delay);
                let args = SubmitArgs::new().timespec(&timespec);
                self.submitter.submit_with_args(1, &args)
            }
        };
        assert_entered(&result);
        self.forget_timeouts();
        out.append(&mut self.early);
        if reap(&mut self.ring, out) {
            self.awaits_passthrough = false;
            self.passthrough.turn(out);
        }
        self.polled.turn(out);
    }

    /// Has this ring complete something when the ring for commands does.
    fn await_passthrough(&mut self) {
        if let Some(fd) = self.passthrough.to_wait_for()
            && !self.awaits_passthrough
        {
            let events = u32::from(libc::POLLIN.cast_unsigned());
            let entry = opcode::PollAdd::new(Fd(fd), events)
                .build()
                .user_data(TOKEN_PASSTHROUGH);
            self.awaits_passthrough = true;
            self.push(&[entry]);
        }
    }

    /// Queues receives that were held: those that are due, or all.
    fn push_held(&mut self, all: bool) {
        if !self.held.is_empty() {
            let mut held = std::mem::take(&mut self.held);
            for entry in held.take(all) {
                self.push(&[entry]);
            }
            self.held = held;
        }
    }

    /// Whether the kernel has to be called: something is queued, or waits there to be run.
    fn wants_call(&mut self) -> bool {
        let submission = self.ring.submission();
        !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
    }

    /// Hands over what is queued and takes what is there, unless there is neither.
    fn submit_queued(&mut self) -> io::Result<usize> {
        if self.wants_call() {
            self.submitter.submit()
        } else {
            Ok(0)
        }
    }

    /// Queues entries that belong together, handing the full queue to the kernel first where
    /// needed.
    fn push(&mut self, entries: &[squeue::Entry]) {
        loop {
            // SAFETY: memory that an entry names is owned by the operation table (or by
            // `timeouts`, or is none), which keeps it in place until the entry's last completion is
            // reaped (until the kernel has taken the entry, for `timeouts`: SUBMIT_STABLE).
            let pushed = unsafe { self.ring.submission().push_multiple(entries) };
            if pushed.is_ok() {
                return;
            }
            assert_entered(&self.submitter.submit());
            // The kernel may want its completions reaped before it takes more.
            if reap(&mut self.ring, &mut self.early) {
                self.awaits_passthrough = false;
            }
        }
    }

    /// Frees the times that the kernel has read: all, once it has taken every entry.
    fn forget_timeouts(&mut self) {
        if !self.timeouts.is_empty() && self.ring.submission().is_empty() {
            self.timeouts.clear();
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // Its registration, which is the thread's, would keep the ring beyond its descriptor.
        if self.features.registered_ring
            && let Err(error) = self.submitter.unregister_ring_fd()
        {
            tracing::debug!(%error, "a ring's descriptor was not registered");
        }
    }
}

/// Takes what has completed, but for the driver's own requests. Whether one of these tells that the
/// ring for commands has something.
fn reap(ring: &mut IoUring, out: &mut Vec<Completion>) -> bool {
    let mut is_told = false;
    let entries = ring.completion().filter(|entry| {
        is_told |= entry.user_data() == TOKEN_PASSTHROUGH;
        entry.user_data() < TOKENS_FIRST
    });
    out.extend(entries.map(|entry| Completion {
        user_data: entry.user_data(),
        result: entry.result(),
        flags: CompletionFlags::from_ring(entry.flags()),
    }));
    is_told
}

/// The errors of a call into the ring that are no bug of ours are those after which its queues are
/// as they were.
fn assert_entered(result: &io::Result<usize>) {
    match result.as_ref().map_err(io::Error::raw_os_error) {
        // ETIME: nothing came in time. EINTR: a signal. EBUSY, EAGAIN: the kernel wants its
        // completions reaped, or memory, before it takes more; the queue keeps what is left.
        Ok(_) | Err(Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
        Err(_) => unreachable!("io_uring_enter: {result:?}"),
    }
}

const fn timespec(delay: Duration) -> Timespec {
    Timespec::new()
        .sec(delay.as_secs())
        .nsec(delay.subsec_nanos())
}

#[cfg(test)]
mod tests;
