//! A swarm that spreads objects (checkpoints, weights) over many receivers in about the time of one, as sans-IO
//! machines.
//!
//! An object is cut into chunks. Whoever has a chunk serves it, also while it still receives others, so that receivers
//! form pipelines instead of a line in front of the origin. What lasts is written at the cluster's coordinator under
//! leases (the object, the checksums of its chunks, its holders); what changes with each chunk holders tell each other:
//!
//! ```text
//!   catalogue (coordinator)      Swarm of A  -- Hello, Have, Want, Grant, Done -->  Swarm of B
//!     object, sums, holders          |                                                 |
//!                                    +-- Fetch: read it from there, verify it <--------+  (admitted by B's Uploads)
//! ```
//!
//! It leaves out memory, engines, clocks and leases themselves (`lunette-p2p` has them). Bytes are read by the asker;
//! the machine says which chunk from whom, and never holds one.
//!
//! | module | subject |
//! |---|---|
//! | [`object`] | names, versions, buffers, and how they are cut into chunks |
//! | [`chunks`] | [`ChunkSet`]: which chunks somebody has |
//! | [`layout`] | tensors of an object, and which bytes go where for a receiver that wants parts of them |
//! | [`safetensors`] | which tensors a safetensors file has |
//! | [`catalogue`] | keys and records at the coordinator |
//! | [`message`] | what holders say to each other |
//! | [`pace`] | how long a chunk takes, and how long one waits for it |
//! | [`swarm`] | [`Swarm`]: neighbours, the choice of sources, fetches, uploads |
//! | [`update`] | weights that ranks take in buckets: packing, and one rank's way through them |
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod chunks;
pub mod layout;
pub mod message;
pub mod object;
pub mod pace;
pub mod safetensors;
pub mod swarm;
pub mod update;

pub use chunks::ChunkSet;
pub use object::{ObjectName, Shape, Version};
pub use swarm::{PeerId, Swarm};
