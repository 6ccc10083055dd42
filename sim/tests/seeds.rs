//! Whole worlds: that they end well, show the same again, and are worth judging.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use lunette_sim::nodes::oracle::Cause;
use lunette_sim::report::Report;
use lunette_sim::scenario::Scenario;
use lunette_sim::summary::Summary;

/// A world of members takes seconds in a debug build: the lane runs more, in release.
const MEMBERS_SEED: u64 = 5;

fn run(seed: u64, keeps_log: bool) -> Report {
    Scenario::Nodes.run(seed, keeps_log)
}

#[test]
fn worlds_are_judged_and_found_right() {
    let mut summary = Summary::new(Scenario::Nodes);
    for seed in 0..20 {
        let report = run(seed, false);
        assert_eq!(
            report.failures, [""; 0],
            "cargo xtask sim --seed {seed} --log"
        );
        for what in ["hits", "written", "touched"] {
            assert!(report.answers[what] > 10, "seed {seed}: {what}");
        }
        summary.add(seed, &report);
    }
    let never = summary.never_seen();
    for cause in [
        Cause::NeverPut,
        Cause::Removed,
        Cause::Evicted,
        Cause::HolderGone,
    ] {
        assert!(!never.contains(&cause.name()), "{never:?}");
    }
    assert!(never.len() < 8, "faults occur: {never:?}");
}

#[test]
fn a_seed_shows_the_same_world_with_and_without_its_log() {
    for seed in [3, 11] {
        let (first, second) = (run(seed, false), run(seed, true));
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed}");
        assert!(
            first.log.is_empty() && second.log.len() > 1000,
            "seed {seed}"
        );
        assert_ne!(first.trace_hash, run(seed + 1, false).trace_hash);
    }
}

#[test]
fn a_world_of_members_is_judged_and_shown_again() {
    let report = Scenario::Members.run(MEMBERS_SEED, false);
    let again = format!("cargo xtask sim --scenario members --seed {MEMBERS_SEED} --log");
    assert_eq!(report.failures, [""; 0], "{again}");
    for what in ["hit", "written", "exists", "removed", "kill", "cut"] {
        assert!(report.answers.contains_key(what), "{what}: {again}");
    }
    for cause in ["never_put", "removed"] {
        assert!(report.misses[cause] > 0, "{cause}: {again}");
    }
    let with_log = Scenario::Members.run(MEMBERS_SEED, true);
    assert_eq!(report.trace_hash, with_log.trace_hash);
    assert!(report.log.is_empty() && with_log.log.len() > 1000);
}

/// The worlds in which bugs were found: see `seeds/README.md`.
#[test]
fn seeds_that_failed_fail_no_more() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let entries = fs::read_dir(folder).expect("the folder is part of the repository");
    let mut files = 0;
    for entry in entries {
        let path = entry.expect("it can be listed").path();
        if path.ends_with("README.md") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("it can be read");
        let mut lines = text.lines();
        let seed = lines.next().and_then(|line| line.parse().ok());
        let seed = seed.expect("the first line is a seed");
        let report = run(seed, false);
        let again = format!("{}: cargo xtask sim --seed {seed} --log", path.display());
        assert_eq!(report.failures, [""; 0], "{again}");
        let (of_worlds, of_disks) = (report.faults.list(), report.faults.list_of_disks());
        let counts: BTreeMap<_, _> = of_worlds.into_iter().chain(of_disks).collect();
        let faults = lines.next().expect("the second line names faults");
        for fault in faults.split_whitespace() {
            assert!(counts[fault] > 0, "{again}: {fault} does not occur");
        }
        assert!(lines.next().is_some(), "{again}: what was wrong?");
        files += 1;
    }
    assert!(files > 0, "no file was found");
}
