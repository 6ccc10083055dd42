//! The store that a command talks to: nodes that are listed, or a cluster that they are members of.

use std::future::Future;
use std::net::SocketAddr;

use lunette::kvstore::{
    Client, ClientOptions, ClusterClient, ClusterClientOptions, ClusterError, Fetched, Get, Put,
    PutOptions, StoreError, Stored, Value,
};
use lunette::runtime::{CoreOptions, block_on};
use lunette::transfer::Room;
use lunette_kvstore_proto::message::NodeStat;
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
    /// Puts an object, of which members of a cluster are to keep that many copies.
    pub(super) async fn put(
        &self,
        key: &[u8],
        value: Value,
        copies: u8,
    ) -> Result<Done, StoreError> {
        Ok(match self {
            Self::Listed(client) => {
                let (is_written, version) = match client.put(key, value).await? {
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
                let options = PutOptions {
                    copies,
                    ..PutOptions::default()
                };
                let put = client.put(key, value, options).await?;
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
    pub(super) async fn get(&self, key: &[u8], room: Room) -> Result<Option<Vec<u8>>, StoreError> {
        let (room, len_bytes) = match self {
            Self::Listed(client) => match client.get(key, room).await {
                Ok(Get::Hit {
                    room, len_bytes, ..
                }) => (room, len_bytes),
                Ok(Get::Miss { .. }) => return Ok(None),
                Err(failure) => return Err(failure.error),
            },
            Self::Cluster(client) => match client.get(key, room).await {
                Ok(Fetched::Hit {
                    room, len_bytes, ..
                }) => (room, len_bytes),
                Ok(Fetched::Miss { .. }) => return Ok(None),
                Err(failure) => return Err(failure.error),
            },
        };
        Ok(Some(room.as_slice()[..len_bytes].to_vec()))
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
