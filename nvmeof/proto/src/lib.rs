//! NVMe/TCP as sans-IO state machines: the host's side and the controller's.
//!
//! One TCP connection is one queue pair: the admin queue of a controller, or one of its queues for
//! I/O. Each end is a machine that takes bytes and says what they mean; what it has to say itself
//! is appended to a buffer that its caller sends. Data never pass through it: it names them by
//! command, offset and length, and the caller places them, straight from the socket if it can.
//!
//! ```text
//!   host                                            controller
//!     |  ICReq ----------------------------------->  |
//!     |  <----------------------------------- ICResp |
//!     |  CapsuleCmd (Connect, with its data) ----->  |    host::HostQueue
//!     |  <------------------------------ CapsuleResp |    controller::ControllerQueue
//!     |  CapsuleCmd (Write) --------------------->   |
//!     |  <-------------------------------------- R2T |
//!     |  H2CData -------------------------------->   |
//!     |  <------------------------------ CapsuleResp |
//!     |  CapsuleCmd (Read) ---------------------->   |
//!     |  <-------------------- C2HData (and SUCCESS) |
//! ```
//!
//! It leaves out sockets, memory, clocks and tasks (`lunette-nvmeof` drives it), other transports,
//! metadata, fused commands and reservations, none of which a controller here claims to have.
//!
//! Sources are named by specification and title of section: NVMe Base 2.0, NVMe/TCP 1.0, NVM
//! Command Set 1.0.
//!
//! | module | subject |
//! |---|---|
//! | [`pdu`] | headers, digests, alignment, faults |
//! | [`receiver`] | [`receiver::Receiver`], from bytes to PDUs and places of data |
//! | [`command`], [`completion`] | entries of queues |
//! | [`host`] | [`host::HostQueue`], commands in flight; bringing a controller up; when to reconnect |
//! | [`controller`] | [`controller::ControllerQueue`], commands to carry out; [`controller::Target`], what a controller answers |
//! | [`fabrics`] | Connect, properties |
//! | [`auth`] | DH-HMAC-CHAP, both ends |
//! | [`identify`], [`log_page`], [`feature`] | what admin commands carry |
//! | [`io`] | reads, writes and the like |
//! | [`nqn`] | names |
#![forbid(unsafe_code)]

pub mod auth;
pub mod command;
pub mod completion;
pub mod controller;
pub mod fabrics;
pub mod feature;
pub mod host;
pub mod identify;
pub mod io;
pub mod log_page;
pub mod nqn;
pub mod pdu;
pub mod receiver;
