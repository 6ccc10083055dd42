//! One seed from beginning to end.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use lunette_runtime::sim::FaultCounts;
use lunette_runtime_core::time::Time;

use crate::cluster::Cluster;
use crate::oracle::Tally;
use crate::plan::{CALM_FROM, END, FAULTS_UNTIL, Fault, Plan};
use crate::releases::Releases;

/// What came of a seed.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What the oracle found wrong, or the panic.
    pub failures: Vec<String>,
    /// What was answered.
    pub tally: Tally,
    /// How often each fault occurred.
    pub faults: FaultCounts,
    /// A hash of all that happened.
    pub trace_hash: u64,
    /// What happened, if it was to be kept.
    pub log: Vec<String>,
    /// How long the world lasted, in its time.
    pub simulated: Duration,
}

/// Begins or ends of faults, by time.
fn timeline(plan: &Plan) -> Vec<(Duration, bool, Fault, Duration)> {
    let begins = plan
        .faults
        .iter()
        .map(|planned| (planned.at, true, planned.fault, planned.lasts));
    let ends = plan.faults.iter().map(|planned| {
        let end = planned.at + planned.lasts;
        (end, false, planned.fault, Duration::ZERO)
    });
    let mut all: Vec<_> = begins.chain(ends).collect();
    all.sort_by_key(|(at, begins, ..)| (*at, *begins));
    all
}

/// Runs the world of a seed. A panic of the product is a failure like any other.
#[must_use]
pub fn run(seed: u64, keeps_log: bool) -> Report {
    let report = RefCell::new(Report::default());
    let ran = panic::catch_unwind(AssertUnwindSafe(|| run_world(seed, keeps_log, &report)));
    let mut report = report.into_inner();
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

fn run_world(seed: u64, keeps_log: bool, report: &RefCell<Report>) {
    let plan = Plan::of(seed);
    let timeline = timeline(&plan);
    let releases = Releases::listen();
    let calm_from = Time::ZERO + CALM_FROM;
    let mut cluster = Cluster::start(seed, plan, calm_from, keeps_log);
    for (at, begins, fault, lasts) in timeline {
        advance(&mut cluster, &releases, Time::ZERO + at);
        if begins {
            cluster.begin(fault, lasts);
        } else {
            cluster.end(fault);
        }
    }
    advance(&mut cluster, &releases, Time::ZERO + FAULTS_UNTIL);
    cluster.calm_down();
    advance(&mut cluster, &releases, calm_from);
    let checks = cluster.check();
    advance(&mut cluster, &releases, Time::ZERO + END);
    let now = cluster.world.now();
    let mut oracle = cluster.oracle.borrow_mut();
    for check in checks {
        if check.take().is_none() {
            oracle.on_stuck(
                "a put and a get at each node, when all faults were over,",
                now,
            );
        }
    }
    oracle.on_world_end(now);
    let mut report = report.borrow_mut();
    report.failures = oracle.failures().to_vec();
    report.tally = oracle.tally().clone();
    drop(oracle);
    report.faults = cluster.world.fault_counts();
    report.trace_hash = cluster.world.trace_hash();
    report.log = cluster.world.take_log();
    report.simulated = END;
}

/// Lets time pass, and tells the oracle of each release when it happens.
fn advance(cluster: &mut Cluster, releases: &Releases, until: Time) {
    let (oracle, log) = (cluster.oracle.clone(), cluster.world.log());
    cluster.world.run_until(until, || {
        for release in releases.take() {
            let (high, version) = (release.fingerprint_high, release.version);
            let mut oracle = oracle.borrow_mut();
            if release.is_removed {
                oracle.on_removed(high, log.now());
            } else {
                oracle.on_release(high, version, log.now());
            }
        }
        !oracle.borrow().failures().is_empty()
    });
}
