//! Hosts, and connections between them.
//!
//! A connection is two sockets, each of which keeps what it has sent and what has not arrived, in
//! order: what is lost is sent again, and holds up what comes after it. Nothing arrives where a link
//! is cut or a host is down; a host that is up and does not know a connection resets it.

mod arrivals;
mod faults;
mod sockets;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;
use rustix::io::Errno;

use super::disk::{self, Disk, FileId};
use super::events::{Event, EventKey, Events, Seat, Trace};
use super::options::{FaultCounts, WorldOptions};

/// A socket, by the number that stands for its descriptor. Never used again.
pub(super) type SocketId = i32;

/// Connections that wait to be accepted.
const BACKLOG_MAX: usize = 128;
/// The first port that is given to who asks for any.
const PORT_FIRST: u16 = 20_000;
/// Requests for a connection before it has failed (`tcp_syn_retries`), a second apart, then two, ...
const REQUESTS_MAX: u32 = 7;
/// How often a silent peer is asked before it is given up.
const PROBES: u32 = 4;
/// Most often that the wait for an arrival is doubled.
const RESENDS_DOUBLED_MAX: u32 = 6;

/// What travels.
#[derive(Debug)]
enum Segment {
    Bytes(Vec<u8>),
    Finish,
    Reset,
}

#[derive(Debug)]
struct Socket {
    /// The core that is told of what happens.
    seat: Seat,
    host: IpAddr,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Fresh,
    Listening(VecDeque<SocketId>),
    Connecting(SocketAddr),
    Refused(Errno),
    Stream(Stream),
}

/// One end of a connection.
#[derive(Debug)]
struct Stream {
    peer: SocketId,
    peer_host: IpAddr,
    received: VecDeque<u8>,
    /// Everything has arrived that the peer has sent, and it will send no more.
    finished: bool,
    broken: Option<Errno>,
    /// How long its peer may answer nothing.
    unanswered_max: Option<Duration>,
    /// Since when what it has sent does not arrive.
    held_since: Option<Time>,
    /// When the peer knows of the connection; nothing arrives before.
    since: Time,
    /// Sent and not arrived.
    on_its_way: VecDeque<(Time, Segment)>,
    resends: u32,
    /// Sent, and not taken by the peer's program.
    outstanding: usize,
    /// Nothing is sent or received by the program any more.
    is_shut: bool,
    /// The program has closed it; it is kept until what it has sent has arrived.
    is_closed: bool,
}

impl Stream {
    const fn new(peer: SocketId, peer_host: IpAddr, since: Time) -> Self {
        Self {
            peer,
            peer_host,
            received: VecDeque::new(),
            finished: false,
            broken: None,
            unanswered_max: None,
            held_since: None,
            since,
            on_its_way: VecDeque::new(),
            resends: 0,
            outstanding: 0,
            is_shut: false,
            is_closed: false,
        }
    }
}

#[derive(Debug)]
struct Host {
    disk: Disk,
    is_up: bool,
    port_next: u16,
}

/// What may be done on a socket now. `None` where it would block.
type Attempt<T> = Option<Result<T, Errno>>;

/// The state of a world that its cores share.
#[derive(Debug)]
pub(super) struct Network {
    now_ns: Arc<AtomicU64>,
    pub(in crate::sim) random: SplitMix64,
    pub(super) options: WorldOptions,
    events: Events,
    sockets: BTreeMap<SocketId, Socket>,
    socket_next: SocketId,
    listening: BTreeMap<SocketAddr, SocketId>,
    hosts: BTreeMap<IpAddr, Host>,
    cut: BTreeSet<(IpAddr, IpAddr)>,
    /// Further addresses, and the hosts that have them.
    aliases: BTreeMap<IpAddr, IpAddr>,
    /// Names of hosts.
    names: BTreeMap<String, Vec<IpAddr>>,
    /// Rates of links that differ from the world's.
    rates: BTreeMap<(IpAddr, IpAddr), u64>,
    noticed: BTreeMap<Seat, BTreeSet<SocketId>>,
    ended: BTreeMap<Seat, Vec<(u64, Errno)>>,
    /// Operations that the drives do now.
    due: BTreeMap<Seat, Vec<u64>>,
    steps: BTreeMap<Seat, (Time, EventKey)>,
    pub(super) trace: Trace,
    pub(super) counts: FaultCounts,
}

impl Network {
    pub(super) fn new(seed: u64, options: WorldOptions) -> Self {
        Self {
            now_ns: Arc::default(),
            random: SplitMix64::new(seed),
            options,
            events: Events::default(),
            sockets: BTreeMap::new(),
            socket_next: 1,
            listening: BTreeMap::new(),
            hosts: BTreeMap::new(),
            cut: BTreeSet::new(),
            aliases: BTreeMap::new(),
            names: BTreeMap::new(),
            rates: BTreeMap::new(),
            noticed: BTreeMap::new(),
            ended: BTreeMap::new(),
            due: BTreeMap::new(),
            steps: BTreeMap::new(),
            trace: Trace::default(),
            counts: FaultCounts::default(),
        }
    }

    pub(super) fn now(&self) -> Time {
        Time::from_ns(self.now_ns.load(Ordering::Relaxed))
    }

    pub(super) const fn time(&self) -> &Arc<AtomicU64> {
        &self.now_ns
    }

    /// A time between nothing and `most`.
    pub(super) fn some_time(&mut self, most: Duration) -> Duration {
        let most_ns = u32::try_from(most.as_nanos()).unwrap_or(u32::MAX - 1);
        Duration::from_nanos(self.random.below(most_ns + 1).into())
    }

    fn occurs(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.random.below(1000) < per_mille
    }

    pub(super) fn push(&mut self, after: Duration, event: Event) -> EventKey {
        let at = self.now() + after;
        self.events.push(at, &mut self.random, event)
    }

    /// Moves time on to the next event, if it is due by `until`; else to `until`.
    pub(super) fn next_event(&mut self, until: Time) -> Option<Event> {
        let next = self.events.pop(until);
        let at = next.map_or(until, |(at, _)| at);
        assert!(at >= self.now(), "time does not go back");
        self.now_ns.store(at.as_ns(), Ordering::Relaxed);
        let (_, event) = next?;
        if let Event::Step(seat) = event {
            self.steps.remove(&seat);
        }
        Some(event)
    }

    /// Has a core turn at `at`, or earlier if that is planned.
    pub(super) fn plan_step(&mut self, seat: Seat, at: Time) {
        if let Some((planned, key)) = self.steps.get(&seat) {
            if *planned <= at {
                return;
            }
            self.events.remove(*key);
        }
        let key = self.events.push(at, &mut self.random, Event::Step(seat));
        self.steps.insert(seat, (at, key));
    }

    /// Forgets the planned turn of a core.
    pub(super) fn unplan_step(&mut self, seat: Seat) {
        if let Some((_, key)) = self.steps.remove(&seat) {
            self.events.remove(key);
        }
    }

    /// Wakes a core.
    pub(super) fn wake(&mut self, seat: Seat) {
        let delay = self.some_time(self.options.wake_max);
        let at = self.now() + delay;
        self.plan_step(seat, at);
    }

    fn notice(&mut self, id: SocketId) {
        if let Some(socket) = self.sockets.get(&id) {
            let seat = socket.seat;
            self.noticed.entry(seat).or_default().insert(id);
            self.wake(seat);
        }
    }

    /// The sockets of a core at which something has happened.
    pub(super) fn take_noticed(&mut self, seat: Seat) -> BTreeSet<SocketId> {
        self.noticed.remove(&seat).unwrap_or_default()
    }

    /// The operations of a core that are to end.
    pub(super) fn take_ended(&mut self, seat: Seat) -> Vec<(u64, Errno)> {
        self.ended.remove(&seat).unwrap_or_default()
    }

    /// The operations of a core that its drive does now.
    pub(super) fn take_due(&mut self, seat: Seat) -> Vec<u64> {
        self.due.remove(&seat).unwrap_or_default()
    }

    pub(super) fn has_news(&self, seat: Seat) -> bool {
        self.noticed.contains_key(&seat)
            || self.ended.contains_key(&seat)
            || self.due.contains_key(&seat)
    }

    /// Opens a file of a host. Its number is none of a socket.
    pub(super) fn open_file(
        &mut self,
        host: IpAddr,
        path: &Path,
        create: bool,
    ) -> io::Result<FileId> {
        let id = self.socket_next;
        self.socket_next += 1;
        self.on_disk(host, |disk, _| disk.open(path, create, id))
    }

    /// Calls `then` with a host's drive.
    pub(super) fn on_disk<T>(
        &mut self,
        host: IpAddr,
        then: impl FnOnce(&mut Disk, &mut disk::World<'_>) -> T,
    ) -> T {
        let host = self.hosts.get_mut(&host).expect("a process has a host");
        let mut world = disk::World {
            random: &mut self.random,
            options: self.options.disk,
            counts: &mut self.counts,
        };
        then(&mut host.disk, &mut world)
    }

    /// How long a drive takes now.
    pub(super) fn disk_latency(&mut self) -> Duration {
        let (least, most) = self.options.disk.latency;
        least + self.some_time(most.saturating_sub(least))
    }
}

/// A socket in the trace.
fn number(id: SocketId) -> u64 {
    id.unsigned_abs().into()
}
