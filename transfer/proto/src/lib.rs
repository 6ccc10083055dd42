//! The Lunette wire protocol as sans-IO state machines.
//!
//! A connection carries calls from a client to a server: requests and responses with ids, many in
//! flight, answered in any order. A frame's *body* is for the protocol above and small; its
//! *payload* is a value's bytes, received straight into the memory where they are wanted, with the
//! CRC32C that has been with the value since it was first written:
//!
//! ```text
//!   +-----------+------------------+---------------------------------+
//!   | header 40 | body <= 256 KiB  | payload <= 64 MiB               |   one frame
//!   +-----------+------------------+---------------------------------+
//!    \_ control: through staging _/ \_ straight to its destination _/
//!
//!   client                                 server
//!     |  Hello  (versions, limits) ------->  |    hello::Handshake
//!     |  <-------------------- HelloAck      |
//!     |  Request 1 ----------------------->  |    receiver::Receiver (both sides)
//!     |  Request 2 + payload ------------->  |    calls::Calls (client)
//!     |  <--------- Response 2               |
//!     |  <--------- Response 1 + payload     |
//!     |  <--------- Goaway (requests read)   |    no more requests, please: those behind are not done
//! ```
//!
//! The machines name memory by request id, offset and length, and never hold it: who owns payload
//! bytes when is said at [`receiver::Step`] and [`calls::Calls`].
//!
//! It leaves out sockets, clocks and buffers (`lunette-transfer` drives it over TCP), the meaning
//! of operations, statuses and bodies (the protocols above), the order and pace of sending, and
//! authentication, which happens before the first byte that is read here.
//!
//! | module | subject |
//! |---|---|
//! | [`frame`] | [`frame::FrameHeader`], its layout, encoding and faults |
//! | [`receiver`] | [`receiver::Receiver`], from bytes to frames and places of payload bytes |
//! | [`hello`] | [`hello::Handshake`], versions and limits of a connection |
//! | [`message`] | a frame by itself, where there is no stream |
//! | [`calls`] | [`calls::Calls`], the client's requests in flight, their deadlines and fences |
//! | [`topology`] | [`topology::Matrix`], which adapter is near which memory |
//! | `deadlines` | the earliest deadline of a table's slots |
#![forbid(unsafe_code)]

pub mod calls;
mod deadlines;
pub mod engine;
pub mod frame;
pub mod hello;
pub mod message;
pub mod receiver;
pub mod topology;
