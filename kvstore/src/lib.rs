//! The KVCache store: nodes that lend memory, clients that put and get.
//!
//! A [`Node`] is a process whose cores each own a slice of the memory: an arena, a
//! [`Shard`](lunette_kvstore_proto::shard::Shard) that decides what is resident, and a listener of
//! its own. A [`Client`] finds the home of a key, one core of one node, by weighted rendezvous
//! hashing over a static cluster map that it learns from the nodes' greetings. There is no master:
//! every request goes straight to the core that owns the key.
//!
//! It leaves out, so far: replicas, a map that changes, drives, and authentication (nodes are to
//! listen on loopback only; the program enforces that).
//!
//! | module | subject |
//! |---|---|
//! | `node` | [`Node`], [`SeatedNode`]: starting cores, ports, statistics, shut-down |
//! | `service` | one core's slice: requests against shard and extents |
//! | `client` | [`Client`]: homes, calls, batches |
//! | `value` | [`Value`], [`extent_bytes`] |
//! | `error` | [`StoreError`], [`ClusterError`], [`NodeError`] |
#![forbid(unsafe_code)]

mod client;
mod cluster_client;
mod error;
mod member;
mod node;
mod seats;
mod service;
mod value;

pub use client::{Client, ClientOptions, Get, GetFailure, Put};
pub use cluster_client::{ClusterClient, ClusterClientOptions, Fetched, PutOptions, Stored};
pub use error::{ClusterError, NodeError, StoreError, StoreErrorKind};
pub use member::{ClusterOptions, LifeError};
pub use node::{Node, NodeOptions, SeatedNode};
pub use service::{ANSWERS, RELEASES};
pub use value::{Value, extent_bytes};
