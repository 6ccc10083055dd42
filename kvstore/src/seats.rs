//! Connections to the seats of a cluster's map: made when they are first needed, one per seat, bounded in
//! number, and closed when nothing was asked on them for a while.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use futures_channel::oneshot;
use lunette_cluster::proto::map::ClusterMap;
use lunette_kvstore_proto::message::{FormatVersion, FormatVersions, MessageFault, NodeCard};
use lunette_kvstore_proto::placement::{Seat, has_seat};
use lunette_runtime::{Signal, time};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::time::Time;
use lunette_transfer::{ConnectError, Connection, Guard, Line};
use lunette_transfer_proto::hello::{Agreement, Hello};
use thiserror::Error;

use crate::node::hello;
use crate::rails::Rails;

/// Connections to seats that one core has, where nobody says.
pub(crate) const CONNECTIONS_MAX: usize = 1024;
/// How long a connection is kept on which nothing is asked, where nobody says.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How often who waits for room for a connection looks for it.
const ROOM_LOOK: Duration = Duration::from_millis(2);

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
    /// There are as many as there may be, and something is asked on each. Try again.
    #[error("{connections_max} connections are in use")]
    TooMany {
        /// How many there may be.
        connections_max: usize,
    },
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
    /// Most connections that are open or being made. Where another is needed, the one that was asked for
    /// the longest time ago is closed, unless it is in use.
    pub(crate) connections_max: usize,
    /// How long one is kept on which nothing is asked.
    pub(crate) idle_timeout: Duration,
}

/// A connection to a node, and what is spoken on it. While somebody has it, it is in use, and stays open.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    connection: Rc<Connection>,
    /// The newest version that both sides speak.
    pub(crate) version: FormatVersion,
    /// Its queue pairs, which end with it.
    pub(crate) rails: Rc<Rails>,
}

impl Deref for Link {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// A connection that is open.
#[derive(Debug)]
struct Open {
    link: Link,
    /// When it was last wanted.
    used: Cell<Time>,
}

impl Open {
    fn is_in_use(&self) -> bool {
        Rc::strong_count(&self.link.connection) > 1
    }

    fn is_ended(&self) -> bool {
        self.link.closed().is_some()
    }
}

/// Those who wait for a connection that somebody else is making.
type Waiting = Vec<oneshot::Sender<Result<(), SeatFault>>>;

/// The connections of one core. See the [module](self).
#[derive(Debug)]
pub(crate) struct Seats {
    linking: Linking,
    map: RefCell<ClusterMap>,
    open: RefCell<BTreeMap<Seat, Open>>,
    connecting: RefCell<BTreeMap<Seat, Waiting>>,
    /// Connections that are being made.
    making: Cell<usize>,
    /// Raised when one is opened.
    opened: Signal,
}

impl Seats {
    pub(crate) fn new(linking: Linking) -> Self {
        Self {
            linking,
            map: RefCell::default(),
            open: RefCell::default(),
            connecting: RefCell::default(),
            making: Cell::new(0),
            opened: Signal::default(),
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
        match self.live(seat) {
            Some(link) => Ok(link),
            // Far longer than the rest of those who ask for it, who are moved about.
            None => Box::pin(self.connection_anew(seat)).await,
        }
    }

    async fn connection_anew(&self, seat: Seat) -> Result<Link, SeatFault> {
        let until = time::now() + self.linking.connect_timeout;
        while let Some(turn) = self.wait_for(seat) {
            // What has just been tried would end the same.
            if let Ok(Err(fault)) = turn.await {
                return Err(fault);
            }
            if let Some(link) = self.live(seat) {
                return Ok(link);
            }
            // Whoever was making it has given up, or it has made room for another by now.
            if time::now() >= until {
                return Err(ConnectError::TimedOut.into());
            }
        }
        let mut turn = Turn {
            seats: self,
            seat,
            ended: None,
        };
        let link = self.connect(seat).await;
        turn.ended = Some(link.as_ref().map(drop).map_err(Clone::clone));
        let link = link?;
        let open = Open {
            link: link.clone(),
            used: Cell::new(time::now()),
        };
        self.open.borrow_mut().insert(seat, open);
        self.opened.raise();
        Ok(link)
    }

    /// The connection that is open.
    pub(crate) fn live(&self, seat: Seat) -> Option<Link> {
        let open = self.open.borrow();
        let open = open.get(&seat).filter(|open| !open.is_ended())?;
        open.used.set(time::now());
        Some(open.link.clone())
    }

    /// Room for one that is about to be made, for which others' uses are waited for as long as for a peer.
    async fn room(&self) -> Result<Making<'_>, SeatFault> {
        let until = time::now() + self.linking.connect_timeout;
        while !self.has_room() {
            if time::now() >= until {
                let connections_max = self.linking.connections_max;
                return Err(SeatFault::TooMany { connections_max });
            }
            time::sleep(ROOM_LOOK).await;
        }
        self.making.set(self.making.get() + 1);
        Ok(Making(&self.making))
    }

    /// Whether there are as many as there may be, in use or not.
    pub(crate) fn is_full(&self) -> bool {
        self.open.borrow().len() + self.making.get() >= self.linking.connections_max
    }

    /// Whether there is room for another, once what has ended is gone, and what is not in use.
    fn has_room(&self) -> bool {
        let connections_max = self.linking.connections_max;
        let mut open = self.open.borrow_mut();
        open.retain(|_, open| !open.is_ended());
        while open.len() + self.making.get() >= connections_max {
            let unused = open.iter().filter(|(_, open)| !open.is_in_use());
            let oldest = unused.min_by_key(|(_, open)| open.used.get());
            let Some((&oldest, _)) = oldest else {
                return false;
            };
            tracing::debug!(seat = ?oldest, "a connection makes room for another");
            open.remove(&oldest);
        }
        true
    }

    /// Closes connections on which nothing has been asked for a while, for as long as it is polled.
    pub(crate) async fn close_idle(&self) {
        loop {
            self.opened.raised().await;
            while let Some(wait) = self.close_idle_now() {
                time::sleep(wait).await;
            }
        }
    }

    /// Closes what is idle: how long until there may be more, unless nothing is left.
    fn close_idle_now(&self) -> Option<Duration> {
        let now = time::now();
        let idle_timeout = self.linking.idle_timeout;
        let mut open = self.open.borrow_mut();
        open.retain(|_, open| {
            let is_idle = now >= open.used.get() + idle_timeout && !open.is_in_use();
            !is_idle && !open.is_ended()
        });
        let left = open.values().map(|open| {
            // What is in use now is looked at again, a while after its use can have ended.
            let until = (open.used.get() + idle_timeout).max(now + idle_timeout / 4);
            until.since(now)
        });
        left.min()
    }

    /// One of the connections that are open, by a number that was drawn. It is idle for no shorter than before.
    pub(crate) fn any_open(&self, drawn: u64) -> Option<Link> {
        let open = self.open.borrow();
        let count = u64::try_from(open.len()).expect("bounded");
        let index = usize::try_from(drawn.checked_rem(count)?).expect("an index");
        let (_, open) = open.iter().nth(index)?;
        (!open.is_ended()).then(|| open.link.clone())
    }

    /// A place in the line behind who is connecting; none if it is the caller's turn.
    fn wait_for(&self, seat: Seat) -> Option<oneshot::Receiver<Result<(), SeatFault>>> {
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
        let (node, address) = self.address(seat).await?;
        let _making = self.room().await?;
        let connection = connect(address, &self.linking).await?;
        let version = version_of(connection.agreement(), node, seat)?;
        Ok(Link {
            connection: Rc::new(connection),
            version,
            rails: Rc::default(),
        })
    }

    /// A connection to a seat for a thread, beside this core's own and not counted as one; with the newest version that both
    /// sides speak. `None` where threads cannot have one.
    pub(crate) async fn line(
        &self,
        seat: Seat,
    ) -> Result<Option<(Line, FormatVersion)>, SeatFault> {
        let (node, address) = self.address(seat).await?;
        let (hello, guard) = (hello_of(&self.linking), self.linking.guard.as_ref());
        let timeout = self.linking.connect_timeout;
        let Some(line) = Line::connect(address, hello, timeout, guard).await? else {
            return Ok(None);
        };
        let version = version_of(line.agreement(), node, seat)?;
        Ok(Some((line, version)))
    }

    /// Whose seat it is, and where that listens.
    async fn address(&self, seat: Seat) -> Result<(NodeId, SocketAddr), SeatFault> {
        let (node, mut address) = self.first_address(seat)?;
        let first = Seat {
            core: CoreIndex(0),
            ..seat
        };
        if seat != first {
            // The map has the address of the first core, which tells the others' ports.
            let first = Box::pin(self.connection(first)).await?;
            let card = NodeCard::decode(&first.agreement().greeting)?;
            let port = card.ports.get(usize::from(seat.core.0));
            address.set_port(*port.ok_or(SeatFault::NotInMap)?);
        }
        Ok((node, address))
    }

    fn first_address(&self, seat: Seat) -> Result<(NodeId, SocketAddr), SeatFault> {
        let map = self.map.borrow();
        let member = map.member(seat.node).filter(|_| has_seat(&map, seat));
        let member = member.ok_or(SeatFault::NotInMap)?;
        Ok((member.id, member.address))
    }
}

/// The newest version that both sides speak, if this is the seat's greeting.
fn version_of(agreement: &Agreement, node: NodeId, seat: Seat) -> Result<FormatVersion, SeatFault> {
    let card = NodeCard::decode(&agreement.greeting)?;
    if (card.node_id, card.core) != (node, seat.core) {
        return Err(SeatFault::Another);
    }
    let version = card.common_version();
    version.map_err(|theirs| SeatFault::Versions { theirs })
}

/// What this side says of itself.
fn hello_of(linking: &Linking) -> Hello {
    Hello {
        session_epoch: linking.session_epoch,
        in_flight_max: linking.in_flight_max,
        ..hello(Vec::new())
    }
}

/// Connects to a node's core.
pub(crate) async fn connect(
    address: SocketAddr,
    linking: &Linking,
) -> Result<Connection, ConnectError> {
    let ours = hello_of(linking);
    let guard = linking.guard.as_ref();
    Connection::connect_guarded(address, ours, linking.connect_timeout, guard).await
}

/// A connection that is being made, and counted as one.
struct Making<'a>(&'a Cell<usize>);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The turn of who is connecting; at its end those in line look again.
struct Turn<'a> {
    seats: &'a Seats,
    seat: Seat,
    /// How, unless it is given up.
    ended: Option<Result<(), SeatFault>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let line = self.seats.connecting.borrow_mut().remove(&self.seat);
        let Some(ended) = self.ended.take() else {
            return;
        };
        for turn in line.unwrap_or_default() {
            if turn.send(ended.clone()).is_err() {
                tracing::trace!("who waited for a connection has given up");
            }
        }
    }
}
