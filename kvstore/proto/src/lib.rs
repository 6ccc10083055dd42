//! Keys, placement, extents, eviction and messages of the KVCache store, sans-IO.
//!
//! Everything here is deterministic: it takes keys, lengths and ids and answers with decisions.
//! The memory, the sockets and the clock belong to `lunette-kvstore`, which drives one
//! [`shard::Shard`] per core, and the wire's frames to `lunette-transfer-proto`.
//!
//! It leaves out the SSD tier, replication, membership changes and tenants: a [`placement::ClusterMap`]
//! is static, and an object lives in the memory of its home and nowhere else.
//!
//! | module | subject |
//! |---|---|
//! | [`key`] | valid keys and their 128-bit fingerprints |
//! | [`placement`] | the home of a key: a core of a node, by weighted rendezvous hashing |
//! | [`extent`] | the self-describing form of an object in memory |
//! | [`lru`] | least recently used order over the slots of a slab |
//! | [`shard`] | one core's slice of the store: puts, gets, pins, eviction |
//! | [`message`] | operations, statuses and the bodies of requests and answers |
#![forbid(unsafe_code)]

pub mod asker;
pub mod extent;
pub mod home;
pub mod key;
pub mod lru;
pub mod message;
pub mod owner;
pub mod placement;
pub mod shard;
pub mod version;
