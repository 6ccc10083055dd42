//! The blocks that an instance keeps in host memory, and those that it has demoted to a drive.
//!
//! Both tiers evict what was used least recently. A prompt's blocks are touched from its end to its
//! start, so a prefix always outlives what builds on it.

use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use lunette_conductor_policy::ids::{BlockHash, Tier};
use lunette_conductor_policy::memory::Ages;
use lunette_runtime_core::random::mix;

/// Hashes of blocks are hashes already; mixing spreads small ids of traces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MixHasher(u64);

impl Hasher for MixHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = mix(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(value);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    hash: BlockHash,
    newer: u32,
    older: u32,
    used_s: f64,
}

/// One tier: a list from the newest block to the oldest, and where each block is in it.
#[derive(Debug)]
pub(crate) struct Lru {
    places: HashMap<BlockHash, u32, BuildHasherDefault<MixHasher>>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    blocks_max: usize,
}

/// A block that made room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Evicted {
    pub(crate) hash: BlockHash,
    pub(crate) used_s: f64,
}

impl Lru {
    pub(crate) fn new(blocks_max: usize) -> Self {
        Self {
            places: HashMap::default(),
            nodes: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            blocks_max,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn contains(&self, hash: BlockHash) -> bool {
        self.places.contains_key(&hash)
    }

    /// When a block was used last.
    pub(crate) fn used_s(&self, hash: BlockHash) -> Option<f64> {
        let at = self.places.get(&hash)?;
        Some(self.nodes[place(*at)].used_s)
    }

    /// Makes a block that is there the newest one.
    pub(crate) fn touch(&mut self, hash: BlockHash, now_s: f64) -> bool {
        let Some(&at) = self.places.get(&hash) else {
            return false;
        };
        self.unlink(at);
        self.link(at, now_s);
        true
    }

    /// Inserts a block that is not there. What makes room for it is returned; that is the block
    /// itself where nothing may be kept.
    pub(crate) fn insert(&mut self, hash: BlockHash, now_s: f64) -> Option<Evicted> {
        if self.blocks_max == 0 {
            return Some(Evicted {
                hash,
                used_s: now_s,
            });
        }
        let evicted = (self.len() == self.blocks_max).then(|| self.evict());
        let node = Node {
            hash,
            newer: NONE,
            older: NONE,
            used_s: now_s,
        };
        let at = if let Some(at) = self.free.pop() {
            self.nodes[place(at)] = node;
            at
        } else {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("blocks are fewer than 2^32")
        };
        let before = self.places.insert(hash, at);
        assert!(before.is_none(), "a block is inserted once");
        self.link(at, now_s);
        evicted
    }

    pub(crate) fn remove(&mut self, hash: BlockHash) -> bool {
        let Some(at) = self.places.remove(&hash) else {
            return false;
        };
        self.unlink(at);
        self.free.push(at);
        true
    }

    fn evict(&mut self) -> Evicted {
        let Node { hash, used_s, .. } = self.nodes[place(self.oldest)];
        self.remove(hash);
        Evicted { hash, used_s }
    }

    fn link(&mut self, at: u32, now_s: f64) {
        let older = self.newest;
        let node = &mut self.nodes[place(at)];
        node.newer = NONE;
        node.older = older;
        node.used_s = now_s;
        if older == NONE {
            self.oldest = at;
        } else {
            self.nodes[place(older)].newer = at;
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Node { newer, older, .. } = self.nodes[place(at)];
        if newer == NONE {
            self.newest = older;
        } else {
            self.nodes[place(newer)].older = older;
        }
        if older == NONE {
            self.oldest = newer;
        } else {
            self.nodes[place(older)].newer = newer;
        }
    }
}

fn place(at: u32) -> usize {
    usize::try_from(at).expect("a place fits")
}

/// Both tiers of an instance.
#[derive(Debug)]
pub(crate) struct Cache {
    dram: Lru,
    ssd: Lru,
    ages: Ages,
}

/// What changed in a cache, for the index.
pub(crate) type Changes = Vec<(Tier, BlockHash, bool)>;

impl Cache {
    pub(crate) fn new(dram_blocks_max: usize, ssd_blocks_max: usize) -> Self {
        Self {
            dram: Lru::new(dram_blocks_max),
            ssd: Lru::new(ssd_blocks_max),
            ages: Ages::default(),
        }
    }

    /// Leading blocks that are kept, and how many of them lie in host memory from the start.
    pub(crate) fn leading(&self, hashes: &[BlockHash]) -> (u32, u32) {
        let mut blocks = 0;
        let mut memory_blocks = 0;
        for &hash in hashes {
            let is_in_memory = self.dram.contains(hash);
            if !is_in_memory && !self.ssd.contains(hash) {
                break;
            }
            if is_in_memory && memory_blocks == blocks {
                memory_blocks += 1;
            }
            blocks += 1;
        }
        (blocks, memory_blocks)
    }

    /// The prompt's blocks are in host memory now: computed, fetched, or loaded from the drive.
    pub(crate) fn keep(&mut self, hashes: &[BlockHash], now_s: f64, changes: &mut Changes) {
        for &hash in hashes.iter().rev() {
            if self.dram.touch(hash, now_s) {
                continue;
            }
            if self.ssd.remove(hash) {
                changes.push((Tier::Ssd, hash, false));
            }
            changes.push((Tier::Dram, hash, true));
            if let Some(evicted) = self.dram.insert(hash, now_s) {
                self.demote(evicted, now_s, changes);
            }
        }
    }

    fn demote(&mut self, evicted: Evicted, now_s: f64, changes: &mut Changes) {
        changes.push((Tier::Dram, evicted.hash, false));
        self.ages.evicted(now_s - evicted.used_s);
        let gone = self.ssd.insert(evicted.hash, now_s);
        if gone.map(|gone| gone.hash) != Some(evicted.hash) {
            changes.push((Tier::Ssd, evicted.hash, true));
            changes.extend(gone.map(|gone| (Tier::Ssd, gone.hash, false)));
        }
    }

    /// Blocks are being used again, here or where they are fetched to.
    pub(crate) fn use_again(&mut self, hashes: &[BlockHash], now_s: f64) {
        let last_s = hashes.last().and_then(|&last| self.dram.used_s(last));
        if let Some(used_s) = last_s {
            let blocks = u32::try_from(hashes.len()).expect("a prompt has fewer blocks");
            self.ages.used_again(now_s - used_s, blocks);
        }
    }

    /// Drops blocks that have gone elsewhere.
    pub(crate) fn forget(&mut self, hashes: &[BlockHash], changes: &mut Changes) {
        for &hash in hashes {
            if self.dram.remove(hash) {
                changes.push((Tier::Dram, hash, false));
            }
            if self.ssd.remove(hash) {
                changes.push((Tier::Ssd, hash, false));
            }
        }
    }

    /// Ages of its blocks in memory.
    pub(crate) const fn ages(&self) -> Ages {
        self.ages
    }

    /// Blocks kept, in memory and on the drive.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.dram.len(), self.ssd.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_outlives_what_builds_on_it() {
        let mut cache = Cache::new(3, 0);
        let mut changes = Changes::new();
        cache.keep(&[1, 2, 3], 0.0, &mut changes);
        assert_eq!(cache.leading(&[1, 2, 3]), (3, 3));
        changes.clear();
        cache.keep(&[9], 1.0, &mut changes);
        assert_eq!(changes, [(Tier::Dram, 9, true), (Tier::Dram, 3, false)]);
        assert_eq!(cache.leading(&[1, 2, 3]), (2, 2));
    }

    #[test]
    fn what_memory_evicts_goes_to_the_drive_and_comes_back() {
        let mut cache = Cache::new(1, 1);
        let mut changes = Changes::new();
        cache.keep(&[1], 0.0, &mut changes);
        cache.keep(&[2], 0.0, &mut changes);
        assert_eq!(cache.leading(&[1]), (1, 0));
        changes.clear();
        cache.keep(&[1], 0.0, &mut changes);
        let expected = [
            (Tier::Ssd, 1, false),
            (Tier::Dram, 1, true),
            (Tier::Dram, 2, false),
            (Tier::Ssd, 2, true),
        ];
        assert_eq!(changes, expected);
        assert_eq!(cache.len(), (1, 1));
    }

    #[test]
    fn what_is_forgotten_is_in_no_tier() {
        let mut cache = Cache::new(1, 1);
        let mut changes = Changes::new();
        cache.keep(&[1], 0.0, &mut changes);
        cache.keep(&[2], 5.0, &mut changes);
        cache.use_again(&[2], 5.5);
        assert!(
            !cache.ages().is_tight(),
            "evicted after 5 s, used again after .5 s"
        );
        cache.use_again(&[1], 6.0);
        cache.use_again(&[2; 5_000], 205.0);
        assert!(cache.ages().is_tight());
        changes.clear();
        cache.forget(&[1, 2, 3], &mut changes);
        assert_eq!(changes, [(Tier::Ssd, 1, false), (Tier::Dram, 2, false)]);
        assert_eq!(cache.len(), (0, 0));
    }

    #[test]
    fn a_cache_without_room_keeps_nothing() {
        let mut cache = Cache::new(0, 0);
        let mut changes = Changes::new();
        cache.keep(&[1, 2], 0.0, &mut changes);
        assert_eq!(cache.leading(&[1, 2]), (0, 0));
        assert_eq!(cache.len(), (0, 0));
    }
}
