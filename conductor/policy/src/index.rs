//! Which instance holds which block in which tier.
//!
//! An entry is 16 bytes: the hash, and up to four owners in lanes of 16 bits (the instance, and
//! one bit for each tier). A block with more owners, which is a block that very many prompts
//! share, moves its owners to a row of bit sets.

use hashbrown::HashTable;

use crate::ids::{BlockHash, INSTANCES_MAX, InstanceId, Tier};
use lunette_runtime_core::random::mix;

const LANES: usize = 4;
const LANE_BITS: usize = 16;
const TIER_BITS: u16 = 3;
const TIER_MASK: u16 = (1 << TIER_BITS) - 1;
/// Blocks of a prompt that are looked up together, so that the memory's answers overlap. It begins
/// with one and doubles: a prompt that is not held costs no more, a long match few waits.
const AHEAD_MAX: usize = 16;
/// The last lane of an entry whose owners are in a row. No owner looks like it: its tiers are none.
const ROW_MARK: u16 = u16::MAX << TIER_BITS;
const _: () = assert!(INSTANCES_MAX < (u16::MAX >> TIER_BITS) as usize);

/// The index over all instances.
#[derive(Debug)]
pub struct PrefixIndex {
    table: HashTable<Entry>,
    rows: Rows,
    instances: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: BlockHash,
    owners: [u16; LANES],
}

/// Rows of bit sets, one set for each tier.
#[derive(Debug)]
struct Rows {
    words: Vec<u64>,
    free: Vec<u32>,
    words_per_set: usize,
}

/// Leading blocks of a prompt that an instance holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// In whatever tier.
    pub blocks: u32,
    /// In accelerator or host memory, from the start without interruption.
    pub memory_blocks: u32,
}

impl PrefixIndex {
    /// An empty index over this many instances.
    ///
    /// # Panics
    /// If there are more than [`INSTANCES_MAX`].
    #[must_use]
    pub fn new(instances: usize) -> Self {
        assert!(instances <= INSTANCES_MAX, "{instances} are too many");
        Self {
            table: HashTable::new(),
            rows: Rows {
                words: Vec::new(),
                free: Vec::new(),
                words_per_set: instances.div_ceil(64),
            },
            instances,
        }
    }

    /// How many instances it can name.
    #[must_use]
    pub const fn instances(&self) -> usize {
        self.instances
    }

    /// Blocks that at least one instance holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no instance holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Memory that it has taken from the allocator, in bytes.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        self.table.allocation_size()
            + self.rows.words.capacity() * size_of::<u64>()
            + self.rows.free.capacity() * size_of::<u32>()
    }

    /// `instance` holds `hash` in `tier` from now on. Returns whether that is news.
    ///
    /// # Panics
    /// If the instance is beyond those of [`PrefixIndex::new`].
    pub fn store(&mut self, instance: InstanceId, tier: Tier, hash: BlockHash) -> bool {
        assert!(instance.index() < self.instances, "{instance:?} is unknown");
        let entry = self
            .table
            .entry(
                mix(hash),
                |entry| entry.hash == hash,
                |entry| mix(entry.hash),
            )
            .or_insert(Entry {
                hash,
                owners: [0; LANES],
            })
            .into_mut();
        entry.store(instance, tier, &mut self.rows)
    }

    /// `instance` no longer holds `hash` in `tier`. Returns whether it did.
    pub fn remove(&mut self, instance: InstanceId, tier: Tier, hash: BlockHash) -> bool {
        let found = self.table.find_entry(mix(hash), |entry| entry.hash == hash);
        let Ok(mut occupied) = found else {
            return false;
        };
        let held = occupied
            .get_mut()
            .remove(instance, tier.bit(), &mut self.rows);
        if occupied.get().owners == [0; LANES] {
            occupied.remove();
        }
        held
    }

    /// `instance` holds these blocks in `tier` from now on.
    ///
    /// # Panics
    /// If the instance is beyond those of [`PrefixIndex::new`].
    pub fn store_all(&mut self, instance: InstanceId, tier: Tier, hashes: &[BlockHash]) {
        for &hash in hashes {
            self.store(instance, tier, hash);
        }
    }

    /// `instance` no longer holds these blocks in `tier`.
    pub fn remove_all(&mut self, instance: InstanceId, tier: Tier, hashes: &[BlockHash]) {
        for &hash in hashes {
            self.remove(instance, tier, hash);
        }
    }

    /// `instance` no longer holds anything. Walks the whole index.
    pub fn clear(&mut self, instance: InstanceId) {
        let rows = &mut self.rows;
        self.table.retain(|entry| {
            entry.remove(instance, TIER_MASK, rows);
            entry.owners != [0; LANES]
        });
    }

    /// Tells for each instance how many leading blocks of `hashes` it holds. `matches` is
    /// overwritten; it is an argument so that its memory is used again.
    pub fn find(&self, hashes: &[BlockHash], matches: &mut Vec<Match>) {
        matches.clear();
        matches.resize(self.instances, Match::default());
        let mut left = hashes;
        let mut depth = 0;
        let mut ahead = 1;
        while !left.is_empty() {
            let (next, rest) = left.split_at(ahead.min(left.len()));
            let mut entries = [None; AHEAD_MAX];
            for (entry, &hash) in entries.iter_mut().zip(next) {
                *entry = self.table.find(mix(hash), |entry| entry.hash == hash);
            }
            for entry in &entries[..next.len()] {
                let Some(entry) = entry else { return };
                if !self.go_on(entry, depth, matches) {
                    return;
                }
                depth += 1;
            }
            left = rest;
            ahead = AHEAD_MAX.min(2 * ahead);
        }
    }

    /// Counts a block at `depth` where all before it are held. Returns whether there is such a place.
    fn go_on(&self, entry: &Entry, depth: u32, matches: &mut [Match]) -> bool {
        let mut is_any_left = false;
        entry.for_each_owner(&self.rows, |instance, tiers| {
            let matched = &mut matches[instance];
            if matched.blocks != depth {
                return;
            }
            matched.blocks += 1;
            is_any_left = true;
            let is_in_memory = tiers & (Tier::Vram.bit() | Tier::Dram.bit()) != 0;
            if matched.memory_blocks == depth && is_in_memory {
                matched.memory_blocks += 1;
            }
        });
        is_any_left
    }

    /// Blocks that `instance` holds in `tier`. Walks the whole index.
    #[must_use]
    pub fn count(&self, instance: InstanceId, tier: Tier) -> usize {
        let is_held = |entry: &&Entry| entry.is_held(instance, tier, &self.rows);
        self.table.iter().filter(is_held).count()
    }

    /// Whether `instance` holds `hash` in `tier`.
    #[must_use]
    pub fn holds(&self, instance: InstanceId, tier: Tier, hash: BlockHash) -> bool {
        let entry = self.table.find(mix(hash), |entry| entry.hash == hash);
        entry.is_some_and(|entry| entry.is_held(instance, tier, &self.rows))
    }
}

impl Entry {
    fn row(&self) -> Option<usize> {
        let is_row = self.owners[LANES - 1] == ROW_MARK;
        is_row.then(|| usize::from(self.owners[0]) | usize::from(self.owners[1]) << LANE_BITS)
    }

    fn store(&mut self, instance: InstanceId, tier: Tier, rows: &mut Rows) -> bool {
        if let Some(row) = self.row() {
            return rows.set(row, instance.index(), tier.bit());
        }
        if let Some(lane) = self.lane_of(instance) {
            let was_held = *lane & tier.bit() != 0;
            *lane |= tier.bit();
            return !was_held;
        }
        if let Some(lane) = self.owners.iter_mut().find(|lane| **lane == 0) {
            *lane = instance.0 << TIER_BITS | tier.bit();
            return true;
        }
        let row = rows.take();
        for lane in self.owners {
            rows.set(row, usize::from(lane >> TIER_BITS), lane & TIER_MASK);
        }
        rows.set(row, instance.index(), tier.bit());
        let low = u16::try_from(row & 0xffff).expect("it is masked");
        let high = u16::try_from(row >> LANE_BITS).expect("rows are fewer than 2^32");
        self.owners = [low, high, 0, ROW_MARK];
        true
    }

    /// Takes `tiers` from the instance. Returns whether it had one of them.
    fn remove(&mut self, instance: InstanceId, tiers: u16, rows: &mut Rows) -> bool {
        if let Some(row) = self.row() {
            let was_held = rows.unset(row, instance.index(), tiers);
            if was_held && rows.is_empty(row) {
                rows.give_back(row);
                self.owners = [0; LANES];
            }
            return was_held;
        }
        let Some(lane) = self.lane_of(instance) else {
            return false;
        };
        let was_held = *lane & tiers != 0;
        *lane &= !tiers;
        if *lane & TIER_MASK == 0 {
            *lane = 0;
        }
        was_held
    }

    fn lane_of(&mut self, instance: InstanceId) -> Option<&mut u16> {
        self.owners
            .iter_mut()
            .find(|lane| **lane & TIER_MASK != 0 && **lane >> TIER_BITS == instance.0)
    }

    fn is_held(&self, instance: InstanceId, tier: Tier, rows: &Rows) -> bool {
        let mut is_held = false;
        self.for_each_owner(rows, |owner, tiers| {
            is_held |= owner == instance.index() && tiers & tier.bit() != 0;
        });
        is_held
    }

    fn for_each_owner(&self, rows: &Rows, mut visit: impl FnMut(usize, u16)) {
        if let Some(row) = self.row() {
            rows.for_each(row, visit);
            return;
        }
        for lane in self.owners {
            if lane != 0 {
                visit(usize::from(lane >> TIER_BITS), lane & TIER_MASK);
            }
        }
    }
}

impl Rows {
    const fn words_per_row(&self) -> usize {
        self.words_per_set * Tier::ALL.len()
    }

    fn take(&mut self) -> usize {
        if let Some(row) = self.free.pop() {
            return usize::try_from(row).expect("a row number fits");
        }
        let row = self.words.len() / self.words_per_row();
        let len = self.words.len() + self.words_per_row();
        self.words.resize(len, 0);
        row
    }

    fn give_back(&mut self, row: usize) {
        debug_assert!(self.is_empty(row), "an owner is left");
        let row = u32::try_from(row).expect("rows are fewer than 2^32");
        self.free.push(row);
    }

    fn set(&mut self, row: usize, instance: usize, tiers: u16) -> bool {
        let mut is_news = false;
        for word in self.words_of(row, instance, tiers) {
            let bit = 1 << (instance % 64);
            is_news |= self.words[word] & bit == 0;
            self.words[word] |= bit;
        }
        is_news
    }

    fn unset(&mut self, row: usize, instance: usize, tiers: u16) -> bool {
        let mut was_held = false;
        for word in self.words_of(row, instance, tiers) {
            let bit = 1 << (instance % 64);
            was_held |= self.words[word] & bit != 0;
            self.words[word] &= !bit;
        }
        was_held
    }

    fn words_of(
        &self,
        row: usize,
        instance: usize,
        tiers: u16,
    ) -> impl Iterator<Item = usize> + use<> {
        let first = row * self.words_per_row() + instance / 64;
        let words_per_set = self.words_per_set;
        let sets = Tier::ALL.into_iter().zip(0..);
        sets.filter(move |(tier, _)| tiers & tier.bit() != 0)
            .map(move |(_, set)| first + set * words_per_set)
    }

    fn is_empty(&self, row: usize) -> bool {
        let first = row * self.words_per_row();
        let words = &self.words[first..first + self.words_per_row()];
        words.iter().all(|&word| word == 0)
    }

    fn for_each(&self, row: usize, mut visit: impl FnMut(usize, u16)) {
        let first = row * self.words_per_row();
        for word in 0..self.words_per_set {
            let [vram, dram, ssd] =
                [0, 1, 2].map(|set| self.words[first + set * self.words_per_set + word]);
            let mut left = vram | dram | ssd;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let held = |set: u64, tier: Tier| if set >> bit & 1 == 1 { tier.bit() } else { 0 };
                let tiers = held(vram, Tier::Vram) | held(dram, Tier::Dram) | held(ssd, Tier::Ssd);
                let bit = usize::try_from(bit).expect("it is below 64");
                visit(word * 64 + bit, tiers);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks_of(index: &PrefixIndex, hashes: &[BlockHash]) -> Vec<u32> {
        let mut matches = Vec::new();
        index.find(hashes, &mut matches);
        matches.iter().map(|matched| matched.blocks).collect()
    }

    #[test]
    fn a_match_ends_at_the_first_block_that_is_missing() {
        let mut index = PrefixIndex::new(3);
        for hash in [1, 2, 4] {
            assert!(index.store(InstanceId(0), Tier::Dram, hash));
        }
        assert!(index.store(InstanceId(2), Tier::Dram, 2));
        assert_eq!(blocks_of(&index, &[1, 2, 3, 4]), [2, 0, 0]);
        assert_eq!(blocks_of(&index, &[2, 4]), [2, 0, 1]);
    }

    #[test]
    fn memory_ends_where_a_block_is_on_a_drive_only() {
        let mut index = PrefixIndex::new(1);
        let tiers = [Tier::Vram, Tier::Ssd, Tier::Dram];
        for (tier, hash) in tiers.into_iter().zip(1..) {
            index.store(InstanceId(0), tier, hash);
        }
        let mut matches = Vec::new();
        index.find(&[1, 2, 3], &mut matches);
        let expected = Match {
            blocks: 3,
            memory_blocks: 1,
        };
        assert_eq!(matches, [expected]);
    }

    #[test]
    fn a_block_with_many_owners_goes_to_a_row_and_comes_back() {
        let mut index = PrefixIndex::new(130);
        for round in 0..2 {
            for instance in 0..130 {
                assert!(index.store(InstanceId(instance), Tier::Dram, 7), "{round}");
                assert!(!index.store(InstanceId(instance), Tier::Dram, 7));
            }
            assert_eq!(blocks_of(&index, &[7]), [1; 130]);
            for instance in 0..130 {
                assert!(!index.remove(InstanceId(instance), Tier::Ssd, 7));
                assert!(index.remove(InstanceId(instance), Tier::Dram, 7));
            }
            assert!(index.is_empty());
        }
        assert_eq!(index.rows.words.len(), 9, "the row was used again");
    }

    #[test]
    fn clearing_takes_one_instance_from_every_block() {
        let mut index = PrefixIndex::new(6);
        for instance in 0..6 {
            for hash in 0..10 {
                index.store(InstanceId(instance), Tier::Dram, hash);
            }
        }
        index.store(InstanceId(3), Tier::Ssd, 99);
        index.clear(InstanceId(3));
        assert_eq!(blocks_of(&index, &[0, 1]), [2, 2, 2, 0, 2, 2]);
        assert_eq!(index.len(), 10);
    }

    #[test]
    fn an_entry_is_16_bytes() {
        assert_eq!(size_of::<Entry>(), 16);
    }
}
