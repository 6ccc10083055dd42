//! What a core asks of its sockets.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::io::Errno;

use super::super::events::{Event, Seat};
use super::{Attempt, Kind, Network, Segment, Socket, SocketId, Stream};

impl Network {
    pub(super) fn add_socket(&mut self, seat: Seat, host: IpAddr, kind: Kind) -> SocketId {
        let id = self.socket_next;
        self.socket_next += 1;
        self.sockets.insert(id, Socket { seat, host, kind });
        id
    }

    pub(in crate::sim) fn open(
        &mut self,
        seat: Seat,
        host: IpAddr,
        source: Option<IpAddr>,
    ) -> Result<SocketId, Errno> {
        let from = source.unwrap_or(host);
        if self.home(from) != host {
            return Err(Errno::ADDRNOTAVAIL);
        }
        Ok(self.add_socket(seat, from, Kind::Fresh))
    }

    /// A socket that listens on this host, and where.
    pub(in crate::sim) fn listen(
        &mut self,
        seat: Seat,
        host: IpAddr,
        mut address: SocketAddr,
    ) -> io::Result<(SocketId, SocketAddr)> {
        if self.home(address.ip()) != host {
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
        let id = self.add_socket(seat, address.ip(), Kind::Listening(VecDeque::new()));
        self.listening.insert(address, id);
        Ok((id, address))
    }

    /// Asks for a connection. Its outcome is to be fetched when the socket is noticed.
    pub(in crate::sim) fn begin_connect(&mut self, id: SocketId, to: SocketAddr) {
        let socket = self.sockets.get_mut(&id).expect("a socket that is open");
        assert!(matches!(socket.kind, Kind::Fresh), "connected once");
        socket.kind = Kind::Connecting(to);
        let delay = self.latency();
        self.push(delay, Event::Request { from: id, tries: 0 });
    }

    pub(in crate::sim) fn connect_outcome(&self, id: SocketId) -> Attempt<()> {
        match &self.sockets[&id].kind {
            Kind::Connecting(_) => None,
            Kind::Refused(errno) => Some(Err(*errno)),
            Kind::Stream(_) => Some(Ok(())),
            other => unreachable!("{other:?} does not connect"),
        }
    }

    pub(in crate::sim) fn accept(&mut self, id: SocketId) -> Attempt<SocketId> {
        match &mut self.sockets.get_mut(&id).expect("open").kind {
            Kind::Listening(backlog) => backlog.pop_front().map(Ok),
            _ => Some(Err(Errno::INVAL)),
        }
    }

    pub(in crate::sim) fn latency(&mut self) -> Duration {
        let (least, most) = self.options.latency;
        least + self.some_time(most.saturating_sub(least))
    }

    pub(super) fn stream(&mut self, id: SocketId) -> Option<&mut Stream> {
        match &mut self.sockets.get_mut(&id)?.kind {
            Kind::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// Bytes that have arrived, at most `len`.
    pub(in crate::sim) fn receive(&mut self, id: SocketId, len: usize) -> Attempt<Vec<u8>> {
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
        let (front, back) = stream.received.as_slices();
        let from_front = front.len().min(count);
        let bytes = [&front[..from_front], &back[..count - from_front]].concat();
        stream.received.drain(..count);
        self.counts.short_receives += u64::from(is_short);
        let delay = self.latency();
        let by_peer_of = peer;
        self.push(delay, Event::Taken { by_peer_of, count });
        Some(Ok(bytes))
    }

    /// How many bytes may be sent now.
    pub(in crate::sim) fn room(&mut self, id: SocketId) -> Attempt<usize> {
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

    pub(in crate::sim) fn send(&mut self, id: SocketId, bytes: Vec<u8>) {
        let stream = self.stream(id).expect("it has room");
        stream.outstanding += bytes.len();
        self.put_on_its_way(id, Segment::Bytes(bytes));
    }

    pub(super) fn put_on_its_way(&mut self, id: SocketId, segment: Segment) {
        let len = match &segment {
            Segment::Bytes(bytes) => bytes.len() as u64,
            Segment::Finish | Segment::Reset => 0,
        };
        let rate = self.rate_from(id);
        let takes = Duration::from_nanos(len * 1_000_000_000 / rate.max(1));
        let free = self.now() + self.latency();
        let stream = self.stream(id).expect("a connection");
        let last = stream.on_its_way.back();
        let free = last
            .map_or(free, |(last, _)| free.max(*last))
            .max(stream.since);
        let due = free + takes;
        let is_first = last.is_none();
        stream.on_its_way.push_back((due, segment));
        if is_first {
            self.events.push(due, &mut self.random, Event::Arrive(id));
        }
    }

    /// Ends both directions, as the program wants it.
    pub(in crate::sim) fn shut_down(&mut self, id: SocketId) {
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
    pub(in crate::sim) fn close(&mut self, id: SocketId) {
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
    pub(in crate::sim) fn peer_host(&mut self, id: SocketId) -> Option<IpAddr> {
        self.stream(id).map(|stream| stream.peer_host)
    }
}
