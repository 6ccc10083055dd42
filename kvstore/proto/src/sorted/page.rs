//! Pages: a few entries, and where they are.

use core::ops::{Index, IndexMut};

use super::Spread;

/// Entries of one page.
pub(super) const PAGE_ENTRIES: usize = 28;
/// Pages that lie behind one another in memory. What grows is the list of such groups, so that pages stay where they
/// are.
const GROUP_PAGES: usize = 64;

/// A page is looked at in two lines of the cache: its first one, and that of the entry which the tags there tell of.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Page<K, V> {
    /// The 16 bits of each key that follow those which all keys of the page share.
    tags: [u16; PAGE_ENTRIES],
    /// How many first bits all its keys share.
    pub(super) depth: u8,
    len: u8,
    /// Its keys are in the tree.
    pub(super) is_crowded: bool,
    pub(super) entries: [(K, V); PAGE_ENTRIES],
}

impl<K: Spread, V: Copy + Default> Page<K, V> {
    pub(super) fn new(depth: u8) -> Self {
        Self {
            tags: [0; PAGE_ENTRIES],
            depth,
            len: 0,
            is_crowded: false,
            entries: [(K::least(0), V::default()); PAGE_ENTRIES],
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    fn set_len(&mut self, len: usize) {
        self.len = u8::try_from(len).expect("a page has room for it");
    }

    fn tag(&self, key: K) -> u16 {
        let rest = key.head().checked_shl(self.depth.into()).unwrap_or(0);
        let [first, second, ..] = rest.to_be_bytes();
        u16::from_be_bytes([first, second])
    }

    /// One more than where an entry with the tag of a key is, 0 if there is none, and anything if there are several.
    pub(super) fn trace(&self, key: K) -> usize {
        let tag = self.tag(key);
        // Added up rather than searched: no comparison depends on another, and their number is always the same.
        let places = self.tags.iter().zip(1_u16..);
        let of_tag = places.map(|(&other, place)| if other == tag { place } else { 0 });
        of_tag.sum::<u16>().into()
    }

    pub(super) fn find(&self, key: K) -> Option<usize> {
        self.find_at(self.trace(key), key)
    }

    pub(super) fn find_at(&self, trace: usize, key: K) -> Option<usize> {
        let at = trace.checked_sub(1)?;
        let entries = self.entries();
        if entries.get(at).is_some_and(|(other, _)| *other == key) {
            return Some(at);
        }
        entries.iter().position(|(other, _)| *other == key)
    }

    /// Adds an entry. There is room.
    pub(super) fn push(&mut self, key: K, value: V) {
        let at = self.len();
        self.tags[at] = self.tag(key);
        self.entries[at] = (key, value);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, at: usize) -> V {
        let (_, value) = self.entries[at];
        let last = self.len() - 1;
        self.tags[at] = self.tags[last];
        self.entries[at] = self.entries[last];
        self.tags[last] = 0;
        self.len -= 1;
        value
    }

    /// Takes over the entries of its neighbour, and shares one bit less.
    pub(super) fn append(&mut self, other: &Self) {
        self.depth -= 1;
        let (start, end) = (self.len(), self.len() + other.len());
        self.entries[start..end].copy_from_slice(other.entries());
        self.set_len(end);
        self.tag_all();
    }

    /// The entries with the next bit set, as a page of their own; those without stay.
    pub(super) fn split(&mut self) -> Self {
        let depth = self.depth + 1;
        let bit = 1_u64 << (u64::BITS - u32::from(depth));
        let (mut lower, mut upper) = (Self::new(depth), Self::new(depth));
        for &(key, value) in self.entries() {
            let is_upper = key.head() & bit != 0;
            if is_upper { &mut upper } else { &mut lower }.push(key, value);
        }
        *self = lower;
        upper
    }

    fn tag_all(&mut self) {
        for at in 0..self.len() {
            self.tags[at] = self.tag(self.entries[at].0);
        }
    }

    pub(super) fn entries(&self) -> &[(K, V)] {
        &self.entries[..self.len()]
    }

    /// The entries in the order of their keys.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (K, V)> + use<K, V> {
        let mut entries = self.entries;
        entries[..self.len()].sort_unstable_by_key(|&(key, _)| key);
        entries.into_iter().take(self.len())
    }
}

/// Pages by their index.
#[derive(Clone, Debug)]
pub(super) struct Pages<K, V> {
    groups: Vec<Vec<Page<K, V>>>,
    pub(super) len: usize,
}

impl<K: Spread, V: Copy + Default> Pages<K, V> {
    pub(super) const fn new() -> Self {
        Self {
            groups: Vec::new(),
            len: 0,
        }
    }

    pub(super) fn push(&mut self, page: Page<K, V>) {
        if self.len.is_multiple_of(GROUP_PAGES) {
            self.groups.push(Vec::new());
        }
        let last = self.groups.last_mut().expect("there is one");
        last.push(page);
        self.len += 1;
    }
}

impl<K, V> Index<u32> for Pages<K, V> {
    type Output = Page<K, V>;

    fn index(&self, index: u32) -> &Page<K, V> {
        let index = index as usize;
        &self.groups[index / GROUP_PAGES][index % GROUP_PAGES]
    }
}

impl<K, V> IndexMut<u32> for Pages<K, V> {
    fn index_mut(&mut self, index: u32) -> &mut Page<K, V> {
        let index = index as usize;
        &mut self.groups[index / GROUP_PAGES][index % GROUP_PAGES]
    }
}
