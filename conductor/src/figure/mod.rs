//! Figures and tables of Mooncake's papers, simulated, with the paper's numbers beside ours.
//!
//! "FAST" is the paper of FAST'25, "v3" the third version of arXiv 2407.00079. A figure that uses
//! the conversation trace is handed it. Other traces are surrogates with the published statistics
//! ([`surrogate`]). Each row states how far from the paper it may lie and still count as met; a
//! figure's remarks name what the paper leaves open and what was chosen here.
//!
//! | module | figures |
//! |---|---|
//! | `model` | FAST 14 |
//! | `caching` | FAST 9, 10, 13 |
//! | `scheduling` | FAST 5, 15, v3 8, v3 Table 3 |
//! | `separation` | FAST 1, v3 12 (the case of 525 %), v3 13 |
//! | [`surrogate`] | generated traces |

mod caching;
mod model;
mod scheduling;
mod separation;
pub mod surrogate;

use crate::workload::Workload;

/// A figure or table of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// FAST Fig 1: requests within both objectives, beside a coupled cluster.
    Fast1,
    /// FAST Fig 5: time to first token by scheduling rule.
    Fast5,
    /// FAST Fig 9: hit rate by capacity.
    Fast9,
    /// FAST Fig 10: local and global caches.
    Fast10,
    /// FAST Fig 13: time to first token by bandwidth.
    Fast13,
    /// FAST Fig 14: the performance model.
    Fast14,
    /// FAST Fig 15: prefill nodes of 16.
    Fast15,
    /// v3 Fig 8: time to first token by scheduling rule.
    V3Fig8,
    /// v3 Fig 12: throughput on simulated prompts, up to 525 % more than a coupled cluster.
    V3Fig12,
    /// v3 Fig 13: a real workload beside a coupled cluster, "75 % more requests".
    V3Fig13,
    /// v3 Table 3: requests refused under overload.
    V3Table3,
}

impl Figure {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Fast1,
        Self::Fast5,
        Self::Fast9,
        Self::Fast10,
        Self::Fast13,
        Self::Fast14,
        Self::Fast15,
        Self::V3Fig8,
        Self::V3Fig12,
        Self::V3Fig13,
        Self::V3Table3,
    ];

    /// Its name: a number for those of FAST.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fast1 => "1",
            Self::Fast5 => "5",
            Self::Fast9 => "9",
            Self::Fast10 => "10",
            Self::Fast13 => "13",
            Self::Fast14 => "14",
            Self::Fast15 => "15",
            Self::V3Fig8 => "v3-8",
            Self::V3Fig12 => "v3-12",
            Self::V3Fig13 => "v3-13",
            Self::V3Table3 => "v3-table-3",
        }
    }

    /// Simulates it.
    #[must_use]
    pub fn table(self, conversation: &Workload) -> Table {
        match self {
            Self::Fast1 => separation::fast_1(conversation),
            Self::Fast5 => scheduling::fast_5(conversation),
            Self::Fast9 => caching::fast_9(conversation),
            Self::Fast10 => caching::fast_10(conversation),
            Self::Fast13 => caching::fast_13(),
            Self::Fast14 => model::fast_14(),
            Self::Fast15 => scheduling::fast_15(),
            Self::V3Fig8 => scheduling::v3_fig_8(conversation),
            Self::V3Fig12 => separation::v3_fig_12(),
            Self::V3Fig13 => separation::v3_fig_13(conversation),
            Self::V3Table3 => scheduling::v3_table_3(conversation),
        }
    }
}

/// How far from the paper a value may lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// This share of the paper's value.
    Share(f64),
    /// This much, in the unit of the value.
    Amount(f64),
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is.
    pub what: String,
    /// What the paper says, if it gives this value, and how near to it counts as met.
    pub paper: Option<(f64, Tolerance)>,
    /// What the simulator says.
    pub ours: f64,
}

impl Row {
    pub(crate) fn new(
        what: impl Into<String>,
        paper: f64,
        tolerance: Tolerance,
        ours: f64,
    ) -> Self {
        Self {
            what: what.into(),
            paper: Some((paper, tolerance)),
            ours,
        }
    }

    /// A value that the paper does not give.
    pub(crate) fn beside(what: impl Into<String>, ours: f64) -> Self {
        Self {
            what: what.into(),
            paper: None,
            ours,
        }
    }

    /// Whether the simulator meets the paper, if the paper gives the value.
    #[must_use]
    pub fn is_met(&self) -> Option<bool> {
        let (paper, tolerance) = self.paper?;
        let allowed = match tolerance {
            Tolerance::Share(share) => share * paper.abs(),
            Tolerance::Amount(amount) => amount,
        };
        Some((self.ours - paper).abs() <= allowed)
    }
}

/// A figure as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What it shows.
    pub title: &'static str,
    /// The cluster and the load.
    pub setting: &'static str,
    /// What all values are in.
    pub unit: &'static str,
    /// Its values.
    pub rows: Vec<Row>,
    /// What to know when reading it.
    pub remarks: Vec<&'static str>,
}

impl Table {
    /// Rows met, and rows for which the paper gives a value.
    #[must_use]
    pub fn met(&self) -> (usize, usize) {
        let verdicts = || self.rows.iter().filter_map(Row::is_met);
        (
            verdicts().filter(|is_met| *is_met).count(),
            verdicts().count(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let mut names = Figure::ALL.map(Figure::name);
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn a_row_is_met_up_to_its_tolerance_on_both_sides() {
        let met = |tolerance, ours| Row::new("", -10.0, tolerance, ours).is_met();
        for (ours, is_met) in [(-11.0, true), (-9.0, true), (-11.01, false), (-8.99, false)] {
            assert_eq!(met(Tolerance::Share(0.1), ours), Some(is_met));
            assert_eq!(met(Tolerance::Amount(1.0), ours), Some(is_met));
        }
        assert_eq!(Row::beside("", 1.0).is_met(), None);
    }
}
