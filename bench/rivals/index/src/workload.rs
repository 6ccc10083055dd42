//! Prompts, and the events that serving them causes, from a seed.
//!
//! A chain of blocks stands for a session. All chains begin with the same block, as all prompts of
//! the conversation trace do; lengths follow its prompts. One chain in ten is held by three
//! instances, the others by one. Serving a prompt stores its new blocks where the session lives,
//! which removes as many from the ends of other chains there: how much is held stays the same.

use lunette_runtime_core::random::{SplitMix64, mix};

/// A row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) instances: u16,
    /// Blocks held, over all instances.
    pub(crate) blocks: u32,
    pub(crate) block_tokens: u32,
}

/// Tokens of a prompt at shares 0, .1 .. 1, in the conversation trace.
const PROMPT_TOKENS: [u32; 11] = [
    900, 1_600, 3_000, 4_500, 5_700, 6_909, 9_200, 12_500, 18_000, 27_367, 90_000,
];
/// Tokens that a later turn adds.
const TURN_TOKENS: u32 = 2_000;
const NEW_PERCENT: u32 = 60;
const HOT_PERCENT: u32 = 10;
const HOT_COPIES: u32 = 3;

/// What happened at an instance.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) instance: u16,
    pub(crate) is_stored: bool,
    /// The block before the first one stored, if there is any.
    pub(crate) parent: Option<u64>,
    /// How many blocks are before the first one.
    pub(crate) depth: u32,
    pub(crate) hashes: Vec<u64>,
}

/// A prompt, and what serving it causes.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) prompt: Vec<u64>,
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, Copy, Debug)]
struct Chain {
    id: u64,
    len: u32,
}

/// Makes the workload of a row, in order: first what is held, then turns.
#[derive(Debug)]
pub(crate) struct Workload {
    size: Size,
    random: SplitMix64,
    /// What each instance holds.
    chains: Vec<Vec<Chain>>,
}

fn block(id: u64, at: u32) -> u64 {
    if at == 0 { 1 } else { mix(id ^ u64::from(at)) }
}

fn hashes(chain: Chain, from: u32) -> Vec<u64> {
    (from..chain.len).map(|at| block(chain.id, at)).collect()
}

fn place(at: u32) -> usize {
    usize::try_from(at).expect("it is small")
}

impl Workload {
    pub(crate) fn new(size: Size) -> Self {
        Self {
            size,
            random: SplitMix64::new(12),
            chains: vec![Vec::new(); usize::from(size.instances)],
        }
    }

    fn blocks(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.size.block_tokens)
    }

    fn new_chain(&mut self) -> Chain {
        let last = u32::try_from(PROMPT_TOKENS.len() - 1).expect("it is short");
        let at = place(self.random.below(last));
        let (low, high) = (PROMPT_TOKENS[at], PROMPT_TOKENS[at + 1]);
        let tokens = low + self.random.below(high - low);
        Chain {
            id: self.random.next(),
            len: self.blocks(tokens).max(2),
        }
    }

    fn any_instance(&mut self) -> usize {
        place(self.random.below(u32::from(self.size.instances)))
    }

    fn stored(instance: usize, chain: Chain, from: u32) -> Event {
        Event {
            instance: u16::try_from(instance).expect("instances fit"),
            is_stored: true,
            parent: (from > 0).then(|| block(chain.id, from - 1)),
            depth: from,
            hashes: hashes(chain, from),
        }
    }

    /// The next chain that is held from the beginning, until all blocks are.
    pub(crate) fn fill(&mut self, mut take: impl FnMut(Event)) -> u32 {
        let mut held = 0;
        while held < self.size.blocks {
            let chain = self.new_chain();
            let is_hot = self.random.below(100) < HOT_PERCENT;
            let copies = if is_hot { HOT_COPIES } else { 1 };
            for _ in 0..copies.min(u32::from(self.size.instances)) {
                let instance = self.any_instance();
                if self.chains[instance]
                    .iter()
                    .rev()
                    .take(8)
                    .any(|other| other.id == chain.id)
                {
                    continue;
                }
                self.chains[instance].push(chain);
                take(Self::stored(instance, chain, 0));
                held += chain.len;
            }
        }
        held
    }

    pub(crate) fn turn(&mut self) -> Turn {
        let instance = self.any_instance();
        let is_new = self.random.below(100) < NEW_PERCENT || self.chains[instance].is_empty();
        let (chain, from) = if is_new {
            let chain = self.new_chain();
            self.chains[instance].push(chain);
            (chain, 0)
        } else {
            let added = self.random.below(TURN_TOKENS);
            let added = self.blocks(added).max(1);
            let known = u32::try_from(self.chains[instance].len()).expect("chains fit");
            let at = place(self.random.below(known));
            let chain = &mut self.chains[instance][at];
            let from = chain.len;
            chain.len += added;
            (*chain, from)
        };
        let prompt = hashes(chain, 0);
        let event = Self::stored(instance, chain, from);
        let room = u32::try_from(event.hashes.len()).expect("chains are short");
        let mut events = vec![event];
        self.make_room(instance, room, chain.id, &mut events);
        Turn { prompt, events }
    }

    /// Takes blocks from the ends of chains. The first block stays: all chains begin with it.
    fn make_room(&mut self, instance: usize, mut room: u32, spared: u64, events: &mut Vec<Event>) {
        let mut tries = 0;
        while room > 0 && tries < 64 {
            tries += 1;
            let known = u32::try_from(self.chains[instance].len()).expect("chains fit");
            let at = place(self.random.below(known));
            let chain = self.chains[instance][at];
            if chain.id == spared {
                continue;
            }
            let taken = room.min(chain.len - 1);
            let left = chain.len - taken;
            room -= taken;
            if left <= 1 {
                self.chains[instance].swap_remove(at);
            } else {
                self.chains[instance][at].len = left;
            }
            // Leaves go first, as an engine evicts them.
            let hashes: Vec<u64> = (left..chain.len)
                .rev()
                .map(|at| block(chain.id, at))
                .collect();
            events.push(Event {
                instance: u16::try_from(instance).expect("instances fit"),
                is_stored: false,
                parent: None,
                depth: left,
                hashes,
            });
        }
    }
}
