//! Hit ratio of one cache over all requests: what a cluster could reach at most.

use crate::cache::{Cache, Changes};
use crate::workload::Workload;

/// Share of the prompts' tokens that one LRU cache of this many blocks serves, where each request
/// finds its leading blocks and then leaves all of its own.
#[must_use]
pub fn hit_tokens(workload: &Workload, blocks_max: usize) -> f64 {
    let mut cache = Cache::new(blocks_max, 0);
    let mut changes = Changes::new();
    let (mut hits, mut tokens) = (0.0, 0.0);
    for at in 0..workload.len() {
        let item = workload.get(at);
        let (blocks, _) = cache.leading(item.hashes);
        let cached = blocks.saturating_mul(lunette_conductor_policy::ids::TOKENS_PER_BLOCK);
        hits += f64::from(cached.min(item.input_tokens));
        tokens += f64::from(item.input_tokens);
        cache.keep(item.hashes, item.arrival_s, &mut changes);
        changes.clear();
    }
    if tokens > 0.0 { hits / tokens } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Arrival;

    #[test]
    fn only_the_leading_blocks_that_are_left_count() {
        let prompts = [vec![1, 2], vec![3], vec![1, 2]];
        let workload = Workload::new(prompts.into_iter().map(|hashes| Arrival {
            arrival_s: 0.0,
            input_tokens: u64::try_from(hashes.len()).expect("it fits") * 512,
            output_tokens: 1,
            hashes,
        }));
        assert_eq!(hit_tokens(&workload, 3), 0.4);
        assert_eq!(hit_tokens(&workload, 2), 0.2);
        assert_eq!(hit_tokens(&workload, 0), 0.0);
    }
}
