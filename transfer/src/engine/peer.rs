//! A peer's engine, seen from here.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use lunette_runtime::{Scope, Signal, time};
use lunette_runtime_core::codec::{Reader, Writer};
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::{
    Descriptor, NOTE_BYTES_MAX, Operation, Refusal, finish,
};
use lunette_transfer_proto::engine::scheduler::{RAILS_MAX, Scheduler, TransferId};
use lunette_transfer_proto::engine::segment::{Access, Kind, SegmentId, Way};
use slab::Slab;

use super::batch::{Batch, PostOptions};
use super::destination::{Destination, Passage};
use super::endpoint::Endpoint;
use super::error::{OpenError, PostError};
use super::posted::{Posted, Transfer};
use super::race;
use super::rails::Carried;
use super::rdma::OneSided;
use super::same_host::Link;
use super::statistics::RailStatistics;
use super::tokens::Tokens;
use super::{Inner, spawned};
use crate::client::{Attachments, Connection, Reply};

/// A segment of a peer, as it was when it was opened. Its id dies with its registration: an access to
/// memory that was registered later in its place is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSegment {
    peer: u64,
    descriptor: Descriptor,
    is_granted: bool,
}

impl RemoteSegment {
    /// What a capability opens.
    pub(super) const fn granted(peer: u64, descriptor: Descriptor) -> Self {
        Self {
            peer,
            descriptor,
            is_granted: true,
        }
    }

    /// The session epoch of the engine whose it is.
    #[must_use]
    pub const fn peer(&self) -> u64 {
        self.peer
    }

    /// Its id there.
    #[must_use]
    pub const fn id(&self) -> SegmentId {
        self.descriptor.segment
    }

    /// Its length; for one that was opened by a capability, where what that grants ends.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.descriptor.len_bytes
    }

    /// What we may do.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.descriptor.access
    }

    /// What it is made of.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.descriptor.kind
    }

    /// Whether it was opened by a capability ([`Peer::redeem`]).
    #[must_use]
    pub const fn is_granted(&self) -> bool {
        self.is_granted
    }
}

/// An engine that was opened. Clones are handles to the same; its connections end with the last handle
/// and the last transfer.
#[derive(Clone, Debug)]
pub struct Peer {
    pub(super) shared: Rc<Shared>,
    _closes: Rc<CloseOnDrop>,
}

#[derive(Debug)]
struct CloseOnDrop(Rc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.tasks.abort();
        self.0.one_sided.close_all();
        // Each connection ends what was asked on it, and so lets go of this.
        for connection in self.0.state.borrow().rails.iter().flatten() {
            connection.close();
        }
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) engine: Rc<Inner>,
    /// Where its rails lead.
    pub(super) destinations: Vec<Rc<Destination>>,
    /// Its session epoch.
    pub(super) epoch: u64,
    /// What it is called in the numbers of its connections.
    pub(super) number: u32,
    pub(super) state: RefCell<State>,
    /// What new connections are to show.
    pub(super) tokens: RefCell<Tokens>,
    /// The rails of adapters, which the scheduler counts behind the others.
    pub(super) one_sided: OneSided,
    /// The way to a peer on this host, while there is one.
    pub(super) same_host: RefCell<Option<Rc<Link>>>,
    pub(super) tasks: Scope,
    /// Wakes the task that keeps times, when there is an earlier one than it sleeps for.
    pub(super) keeper: Signal,
    pub(super) sleeps_until: Cell<Time>,
    /// What is to be done is being done.
    pub(super) is_acting: Cell<bool>,
    /// Transfers with devices on this side.
    pub(super) carried: Cell<usize>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) scheduler: Scheduler,
    /// The connection of each rail that is up.
    pub(super) rails: Vec<Option<Connection>>,
    pub(super) posted: BTreeMap<TransferId, Rc<Posted>>,
    /// The slices that have been asked for.
    pub(super) carried: Slab<Carried>,
    pub(super) is_replaced: bool,
}

impl Peer {
    pub(super) async fn open(
        engine: &Rc<Inner>,
        endpoints: Vec<Endpoint>,
    ) -> Result<Self, OpenError> {
        let count = endpoints.len();
        if !(1..=RAILS_MAX).contains(&count) {
            return Err(OpenError::BadAddresses { count });
        }
        let destinations: Vec<_> = endpoints.into_iter().map(Destination::new).collect();
        let First {
            number,
            rail,
            connection,
        } = first_to_answer(engine, &destinations).await?;
        let epoch = connection.agreement().session_epoch;
        let one_sided = if epoch == engine.epoch {
            OneSided::default()
        } else {
            OneSided::discover(engine, &connection, count).await
        };
        let options = engine.options.scheduler;
        let mut scheduler = Scheduler::with_one_sided(options, count, one_sided.len());
        let adopted = scheduler.adopt(rail, time::now());
        assert_eq!(adopted, 1, "the first of its connections");
        let mut rails: Vec<Option<Connection>> = (0..count).map(|_| None).collect();
        rails[rail] = Some(connection.clone());
        let state = State {
            scheduler,
            rails,
            posted: BTreeMap::new(),
            carried: Slab::new(),
            is_replaced: false,
        };
        let shared = Rc::new(Shared {
            engine: Rc::clone(engine),
            destinations,
            epoch,
            number,
            state: RefCell::new(state),
            tokens: RefCell::default(),
            one_sided,
            same_host: RefCell::default(),
            tasks: Scope::new(),
            keeper: Signal::default(),
            sleeps_until: Cell::new(Time::MAX),
            is_acting: Cell::new(false),
            carried: Cell::new(0),
        });
        let link = if epoch == engine.epoch {
            None
        } else {
            Link::join(engine, &connection).await
        };
        shared.watch(rail, adopted, connection);
        let keeping = Rc::clone(&shared).keep_times();
        shared.tasks.spawn(keeping).map_err(OpenError::Task)?;
        shared.set_link(link);
        let closes = Rc::new(CloseOnDrop(Rc::clone(&shared)));
        Ok(Self {
            shared,
            _closes: closes,
        })
    }

    /// Its session epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// Whether it is the very engine that opened it.
    #[must_use]
    pub fn is_self(&self) -> bool {
        self.shared.is_own()
    }

    /// Opens the segment of a name.
    ///
    /// # Errors
    /// [`OpenError`]; [`Refusal::Stale`] if it has none.
    pub async fn segment(&self, name: &str) -> Result<RemoteSegment, OpenError> {
        let body = |out: &mut Vec<u8>| out.extend_from_slice(name.as_bytes());
        let reply = self.ask(Operation::Open, body).await?;
        let mut reader = Reader::new(&reply.body);
        let descriptor = Descriptor::decode(&mut reader).map_err(|_| OpenError::Malformed)?;
        finish(&reader).map_err(|_| OpenError::Malformed)?;
        Ok(self.remote(descriptor).await)
    }

    /// Opens the segment in which a range of the peer's addresses lies, and says where in it.
    ///
    /// # Errors
    /// [`OpenError`]; [`Refusal::OutOfRange`] if there is none.
    pub async fn segment_at(
        &self,
        start: u64,
        len_bytes: u64,
    ) -> Result<(RemoteSegment, u64), OpenError> {
        let body = |out: &mut Vec<u8>| {
            Writer::new(out).u64(start).u64(len_bytes);
        };
        let reply = self.ask(Operation::Find, body).await?;
        let mut reader = Reader::new(&reply.body);
        let descriptor = Descriptor::decode(&mut reader).map_err(|_| OpenError::Malformed)?;
        let offset = reader.u64().map_err(|_| OpenError::Malformed)?;
        finish(&reader).map_err(|_| OpenError::Malformed)?;
        Ok((self.remote(descriptor).await, offset))
    }

    /// Posts a batch, from now on under way whether the future is polled or not. Dropping the future
    /// cancels the transfer; to know that nothing of it lands any more, [`Transfer::cancel`] it and
    /// await it.
    ///
    /// # Errors
    /// [`PostError`]; nothing was sent.
    pub fn post(&self, batch: &Batch, options: PostOptions) -> Result<Transfer, PostError> {
        self.check(batch, &options)?;
        let shared = &self.shared;
        let now = time::now();
        let posted = Rc::new(Posted::new(batch, options, now));
        if batch.has_devices() {
            shared.carry_devices(&posted)?;
        } else {
            shared.dispatch(&posted, now)?;
        }
        Ok(Transfer {
            peer: self.clone(),
            posted,
        })
    }

    /// Whether a batch can be posted.
    pub(super) fn check(&self, batch: &Batch, options: &PostOptions) -> Result<(), PostError> {
        let shared = &self.shared;
        if batch.peer().is_some_and(|peer| peer != shared.epoch) {
            return Err(PostError::OtherPeer);
        }
        let note = options.notification.as_deref().unwrap_or_default();
        if note.len() > NOTE_BYTES_MAX {
            let len_bytes = note.len();
            return Err(PostError::NoteTooLong { len_bytes });
        }
        if shared.state.borrow().is_replaced {
            return Err(PostError::PeerReplaced);
        }
        Ok(())
    }

    /// Whether it is on this host and shares memory with us.
    #[must_use]
    pub fn is_same_host(&self) -> bool {
        self.shared.link().is_some()
    }

    /// What is known of its rails, in the order of the addresses that it was opened by.
    #[must_use]
    pub fn rails(&self) -> Vec<RailStatistics> {
        let state = self.shared.state.borrow();
        let rails = state.scheduler.rails().iter().enumerate();
        let one_sided = &self.shared.one_sided;
        rails
            .map(|(index, rail)| RailStatistics {
                carrier: rail.carrier(),
                adapter: one_sided.adapter(index),
                address: self.shared.destination(index).address(),
                source: self.shared.destination(index).source(),
                is_up: rail.is_up(),
                bytes_per_second: rail.bytes_per_second(),
                under_way_bytes: rail.under_way_bytes(),
                connections: rail.connection(),
                failures: rail.failures(),
            })
            .collect()
    }

    /// Maps what can be, or is handed it, so that reads of it are copies.
    async fn remote(&self, descriptor: Descriptor) -> RemoteSegment {
        let link = self.shared.link();
        let can_be_had = |link: &Rc<Link>| match descriptor.kind {
            Kind::Memory => descriptor.access.allows(Way::Read),
            Kind::Device => link.reads_peer(),
            _ => false,
        };
        if let Some(link) = link.filter(can_be_had) {
            let patience = self.shared.engine.options.connect_timeout;
            link.map(descriptor.segment, patience).await;
        }
        RemoteSegment {
            peer: self.shared.epoch,
            descriptor,
            is_granted: false,
        }
    }

    /// Asks over whatever rail is up, or over a new connection if none is.
    pub(super) async fn ask(
        &self,
        op: Operation,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Reply, OpenError> {
        let shared = &self.shared;
        let up = shared.state.borrow().rails.iter().flatten().next().cloned();
        let connection = match up {
            Some(connection) => connection,
            None => {
                let found = first_to_answer(&shared.engine, &shared.destinations).await?;
                found.connection
            }
        };
        let timeout = shared.engine.options.connect_timeout;
        let asked = connection.call(op.to_wire(), body, Attachments::default(), timeout);
        let reply = asked
            .await
            .map_err(|failure| OpenError::Call(failure.error))?;
        match Refusal::from_wire(reply.status) {
            None => Ok(reply),
            Some(refusal) => Err(OpenError::Refused(refusal)),
        }
    }
}

impl Shared {
    /// Whether it is the very engine that opened it.
    pub(super) fn is_own(&self) -> bool {
        self.epoch == self.engine.epoch
    }

    /// The peer's addresses, by rail.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let destinations = self.destinations.iter();
        destinations.map(|to| to.address()).collect()
    }

    /// Where a rail leads; of one of adapters, where the first stream does.
    pub(super) fn destination(&self, rail: usize) -> &Rc<Destination> {
        let found = self.destinations.get(rail);
        found.unwrap_or(&self.destinations[0])
    }

    pub(super) fn link(&self) -> Option<Rc<Link>> {
        let link = self.same_host.borrow();
        link.as_ref().filter(|link| link.is_alive()).cloned()
    }

    fn set_link(self: &Rc<Self>, link: Option<Link>) {
        let Some(link) = link.map(Rc::new) else {
            return;
        };
        *self.same_host.borrow_mut() = Some(Rc::clone(&link));
        let (attending, keeping) = (Rc::clone(self), Rc::clone(self));
        let attended = spawned(self.tasks.spawn(attending.attend(Rc::clone(&link))));
        let is_kept = attended && spawned(self.tasks.spawn(keeping.keep_link(Rc::clone(&link))));
        if !is_kept {
            link.end();
        }
    }
}

/// Bits of a rail's number, and of its connections', in what a connection is called.
const RAIL_BITS: u32 = RAILS_MAX.ilog2();
const CONNECTION_BITS: u32 = u32::BITS - RAIL_BITS;

/// What a connection is called at the other side: by its peer's number, its rail's, and how many that rail
/// has had. After so many that they do not fit, they are counted from 0 again: the fence of a connection that
/// long gone is over.
pub(super) fn connection_number(peer: u32, rail: usize, connection: u32) -> u64 {
    assert!(rail < RAILS_MAX, "rails are bounded");
    let connection = u64::from(connection) & ((1 << CONNECTION_BITS) - 1);
    u64::from(peer) << u32::BITS | (rail as u64) << CONNECTION_BITS | connection
}

/// Whether two connections of one engine are of the same rail.
pub(super) const fn is_same_rail(one: u64, other: u64) -> bool {
    one >> CONNECTION_BITS == other >> CONNECTION_BITS
}

/// Which peer of an engine's a connection is to, at the other side.
pub(super) const fn asking_peer(connection: u64) -> u32 {
    (connection >> u32::BITS) as u32
}

/// The way to a rail's next connection.
pub(super) fn passage(peer: u32, rail: usize, connection: u32, failures: u32) -> Passage {
    Passage {
        number: connection_number(peer, rail, connection),
        rail,
        turn: u64::from(peer) + rail as u64,
        // What was lost is first tried as it was.
        attempt: failures.saturating_sub(1),
    }
}

/// The first rail that is connected.
struct First {
    /// The peer's number from now on.
    number: u32,
    rail: usize,
    connection: Connection,
}

/// Connects whichever rail is first. Each attempt has a number of its own: what is left of one that was
/// given up may arrive after its rail has been connected.
async fn first_to_answer(
    engine: &Inner,
    destinations: &[Rc<Destination>],
) -> Result<First, OpenError> {
    let attempts = destinations.iter().enumerate().map(|(rail, destination)| {
        let attempt = async move {
            let number = engine.next_peer();
            let reached = destination.reach(engine, passage(number, rail, 1, 0));
            let connection = reached.await?.connection;
            Ok(First {
                number,
                rail,
                connection,
            })
        };
        Box::pin(attempt) as race::Attempt<'_, First, OpenError>
    });
    let (_, first) = race::first(attempts).await?;
    Ok(first)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_connections_of_an_engine_are_called_the_same() {
        let connections = [0, 1, (1 << CONNECTION_BITS) - 1];
        let mut numbers = BTreeSet::new();
        for peer in [0, 1, 1 << 24, u32::MAX] {
            for rail in [0, 1, RAILS_MAX - 1] {
                for connection in connections {
                    let number = connection_number(peer, rail, connection);
                    assert!(numbers.insert(number));
                    assert_eq!(asking_peer(number), peer);
                }
            }
        }
        let again = connection_number(7, 3, 1 << CONNECTION_BITS);
        assert_eq!(again, connection_number(7, 3, 0), "counted from 0 again");
    }
}
