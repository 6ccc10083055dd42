//! A whole cluster in one process, from one seed.
//!
//! Nodes and clients of the store, the real ones, run in a simulated world
//! ([`lunette_runtime::sim`]) while connections break, hosts lose their power and processes stop.
//! Who judges knows every operation and every answer, judges each answer as it comes, and attributes
//! each miss to a cause; a miss without one is a failure, and so is an operation that fails when
//! the faults are long over.
//!
//! There are three kinds of worlds ([`scenario`]): nodes that are alone, with a coordinator beside them that
//! keeps what it acknowledges on a simulated drive, which fails, fills up, lies and loses its power;
//! members of a cluster, whose map changes while they work; and members and clients with RDMA adapters, which fail
//! as well.
//!
//! It leaves out what the simulated world leaves out: GPUs, drives that are polled.
//!
//! | module | subject |
//! |---|---|
//! | [`scenario`] | the kinds of worlds |
//! | [`report`], [`summary`] | what came of a seed, and of many |
//! | `hearing` | what the product tells of itself |
//! | [`nodes`]: `cluster`, [`plan`](nodes::plan) | hosts, nodes and clients of a world, and what befalls them |
//! | `nodes::coordination` | the coordinator, its members and its operator |
//! | `nodes::clients`, `nodes::value` | the load, and values that say who put them |
//! | [`nodes::oracle`] | the history of each key, and the judge of each answer |
//! | [`members`]: `town`, `plan` | hosts, members and clients of a world, and what befalls them |
//! | `members::adapters` | adapters of members and clients, and what befalls them |
//! | [`replay`] | a trace that members serve, beside one cache that holds as much |
//! | `members::load` | the load |
//! | `members::ledger`, `members::copies` | what everybody was told, who has which copy, and whether that can be |
#![forbid(unsafe_code)]

mod hearing;
pub mod members;
pub mod nodes;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod summary;
