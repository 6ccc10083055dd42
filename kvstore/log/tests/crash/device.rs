//! A drive that may lose, tear and reorder what it was not told to keep.

use std::collections::{BTreeMap, BTreeSet};

use lunette_kvstore_log::effect::OpId;
use lunette_runtime_core::random::SplitMix64;

/// What is written whole or not at all.
const SECTOR_BYTES: usize = 512;

/// A write that was not flushed, or has not ended.
#[derive(Clone, Debug)]
struct Write {
    offset: usize,
    bytes: Vec<u8>,
}

/// What happens to all that was written and is not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crash {
    /// The program ends: what has ended stays, what has not may be there in part.
    Kill,
    /// The drive ends as well: of what was not flushed any sectors may be there.
    PowerCut,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Device {
    has_cache: bool,
    /// What a read finds.
    live: Vec<u8>,
    /// What stays when the power goes.
    durable: Vec<u8>,
    writing: BTreeMap<OpId, Write>,
    /// Writes that have ended since the last flush began.
    cached: Vec<Write>,
    /// Those that a flush is making durable.
    flushing: BTreeMap<OpId, Vec<Write>>,
    /// Those that were under way when a flush failed.
    spoiled: BTreeSet<OpId>,
}

impl Device {
    pub(super) fn new(capacity: usize, has_cache: bool, random: &mut SplitMix64) -> Self {
        // Something that was there before.
        let mut live = vec![0; capacity];
        for byte in live.iter_mut().step_by(97) {
            *byte = random.next().to_le_bytes()[0];
        }
        Self {
            has_cache,
            durable: live.clone(),
            live,
            writing: BTreeMap::new(),
            cached: Vec::new(),
            flushing: BTreeMap::new(),
            spoiled: BTreeSet::new(),
        }
    }

    pub(super) fn read(&self, offset: u64, len: u32) -> &[u8] {
        let offset = usize::try_from(offset).expect("small");
        &self.live[offset..offset + len as usize]
    }

    pub(super) fn begin_write(&mut self, op: OpId, offset: u64, bytes: Vec<u8>) {
        let offset = usize::try_from(offset).expect("small");
        assert!(
            offset.is_multiple_of(4096) && bytes.len().is_multiple_of(4096),
            "whole blocks"
        );
        assert!(
            offset + bytes.len() <= self.live.len(),
            "inside of the drive"
        );
        let former = self.writing.insert(op, Write { offset, bytes });
        assert!(former.is_none(), "an operation is begun once");
    }

    /// A write ends, or has failed after some of it.
    pub(super) fn end_write(&mut self, op: OpId, is_ok: bool, random: &mut SplitMix64) {
        let write = self.writing.remove(&op).expect("it was begun");
        let is_spoiled = self.spoiled.remove(&op);
        if !is_ok {
            scatter(&write, random, &mut self.live);
            self.keep_live(&write);
        } else if is_spoiled {
            put(&write, &mut self.live);
            scatter(&write, random, &mut self.durable);
        } else if self.has_cache {
            put(&write, &mut self.live);
            self.cached.push(write);
        } else {
            put(&write, &mut self.live);
            put(&write, &mut self.durable);
        }
    }

    pub(super) fn begin_flush(&mut self, op: OpId) {
        self.flushing.insert(op, std::mem::take(&mut self.cached));
    }

    /// A flush ends. If it has failed, what was written and is not durable is taken for that from now on, also what is
    /// being written: systems take failed pages for clean.
    pub(super) fn end_flush(&mut self, op: OpId, is_ok: bool, random: &mut SplitMix64) {
        let writes = self.flushing.remove(&op).expect("it was begun");
        if is_ok {
            for write in &writes {
                put(write, &mut self.durable);
            }
        } else {
            let cached = std::mem::take(&mut self.cached);
            for write in writes.iter().chain(&cached) {
                scatter(write, random, &mut self.durable);
            }
            self.spoiled.extend(self.writing.keys());
        }
    }

    pub(super) fn crash(&mut self, crash: Crash, random: &mut SplitMix64) {
        self.spoiled.clear();
        let writing: Vec<Write> = std::mem::take(&mut self.writing).into_values().collect();
        match crash {
            Crash::Kill => {
                for write in writing {
                    scatter(&write, random, &mut self.live);
                    self.keep_live(&write);
                }
                // A flush that nobody waits for any more may be over.
                for writes in std::mem::take(&mut self.flushing).into_values() {
                    self.cached.splice(0..0, writes);
                }
            }
            Crash::PowerCut => {
                let flushing = std::mem::take(&mut self.flushing).into_values().flatten();
                let cached = std::mem::take(&mut self.cached);
                for write in flushing.chain(cached).chain(writing) {
                    scatter(&write, random, &mut self.durable);
                }
                self.live.clone_from(&self.durable);
            }
        }
    }

    /// What was written of a write that has not ended well is in the cache, or on the drive.
    fn keep_live(&mut self, write: &Write) {
        let bytes = self.live[write.range()].to_vec();
        if self.has_cache {
            let offset = write.offset;
            self.cached.push(Write { offset, bytes });
        } else {
            self.durable[write.range()].copy_from_slice(&bytes);
        }
    }

    /// Flips a bit where something was written.
    pub(super) fn flip(&mut self, random: &mut SplitMix64) {
        let bound = u32::try_from(self.live.len()).expect("small");
        loop {
            let block = random.below(bound / 4096) as usize * 4096;
            let range = block..block + 4096;
            let used = self.live[range].iter().rposition(|&byte| byte != 0);
            if let Some(used) = used {
                let at = block + random.below(u32::try_from(used + 1).expect("small")) as usize;
                let bit = 1 << random.below(8);
                self.live[at] ^= bit;
                self.durable[at] ^= bit;
                return;
            }
        }
    }
}

impl Write {
    const fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.bytes.len()
    }
}

fn put(write: &Write, image: &mut [u8]) {
    image[write.range()].copy_from_slice(&write.bytes);
}

/// All of it, nothing, a front, or any sectors.
fn scatter(write: &Write, random: &mut SplitMix64, image: &mut [u8]) {
    let sectors = u32::try_from(write.bytes.len() / SECTOR_BYTES).expect("small");
    let kind = random.below(4);
    let front = random.below(sectors + 1);
    let chance = 1 + random.below(15);
    for sector in 0..sectors {
        let is_kept = match kind {
            0 => true,
            1 => false,
            2 => sector < front,
            _ => random.below(16) < chance,
        };
        if is_kept {
            let at = sector as usize * SECTOR_BYTES;
            let bytes = &write.bytes[at..at + SECTOR_BYTES];
            image[write.offset + at..][..SECTOR_BYTES].copy_from_slice(bytes);
        }
    }
}
