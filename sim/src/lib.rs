//! A whole cluster in one process, from one seed.
//!
//! Nodes and clients of the store, the real ones, run in a simulated world
//! ([`lunette_runtime::sim`]) while connections break, hosts lose their power and processes stop.
//! An oracle knows every operation and every answer, judges each answer as it comes, and attributes
//! each miss to a cause; a miss without one is a failure, and so is an operation that fails when
//! the faults are long over.
//!
//! Beside the store a coordinator and its members run, the real ones too: it keeps what it acknowledges
//! on a simulated drive, which fails, fills up, lies and loses its power.
//!
//! It leaves out what the simulated world leaves out: RDMA, GPUs, drives that are polled.
//!
//! | module | subject |
//! |---|---|
//! | [`plan`] | what a seed makes of a cluster: sizes, load, faults and their times |
//! | [`run`](mod@run) | one seed from beginning to end |
//! | `cluster` | hosts, nodes and clients of a world, and what befalls them |
//! | `coordination` | the coordinator, its members and its operator |
//! | `clients` | the load: operations, reported to the oracle |
//! | [`oracle`] | the history of each key, and the judge of each answer |
//! | `value` | values that say who put them |
//! | `releases` | what nodes tell of memory that they free |
//! | [`summary`] | many seeds, counted |
#![forbid(unsafe_code)]

mod clients;
mod cluster;
mod coordination;
pub mod oracle;
pub mod plan;
mod releases;
pub mod run;
pub mod summary;
mod value;
