//! Ranks on their ways through the buckets of an update, some of which fail, beside what must always hold.

use std::collections::BTreeMap;
use std::time::Duration;

use lunette_p2p_proto::Version;
use lunette_p2p_proto::update::{
    Action, BucketRecord, Manifest, Outcome, Pipeline, PipelineOptions,
};
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;
use proptest::prelude::*;

/// What is said to have a slot, beside the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Fetch,
    /// It is here, and nobody looks at it.
    Rest,
    Copy,
    Release,
}

/// How a rank goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Well,
    /// It stops when so many buckets were copied.
    Stops(u32),
    /// This bucket is never to be had.
    Lacks(u32),
}

struct Rank {
    pipeline: Pipeline,
    fate: Fate,
    options: PipelineOptions,
    buckets: u32,
    /// What is in each slot, and what is done to it.
    slots: BTreeMap<u32, (u32, Doing)>,
    tries: BTreeMap<u32, u32>,
    copied: u32,
    is_complete: bool,
    outcome: Option<Outcome>,
}

impl Rank {
    fn new(buckets: u32, options: PipelineOptions, fate: Fate) -> Self {
        Self {
            pipeline: Pipeline::new(buckets, options),
            fate,
            options,
            buckets,
            slots: BTreeMap::new(),
            tries: BTreeMap::new(),
            copied: 0,
            is_complete: false,
            outcome: None,
        }
    }

    /// Takes what is to be done, and checks it.
    fn act(&mut self) {
        while let Some(action) = self.pipeline.poll_action() {
            assert_eq!(self.outcome, None, "nothing comes behind the end");
            match action {
                Action::Fetch { bucket, slot } => {
                    let before = self.slots.insert(slot, (bucket, Doing::Fetch));
                    let again = matches!(before, Some((of, Doing::Rest)) if of == bucket);
                    let tries = self.tries.entry(bucket).or_default();
                    assert!(before.is_none() || again && *tries > 0, "somebody has it");
                    *tries += 1;
                    assert!(*tries <= self.options.tries_max);
                    assert!(slot < self.options.slots && bucket < self.buckets);
                    let ahead = (self.options.slots - 2).max(1);
                    assert!(bucket <= self.copied + ahead, "too far ahead");
                }
                Action::Lend { bucket, slot } => {
                    assert_eq!(bucket, self.copied, "in their order");
                    let copying = self.slots.values().filter(|it| it.1 == Doing::Copy);
                    assert_eq!(copying.count(), 0, "one at a time");
                    let before = self.slots.insert(slot, (bucket, Doing::Copy));
                    assert_eq!(before, Some((bucket, Doing::Rest)));
                }
                Action::Release { bucket, slot } => {
                    let before = self.slots.insert(slot, (bucket, Doing::Release));
                    let before = before.expect("it has something");
                    assert_eq!(before.0, bucket);
                    assert!(matches!(before.1, Doing::Rest | Doing::Fetch), "{before:?}");
                }
                Action::Complete => {
                    assert!(!self.is_complete && self.copied == self.buckets);
                    self.is_complete = true;
                }
                Action::Ended(outcome) => {
                    // What rests after it failed was nobody's.
                    let is_anybodys = |it: &&(u32, Doing)| it.1 != Doing::Rest;
                    assert_eq!(self.slots.values().find(is_anybodys), None);
                    self.outcome = Some(outcome);
                }
            }
        }
    }

    /// Does one of the things that are under way, or lets time go. Whether there was anything.
    fn step(&mut self, now: &mut Time, random: &mut SplitMix64, failing: u32) -> bool {
        self.act();
        if self.outcome.is_some() {
            return false;
        }
        if self.is_complete || self.fate == Fate::Stops(self.copied) {
            self.pipeline.stop();
            self.act();
        }
        let busy = self.slots.iter().filter(|(_, it)| it.1 != Doing::Rest);
        let busy: Vec<_> = busy.map(|(&slot, &it)| (slot, it)).collect();
        let count = u32::try_from(busy.len()).expect("few");
        if count == 0 {
            let Some(deadline) = self.pipeline.deadline() else {
                return false;
            };
            *now = deadline.max(*now);
            self.pipeline.on_time(*now);
            self.act();
            return true;
        }
        let (slot, (bucket, doing)) = busy[random.below(count) as usize];
        match doing {
            Doing::Fetch if self.fate == Fate::Lacks(bucket) => {
                self.slots.insert(slot, (bucket, Doing::Rest));
                self.pipeline.on_failed(*now, bucket, random.below(2) == 0);
            }
            Doing::Fetch if self.may_fail(bucket) && random.below(100) < failing => {
                self.slots.insert(slot, (bucket, Doing::Rest));
                self.pipeline.on_failed(*now, bucket, true);
            }
            Doing::Fetch => {
                self.slots.insert(slot, (bucket, Doing::Rest));
                self.pipeline.on_fetched(bucket);
            }
            Doing::Copy => {
                self.slots.insert(slot, (bucket, Doing::Rest));
                self.copied += 1;
                self.pipeline.on_copied(bucket);
                assert_eq!(self.pipeline.copied(), self.copied);
            }
            Doing::Release => {
                self.slots.remove(&slot);
                self.pipeline.on_released(bucket);
            }
            Doing::Rest => unreachable!("it was left out"),
        }
        // Said twice, or of what is none of its business, it changes nothing.
        let nones = bucket + 100 * self.options.slots;
        self.pipeline.on_released(nones);
        self.pipeline.on_fetched(nones);
        *now = *now + Duration::from_millis(u64::from(random.below(50)));
        self.act();
        true
    }

    /// Whether one more failure is not the last.
    fn may_fail(&self, bucket: u32) -> bool {
        self.tries[&bucket] < self.options.tries_max
    }

    /// What becomes of a rank, whatever happens to others.
    fn expected(&self) -> Outcome {
        match self.fate {
            Fate::Stops(after) if after < self.buckets => Outcome::Stopped,
            Fate::Lacks(bucket) if bucket < self.buckets => Outcome::Failed(bucket),
            Fate::Well | Fate::Stops(_) | Fate::Lacks(_) => Outcome::Complete,
        }
    }
}

fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![
        2 => Just(Fate::Well),
        1 => (0..12_u32).prop_map(Fate::Stops),
        1 => (0..12_u32).prop_map(Fate::Lacks),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_read_as_a_manifest_has_one_form(
        is_named in any::<bool>(),
        count in 0..4_u32,
        rest in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut bytes = Vec::new();
        if is_named {
            bytes.extend_from_slice(b"LUNETTEU");
            bytes.extend_from_slice(&1_u32.to_le_bytes());
            bytes.extend_from_slice(&[7; 8]);
            bytes.extend_from_slice(&count.to_le_bytes());
        }
        bytes.extend_from_slice(&rest);
        let read = Manifest::decode(&bytes);
        let is_right = is_named && count > 0 && rest.len() == 16 * count as usize;
        prop_assert_eq!(read.is_ok(), is_right);
        if let Ok(manifest) = read {
            prop_assert_eq!(manifest.encode(), bytes);
        }
    }

    #[test]
    fn a_manifest_of_any_buckets_is_read_again(
        id in any::<u64>(),
        buckets in prop::collection::vec((any::<u64>(), any::<u64>()), 1..40),
    ) {
        let buckets = buckets.into_iter().map(|(version, staging_bytes)| BucketRecord {
            version: Version(version),
            staging_bytes,
        });
        let manifest = Manifest { id, buckets: buckets.collect() };
        prop_assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
    }

    #[test]
    fn each_rank_ends_as_its_own_fate_is(
        buckets in 0..10_u32,
        slots in 2..6_u32,
        tries_max in 1..4_u32,
        failing in 0..60_u32,
        fates in prop::collection::vec(fates(), 1..5),
        seed in any::<u64>(),
    ) {
        let options = PipelineOptions { slots, tries_max };
        let mut random = SplitMix64::new(seed);
        let mut now = Time::ZERO;
        let ranks = fates.iter().map(|&fate| Rank::new(buckets, options, fate));
        let mut ranks: Vec<_> = ranks.collect();
        let mut left: Vec<usize> = (0..ranks.len()).collect();
        for _ in 0..20_000 {
            if left.is_empty() {
                break;
            }
            let at = random.below(u32::try_from(left.len()).expect("few")) as usize;
            if !ranks[left[at]].step(&mut now, &mut random, failing) {
                left.swap_remove(at);
            }
        }
        for rank in &ranks {
            prop_assert_eq!(rank.outcome, Some(rank.expected()), "{:?}", rank.fate);
            prop_assert_eq!(rank.is_complete, rank.expected() == Outcome::Complete);
        }
    }
}
