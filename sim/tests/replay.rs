//! A cluster lets go of what one cache would let go of, or nearly.
#![forbid(unsafe_code)]

use lunette::trace::generator::Generator;
use lunette_sim::replay::{Plan, of_one_cache, serve};

/// How far a cluster may be below one cache.
const BELOW_MAX: f64 = 0.01;

const PLAN: Plan = Plan {
    seed: 7,
    nodes: 5,
    cores: 2,
    block_bytes: 8192,
    memory_blocks: 2000,
    drive_blocks: 0,
    are_chains: true,
};

fn requests(count: usize) -> Vec<Vec<u64>> {
    let generated = Generator::new(3).take(count);
    generated.map(|request| request.hash_ids).collect()
}

#[test]
fn five_members_hit_what_one_cache_of_their_memory_hits() {
    let requests = requests(1500);
    let served = serve(PLAN, &requests);
    let (ratio, one) = (
        served.hit_ratio(),
        of_one_cache(&requests, PLAN.memory_blocks),
    );
    assert!(one > 0.05, "{one}: there is something to be hit");
    assert!(ratio > one - BELOW_MAX, "{ratio} beside {one}: {served:?}");
    assert!(served.lacking_ratio() < 0.02, "{served:?}");
    // Of what is behind its block before, next to nothing is found without it.
    let leading = served.leading_hit_ratio();
    assert!(
        (ratio - 0.01..=ratio).contains(&leading),
        "{leading} of {ratio}"
    );
}

#[test]
fn the_same_seed_serves_in_the_same_way() {
    let requests = requests(100);
    let plan = Plan {
        memory_blocks: 500,
        drive_blocks: 4000,
        ..PLAN
    };
    let served = serve(plan, &requests);
    assert_eq!(served, serve(plan, &requests));
    assert!(served.drives.records > 0, "{served:?}");
}
