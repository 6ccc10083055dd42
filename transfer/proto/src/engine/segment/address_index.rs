//! Which segment holds an address, at the cost of one look into memory, however many there are.
//!
//! A segment of at most `2^k` bytes, and more than half of that, is of class `k` and touches at most two of the
//! blocks of `2^k` bytes that begin at multiples of that. Each of those has an entry in one flat table, under
//! its number and class; since segments of one class are disjoint, and longer than half a block, a block has at
//! most three. To find an address is to look for its block in each class that is in use, of which buffers of
//! one kind have one.
//!
//! An ordered tree finds the same by a chain of looks, each of which waits for the one before. With many
//! segments each of them is out of the cache, and they cannot overlap.

use super::SegmentId;

/// Entries of the smallest table.
const CAPACITY_MIN: usize = 16;

/// A segment in one of its blocks.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The block's number and class; `EMPTY` for none.
    key: u64,
    start: u64,
    len_bytes: u64,
    id: SegmentId,
}

/// No block has this key: it would be that of the last address, where no range ends.
const EMPTY: u64 = u64::MAX;

const NOTHING: Entry = Entry {
    key: EMPTY,
    start: 0,
    len_bytes: 0,
    id: SegmentId::NONE,
};

/// Disjoint ranges of addresses, found by the addresses in them.
#[derive(Debug, Default)]
pub(super) struct AddressIndex {
    /// Open addressing: an entry lies where its key says, or behind, with no gap in between. At most half full.
    table: Vec<Entry>,
    used: usize,
    /// How many ranges each class has.
    classes: Vec<u32>,
    /// The classes that have any, a bit each.
    in_use: u64,
}

/// The class of a range: the exponent of the smallest power of two that is no shorter.
fn class(len_bytes: u64) -> u32 {
    assert!(len_bytes > 0, "a range has bytes");
    // More than half of all addresses are one block.
    (u64::BITS - (len_bytes - 1).leading_zeros()).min(u64::BITS - 1)
}

/// What the block of an address is looked for under. Blocks of two low classes may share a key: whoever finds
/// an entry looks at its range.
const fn key(address: u64, class: u32) -> u64 {
    (address >> class) ^ (class as u64) << (u64::BITS - CLASS_BITS)
}

/// Bits that tell classes apart.
const CLASS_BITS: u32 = 6;

impl AddressIndex {
    /// Takes in a range, which is disjoint from all others.
    pub(super) fn insert(&mut self, start: u64, len_bytes: u64, id: SegmentId) {
        let class = class(len_bytes);
        for block in blocks(start, len_bytes, class) {
            self.make_room();
            let entry = Entry {
                key: key(block << class, class),
                start,
                len_bytes,
                id,
            };
            let mut at = self.home(entry.key);
            while self.table[at].key != EMPTY {
                at = self.next(at);
            }
            self.table[at] = entry;
            self.used += 1;
        }
        self.classes.resize(u64::BITS as usize, 0);
        self.classes[class as usize] += 1;
        self.in_use |= 1 << class;
    }

    /// Takes a range out.
    ///
    /// # Panics
    /// If it is not there.
    pub(super) fn remove(&mut self, start: u64, len_bytes: u64) {
        let class = class(len_bytes);
        for block in blocks(start, len_bytes, class) {
            let key = key(block << class, class);
            let mut at = self.home(key);
            while self.table[at].key != key || self.table[at].start != start {
                assert!(self.table[at].key != EMPTY, "what is removed is there");
                at = self.next(at);
            }
            self.close_gap(at);
            self.used -= 1;
        }
        let left = &mut self.classes[class as usize];
        *left -= 1;
        if *left == 0 {
            self.in_use &= !(1 << class);
        }
    }

    /// The range that holds an address: where it begins, its length, and whose it is.
    pub(super) fn find(&self, address: u64) -> Option<(u64, u64, SegmentId)> {
        let mut classes = self.in_use;
        while classes > 0 {
            let class = classes.trailing_zeros();
            classes &= classes - 1;
            let key = key(address, class);
            let mut at = self.home(key);
            loop {
                let entry = &self.table[at];
                if entry.key == key && address.wrapping_sub(entry.start) < entry.len_bytes {
                    return Some((entry.start, entry.len_bytes, entry.id));
                }
                if entry.key == EMPTY {
                    break;
                }
                at = self.next(at);
            }
        }
        None
    }

    /// Where an entry of that key lies, unless others lie there.
    fn home(&self, key: u64) -> usize {
        // Fibonacci hashing: the high bits of the product depend on all bits of the key.
        let spread = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let bits = self.table.len().trailing_zeros();
        usize::try_from(spread >> (u64::BITS - bits)).expect("less than the table's length")
    }

    const fn next(&self, at: usize) -> usize {
        (at + 1) & (self.table.len() - 1)
    }

    /// Moves up what lies behind a place that becomes free, so that nothing is looked for in vain.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.table.len() - 1;
        let mut at = self.next(gap);
        while self.table[at].key != EMPTY {
            let home = self.home(self.table[at].key);
            // It may move if its home is not behind the gap, on the way round.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.table[gap] = self.table[at];
                gap = at;
            }
            at = self.next(at);
        }
        self.table[gap] = NOTHING;
    }

    fn make_room(&mut self) {
        if (self.used + 1) * 2 <= self.table.len() {
            return;
        }
        let capacity = (self.table.len() * 2).max(CAPACITY_MIN);
        let old = std::mem::replace(&mut self.table, vec![NOTHING; capacity]);
        for entry in old.into_iter().filter(|entry| entry.key != EMPTY) {
            let mut at = self.home(entry.key);
            while self.table[at].key != EMPTY {
                at = self.next(at);
            }
            self.table[at] = entry;
        }
    }
}

/// The blocks of its class that a range touches: one or two.
fn blocks(start: u64, len_bytes: u64, class: u32) -> impl Iterator<Item = u64> {
    let last = start + (len_bytes - 1);
    start >> class..=last >> class
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lunette_runtime_core::random::SplitMix64;

    use super::*;

    fn id(number: u64) -> SegmentId {
        SegmentId::from_wire(number)
    }

    #[test]
    fn ranges_of_any_length_anywhere_are_found_by_their_addresses_alone() {
        let ranges = [
            (0, 1),
            (1, 1),
            (2, 5),
            (4096, 4096),
            (8192, 4097),
            (1 << 20, (1 << 20) + 1),
            (1 << 40, 1 << 40),
            (1 << 62, 1 << 62),
            ((1 << 63) + 5, (1 << 63) - 6),
        ];
        let mut index = AddressIndex::default();
        assert_eq!(index.find(0), None, "of nothing");
        for (number, &(start, len)) in (1..).zip(&ranges) {
            index.insert(start, len, id(number));
        }
        for (number, &(start, len)) in (1..).zip(&ranges) {
            let found = Some((start, len, id(number)));
            for address in [start, start + len / 2, start + (len - 1)] {
                assert_eq!(index.find(address), found, "{address:#x}");
            }
        }
        for address in [7, 4095, 12_289, (1 << 20) - 1, (1 << 63) + 4, u64::MAX] {
            assert_eq!(index.find(address), None, "{address:#x}");
        }
        for &(start, len) in &ranges {
            index.remove(start, len);
            assert_eq!(index.find(start), None);
        }
        assert_eq!((index.used, index.in_use), (0, 0));
    }

    #[test]
    fn many_come_and_go_as_in_a_tree() {
        let mut random = SplitMix64::new(7);
        let mut index = AddressIndex::default();
        let mut tree: BTreeMap<u64, (u64, SegmentId)> = BTreeMap::new();
        for step in 0..20_000 {
            let start = random.next() % (1 << 24);
            let len = 1 + random.next() % (1 << (random.next() % 16));
            let before = tree.range(..start + len).next_back();
            let overlaps = before.is_some_and(|(&first, &(len, _))| first + len > start);
            if !overlaps && !random.next().is_multiple_of(3) {
                index.insert(start, len, id(step));
                tree.insert(start, (len, id(step)));
            } else if let Some((&first, &(len, _))) = before {
                index.remove(first, len);
                tree.remove(&first);
            }
            let address = random.next() % (1 << 24);
            let expected = tree.range(..=address).next_back();
            let expected = expected
                .filter(|&(&first, &(len, _))| address - first < len)
                .map(|(&first, &(len, id))| (first, len, id));
            assert_eq!(index.find(address), expected, "step {step}");
        }
        assert!(index.used >= tree.len() && index.used <= 2 * tree.len());
        assert!(index.table.len() >= 2 * index.used);
    }
}
