//! What travels, and what becomes of it.

use std::time::Duration;

use lunette_runtime_core::time::Time;
use rustix::io::Errno;

use super::super::events::Event;
use super::{
    BACKLOG_MAX, Kind, Network, PROBES, REQUESTS_MAX, RESENDS_DOUBLED_MAX, Segment, SocketId,
    Stream, number,
};

impl Network {
    /// Something happens that is not a core's turn.
    pub(in crate::sim) fn happen(&mut self, event: Event) {
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

    pub(super) fn arrive(&mut self, from: SocketId) {
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
    pub(super) fn is_given_up(&mut self, id: SocketId) -> bool {
        let now = self.now();
        let stream = self.stream(id).expect("a connection");
        let since = *stream.held_since.get_or_insert(now);
        stream
            .unanswered_max
            .is_some_and(|limit| now.since(since) >= limit)
    }

    pub(in crate::sim) fn set_unanswered_max(&mut self, id: SocketId, limit: Duration) {
        if let Some(stream) = self.stream(id) {
            stream.unanswered_max = Some(limit);
        }
    }

    /// A peer that is silent because it is no more is asked.
    pub(super) fn probe(&mut self, from: SocketId, since: Time) {
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

    pub(super) fn deliver(&mut self, from: SocketId, to: SocketId, segment: Segment) {
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
    pub(super) fn damage(&mut self, id: SocketId, len: u64) {
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

    pub(super) fn request(&mut self, from: SocketId, tries: u32) {
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

    pub(super) fn backlog(&self, id: SocketId) -> usize {
        match &self.sockets[&id].kind {
            Kind::Listening(backlog) => backlog.len(),
            _ => 0,
        }
    }

    pub(super) fn refuse(&mut self, id: SocketId, errno: Errno) {
        self.counts.refusals += 1;
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.kind = Kind::Refused(errno);
        }
        self.notice(id);
    }

    pub(super) fn answer(&mut self, to: SocketId, accepted: Option<SocketId>) {
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
