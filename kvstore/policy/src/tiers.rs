//! Memory and a drive behind it, judged together.
//!
//! The drive's policy knows all blocks of both tiers, in as many slots as the drive has: what it lets
//! go while that lies in memory only is never written. What memory lets go is written if the drive's
//! policy still wants it, unless it lies there already: a block that is promoted keeps its place on the drive.

use hashbrown::HashMap;

use crate::class::{Found, Use};
use crate::hash::MixBuild;
use crate::replay::{Cache, Tally, Trace};
use crate::{Learned, Policy};

/// The default admission: what the drive would let go soon is not worth a write. Higher parts spare more
/// writes, and cost hits: see the package's tests for how many.
pub const ADMISSION_DEFAULT: Admission = Admission::Worth(2.0);

/// Which blocks that memory lets go are written to the drive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Admission {
    /// All of them.
    All,
    /// Those whose chance of a next use is at least this part of the chance of the drive's next victim.
    Worth(f64),
}

/// What two tiers did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierTally {
    /// Blocks asked for, and those that were in either tier.
    pub either: Tally,
    /// Of the hits, those that came from the drive.
    pub drive_hits: u64,
    /// Blocks written to the drive.
    pub writes: u64,
}

impl TierTally {
    /// Drive writes per block that was in neither tier.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "traces have far fewer than 2^53 blocks"
    )]
    pub const fn writes_per_miss(self) -> f64 {
        let missed = self.either.blocks - self.either.hits;
        if missed == 0 {
            0.0
        } else {
            self.writes as f64 / missed as f64
        }
    }
}

/// Both tiers.
#[derive(Debug)]
pub struct Tiers {
    memory: Cache<Learned>,
    /// All blocks that are wanted on the drive, or are there.
    wanted: Cache<Learned>,
    /// Blocks that are on the drive.
    on_drive: HashMap<u64, (), MixBuild>,
    admission: Admission,
    tally: TierTally,
}

impl Tiers {
    /// Empty tiers of so many blocks.
    #[must_use]
    pub fn new(memory_blocks: usize, drive_blocks: usize, admission: Admission) -> Self {
        Self {
            memory: Cache::new(Learned::new(memory_blocks), memory_blocks),
            wanted: Cache::new(Learned::new(drive_blocks), drive_blocks),
            on_drive: HashMap::default(),
            admission,
            tally: TierTally::default(),
        }
    }

    /// What was served.
    #[must_use]
    pub const fn tally(&self) -> TierTally {
        self.tally
    }

    fn is_here(&self, key: u64) -> bool {
        self.memory.contains(key) || self.on_drive.contains_key(&key)
    }

    /// Serves a request.
    pub fn serve(&mut self, request: &[u64]) {
        let hits = request.iter().filter(|&&key| self.is_here(key)).count();
        let in_memory = request
            .iter()
            .filter(|&&key| self.memory.contains(key))
            .count();
        self.tally.either.count(request.len(), hits);
        self.tally.drive_hits += (hits - in_memory) as u64;
        let known = request
            .iter()
            .take_while(|&&key| self.is_here(key) || self.memory.policy().remembers(key));
        let found = Found::of(known.count(), request.len());
        for (at, &key) in request.iter().enumerate().rev() {
            let is_last = at + 1 == request.len();
            self.use_block(key, Use { is_last, found });
        }
    }

    fn use_block(&mut self, key: u64, used: Use) {
        if let Some(unwanted) = self.wanted.use_block(key, used) {
            self.on_drive.remove(&unwanted);
        }
        if let Some(demoted) = self.memory.use_block(key, used)
            && !self.on_drive.contains_key(&demoted)
        {
            self.demote(demoted);
        }
    }

    fn demote(&mut self, key: u64) {
        let Some(slot_index) = self.wanted.slot_of(key) else {
            return;
        };
        let is_full = self.wanted.len() >= self.wanted.blocks_max();
        if let Admission::Worth(part) = self.admission
            && is_full
        {
            let chance = self.wanted.policy().chance(slot_index);
            let victim = self.wanted.policy_mut().victim();
            let least = victim.map(|victim| self.wanted.policy().chance(victim));
            if least.is_some_and(|least| chance < part * least) {
                self.wanted.let_go(slot_index);
                return;
            }
        }
        self.on_drive.insert(key, ());
        self.tally.writes += 1;
    }
}

/// Serves a whole trace.
#[must_use]
pub fn replay_tiers(
    trace: &Trace,
    memory_blocks: usize,
    drive_blocks: usize,
    admission: Admission,
) -> TierTally {
    let mut tiers = Tiers::new(memory_blocks, drive_blocks, admission);
    for request in trace.requests() {
        tiers.serve(request);
    }
    tiers.tally()
}
