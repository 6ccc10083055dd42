//! One seed from beginning to end.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use lunette_runtime::sim::FaultCounts;
use lunette_runtime_core::time::Time;

use crate::cluster::Cluster;
use crate::oracle::Tally;
use crate::plan::{CALM_FROM, END, FAULTS_UNTIL, Fault, Plan};
use crate::releases::{Releases, What};

/// How often somebody looks whether the coordinator is to be started again.
const SUPERVISED_EVERY: Duration = Duration::from_millis(100);

/// What came of a seed.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What the oracle found wrong, then the panic, if there was one.
    pub failures: Vec<String>,
    /// Whether it was the oracle that found something, and not an assertion of the product.
    pub is_found_by_oracle: bool,
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

fn run_world(seed: u64, keeps_log: bool, report: &RefCell<Report>) {
    let plan = Plan::of(seed);
    let releases = Releases::listen();
    let mut cluster = Cluster::start(seed, plan.clone(), Time::ZERO + CALM_FROM, keeps_log);
    live(&mut cluster, &releases, &plan);
    // Before the world ends: what a bug has broken may end it with a panic.
    let now = cluster.world.now();
    let mut oracle = cluster.oracle.borrow_mut();
    if oracle.failures().is_empty() {
        oracle.on_world_end(now);
    }
    let mut report = report.borrow_mut();
    report.failures = oracle.failures().to_vec();
    report.tally = oracle.tally().clone();
    drop(oracle);
    report.faults = cluster.world.fault_counts();
    report.trace_hash = cluster.world.trace_hash();
    report.log = cluster.world.take_log();
    report.simulated = now.since(Time::ZERO);
}

/// Lets everything happen, to the end or to the first failure.
fn live(cluster: &mut Cluster, releases: &Releases, plan: &Plan) {
    for (at, begins, fault, lasts) in timeline(plan) {
        if !advance(cluster, releases, Time::ZERO + at) {
            return;
        }
        if begins {
            cluster.begin(fault, lasts);
        } else {
            cluster.end(fault);
        }
    }
    if !advance(cluster, releases, Time::ZERO + FAULTS_UNTIL) {
        return;
    }
    cluster.calm_down();
    if !advance(cluster, releases, Time::ZERO + CALM_FROM) {
        return;
    }
    let checks = cluster.check();
    if !advance(cluster, releases, Time::ZERO + END) {
        return;
    }
    let now = cluster.world.now();
    for check in checks {
        if check.take().is_none() {
            let what = "a put and a get at each node, when all faults were over,";
            cluster.oracle.borrow_mut().on_stuck(what, now);
        }
    }
}

/// Lets time pass, and tells the oracle of what nodes tell when they do. Whether nothing has failed.
fn advance(cluster: &mut Cluster, releases: &Releases, until: Time) -> bool {
    let (oracle, log) = (cluster.oracle.clone(), cluster.world.log());
    let hear = || {
        for told in releases.take() {
            let (high, version) = (told.fingerprint_high, told.version);
            let mut oracle = oracle.borrow_mut();
            match told.what {
                What::Freed => oracle.on_release(high, version, log.now()),
                What::Removed => oracle.on_removed(high, log.now()),
                What::AnswerBegun => oracle.on_answer_begun(high, version),
                What::AnswerSent => oracle.on_answer_sent(high, version, log.now()),
            }
        }
        !oracle.borrow().failures().is_empty()
    };
    while cluster.world.now() < until {
        let next = until.min(cluster.world.now() + SUPERVISED_EVERY);
        if cluster.world.run_until(next, hear) {
            return false;
        }
        cluster.supervise();
    }
    true
}
