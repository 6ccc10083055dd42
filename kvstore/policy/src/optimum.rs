//! What no policy can beat: the block whose next use is farthest leaves first (Belady 1966).

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::hash::MixBuild;
use crate::replay::{Tally, Trace};

/// Never used again.
const NEVER: u64 = u64::MAX;

/// Hits of a cache of `blocks_max` blocks that knows the whole trace.
#[must_use]
pub fn optimum(trace: &Trace, blocks_max: usize) -> Tally {
    let next_uses = next_uses(trace);
    let mut next_use = next_uses.iter().copied();
    let mut cache: HashMap<u64, u64, MixBuild> = HashMap::default();
    let mut by_next_use: BTreeSet<(u64, u64)> = BTreeSet::new();
    let mut tally = Tally::default();
    for request in trace.requests() {
        let hits = request.iter().filter(|key| cache.contains_key(*key));
        tally.count(request.len(), hits.count());
        for (&key, next) in request.iter().rev().zip(&mut next_use) {
            if let Some(former) = cache.insert(key, next) {
                by_next_use.remove(&(former, key));
            }
            by_next_use.insert((next, key));
            if cache.len() > blocks_max
                && let Some((_, farthest)) = by_next_use.pop_last()
            {
                cache.remove(&farthest);
            }
        }
    }
    tally
}

/// Per use, in the order of uses, the position of the block's next one.
fn next_uses(trace: &Trace) -> Vec<u64> {
    let uses = trace.requests().flat_map(|request| request.iter().rev());
    let mut next_uses = Vec::new();
    let mut last_uses: HashMap<u64, usize, MixBuild> = HashMap::default();
    for (at, &key) in uses.enumerate() {
        next_uses.push(NEVER);
        if let Some(last) = last_uses.insert(key, at) {
            next_uses[last] = at as u64;
        }
    }
    next_uses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_that_is_used_last_or_never_leaves() {
        let mut trace = Trace::default();
        for key in [1, 2, 3, 1, 2, 4, 1] {
            trace.push([key]);
        }
        assert_eq!(optimum(&trace, 2).hits, 3, "3 and 4 are not kept");
        assert_eq!(optimum(&trace, 1).hits, 2, "1 is, at each of its uses");
        assert_eq!(optimum(&trace, 0).hits, 0);
    }
}
