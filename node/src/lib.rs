//! Lunette: a store for KV caches, as a library and as a program.
//!
//! This crate names the packages that a user of the library needs, and adds the replay of traces.
//! The program `lunette` is built from it: it serves nodes, puts and gets objects, and replays
//! traces against a cluster; `lunette --help` says how.
//!
//! It leaves out what is not there yet: a conductor's service.
//!
//! | module | subject |
//! |---|---|
//! | [`kvstore`] | nodes that lend memory, clients that put and get |
//! | [`transfer`] | calls with payloads that are received in place |
//! | [`runtime`] | cores, tasks, arenas |
//! | [`hwloc`] | this machine, or a saved one, as libhwloc knows it |
//! | [`trace`] | traces of requests: reading, generating, reference hit ratios |
//!
//! A node and a client in one process:
//!
//! ```
//! use lunette::kvstore::{Client, ClientOptions, Get, Node, NodeOptions, Value};
//! use lunette::runtime::{CoreOptions, NodeId, arena, block_on};
//! use lunette::transfer::Room;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Its memory is 64 MiB; port 0 lets the system choose one.
//! let node = Node::start(NodeOptions::new(NodeId(1), "127.0.0.1:0".parse()?, 64 << 20))?;
//! let address = node.address();
//!
//! let fetched = block_on(None, CoreOptions::default(), move || async move {
//!     let client = Client::connect(&[address], ClientOptions::default()).await?;
//!     let mut region = arena().alloc(5)?;
//!     region.as_mut_slice().copy_from_slice(b"hello");
//!     client.put(b"greeting", Value::new(region.freeze())).await?;
//!
//!     let room = Room::whole(arena().alloc(4096)?);
//!     let bytes = match client.get(b"greeting", room).await? {
//!         Get::Hit { room, len_bytes, .. } => Some(room.as_slice()[..len_bytes].to_vec()),
//!         Get::Miss { .. } => None,
//!     };
//!     Ok::<_, Box<dyn std::error::Error>>(bytes)
//! })??;
//! assert_eq!(fetched.as_deref(), Some(&b"hello"[..]));
//!
//! node.shut_down()?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub use lunette_hwloc as hwloc;
pub use lunette_kvstore as kvstore;
pub use lunette_transfer as transfer;

pub mod trace;

/// The runtime: cores, tasks, arenas, and the identities that other packages name.
pub mod runtime {
    pub use lunette_runtime::*;
    pub use lunette_runtime_core::ids::{CoreIndex, NodeId};
}
