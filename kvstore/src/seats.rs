//! Connections to the seats of a cluster's map: made when they are first needed, one per seat.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use futures_channel::oneshot;
use lunette_cluster::proto::map::ClusterMap;
use lunette_kvstore_proto::message::{FormatVersion, FormatVersions, MessageFault, NodeCard};
use lunette_kvstore_proto::placement::{Seat, has_seat};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_transfer::{ConnectError, Connection, Guard};
use lunette_transfer_proto::hello::Hello;
use thiserror::Error;

use crate::node::hello;

/// Why there is no connection to a seat. Nothing was asked of it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum SeatFault {
    /// The map has no such seat.
    #[error("the cluster's map has no such node, or not in this life")]
    NotInMap,
    /// The node cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// What listens there is no store node, or a later one.
    #[error("not a store node's greeting: {0}")]
    Greeting(#[from] MessageFault),
    /// It speaks none of our versions.
    #[error(
        "it speaks versions {theirs} of the formats, and this side {}",
        FormatVersions::OURS
    )]
    Versions {
        /// Those that it speaks.
        theirs: FormatVersions,
    },
    /// Another node or core listens there.
    #[error("another node or core listens there")]
    Another,
}

/// How connections are made.
#[derive(Clone, Debug)]
pub(crate) struct Linking {
    /// Authenticates both sides, where the cluster has a secret.
    pub(crate) guard: Option<Guard>,
    /// What this side calls its session: the guard's, where there is one.
    pub(crate) session_epoch: u64,
    pub(crate) connect_timeout: Duration,
    pub(crate) in_flight_max: u32,
}

/// A connection to a node, and what is spoken on it.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) connection: Connection,
    /// The newest version that both sides speak.
    pub(crate) version: FormatVersion,
}

impl Deref for Link {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// Those who wait for a connection that somebody else is making.
type Waiting = Vec<oneshot::Sender<()>>;

/// The connections of one core. See the [module](self).
#[derive(Debug)]
pub(crate) struct Seats {
    linking: Linking,
    map: RefCell<ClusterMap>,
    open: RefCell<BTreeMap<Seat, Link>>,
    connecting: RefCell<BTreeMap<Seat, Waiting>>,
}

impl Seats {
    pub(crate) fn new(linking: Linking) -> Self {
        Self {
            linking,
            map: RefCell::default(),
            open: RefCell::default(),
            connecting: RefCell::default(),
        }
    }

    pub(crate) const fn linking(&self) -> &Linking {
        &self.linking
    }

    /// The map is another one: connections to seats that it has not are given up.
    pub(crate) fn on_map(&self, map: &ClusterMap) {
        *self.map.borrow_mut() = map.clone();
        let mut open = self.open.borrow_mut();
        open.retain(|seat, _| has_seat(map, *seat));
    }

    /// The connection to a seat, made now if there is none, for at most `connect_timeout`.
    pub(crate) async fn connection(&self, seat: Seat) -> Result<Link, SeatFault> {
        if let Some(link) = self.live(seat) {
            return Ok(link);
        }
        if let Some(turn) = self.wait_for(seat) {
            // Whether that succeeded or not, it has just been tried.
            let tried = turn.await;
            tracing::trace!(?tried, "connecting");
            return self.live(seat).ok_or(SeatFault::Another);
        }
        let _turn = Turn { seats: self, seat };
        let connected = self.connect(seat).await;
        if let Ok(link) = &connected {
            (self.open.borrow_mut()).insert(seat, link.clone());
        }
        connected
    }

    /// The connection that is open.
    pub(crate) fn live(&self, seat: Seat) -> Option<Link> {
        let open = self.open.borrow();
        let link = open.get(&seat)?;
        link.closed().is_none().then(|| link.clone())
    }

    /// A place in the line behind who is connecting; none if it is the caller's turn.
    fn wait_for(&self, seat: Seat) -> Option<oneshot::Receiver<()>> {
        let mut connecting = self.connecting.borrow_mut();
        let Some(line) = connecting.get_mut(&seat) else {
            connecting.insert(seat, Vec::new());
            return None;
        };
        let (turn, waits) = oneshot::channel();
        line.push(turn);
        Some(waits)
    }

    async fn connect(&self, seat: Seat) -> Result<Link, SeatFault> {
        let (node, address) = self.address(seat)?;
        let first = Seat {
            core: CoreIndex(0),
            ..seat
        };
        if seat == first {
            return self.greet(address, node, seat.core).await;
        }
        // The map has the address of the first core, which tells the others' ports.
        let first = Box::pin(self.connection(first)).await?;
        let card = NodeCard::decode(&first.agreement().greeting)?;
        let port = card.ports.get(usize::from(seat.core.0));
        let port = *port.ok_or(SeatFault::NotInMap)?;
        let address = SocketAddr::new(address.ip(), port);
        self.greet(address, node, seat.core).await
    }

    fn address(&self, seat: Seat) -> Result<(NodeId, SocketAddr), SeatFault> {
        let map = self.map.borrow();
        let member = map.member(seat.node).filter(|_| has_seat(&map, seat));
        let member = member.ok_or(SeatFault::NotInMap)?;
        Ok((member.id, member.address))
    }

    async fn greet(
        &self,
        address: SocketAddr,
        node: NodeId,
        core: CoreIndex,
    ) -> Result<Link, SeatFault> {
        let connection = connect(address, &self.linking).await?;
        let card = NodeCard::decode(&connection.agreement().greeting)?;
        if (card.node_id, card.core) != (node, core) {
            return Err(SeatFault::Another);
        }
        let version = card.common_version();
        let version = version.map_err(|theirs| SeatFault::Versions { theirs })?;
        Ok(Link {
            connection,
            version,
        })
    }
}

/// Connects to a node's core.
pub(crate) async fn connect(
    address: SocketAddr,
    linking: &Linking,
) -> Result<Connection, ConnectError> {
    let ours = Hello {
        session_epoch: linking.session_epoch,
        in_flight_max: linking.in_flight_max,
        ..hello(Vec::new())
    };
    let guard = linking.guard.as_ref();
    Connection::connect_guarded(address, ours, linking.connect_timeout, guard).await
}

/// The turn of who is connecting; at its end those in line look again.
struct Turn<'a> {
    seats: &'a Seats,
    seat: Seat,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let line = self.seats.connecting.borrow_mut().remove(&self.seat);
        for turn in line.unwrap_or_default() {
            if turn.send(()).is_err() {
                tracing::trace!("who waited for a connection has given up");
            }
        }
    }
}
