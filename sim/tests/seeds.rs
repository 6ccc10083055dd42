//! Whole worlds: that they end well, show the same again, and are worth judging.
#![forbid(unsafe_code)]

use lunette_sim::oracle::Cause;
use lunette_sim::run::run;
use lunette_sim::summary::Summary;

#[test]
fn worlds_are_judged_and_found_right() {
    let mut summary = Summary::default();
    for seed in 0..20 {
        let report = run(seed, false);
        assert_eq!(
            report.failures, [""; 0],
            "cargo xtask sim --seed {seed} --log"
        );
        let tally = &report.tally;
        assert!(
            tally.hits > 10 && tally.written > 10 && tally.touched > 10,
            "seed {seed}"
        );
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
    assert!(never.len() < 5, "faults occur: {never:?}");
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
