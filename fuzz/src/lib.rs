//! Fuzz targets for the protocol state machines.
//!
//! A target is an ordinary function from bytes to a summary of what they reached. It reads its
//! input as a *script* (what a peer sends, where the stream is cut, when timers fire), drives the
//! real machines with it and asserts what must hold for any peer. libFuzzer calls it with bytes
//! that reach new code; `cargo test` calls it with each file of `corpus/` and `regressions/`.
//!
//! It leaves out its own copies of any protocol, and everything that does I/O outside of a simulated world. How to run it is in
//! `README.md`.
//!
//! | module | subject |
//! |---|---|
//! | [`auth`] | authentication: handshakes, sealed records, capabilities |
//! | [`cluster`] | etcd's gateway, both ends, and the embedded coordinator |
//! | [`directory`] | a core of a member, home and owner, and its messages |
//! | [`engine`] | the transfer engine: bodies, segments, the scheduler of transfers over rails, and the lane to an engine of the same host |
//! | [`layout`] | tensors of an object, as files and the catalogue tell of them, and parts of them |
//! | [`log`] | recovery of the drive's log, from what anybody left on a drive |
//! | [`member`] | the service of a member, in a simulated world, under requests of anybody |
//! | [`nvme`] | NVMe/TCP: a controller with its target, a host with commands in flight |
//! | [`p2p`] | a holder of an object, and the records and messages of objects |
//! | [`store`] | a core's slice of the store, and its messages |
//! | [`update`] | weights in buckets: what is told of them, how they are packed, and a rank's way through them |
//! | [`wire`] | the Lunette wire: receiver, handshake and the client's table of calls |
#![forbid(unsafe_code)]

pub mod auth;
pub mod cluster;
pub mod directory;
pub mod engine;
pub mod layout;
pub mod log;
pub mod member;
pub mod nvme;
pub mod p2p;
pub mod store;
pub mod update;
pub mod wire;
