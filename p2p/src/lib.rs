//! Objects (checkpoints, weights) spread over many receivers in about the time of one.
//!
//! | module | subject |
//! |---|---|
//! | [`simulation`] | the machine of `lunette-p2p-proto` in a simulated network, beside Mooncake's scheme |
#![forbid(unsafe_code)]

pub mod simulation;

pub use lunette_p2p_proto as proto;
