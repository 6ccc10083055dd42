//! What one LRU list over all blocks makes of a trace: the ratios that a replay is judged by.

use std::collections::{BTreeMap, HashMap};

use super::Request;

/// How much of a trace was found in a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitCount {
    /// Requests counted.
    pub requests: u64,
    /// Blocks looked up.
    pub blocks: u64,
    /// Blocks found.
    pub blocks_hit: u64,
    /// Blocks found with all blocks before them.
    pub prefix_blocks: u64,
    /// Tokens that those cover.
    pub prefix_tokens: u64,
    /// Tokens of all prompts.
    pub input_tokens: u64,
}

impl HitCount {
    /// Adds a request of which `blocks_hit` blocks were found, the leading `prefix_blocks` of them
    /// without a gap.
    pub fn add(&mut self, request: &Request, blocks_hit: usize, prefix_blocks: usize) {
        assert!(prefix_blocks <= blocks_hit, "a prefix is made of hits");
        assert!(blocks_hit <= request.hash_ids.len(), "hits are blocks");
        let count = |blocks: usize| u64::try_from(blocks).expect("a block count fits");
        self.requests += 1;
        self.blocks += count(request.hash_ids.len());
        self.blocks_hit += count(blocks_hit);
        self.prefix_blocks += count(prefix_blocks);
        self.prefix_tokens += request.prefix_tokens(prefix_blocks);
        self.input_tokens += request.input_tokens;
    }

    /// Blocks looked up and not found.
    #[must_use]
    pub const fn blocks_missed(&self) -> u64 {
        self.blocks - self.blocks_hit
    }

    /// Blocks found, of all blocks.
    #[must_use]
    pub fn block_ratio(&self) -> f64 {
        ratio(self.blocks_hit, self.blocks)
    }

    /// Blocks found with all blocks before them, of all blocks.
    #[must_use]
    pub fn prefix_ratio(&self) -> f64 {
        ratio(self.prefix_blocks, self.blocks)
    }

    /// Tokens of the prefixes found, of all prompts' tokens.
    #[must_use]
    pub fn token_ratio(&self) -> f64 {
        ratio(self.prefix_tokens, self.input_tokens)
    }
}

/// Zero of nothing is zero.
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// One LRU list over blocks.
#[derive(Clone, Debug)]
pub struct Lru {
    blocks_max: usize,
    clock: u64,
    used_at: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
}

impl Lru {
    /// An empty list of at most `blocks_max` blocks.
    #[must_use]
    pub fn new(blocks_max: usize) -> Self {
        Self {
            blocks_max,
            clock: 0,
            used_at: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// Serves a request: all its blocks are looked up, then all are put in their order, which only
    /// touches the resident ones. Blocks used least recently make room.
    pub fn serve(&mut self, request: &Request, count: &mut HitCount) {
        let found = |hash_id: &&u64| self.used_at.contains_key(hash_id);
        let blocks_hit = request.hash_ids.iter().filter(found).count();
        let prefix_blocks = request.hash_ids.iter().take_while(found).count();
        count.add(request, blocks_hit, prefix_blocks);
        for &hash_id in &request.hash_ids {
            self.put(hash_id);
        }
    }

    fn put(&mut self, hash_id: u64) {
        self.clock += 1;
        if let Some(used_at) = self.used_at.insert(hash_id, self.clock) {
            self.order.remove(&used_at);
        }
        self.order.insert(self.clock, hash_id);
        if self.used_at.len() > self.blocks_max {
            let (_, oldest) = self.order.pop_first().expect("one more than the limit");
            self.used_at.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(hash_ids: &[u64]) -> Request {
        Request {
            timestamp_ms: 0,
            input_tokens: 512 * u64::try_from(hash_ids.len()).expect("few") - 12,
            output_tokens: 1,
            hash_ids: hash_ids.to_vec(),
        }
    }

    #[test]
    fn lookups_come_before_puts_and_a_gap_ends_the_prefix() {
        let (mut lru, mut count) = (Lru::new(10), HitCount::default());
        lru.serve(&request(&[1, 2, 2]), &mut count);
        assert_eq!(count.blocks_hit, 0, "its own puts do not count");
        lru.serve(&request(&[1, 3, 2]), &mut count);
        assert_eq!((count.blocks_hit, count.prefix_blocks), (2, 1));
        assert_eq!((count.blocks, count.blocks_missed()), (6, 4));
        assert_eq!((count.prefix_tokens, count.input_tokens), (512, 3048));
    }

    #[test]
    fn the_least_recently_used_block_leaves_and_a_put_touches() {
        let (mut lru, mut count) = (Lru::new(2), HitCount::default());
        lru.serve(&request(&[1, 2]), &mut count);
        lru.serve(&request(&[1]), &mut count);
        lru.serve(&request(&[3]), &mut count);
        let before = count.blocks_hit;
        lru.serve(&request(&[1, 3, 2]), &mut count);
        assert_eq!(count.blocks_hit - before, 2, "2 had left, 1 and 3 had not");
    }

    #[test]
    fn ratios_of_nothing_are_zero() {
        let count = HitCount::default();
        assert_eq!(count.block_ratio(), 0.0);
        assert_eq!(count.prefix_ratio(), 0.0);
        assert_eq!(count.token_ratio(), 0.0);
    }
}
