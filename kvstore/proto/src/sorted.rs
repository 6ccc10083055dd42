//! A map in the order of its keys, for keys that are hashes: what a tree does, without its depth.
//!
//! ```text
//!  directory, by first bits       pages of up to 28 entries, in no order
//!    00 ------------------------> [ 00... | tags | entries ]
//!    01 ------------------------> [ 01... | tags | entries ]
//!    10 --+---------------------> [ 1.... | tags | entries ]
//!    11 --+
//! ```
//!
//! A directory says by the first bits of a key which page it is in, so that a key is found in one look at the
//! directory and one at a page, however many there are. A full page is split by one bit more; where the directory
//! has no such bit it is doubled, which copies its entries of four bytes, and nothing else ever moves: no operation
//! stops for long while the table grows. Two pages that are nearly empty become one again. This is extendible
//! hashing (Fagin and others, 1979) with the key for its own hash. Who wants the keys in order has each page's sorted.
//!
//! Whoever may choose keys can make many of them begin alike. What would make the directory far larger than its
//! pages goes to a tree instead: slower, and as large as what was put there.

mod page;

use core::hint::black_box;
use std::collections::BTreeMap;

use self::page::{PAGE_ENTRIES, Page, Pages};
use crate::key::Fingerprint;
use crate::message::directory::CopyPlace;
use crate::version::Version;

/// How many keys are looked up together: more than memory has requests under way at once.
pub const LANES: usize = 32;
/// Two pages with no more than this together become one.
const MERGE_ENTRIES_MAX: usize = PAGE_ENTRIES / 4;
/// How many directory entries there may be for each page. Where keys are evenly spread, a page that cannot be split
/// within this has more entries than chance gives.
const DIRECTORY_PER_PAGE_MAX: usize = 16;

/// A key whose first 64 bits are evenly spread, and which is ordered by them first.
pub trait Spread: Copy + Ord {
    /// Its first bits.
    fn head(self) -> u64;
    /// The least key with these first bits.
    fn least(head: u64) -> Self;
}

impl Spread for Fingerprint {
    fn head(self) -> u64 {
        self.high()
    }

    fn least(head: u64) -> Self {
        Self(u128::from(head) << 64)
    }
}

impl Spread for CopyPlace {
    fn head(self) -> u64 {
        self.key.high()
    }

    fn least(head: u64) -> Self {
        Self {
            key: Fingerprint::least(head),
            version: Version::default(),
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Sorted<K, V> {
    /// The page of each combination of `depth` first bits.
    directory: Vec<u32>,
    depth: u8,
    pages: Pages<K, V>,
    /// Pages that are not used.
    free: Vec<u32>,
    /// What cannot be in pages: see the [module](self).
    crowded: BTreeMap<K, V>,
    len: usize,
}

impl<K: Spread, V: Copy + Default> Default for Sorted<K, V> {
    fn default() -> Self {
        let mut pages = Pages::new();
        pages.push(Page::new(0));
        Self {
            directory: vec![0],
            depth: 0,
            pages,
            free: Vec::new(),
            crowded: BTreeMap::new(),
            len: 0,
        }
    }
}

impl<K: Spread, V: Copy + Default> Sorted<K, V> {
    /// How many entries there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place of a head in the directory.
    fn place(&self, head: u64) -> usize {
        // No bits at all cannot be shifted to.
        let bits = head
            .checked_shr(u64::BITS - u32::from(self.depth))
            .unwrap_or(0);
        usize::try_from(bits).expect("the directory is in memory")
    }

    fn page(&self, head: u64) -> &Page<K, V> {
        &self.pages[self.directory[self.place(head)]]
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: K) -> Option<V> {
        let page = self.page(key.head());
        if page.is_crowded {
            return self.crowded.get(&key).copied();
        }
        page.find(key).map(|at| page.entries[at].1)
    }

    /// The value of a key, to change it.
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let index = self.directory[self.place(key.head())];
        let page = &mut self.pages[index];
        if page.is_crowded {
            return self.crowded.get_mut(&key);
        }
        let at = page.find(key)?;
        Some(&mut page.entries[at].1)
    }

    /// The values of several keys, in their order.
    ///
    /// Memory is asked for what each of them needs before any of it is waited for, so that they cost hardly more
    /// than the slowest.
    ///
    /// # Panics
    /// If there are more than [`LANES`].
    pub fn get_each(&self, keys: &[K]) -> [Option<V>; LANES] {
        assert!(keys.len() <= LANES, "{} keys at a time", keys.len());
        let mut pages = [0; LANES];
        for (page, key) in pages.iter_mut().zip(keys) {
            *page = self.directory[self.place(key.head())];
        }
        let mut traces = [0; LANES];
        for ((trace, &page), &key) in traces.iter_mut().zip(&pages).zip(keys) {
            *trace = self.pages[page].trace(key);
        }
        let mut values = [None; LANES];
        for (lane, &key) in keys.iter().enumerate() {
            let page = &self.pages[pages[lane]];
            values[lane] = if page.is_crowded {
                self.crowded.get(&key).copied()
            } else {
                let at = page.find_at(traces[lane], key);
                at.map(|at| page.entries[at].1)
            };
        }
        values
    }

    /// Asks memory for the page of a key that is about to be used, without waiting for it: several tables that are
    /// touched one after the other answer at the same time.
    pub fn touch(&self, key: K) {
        black_box(self.page(key.head()).len());
    }

    /// Gives a key a value. The former one, if it had one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        loop {
            let index = self.directory[self.place(key.head())];
            let page = &mut self.pages[index];
            if page.is_crowded {
                let former = self.crowded.insert(key, value);
                self.len += usize::from(former.is_none());
                return former;
            }
            if let Some(at) = page.find(key) {
                return Some(core::mem::replace(&mut page.entries[at].1, value));
            }
            if page.len() < PAGE_ENTRIES {
                page.push(key, value);
                self.len += 1;
                return None;
            }
            self.split(key.head());
        }
    }

    /// Forgets a key. Its value, if it had one.
    pub fn remove(&mut self, key: K) -> Option<V> {
        let place = self.place(key.head());
        let page = &mut self.pages[self.directory[place]];
        let value = if page.is_crowded {
            let value = self.crowded.remove(&key)?;
            if self.crowded_at(place).next().is_none() {
                self.pages[self.directory[place]].is_crowded = false;
            }
            value
        } else {
            let at = page.find(key)?;
            page.remove(at)
        };
        self.len -= 1;
        self.merge(key.head());
        Some(value)
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = (K, V)> + '_ {
        self.after(None)
    }

    /// Those whose keys are greater than this one, in order.
    pub fn after(&self, after: Option<K>) -> impl Iterator<Item = (K, V)> + '_ {
        let from = after.map_or(0, |key| self.span(self.place(key.head())).start);
        let places = core::iter::successors(Some(from), |&place| {
            let next = self.span(place).end;
            (next < self.directory.len()).then_some(next)
        });
        let all = places.flat_map(|place| {
            let page = &self.pages[self.directory[place]];
            let of_tree = page.is_crowded.then(|| self.crowded_at(place));
            page.in_order().chain(of_tree.into_iter().flatten())
        });
        all.skip_while(move |(key, _)| after.is_some_and(|after| *key <= after))
    }

    /// The places in the directory that have the same page as this one.
    fn span(&self, place: usize) -> core::ops::Range<usize> {
        let page = &self.pages[self.directory[place]];
        let count = 1_usize << (self.depth - page.depth);
        let start = place & !(count - 1);
        start..start + count
    }

    /// The entries in the tree that belong to the page at this place.
    fn crowded_at(&self, place: usize) -> impl Iterator<Item = (K, V)> + '_ {
        let span = self.span(place);
        let head = |place: usize| {
            let bits = u64::try_from(place).expect("a place has at most 64 bits");
            bits.checked_shl(u64::BITS - u32::from(self.depth))
                .unwrap_or(0)
        };
        let (first, last) = (head(span.start), head(span.end).wrapping_sub(1));
        let rest = self.crowded.range(K::least(first)..);
        let own = rest.take_while(move |(key, _)| key.head() <= last);
        own.map(|(&key, &value)| (key, value))
    }

    /// The page of a head is full: it becomes two, or the tree takes its keys.
    fn split(&mut self, head: u64) {
        let index = self.directory[self.place(head)];
        if self.pages[index].depth == self.depth && !self.double() {
            let page = &mut self.pages[index];
            self.crowded.extend(page.entries().iter().copied());
            *page = Page::new(page.depth);
            page.is_crowded = true;
            return;
        }
        let span = self.span(self.place(head));
        let upper = self.pages[index].split();
        let upper = self.add(upper);
        self.directory[usize::midpoint(span.start, span.end)..span.end].fill(upper);
    }

    /// One more bit for the directory, if it may be as large as that.
    fn double(&mut self) -> bool {
        let used = self.pages.len - self.free.len();
        let is_sparse = self.directory.len() * 2 > DIRECTORY_PER_PAGE_MAX * used;
        if is_sparse || u32::from(self.depth) + 1 == u32::BITS {
            return false;
        }
        let twice = self.directory.iter().flat_map(|&index| [index, index]);
        self.directory = twice.collect();
        self.depth += 1;
        true
    }

    fn add(&mut self, page: Page<K, V>) -> u32 {
        if let Some(index) = self.free.pop() {
            self.pages[index] = page;
            return index;
        }
        let index = u32::try_from(self.pages.len).expect("the directory is bounded");
        self.pages.push(page);
        index
    }

    /// The page of a head has lost an entry: where it and its neighbour are nearly empty, one is enough.
    fn merge(&mut self, head: u64) {
        loop {
            let place = self.place(head);
            let depth = self.pages[self.directory[place]].depth;
            if depth == 0 {
                return;
            }
            let span = self.span(place);
            let neighbour = span.start ^ span.len();
            let lower = self.directory[span.start.min(neighbour)];
            let upper = self.directory[span.start.max(neighbour)];
            let (low, high) = (&self.pages[lower], &self.pages[upper]);
            let is_one_crowded = low.is_crowded || high.is_crowded;
            if low.depth != high.depth
                || is_one_crowded
                || low.len() + high.len() > MERGE_ENTRIES_MAX
            {
                return;
            }
            let emptied = core::mem::replace(&mut self.pages[upper], Page::new(0));
            let low = &mut self.pages[lower];
            low.append(&emptied);
            self.free.push(upper);
            let both = span.start.min(neighbour)..span.end.max(neighbour + span.len());
            self.directory[both].fill(lower);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Numbers = Sorted<Fingerprint, u32>;

    /// Keys that begin alike, and differ in what the directory cannot see.
    fn alike(number: u128) -> Fingerprint {
        Fingerprint((7 << 64) | number)
    }

    /// Keys that are evenly spread.
    fn spread(number: u64) -> Fingerprint {
        let high = u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Fingerprint((high << 64) | u128::from(number))
    }

    #[test]
    fn keys_that_begin_alike_cost_no_more_than_their_room() {
        let mut numbers = Numbers::default();
        for number in 0..10_000_u32 {
            assert_eq!(numbers.insert(alike(number.into()), number), None);
        }
        assert!(numbers.directory.len() <= DIRECTORY_PER_PAGE_MAX * numbers.pages.len);
        assert!(numbers.pages.len < 8, "{}", numbers.pages.len);
        assert_eq!(numbers.get(alike(777)), Some(777));
        let all = numbers.iter().map(|(_, number)| number);
        assert!(all.eq(0..10_000));
        for number in 0..10_000_u32 {
            assert_eq!(numbers.remove(alike(number.into())), Some(number));
        }
        assert!(numbers.is_empty() && numbers.crowded.is_empty());
        let last = u32::try_from(numbers.pages.len).expect("few");
        assert!((0..last).all(|page| !numbers.pages[page].is_crowded));
    }

    #[test]
    fn keys_that_are_spread_are_in_pages_and_pages_are_full_enough() {
        let mut numbers = Numbers::default();
        for number in 0..100_000 {
            numbers.insert(spread(number), 1);
        }
        assert!(numbers.crowded.is_empty());
        let most = 100_000 / (PAGE_ENTRIES / 2);
        assert!(numbers.pages.len <= most, "{}", numbers.pages.len);
        for number in 0..100_000 {
            assert_eq!(numbers.remove(spread(number)), Some(1));
        }
        let used = numbers.pages.len - numbers.free.len();
        assert_eq!((numbers.len(), used), (0, 1), "pages come back");
        for number in 0..100_000 {
            numbers.insert(spread(number), 2);
        }
        assert!(numbers.pages.len <= most, "and are used again");
    }
}
