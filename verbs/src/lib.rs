//! RDMA on the core's own loop.
//!
//! A core opens a device, registers memory, and makes queue pairs whose completion queue its own
//! loop polls beside everything else; requests are futures that own their memory. libibverbs is
//! looked for when the program runs, so one binary works with and without RDMA:
//!
//! ```text
//!   Context ── Slab ── Piece (owned by the program, or by a request)
//!      │ └──── Window (reached by peers)
//!      ├────── CompletionQueue  ◀── polled by the core's loop
//!      └────── QueuePair<Unconnected> ──connect──▶ QueuePair<Ready> ──▶ Request
//! ```
//!
//! Two other providers stand behind the same objects: [`sim`], a fabric of adapters that are
//! stricter than any real one and fail when told to, and a null device that measures our own cost.
//!
//! It leaves out datagrams and raw packets; who a peer is, which its caller
//! knows; and what is done with several adapters, which is the transfer engine's.
//!
//! | module | subject |
//! |---|---|
//! | [`context`] | [`Context`], devices of this machine |
//! | [`memory`] | [`Slab`], [`Piece`], [`Window`]: registered memory |
//! | [`device_memory`] | [`DeviceMemory`], registered memory of a GPU |
//! | [`lent`] | [`RegisteredExtent`], [`Lent`], [`ExposedWindow`], [`ReadableExtent`]: memory of the program's |
//! | [`completion`] | [`CompletionQueue`], a source of the core's loop |
//! | [`queue_pair`] | [`QueuePair`], its states and requests |
//! | [`shared_receives`] | [`SharedReceives`], one pool of receives for many queue pairs |
//! | [`connect`] | the handshake, over a TCP stream or by messages |
//! | [`connection_manager`] | connecting by the RDMA connection manager |
//! | [`sim`] | the simulated fabric and its faults |
//! | [`events`] | what happens outside of completions, brought to whom it names |
//! | [`error`] | what can go wrong, per operation |
//! | `provider` | the seam: libibverbs, the fabric, or nothing |

pub mod completion;
pub mod connect;
pub mod connection_manager;
pub mod context;
pub mod device_memory;
pub mod error;
pub mod events;
pub mod lent;
pub mod memory;
mod provider;
pub mod queue_pair;
pub mod shared_receives;
pub mod sim;

pub use completion::{CompletionCounts, CompletionQueue};
pub use context::{Context, devices};
pub use device_memory::DeviceMemory;
pub use error::{OpenError, RequestError, SetupError};
pub use events::PairNotices;
pub use lent::{ExposedWindow, Lender, Lent, ReadableExtent, RegisteredExtent};
pub use memory::{MemoryName, Piece, Slab, SlabFull, Window};
pub use provider::{
    Access, Calls, Cause, DeviceEvent, DeviceInfo, PairEvent, Patience, QueueSizes, RemoteMemory,
};
pub use queue_pair::{
    Arrival, INLINE_BYTES_MAX, List, Listed, Moved, PairCounts, QueuePair, Ready, Request,
    Unconnected,
};
pub use rdma_core_sys::Unavailable;
pub use shared_receives::SharedReceives;
