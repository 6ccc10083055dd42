//! The driver of a simulated core.
//!
//! It is shaped as the one over epoll is: what cannot be done now waits at its socket, in order, and
//! is tried again when something has happened there. What it does to memory it does in a turn, as
//! late as a device might, so that memory which is not lent any more shows.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;

use super::events::{Event, Seat};
use super::handles::{FileNumber, SimulatedBell, SimulatedHost};
use super::network::{Network, SocketId};
use super::sectors::SECTOR_BYTES;
use crate::driver::memory::Memory;
use crate::driver::{Completion, CompletionFlags, Key, Submission, Target, Via, Wait};
use crate::lease::Lease;
use crate::pool::BufferPool;

/// Answers of one multishot operation in one turn.
const SHOTS_MAX: usize = 32;

/// An operation that is not done.
#[derive(Debug)]
struct Waiting {
    key: u64,
    socket: SocketId,
    what: Submission,
    memory: Memory,
    pool: Option<BufferPool>,
    /// Bytes of it: all, and those that the network has.
    len: usize,
    done: usize,
    has_begun: bool,
    is_polled: bool,
}

/// What is waited for at one socket, in the order of submission.
#[derive(Debug, Default)]
struct Queues {
    readers: VecDeque<Waiting>,
    writers: VecDeque<Waiting>,
}

/// One core's way into its world.
#[derive(Debug)]
pub(crate) struct SimulatedDriver {
    network: Rc<RefCell<Network>>,
    seat: Seat,
    host: IpAddr,
    bell: SimulatedBell,
    /// Not looked at yet.
    submitted: Vec<Waiting>,
    waiting: BTreeMap<SocketId, Queues>,
    /// On their way to the drive, which does them whatever else happens.
    on_disk: BTreeMap<u64, Waiting>,
    /// Waits for the bell.
    listens: Option<Waiting>,
    /// Its process is gone: nothing is done any more, and everything ends.
    is_dead: bool,
}

impl SimulatedDriver {
    pub(super) fn new(
        network: Rc<RefCell<Network>>,
        seat: Seat,
        host: IpAddr,
        bell: SimulatedBell,
    ) -> Self {
        Self {
            network,
            seat,
            host,
            bell,
            submitted: Vec::new(),
            waiting: BTreeMap::new(),
            on_disk: BTreeMap::new(),
            listens: None,
            is_dead: false,
        }
    }

    pub(crate) fn host(&self) -> SimulatedHost {
        SimulatedHost {
            network: Rc::clone(&self.network),
            seat: self.seat,
            host: self.host,
        }
    }

    /// Whether the world draws which ready task is next.
    pub(crate) fn draws_tasks(&self) -> bool {
        self.network.borrow().options.draws_tasks
    }

    pub(crate) fn draw_below(&self, bound: usize) -> usize {
        let bound = u32::try_from(bound).expect("tasks are bounded");
        self.network.borrow_mut().random.below(bound) as usize
    }

    pub(crate) fn submit(
        &mut self,
        key: Key,
        target: Target,
        what: Submission,
        lease: &mut Lease,
        timeout: Option<Duration>,
    ) {
        let key = key.user_data();
        let pool = match lease {
            Lease::Pool(pool) => Some(pool.clone()),
            _ => None,
        };
        let len = match (what, &*lease) {
            (Submission::Send { len, .. }, _) => len,
            (
                Submission::SendMessage | Submission::WriteMessageAt { .. },
                Lease::Message(message),
            ) => message.len(),
            (
                Submission::ReadScatterAt { .. } | Submission::ReceiveScatter,
                Lease::Scatter(scatter),
            ) => scatter.len(),
            (Submission::ReadAt { len, .. } | Submission::WriteAt { len, .. }, _) => len,
            _ => 0,
        };
        self.submitted.push(Waiting {
            key,
            socket: target.fd,
            what,
            memory: Memory::of(what, lease),
            pool,
            len,
            done: 0,
            has_begun: false,
            is_polled: target.via != Via::System,
        });
        if let Some(timeout) = timeout {
            self.end_after(timeout, key);
        }
    }

    /// Its end comes later, and may be another one.
    pub(crate) fn cancel(&mut self, key: Key) {
        let mut network = self.network.borrow_mut();
        let most = network.options.cancel_max;
        let delay = network.some_time(most);
        drop(network);
        self.end_after(delay, key.user_data());
    }

    fn end_after(&self, delay: Duration, key: u64) {
        let (seat, errno) = (self.seat, Errno::CANCELED);
        let event = Event::End { seat, key, errno };
        self.network.borrow_mut().push(delay, event);
    }

    /// Whether there is anything that a turn would do.
    pub(crate) fn has_work(&self) -> bool {
        !self.submitted.is_empty()
            || self.bell.is_rung()
            || self.is_dead
            || self.network.borrow().has_news(self.seat)
    }

    /// Ends everything at the next turn, undone.
    pub(crate) fn die(&mut self) {
        self.is_dead = true;
    }

    pub(crate) fn turn(&mut self, _wait: Wait, out: &mut Vec<Completion>) {
        if self.is_dead {
            return self.end_all(out);
        }
        let mut done = Vec::new();
        self.answer_bell(&mut done);
        for submitted in std::mem::take(&mut self.submitted) {
            self.begin(submitted, &mut done);
        }
        self.do_due(&mut done);
        let ended = self.network.borrow_mut().take_ended(self.seat);
        // Who is told to end and could be done at the same time ends one way or the other.
        let is_end_first = self.network.borrow_mut().random.below(2) == 0;
        if is_end_first {
            self.end(&ended, &mut done);
        }
        let noticed = self.network.borrow_mut().take_noticed(self.seat);
        for socket in noticed {
            self.advance(socket, &mut done);
        }
        if !is_end_first {
            self.end(&ended, &mut done);
        }
        self.shuffle(&mut done);
        out.append(&mut done);
    }

    /// Completions of different operations come in any order.
    fn shuffle(&self, done: &mut [Completion]) {
        let mut network = self.network.borrow_mut();
        for last in (1..done.len()).rev() {
            let bound = u32::try_from(last + 1).expect("few");
            let other = network.random.below(bound) as usize;
            if done[last].user_data != done[other].user_data && is_only(&done[..], last, other) {
                done.swap(last, other);
            }
        }
    }

    fn answer_bell(&mut self, done: &mut Vec<Completion>) {
        if let Some(listens) = self.listens.take_if(|_| self.bell.take()) {
            let count = 1_u64.to_ne_bytes();
            listens.memory.fill(0, &count);
            let result = i32::try_from(count.len()).expect("small");
            done.push(Completion::only(listens.key, result));
        }
    }

    /// A first look at an operation, which waits its turn behind those of its direction.
    fn begin(&mut self, waiting: Waiting, done: &mut Vec<Completion>) {
        let socket = waiting.socket;
        match waiting.what {
            Submission::ReadCounter => self.listens = Some(waiting),
            what if is_of_sockets(what) => {
                let queues = self.waiting.entry(socket).or_default();
                if what.is_read() {
                    queues.readers.push_back(waiting);
                } else {
                    queues.writers.push_back(waiting);
                }
                self.advance(socket, done);
            }
            what if is_of_files(what) && !waiting.is_polled => {
                let (seat, key) = (self.seat, waiting.key);
                let mut network = self.network.borrow_mut();
                let delay = network.disk_latency();
                network.push(delay, Event::Disk { seat, key });
                drop(network);
                self.on_disk.insert(key, waiting);
            }
            _ => {
                let result = -Errno::OPNOTSUPP.raw_os_error();
                done.push(Completion::only(waiting.key, result));
            }
        }
    }

    /// The drive does what is due.
    fn do_due(&mut self, done: &mut Vec<Completion>) {
        let due = self.network.borrow_mut().take_due(self.seat);
        for key in due {
            let waiting = self.on_disk.remove(&key).expect("it is on its way");
            let ended = self.do_on_disk(&waiting);
            done.push(Completion::only(key, result(ended)));
        }
    }

    fn do_on_disk(&self, waiting: &Waiting) -> Result<usize, Errno> {
        let mut network = self.network.borrow_mut();
        let (number, memory) = (FileNumber(waiting.socket), waiting.memory);
        let id = number.id();
        if !number.may(waiting.what.is_read()) {
            return Err(Errno::BADF);
        }
        let offset = match waiting.what {
            Submission::ReadAt { offset, .. }
            | Submission::ReadScatterAt { offset }
            | Submission::WriteAt { offset, .. }
            | Submission::WriteMessageAt { offset } => offset,
            what => unreachable!("{what:?} is none of a file"),
        };
        let is_aligned =
            offset.is_multiple_of(SECTOR_BYTES as u64) && waiting.len.is_multiple_of(SECTOR_BYTES);
        if number.is_direct() && !is_aligned {
            return Err(Errno::INVAL);
        }
        network.on_disk(self.host, |disk, world| match waiting.what {
            Submission::ReadAt { .. } | Submission::ReadScatterAt { .. } => {
                let bytes = disk.read(id, offset, waiting.len, world)?;
                memory.scatter(&bytes);
                Ok(bytes.len())
            }
            _ => {
                let mut bytes = Vec::new();
                memory.gather(0, waiting.len, &mut bytes);
                disk.write(id, offset, bytes, world)
            }
        })
    }

    /// Tries what waits at a socket, in order.
    fn advance(&mut self, socket: SocketId, done: &mut Vec<Completion>) {
        let Some(queues) = self.waiting.get_mut(&socket) else {
            return;
        };
        let mut network = self.network.borrow_mut();
        for queue in [&mut queues.readers, &mut queues.writers] {
            while let Some(first) = queue.front_mut() {
                if !attempt(&mut network, first, done) {
                    break;
                }
                queue.pop_front();
            }
        }
        if queues.readers.is_empty() && queues.writers.is_empty() {
            self.waiting.remove(&socket);
        }
    }

    /// Ends operations that have not ended by themselves.
    fn end(&mut self, ended: &[(u64, Errno)], done: &mut Vec<Completion>) {
        for &(key, errno) in ended {
            let mut found = false;
            let mut keep = |waiting: &Waiting| {
                found |= waiting.key == key;
                waiting.key != key
            };
            for queues in self.waiting.values_mut() {
                queues.readers.retain(&mut keep);
                queues.writers.retain(&mut keep);
            }
            if let Some(listens) = self.listens.take_if(|listens| listens.key == key) {
                found |= listens.key == key;
            }
            if found {
                done.push(Completion::only(key, -errno.raw_os_error()));
            } else {
                self.network.borrow_mut().counts.cancels_lost += 1;
            }
        }
        self.waiting
            .retain(|_, queues| !(queues.readers.is_empty() && queues.writers.is_empty()));
    }

    fn end_all(&mut self, out: &mut Vec<Completion>) {
        let waiting = std::mem::take(&mut self.waiting).into_values();
        let queued = waiting.flat_map(|queues| queues.readers.into_iter().chain(queues.writers));
        let all = queued
            .chain(self.submitted.drain(..))
            .chain(std::mem::take(&mut self.on_disk).into_values())
            .chain(self.listens.take());
        let result = -Errno::CANCELED.raw_os_error();
        out.extend(all.map(|waiting| Completion::only(waiting.key, result)));
    }
}

/// Whether two completions are each the only one of their operation here.
fn is_only(done: &[Completion], one: usize, other: usize) -> bool {
    let count = |index: usize| {
        let key = done[index].user_data;
        done.iter().filter(|entry| entry.user_data == key).count()
    };
    count(one) == 1 && count(other) == 1
}

const fn is_of_sockets(what: Submission) -> bool {
    matches!(
        what,
        Submission::Receive { .. }
            | Submission::ReceiveScatter
            | Submission::ReceiveMany
            | Submission::Send { .. }
            | Submission::SendMessage
            | Submission::AcceptMany
            | Submission::Connect
    )
}

const fn is_of_files(what: Submission) -> bool {
    matches!(
        what,
        Submission::ReadAt { .. }
            | Submission::WriteAt { .. }
            | Submission::ReadScatterAt { .. }
            | Submission::WriteMessageAt { .. }
    )
}

/// Tries an operation. Whether it has ended.
fn attempt(network: &mut Network, waiting: &mut Waiting, done: &mut Vec<Completion>) -> bool {
    let (key, socket) = (waiting.key, waiting.socket);
    let ended = match waiting.what {
        Submission::Receive { len, .. } => network.receive(socket, len).map(|received| {
            let bytes = received?;
            waiting.memory.fill(0, &bytes);
            Ok(bytes.len())
        }),
        Submission::ReceiveScatter => network.receive(socket, waiting.len).map(|received| {
            let bytes = received?;
            waiting.memory.scatter(&bytes);
            Ok(bytes.len())
        }),
        Submission::Send { .. } | Submission::SendMessage => send(network, waiting),
        Submission::Connect if waiting.has_begun => {
            let outcome = network.connect_outcome(socket);
            outcome.map(|outcome| outcome.map(|()| 0))
        }
        Submission::Connect => {
            waiting.has_begun = true;
            match waiting.memory.peer() {
                Ok(peer) => {
                    network.begin_connect(socket, peer);
                    None
                }
                Err(errno) => Some(Err(errno)),
            }
        }
        Submission::AcceptMany => return accept(network, waiting, done),
        Submission::ReceiveMany => return receive_many(network, waiting, done),
        what => unreachable!("{what:?} is none of a socket"),
    };
    let Some(ended) = ended else { return false };
    done.push(Completion::only(key, result(ended)));
    true
}

/// Hands over what there is room for. Ends when all has been handed over, or with an error.
fn send(network: &mut Network, waiting: &mut Waiting) -> Option<Result<usize, Errno>> {
    while waiting.done < waiting.len {
        let room = match network.room(waiting.socket)? {
            Ok(room) => room,
            Err(errno) if waiting.done == 0 => return Some(Err(errno)),
            // Part of it is on its way; the next send tells.
            Err(_) => break,
        };
        let mut bytes = Vec::new();
        waiting.memory.gather(waiting.done, room, &mut bytes);
        assert!(!bytes.is_empty(), "a send's memory is as long as it says");
        waiting.done += bytes.len();
        network.send(waiting.socket, bytes);
    }
    Some(Ok(waiting.done))
}

fn accept(network: &mut Network, waiting: &Waiting, done: &mut Vec<Completion>) -> bool {
    for _ in 0..SHOTS_MAX {
        let Some(accepted) = network.accept(waiting.socket) else {
            return false;
        };
        let (result, flags) = match accepted {
            Ok(connection) => (connection, CompletionFlags::NONE.with_more()),
            Err(errno) => (-errno.raw_os_error(), CompletionFlags::NONE),
        };
        done.push(Completion {
            user_data: waiting.key,
            result,
            flags,
        });
        if !flags.has_more() {
            return true;
        }
    }
    false
}

fn receive_many(network: &mut Network, waiting: &Waiting, done: &mut Vec<Completion>) -> bool {
    let pool = waiting.pool.as_ref().expect("it takes from a pool");
    loop {
        let Some((id, address, len)) = pool.pick() else {
            let result = -Errno::NOBUFS.raw_os_error();
            done.push(Completion::only(waiting.key, result));
            return true;
        };
        let received = network.receive(waiting.socket, len);
        let end = match received {
            Some(Ok(bytes)) if !bytes.is_empty() => {
                Memory::Range { address, len }.fill(0, &bytes);
                done.push(Completion {
                    user_data: waiting.key,
                    result: result(Ok(bytes.len())),
                    flags: CompletionFlags::NONE.with_buffer(id).with_more(),
                });
                continue;
            }
            Some(Ok(_)) => Some(Ok(0)),
            Some(Err(errno)) => Some(Err(errno)),
            None => None,
        };
        pool.unpick(id);
        if let Some(end) = end {
            done.push(Completion::only(waiting.key, result(end)));
        }
        return end.is_some();
    }
}

fn result(done: Result<usize, Errno>) -> i32 {
    match done {
        Ok(count) => i32::try_from(count).expect("a lease's length is bounded"),
        Err(errno) => -errno.raw_os_error(),
    }
}
