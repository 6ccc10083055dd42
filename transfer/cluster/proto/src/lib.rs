//! Membership of a cluster, as sans-IO machines: who is in it, since when, and who may still serve.
//!
//! Members keep a lease each at a coordinator, etcd or the embedded one, and agree through it on one
//! [`ClusterMap`] per epoch. Nobody is their master: whoever sees that the map is out of date
//! proposes the next one, and the coordinator takes one proposal of several.
//!
//! ```text
//!   Member ---- Ask, watch ---->  gateway, http  ----> etcd-server
//!     |                               |
//!     +-> ClusterMap, Fence           +--------------> Coordinator (embedded, and in worlds)
//! ```
//!
//! It leaves out sockets, clocks, files and randomness (`lunette-cluster` has them), and what a
//! member does with the map: moving data is the business of the store.
//!
//! | module | subject |
//! |---|---|
//! | [`coordination`] | the one interface of both back ends: asks, answers, changes, faults |
//! | [`gateway`] | that interface as etcd's JSON gateway spells it, both directions |
//! | [`http`] | as much of HTTP/1.1 as the gateway needs |
//! | [`coordinator`] | the embedded coordinator: keys, leases, watches, snapshots |
//! | [`metadata`] | metadata servers of others: redis, HTTP; models of them |
//! | [`map`] | [`ClusterMap`]: members of an epoch, their binary form |
//! | [`quota`] | [`Quotas`]: how many bytes tenants may have, their binary form |
//! | [`framing`] | what frames a record at the coordinator, this crate's and others' |
//! | [`rack`] | what fails together |
//! | [`rendezvous`] | whose a shard is |
//! | [`fence`] | [`Fence`]: until when a member may serve what |
//! | [`member`] | [`Member`]: join, keep alive, watch, set quotas, propose, leave |
#![forbid(unsafe_code)]

pub mod coordination;
pub mod coordinator;
pub mod fence;
pub mod framing;
pub mod gateway;
pub mod http;
pub mod map;
pub mod member;
pub mod metadata;
pub mod quota;
pub mod rack;
pub mod rendezvous;

pub use fence::Fence;
pub use map::ClusterMap;
pub use member::Member;
pub use quota::Quotas;
