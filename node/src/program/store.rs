//! The store that a command talks to: nodes that are listed, or a cluster that they are members of.

use std::ffi::OsString;
use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;

use lunette::kvstore::{
    Client, ClientOptions, ClusterClient, ClusterClientOptions, ClusterError, Get, Lent,
    ListCursor, Listed, Put, PutOptions, StoreError, Stored, Value,
};
use lunette::runtime::{CoreOptions, arena, block_on};
use lunette::transfer::Room;
use lunette_kvstore_proto::message::NodeStat;
use lunette_kvstore_proto::retention::{Parent, Pin};
use lunette_kvstore_proto::striped::OBJECT_LEN_MAX;
use lunette_kvstore_proto::tenant::Tenant;
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use serde_json::json;

use super::arguments::ClusterArguments;
use super::failure::Failure;
use super::membership::secrets;

/// A client of either kind. The nodes say which.
#[derive(Clone, Debug)]
pub(super) enum Store {
    /// Every client is given the whole list of nodes.
    Listed(Client),
    /// Any member knows the others.
    Cluster(ClusterClient),
}

/// What a put did, for people and for programs.
#[derive(Clone, Debug)]
pub(super) struct Done {
    /// Whether the bytes are the ones that were brought.
    pub(super) is_written: bool,
    pub(super) version: serde_json::Value,
}

impl Store {
    /// The same for a tenant's keys, if one is named.
    pub(super) fn of_tenant(self, tenant: Option<Tenant>) -> Result<Self, Failure> {
        match (self, tenant) {
            (Self::Cluster(client), Some(tenant)) => Ok(Self::Cluster(client.of_tenant(tenant))),
            (Self::Listed(_), Some(tenant)) if tenant != Tenant::default() => Err(Failure::Usage(
                "only members of a cluster know tenants: leave --tenant out",
            )),
            (store, _) => Ok(store),
        }
    }

    /// What an object is behind that is of no use without the one under this key.
    pub(super) fn parent(&self, key: Option<OsString>) -> Result<Option<Parent>, Failure> {
        match (self, key) {
            (_, None) => Ok(None),
            (Self::Listed(_), Some(_)) => Err(Failure::Usage(
                "only members of a cluster know what is behind others: leave --behind out",
            )),
            (Self::Cluster(client), Some(key)) => match client.parent(key.as_bytes()) {
                None => Err(Failure::Usage("--behind: that is no key")),
                parent => Ok(parent),
            },
        }
    }

    /// Length of the longest value in bytes.
    pub(super) const fn value_len_max(&self) -> u64 {
        match self {
            Self::Listed(_) => PAYLOAD_BYTES_MAX as u64,
            // In parts.
            Self::Cluster(_) => OBJECT_LEN_MAX,
        }
    }

    /// Puts an object. Nodes that are members of no cluster keep one copy, pin nothing, and know no groups.
    pub(super) async fn put(
        &self,
        key: Vec<u8>,
        bytes: Vec<u8>,
        options: PutOptions,
    ) -> Result<Done, Failure> {
        Ok(match self {
            Self::Listed(_) if options.pin != Pin::None => {
                return Err(Failure::Usage(
                    "only members of a cluster pin objects: leave --pin out",
                ));
            }
            Self::Listed(_) if options.group.is_some() => {
                return Err(Failure::Usage(
                    "only members of a cluster know groups: leave --group out",
                ));
            }
            Self::Listed(client) => {
                let (is_written, version) = match client.put(&key, value_of(&bytes)?).await? {
                    Put::Written { version } => (true, version),
                    Put::Touched { version } => (false, version),
                };
                let version = json!(version);
                Done {
                    is_written,
                    version,
                }
            }
            Self::Cluster(client) => {
                let value = vec![Lent::bytes(bytes)];
                let put = client.handle()?.put(key, value, options).await?;
                let (is_written, version) = match put {
                    Stored::Written { version, .. } => (true, version),
                    Stored::Exists { version } => (false, version),
                };
                let version = json!([version.epoch.0, version.sequence]);
                Done {
                    is_written,
                    version,
                }
            }
        })
    }

    /// The bytes under a key, if there are any.
    pub(super) async fn get(&self, key: Vec<u8>) -> Result<Option<Vec<u8>>, Failure> {
        let client = match self {
            Self::Listed(client) => client,
            Self::Cluster(client) => return Ok(client.handle()?.get_bytes(key).await?),
        };
        // The length is not known before; memory that nothing is received into costs nothing.
        let room = Room::whole(arena().alloc(PAYLOAD_BYTES_MAX)?);
        match client.get(&key, room).await {
            Ok(Get::Hit {
                room, len_bytes, ..
            }) => Ok(Some(room.as_slice()[..len_bytes].to_vec())),
            Ok(Get::Miss { .. }) => Ok(None),
            Err(failure) => Err(failure.error.into()),
        }
    }

    pub(super) async fn exists(&self, keys: &[Vec<u8>]) -> Result<Vec<bool>, StoreError> {
        match self {
            Self::Listed(client) => client.exists(keys).await,
            Self::Cluster(client) => client.exists(keys).await,
        }
    }

    /// Whether there was something under each of the keys.
    pub(super) async fn remove(&self, keys: &[Vec<u8>]) -> Result<Vec<bool>, StoreError> {
        match self {
            Self::Listed(client) => client.remove(keys).await,
            Self::Cluster(client) => client.remove(keys).await.into_iter().collect(),
        }
    }

    /// Some of the keys that begin so.
    pub(super) async fn list(
        &self,
        prefix: &[u8],
        after: Option<ListCursor>,
    ) -> Result<Listed, Failure> {
        match self {
            Self::Listed(_) => Err(Failure::Usage(
                "only members of a cluster say which keys they have",
            )),
            Self::Cluster(client) => Ok(client.list(prefix, after).await?),
        }
    }

    /// Each node's statistics over its cores, under the address of its first core.
    pub(super) async fn stat(&self) -> Vec<(SocketAddr, Result<NodeStat, StoreError>)> {
        let client = match self {
            Self::Listed(client) => return client.stat().await,
            Self::Cluster(client) => client,
        };
        let map = client.map();
        let mut rows: Vec<(SocketAddr, Result<NodeStat, StoreError>)> = Vec::new();
        for (seat, stat) in client.stat().await {
            let Some(member) = map.member(seat.node) else {
                continue;
            };
            match rows.last_mut() {
                Some((address, total)) if *address == member.address => {
                    *total = (*total).and_then(|mut total| {
                        total.add(&stat?);
                        Ok(total)
                    });
                }
                _ => rows.push((member.address, stat)),
            }
        }
        rows
    }
}

/// Runs `work` with a client of the nodes' cluster, or of the nodes.
pub(super) fn with_store<T, F>(
    cluster: &ClusterArguments,
    work: impl FnOnce(Store) -> F + 'static,
) -> Result<T, Failure>
where
    T: 'static,
    F: Future<Output = Result<T, Failure>> + 'static,
{
    let (nodes, options) = (cluster.addresses()?, cluster_options(cluster)?);
    let listed = ClientOptions {
        timeout: cluster.timeout(),
        connect_timeout: cluster.timeout(),
        ..ClientOptions::default()
    };
    block_on(None, CoreOptions::default(), move || async move {
        let store = match ClusterClient::connect(options).await {
            Ok(client) => Store::Cluster(client),
            Err(ClusterError::NoMember { .. }) => {
                Store::Listed(Client::connect(&nodes, listed).await?)
            }
            Err(error) => return Err(error.into()),
        };
        work(store).await
    })?
}

fn value_of(bytes: &[u8]) -> Result<Value, Failure> {
    if bytes.is_empty() {
        return Ok(Value::empty());
    }
    let mut region = arena().alloc(bytes.len())?;
    region.as_mut_slice().copy_from_slice(bytes);
    Ok(Value::new(region.freeze()))
}

/// Runs `work` with a client of the nodes' cluster.
pub(super) fn with_cluster_client<T, F>(
    cluster: &ClusterArguments,
    work: impl FnOnce(ClusterClient) -> F + 'static,
) -> Result<T, Failure>
where
    T: 'static,
    F: Future<Output = Result<T, Failure>> + 'static,
{
    let options = cluster_options(cluster)?;
    block_on(None, CoreOptions::default(), move || async move {
        work(ClusterClient::connect(options).await?).await
    })?
}

fn cluster_options(cluster: &ClusterArguments) -> Result<ClusterClientOptions, Failure> {
    Ok(ClusterClientOptions {
        secrets: secrets()?,
        timeout: cluster.timeout(),
        connect_timeout: cluster.timeout(),
        ..ClusterClientOptions::new(cluster.addresses()?)
    })
}
