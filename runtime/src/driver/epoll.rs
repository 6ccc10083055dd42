//! The epoll driver: for systems that forbid io_uring, as Docker's default seccomp profile does.
//!
//! It does what the ring does, by readiness: an operation is tried when it is submitted; if it would
//! block, it waits in the queue of its descriptor, and is tried again when the descriptor is ready.
//! It is correct and not tuned. Reads and writes of files, which are always ready, are done in place
//! and block the core for as long as they take.
//!
//! A multishot operation stays at the head of its queue, and is done as often as the descriptor
//! allows, for a bounded number of times before others get their turn.
//!
//! A descriptor is armed with `EPOLLONESHOT` each time an operation begins to wait on it, and what
//! waits keeps it open. So no state outlives a descriptor, and a number that is used again by the
//! system cannot be mistaken for its predecessor.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags};

use super::memory::Memory;
use super::{Completion, CompletionFlags, Key, Submission, Target, Via, Wait};
use crate::lease::Lease;
use crate::pool::BufferPool;

/// Events taken from the system at once.
const EVENTS_MAX: usize = 256;
/// Answers of one multishot operation in one turn.
const SHOTS_MAX: usize = 32;

/// An operation that waits for its descriptor.
struct Waiting {
    key: Key,
    what: Submission,
    /// Where the lease's memory lies; in place until the completion.
    memory: Memory,
    /// Where a multishot receive takes its buffers from.
    pool: Option<BufferPool>,
    /// Its entry among the deadlines.
    deadline: Option<Deadline>,
}

/// When an operation is cancelled, and its number, so that two of one moment are two.
type Deadline = (Instant, u64);

/// What waits on one descriptor, in the order of submission.
#[derive(Default)]
struct Queues {
    readers: VecDeque<Waiting>,
    writers: VecDeque<Waiting>,
}

/// One epoll instance and what waits in it.
pub(crate) struct Epoll {
    epoll: OwnedFd,
    waiting: BTreeMap<RawFd, Queues>,
    /// What is to be cancelled if it has not completed by then.
    deadlines: BTreeMap<Deadline, Key>,
    /// Completions that the next turn hands out.
    done: Vec<Completion>,
    events: Vec<epoll::Event>,
}

impl Epoll {
    pub(crate) fn open() -> Result<Self, Errno> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            waiting: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            done: Vec::new(),
            events: Vec::with_capacity(EVENTS_MAX),
        })
    }

    pub(crate) fn submit(
        &mut self,
        key: Key,
        target: Target,
        what: Submission,
        lease: &mut Lease,
        timeout: Option<Duration>,
    ) {
        let fd = target.fd;
        if target.via != Via::System {
            let result = -Errno::OPNOTSUPP.raw_os_error();
            self.done.push(Completion::only(key.user_data(), result));
            return;
        }
        let memory = Memory::of(what, lease);
        let pool = match lease {
            Lease::Pool(pool) => Some(pool.clone()),
            _ => None,
        };
        let waiting = Waiting {
            key,
            what,
            memory,
            pool,
            deadline: timeout.map(|timeout| (Instant::now() + timeout, key.user_data())),
        };
        // Operations of one direction are done in order.
        let is_first = self.waiting.get(&fd).is_none_or(|queues| {
            let queue = if what.is_read() {
                &queues.readers
            } else {
                &queues.writers
            };
            queue.is_empty()
        });
        if is_first && let Some(result) = begin(fd, &waiting) {
            self.done.push(Completion::only(key.user_data(), result));
            return;
        }
        if let Some(deadline) = waiting.deadline {
            self.deadlines.insert(deadline, key);
        }
        let queues = self.waiting.entry(fd).or_default();
        let queue = if what.is_read() {
            &mut queues.readers
        } else {
            &mut queues.writers
        };
        queue.push_back(waiting);
        self.arm(fd);
    }

    pub(crate) fn cancel(&mut self, key: Key) {
        let Self {
            waiting,
            deadlines,
            done,
            ..
        } = self;
        let mut emptied = None;
        for (fd, queues) in waiting.iter_mut() {
            let before = queues.readers.len() + queues.writers.len();
            let mut keeps = |waiting: &Waiting| {
                let keep = waiting.key != key;
                if !keep && let Some(deadline) = waiting.deadline {
                    deadlines.remove(&deadline);
                }
                keep
            };
            queues.readers.retain(&mut keeps);
            queues.writers.retain(&mut keeps);
            let after = queues.readers.len() + queues.writers.len();
            if after < before {
                let result = -Errno::CANCELED.raw_os_error();
                done.push(Completion::only(key.user_data(), result));
                emptied = (after == 0).then_some(*fd);
                break;
            }
        }
        if let Some(fd) = emptied {
            self.waiting.remove(&fd);
        }
    }

    pub(crate) const fn has_work(&self) -> bool {
        !self.done.is_empty()
    }

    pub(crate) fn turn(&mut self, wait: Wait, out: &mut Vec<Completion>) {
        let timeout = self.wait_at_most(wait).map(|delay| Timespec {
            tv_sec: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: delay.subsec_nanos().into(),
        });
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let waited = epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref());
        match waited {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => unreachable!("epoll_wait: {errno}"),
        }
        for event in &events {
            let fd = RawFd::try_from(event.data.u64()).expect("we put a descriptor there");
            self.on_ready(fd, event.flags);
        }
        self.events = events;
        self.expire();
        out.append(&mut self.done);
    }

    /// How long a turn may wait, the next deadline considered.
    fn wait_at_most(&self, wait: Wait) -> Option<Duration> {
        let asked = match wait {
            _ if !self.done.is_empty() => Some(Duration::ZERO),
            Wait::Poll => Some(Duration::ZERO),
            Wait::For(delay) => Some(delay),
            Wait::Forever => None,
        };
        let next = self.deadlines.first_key_value().map(|((at, _), _)| {
            // What has not quite expired would be waited for by spinning.
            at.saturating_duration_since(Instant::now()) + Duration::from_micros(1)
        });
        match (asked, next) {
            (Some(asked), Some(next)) => Some(asked.min(next)),
            (asked, next) => asked.or(next),
        }
    }

    /// Cancels what has not completed by its deadline.
    fn expire(&mut self) {
        while let Some(entry) = self.deadlines.first_entry()
            && entry.key().0 <= Instant::now()
        {
            let key = entry.remove();
            self.cancel(key);
        }
    }

    /// Tries again what waits on a descriptor that is ready, and waits on for the rest.
    fn on_ready(&mut self, fd: RawFd, flags: epoll::EventFlags) {
        let Some(queues) = self.waiting.get_mut(&fd) else {
            return;
        };
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        if broken || flags.contains(epoll::EventFlags::IN) {
            advance(fd, &mut queues.readers, &mut self.deadlines, &mut self.done);
        }
        if broken || flags.contains(epoll::EventFlags::OUT) {
            advance(fd, &mut queues.writers, &mut self.deadlines, &mut self.done);
        }
        if queues.readers.is_empty() && queues.writers.is_empty() {
            self.waiting.remove(&fd);
        } else {
            self.arm(fd);
        }
    }

    /// Asks for one event of the descriptor. If the system refuses, what waits fails.
    fn arm(&mut self, fd: RawFd) {
        let queues = self.waiting.get_mut(&fd).expect("something waits on it");
        let mut flags = epoll::EventFlags::ONESHOT;
        flags.set(epoll::EventFlags::IN, !queues.readers.is_empty());
        flags.set(epoll::EventFlags::OUT, !queues.writers.is_empty());
        let data = epoll::EventData::new_u64(u64::try_from(fd).expect("descriptors are positive"));
        let source = borrow(fd);
        let armed = match epoll::modify(&self.epoll, source, data, flags) {
            Err(Errno::NOENT) => epoll::add(&self.epoll, source, data, flags),
            other => other,
        };
        if let Err(errno) = armed {
            let queues = self.waiting.remove(&fd).expect("something waits on it");
            for waiting in queues.readers.into_iter().chain(queues.writers) {
                if let Some(deadline) = waiting.deadline {
                    self.deadlines.remove(&deadline);
                }
                let result = match (waiting.what, errno) {
                    // What epoll has no readiness of, a plain file, can always be read.
                    (Submission::Readable, Errno::PERM) => libc::POLLIN.into(),
                    _ => -errno.raw_os_error(),
                };
                self.done
                    .push(Completion::only(waiting.key.user_data(), result));
            }
        }
    }
}

/// The descriptor of an operation in the table.
fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the operation table holds the descriptor open for every operation that is submitted
    // and not completed, and this driver uses the number only for such ones. Ends with the call that
    // it is passed to.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Tries what waits, in order, until one would block.
fn advance(
    fd: RawFd,
    queue: &mut VecDeque<Waiting>,
    deadlines: &mut BTreeMap<Deadline, Key>,
    done: &mut Vec<Completion>,
) {
    while let Some(waiting) = queue.front() {
        if waiting.what.is_multishot() {
            if shoot(fd, waiting, done) {
                queue.pop_front();
                continue;
            }
            return;
        }
        let Some(result) = retry(fd, waiting) else {
            return;
        };
        done.push(Completion::only(waiting.key.user_data(), result));
        if let Some(deadline) = waiting.deadline {
            deadlines.remove(&deadline);
        }
        queue.pop_front();
    }
}

/// Answers a multishot operation as often as it can be done now. Whether it has ended.
fn shoot(fd: RawFd, waiting: &Waiting, done: &mut Vec<Completion>) -> bool {
    for _ in 0..SHOTS_MAX {
        let (attempted, flags) = match &waiting.pool {
            Some(pool) => receive_into(fd, pool),
            None => (attempt(borrow(fd), waiting), CompletionFlags::NONE),
        };
        let Some(result) = attempted else {
            return false;
        };
        let is_end = result < 0 || (result == 0 && waiting.pool.is_some());
        done.push(Completion {
            user_data: waiting.key.user_data(),
            result,
            flags: if is_end { flags } else { flags.with_more() },
        });
        if is_end {
            return true;
        }
    }
    false
}

/// One receive into a buffer of a pool.
fn receive_into(fd: RawFd, pool: &BufferPool) -> (Option<i32>, CompletionFlags) {
    let Some((id, address, len)) = pool.pick() else {
        return (Some(-Errno::NOBUFS.raw_os_error()), CompletionFlags::NONE);
    };
    let memory = Memory::Range { address, len };
    let received = loop {
        match memory.receive(borrow(fd)) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    match received {
        Ok(count) if count > 0 => (
            Some(result(Ok(count))),
            CompletionFlags::NONE.with_buffer(id),
        ),
        other => {
            pool.unpick(id);
            let none = other == Err(Errno::AGAIN);
            ((!none).then(|| result(other)), CompletionFlags::NONE)
        }
    }
}

/// The first try of an operation: its result, or `None` if it would block.
fn begin(fd: RawFd, waiting: &Waiting) -> Option<i32> {
    let fd = borrow(fd);
    match waiting.what {
        Submission::Connect => {
            if let Err(errno) = rustix::io::ioctl_fionbio(fd, true) {
                return Some(-errno.raw_os_error());
            }
            match waiting.memory.connect(fd) {
                Err(Errno::INPROGRESS) => None,
                other => Some(result(other.map(|()| 0))),
            }
        }
        Submission::AcceptMany => {
            // A listener that blocks would block the core when its connection is gone again.
            match rustix::io::ioctl_fionbio(fd, true) {
                Ok(()) => None,
                Err(errno) => Some(-errno.raw_os_error()),
            }
        }
        // It blocks until somebody rings, unless it is known to be ready.
        Submission::ReadCounter | Submission::ReceiveMany | Submission::Readable => None,
        _ => attempt(fd, waiting),
    }
}

/// A later try of an operation, its descriptor being ready.
fn retry(fd: RawFd, waiting: &Waiting) -> Option<i32> {
    let fd = borrow(fd);
    match waiting.what {
        Submission::Connect => match net::sockopt::socket_error(fd) {
            Ok(outcome) => Some(result(outcome.map(|()| 0))),
            Err(errno) => Some(-errno.raw_os_error()),
        },
        _ => attempt(fd, waiting),
    }
}

/// Does what is asked if it does not block.
fn attempt(fd: BorrowedFd<'_>, waiting: &Waiting) -> Option<i32> {
    let done = match waiting.what {
        Submission::Receive { .. } => waiting.memory.receive(fd),
        Submission::ReceiveScatter => waiting.memory.receive_list(fd),
        Submission::Send { .. } => waiting.memory.send(fd),
        // Without copies is how it is asked for; with one is how it is done here.
        Submission::SendMessage | Submission::SendMessageZeroCopy => {
            waiting.memory.send_message(fd)
        }
        Submission::Readable => return Some(libc::POLLIN.into()),
        Submission::ReadCounter => waiting.memory.read(fd),
        Submission::ReadAt { offset, .. } => waiting.memory.read_at(fd, offset),
        Submission::WriteAt { offset, .. } => waiting.memory.write_at(fd, offset),
        Submission::ReadScatterAt { offset } => waiting.memory.read_list_at(fd, offset),
        Submission::WriteMessageAt { offset } => waiting.memory.write_list_at(fd, offset),
        Submission::AcceptMany => {
            let accepted = net::accept_with(fd, SocketFlags::CLOEXEC);
            accepted.map(|fd| usize::try_from(fd.into_raw_fd()).expect("descriptors are positive"))
        }
        Submission::Connect => unreachable!("a connection is begun once"),
        Submission::ReceiveMany => unreachable!("a pool's receive picks its memory itself"),
        Submission::RingsMany => unreachable!("here counters are read"),
    };
    match done {
        Err(Errno::AGAIN) => None,
        Err(Errno::INTR) => attempt(fd, waiting),
        other => Some(result(other)),
    }
}

fn result(done: Result<usize, Errno>) -> i32 {
    match done {
        Ok(count) => i32::try_from(count).expect("a lease's length is bounded"),
        Err(errno) => -errno.raw_os_error(),
    }
}
