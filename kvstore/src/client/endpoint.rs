//! Connections to the cores of a cluster.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::time::Duration;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::{FormatVersions, NodeCard, Op};
use lunette_kvstore_proto::placement::{ClusterMap, Member};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_transfer::{Attachments, Connection, Reply};
use lunette_transfer_proto::hello::Hello;

use super::{ClientOptions, GetFailure};
use crate::error::{ClusterError, StoreError, StoreErrorKind};
use crate::node::hello;

/// A connection to one core, made anew when it has ended.
#[derive(Debug)]
pub(super) struct Endpoint {
    address: SocketAddr,
    node_id: NodeId,
    core: CoreIndex,
    connection: RefCell<Connection>,
    /// Another call is making a new connection.
    reconnecting: Cell<bool>,
    options: ClientOptions,
}

impl Endpoint {
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks the core, over a new connection if the old one has ended.
    pub(super) async fn call(
        &self,
        op: Op,
        body: impl FnOnce(&mut Vec<u8>),
        attachments: Attachments,
        timeout: Duration,
    ) -> Result<Reply, GetFailure> {
        let connection = self.connection.borrow().clone();
        let connection = if connection.closed().is_none() {
            connection
        } else {
            match self.reconnect().await {
                Ok(connection) => connection,
                Err(kind) => {
                    let error = StoreError::at(self.address, kind);
                    let room = attachments.room;
                    return Err(GetFailure { error, room });
                }
            }
        };
        if attachments.is_empty() && mutant::is_on(Mutant::RequestReplayed) {
            return self.call_twice(&connection, op, body, timeout).await;
        }
        let reply = connection.call(op.code(), body, attachments, timeout).await;
        reply.map_err(|failure| GetFailure::at(self.address, failure))
    }

    /// What [`Mutant::RequestReplayed`] does: a second try after a lost connection, whatever the
    /// first one did.
    async fn call_twice(
        &self,
        connection: &Connection,
        op: Op,
        body: impl FnOnce(&mut Vec<u8>),
        timeout: Duration,
    ) -> Result<Reply, GetFailure> {
        let mut bytes = Vec::new();
        body(&mut bytes);
        let write = |out: &mut Vec<u8>| out.extend_from_slice(&bytes);
        let nothing = Attachments::default();
        let first = connection.call(op.code(), write, nothing, timeout).await;
        let failure = match first {
            Err(failure) if connection.closed().is_some() => failure,
            other => return other.map_err(|failure| GetFailure::at(self.address, failure)),
        };
        let Ok(connection) = self.reconnect().await else {
            return Err(GetFailure::at(self.address, failure));
        };
        let nothing = Attachments::default();
        let second = connection.call(op.code(), write, nothing, timeout).await;
        second.map_err(|failure| GetFailure::at(self.address, failure))
    }

    async fn reconnect(&self) -> Result<Connection, StoreErrorKind> {
        if self.reconnecting.replace(true) {
            return Err(StoreErrorKind::Reconnecting);
        }
        let _done = Reconnecting(&self.reconnecting);
        tracing::debug!(address = %self.address, "reconnecting");
        let timeout = self.options.connect_timeout;
        let connected = Connection::connect(self.address, ours(self.options), timeout).await;
        let connection = connected.map_err(StoreErrorKind::Reconnect)?;
        let card = NodeCard::decode(&connection.agreement().greeting)?;
        if (card.node_id, card.core) != (self.node_id, self.core) {
            // The address belongs to another core now, which would refuse our keys one by one.
            return Err(StoreErrorKind::ShutDown);
        }
        let ours = FormatVersions::OURS;
        (card.common_version()).map_err(|theirs| StoreErrorKind::Versions { ours, theirs })?;
        *self.connection.borrow_mut() = connection.clone();
        Ok(connection)
    }
}

struct Reconnecting<'a>(&'a Cell<bool>);

impl Drop for Reconnecting<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// All cores of all nodes, and the map that says which of them is a key's home.
#[derive(Debug)]
pub(super) struct Cluster {
    map: ClusterMap,
    /// By the map's order of members, then by core.
    nodes: Vec<Vec<Endpoint>>,
    options: ClientOptions,
}

impl Cluster {
    pub(super) async fn connect(
        addresses: &[SocketAddr],
        options: ClientOptions,
    ) -> Result<Self, ClusterError> {
        let mut nodes = Vec::with_capacity(addresses.len());
        for &address in addresses {
            nodes.push(connect_node(address, options).await?);
        }
        let map = ClusterMap::new(nodes.iter().map(|(member, _)| *member).collect())?;
        nodes.sort_by_key(|(member, _)| map.member_index(member.id));
        let nodes = nodes.into_iter().map(|(_, endpoints)| endpoints).collect();
        Ok(Self {
            map,
            nodes,
            options,
        })
    }

    pub(super) const fn map(&self) -> &ClusterMap {
        &self.map
    }

    pub(super) const fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// The cores of each node.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &[Endpoint]> {
        self.nodes.iter().map(Vec::as_slice)
    }

    pub(super) fn endpoint(&self, node_index: usize, core_index: usize) -> &Endpoint {
        &self.nodes[node_index][core_index]
    }

    /// Node and core of a key's home, as indexes.
    pub(super) fn home_index(&self, key: Key<'_>) -> (usize, usize) {
        let home = self.map.home(key.fingerprint());
        (home.member_index, usize::from(home.core.0))
    }

    pub(super) fn home(&self, key: Key<'_>) -> &Endpoint {
        let (node_index, core_index) = self.home_index(key);
        self.endpoint(node_index, core_index)
    }
}

/// Connects to the core at `address`, and to the other cores that it announces.
async fn connect_node(
    address: SocketAddr,
    options: ClientOptions,
) -> Result<(Member, Vec<Endpoint>), ClusterError> {
    let (first, card) = connect_core(address, options).await?;
    let mut first = Some(first);
    let mut endpoints = Vec::with_capacity(card.ports.len());
    for (index, &port) in card.ports.iter().enumerate() {
        let core = CoreIndex(u16::try_from(index).expect("cores are bounded"));
        let address = SocketAddr::new(address.ip(), port);
        let connection = match first.take_if(|_| core == card.core) {
            Some(connection) => connection,
            None => {
                let (connection, other) = connect_core(address, options).await?;
                if (other.node_id, other.core) != (card.node_id, core) {
                    return Err(ClusterError::WrongCore { node: address });
                }
                connection
            }
        };
        endpoints.push(Endpoint {
            address,
            node_id: card.node_id,
            core,
            connection: RefCell::new(connection),
            reconnecting: Cell::new(false),
            options,
        });
    }
    let member = Member {
        id: card.node_id,
        weight: card.weight,
        cores: u16::try_from(card.ports.len()).expect("cores are bounded"),
    };
    Ok((member, endpoints))
}

async fn connect_core(
    node: SocketAddr,
    options: ClientOptions,
) -> Result<(Connection, NodeCard), ClusterError> {
    let connection = Connection::connect(node, ours(options), options.connect_timeout)
        .await
        .map_err(|error| ClusterError::Connect { node, error })?;
    let card = NodeCard::decode(&connection.agreement().greeting)
        .map_err(|fault| ClusterError::Greeting { node, fault })?;
    let ours = FormatVersions::OURS;
    (card.common_version()).map_err(|theirs| ClusterError::Versions { node, ours, theirs })?;
    Ok((connection, card))
}

fn ours(options: ClientOptions) -> Hello {
    Hello {
        in_flight_max: options.in_flight_max,
        ..hello(Vec::new())
    }
}
