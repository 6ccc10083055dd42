//! How benchmark rows are measured and judged.
//!
//! A row measures two sides in turn, ours and a rival, in pairs of short runs on the same pinned
//! cores. A pair in which the host stole time is thrown away and taken again. What is judged is the
//! ratio within each pair, never an absolute time.
//!
//! It leaves out the rows: those of the product are in this package's program, those beside other
//! runtimes in a package outside the workspace (`bench/rivals`).
//!
//! | module | subject |
//! |---|---|
//! | [`harness`] | pairs, verdicts |
//! | [`calls`] | the calls of one run |
//! | [`coordinator`] | what members need to be measured |
//! | [`host`] | steal and load of this machine |
//! | [`report`] | table and JSON |
#![forbid(unsafe_code)]

pub mod calls;
pub mod coordinator;
pub mod harness;
pub mod host;
pub mod report;
