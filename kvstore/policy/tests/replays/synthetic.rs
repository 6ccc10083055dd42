//! The default policy on workloads from seeds.

use crate::judging::{above_lru, gap_closed, learned, sharded};
use lunette_kvstore_policy::replay::{Shards, Trace};
use lunette_kvstore_policy::tiers::{ADMISSION_DEFAULT, Admission, replay_tiers};
use lunette_kvstore_policy::{Learned, Policy};
use lunette_runtime_core::random::SplitMix64;

/// Sessions whose turns repeat what was said and go on, some of which go on more often than others.
fn chats(seed: u64, requests: usize) -> Trace {
    let mut random = SplitMix64::new(seed);
    let mut open: Vec<(usize, u32, Vec<u64>)> = Vec::new();
    let (mut trace, mut next_key) = (Trace::default(), 1);
    for now in 0..requests {
        let due = open.iter().position(|&(at, ..)| at <= now);
        let (turns, mut keys) = due.map_or((0, vec![0]), |at| {
            let (_, turns, mut keys) = open.swap_remove(at);
            keys.pop();
            (turns, keys)
        });
        let more = if turns == 0 {
            3 + random.below(40)
        } else {
            1 + random.below(6)
        };
        for _ in 0..more {
            keys.push(next_key);
            next_key += 1;
        }
        trace.push(keys.iter().copied());
        let goes_on = [250, 550, 750, 850][turns.min(3) as usize];
        if random.below(1000) < goes_on {
            let wait = 40 + usize::try_from(random.below(900)).expect("small");
            open.push((now + wait, turns + 1, keys));
        }
    }
    trace
}

/// Questions to documents, of which some are asked far more often.
fn documents(seed: u64, requests: usize) -> Trace {
    let mut random = SplitMix64::new(seed);
    let (mut trace, mut next_key) = (Trace::default(), 1_u64 << 40);
    for _ in 0..requests {
        let document = (0..4).map(|_| random.below(1_500)).min().unwrap_or(0);
        let blocks = 4 + u64::from(document) * 7_919 % 40;
        let mut keys: Vec<u64> = (0..blocks)
            .map(|at| u64::from(document) * 64 + at)
            .collect();
        for _ in 0..=random.below(5) {
            keys.push(next_key);
            next_key += 1;
        }
        trace.push(keys);
    }
    trace
}

/// Sessions that are all alike: nothing can be learnt.
fn uniform(seed: u64, requests: usize) -> Trace {
    let mut random = SplitMix64::new(seed);
    let mut trace = Trace::default();
    for _ in 0..requests {
        let session = u64::from(random.below(1_000));
        trace.push((0..12).map(|at| session * 12 + at));
    }
    trace
}

/// One workload, then another.
fn shift(first: &Trace, second: &Trace) -> Trace {
    let mut trace = first.clone();
    for request in second.requests() {
        trace.push(request.iter().map(|key| key + (1 << 50)));
    }
    trace
}

#[test]
fn it_is_not_below_lru_whatever_the_workload() {
    let (chats, documents) = (chats(1, 5_000), documents(2, 5_000));
    let shifted = shift(&documents, &chats);
    for (name, trace) in [
        ("chats", chats),
        ("documents", documents),
        ("shifted", shifted),
    ] {
        for blocks_max in [500, 1_000, 2_000, 5_000, 10_000, 20_000, 40_000] {
            let above = above_lru(&trace, blocks_max);
            assert!(above > -0.002, "{name} at {blocks_max}: {above}");
        }
    }
}

#[test]
fn where_nothing_can_be_learnt_it_does_no_harm() {
    let seeds = [3, 4, 5, 6];
    for blocks_max in [1_000, 6_000] {
        let above = seeds.map(|seed| above_lru(&uniform(seed, 4_000), blocks_max));
        let mean = above.iter().sum::<f64>() / 4.0;
        assert!(mean > -0.005, "{blocks_max}: {above:?}");
    }
}

#[test]
fn it_closes_a_part_of_the_gap() {
    let (chats, documents) = (chats(7, 8_000), documents(8, 5_000));
    for blocks_max in [1_000, 3_000, 10_000] {
        let (of_chats, of_documents) = (
            gap_closed(&chats, blocks_max),
            gap_closed(&documents, blocks_max),
        );
        assert!(of_chats > 0.05, "chats at {blocks_max}: {of_chats}");
        assert!(
            of_documents > 0.05,
            "documents at {blocks_max}: {of_documents}"
        );
    }
}

#[test]
fn ten_shards_hit_like_one_cache() {
    let trace = chats(9, 6_000);
    for blocks_max in [1_000, 3_000, 10_000] {
        let one = learned(&trace, blocks_max);
        let (hits, _) = sharded(&trace, blocks_max, 10);
        assert!(hits > one - 0.01, "{blocks_max}: {hits}, {one}");
    }
}

#[test]
fn a_chain_leaves_from_its_end() {
    for trace in [chats(12, 6_000), documents(13, 6_000)] {
        // A thousand blocks are those of some forty requests.
        for (blocks_max, behind_max) in [(1_000, 0.02), (3_000, 0.01), (10_000, 0.01)] {
            let (_, behind) = sharded(&trace, blocks_max, 1);
            assert!(behind <= behind_max, "{blocks_max}: {behind}");
        }
    }
}

#[test]
fn two_tiers_hit_like_one_of_both_sizes() {
    let trace = chats(10, 8_000);
    let one = learned(&trace, 10_333);
    let all = replay_tiers(&trace, 1_000, 10_000, Admission::All);
    assert!(
        all.either.ratio() > one - 0.01,
        "{} {one}",
        all.either.ratio()
    );
    let spared = replay_tiers(&trace, 1_000, 10_000, ADMISSION_DEFAULT);
    assert!(spared.either.ratio() > all.either.ratio() - 0.005);
    assert!(spared.writes <= all.writes);
    assert!(
        spared.writes_per_miss() <= 1.0,
        "what is on the drive is not written again"
    );
}

#[test]
fn the_same_trace_gives_the_same_victims() {
    let run = || {
        let mut caches = Shards::new(2, 700, Learned::new);
        let trace = chats(11, 3_000);
        for request in trace.requests() {
            caches.serve(request);
        }
        caches.tally()
    };
    assert_eq!(run(), run());
}

#[test]
fn what_it_remembers_is_bounded() {
    let mut policy = Learned::with_ghosts(1, 100);
    for key in 0..10_000 {
        policy.insert(0, key, Default::default());
        policy.evict(0);
        assert!(policy.ghosts() <= 100);
    }
    assert!(policy.remembers(9_999) && !policy.remembers(9_899));
}
