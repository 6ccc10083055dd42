//! Traces of requests, replayed against caches.
//!
//! A request names its blocks from the first to the last. Those that are in the cache when it comes
//! are hits; then all are used, from the last to the first, and those that were missed come in.

use hashbrown::HashMap;
use lunette_runtime_core::random::mix;

use crate::Policy;
use crate::class::{Found, Use};
use crate::hash::MixBuild;

/// Requests, each a list of the keys of its blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    keys: Vec<u64>,
    ends: Vec<usize>,
}

impl Trace {
    /// Adds a request.
    pub fn push(&mut self, keys: impl IntoIterator<Item = u64>) {
        self.keys.extend(keys);
        self.ends.push(self.keys.len());
    }

    /// The number of requests.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no requests.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The requests in order.
    pub fn requests(&self) -> impl Iterator<Item = &[u64]> {
        let starts = core::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, &end)| &self.keys[start..end])
    }

    /// How many different blocks there are.
    #[must_use]
    pub fn distinct_blocks(&self) -> usize {
        let mut keys = self.keys.clone();
        keys.sort_unstable();
        keys.dedup();
        keys.len()
    }
}

/// What was asked for, and what was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Blocks of all requests.
    pub blocks: u64,
    /// Of them, those that were in the cache when their request came.
    pub hits: u64,
}

impl Tally {
    pub(crate) const fn count(&mut self, blocks: usize, hits: usize) {
        self.blocks += blocks as u64;
        self.hits += hits as u64;
    }

    /// Hits per block; 0 of no blocks.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "traces have far fewer than 2^53 blocks"
    )]
    pub const fn ratio(self) -> f64 {
        if self.blocks == 0 {
            return 0.0;
        }
        self.hits as f64 / self.blocks as f64
    }
}

/// A cache of so many blocks.
#[derive(Debug)]
pub struct Cache<P> {
    policy: P,
    blocks_max: usize,
    slots: HashMap<u64, u32, MixBuild>,
    keys: Vec<u64>,
    free: Vec<u32>,
}

impl<P: Policy> Cache<P> {
    /// An empty cache.
    pub fn new(policy: P, blocks_max: usize) -> Self {
        Self {
            policy,
            blocks_max,
            slots: HashMap::default(),
            keys: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Blocks in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether a block is in it.
    #[must_use]
    pub fn contains(&self, key: u64) -> bool {
        self.slots.contains_key(&key)
    }

    /// Uses a block, which comes in if it is not there. The block that leaves for that, if one has to:
    /// perhaps this very one.
    pub fn use_block(&mut self, key: u64, used: Use) -> Option<u64> {
        if let Some(&slot_index) = self.slots.get(&key) {
            self.policy.touch(slot_index, used);
            return None;
        }
        let slot_index = self.free.pop().unwrap_or_else(|| {
            self.keys.push(key);
            u32::try_from(self.keys.len() - 1).expect("blocks are bounded")
        });
        self.keys[slot_index as usize] = key;
        self.slots.insert(key, slot_index);
        self.policy.insert(slot_index, key, used);
        if self.slots.len() <= self.blocks_max {
            return None;
        }
        let victim = self.policy.victim().expect("all blocks may be victims");
        Some(self.let_go(victim))
    }

    /// Evicts the block in a slot.
    pub(crate) fn let_go(&mut self, slot_index: u32) -> u64 {
        self.policy.evict(slot_index);
        self.free.push(slot_index);
        let key = self.keys[slot_index as usize];
        self.slots.remove(&key);
        key
    }

    pub(crate) fn slot_of(&self, key: u64) -> Option<u32> {
        self.slots.get(&key).copied()
    }

    pub(crate) const fn blocks_max(&self) -> usize {
        self.blocks_max
    }

    pub(crate) const fn policy(&self) -> &P {
        &self.policy
    }

    pub(crate) const fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }
}

/// Several caches, each with its share of the keys and a policy of its own; or just one.
#[derive(Debug)]
pub struct Shards<P> {
    caches: Vec<Cache<P>>,
    tally: Tally,
}

impl<P: Policy> Shards<P> {
    /// `shards` caches of `blocks_max` blocks in all, with a policy from `policy_of` for so many blocks
    /// each.
    ///
    /// # Panics
    /// If there are no shards.
    pub fn new(shards: usize, blocks_max: usize, policy_of: impl Fn(usize) -> P) -> Self {
        assert!(shards > 0, "a block needs a shard");
        let share = |at: usize| blocks_max / shards + usize::from(at < blocks_max % shards);
        let caches = (0..shards).map(|at| Cache::new(policy_of(share(at)), share(at)));
        Self {
            caches: caches.collect(),
            tally: Tally::default(),
        }
    }

    fn shard_of(&self, key: u64) -> usize {
        let shards = self.caches.len() as u64;
        usize::try_from(mix(key) % shards).expect("one of them")
    }

    /// Whether a block is in the cache of its shard.
    #[must_use]
    pub fn contains(&self, key: u64) -> bool {
        self.caches[self.shard_of(key)].contains(key)
    }

    /// Blocks in all caches.
    #[must_use]
    pub fn len(&self) -> usize {
        self.caches.iter().map(Cache::len).sum()
    }

    /// Whether all caches are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.caches.iter().all(Cache::is_empty)
    }

    fn knows(&self, key: u64) -> bool {
        let cache = &self.caches[self.shard_of(key)];
        cache.contains(key) || cache.policy.remembers(key)
    }

    /// What was served.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    /// Serves a request.
    pub fn serve(&mut self, request: &[u64]) {
        let hits = request.iter().filter(|&&key| self.contains(key)).count();
        let leading = request.iter().take_while(|&&key| self.knows(key)).count();
        self.tally.count(request.len(), hits);
        let found = Found::of(leading, request.len());
        for (at, &key) in request.iter().enumerate().rev() {
            let is_last = at + 1 == request.len();
            let used = Use { is_last, found };
            let shard = self.shard_of(key);
            self.caches[shard].use_block(key, used);
        }
    }
}

/// Hits of one cache over a trace.
pub fn replay<P: Policy>(trace: &Trace, blocks_max: usize, policy: P) -> Tally {
    let mut one = Shards {
        caches: vec![Cache::new(policy, blocks_max)],
        tally: Tally::default(),
    };
    for request in trace.requests() {
        one.serve(request);
    }
    one.tally
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::{Lru, S3Fifo, Sieve};

    fn trace(requests: &[&[u64]]) -> Trace {
        let mut trace = Trace::default();
        for request in requests {
            trace.push(request.iter().copied());
        }
        trace
    }

    #[test]
    fn hits_are_what_was_there_before_the_request() {
        let trace = trace(&[&[1, 2], &[2, 2], &[3], &[1]]);
        assert_eq!(trace.distinct_blocks(), 3);
        let tally = replay(&trace, 2, Lru::default());
        assert_eq!((tally.blocks, tally.hits), (6, 2), "1 made room for 3");
        assert_eq!(replay(&trace, 3, Lru::default()).hits, 3);
        assert_eq!(replay(&trace, 0, Lru::default()).hits, 0);
        assert_eq!(Tally::default().ratio(), 0.0);
    }

    #[test]
    fn a_request_is_used_from_its_end() {
        let trace = trace(&[&[1, 2, 3], &[1], &[3]]);
        assert_eq!(replay(&trace, 2, Lru::default()).hits, 1, "3 left first");
    }

    #[test]
    fn what_is_new_passes_by_what_is_used_in_other_policies() {
        let (often, once): (&[u64], &[u64]) = (&[1, 2], &[10, 11, 12, 13, 14, 15, 16, 17]);
        let rounds: Vec<&[u64]> = core::iter::repeat_n(often, 6)
            .chain([once, often])
            .collect();
        let trace = trace(&rounds);
        let expected = 12;
        assert_eq!(replay(&trace, 5, S3Fifo::new(5)).hits, expected);
        assert_eq!(replay(&trace, 5, Sieve::default()).hits, expected);
        assert_eq!(replay(&trace, 5, Lru::default()).hits, 10);
    }

    #[test]
    fn shards_hold_as_much_as_one() {
        let shards = Shards::new(3, 10, |_| Lru::default());
        let most: Vec<usize> = shards.caches.iter().map(Cache::blocks_max).collect();
        assert_eq!(most, [4, 3, 3]);
    }
}
