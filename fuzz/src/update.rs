//! What is told of weights in buckets, how they are packed, and a rank's way through them, whatever is said to it.
//!
//! ```text
//!   first byte: what the rest is
//!     manifest    a flag: whether magic and format come before the rest; then bytes
//!     packing     length of buckets, number of tensors; of each its buffer, place, length, and whether it is of nibbles
//!     pipeline    buckets, slots, tries; then for each step a byte that says what, and its choices
//! ```
//!
//! The pipeline is told what is true of it and what is not: that buckets came that nobody fetches, were copied that were not
//! lent, or were released twice.

use std::collections::BTreeMap;
use std::time::Duration;

use lunette_generate::{Bytes, Source};
use lunette_p2p_proto::layout::{Dtype, Tensor};
use lunette_p2p_proto::update::{
    Action, BUCKETS_MAX, Bucket, Manifest, Outcome, PackFault, Pipeline, PipelineOptions,
    SLOTS_MIN, pack, staged,
};
use lunette_runtime_core::time::Time;

/// Most drawn tensors.
const TENSORS_MAX: u8 = 12;
/// Most drawn buckets.
const DRAWN_MAX: u8 = 12;
/// Most steps of a script, so that one run stays short.
const STEPS_MAX: usize = 400;

/// What a script reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// What tells of buckets.
    pub manifests: u32,
    /// What does not.
    pub no_manifests: u32,
    /// Tensors that were packed into more than one bucket.
    pub packed: u32,
    /// Tensors that make no buckets.
    pub not_packed: u32,
    /// Ranks that copied all.
    pub complete: u32,
    /// Ranks for which a bucket was not to be had.
    pub failed: u32,
    /// Ranks that were stopped.
    pub stopped: u32,
    /// Buckets that were tried again.
    pub tried_again: u32,
    /// What was said that is not so.
    pub untrue: u32,
}

/// Reads what is told, packs, or drives a rank.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn update(data: &[u8]) -> Reached {
    let mut source = Bytes::new(data);
    let mut reached = Reached::default();
    match source.below(3) {
        0 => manifest(&mut source, &mut reached),
        1 => packing(&mut source, &mut reached),
        _ => Rank::drawn(&mut source).run(&mut source, &mut reached),
    }
    reached
}

fn manifest(source: &mut Bytes<'_>, reached: &mut Reached) {
    let mut bytes = Vec::new();
    if source.flag() {
        bytes.extend_from_slice(b"LUNETTEU");
        bytes.extend_from_slice(&1_u32.to_le_bytes());
    }
    bytes.extend_from_slice(source.take(usize::MAX));
    let Ok(manifest) = Manifest::decode(&bytes) else {
        reached.no_manifests += 1;
        return;
    };
    reached.manifests += 1;
    assert!((1..=BUCKETS_MAX).contains(&manifest.buckets.len()));
    assert_eq!(manifest.encode(), bytes, "it has one form");
    let slot_bytes = manifest.slot_bytes();
    let mut each = manifest.buckets.iter();
    assert!(each.all(|bucket| bucket.staging_bytes <= slot_bytes));
    let name = "weights".parse().expect("a name");
    let buckets = u32::try_from(manifest.buckets.len()).expect("bounded");
    let names = (0..buckets).map(|at| Manifest::bucket_name(&name, manifest.id, at));
    let mut names: Vec<_> = names.map(|name| name.expect("short").to_string()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), manifest.buckets.len(), "names of their own");
}

fn packing(source: &mut Bytes<'_>, reached: &mut Reached) {
    let bucket_bytes = u64::from(source.u8());
    let count = source.below(TENSORS_MAX + 1);
    let tensors = (0..count).map(|at| {
        let (buffer, offset) = (u32::from(source.below(3)), u64::from(source.u8()) * 5);
        let (elements, is_nibbles) = (u64::from(source.u8()), source.below(8) == 7);
        let dtype = if is_nibbles { Dtype::F4 } else { Dtype::U8 };
        Tensor::whole(format!("t{at}"), dtype, vec![elements], buffer, offset)
    });
    let tensors: Vec<_> = tensors.collect();
    let lens: Vec<_> = tensors.iter().map(Tensor::len_bytes).collect();
    let longest = lens.iter().flatten().max().copied().unwrap_or(0);
    let buckets = match pack(tensors.clone(), bucket_bytes) {
        Ok(buckets) => buckets,
        Err(fault) => {
            let is_odd = lens.contains(&None);
            assert_eq!(is_odd, matches!(fault, PackFault::Length { .. }));
            assert!(is_odd || longest == 0, "{fault}");
            reached.not_packed += 1;
            return;
        }
    };
    reached.packed += u32::from(buckets.len() > 1);
    let mut packed = BTreeMap::new();
    for bucket in &buckets {
        check_bucket(bucket, bucket_bytes.max(longest));
        for tensor in &bucket.tensors {
            let run = &bucket.runs[tensor.buffer as usize];
            assert!(tensor.offset_bytes + tensor.len_bytes().expect("packed") <= run.len_bytes);
            let back = Tensor {
                buffer: run.buffer,
                offset_bytes: run.offset_bytes + tensor.offset_bytes,
                ..tensor.clone()
            };
            assert_eq!(packed.insert(tensor.name.clone(), back), None, "once");
        }
    }
    assert_eq!(packed.len(), tensors.len(), "each is in a bucket");
    for tensor in tensors {
        assert_eq!(packed[&tensor.name], tensor, "and lies where it lay");
    }
}

fn check_bucket(bucket: &Bucket, len_bytes_max: u64) {
    let lens: Vec<_> = bucket.runs.iter().map(|run| run.len_bytes).collect();
    let len_bytes: u64 = lens.iter().sum();
    assert!((1..=len_bytes_max).contains(&len_bytes));
    let (offsets, end) = staged(lens.iter().copied());
    let ends = offsets[1..].iter().chain([&end]);
    for ((offset, len), next) in offsets.iter().zip(&lens).zip(ends) {
        assert!(offset + len <= *next && offset % 256 == 0, "{bucket:?}");
    }
}

/// What is done with a slot, beside the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Fetch,
    /// It came, or failed.
    Nothing,
    Copy,
    Release,
}

struct Rank {
    pipeline: Pipeline,
    options: PipelineOptions,
    buckets: u32,
    /// What is in each slot, and what is done to it.
    slots: BTreeMap<u32, (u32, Doing)>,
    tries: BTreeMap<u32, u32>,
    now: Time,
    copied: u32,
    /// The program has stopped it.
    is_stopped: bool,
    /// It was told that this one is not to be had.
    lacks: Option<u32>,
    is_complete: bool,
    outcome: Option<Outcome>,
}

impl Rank {
    fn drawn(source: &mut Bytes<'_>) -> Self {
        let buckets = u32::from(source.below(DRAWN_MAX + 1));
        let options = PipelineOptions {
            slots: SLOTS_MIN + u32::from(source.below(4)),
            tries_max: 1 + u32::from(source.below(3)),
        };
        Self {
            pipeline: Pipeline::new(buckets, options),
            options,
            buckets,
            slots: BTreeMap::new(),
            tries: BTreeMap::new(),
            now: Time::ZERO,
            copied: 0,
            is_stopped: false,
            lacks: None,
            is_complete: false,
            outcome: None,
        }
    }

    fn run(mut self, source: &mut Bytes<'_>, reached: &mut Reached) {
        self.act(reached);
        for _ in 0..STEPS_MAX {
            if source.is_spent() {
                break;
            }
            self.step(source, reached);
        }
        // Nothing fails any more, and everybody answers.
        for _ in 0..STEPS_MAX {
            if self.is_complete && !self.is_stopped {
                self.stop(reached);
            }
            self.answer(0, reached);
        }
        let expected = match self.lacks {
            Some(bucket) => Outcome::Failed(bucket),
            None if self.is_complete => Outcome::Complete,
            None => Outcome::Stopped,
        };
        assert_eq!(self.outcome, Some(expected));
        match expected {
            Outcome::Complete => reached.complete += 1,
            Outcome::Failed(_) => reached.failed += 1,
            Outcome::Stopped => reached.stopped += 1,
        }
    }

    fn step(&mut self, source: &mut Bytes<'_>, reached: &mut Reached) {
        match source.below(8) {
            0 => self.pass(u64::from(source.u8()) * 20, reached),
            1 if source.below(16) == 15 => self.stop(reached),
            1 | 2 => self.lie(source, reached),
            3 => self.fail(source, reached),
            _ => self.answer(usize::from(source.u8()), reached),
        }
    }

    /// Takes what is to be done, and checks it.
    fn act(&mut self, reached: &mut Reached) {
        while let Some(action) = self.pipeline.poll_action() {
            assert_eq!(self.outcome, None, "nothing comes behind the end");
            match action {
                Action::Fetch { bucket, slot } => {
                    assert!(bucket < self.buckets && slot < self.options.slots);
                    assert!(!self.is_stopped && self.lacks.is_none(), "it ends");
                    let tries = self.tries.entry(bucket).or_default();
                    *tries += 1;
                    assert!(*tries <= self.options.tries_max);
                    let before = self.slots.insert(slot, (bucket, Doing::Fetch));
                    let is_again = before == Some((bucket, Doing::Nothing)) && *tries > 1;
                    assert!(before.is_none() || is_again, "somebody has it");
                    reached.tried_again += u32::from(is_again);
                }
                Action::Lend { bucket, slot } => {
                    assert_eq!(bucket, self.copied, "in their order");
                    assert!(self.slots.values().all(|it| it.1 != Doing::Copy));
                    let before = self.slots.insert(slot, (bucket, Doing::Copy));
                    assert_eq!(before, Some((bucket, Doing::Nothing)), "it is here");
                }
                Action::Release { bucket, slot } => {
                    let before = self.slots.insert(slot, (bucket, Doing::Release));
                    let is_its = |doing| before == Some((bucket, doing));
                    assert!(is_its(Doing::Fetch) || is_its(Doing::Nothing), "{before:?}");
                }
                Action::Complete => {
                    assert!(!self.is_complete && self.copied == self.buckets);
                    self.is_complete = true;
                }
                Action::Ended(outcome) => {
                    let mut each = self.slots.values();
                    assert!(each.all(|it| it.1 == Doing::Nothing), "nobody has one");
                    self.outcome = Some(outcome);
                }
            }
        }
        assert_eq!(self.pipeline.copied(), self.copied);
        let deadline = self.pipeline.deadline();
        assert!(self.outcome.is_none() || deadline.is_none());
    }

    /// Answers one of the things that are under way as it is wished for, or lets the time come.
    fn answer(&mut self, at: usize, reached: &mut Reached) {
        let busy = self.slots.iter().filter(|(_, it)| it.1 != Doing::Nothing);
        let busy: Vec<_> = busy.map(|(&slot, &it)| (slot, it)).collect();
        let Some(&(slot, (bucket, doing))) = busy.get(at % busy.len().max(1)) else {
            return self.pass(0, reached);
        };
        match doing {
            Doing::Fetch => {
                self.slots.insert(slot, (bucket, Doing::Nothing));
                self.pipeline.on_fetched(bucket);
            }
            Doing::Copy => {
                self.slots.insert(slot, (bucket, Doing::Nothing));
                self.copied += 1;
                self.pipeline.on_copied(bucket);
            }
            Doing::Release => {
                self.slots.remove(&slot);
                self.pipeline.on_released(bucket);
            }
            Doing::Nothing => unreachable!("it was left out"),
        }
        self.act(reached);
    }

    /// One of those that are fetched does not come.
    fn fail(&mut self, source: &mut Bytes<'_>, reached: &mut Reached) {
        let is_retryable = source.below(4) > 0;
        let fetched = self.slots.iter().find(|(_, it)| it.1 == Doing::Fetch);
        let Some((&slot, &(bucket, _))) = fetched else {
            return;
        };
        self.slots.insert(slot, (bucket, Doing::Nothing));
        if !is_retryable || self.tries[&bucket] == self.options.tries_max {
            self.lacks = Some(bucket);
        }
        self.pipeline.on_failed(self.now, bucket, is_retryable);
        self.act(reached);
    }

    /// Says something that is not so: nothing comes of it.
    fn lie(&mut self, source: &mut Bytes<'_>, reached: &mut Reached) {
        let bucket = u32::from(source.u8());
        let doing = self.slots.get(&(bucket % self.options.slots));
        let is_so = |what| doing == Some(&(bucket, what));
        match source.below(4) {
            0 if !is_so(Doing::Fetch) => self.pipeline.on_fetched(bucket),
            1 if !is_so(Doing::Fetch) => self.pipeline.on_failed(self.now, bucket, source.flag()),
            2 if !is_so(Doing::Copy) => self.pipeline.on_copied(bucket),
            3 if !is_so(Doing::Release) => self.pipeline.on_released(bucket),
            _ => return,
        }
        reached.untrue += 1;
        assert_eq!(self.pipeline.poll_action(), None, "nothing comes of it");
    }

    fn stop(&mut self, reached: &mut Reached) {
        self.is_stopped = true;
        self.pipeline.stop();
        self.act(reached);
    }

    /// Time goes by: to the next deadline, if it is told no other.
    fn pass(&mut self, millis: u64, reached: &mut Reached) {
        self.now = match self.pipeline.deadline() {
            Some(deadline) if millis == 0 => self.now.max(deadline),
            _ => self.now + Duration::from_millis(millis),
        };
        self.pipeline.on_time(self.now);
        self.act(reached);
    }
}
