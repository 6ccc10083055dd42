//! A core's slice of the store under whatever is asked of it, and its messages under attack.
//!
//! ```text
//!   byte 0      whether the rest are bodies of messages (bit 7); else how much fits
//!   then        bytes of a body, or a manifest and ranges of its object; or for each step a byte of what happens beside it, and the step
//! ```

use std::collections::{BTreeMap, VecDeque};

use lunette_generate::store::{Request, Step};
use lunette_generate::{Bytes, Source};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::{KeyBatch, KeyBatchWriter, KeyRequest};
use lunette_kvstore_proto::range::{ByteRange, RANGES_MAX, total_bytes};
use lunette_kvstore_proto::shard::{Effect, EntryId, PutStart, RemoveOutcome, Shard, ShardLimits};
use lunette_kvstore_proto::striped::{MANIFEST_BYTES, Manifest, PARTS_MAX};
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;

/// Keys that steps are about.
const KEYS: u8 = 8;
/// Longest extent.
const EXTENT_BYTES_MAX: u32 = 400;
/// Most steps of a script, so that one run stays short.
const STEPS_MAX: usize = 256;

/// What a script reached. A corpus is judged by what its files reach together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Gets that found something.
    pub hits: u32,
    /// Puts that found their key resident.
    pub touched: u32,
    /// Puts and removals of a key that was being written.
    pub busy: u32,
    /// Puts for which there was no room.
    pub refused: u32,
    /// Puts that were given up.
    pub aborted: u32,
    /// Removals of what a get still held.
    pub removed_while_held: u32,
    /// Entries that were evicted.
    pub evicted: u32,
    /// Bodies that were understood.
    pub understood: u32,
    /// Bodies that were not.
    pub malformed: u32,
    /// Manifests of objects in parts.
    pub manifests: u32,
}

/// Drives a shard, or the readers of messages, with any bytes.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn store(data: &[u8]) -> Reached {
    let mut reached = Reached::default();
    let [first, rest @ ..] = data else {
        return reached;
    };
    if first & 0x80 != 0 {
        messages(rest, &mut reached);
    } else {
        let mut slice = Slice::new(*first);
        slice.run(&mut Bytes::new(rest), &mut reached);
        slice.end();
    }
    reached
}

/// What is understood has one form, and is written again as it was.
fn messages(body: &[u8], reached: &mut Reached) {
    let mut again = Vec::new();
    match KeyRequest::decode(body) {
        Ok(request) => {
            request.encode(&mut again);
            assert_eq!(again, body);
            reached.understood += 1;
        }
        Err(_) => reached.malformed += 1,
    }
    manifest(body, reached);
    again.clear();
    match KeyBatch::decode(body) {
        Ok(batch) => {
            let mut writer = KeyBatchWriter::new(&mut again);
            for key in batch.keys() {
                writer.push(key).expect("as many as there were");
            }
            assert_eq!(again, body);
            reached.understood += 1;
        }
        Err(_) => reached.malformed += 1,
    }
}

/// A manifest, and behind it ranges of its object: what is read of the parts comes to what was asked for.
fn manifest(body: &[u8], reached: &mut Reached) {
    let (front, rest) = body.split_at(body.len().min(MANIFEST_BYTES));
    let Ok(manifest) = Manifest::decode(front) else {
        return;
    };
    reached.manifests += 1;
    assert_eq!(manifest.encode(), front);
    assert!((1..=PARTS_MAX).contains(&manifest.count()));
    let parts = manifest.parts().map(|part| u64::from(part.len_bytes));
    assert_eq!(parts.sum::<u64>(), manifest.len_bytes());
    let ranges: Vec<ByteRange> = rest
        .chunks_exact(12)
        .take(RANGES_MAX)
        .map(|bytes| {
            let (offset, len) = bytes.split_at(8);
            ByteRange {
                offset_bytes: u64::from_le_bytes(offset.try_into().expect("eight")),
                len_bytes: u32::from_le_bytes(len.try_into().expect("four")),
            }
        })
        .collect();
    let is_inside = |range: &ByteRange| range.is_within(manifest.len_bytes());
    let reads = manifest.reads(&ranges);
    assert_eq!(reads.is_some(), ranges.iter().all(is_inside));
    let Some(reads) = reads else {
        return;
    };
    let expected = if ranges.is_empty() {
        manifest.len_bytes()
    } else {
        total_bytes(&ranges)
    };
    let mut read = 0;
    for part in &reads {
        assert!(part.ranges.len() <= RANGES_MAX && part.ranges.len() == part.to.len());
        assert!(part.len_bytes() <= PAYLOAD_BYTES_MAX as u64);
        let len_bytes = part.part.len_bytes.into();
        assert!(part.ranges.iter().all(|range| range.is_within(len_bytes)));
        let ends = part.ranges.iter().zip(&part.to);
        assert!(
            ends.into_iter()
                .all(|(range, to)| to + u64::from(range.len_bytes) <= expected)
        );
        read += part.len_bytes();
    }
    assert_eq!(read, expected);
}

/// A shard, and who uses it.
struct Slice {
    shard: Shard,
    high_bytes: u64,
    writing: BTreeMap<u8, EntryId>,
    /// Gets that have not ended, the oldest first.
    held: VecDeque<EntryId>,
    /// The last version that was committed of each key that was not removed since.
    written: BTreeMap<u8, u64>,
}

impl Slice {
    fn new(size: u8) -> Self {
        let high_bytes = 200 + 16 * u64::from(size);
        let entries_max = 2 + usize::from(size) / 16;
        let limits = ShardLimits::new(high_bytes, high_bytes / 2, entries_max);
        Self {
            shard: Shard::new(limits.expect("low is below high")),
            high_bytes,
            writing: BTreeMap::new(),
            held: VecDeque::new(),
            written: BTreeMap::new(),
        }
    }

    fn run(&mut self, source: &mut Bytes<'_>, reached: &mut Reached) {
        for _ in 0..STEPS_MAX {
            if source.is_spent() {
                return;
            }
            self.beside(source.u8(), reached);
            let Step { key, request } = Step::draw(source, KEYS);
            match request {
                Request::Get => self.get(key, reached),
                Request::Put { .. } => {
                    let extent_bytes = request.len_between(0, EXTENT_BYTES_MAX);
                    self.put(key, extent_bytes, reached);
                }
                Request::Exists => {
                    let found = self.shard.lookup(fingerprint(key));
                    assert!(found.is_none_or(|id| self.is_current(key, id)));
                }
                Request::Remove => self.remove(key, reached),
            }
            self.check(reached);
        }
    }

    /// A write ends, a get ends, room is made, or nothing.
    fn beside(&mut self, what: u8, reached: &mut Reached) {
        match what % 5 {
            0 => self.end_write(true, reached),
            1 => self.end_write(what & 0x40 == 0, reached),
            2 => self.end_get(),
            3 => drop(self.shard.make_room(u64::from(what))),
            _ => {}
        }
    }

    fn get(&mut self, key: u8, reached: &mut Reached) {
        if let Some(id) = self.shard.get(fingerprint(key)) {
            assert!(self.is_current(key, id), "what was committed last");
            self.held.push_back(id);
            reached.hits += 1;
        }
    }

    fn put(&mut self, key: u8, extent_bytes: u32, reached: &mut Reached) {
        match self.shard.begin_put(fingerprint(key), extent_bytes) {
            PutStart::Write(id) => {
                assert!(self.writing.insert(key, id).is_none(), "one writer");
            }
            PutStart::Touched(id) => {
                assert!(self.is_current(key, id));
                reached.touched += 1;
            }
            PutStart::Busy => {
                assert!(self.writing.contains_key(&key));
                reached.busy += 1;
            }
            PutStart::Refused(_) => reached.refused += 1,
        }
    }

    fn remove(&mut self, key: u8, reached: &mut Reached) {
        let found = self.shard.lookup(fingerprint(key));
        match self.shard.remove(fingerprint(key)) {
            RemoveOutcome::Removed => {
                let id = found.expect("it was resident");
                reached.removed_while_held += u32::from(self.held.contains(&id));
                self.written.remove(&key);
                assert!(self.shard.lookup(fingerprint(key)).is_none());
            }
            RemoveOutcome::NotFound => assert!(found.is_none()),
            RemoveOutcome::Busy => {
                assert!(self.writing.contains_key(&key));
                reached.busy += 1;
            }
        }
    }

    fn end_write(&mut self, commit: bool, reached: &mut Reached) {
        let Some((key, id)) = self.writing.pop_first() else {
            return;
        };
        if commit {
            let version = self.shard.commit_put(id);
            let before = self.written.insert(key, version);
            assert!(before.is_none_or(|before| before < version), "they rise");
        } else {
            self.shard.abort_put(id);
            reached.aborted += 1;
        }
    }

    fn end_get(&mut self) {
        if let Some(id) = self.held.pop_front() {
            assert!(self.shard.is_live(id), "what is held stays");
            self.shard.unpin(id);
        }
    }

    fn is_current(&self, key: u8, id: EntryId) -> bool {
        self.written.get(&key) == Some(&self.shard.version(id))
    }

    fn check(&mut self, reached: &mut Reached) {
        let stats = self.shard.stats();
        assert!(stats.used_bytes <= self.high_bytes);
        assert!(stats.resident_bytes <= stats.used_bytes);
        assert_eq!(stats.gets, stats.hits + stats.misses);
        reached.evicted = u32::try_from(stats.evictions).expect("few");
        while let Some(Effect::Release(id)) = self.shard.poll_effect() {
            assert!(!self.held.contains(&id), "what is held is not released");
            assert!(!self.writing.values().any(|&writing| writing == id));
        }
    }

    /// Everything ends, and nothing is left.
    fn end(&mut self) {
        let mut reached = Reached::default();
        while !self.writing.is_empty() {
            self.end_write(false, &mut reached);
        }
        while !self.held.is_empty() {
            self.end_get();
        }
        for key in 0..KEYS {
            self.remove(key, &mut reached);
        }
        self.check(&mut reached);
        let stats = self.shard.stats();
        assert_eq!((stats.used_bytes, stats.entries), (0, 0), "nothing is left");
    }
}

fn fingerprint(key: u8) -> Fingerprint {
    Fingerprint(u128::from(key))
}
