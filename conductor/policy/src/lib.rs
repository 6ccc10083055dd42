//! The decisions of the conductor: where a request is prefilled, where it is decoded, which blocks
//! are copied where, and whether it is refused at once rather than after a wasted prefill.
//!
//! The same code serves the simulator and a service: a driver fills the states of the instances,
//! feeds the index with their events, and carries out what [`Conductor::decide`] returns.
//!
//! It leaves out clocks, sockets, threads and sources of randomness: time is an argument, and the
//! one generator is seeded by its owner. Times are seconds since an origin that the driver knows.
//!
//! | module | subject |
//! |---|---|
//! | [`ids`] | instances, tiers, hashes of blocks, length classes |
//! | [`cost`] | how long a prefill, a decode step and a transfer take: fitted constants as data |
//! | [`slo`] | service level objectives |
//! | [`index`] | which instance holds which block in which tier |
//! | [`feed`] | events of instances, put in order and checked for gaps, into an index |
//! | [`memory`] | whether memory is tight, and which blocks are used often |
//! | [`state`] | what the driver knows of prefill and decode instances |
//! | [`discipline`] | which queued request a prefill instance serves next |
//! | [`routing`] | rules that choose the prefill instance |
//! | [`admission`] | rules that refuse, and the choice of the decode instance |
//! | [`output`] | the length of answers, learnt from those that ended |
//! | `pending` | blocks that queued prefills will leave behind |
//! | `price` | what a second of prefill is worth, learnt from what was missed |
//! | `arrivals` | what a queue in order of arrival would serve of a class |
//! | `fairness` | what long and medium requests are worth, so that they get their share |
//! | [`conductor`] | [`Conductor`]: the rules put together |
#![forbid(unsafe_code)]

pub mod admission;
mod arrivals;
pub mod conductor;
pub mod cost;
pub mod discipline;
mod fairness;
pub mod feed;
pub mod ids;
pub mod index;
pub mod memory;
pub mod output;
mod pending;
mod price;
pub mod routing;
pub mod slo;
pub mod state;

pub use conductor::{Conductor, Decision, Options, Placement, Refusal};
