//! The shard against a plain list of entries. What leaves is the policy's choice: that it may, and is enough and no more, is
//! judged here.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::collections::BTreeMap;

use lunette_generate::Bytes;
use lunette_generate::store::{Request, Step};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::shard::{
    Effect, EntryId, PutRefusal, PutStart, RemoveOutcome, Shard, ShardLimits,
};
use proptest::prelude::*;
use proptest::sample::Index;

const KEYS: u8 = 16;
const EXTENT_BYTES_MAX: u32 = 400;

/// What is asked of the store, and what its driver does beside.
#[derive(Clone, Copy, Debug)]
enum Op {
    Ask(Step),
    Commit(Index),
    Abort(Index),
    Unpin(Index),
    MakeRoom { bytes: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let step = any::<[u8; 4]>().prop_map(|bytes| Step::draw(&mut Bytes::new(&bytes), KEYS));
    prop_oneof![
        10 => step.prop_map(Op::Ask),
        6 => any::<Index>().prop_map(Op::Commit),
        1 => any::<Index>().prop_map(Op::Abort),
        2 => any::<Index>().prop_map(Op::Unpin),
        1 => (0_u64..600).prop_map(|bytes| Op::MakeRoom { bytes }),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: EntryId,
    extent_bytes: u64,
    pins: u32,
}

/// The same store, with lists that are searched.
struct Model {
    high: u64,
    low: u64,
    entries_max: usize,
    writing: BTreeMap<u128, Entry>,
    resident: Vec<(u128, Entry)>,
    dying: Vec<Entry>,
    released: Vec<EntryId>,
    evictions: u64,
    last_version: u64,
}

impl Model {
    fn used(&self) -> u64 {
        let bytes = |entry: &Entry| entry.extent_bytes;
        self.writing.values().map(bytes).sum::<u64>()
            + self
                .resident
                .iter()
                .map(|(_, entry)| bytes(entry))
                .sum::<u64>()
            + self.dying.iter().map(bytes).sum::<u64>()
    }

    fn entries(&self) -> usize {
        self.writing.len() + self.resident.len() + self.dying.len()
    }

    fn find(&self, key: u128) -> Option<usize> {
        self.resident.iter().position(|(other, _)| *other == key)
    }

    /// What the shard has evicted in its last call.
    fn follow(&mut self, shard: &Shard) -> Vec<u64> {
        let is_gone =
            |(key, entry): &mut (u128, Entry)| shard.lookup(Fingerprint(*key)) != Some(entry.id);
        let evicted: Vec<_> = self.resident.extract_if(.., is_gone).collect();
        for (key, entry) in &evicted {
            assert_eq!(entry.pins, 0, "{key} is pinned");
            self.released.push(entry.id);
            self.evictions += 1;
        }
        evicted
            .iter()
            .map(|(_, entry)| entry.extent_bytes)
            .collect()
    }

    /// It has evicted these, down to so many bytes if it could, or one because of the number of entries.
    fn judge(&self, evicted: &[u64], target_bytes: u64, is_one_too_many: bool) {
        let used_bytes = self.used();
        let can_go_on = self.resident.iter().any(|(_, entry)| entry.pins == 0);
        assert!(used_bytes <= target_bytes || !can_go_on, "it is enough");
        let longest = evicted.iter().max().copied().unwrap_or(0);
        let is_needed = used_bytes + longest > target_bytes;
        let is_for_number = is_one_too_many && evicted.len() == 1;
        assert!(
            evicted.is_empty() || is_needed || is_for_number,
            "{evicted:?} is too much"
        );
    }

    fn refusal(&self, needed_bytes: u64) -> Option<PutRefusal> {
        let unpinned = || self.resident.iter().filter(|(_, entry)| entry.pins == 0);
        let evictable: u64 = unpinned().map(|(_, entry)| entry.extent_bytes).sum();
        let available_bytes = self.high - (self.used() - evictable);
        if needed_bytes > self.high {
            Some(PutRefusal::TooLarge {
                needed_bytes,
                max_bytes: self.high,
            })
        } else if self.entries() == self.entries_max && unpinned().count() == 0 {
            Some(PutRefusal::EntriesFull {
                entries_max: self.entries_max,
            })
        } else if needed_bytes > available_bytes {
            Some(PutRefusal::Full {
                needed_bytes,
                available_bytes,
            })
        } else {
            None
        }
    }

    fn put(&mut self, shard: &mut Shard, key: u128, extent_bytes: u32) {
        let start = shard.begin_put(Fingerprint(key), extent_bytes);
        if self.writing.contains_key(&key) {
            assert_eq!(start, PutStart::Busy);
        } else if let Some(at) = self.find(key) {
            assert_eq!(start, PutStart::Touched(self.resident[at].1.id));
        } else if let Some(refusal) = self.refusal(extent_bytes.into()) {
            assert_eq!(start, PutStart::Refused(refusal));
        } else {
            let PutStart::Write(id) = start else {
                unreachable!("{start:?} where there is room")
            };
            let extent_bytes = u64::from(extent_bytes);
            let is_one_too_many = self.entries() == self.entries_max;
            let is_over = self.used() + extent_bytes > self.high;
            let before = self.used();
            let evicted = self.follow(shard);
            assert!(!is_one_too_many || !evicted.is_empty(), "an entry can go");
            // Where one made room for the entry, that may have been enough.
            let freed_by_one = evicted.iter().max().copied().unwrap_or(0);
            let is_enough =
                !is_over || is_one_too_many && before - freed_by_one + extent_bytes <= self.high;
            let target_bytes = match is_enough && evicted.len() <= 1 {
                true => self.high - extent_bytes,
                false => self.low.saturating_sub(extent_bytes),
            };
            self.judge(&evicted, target_bytes, is_one_too_many);
            self.writing.insert(
                key,
                Entry {
                    id,
                    extent_bytes,
                    pins: 0,
                },
            );
        }
    }

    fn end_put(&mut self, shard: &mut Shard, nth: Index, commit: bool) {
        if self.writing.is_empty() {
            return;
        }
        let key = *self
            .writing
            .keys()
            .nth(nth.index(self.writing.len()))
            .expect("in range");
        let entry = self.writing.remove(&key).expect("its key was just read");
        if commit {
            let version = shard.commit_put(entry.id);
            assert!(version > self.last_version, "versions rise");
            assert_eq!(shard.version(entry.id), version);
            self.last_version = version;
            self.resident.push((key, entry));
        } else {
            shard.abort_put(entry.id);
            self.released.push(entry.id);
        }
    }

    fn get(&mut self, shard: &mut Shard, key: u128) {
        let found = shard.get(Fingerprint(key));
        let expected = self.find(key).map(|at| {
            let entry = &mut self.resident[at].1;
            entry.pins += 1;
            entry.id
        });
        assert_eq!(found, expected);
    }

    fn unpin(&mut self, shard: &mut Shard, nth: Index) {
        let resident = self.resident.iter_mut().map(|(_, entry)| entry);
        let mut pinned: Vec<_> = resident
            .chain(&mut self.dying)
            .filter(|entry| entry.pins > 0)
            .collect();
        if pinned.is_empty() {
            return;
        }
        let at = nth.index(pinned.len());
        let entry = &mut pinned[at];
        shard.unpin(entry.id);
        entry.pins -= 1;
        let gone = self.dying.extract_if(.., |entry| entry.pins == 0);
        self.released.extend(gone.map(|entry| entry.id));
    }

    fn remove(&mut self, shard: &mut Shard, key: u128) {
        let outcome = shard.remove(Fingerprint(key));
        if self.writing.contains_key(&key) {
            assert_eq!(outcome, RemoveOutcome::Busy);
        } else if let Some(at) = self.find(key) {
            assert_eq!(outcome, RemoveOutcome::Removed);
            let (_, entry) = self.resident.remove(at);
            if entry.pins == 0 {
                self.released.push(entry.id);
            } else {
                self.dying.push(entry);
            }
        } else {
            assert_eq!(outcome, RemoveOutcome::NotFound);
        }
    }

    fn make_room(&mut self, shard: &mut Shard, bytes: u64) {
        let before = self.used();
        let freed = shard.make_room(bytes);
        let evicted = self.follow(shard);
        assert_eq!(freed, evicted.iter().sum::<u64>());
        assert_eq!(freed, before - self.used());
        let can_go_on = self.resident.iter().any(|(_, entry)| entry.pins == 0);
        assert!(freed >= bytes || !can_go_on, "it is enough");
        let longest = evicted.iter().max().copied().unwrap_or(0);
        assert!(evicted.is_empty() || freed - longest < bytes, "no more");
    }

    fn check(&mut self, shard: &mut Shard, drain: bool) {
        let stats = shard.stats();
        assert_eq!(stats.used_bytes, self.used());
        assert!(stats.used_bytes <= self.high);
        assert_eq!(stats.entries, self.entries() as u64);
        assert!(self.entries() <= self.entries_max);
        let resident: u64 = self
            .resident
            .iter()
            .map(|(_, entry)| entry.extent_bytes)
            .sum();
        assert_eq!(stats.resident_bytes, resident);
        assert_eq!(stats.evictions, self.evictions);
        assert_eq!(stats.gets, stats.hits + stats.misses);
        for key in (0..KEYS).map(u128::from) {
            let expected = self.find(key).map(|at| self.resident[at].1.id);
            assert_eq!(shard.lookup(Fingerprint(key)), expected, "key {key}");
        }
        assert!(self.released.iter().all(|&id| !shard.is_live(id)));
        if drain {
            let released = std::iter::from_fn(|| shard.poll_effect());
            let mut released: Vec<_> = released.map(|Effect::Release(id)| id).collect();
            let mut expected = std::mem::take(&mut self.released);
            released.sort_by_key(|id| id.generation);
            expected.sort_by_key(|id| id.generation);
            assert_eq!(released, expected, "each release once");
        }
    }
}

proptest! {
    #[test]
    fn the_shard_agrees_with_the_list(
        high in 1_u64..2000,
        low_share in 0_u64..=100,
        entries_max in 1_usize..12,
        ops in prop::collection::vec((op(), any::<bool>()), 1..200),
    ) {
        let low = high * low_share / 100;
        let limits = ShardLimits::new(high, low, entries_max).expect("valid limits");
        let mut shard = Shard::new(limits);
        let mut model = Model {
            high,
            low,
            entries_max,
            writing: BTreeMap::new(),
            resident: Vec::new(),
            dying: Vec::new(),
            released: Vec::new(),
            evictions: 0,
            last_version: 0,
        };
        for (op, drain) in ops {
            match op {
                Op::Ask(Step { key, request }) => {
                    let key = u128::from(key);
                    match request {
                        Request::Get => model.get(&mut shard, key),
                        Request::Put { .. } => {
                            let extent_bytes = request.len_between(0, EXTENT_BYTES_MAX);
                            model.put(&mut shard, key, extent_bytes);
                        }
                        // `check` looks up every key after every step.
                        Request::Exists => {}
                        Request::Remove => model.remove(&mut shard, key),
                    }
                }
                Op::Commit(nth) => model.end_put(&mut shard, nth, true),
                Op::Abort(nth) => model.end_put(&mut shard, nth, false),
                Op::Unpin(nth) => model.unpin(&mut shard, nth),
                Op::MakeRoom { bytes } => model.make_room(&mut shard, bytes),
            }
            model.check(&mut shard, drain);
        }
        model.check(&mut shard, true);
    }
}
