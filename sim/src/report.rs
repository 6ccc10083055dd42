//! What came of a seed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use lunette_runtime::sim::FaultCounts;

/// What came of a seed.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was found wrong by who judges, then the panic, if there was one.
    pub failures: Vec<String>,
    /// Whether it was the judge that found something, and not an assertion of the product.
    pub is_found_by_oracle: bool,
    /// What was answered, by kind; and how many copies went to drives and came back.
    pub answers: BTreeMap<&'static str, u64>,
    /// Gets and look-ups that found nothing, by cause.
    pub misses: BTreeMap<&'static str, u64>,
    /// Operations that failed, by the kind of error.
    pub errors: BTreeMap<String, u64>,
    /// How often each fault occurred.
    pub faults: FaultCounts,
    /// A hash of all that happened.
    pub trace_hash: u64,
    /// What happened, if it was to be kept.
    pub log: Vec<String>,
    /// How long the world lasted, in its time.
    pub simulated: Duration,
}

impl Report {
    /// Runs a world, which reports. A panic of the product is a failure like any other.
    pub(crate) fn of(run_world: impl FnOnce(&RefCell<Self>)) -> Self {
        let report = RefCell::new(Self::default());
        let ran = panic::catch_unwind(AssertUnwindSafe(|| run_world(&report)));
        let mut report = report.into_inner();
        report.is_found_by_oracle = !report.failures.is_empty();
        if let Err(payload) = ran {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("of an unknown kind");
            report.failures.push(format!("a panic: {text}"));
        }
        report
    }
}
