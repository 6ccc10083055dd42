//! Many seeds, counted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lunette_runtime_core::random::mix;
use serde_json::{Value, json};

use crate::report::Report;
use crate::scenario::Scenario;

/// The seeds run so far.
#[derive(Debug)]
pub struct Summary {
    scenario: Scenario,
    began: Instant,
    seeds: u64,
    failures: u64,
    first_failing: Option<(u64, String)>,
    trace_hash: u64,
    faults: BTreeMap<&'static str, u64>,
    misses: BTreeMap<&'static str, u64>,
    errors: BTreeMap<String, u64>,
    answers: BTreeMap<&'static str, u64>,
    simulated: Duration,
}

impl Summary {
    /// Of no seed yet.
    #[must_use]
    pub fn new(scenario: Scenario) -> Self {
        let causes = scenario.causes();
        Self {
            scenario,
            began: Instant::now(),
            seeds: 0,
            failures: 0,
            first_failing: None,
            trace_hash: 0,
            faults: BTreeMap::new(),
            misses: causes.into_iter().map(|cause| (cause, 0)).collect(),
            errors: BTreeMap::new(),
            answers: BTreeMap::new(),
            simulated: Duration::ZERO,
        }
    }

    /// Adds a seed. Seeds are added in order.
    pub fn add(&mut self, seed: u64, report: &Report) {
        self.seeds += 1;
        self.trace_hash = mix(self.trace_hash ^ report.trace_hash);
        self.simulated += report.simulated;
        if let Some(failure) = report.failures.first() {
            self.failures += 1;
            let first = || (seed, failure.clone());
            self.first_failing.get_or_insert_with(first);
        }
        let disks = report.faults.list_of_disks();
        for (name, count) in report.faults.list().into_iter().chain(disks) {
            if self.scenario.has_fault(name) {
                *self.faults.entry(name).or_default() += count;
            }
        }
        for (name, count) in &report.misses {
            *self.misses.entry(name).or_default() += count;
        }
        for (name, count) in &report.errors {
            *self.errors.entry(name.clone()).or_default() += count;
        }
        for (name, count) in &report.answers {
            *self.answers.entry(name).or_default() += count;
        }
    }

    /// The first seed that failed, and how.
    #[must_use]
    pub const fn first_failing(&self) -> Option<&(u64, String)> {
        self.first_failing.as_ref()
    }

    /// Faults and causes that have not occurred. With enough seeds there are none, or the simulator
    /// does not do what it is for.
    #[must_use]
    pub fn never_seen(&self) -> Vec<&'static str> {
        let counts = self.faults.iter().chain(&self.misses);
        let never = counts.filter(|(_, count)| **count == 0);
        never.map(|(name, _)| *name).collect()
    }

    /// Everything, as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let wall = self.began.elapsed().as_secs_f64().max(1e-9);
        json!({
            "scenario": self.scenario.name(),
            "seeds": self.seeds,
            "failures": self.failures,
            "first_failing_seed": self.first_failing.as_ref().map(|(seed, _)| seed),
            "first_failure": self.first_failing.as_ref().map(|(_, text)| text),
            "trace_hash": format!("{:016x}", self.trace_hash),
            "faults": self.faults,
            "misses": self.misses,
            "answers": self.answers,
            "errors": self.errors,
            "simulated_seconds_per_second": (self.simulated.as_secs_f64() / wall).round(),
            "seeds_per_minute": (60.0 * self.seeds as f64 / wall).round(),
        })
    }
}
