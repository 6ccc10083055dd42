//! Nodes that are alone, and a coordinator: one seed from beginning to end.

mod clients;
mod cluster;
mod coordination;
pub mod oracle;
pub mod plan;
mod value;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use lunette_kvstore::{ANSWERS, RELEASES};
use lunette_runtime_core::time::Time;

use self::cluster::Cluster;
use self::plan::{CALM_FROM, END, FAULTS_UNTIL, Fault, Plan};
use crate::hearing::Hearing;
use crate::report::Report;

/// How often somebody looks whether the coordinator is to be started again.
const SUPERVISED_EVERY: Duration = Duration::from_millis(100);

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

/// Runs the world of a seed.
pub(crate) fn run(seed: u64, keeps_log: bool, report: &RefCell<Report>) {
    let plan = Plan::of(seed);
    let hearing = Hearing::begin();
    let mut cluster = Cluster::start(seed, plan.clone(), Time::ZERO + CALM_FROM, keeps_log);
    live(&mut cluster, &hearing, &plan);
    // Before the world ends: what a bug has broken may end it with a panic.
    let now = cluster.world.now();
    let mut oracle = cluster.oracle.borrow_mut();
    if oracle.failures().is_empty() {
        oracle.on_world_end(now);
    }
    let mut report = report.borrow_mut();
    report.failures = oracle.failures().to_vec();
    let tally = oracle.tally();
    report.answers = BTreeMap::from([
        ("written", tally.written),
        ("touched", tally.touched),
        ("hits", tally.hits),
        ("kept_by_the_coordinator", tally.kept),
        ("epochs", tally.epochs),
    ]);
    report.misses = tally.misses.clone();
    report.errors = tally.errors.clone();
    drop(oracle);
    report.faults = cluster.world.fault_counts();
    report.trace_hash = cluster.world.trace_hash();
    report.log = cluster.world.take_log();
    report.simulated = now.since(Time::ZERO);
}

/// Lets everything happen, to the end or to the first failure.
fn live(cluster: &mut Cluster, hearing: &Hearing, plan: &Plan) {
    for (at, begins, fault, lasts) in timeline(plan) {
        if !advance(cluster, hearing, Time::ZERO + at) {
            return;
        }
        if begins {
            cluster.begin(fault, lasts);
        } else {
            cluster.end(fault);
        }
    }
    if !advance(cluster, hearing, Time::ZERO + FAULTS_UNTIL) {
        return;
    }
    cluster.calm_down();
    if !advance(cluster, hearing, Time::ZERO + CALM_FROM) {
        return;
    }
    let checks = cluster.check();
    if !advance(cluster, hearing, Time::ZERO + END) {
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
fn advance(cluster: &mut Cluster, hearing: &Hearing, until: Time) -> bool {
    let (oracle, log) = (cluster.oracle.clone(), cluster.world.log());
    let hear = || {
        for told in hearing.take() {
            let (high, version) = (told.number("fingerprint_high"), told.number("version"));
            let mut oracle = oracle.borrow_mut();
            match told.target {
                RELEASES if told.is("is_removed") => oracle.on_removed(high, log.now()),
                RELEASES => oracle.on_release(high, version, log.now()),
                ANSWERS if told.is("is_sent") => oracle.on_answer_sent(high, version, log.now()),
                ANSWERS => oracle.on_answer_begun(high, version),
                _ => {}
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
