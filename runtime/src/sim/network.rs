//! Hosts, and connections between them.
//!
//! A connection is two sockets, each of which keeps what it has sent and what has not arrived, in
//! order: what is lost is sent again, and holds up what comes after it. Nothing arrives where a link
//! is cut or a host is down; a host that is up and does not know a connection resets it.

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
    pub(super) random: SplitMix64,
    pub(super) options: WorldOptions,
    events: Events,
    sockets: BTreeMap<SocketId, Socket>,
    socket_next: SocketId,
    listening: BTreeMap<SocketAddr, SocketId>,
    hosts: BTreeMap<IpAddr, Host>,
    cut: BTreeSet<(IpAddr, IpAddr)>,
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

    fn add_socket(&mut self, seat: Seat, host: IpAddr, kind: Kind) -> SocketId {
        let id = self.socket_next;
        self.socket_next += 1;
        self.sockets.insert(id, Socket { seat, host, kind });
        id
    }

    pub(super) fn open(&mut self, seat: Seat, host: IpAddr) -> SocketId {
        self.add_socket(seat, host, Kind::Fresh)
    }

    pub(super) fn boot(&mut self, host: IpAddr) {
        let host = self.hosts.entry(host).or_insert(Host {
            disk: Disk::default(),
            is_up: false,
            port_next: PORT_FIRST,
        });
        host.is_up = true;
    }

    /// A socket that listens on this host, and where.
    pub(super) fn listen(
        &mut self,
        seat: Seat,
        host: IpAddr,
        mut address: SocketAddr,
    ) -> io::Result<(SocketId, SocketAddr)> {
        if address.ip() != host {
            return Err(Errno::ADDRNOTAVAIL.into());
        }
        if address.port() == 0 {
            let state = self.hosts.get_mut(&host).expect("a process has a host");
            address.set_port(state.port_next);
            state.port_next += 1;
        }
        if self.listening.contains_key(&address) {
            return Err(Errno::ADDRINUSE.into());
        }
        let id = self.add_socket(seat, host, Kind::Listening(VecDeque::new()));
        self.listening.insert(address, id);
        Ok((id, address))
    }

    /// Asks for a connection. Its outcome is to be fetched when the socket is noticed.
    pub(super) fn begin_connect(&mut self, id: SocketId, to: SocketAddr) {
        let socket = self.sockets.get_mut(&id).expect("a socket that is open");
        assert!(matches!(socket.kind, Kind::Fresh), "connected once");
        socket.kind = Kind::Connecting(to);
        let delay = self.latency();
        self.push(delay, Event::Request { from: id, tries: 0 });
    }

    pub(super) fn connect_outcome(&self, id: SocketId) -> Attempt<()> {
        match &self.sockets[&id].kind {
            Kind::Connecting(_) => None,
            Kind::Refused(errno) => Some(Err(*errno)),
            Kind::Stream(_) => Some(Ok(())),
            other => unreachable!("{other:?} does not connect"),
        }
    }

    pub(super) fn accept(&mut self, id: SocketId) -> Attempt<SocketId> {
        match &mut self.sockets.get_mut(&id).expect("open").kind {
            Kind::Listening(backlog) => backlog.pop_front().map(Ok),
            _ => Some(Err(Errno::INVAL)),
        }
    }

    fn latency(&mut self) -> Duration {
        let (least, most) = self.options.latency;
        least + self.some_time(most.saturating_sub(least))
    }

    fn stream(&mut self, id: SocketId) -> Option<&mut Stream> {
        match &mut self.sockets.get_mut(&id)?.kind {
            Kind::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// Bytes that have arrived, at most `len`.
    pub(super) fn receive(&mut self, id: SocketId, len: usize) -> Attempt<Vec<u8>> {
        let is_short = self.occurs(self.options.short_receives_per_mille);
        let draw = self.random.next();
        let Some(stream) = self.stream(id) else {
            return Some(Err(Errno::NOTCONN));
        };
        if let Some(errno) = stream.broken {
            return Some(Err(errno));
        }
        if stream.is_shut {
            return Some(Ok(Vec::new()));
        }
        let mut count = stream.received.len().min(len);
        if count == 0 {
            return (stream.finished || len == 0).then(|| Ok(Vec::new()));
        }
        let peer = stream.peer;
        if is_short && count > 1 {
            count = 1 + usize::try_from(draw % (count as u64 - 1)).expect("below a length");
        }
        let bytes = stream.received.drain(..count).collect();
        self.counts.short_receives += u64::from(is_short);
        let delay = self.latency();
        let by_peer_of = peer;
        self.push(delay, Event::Taken { by_peer_of, count });
        Some(Ok(bytes))
    }

    /// How many bytes may be sent now.
    pub(super) fn room(&mut self, id: SocketId) -> Attempt<usize> {
        let window = self.options.window_bytes;
        let Some(stream) = self.stream(id) else {
            return Some(Err(Errno::NOTCONN));
        };
        if let Some(errno) = stream.broken {
            return Some(Err(errno));
        }
        if stream.is_shut {
            return Some(Err(Errno::PIPE));
        }
        let room = window.saturating_sub(stream.outstanding);
        (room > 0).then_some(Ok(room))
    }

    pub(super) fn send(&mut self, id: SocketId, bytes: Vec<u8>) {
        let stream = self.stream(id).expect("it has room");
        stream.outstanding += bytes.len();
        self.put_on_its_way(id, Segment::Bytes(bytes));
    }

    fn put_on_its_way(&mut self, id: SocketId, segment: Segment) {
        let len = match &segment {
            Segment::Bytes(bytes) => bytes.len() as u64,
            Segment::Finish | Segment::Reset => 0,
        };
        let takes_ns = len * 1_000_000_000 / self.options.bytes_per_second.max(1);
        let due = self.now() + self.latency() + Duration::from_nanos(takes_ns);
        let stream = self.stream(id).expect("a connection");
        let last = stream.on_its_way.back();
        let due = last
            .map_or(due, |(last, _)| due.max(*last))
            .max(stream.since);
        let is_first = last.is_none();
        stream.on_its_way.push_back((due, segment));
        if is_first {
            self.events.push(due, &mut self.random, Event::Arrive(id));
        }
    }

    /// Ends both directions, as the program wants it.
    pub(super) fn shut_down(&mut self, id: SocketId) {
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        match &mut socket.kind {
            Kind::Stream(stream) if !stream.is_shut => {
                stream.is_shut = true;
                let (is_broken, unread) = (stream.broken.is_some(), !stream.received.is_empty());
                if !is_broken {
                    let last = if unread {
                        Segment::Reset
                    } else {
                        Segment::Finish
                    };
                    self.put_on_its_way(id, last);
                }
                self.notice(id);
            }
            Kind::Listening(backlog) => {
                let waiting = std::mem::take(backlog);
                socket.kind = Kind::Fresh;
                self.listening.retain(|_, listening| *listening != id);
                for connection in waiting {
                    self.close(connection);
                }
                self.notice(id);
            }
            _ => {}
        }
    }

    /// The program is done with a socket, or its process is gone.
    pub(super) fn close(&mut self, id: SocketId) {
        self.shut_down(id);
        if let Some(stream) = self.stream(id) {
            stream.is_closed = true;
            if !stream.on_its_way.is_empty() {
                return;
            }
        }
        self.sockets.remove(&id);
    }

    /// The other end's host.
    pub(super) fn peer_host(&mut self, id: SocketId) -> Option<IpAddr> {
        self.stream(id).map(|stream| stream.peer_host)
    }

    /// Whether nothing gets from one host to another.
    fn is_held(&self, from: IpAddr, to: IpAddr) -> bool {
        self.cut.contains(&(from, to)) || !self.hosts.get(&to).is_some_and(|host| host.is_up)
    }

    /// Nothing gets from `from` to `to` any more, until [`Network::mend`].
    pub(super) fn cut(&mut self, from: IpAddr, to: IpAddr) {
        self.counts.cuts += u64::from(self.cut.insert((from, to)));
    }

    pub(super) fn mend(&mut self, from: IpAddr, to: IpAddr) {
        self.cut.remove(&(from, to));
    }

    /// Resets each connection between two hosts.
    pub(super) fn reset(&mut self, one: IpAddr, other: IpAddr) {
        let between: Vec<SocketId> = self
            .sockets
            .iter()
            .filter_map(|(id, socket)| match &socket.kind {
                Kind::Stream(stream) => {
                    let ends = (socket.host, stream.peer_host);
                    (ends == (one, other) || ends == (other, one)).then_some(*id)
                }
                _ => None,
            })
            .collect();
        self.counts.resets += between.len() as u64;
        for id in between {
            self.break_off(id, Errno::CONNRESET);
        }
    }

    /// A socket learns that its connection is no more.
    fn break_off(&mut self, id: SocketId, errno: Errno) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        stream.broken = Some(errno);
        stream.received.clear();
        stream.on_its_way.clear();
        if stream.is_closed {
            self.sockets.remove(&id);
        } else {
            self.notice(id);
        }
    }

    /// The process on these seats is gone, and its sockets with it. Where the power was lost, no
    /// peer is told.
    pub(super) fn remove_process(&mut self, host: IpAddr, seats: &[Seat], power_lost: bool) {
        let own = |socket: &Socket| seats.contains(&socket.seat);
        let ids: Vec<SocketId> = self
            .sockets
            .iter()
            .filter_map(|(id, socket)| own(socket).then_some(*id))
            .collect();
        for id in ids {
            if power_lost {
                if let Some(peer) = self.stream(id).map(|stream| stream.peer) {
                    self.counts.half_open += 1;
                    let (from, since) = (peer, self.now());
                    self.push(Duration::ZERO, Event::Probe { from, since });
                }
                self.listening.retain(|_, listening| *listening != id);
                self.sockets.remove(&id);
            } else {
                self.close(id);
            }
        }
        if power_lost {
            self.on_disk(host, Disk::lose_power);
            self.hosts.get_mut(&host).expect("it was up").is_up = false;
        }
        for seat in seats {
            self.unplan_step(*seat);
            self.noticed.remove(seat);
            self.ended.remove(seat);
            self.due.remove(seat);
        }
    }

    /// Something happens that is not a core's turn.
    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::Step(_) => unreachable!("a turn is the world's"),
            Event::Arrive(from) => self.arrive(from),
            Event::Probe { from, since } => self.probe(from, since),
            Event::Taken { by_peer_of, count } => {
                if let Some(stream) = self.stream(by_peer_of) {
                    stream.outstanding = stream.outstanding.saturating_sub(count);
                    self.notice(by_peer_of);
                }
            }
            Event::Request { from, tries } => self.request(from, tries),
            Event::Answer { to, accepted } => self.answer(to, accepted),
            Event::Disk { seat, key } => {
                self.due.entry(seat).or_default().push(key);
                self.wake(seat);
            }
            Event::End { seat, key, errno } => {
                self.ended.entry(seat).or_default().push((key, errno));
                self.wake(seat);
            }
        }
    }

    fn arrive(&mut self, from: SocketId) {
        let Some(socket) = self.sockets.get(&from) else {
            return;
        };
        let Kind::Stream(stream) = &socket.kind else {
            return;
        };
        let (host, peer, peer_host) = (socket.host, stream.peer, stream.peer_host);
        let resends = stream.resends.min(RESENDS_DOUBLED_MAX);
        let is_held = self.is_held(host, peer_host);
        let is_lost = self.occurs(self.options.losses_per_mille);
        self.counts.held_by_a_cut += u64::from(is_held);
        self.counts.losses += u64::from(is_lost && !is_held);
        if is_held && self.is_given_up(from) {
            return self.break_off(from, Errno::TIMEDOUT);
        }
        if is_held || is_lost {
            let again = self.options.resend * (1 << resends);
            self.stream(from).expect("a connection").resends += 1;
            self.push(again, Event::Arrive(from));
            return;
        }
        let stream = self.stream(from).expect("a connection");
        stream.resends = 0;
        stream.held_since = None;
        let Some((_, segment)) = stream.on_its_way.pop_front() else {
            return;
        };
        let next = stream.on_its_way.front().map(|(due, _)| *due);
        let is_done = next.is_none() && stream.is_closed;
        if let Some(due) = next {
            let at = due.max(self.now());
            self.events.push(at, &mut self.random, Event::Arrive(from));
        }
        self.deliver(from, peer, segment);
        if is_done {
            self.sockets.remove(&from);
        }
    }

    /// Whether what a socket has sent has not arrived for longer than it waits.
    fn is_given_up(&mut self, id: SocketId) -> bool {
        let now = self.now();
        let stream = self.stream(id).expect("a connection");
        let since = *stream.held_since.get_or_insert(now);
        stream
            .unanswered_max
            .is_some_and(|limit| now.since(since) >= limit)
    }

    pub(super) fn set_unanswered_max(&mut self, id: SocketId, limit: Duration) {
        if let Some(stream) = self.stream(id) {
            stream.unanswered_max = Some(limit);
        }
    }

    /// A peer that is silent because it is no more is asked.
    fn probe(&mut self, from: SocketId, since: Time) {
        let now = self.now();
        let Some(socket) = self.sockets.get(&from) else {
            return;
        };
        let Kind::Stream(stream) = &socket.kind else {
            return;
        };
        let (host, peer_host) = (socket.host, stream.peer_host);
        let Some(limit) = stream.unanswered_max.filter(|_| stream.broken.is_none()) else {
            return;
        };
        if !self.is_held(host, peer_host) && !self.is_held(peer_host, host) {
            // A system that is up and knows nothing of it.
            self.break_off(from, Errno::CONNRESET);
        } else if now.since(since) >= limit {
            self.break_off(from, Errno::TIMEDOUT);
        } else {
            self.push(limit / PROBES, Event::Probe { from, since });
        }
    }

    fn deliver(&mut self, from: SocketId, to: SocketId, segment: Segment) {
        let len = match &segment {
            Segment::Bytes(bytes) => bytes.len() as u64,
            Segment::Finish => 0,
            Segment::Reset => u64::MAX,
        };
        let numbers = [number(from), number(to), len];
        self.trace.add(self.now(), "arrived", numbers);
        let Some(stream) = self.stream(to) else {
            // Nobody knows the connection there: the sender is told.
            if !matches!(segment, Segment::Reset) {
                self.break_off(from, Errno::CONNRESET);
            }
            return;
        };
        match segment {
            Segment::Bytes(bytes) if stream.is_shut => {
                // Bytes for a program that has stopped listening.
                drop(bytes);
                self.break_off(from, Errno::CONNRESET);
            }
            Segment::Bytes(bytes) => {
                stream.received.extend(bytes);
                self.damage(to, len);
                self.notice(to);
            }
            Segment::Finish => {
                stream.finished = true;
                self.notice(to);
            }
            Segment::Reset => self.break_off(to, Errno::CONNRESET),
        }
    }

    /// Now and then changes a bit of what has just arrived.
    fn damage(&mut self, id: SocketId, len: u64) {
        let most = self.options.damages_per_million;
        if most == 0 || self.random.below(1_000_000) >= most {
            return;
        }
        let (place, bit) = (self.random.next() % len, self.random.below(8));
        let back = usize::try_from(len - place).expect("a length");
        let stream = self.stream(id).expect("it has received");
        let at = stream.received.len() - back;
        stream.received[at] ^= 1 << bit;
        self.counts.damages += 1;
    }

    fn request(&mut self, from: SocketId, tries: u32) {
        let Some(socket) = self.sockets.get(&from) else {
            return;
        };
        let (Kind::Connecting(to), host) = (&socket.kind, socket.host) else {
            return;
        };
        let to = *to;
        let listener = self.listening.get(&to).copied();
        let is_full = listener.is_some_and(|id| self.backlog(id) >= BACKLOG_MAX);
        if self.is_held(host, to.ip()) || self.is_held(to.ip(), host) || is_full {
            if tries >= REQUESTS_MAX {
                self.refuse(from, Errno::TIMEDOUT);
            } else {
                let tries = tries + 1;
                let again = Duration::from_secs(1 << (tries - 1));
                self.push(again, Event::Request { from, tries });
            }
            return;
        }
        let delay = self.latency();
        let since = self.now() + delay + Duration::from_nanos(1);
        let accepted = listener.map(|listener| {
            let seat = self.sockets[&listener].seat;
            let stream = Stream::new(from, host, since);
            let id = self.add_socket(seat, to.ip(), Kind::Stream(stream));
            let Kind::Listening(backlog) =
                &mut self.sockets.get_mut(&listener).expect("it listens").kind
            else {
                unreachable!("it listens")
            };
            backlog.push_back(id);
            self.notice(listener);
            id
        });
        self.push(delay, Event::Answer { to: from, accepted });
    }

    fn backlog(&self, id: SocketId) -> usize {
        match &self.sockets[&id].kind {
            Kind::Listening(backlog) => backlog.len(),
            _ => 0,
        }
    }

    fn refuse(&mut self, id: SocketId, errno: Errno) {
        self.counts.refusals += 1;
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.kind = Kind::Refused(errno);
        }
        self.notice(id);
    }

    fn answer(&mut self, to: SocketId, accepted: Option<SocketId>) {
        let Some(peer) = accepted else {
            return self.refuse(to, Errno::CONNREFUSED);
        };
        let numbers = [number(to), number(peer), 0];
        self.trace.add(self.now(), "connected", numbers);
        let Some(peer_host) = self.sockets.get(&peer).map(|socket| socket.host) else {
            return self.refuse(to, Errno::CONNRESET);
        };
        let now = self.now();
        match self.sockets.get_mut(&to) {
            Some(socket) => {
                socket.kind = Kind::Stream(Stream::new(peer, peer_host, now));
                self.notice(to);
            }
            // It was given up meanwhile; what listens finds a connection that is no more.
            None => self.break_off(peer, Errno::CONNRESET),
        }
    }
}

/// A socket in the trace.
fn number(id: SocketId) -> u64 {
    id.unsigned_abs().into()
}
