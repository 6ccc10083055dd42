//! Objects (checkpoints, weights) spread over many receivers in about the time of one.
//!
//! A [`Store`] registers objects of many buffers and receives those of others. Whoever receives serves each chunk as
//! soon as it is here and verified, so receivers feed each other. Which chunk comes from whom is decided by the machine
//! of `lunette-p2p-proto`; here are its memory, its engine, its clock, and the catalogue at the cluster's coordinator.
//!
//! ```text
//!   Store -- register, receive --> Held   (an object's buffers, its Swarm, its fetches)
//!     |                              |
//!     |  catalogue, under a lease    |  messages: notifications of the engine
//!     v                              v  chunks: reads of the engine
//!   etcd, or the embedded         Engine of lunette-transfer
//!   coordinator
//! ```
//!
//! A receiver takes all of an object, or parts of the tensors that it is told to have ([`Store::receive_slices`]).
//!
//! Programs without a core have a [`StoreHost`]: a store on a core of its own, asked from any thread.
//!
//! Buffers are memory of the host, files ([`BufferFile`]), or memory of devices.
//!
//! It leaves out objects some of whose buffers are of the host and some of devices, and engines of several cores.
//!
//! | module | subject |
//! |---|---|
//! | `store` | [`Store`], [`Held`]: what is held, and who drives it |
//! | `host` | [`StoreHost`], [`StoreHandle`], [`HeldHandle`]: the same from any thread |
//! | `error` | what can go wrong |
//! | `buffers` | [`Buffers`]: memory of the host, or of devices |
//! | `update` | [`Offer`], [`Update`]: weights that ranks take in buckets |
//! | `gate` | what happens once, and several wait for |
//! | [`simulation`] | the machine in a simulated network, beside Mooncake's scheme |
#![forbid(unsafe_code)]

mod buffers;
mod error;
mod gate;
mod host;
pub mod simulation;
mod store;
mod update;

pub use buffers::Buffers;
pub use error::{
    CatalogueError, FileFault, HoldError, HoldFault, Incomplete, SourceFault, StartError,
};
pub use host::{
    HandleError, HeldHandle, HostError, LentBuffers, OfferHandle, Pending, StoreHandle, StoreHost,
    UpdateHandle,
};
pub use lunette_p2p_proto as proto;
pub use lunette_p2p_proto::layout::{
    Block, Dtype, Layout, LayoutFault, PlanFault, Slice, Tensor, TensorFault,
};
pub use lunette_p2p_proto::object::{NameFault, ObjectName, Shape, ShapeFault, Version};
pub use store::{
    BufferFile, Found, Held, LEASE_TTL_S_DEFAULT, ObjectFiles, Progress, ReceiveOptions,
    RegisterOptions, SliceOptions, Store, StoreOptions,
};
pub use update::{FollowOptions, LentBucket, Offer, OfferOptions, Parts, Update, UpdateFault};
