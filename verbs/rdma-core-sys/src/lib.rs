//! The ABI of libibverbs: types and constants by hand, functions opened at run time.
//!
//! Nothing links against libibverbs. [`Library::open`] looks for it when the program runs, and says
//! with an [`Unavailable`] what is missing where it is not there, so that one binary runs on
//! machines with and without RDMA. The published crate of this name builds on no current Rust, so
//! this one takes its place within the workspace.
//!
//! Half of libibverbs is no function at all: what posts and polls is `static inline` in its
//! headers and jumps through a table in the device's context. [`inline`] does the same here, so an
//! opened library costs nothing per work request.
//!
//! Values that a device writes (states, statuses, opcodes) are plain integers, since a newer
//! library may write one that this crate does not know. Names are those of the C headers.
//!
//! It leaves out what has a safe shape (`lunette-verbs` does that), and the calls of libibverbs and
//! librdmacm that this project makes no use of.
//!
//! | module | subject |
//! |---|---|
//! | [`device`] | context and its table of operations, attributes of device and port, GIDs |
//! | [`memory`] | protection domains, memory regions, scatter-gather entries |
//! | [`completion`] | completion queues, plain and extended, and their channels |
//! | [`queue_pair`] | queue pairs, shared receive queues, work requests, the builder interface |
//! | [`connection_manager`] | librdmacm: [`CmLibrary`] |
//! | [`event`] | asynchronous events |
//! | [`library`] | [`Library`]: the opened functions; [`Unavailable`] |
//! | [`inline`] | what the headers define inline |

pub mod completion;
pub mod connection_manager;
pub mod device;
pub mod event;
pub mod inline;
pub mod library;
pub mod memory;
pub mod queue_pair;

pub use completion::*;
pub use connection_manager::*;
pub use device::*;
pub use event::*;
pub use library::{Library, Unavailable};
pub use memory::*;
pub use queue_pair::*;
