//! Workloads from seeds, unlike each other, and what is asked of a policy on all of them.

use std::collections::BTreeMap;

use lunette_kvstore_policy::Learned;
use lunette_kvstore_policy::baseline::Lru;
use lunette_kvstore_policy::optimum::optimum;
use lunette_kvstore_policy::replay::{Shards, Trace, replay};

/// Share of the gap between LRU and the optimum that the default policy closes; nothing where there is
/// no gap.
pub(crate) fn gap_closed(trace: &Trace, blocks_max: usize) -> f64 {
    let least = replay(trace, blocks_max, Lru::default()).ratio();
    let most = optimum(trace, blocks_max).ratio();
    (learned(trace, blocks_max) - least) / (most - least)
}

/// Hit ratio of the default policy.
pub(crate) fn learned(trace: &Trace, blocks_max: usize) -> f64 {
    replay(trace, blocks_max, Learned::new(blocks_max)).ratio()
}

/// How far the default policy is above LRU.
pub(crate) fn above_lru(trace: &Trace, blocks_max: usize) -> f64 {
    learned(trace, blocks_max) - replay(trace, blocks_max, Lru::default()).ratio()
}

/// Hit ratio of so many shards, by the hashes of keys, and the mean share of blocks behind a missing parent.
pub(crate) fn sharded(trace: &Trace, blocks_max: usize, shards: usize) -> (f64, f64) {
    let mut parents: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut behind, mut resident) = (0, 0);
    let mut caches = Shards::new(shards, blocks_max, Learned::new);
    for (at, request) in trace.requests().enumerate() {
        parents.extend(request.windows(2).map(|pair| (pair[1], pair[0])));
        caches.serve(request);
        if at % 500 == 499 && caches.len() >= blocks_max {
            let is_behind = |&(&child, &parent): &(&u64, &u64)| {
                caches.contains(child) && !caches.contains(parent)
            };
            behind += parents.iter().filter(is_behind).count();
            resident += caches.len();
        }
    }
    (caches.tally().ratio(), ratio(behind, resident.max(1)))
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}
