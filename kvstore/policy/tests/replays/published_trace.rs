//! The figures on the published conversation trace, where it is at hand: `LUNETTE_TRACE_DIR` names the folder that
//! holds `conversation_trace.jsonl`.

use std::env;
use std::path::PathBuf;

use crate::judging::{above_lru, learned, sharded};
use lunette_kvstore_policy::baseline::Lru;
use lunette_kvstore_policy::optimum::optimum;
use lunette_kvstore_policy::replay::{Trace, replay};
use lunette_kvstore_policy::tiers::{ADMISSION_DEFAULT, Admission, replay_tiers};

/// The trace, unless it is not at hand: then the test is skipped.
fn trace(test: &str) -> Option<Trace> {
    let Some(folder) = env::var_os("LUNETTE_TRACE_DIR") else {
        println!("SKIP {test}: LUNETTE_TRACE_DIR names no folder");
        return None;
    };
    let path = PathBuf::from(folder).join("conversation_trace.jsonl");
    #[expect(
        clippy::disallowed_methods,
        reason = "the test reads a file, the package none"
    )]
    let text = std::fs::read_to_string(path).expect("the trace can be read");
    let mut trace = Trace::default();
    for line in text.lines() {
        let (_, keys) = line.split_once("\"hash_ids\": [").expect("a request");
        let (keys, _) = keys.split_once(']').expect("the end of its blocks");
        let keys = keys
            .split(',')
            .map(|key| key.trim().parse().expect("a number"));
        trace.push(keys.collect::<Vec<u64>>());
    }
    Some(trace)
}

fn is_about(ratio: f64, expected: f64) -> bool {
    (ratio - expected).abs() < 0.00006
}

/// Capacity; hit ratios of LRU and of the optimum; the part of the gap between them to be closed.
const TARGETS: [(usize, f64, f64, f64); 4] = [
    (1_000, 0.0445, 0.1907, 0.25),
    (3_000, 0.0653, 0.2945, 0.28),
    (10_000, 0.2116, 0.3664, 0.15),
    (30_000, 0.3257, 0.3664, 0.10),
];

#[test]
fn the_default_policy_closes_its_part_of_the_gap() {
    let Some(trace) = trace("the_default_policy_closes_its_part_of_the_gap") else {
        return;
    };
    for (blocks_max, least, most, part) in TARGETS {
        assert!(is_about(
            replay(&trace, blocks_max, Lru::default()).ratio(),
            least
        ));
        assert!(is_about(optimum(&trace, blocks_max).ratio(), most));
        let closed = (learned(&trace, blocks_max) - least) / (most - least);
        assert!(closed >= part, "{blocks_max}: {closed}");
    }
}

#[test]
fn it_is_not_below_lru() {
    let Some(trace) = trace("it_is_not_below_lru") else {
        return;
    };
    let capacities = [1, 2, 3, 5, 7, 10, 20, 30, 50, 100].map(|thousands| thousands * 1_000);
    for blocks_max in capacities {
        let above = above_lru(&trace, blocks_max);
        assert!(above >= -0.002, "{blocks_max}: {above}");
    }
}

#[test]
fn ten_shards_hit_like_one_cache() {
    let Some(trace) = trace("ten_shards_hit_like_one_cache") else {
        return;
    };
    for (blocks_max, ..) in TARGETS {
        let one = learned(&trace, blocks_max);
        let (hits, behind) = sharded(&trace, blocks_max, 10);
        eprintln!(
            "{blocks_max}: one {one:.4}, ten shards {hits:.4}, behind a missing parent {behind:.4}"
        );
        assert!((hits - one).abs() <= 0.01, "{blocks_max}: {hits}, {one}");
        let (_, behind) = sharded(&trace, blocks_max, 1);
        assert!(behind <= 0.01, "one cache of {blocks_max}: {behind}");
    }
}

#[test]
fn two_tiers_hit_like_one_of_both_sizes() {
    let Some(trace) = trace("two_tiers_hit_like_one_of_both_sizes") else {
        return;
    };
    let one = learned(&trace, 31_000);
    let all = replay_tiers(&trace, 3_000, 30_000, Admission::All);
    assert!(all.either.ratio() >= one - 0.01);
    let spared = replay_tiers(&trace, 3_000, 30_000, ADMISSION_DEFAULT);
    assert!(spared.either.ratio() >= all.either.ratio() - 0.005);
    for (name, tally) in [("all", all), ("default", spared)] {
        let (hits, writes) = (tally.either.ratio(), tally.writes_per_miss());
        eprintln!("{name}: hits {hits:.4}, one cache {one:.4}, writes per miss {writes:.3}");
    }
}
