//! Membership of a cluster, over sockets.
//!
//! A [`Client`] asks a coordinator: an etcd by its JSON gateway, or the embedded one that
//! [`serve`] runs, which speaks the same. A [`Membership`] keeps this node in the cluster's map and
//! says what it may serve. The machines are `lunette-cluster-proto`'s; here are their connections,
//! clocks and files.
//!
//! An etcd is spoken to in plain HTTP: keep it on loopback, or behind a tunnel of its own. The
//! embedded coordinator authenticates by the cluster's secret, and everything to and from it is
//! sealed then.
//!
//! | module | subject |
//! |---|---|
//! | `client` | [`Client`], [`Watch`]: asks, answers, changes; several endpoints |
//! | `coordinator` | [`serve`], [`Hosted`]: the embedded coordinator behind a listener |
//! | `membership` | [`Membership`]: a member with its connections and its clock |
//! | `metadata` | [`MetadataClient`], [`serve_metadata`]: redis and HTTP servers of others, and models of them |
//! | `secret_file` | [`read_secrets`]: the file of the cluster's secrets |
//! | `snapshots` | what the embedded coordinator keeps on a drive |
//! | `link` | a connection, sealed or plain |
#![forbid(unsafe_code)]

mod client;
mod coordinator;
mod link;
mod membership;
mod metadata;
mod secret_file;
mod snapshots;

pub use client::{Client, ClientOptions, ENDPOINTS_MAX, Watch};
pub use coordinator::{CONNECTIONS_MAX, Hosted, OpenError, serve};
pub use link::{Security, system_entropy};
pub use lunette_cluster_proto as proto;
pub use membership::Membership;
pub use metadata::{MetadataClient, serve_metadata};
pub use secret_file::{SecretFileError, read_secrets};
