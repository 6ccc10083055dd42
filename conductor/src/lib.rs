//! A discrete-event simulator of a cluster in which the rules of the conductor place requests.
//!
//! It replays a trace against prefill and decode instances whose speed a fitted model gives, and
//! measures what each set of rules makes of it. The rules are those of
//! `lunette-conductor-policy`, unchanged: what is simulated is what a service would run.
//!
//! It leaves out the service itself, and reading traces: requests are handed in. It does no I/O.
//!
//! | module | subject |
//! |---|---|
//! | [`workload`] | requests, and when they arrive |
//! | [`scenario`] | the cluster, its rules, the objectives |
//! | [`simulation`] | [`simulate`]: from a workload and a scenario to a report |
//! | [`simulation::coupled`] | the same for a cluster whose instances prefill and decode |
//! | [`report`] | what was measured |
//! | [`capacity`] | the highest load at which a share of the requests is served in time |
//! | [`bound`] | what no rules can pass |
//! | [`figure`] | figures of Mooncake's papers, with their numbers beside ours |
//! | [`grid`] | our rules beside Algorithm 1 over a grid of loads, and the verdict |
//! | [`interval`] | means and their confidence |
//! | [`plot`] | reports as drawings (SVG, PNG) |
//! | [`hits`] | hit ratio of one cache over all |
//! | `cache` | least recently used blocks, in memory and on a drive |
//! | `network` | transfers that share lines fairly |
#![forbid(unsafe_code)]

pub mod bound;
mod cache;
pub mod capacity;
pub mod figure;
pub mod grid;
pub mod hits;
pub mod interval;
mod network;
pub mod plot;
pub mod report;
pub mod scenario;
pub mod simulation;
pub mod workload;

pub use lunette_conductor_policy as policy;
pub use report::Report;
pub use scenario::Scenario;
pub use simulation::coupled::{Batching, CoupledScenario, simulate_coupled};
pub use simulation::simulate;
pub use workload::{Arrival, Timing, Workload};
