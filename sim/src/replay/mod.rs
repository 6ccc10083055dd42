//! A trace of requests, served by a cluster: how much of what was asked for was there, beside one cache that holds as much.
//!
//! Members with several cores, and a client on each core, as where engines run beside the store: requests come to the cores
//! in turn. Each asks for all of its blocks in one call, and puts those that were not there behind the blocks before
//! them. A hit is a block that was there before. Nothing fails here.
//!
//! | file | subject |
//! |---|---|
//! | `town` | the members |
//! | `serving` | a request |

mod serving;
mod town;

use std::collections::{BTreeMap, BTreeSet};

use lunette_kvstore::DriveReport;
use lunette_kvstore_policy::Learned;
use lunette_kvstore_policy::replay::{Trace, replay};

use self::town::Town;

/// Requests between two looks at what lacks the block before it; none in the first eighth, while memory fills.
const LOOK_EVERY: usize = 250;

/// What is to serve.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Of what the world draws.
    pub seed: u64,
    /// Members.
    pub nodes: u8,
    /// Cores of each.
    pub cores: usize,
    /// Length of a block in bytes.
    pub block_bytes: usize,
    /// Blocks that the members' memory has room for, all of them together.
    pub memory_blocks: usize,
    /// Blocks that their drives have room for, all of them together; 0: they have none.
    pub drive_blocks: usize,
    /// Whether blocks are put [behind](lunette_kvstore::PutOptions::behind) those before them.
    pub are_chains: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Blocks that were asked for.
    pub blocks: u64,
    /// Those of them that were there.
    pub hits: u64,
    /// Those of them before the first of their request that was not.
    pub leading_hits: u64,
    /// How often it was looked what is there.
    pub looks: u64,
    /// Blocks that were there, over all looks.
    pub seen: u64,
    /// Those of them without the block before them.
    pub lacking: u64,
    /// Most objects that were on the drives.
    pub drive_records_max: u64,
    /// What the drives say in the end, together.
    pub drives: Drives,
    /// The hash of all that happened.
    pub trace_hash: u64,
}

/// What drives have, and have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drives {
    /// Objects on them.
    pub records: u64,
    /// Objects that they did not take when they left memory.
    pub refused: u64,
    /// Objects that were given up.
    pub lost: u64,
    /// Objects that were read.
    pub read: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

impl Drives {
    fn add(&mut self, drive: DriveReport) {
        self.records += drive.records;
        self.refused += drive.refused;
        self.lost += drive.lost;
        self.read += drive.read;
        self.written_bytes += drive.written_bytes;
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "ratios are for looking at, and counts of blocks are small"
)]
fn ratio(part: u64, all: u64) -> f64 {
    part as f64 / all.max(1) as f64
}

impl Served {
    /// Which share of the blocks that were asked for was there.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.hits, self.blocks)
    }

    /// The same, of blocks before the first of its request that was not: those that an engine has use for.
    #[must_use]
    pub fn leading_hit_ratio(&self) -> f64 {
        ratio(self.leading_hits, self.blocks)
    }

    /// How many blocks were there: the mean of a run.
    #[must_use]
    pub fn resident_blocks(&self) -> f64 {
        ratio(self.seen, self.looks)
    }

    /// Which share of the blocks that were there lacked the block before them: the mean of a run.
    #[must_use]
    pub fn lacking_ratio(&self) -> f64 {
        ratio(self.lacking, self.seen)
    }

    /// How many blocks were written to drives, with all that is written beside them, for each one that was not there.
    #[must_use]
    pub fn written_per_miss(&self, block_bytes: usize) -> f64 {
        let misses = self.blocks - self.hits;
        ratio(self.drives.written_bytes, misses * block_bytes as u64)
    }
}

/// The hit ratio of one cache of so many blocks over the same requests.
#[must_use]
pub fn of_one_cache(requests: &[Vec<u64>], blocks_max: usize) -> f64 {
    let mut trace = Trace::default();
    for request in requests {
        trace.push(request.iter().copied());
    }
    replay(&trace, blocks_max, Learned::new(blocks_max)).ratio()
}

/// Has a cluster serve these requests, one after the other.
#[must_use]
pub fn serve(plan: Plan, requests: &[Vec<u64>]) -> Served {
    let mut town = Town::start(plan);
    let mut served = Served::default();
    let mut before: BTreeMap<u64, u64> = BTreeMap::new();
    let mut candidates: BTreeSet<u64> = BTreeSet::new();
    for (number, request) in (1..).zip(requests) {
        let hits = town.serve(number, request);
        served.blocks += request.len() as u64;
        served.hits += hits.all as u64;
        served.leading_hits += hits.leading as u64;
        before.extend(request.windows(2).map(|pair| (pair[1], pair[0])));
        candidates.extend(request);
        if number % LOOK_EVERY == 0 || number == requests.len() {
            candidates = town.present(&candidates);
            let records = town.drives().records;
            served.drive_records_max = served.drive_records_max.max(records);
            if number > requests.len() / 8 {
                let lacks = |block: &&u64| {
                    let needed = before.get(block);
                    needed.is_some_and(|needed| !candidates.contains(needed))
                };
                served.looks += 1;
                served.seen += candidates.len() as u64;
                served.lacking += candidates.iter().filter(lacks).count() as u64;
            }
        }
    }
    (served.drives, served.trace_hash) = town.end();
    served
}
