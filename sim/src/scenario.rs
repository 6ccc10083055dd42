//! What can be simulated.

use lunette_runtime_core::mutant::Mutant;

use crate::report::Report;
use crate::{members, nodes};

/// A kind of world. Seeds are numbered in each from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Nodes that are alone and their clients; beside them a coordinator on a drive, and its members.
    Nodes,
    /// Members of a cluster and its clients: maps change while they work.
    Members,
    /// The same with RDMA adapters, which fail as well: gets are written by owners, read by clients, or sent.
    Adapters,
}

impl Scenario {
    /// All of them, by the names that programs take.
    pub const ALL: [(&'static str, Self); 3] = [
        ("nodes", Self::Nodes),
        ("members", Self::Members),
        ("adapters", Self::Adapters),
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Members => "members",
            Self::Adapters => "adapters",
        }
    }

    /// Runs the world of a seed. With `keeps_log` the report tells what happened, line by line.
    #[must_use]
    pub fn run(self, seed: u64, keeps_log: bool) -> Report {
        Report::of(|report| match self {
            Self::Nodes => nodes::run(seed, keeps_log, report),
            Self::Members => members::run(seed, keeps_log, false, report),
            Self::Adapters => members::run(seed, keeps_log, true, report),
        })
    }

    /// Why something may be missing.
    #[must_use]
    pub fn causes(self) -> Vec<&'static str> {
        match self {
            Self::Nodes => nodes::oracle::Cause::ALL
                .map(nodes::oracle::Cause::name)
                .into(),
            Self::Members | Self::Adapters => members::Cause::ALL.map(members::Cause::name).into(),
        }
    }

    /// Whether this fault is brought about.
    #[must_use]
    pub fn has_fault(self, fault: &str) -> bool {
        match self {
            Self::Nodes => true,
            // Their connections are not sealed, so that nothing may be damaged; nobody has a drive.
            Self::Members | Self::Adapters => members::has_fault(fault),
        }
    }

    /// Bugs that are to be found.
    #[must_use]
    pub const fn mutants(self) -> &'static [(&'static str, Mutant)] {
        match self {
            Self::Nodes => &Mutant::ALL,
            Self::Members | Self::Adapters => &members::MUTANTS,
        }
    }
}
