//! The io_uring driver.
//!
//! One ring, used by one thread, `DEFER_TASKRUN` so that completions run when the loop asks and
//! never in between, the ring's descriptor registered. Each feature is probed at start; without
//! `DEFER_TASKRUN` the ring falls back to `COOP_TASKRUN`, then to a plain one.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, Submitter, opcode, squeue};

use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::probe::{Features, ProbeError};
use super::{Completion, Key, OPERATIONS_MAX, SUBMISSIONS_MAX, Submission, Wait};
use crate::lease::Lease;

/// Worker threads of one ring, of each kind. Hot paths need none.
const WORKERS_MAX: u32 = 4;
/// Completions of the driver's own requests, above every key.
const TOKEN_CANCEL: u64 = u64::MAX;
const TOKEN_WAKE: u64 = u64::MAX - 1;
const TOKENS_FIRST: u64 = TOKEN_WAKE;

/// One ring.
pub(crate) struct Uring {
    /// Borrows the ring; declared first so that it drops first. It carries the registered index of
    /// the ring's descriptor, which a fresh submitter would not.
    submitter: Submitter<'static>,
    ring: Box<IoUring>,
    features: Features,
    /// Completions that were reaped while an entry was queued; the next turn hands them out.
    early: Vec<Completion>,
}

impl Uring {
    /// Opens a ring on the calling thread.
    pub(crate) fn open() -> Result<Self, ProbeError> {
        let (ring, defer_taskrun) = build()?;
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_ext_arg() {
            return Err(ProbeError::TooOld("io_uring's NODROP or EXT_ARG"));
        }
        let mut probe = Probe::new();
        ring.submitter()
            .register_probe(&mut probe)
            .map_err(|error| ProbeError::from_io(&error))?;
        for (code, name) in [
            (opcode::Recv::CODE, "IORING_OP_RECV"),
            (opcode::SendMsg::CODE, "IORING_OP_SENDMSG"),
            (opcode::Accept::CODE, "IORING_OP_ACCEPT"),
            (opcode::Connect::CODE, "IORING_OP_CONNECT"),
            (opcode::AsyncCancel::CODE, "IORING_OP_ASYNC_CANCEL"),
        ] {
            if !probe.is_supported(code) {
                return Err(ProbeError::TooOld(name));
            }
        }
        let ring = Box::new(ring);
        let submitter = ring.submitter();
        // SAFETY: the submitter borrows the ring in the box beside it. The box never moves its
        // content, is not replaced while `self` lives, and drops after the submitter (field order).
        let mut submitter =
            unsafe { std::mem::transmute::<Submitter<'_>, Submitter<'static>>(submitter) };
        let features = Features {
            bounded_workers: bound_workers(&submitter),
            defer_taskrun,
            registered_ring: submitter.register_ring_fd().is_ok(),
            message_ring: probe.is_supported(opcode::MsgRingData::CODE),
        };
        Ok(Self {
            submitter,
            ring,
            features,
            early: Vec::new(),
        })
    }

    pub(crate) const fn features(&self) -> Features {
        self.features
    }

    pub(crate) fn wake_fd(&self) -> Option<RawFd> {
        self.features.message_ring.then(|| self.ring.as_raw_fd())
    }

    pub(crate) fn submit(&mut self, key: Key, fd: RawFd, what: Submission, lease: &mut Lease) {
        let entry = entry(Fd(fd), what, lease).user_data(key.user_data());
        self.push(&entry);
    }

    pub(crate) fn cancel(&mut self, key: Key) {
        let entry = opcode::AsyncCancel::new(key.user_data())
            .build()
            .user_data(TOKEN_CANCEL);
        self.push(&entry);
    }

    pub(crate) fn wake_ring(&mut self, target: RawFd) -> bool {
        if !self.features.message_ring {
            return false;
        }
        let entry = opcode::MsgRingData::new(Fd(target), 0, TOKEN_WAKE, None)
            .build()
            .user_data(TOKEN_CANCEL);
        self.push(&entry);
        true
    }

    pub(crate) fn has_work(&mut self) -> bool {
        let submission = self.ring.submission();
        let queued = !submission.is_empty() || submission.taskrun() || submission.cq_overflow();
        drop(submission);
        queued || !self.early.is_empty() || !self.ring.completion().is_empty()
    }

    pub(crate) fn turn(&mut self, wait: Wait, out: &mut Vec<Completion>) {
        let result = match wait {
            _ if !self.early.is_empty() => self.submitter.submit(),
            Wait::Poll => self.submitter.submit(),
            Wait::Forever => self.submitter.submit_and_wait(1),
            Wait::For(delay) => {
                let timespec = timespec(delay);
                let args = SubmitArgs::new().timespec(&timespec);
                self.submitter.submit_with_args(1, &args)
            }
        };
        assert_entered(&result);
        out.append(&mut self.early);
        reap(&mut self.ring, out);
    }

    /// Queues an entry, handing the full queue to the kernel first where needed.
    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: memory that the entry names is owned by the operation table (or is none),
            // which keeps it in place until this entry's completion is reaped.
            let pushed = unsafe { self.ring.submission().push(entry) };
            if pushed.is_ok() {
                return;
            }
            assert_entered(&self.submitter.submit());
            // The kernel may want its completions reaped before it takes more.
            reap(&mut self.ring, &mut self.early);
        }
    }
}

/// Takes what has completed, but for the driver's own requests.
fn reap(ring: &mut IoUring, out: &mut Vec<Completion>) {
    let entries = ring
        .completion()
        .filter(|entry| entry.user_data() < TOKENS_FIRST);
    out.extend(entries.map(|entry| Completion {
        user_data: entry.user_data(),
        result: entry.result(),
    }));
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

/// Bounds the kernel's worker threads of this ring, and keeps them off the calling thread's CPU if
/// it is pinned: a worker inherits the affinity of a core that never sleeps, and would starve.
fn bound_workers(submitter: &Submitter<'_>) -> bool {
    let bounded = submitter
        .register_iowq_max_workers(&mut [WORKERS_MAX; 2])
        .is_ok();
    // The process's first thread is not pinned: its CPUs are the process's.
    let masks = (sched_getaffinity(None), sched_getaffinity(Some(getpid())));
    let (Ok(own), Ok(process)) = masks else {
        return bounded;
    };
    let others = |&cpu: &usize| process.is_set(cpu) && !own.is_set(cpu);
    let mut others = (0..CpuSet::MAX_CPU).filter(others).peekable();
    if own.count() != 1 || others.peek().is_none() {
        return bounded;
    }
    // SAFETY: all zeros are a valid value of this plain structure: the empty set.
    let mut set = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
    for cpu in others {
        // SAFETY: `cpu` is below the size of the set, which is ours.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    bounded && submitter.register_iowq_aff(&set).is_ok()
}

/// The best ring that this kernel gives, and whether it defers task work.
fn build() -> Result<(IoUring, bool), ProbeError> {
    let cq_entries = u32::try_from(OPERATIONS_MAX).expect("bounded") * 2;
    let mut deferred = IoUring::builder();
    deferred
        .dontfork()
        .setup_cqsize(cq_entries)
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag();
    match deferred.build(SUBMISSIONS_MAX) {
        Ok(ring) => return Ok((ring, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        Err(error) => return Err(ProbeError::from_io(&error)),
    }
    let mut cooperative = IoUring::builder();
    cooperative
        .dontfork()
        .setup_cqsize(cq_entries)
        .setup_submit_all()
        .setup_coop_taskrun()
        .setup_taskrun_flag();
    let ring = cooperative
        .build(SUBMISSIONS_MAX)
        .map_err(|error| ProbeError::from_io(&error))?;
    Ok((ring, false))
}

/// The entry of an operation whose lease is at its final place.
fn entry(fd: Fd, what: Submission, lease: &mut Lease) -> squeue::Entry {
    match (what, lease) {
        (Submission::Receive { start, len }, lease) => {
            let (address, room) = lease.writable();
            assert!(start + len <= room, "a receive stays inside its lease");
            let len = u32::try_from(len).expect("a lease's length is bounded");
            opcode::Recv::new(fd, address.as_ptr().wrapping_add(start), len).build()
        }
        (Submission::Send { start, len }, lease) => {
            let (address, room) = lease.readable();
            assert!(start + len <= room, "a send stays inside its lease");
            let len = u32::try_from(len).expect("a lease's length is bounded");
            let from = address.as_ptr().wrapping_add(start).cast_const();
            opcode::Send::new(fd, from, len)
                .flags(libc::MSG_NOSIGNAL)
                .build()
        }
        (Submission::SendMessage, Lease::Message(message)) => {
            // WAITALL: the kernel goes on after a full socket buffer, one completion in all.
            let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL).cast_unsigned();
            opcode::SendMsg::new(fd, message.header())
                .flags(flags)
                .build()
        }
        (Submission::Accept, Lease::Nothing) => {
            opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build()
        }
        (Submission::Connect, Lease::Address(address)) => {
            opcode::Connect::new(fd, address.as_ptr().cast(), address.addr_len()).build()
        }
        (Submission::ReadCounter, lease) => {
            let (address, len) = lease.writable();
            let len = u32::try_from(len).expect("a counter is 8 bytes");
            opcode::Read::new(fd, address.as_ptr(), len).build()
        }
        (Submission::ReadAt { start, len, offset }, lease) => {
            let (address, room) = lease.writable();
            assert!(start + len <= room, "a read stays inside its lease");
            let len = u32::try_from(len).expect("a lease's length is bounded");
            let to = address.as_ptr().wrapping_add(start);
            opcode::Read::new(fd, to, len).offset(offset).build()
        }
        (Submission::WriteAt { start, len, offset }, lease) => {
            let (address, room) = lease.readable();
            assert!(start + len <= room, "a write stays inside its lease");
            let len = u32::try_from(len).expect("a lease's length is bounded");
            let from = address.as_ptr().wrapping_add(start).cast_const();
            opcode::Write::new(fd, from, len).offset(offset).build()
        }
        (what, lease) => unreachable!("{what:?} does not take {lease:?}"),
    }
}

const fn timespec(delay: Duration) -> Timespec {
    Timespec::new()
        .sec(delay.as_secs())
        .nsec(delay.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::rc::Rc;

    use super::super::Table;
    use super::*;

    #[test]
    fn more_operations_than_the_queue_holds_all_complete() {
        let Ok(mut uring) = Uring::open() else {
            println!("SKIP more_operations_than_the_queue_holds_all_complete: no io_uring here");
            return;
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        let fd = Rc::new(OwnedFd::from(server));
        let mut table = Table::new();
        let receive = Submission::Receive { start: 0, len: 1 };
        let mut keys = Vec::new();
        for _ in 0..OPERATIONS_MAX {
            let lease = Lease::Bytes(vec![0]);
            let (key, lease) = table
                .insert(receive, Some(Rc::clone(&fd)), lease)
                .expect("room");
            uring.submit(key, fd.as_raw_fd(), receive, lease);
            keys.push(key);
        }
        // Cancels and completions meet while the queue runs full again and again.
        for key in keys {
            uring.cancel(key);
        }
        drop(client);
        let mut completions = Vec::new();
        while completions.len() < OPERATIONS_MAX {
            uring.turn(Wait::For(Duration::from_millis(100)), &mut completions);
        }
        for completion in completions {
            let (_, _) = table.complete(completion.user_data, completion.result);
        }
        assert!(table.in_flight().is_empty(), "each has completed once");
    }
}
