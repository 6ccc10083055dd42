//! Keys, placement, extents, eviction, the directory and messages of the KVCache store, sans-IO.
//!
//! Everything here is deterministic: it takes keys, lengths, ids and points in time and answers with
//! decisions. The memory, the sockets and the clock belong to `lunette-kvstore`, which drives one
//! [`shard::Shard`] per core, and the wire's frames to `lunette-transfer-proto`.
//!
//! ```text
//!   Asker ---- lookups, removals ----> Home <---- claims, publications, reports ---- Owner
//!     |                                 |  ^                                           ^
//!     |                     tombstones  +--+ the next home                             |
//!     +------------------------- writes, reads ----------------------------------------+
//! ```
//!
//! It leaves out the SSD tier, and which copies to make where there are too few:
//! the driver does that with [`placement::choice`].
//!
//! | module | subject |
//! |---|---|
//! | [`key`] | valid keys and their 128-bit fingerprints |
//! | [`tenant`] | names that keep keys, groups and shares of memory apart |
//! | [`credit`] | quotas of tenants: who may have how much of which core's memory |
//! | [`retention`] | what a writer wishes of how an object is kept in memory |
//! | [`version`] | versions, and which of several copies lives |
//! | [`placement`] | the home of a key: a core of a node; owners for its copies |
//! | [`home`] | what orders the writes and removals of a key, and knows who has it |
//! | [`owner`] | what has copies: claims, publications, evictions, reports |
//! | [`asker`] | what asks: retries, and when there are none |
//! | [`range`] | ranges of an object's bytes |
//! | [`paths`] | which way an object comes, by what was measured |
//! | [`pushed`] | a get whose bytes the owner's adapter writes: its ends, and when it is fenced |
//! | [`striped`] | objects in parts: manifests, and which parts a read is of |
//! | [`filled`] | which bytes of a reserved object have been written |
//! | [`extent`] | the self-describing form of an object in memory |
//! | [`sorted`] | a map of hashes in their order, without a tree's depth |
//! | `leaving` | what decides which copy leaves memory next |
//! | [`residence`] | an owner's memory: room, pins, what leaves next |
//! | [`groups`] | objects that are of use together only: when one leaves, the others are next |
//! | [`shard`] | one core's slice of the store: puts, gets, pins, eviction |
//! | [`message`] | operations, statuses and the bodies of requests and answers |
#![forbid(unsafe_code)]

mod answered;
pub mod asker;
pub mod credit;
pub mod extent;
pub mod filled;
pub mod groups;
pub mod home;
pub mod key;
mod leaving;
pub mod message;
pub mod owner;
pub mod paths;
pub mod placement;
pub mod pushed;
pub mod range;
pub mod residence;
pub mod retention;
pub mod shard;
pub mod sorted;
pub mod striped;
pub mod tenant;
pub mod version;
