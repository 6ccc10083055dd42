//! The indexes, each behind the same few calls.

use clap::ValueEnum;
use dynamo_kv_router::indexer::KvIndexerInterface;
use dynamo_kv_router::indexer::SyncIndexer;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
};
use dynamo_kv_router::{
    ConcurrentRadixTreeCompressed, PositionalIndexer, RadixTree, ThreadPoolIndexer,
};
use lunette_conductor_policy::ids::{InstanceId, Tier};
use lunette_conductor_policy::index::{Match, PrefixIndex};

use crate::workload::Event;

/// An index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    /// Ours.
    Lunette,
    /// `RadixTree`: one thread, as ours.
    DynamoRadix,
    /// `ConcurrentRadixTreeCompressed` with one event thread.
    DynamoCompressed,
    /// `PositionalIndexer` with one event thread.
    DynamoPositional,
}

impl Side {
    pub(crate) const ALL: [Self; 4] = [
        Self::Lunette,
        Self::DynamoRadix,
        Self::DynamoCompressed,
        Self::DynamoPositional,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lunette => "lunette",
            Self::DynamoRadix => "dynamo-radix",
            Self::DynamoCompressed => "dynamo-compressed",
            Self::DynamoPositional => "dynamo-positional",
        }
    }
}

/// What all sides do.
pub(crate) trait Index {
    type Prompt;
    type Event;

    /// A prompt in the form that the index takes; not measured.
    fn prompt(&self, hashes: &[u64]) -> Self::Prompt;
    /// An event in the form that the index takes; not measured.
    fn event(&mut self, event: Event) -> Self::Event;
    fn apply(&mut self, event: Self::Event);
    /// The instance with the least to do, and how many leading blocks of the prompt it holds.
    fn decide(&mut self, prompt: Self::Prompt, load: &[u32]) -> (usize, u32);
    /// Waits until every event is applied.
    fn settle(&mut self);
}

/// Least load and blocks still to be computed, where `held` tells of every instance.
fn least(load: &[u32], blocks: u32, held: impl Fn(usize) -> u32) -> (usize, u32) {
    let cost = |at: usize| load[at] + blocks - held(at);
    let best = (0..load.len()).min_by_key(|&at| cost(at));
    let best = best.expect("there is an instance");
    (best, held(best))
}

#[derive(Debug)]
pub(crate) struct Lunette {
    index: PrefixIndex,
    matches: Vec<Match>,
}

impl Lunette {
    pub(crate) fn new(instances: u16) -> Self {
        Self {
            index: PrefixIndex::new(usize::from(instances)),
            matches: Vec::new(),
        }
    }
}

impl Index for Lunette {
    type Prompt = Vec<u64>;
    type Event = Event;

    fn prompt(&self, hashes: &[u64]) -> Vec<u64> {
        hashes.to_vec()
    }

    fn event(&mut self, event: Event) -> Event {
        event
    }

    fn apply(&mut self, event: Event) {
        let instance = InstanceId(event.instance);
        if event.is_stored {
            self.index.store_all(instance, Tier::Vram, &event.hashes);
        } else {
            self.index.remove_all(instance, Tier::Vram, &event.hashes);
        }
    }

    fn decide(&mut self, prompt: Vec<u64>, load: &[u32]) -> (usize, u32) {
        self.index.find(&prompt, &mut self.matches);
        let blocks = u32::try_from(prompt.len()).expect("prompts are short");
        least(load, blocks, |at| self.matches[at].blocks)
    }

    fn settle(&mut self) {}
}

/// The number of the next event of each instance, and the rival's form of events.
#[derive(Debug, Default)]
struct Numbers(Vec<u64>);

impl Numbers {
    fn event(&mut self, event: Event) -> RouterEvent {
        let instance = usize::from(event.instance);
        if self.0.len() <= instance {
            self.0.resize(instance + 1, 0);
        }
        let event_id = self.0[instance];
        self.0[instance] += 1;
        let external = ExternalSequenceBlockHash;
        let data = if event.is_stored {
            let stored = |hash: &u64| KvCacheStoredBlockData {
                block_hash: external(*hash),
                tokens_hash: LocalBlockHash(*hash),
                mm_extra_info: None,
            };
            KvCacheEventData::Stored(KvCacheStoreData {
                parent_hash: event.parent.map(external),
                start_position: Some(event.depth),
                blocks: event.hashes.iter().map(stored).collect(),
            })
        } else {
            KvCacheEventData::Removed(KvCacheRemoveData {
                block_hashes: event.hashes.iter().map(|hash| external(*hash)).collect(),
            })
        };
        let event = KvCacheEvent {
            event_id,
            data,
            dp_rank: 0,
        };
        RouterEvent::new(u64::from(instance as u32), event)
    }
}

fn prompt(hashes: &[u64]) -> Vec<LocalBlockHash> {
    hashes.iter().copied().map(LocalBlockHash).collect()
}

/// The rival names only the instances that hold something. Of the others the least loaded one is
/// enough; it is looked for in a pass over the loads, as on our side.
fn chosen(scores: &OverlapScores, blocks: usize, load: &[u32]) -> (usize, u32) {
    let blocks = u32::try_from(blocks).expect("prompts are short");
    let idle = (0..load.len()).min_by_key(|&at| load[at]);
    let idle = idle.expect("there is an instance");
    let mut best = (load[idle] + blocks, idle, 0);
    for (worker, &held) in &scores.scores {
        let at = usize::try_from(worker.worker_id).expect("instances fit");
        best = best.min((load[at] + blocks - held, at, held));
    }
    (best.1, best.2)
}

#[derive(Default)]
pub(crate) struct Radix {
    tree: RadixTree,
    numbers: Numbers,
}

impl Index for Radix {
    type Prompt = Vec<LocalBlockHash>;
    type Event = RouterEvent;

    fn prompt(&self, hashes: &[u64]) -> Self::Prompt {
        prompt(hashes)
    }

    fn event(&mut self, event: Event) -> RouterEvent {
        self.numbers.event(event)
    }

    fn apply(&mut self, event: RouterEvent) {
        self.tree.apply_event(event).expect("events are in order");
    }

    fn decide(&mut self, prompt: Self::Prompt, load: &[u32]) -> (usize, u32) {
        let blocks = prompt.len();
        let scores = self.tree.find_matches(prompt, false);
        chosen(&scores, blocks, load)
    }

    fn settle(&mut self) {}
}

pub(crate) struct Pooled<T: SyncIndexer> {
    pool: ThreadPoolIndexer<T>,
    numbers: Numbers,
}

impl Pooled<ConcurrentRadixTreeCompressed> {
    pub(crate) fn compressed(block_tokens: u32) -> Self {
        Self {
            pool: ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, block_tokens),
            numbers: Numbers::default(),
        }
    }
}

impl Pooled<PositionalIndexer> {
    pub(crate) fn positional(block_tokens: u32) -> Self {
        // The jump of the rival's own benchmarks.
        Self {
            pool: ThreadPoolIndexer::new(PositionalIndexer::new(32), 1, block_tokens),
            numbers: Numbers::default(),
        }
    }
}

impl<T: SyncIndexer> Index for Pooled<T> {
    type Prompt = Vec<LocalBlockHash>;
    type Event = RouterEvent;

    fn prompt(&self, hashes: &[u64]) -> Self::Prompt {
        prompt(hashes)
    }

    fn event(&mut self, event: Event) -> RouterEvent {
        self.numbers.event(event)
    }

    fn apply(&mut self, event: RouterEvent) {
        self.pool.enqueue_event(event).expect("the pool runs");
    }

    fn decide(&mut self, prompt: Self::Prompt, load: &[u32]) -> (usize, u32) {
        let scores = self.pool.backend().find_matches(&prompt, false);
        chosen(&scores, prompt.len(), load)
    }

    fn settle(&mut self) {
        pollster::block_on(self.pool.flush());
    }
}

impl<T: SyncIndexer> Drop for Pooled<T> {
    fn drop(&mut self) {
        self.pool.shutdown();
    }
}
