//! Hosts that come and go, links that are cut, connections that are no more.

use std::net::IpAddr;
use std::time::Duration;

use rustix::io::Errno;

use super::super::disk::Disk;
use super::super::events::{Event, Seat};
use super::{Host, Kind, Network, PORT_FIRST, Socket, SocketId};

impl Network {
    pub(in crate::sim) fn boot(&mut self, host: IpAddr) {
        let host = self.hosts.entry(host).or_insert(Host {
            disk: Disk::default(),
            is_up: false,
            port_next: PORT_FIRST,
        });
        host.is_up = true;
    }

    /// Whether nothing gets from one host to another.
    pub(super) fn is_held(&self, from: IpAddr, to: IpAddr) -> bool {
        let is_up = self
            .hosts
            .get(&self.home(to))
            .is_some_and(|host| host.is_up);
        self.cut.contains(&(from, to)) || !is_up
    }

    /// A host gets one more address.
    pub(in crate::sim) fn add_address(&mut self, host: IpAddr, address: IpAddr) {
        self.aliases.insert(address, host);
    }

    /// The host that has an address.
    pub(super) fn home(&self, address: IpAddr) -> IpAddr {
        self.aliases.get(&address).copied().unwrap_or(address)
    }

    /// A name stands for these addresses from now on.
    pub(in crate::sim) fn set_name(&mut self, name: &str, addresses: &[IpAddr]) {
        self.names.insert(name.to_owned(), addresses.to_vec());
    }

    pub(in crate::sim) fn addresses_of(&self, name: &str) -> Vec<IpAddr> {
        self.names.get(name).cloned().unwrap_or_default()
    }

    /// What goes from `from` to `to` takes its time.
    pub(in crate::sim) fn set_rate(&mut self, from: IpAddr, to: IpAddr, bytes_per_second: u64) {
        self.rates.insert((from, to), bytes_per_second);
    }

    /// Bytes per second of a connection, from this end of it.
    pub(super) fn rate_from(&mut self, id: SocketId) -> u64 {
        let from = self.sockets.get(&id).map(|socket| socket.host);
        let to = self.stream(id).map(|stream| stream.peer_host);
        let of_link = from.zip(to).and_then(|link| self.rates.get(&link).copied());
        of_link.unwrap_or(self.options.bytes_per_second)
    }

    /// Nothing gets from `from` to `to` any more, until [`Network::mend`].
    pub(in crate::sim) fn cut(&mut self, from: IpAddr, to: IpAddr) {
        self.counts.cuts += u64::from(self.cut.insert((from, to)));
    }

    pub(in crate::sim) fn mend(&mut self, from: IpAddr, to: IpAddr) {
        self.cut.remove(&(from, to));
    }

    /// Resets each connection between two hosts.
    pub(in crate::sim) fn reset(&mut self, one: IpAddr, other: IpAddr) {
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
    pub(super) fn break_off(&mut self, id: SocketId, errno: Errno) {
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
    pub(in crate::sim) fn remove_process(
        &mut self,
        host: IpAddr,
        seats: &[Seat],
        power_lost: bool,
    ) {
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
}
