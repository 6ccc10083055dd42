//! The client: finds each key's home and asks it.

mod batch;
mod endpoint;

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::{KeyRequest, NodeStat, Op, Status, VersionReply};
use lunette_kvstore_proto::placement::ClusterMap;
use lunette_transfer::{Attachments, CallFailure, Reply, Room};
use lunette_transfer_proto::calls::IN_FLIGHT_MAX;
use thiserror::Error;

use crate::error::{ClusterError, StoreError, StoreErrorKind};
use crate::value::Value;
use endpoint::{Cluster, Endpoint};

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Deadline of each operation.
    pub timeout: Duration,
    /// Deadline of connecting to one core.
    pub connect_timeout: Duration,
    /// Most requests in flight to one core; further ones wait. At most the protocol's 4,096.
    pub in_flight_max: u32,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            in_flight_max: IN_FLIGHT_MAX,
        }
    }
}

/// What came of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The value is resident.
    Written {
        /// The version that the key's home issued.
        version: u64,
    },
    /// The key was resident already: objects are immutable, so it kept its value and became the
    /// most recently used.
    Touched {
        /// The version of the resident value.
        version: u64,
    },
}

/// What came of a get.
#[derive(Debug)]
pub enum Get {
    /// The value is at the front of the room.
    Hit {
        /// The room, the caller's again.
        room: Room,
        /// Length of the value in bytes.
        len_bytes: usize,
        /// Its version.
        version: u64,
    },
    /// The key is not resident.
    Miss {
        /// The room, the caller's again.
        room: Room,
    },
}

/// A failed get: why, and the room.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct GetFailure {
    /// Why.
    #[source]
    pub error: StoreError,
    /// The room, the caller's again; its bytes are unspecified.
    pub room: Option<Room>,
}

/// A handle to a cluster of nodes, on one core. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    cluster: Rc<Cluster>,
}

impl Client {
    /// Connects to every core of the nodes at these addresses.
    ///
    /// # Errors
    /// [`ClusterError`]: no client without all of its nodes.
    pub async fn connect(
        nodes: &[SocketAddr],
        options: ClientOptions,
    ) -> Result<Self, ClusterError> {
        let cluster = Rc::new(Cluster::connect(nodes, options).await?);
        Ok(Self { cluster })
    }

    /// The map by which it finds homes.
    #[must_use]
    pub fn map(&self) -> &ClusterMap {
        self.cluster.map()
    }

    /// Puts `value` under `key`, unless the key is resident.
    ///
    /// The value's region is pinned until it has been sent, also if the future is dropped.
    ///
    /// # Errors
    /// [`StoreError`]: `Refused(Full)` is back-pressure; after a lost connection or a deadline the
    /// put may have happened, and can be repeated.
    pub async fn put(&self, key: &[u8], value: Value) -> Result<Put, StoreError> {
        let key = valid(key)?;
        value.check().map_err(StoreError::local)?;
        let endpoint = self.cluster.home(key);
        let attachments = Attachments {
            payload: value.payload(),
            room: None,
            arrange: None,
        };
        let reply = ask(endpoint, Op::Put, key, attachments, self.timeout())
            .await
            .map_err(|failure| failure.error)?;
        match Status::from_code(reply.status) {
            Status::Ok => Ok(Put::Written {
                version: version(endpoint, &reply)?,
            }),
            Status::Touched => Ok(Put::Touched {
                version: version(endpoint, &reply)?,
            }),
            status => Err(refused(endpoint, status)),
        }
    }

    /// Gets the value under `key` into the front of `room`; its checksum has been verified.
    ///
    /// The room is lent until the future ends. Dropping the future frees it as soon as no receive
    /// into it is in flight.
    ///
    /// # Errors
    /// [`GetFailure`], with the room.
    pub async fn get(&self, key: &[u8], room: Room) -> Result<Get, GetFailure> {
        let key = match valid(key) {
            Ok(key) => key,
            Err(error) => {
                let room = Some(room);
                return Err(GetFailure { error, room });
            }
        };
        let endpoint = self.cluster.home(key);
        let attachments = Attachments {
            payload: None,
            room: Some(room),
            arrange: None,
        };
        let mut reply = ask(endpoint, Op::Get, key, attachments, self.timeout()).await?;
        let room = reply.room.take().expect("a reply gives the room back");
        match Status::from_code(reply.status) {
            Status::Ok => match version(endpoint, &reply) {
                Ok(version) => Ok(Get::Hit {
                    room,
                    len_bytes: reply.payload_len_bytes as usize,
                    version,
                }),
                Err(error) => Err(GetFailure {
                    error,
                    room: Some(room),
                }),
            },
            Status::NotFound => Ok(Get::Miss { room }),
            status => Err(GetFailure {
                error: refused(endpoint, status),
                room: Some(room),
            }),
        }
    }

    /// Each node's statistics over its cores, under the address of its first core.
    pub async fn stat(&self) -> Vec<(SocketAddr, Result<NodeStat, StoreError>)> {
        let mut stats = Vec::new();
        for endpoints in self.cluster.nodes() {
            let mut total = Ok(NodeStat::default());
            for endpoint in endpoints {
                total = match (total, self.stat_of(endpoint).await) {
                    (Ok(mut total), Ok(stat)) => {
                        total.add(&stat);
                        Ok(total)
                    }
                    (Err(error), _) | (_, Err(error)) => Err(error),
                };
            }
            stats.push((endpoints[0].address(), total));
        }
        stats
    }

    async fn stat_of(&self, endpoint: &Endpoint) -> Result<NodeStat, StoreError> {
        let nothing = Attachments::default();
        let reply = endpoint
            .call(Op::Stat, |_| {}, nothing, self.timeout())
            .await;
        let reply = reply.map_err(|failure| failure.error)?;
        match Status::from_code(reply.status) {
            Status::Ok => NodeStat::decode(&reply.body)
                .map_err(|fault| StoreError::at(endpoint.address(), fault.into())),
            status => Err(refused(endpoint, status)),
        }
    }

    fn timeout(&self) -> Duration {
        self.cluster.options().timeout
    }
}

/// A request about one key.
async fn ask(
    endpoint: &Endpoint,
    op: Op,
    key: Key<'_>,
    attachments: Attachments,
    timeout: Duration,
) -> Result<Reply, GetFailure> {
    let body = |out: &mut Vec<u8>| KeyRequest { key }.encode(out);
    endpoint.call(op, body, attachments, timeout).await
}

fn valid(key: &[u8]) -> Result<Key<'_>, StoreError> {
    Key::new(key).map_err(|fault| StoreError::local(fault.into()))
}

fn version(endpoint: &Endpoint, reply: &Reply) -> Result<u64, StoreError> {
    match VersionReply::decode(&reply.body) {
        Ok(VersionReply { version }) => Ok(version),
        Err(fault) => Err(StoreError::at(endpoint.address(), fault.into())),
    }
}

fn refused(endpoint: &Endpoint, status: Status) -> StoreError {
    StoreError::at(endpoint.address(), StoreErrorKind::Refused(status))
}

impl GetFailure {
    fn at(node: SocketAddr, failure: CallFailure) -> Self {
        let CallFailure { error, room } = failure;
        Self {
            error: StoreError::at(node, error.into()),
            room,
        }
    }
}
