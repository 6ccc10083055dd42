//! Where this core's copies lie, by their keys: words that threads and other processes read, and then the memory
//! itself, so that their gets need no core.
//!
//! ```text
//!   0           how many entries the memory has
//!   8 ..        records, 8 words for each entry: a number, the key, where key and value lie, the version
//!   then        keys, in levels: a part of each key and the entry that it may be in
//! ```
//!
//! A record's number was never there before, and the record is one copy's for as long as it stands: who reads looks at it
//! before and afterwards. The others are written only while it is 0. What finds no room in the [levels](super::levels),
//! or lies in parts, is not listed, and asked for.
//!
//! Copies are listed a while after they came, so that no put waits for it. Who reads [tells](super::told) of it, as eviction
//! is by use.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::version::{Form, Version};
use lunette_runtime::arena::{MapError, Share, View, Words, WordsView};

use super::bytes::Extent;
use super::core::MemberCore;
use super::lending::LENT_MIN;
use super::levels::{Levels, LevelsView, levels_for};
use super::shown::ShownPart;
use super::told::{Hearing, Told};

/// Longest value that is copied by who does not say that it may take a while. What is longer is lent, or sent, which takes a
/// core less than it takes a thread to copy.
pub(crate) const DIRECT_BYTES_MAX: usize = LENT_MIN - 1;
/// Longest key that is listed.
const KEY_BYTES_MAX: usize = 256;
/// Chunks of memory that are read so: 64 GiB of one core.
const CHUNKS_MAX: usize = 1024;

const ENTRIES: usize = 0;
/// Where the records begin.
const RECORDS: usize = 8;
const RECORD_WORDS: usize = 8;
/// Words of levels for each entry.
const PLACES_PER_ENTRY: usize = 2;
/// Copies that are listed in one tick, and those that wait for it. What is beyond is listed when it is asked for.
pub(super) const LISTED_PER_TICK_MAX: usize = 1024;
pub(super) const UNLISTED_MAX: usize = 4096;

/// What stands for a key, beside an entry.
const fn tag(key: Fingerprint) -> u64 {
    key.low() << 32
}

/// The part of a word that is not an entry.
const UPPER: u64 = u64::MAX << 32;

const fn entry_in(word: u64) -> Option<u32> {
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let above = word as u32;
    above.checked_sub(1)
}

/// The first word of an entry's record.
const fn record_of(entry: u32) -> usize {
    RECORDS + entry as usize * RECORD_WORDS
}

/// Where the levels begin, behind so many records.
const fn levels_at(entries: usize) -> usize {
    RECORDS + entries * RECORD_WORDS
}

/// What is known of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    key: Fingerprint,
    chunk: u32,
    len_bytes: u32,
    value_at: u64,
    key_at: u64,
    key_len_bytes: u16,
    crc32c: u32,
    version: Version,
}

impl Record {
    fn of(place: CopyPlace, extent: &Extent) -> Self {
        let (chunk, key_at, value_at) = extent.places();
        Self {
            key: place.key,
            chunk,
            len_bytes: extent.len_bytes(),
            value_at,
            key_at,
            key_len_bytes: extent.key().len_bytes(),
            crc32c: extent.crc32c,
            version: place.version,
        }
    }

    fn words(&self) -> [u64; RECORD_WORDS - 1] {
        [
            self.key.high(),
            self.key.low(),
            u64::from(self.chunk) << 32 | u64::from(self.len_bytes),
            self.value_at << 16 | u64::from(self.key_len_bytes),
            (self.value_at - self.key_at) << 32 | u64::from(self.crc32c),
            self.version.epoch.0,
            self.version.sequence,
        ]
    }

    #[expect(clippy::cast_possible_truncation, reason = "halves of words")]
    const fn from_words(words: [u64; RECORD_WORDS - 1]) -> Option<Self> {
        let [high, low, place, value, lead, epoch, sequence] = words;
        let value_at = value >> 16;
        let Some(key_at) = value_at.checked_sub(lead >> 32) else {
            return None;
        };
        Some(Self {
            key: Fingerprint((high as u128) << 64 | low as u128),
            chunk: (place >> 32) as u32,
            len_bytes: place as u32,
            value_at,
            key_at,
            key_len_bytes: value as u16,
            crc32c: lead as u32,
            version: Version {
                epoch: Epoch(epoch),
                sequence,
            },
        })
    }
}

/// The catalogue of one core. It lists nothing any more once it is dropped.
#[derive(Debug)]
pub(super) struct Catalogue {
    words: Words,
    levels_max: usize,
    entries: usize,
    last_number: u64,
    /// Entries from this one on were never listed.
    end: usize,
    /// Shared with all who look on.
    kept: Arc<()>,
    hearing: Hearing,
}

impl Catalogue {
    /// For so many entries.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(entries: usize) -> io::Result<Self> {
        let (levels_max, words) = levels_for(entries.saturating_mul(PLACES_PER_ENTRY));
        let words = Words::new(RECORDS + entries * RECORD_WORDS + words, true)?;
        words[ENTRIES].store(entries as u64, Ordering::Release);
        Ok(Self {
            words,
            levels_max,
            entries,
            last_number: 0,
            end: 0,
            kept: Arc::new(()),
            hearing: Hearing::default(),
        })
    }

    /// For those who look on.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn share(&self) -> io::Result<ShownPart> {
        Ok(ShownPart {
            file: self.words.as_fd().try_clone_to_owned()?,
            words: self.words.len(),
            kept: Arc::clone(&self.kept),
        })
    }

    /// Somebody who looks on tells of reads there, for as long as what is returned is kept.
    pub(super) fn listen_to(&mut self, told: Told) -> Arc<()> {
        self.hearing.listen_to(told)
    }

    /// Whether anybody looks.
    pub(super) fn is_looked_at(&self) -> bool {
        Arc::strong_count(&self.kept) > 1
    }

    /// Whether what is in an entry is listed.
    pub(super) fn is_listed(&self, entry: u32) -> bool {
        self.record(entry)[0].load(Ordering::Relaxed) != 0
    }

    /// Lists the copy in an entry, if it is not; another one of its key no more.
    pub(super) fn list(&mut self, entry: u32, place: CopyPlace, extent: &Extent) {
        if self.is_listed(entry) {
            return;
        }
        let record = self.record(entry);
        for (word, value) in record[1..].iter().zip(Record::of(place, extent).words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.last_number += 1;
        self.end = self.end.max(entry as usize + 1);
        self.record(entry)[0].store(self.last_number, Ordering::Release);
        let (levels, tag) = (self.levels(), tag(place.key));
        let is_its = |word: u64| {
            let other = entry_in(word).filter(|_| word & UPPER == tag);
            other.is_some_and(|other| self.key_in(other) == place.key)
        };
        let word = levels.find(place.key, is_its);
        if let Some(word) = word.or_else(|| levels.free(place.key)) {
            word.store(tag | u64::from(entry + 1), Ordering::Release);
        }
    }

    /// No read of what is in this entry that ends is a good one: its memory may be used for something else.
    pub(super) fn unlist(&self, entry: u32) {
        if entry as usize >= self.end || !self.is_listed(entry) {
            return;
        }
        self.record(entry)[0].store(0, Ordering::Relaxed);
        // Before whatever the memory, or the record, is written with next.
        fence(Ordering::SeqCst);
        let key = self.key_in(entry);
        let listed = tag(key) | u64::from(entry + 1);
        if let Some(word) = self.levels().find(key, |word| word == listed) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// The same of all entries.
    pub(super) fn unlist_all(&self) {
        let end = u32::try_from(self.end).expect("entries are numbered so");
        (0..end).for_each(|entry| self.unlist(entry));
    }

    /// The reads since the last time of what is still there, by their entries.
    pub(super) fn hear(&mut self, mut each: impl FnMut(u32)) {
        let (words, end) = (&self.words, self.end);
        self.hearing.hear(|entry, number_low| {
            // Who tells may be anybody.
            if entry as usize >= end {
                return;
            }
            let number = words[record_of(entry)].load(Ordering::Relaxed);
            if number != 0 && number << 32 == number_low {
                each(entry);
            }
        });
    }

    fn record(&self, entry: u32) -> &[AtomicU64] {
        let first = record_of(entry);
        &self.words[first..first + RECORD_WORDS]
    }

    fn key_in(&self, entry: u32) -> Fingerprint {
        let record = self.record(entry);
        let half = |index: usize| u128::from(record[index].load(Ordering::Relaxed));
        Fingerprint(half(1) << 64 | half(2))
    }

    fn levels(&self) -> Levels<'_> {
        Levels::new(&self.words[levels_at(self.entries)..], self.levels_max)
    }
}

impl MemberCore {
    /// Threads may read a copy that is served by themselves, from soon on, if it is in one piece.
    pub(super) fn list_soon(&self, place: CopyPlace, form: Form) {
        if form == Form::Whole && self.bytes().borrow().is_looked_at() {
            let mut unlisted = self.unlisted.borrow_mut();
            if unlisted.len() < UNLISTED_MAX {
                unlisted.push_back(place);
                self.busy.raise();
            }
        }
    }

    /// A copy in one piece that has been read by who asked: if it is not listed, others need not ask.
    pub(super) fn list_read(&self, place: CopyPlace, entry: u32) {
        if self.bytes().borrow().is_to_list(entry) {
            self.list_soon(place, Form::Whole);
        }
    }

    /// Lists some of what came. Who reads by itself does not hear that this node is cut off, or was: then nothing is listed.
    pub(super) fn list_some(&self) {
        let mut unlisted = self.unlisted.borrow_mut();
        if unlisted.is_empty() {
            return;
        }
        let count = unlisted.len().min(LISTED_PER_TICK_MAX);
        let machines = self.machines().borrow();
        let is_judged = machines.owner.away_since().is_none();
        let is_served = self.is_leased() && !self.has_left() && is_judged;
        let mut bytes = self.bytes().borrow_mut();
        for place in unlisted.drain(..count) {
            if is_served && machines.owner.copy(place).is_some() {
                bytes.list(place);
            }
        }
    }

    /// Takes in what threads have read by themselves.
    pub(crate) fn hear_reads(&self) {
        let (reads, read_bytes) = self.bytes().borrow_mut().hear_reads();
        if reads > 0 {
            self.counts.found_unasked(reads, read_bytes);
        }
    }

    /// A chunk of the memory, for threads to read.
    pub(crate) fn chunk_view(&self, chunk: u32) -> io::Result<Option<View>> {
        let share = self.bytes().borrow().share(chunk)?;
        let map = |share: Share| View::map(share.memfd, share.offset_bytes, share.len_bytes);
        share.map(map).transpose().map_err(io::Error::other)
    }
}

impl Drop for Catalogue {
    fn drop(&mut self) {
        self.unlist_all();
    }
}

/// A chunk of the core's memory, once it has been asked for.
#[derive(Debug, Default)]
struct Chunk {
    is_asked_for: AtomicBool,
    view: OnceLock<Arc<View>>,
}

/// What came of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direct {
    /// The bytes are there.
    Read {
        version: Version,
        len_bytes: usize,
        /// The core should [hear](super::core::MemberCore::hear_reads) of what threads have read.
        is_to_hear: bool,
    },
    /// Ask for this chunk, and for the object as ever.
    Wants { chunk: u32 },
    /// Ask: it is not listed, or was not any more when it had been read.
    Ask,
}

/// A copy that is listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    entry: u32,
    number: u64,
    version: Version,
    crc32c: u32,
    /// Where in the view of its chunk the value begins; all of it lies there.
    pub(crate) value_at: usize,
    pub(crate) len_bytes: usize,
}

/// What is known of where a value lies.
#[derive(Debug)]
pub(crate) enum Find<'a> {
    /// There, in the view.
    Listed(Listed, &'a Arc<View>),
    /// Ask for this chunk, and for the object as ever.
    Wants { chunk: u32 },
    /// Ask: it is not listed.
    Ask,
}

/// The catalogue of one core, for threads.
#[derive(Debug)]
pub(crate) struct CatalogueView {
    words: WordsView,
    levels: LevelsView,
    entries: usize,
    told: Told,
    chunks: Box<[Chunk]>,
}

impl CatalogueView {
    /// What a core, of this process or another one, [shows](MemberCore::show), which is told of reads there.
    ///
    /// # Errors
    /// [`MapError`], also if the core says that there is what cannot be.
    pub(crate) fn map(file: OwnedFd, count: usize, told: Told) -> Result<Self, MapError> {
        let words = WordsView::map(file, count)?;
        let entries = usize::try_from(words.load(ENTRIES)).map_err(|_| MapError::BadRange)?;
        if entries > count / RECORD_WORDS || levels_at(entries) > count {
            return Err(MapError::BadRange);
        }
        let chunks = (0..CHUNKS_MAX).map(|_| Chunk::default());
        Ok(Self {
            levels: LevelsView::new(&words, levels_at(entries)),
            words,
            entries,
            told,
            chunks: chunks.collect(),
        })
    }

    /// Where a value of at most `len_max` bytes lies, if it is listed. What is read there is the value only if
    /// [`confirm`](Self::confirm) says so afterwards.
    pub(crate) fn look_up(&self, key: Key<'_>, len_max: usize) -> Find<'_> {
        let fingerprint = key.fingerprint();
        let tag = tag(fingerprint);
        let words = self.levels.words_of(&self.words, fingerprint);
        let mut like = words.filter(|word| *word != 0 && word & UPPER == tag);
        let found = like.find_map(|word| self.find(entry_in(word)?, fingerprint));
        let Some((entry, number, record)) = found else {
            return Find::Ask;
        };
        if record.len_bytes as usize > len_max || record.chunk as usize >= CHUNKS_MAX {
            return Find::Ask;
        }
        let chunk = &self.chunks[record.chunk as usize];
        let Some(view) = chunk.view.get() else {
            let was_asked_for = chunk.is_asked_for.swap(true, Ordering::Relaxed);
            let chunk = record.chunk;
            return if was_asked_for {
                Find::Ask
            } else {
                Find::Wants { chunk }
            };
        };
        match self.place_of(&record, key, view) {
            Some(value_at) => Find::Listed(
                Listed {
                    entry,
                    number,
                    version: record.version,
                    crc32c: record.crc32c,
                    value_at,
                    len_bytes: record.len_bytes as usize,
                },
                view,
            ),
            None => Find::Ask,
        }
    }

    /// What has been read of a listed value, whose CRC32C is this, is the value if the copy has been there all the time.
    pub(crate) fn confirm(&self, listed: &Listed, crc32c: u32) -> Direct {
        let number = self.words.load(record_of(listed.entry));
        if number != listed.number || crc32c != listed.crc32c {
            return Direct::Ask;
        }
        Direct::Read {
            version: listed.version,
            len_bytes: listed.len_bytes,
            is_to_hear: self.told.tell(listed.entry, listed.number),
        }
    }

    /// Reads a value of at most `len_max` bytes: `copy` copies that many bytes, from there on in the view, and tells their
    /// CRC32C. It is called at most once; what it has copied is the value only if this says so.
    pub(crate) fn read(
        &self,
        key: Key<'_>,
        len_max: usize,
        copy: impl FnOnce(&View, usize, usize) -> u32,
    ) -> Direct {
        match self.look_up(key, len_max) {
            Find::Listed(listed, view) => {
                let crc32c = copy(view, listed.value_at, listed.len_bytes);
                self.confirm(&listed, crc32c)
            }
            Find::Wants { chunk } => Direct::Wants { chunk },
            Find::Ask => Direct::Ask,
        }
    }

    /// A chunk could not be asked for: somebody else tries again.
    pub(crate) fn is_not_asked_for(&self, chunk: u32) {
        if let Some(chunk) = self.chunks.get(chunk as usize) {
            chunk.is_asked_for.store(false, Ordering::Relaxed);
        }
    }

    /// A chunk that was asked for.
    pub(crate) fn has(&self, chunk: u32, view: Arc<View>) {
        if let Some(chunk) = self.chunks.get(chunk as usize) {
            // Of several that asked after all, the first.
            drop(chunk.view.set(view));
        }
    }

    /// What is known of the copy in an entry, if it is of this key, and the number that says so.
    fn find(&self, entry: u32, key: Fingerprint) -> Option<(u32, u64, Record)> {
        if entry as usize >= self.entries {
            return None;
        }
        let first = record_of(entry);
        let number = self.words.load(first);
        let words = std::array::from_fn(|index| self.words.load(first + 1 + index));
        let record = Record::from_words(words).filter(|record| record.key == key)?;
        (number != 0).then_some((entry, number, record))
    }

    /// Where in the view the value begins, if all of it lies there, behind this key.
    fn place_of(&self, record: &Record, key: Key<'_>, view: &View) -> Option<usize> {
        let value_at = usize::try_from(record.value_at).ok()?;
        let key_at = usize::try_from(record.key_at).ok()?;
        let key_len_bytes = usize::from(record.key_len_bytes);
        let end = value_at.checked_add(record.len_bytes as usize)?;
        let is_inside = end <= view.len() && key_at.checked_add(key_len_bytes)? <= view.len();
        if !is_inside || key_len_bytes != key.bytes().len() || key_len_bytes > KEY_BYTES_MAX {
            return None;
        }
        let mut known = [0; KEY_BYTES_MAX];
        let known = &mut known[..key_len_bytes];
        view.copy_out_summed(key_at, known);
        (known == key.bytes()).then_some(value_at)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use lunette_runtime::arena::{Arena, ArenaOptions};
    use lunette_runtime_core::checksum::crc32c;

    use super::*;

    const ENTRY: u32 = 2;

    /// A catalogue of four entries that lists one record, and what is seen of it.
    fn seen(record: Record, entry_word: u64) -> (Words, CatalogueView) {
        let (levels_max, count) = levels_for(1);
        let words = Words::new(levels_at(4) + count, false).expect("memory");
        words[ENTRIES].store(4, Ordering::Relaxed);
        let first = record_of(ENTRY);
        for (word, value) in words[first + 1..].iter().zip(record.words()) {
            word.store(value, Ordering::Relaxed);
        }
        words[first].store(9, Ordering::Relaxed);
        let levels = Levels::new(&words[levels_at(4)..], levels_max);
        let word = levels.free(record.key).expect("there is room");
        word.store(tag(record.key) | entry_word, Ordering::Relaxed);
        let file = words.as_fd().try_clone_to_owned().expect("a descriptor");
        let told = Told::new().expect("memory");
        let view = CatalogueView::map(file, words.len(), told).expect("sealed");
        (words, view)
    }

    /// What an arena has at the start of its first chunk: a value, and its key behind it.
    fn chunk_of(key: Key<'_>, value: &[u8]) -> (Record, View) {
        let arena = Arena::new(ArenaOptions::default());
        let mut region = arena.alloc(1 << 16).expect("room");
        let key_at = 0;
        let value_at = key.bytes().len();
        region.as_mut_slice()[..value_at].copy_from_slice(key.bytes());
        region.as_mut_slice()[value_at..value_at + value.len()].copy_from_slice(value);
        let region = region.freeze();
        let (chunk, start) = region.place();
        let share = arena.share(chunk).expect("memory").expect("a chunk");
        let view = View::map(share.memfd, share.offset_bytes, share.len_bytes).expect("memory");
        let record = Record {
            key: key.fingerprint(),
            chunk,
            len_bytes: u32::try_from(value.len()).expect("short"),
            value_at: (start + value_at) as u64,
            key_at: (start + key_at) as u64,
            key_len_bytes: u16::try_from(value_at).expect("short"),
            crc32c: crc32c(value),
            version: Version {
                epoch: Epoch(3),
                sequence: 4,
            },
        };
        (record, view)
    }

    /// A catalogue that lists one object, whose memory is there to be read.
    pub(crate) fn listing(key: Key<'_>, value: &[u8]) -> (Words, CatalogueView) {
        let (record, view) = chunk_of(key, value);
        let (words, seen) = seen(record, u64::from(ENTRY + 1));
        seen.has(record.chunk, Arc::new(view));
        (words, seen)
    }

    fn read(seen: &CatalogueView, key: Key<'_>, len_max: usize) -> (Direct, Vec<u8>) {
        let mut bytes = Vec::new();
        let read = seen.read(key, len_max, |view, from, len| {
            bytes.resize(len, 0);
            view.copy_out_summed(from, &mut bytes)
        });
        (read, bytes)
    }

    #[test]
    fn what_is_listed_is_read_and_what_a_core_says_that_cannot_be_is_asked_for() {
        let (key, other) = (
            Key::new(b"one").expect("a key"),
            Key::new(b"other").expect("a key"),
        );
        let (words, listed) = listing(key, b"value");
        let (is_read, bytes) = read(&listed, key, 5);
        assert!(
            matches!(is_read, Direct::Read { len_bytes: 5, .. }),
            "{is_read:?}"
        );
        assert_eq!(bytes, b"value");
        assert_eq!(read(&listed, key, 4).0, Direct::Ask, "it does not fit");
        assert_eq!(read(&listed, other, 5).0, Direct::Ask, "it is not listed");
        words[record_of(ENTRY)].store(0, Ordering::Relaxed);
        assert_eq!(read(&listed, key, 5).0, Direct::Ask, "not any more");

        let (record, _) = chunk_of(key, b"value");
        let crc32c = !record.crc32c;
        let chunk = u32::try_from(CHUNKS_MAX).expect("few");
        let value_at = 1 << 40;
        let entry_word = u64::from(ENTRY + 1);
        for (said, entry_word) in [
            (Record { chunk, ..record }, entry_word),
            (Record { crc32c, ..record }, entry_word),
            (
                Record {
                    value_at,
                    key_at: value_at - 3,
                    ..record
                },
                entry_word,
            ),
            (
                Record {
                    key_at: record.value_at,
                    ..record
                },
                entry_word,
            ),
            (
                Record {
                    key_len_bytes: 2,
                    ..record
                },
                entry_word,
            ),
            (
                Record {
                    key_len_bytes: u16::MAX,
                    ..record
                },
                entry_word,
            ),
            (
                Record {
                    key: other.fingerprint(),
                    ..record
                },
                entry_word,
            ),
            (record, 5),
            (record, u64::from(u32::MAX)),
        ] {
            let (_words, seen) = seen(said, entry_word);
            seen.has(record.chunk, Arc::new(chunk_of(key, b"value").1));
            assert_eq!(read(&seen, key, 5).0, Direct::Ask, "{said:?} {entry_word}");
        }
    }

    #[test]
    fn a_chunk_is_asked_for_once_and_again_when_it_could_not_be() {
        let key = Key::new(b"one").expect("a key");
        let (record, view) = chunk_of(key, b"value");
        let chunk = u32::try_from(CHUNKS_MAX - 1).expect("few");
        let (_words, seen) = seen(Record { chunk, ..record }, u64::from(ENTRY + 1));
        assert_eq!(read(&seen, key, 5).0, Direct::Wants { chunk });
        assert_eq!(read(&seen, key, 5).0, Direct::Ask);
        seen.is_not_asked_for(chunk);
        assert_eq!(read(&seen, key, 5).0, Direct::Wants { chunk });
        seen.has(chunk, Arc::new(view));
        assert!(matches!(read(&seen, key, 5).0, Direct::Read { .. }));
        seen.is_not_asked_for(u32::MAX);
    }

    #[test]
    fn more_entries_than_words_are_refused() {
        for (count, entries) in [(8, 1), (16, 2), (8, u64::MAX), (1 << 12, 1 << 61)] {
            let words = Words::new(count, true).expect("memory");
            words[ENTRIES].store(entries, Ordering::Relaxed);
            let file = words.as_fd().try_clone_to_owned().expect("a descriptor");
            let told = Told::new().expect("memory");
            let refused = CatalogueView::map(file, count, told);
            assert_eq!(refused.err(), Some(MapError::BadRange), "{count} {entries}");
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = Record {
            key: Fingerprint(u128::MAX - 7),
            chunk: u32::MAX - 1,
            len_bytes: 64 << 10,
            value_at: (1 << 30) - 1,
            key_at: (1 << 30) - 1 - 4096,
            key_len_bytes: u16::MAX - 2,
            crc32c: u32::MAX - 3,
            version: Version {
                epoch: Epoch(u64::MAX - 4),
                sequence: u64::MAX - 5,
            },
        };
        assert_eq!(Record::from_words(record.words()), Some(record));
        assert_eq!(
            Record::from_words([0, 0, 0, 1 << 16, 2 << 32, 0, 0]),
            None,
            "it would begin before"
        );
    }
}
