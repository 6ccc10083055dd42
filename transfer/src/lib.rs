//! The Lunette wire protocol driven over TCP.
//!
//! A [`Connection`] asks: calls are pipelined, each with a deadline, and a reply's payload is
//! received straight into the region that the caller lent. [`serve`] answers: a [`Service`] says
//! for each request what to answer, or where its payload is to be received first.
//!
//! The protocol itself (frames, handshake, table of calls) is `lunette-transfer-proto`; what a
//! request means is the business of the layer above: of the [`engine`], or of the store.
//!
//! | module | subject |
//! |---|---|
//! | [`adapters`] | [`Adapters`](adapters::Adapters): RDMA adapters of a core, for the engine and the store |
//! | [`engine`] | [`Engine`](engine::Engine): memories that peers read and write, batches over rails |
//! | [`topology`] | [`topology::Machine`]: which adapters there are, and which is near which memory |
//! | `client` | [`Connection`]: calls, deadlines, fencing of lent regions; [`Line`]: a thread's connection |
//! | `server` | [`serve`], [`Service`]: connections and requests |
//! | `inbound` | receiving: staging, payloads in place, checksum in cache |
//! | `frames` | frames on their way out; everything of one turn leaves in one system call |
//! | `fed` | [`Feed`]: bytes that come while they are sent |
//! | `source` | memory from which bytes are sent |
//! | `staging` | [`Staging`]: how much memory is on its way to and from files and devices |
//! | `room` | [`Room`], where a payload goes |
//! | `guard` | [`Guard`]: authentication before anything else |
//! | `sealed` | records around the frames of connections that are encrypted |
//! | `drain` | [`Drain`]: ending connections in good order |
//! | `error` | [`ConnectError`], [`CallError`], [`CloseReason`] |
#![forbid(unsafe_code)]

pub mod adapters;
mod client;
mod drain;
pub mod engine;
mod error;
mod fed;
mod frames;
mod guard;
mod inbound;
mod room;
mod sealed;
mod server;
mod source;
mod staging;
pub mod topology;

pub use client::{Arrange, Attachments, Connection, Line, LineSink, Reply};
pub use drain::Drain;
pub use error::{CallError, CallFailure, CloseReason, ConnectError};
pub use fed::Feed;
pub use frames::Payload;
pub use guard::{Guard, GuardFault};
pub use room::{Room, SplitRoom};
pub use server::{
    Answer, Closer, ConnectionId, Intake, Later, PayloadOutcome, REPLY_BYTES_MAX, RequestHead,
    Response, ServeOptions, Service, serve,
};
pub use source::WriteSource;
pub use staging::{Staged, StagedRoom, Staging};
