//! A workload like the one that Mooncake published as its conversation trace, from a seed.
//!
//! Requests arrive in batches every three seconds. A request opens a session, with a prompt whose
//! first block is the same for all, or it is a later turn of one: then its prompt repeats the
//! session's last prompt and goes on with that answer and new words. Some later turns are forks,
//! which keep only the beginning. Distributions are tables of quantiles, drawn from in whole
//! numbers only, so that a seed gives the same trace on every machine and for ever.
//!
//! | | the trace | seed 1 |
//! |---|---|---|
//! | requests, seconds | 12,031, 3,537 | 12,031, 3,534 |
//! | blocks, of them distinct | 288,500, 182,790 | 298,111, 189,820 |
//! | blocks used once | 75.9 % | 71.4 % |
//! | input tokens, mean, p50, p90, p99 | 12,035, 6,909, 27,367, 85,400 | 12,439, 7,081, 28,075, 88,006 |
//! | output tokens, mean | 343 | 351 |
//! | LRU block hits at 10,000 blocks | .212 | .223 |
//! | at 30,000 | .326 | .331 |
//! | unbounded | .366 | .363 |

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::format::{Request, TOKENS_PER_BLOCK};
use lunette_runtime_core::random::SplitMix64;

/// Requests of the conversation trace.
pub const REQUESTS_DEFAULT: u64 = 12_031;
/// Longest prompt, in tokens.
pub const INPUT_TOKENS_MAX: u64 = 126_195;

/// Time between two batches.
const BATCH_MS: u64 = 3_000;
/// A batch is this many draws, each a request with a chance of `BATCH_PERMILLE`: 10.2 requests.
const BATCH_DRAWS: u32 = 100;
const BATCH_PERMILLE: u32 = 102;
/// Chance of one more turn after the first, the second turn and so on; the last one stays.
const CONTINUE_PERMILLE: [u32; 5] = [340, 450, 540, 610, 650];
/// Share of later turns that are forks.
const FORK_PERMILLE: u32 = 130;

/// Pairs of a share in permille and the value that this share of draws does not exceed.
type Quantiles = [(u32, i64)];

/// Prompt of a session's first turn, in tokens.
const OPENING_TOKENS: &Quantiles = &[
    (0, 891),
    (100, 905),
    (200, 1_092),
    (300, 1_756),
    (400, 3_914),
    (500, 5_264),
    (600, 7_417),
    (700, 10_775),
    (800, 15_871),
    (900, 24_800),
    (950, 37_000),
    (980, 67_212),
    (990, 89_869),
    (1000, 126_195),
];
/// What a later turn adds to prompt and answer, in tokens; below zero where an answer was cut.
const USER_TOKENS: &Quantiles = &[
    (0, -300),
    (50, -31),
    (300, 11),
    (600, 53),
    (700, 182),
    (800, 733),
    (900, 4_267),
    (950, 7_040),
    (990, 16_705),
    (1000, 40_000),
];
/// Blocks that a fork keeps, in permille of the session's.
const FORK_KEEPS_PERMILLE: &Quantiles = &[
    (0, 10),
    (500, 190),
    (800, 420),
    (900, 570),
    (950, 800),
    (1000, 990),
];
/// What a fork adds to the blocks it keeps, in tokens.
const FORK_TOKENS: &Quantiles = &[
    (0, 10),
    (50, 1_707),
    (200, 5_960),
    (500, 10_111),
    (800, 16_408),
    (950, 26_825),
    (1000, 60_000),
];
/// Answer, in tokens.
const OUTPUT_TOKENS: &Quantiles = &[
    (0, 1),
    (50, 10),
    (100, 24),
    (200, 90),
    (300, 213),
    (400, 291),
    (500, 350),
    (700, 447),
    (900, 597),
    (980, 850),
    (1000, 1_700),
];
/// Time from one turn of a session to the next, in seconds.
const GAP_SECONDS: &Quantiles = &[
    (0, 3),
    (50, 27),
    (200, 57),
    (400, 96),
    (500, 123),
    (600, 162),
    (700, 225),
    (800, 330),
    (900, 520),
    (950, 720),
    (980, 1_200),
    (990, 1_700),
    (1000, 3_030),
];

/// An endless trace.
#[derive(Clone, Debug)]
pub struct Generator {
    random: SplitMix64,
    now_ms: u64,
    /// Requests that the current batch still has.
    batch_left: u32,
    hash_id_next: u64,
    sessions: BinaryHeap<Reverse<Due>>,
    /// Orders sessions that are due at the same time.
    due_next: u64,
}

/// A session's next turn.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at_ms: u64,
    order: u64,
    session: Session,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Session {
    turns: usize,
    input_tokens: u64,
    output_tokens: u64,
    hash_ids: Vec<u64>,
}

impl Generator {
    /// The trace of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut generator = Self {
            random: SplitMix64::new(seed),
            now_ms: 0,
            batch_left: 0,
            // Hash 0 is the block that all prompts begin with.
            hash_id_next: 1,
            sessions: BinaryHeap::new(),
            due_next: 0,
        };
        generator.batch_left = generator.draw_batch();
        generator
    }

    fn draw_batch(&mut self) -> u32 {
        let drawn = (0..BATCH_DRAWS).filter(|_| self.chance(BATCH_PERMILLE));
        u32::try_from(drawn.count()).expect("at most the draws")
    }

    fn chance(&mut self, permille: u32) -> bool {
        self.random.below(1000) < permille
    }

    fn draw(&mut self, quantiles: &Quantiles) -> i64 {
        let share = self.random.below(1_000_000);
        quantile(quantiles, share)
    }

    fn draw_tokens(&mut self, quantiles: &Quantiles) -> u64 {
        u64::try_from(self.draw(quantiles)).expect("the table holds natural numbers")
    }

    fn open(&mut self) -> Session {
        let input_tokens = self.draw_tokens(OPENING_TOKENS);
        let mut hash_ids = vec![0];
        self.extend(&mut hash_ids, input_tokens);
        Session {
            turns: 1,
            input_tokens,
            output_tokens: self.draw_tokens(OUTPUT_TOKENS),
            hash_ids,
        }
    }

    /// The next turn of a session. Its last block stays if it was whole; a partial one gets another
    /// hash when tokens follow it.
    fn go_on(&mut self, mut session: Session) -> Session {
        let blocks = session.hash_ids.len();
        let (keep, input_tokens) = if self.chance(FORK_PERMILLE) {
            let permille = usize::try_from(self.draw(FORK_KEEPS_PERMILLE)).expect("natural");
            let keep = (blocks * permille / 1000).max(1);
            (keep, tokens_of(keep) + self.draw_tokens(FORK_TOKENS))
        } else {
            let spoken = session.input_tokens + session.output_tokens;
            let tokens = spoken.saturating_add_signed(self.draw(USER_TOKENS));
            let whole = usize::try_from(session.input_tokens / TOKENS_PER_BLOCK).expect("fits");
            (whole.max(1), tokens.max(session.input_tokens))
        };
        let input_tokens = input_tokens.min(INPUT_TOKENS_MAX);
        let same = input_tokens == session.input_tokens;
        if !same {
            session.hash_ids.truncate(keep);
            self.extend(&mut session.hash_ids, input_tokens);
        }
        Session {
            turns: session.turns + 1,
            input_tokens,
            output_tokens: self.draw_tokens(OUTPUT_TOKENS),
            hash_ids: session.hash_ids,
        }
    }

    /// Adds blocks never used before until `hash_ids` covers `input_tokens`.
    fn extend(&mut self, hash_ids: &mut Vec<u64>, input_tokens: u64) {
        let blocks = usize::try_from(input_tokens.div_ceil(TOKENS_PER_BLOCK)).expect("bounded");
        assert!(
            hash_ids.len() <= blocks,
            "what is kept is part of the prompt"
        );
        while hash_ids.len() < blocks {
            hash_ids.push(self.hash_id_next);
            self.hash_id_next += 1;
        }
    }

    /// The session whose next turn is due first, if one is due.
    fn pop_due(&mut self, now_ms: u64) -> Option<Session> {
        if self.sessions.peek()?.0.at_ms > now_ms {
            return None;
        }
        let Reverse(due) = self.sessions.pop()?;
        Some(due.session)
    }

    fn schedule(&mut self, session: Session) {
        let last = CONTINUE_PERMILLE.len() - 1;
        if !self.chance(CONTINUE_PERMILLE[(session.turns - 1).min(last)]) {
            return;
        }
        let gap_ms = self.draw_tokens(GAP_SECONDS) * 1000;
        self.due_next += 1;
        self.sessions.push(Reverse(Due {
            at_ms: self.now_ms + gap_ms,
            order: self.due_next,
            session,
        }));
    }
}

impl Iterator for Generator {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        while self.batch_left == 0 {
            self.now_ms += BATCH_MS;
            self.batch_left = self.draw_batch();
        }
        self.batch_left -= 1;
        let now_ms = self.now_ms;
        let session = match self.pop_due(now_ms) {
            Some(session) => self.go_on(session),
            None => self.open(),
        };
        let request = Request {
            timestamp_ms: now_ms,
            input_tokens: session.input_tokens,
            output_tokens: session.output_tokens,
            hash_ids: session.hash_ids.clone(),
        };
        self.schedule(session);
        Some(request)
    }
}

fn tokens_of(blocks: usize) -> u64 {
    u64::try_from(blocks).expect("bounded") * TOKENS_PER_BLOCK
}

/// The value at `share` millionths, on the straight line between the two table entries around it.
fn quantile(quantiles: &Quantiles, share: u32) -> i64 {
    let above = quantiles.partition_point(|&(permille, _)| permille * 1000 <= share);
    assert!(above > 0, "the table begins at 0 permille");
    assert!(above < quantiles.len(), "the table ends at 1000 permille");
    let ((from, low), (to, high)) = (quantiles[above - 1], quantiles[above]);
    low + (high - low) * i64::from(share - from * 1000) / i64::from((to - from) * 1000)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::reference::{HitCount, Lru};
    use super::*;

    fn trace() -> Vec<Request> {
        let requests = usize::try_from(REQUESTS_DEFAULT).expect("few");
        Generator::new(1).take(requests).collect()
    }

    fn hits(requests: &[Request], blocks_max: usize) -> HitCount {
        let (mut lru, mut count) = (Lru::new(blocks_max), HitCount::default());
        for request in requests {
            lru.serve(request, &mut count);
        }
        count
    }

    #[test]
    fn the_trace_of_seed_1_is_the_one_it_always_was() {
        let requests = trace();
        let blocks_hit = |blocks_max| hits(&requests, blocks_max).blocks_hit;
        assert_eq!(blocks_hit(10_000), 66_615);
        assert_eq!(blocks_hit(30_000), 98_808);
        assert_eq!(blocks_hit(usize::MAX), 108_291);
        let all = hits(&requests, usize::MAX);
        assert_eq!(all.blocks, 298_111);
        assert_eq!(all.input_tokens, 149_658_814);
        assert_ne!(Generator::new(2).next(), Generator::new(1).next());
    }

    #[test]
    fn it_hits_like_the_conversation_trace() {
        let requests = trace();
        let published = [(10_000, 0.212), (30_000, 0.326), (usize::MAX, 0.366)];
        for (blocks_max, expected) in published {
            let ratio = hits(&requests, blocks_max).block_ratio();
            assert!((ratio - expected).abs() < 0.02, "{blocks_max}: {ratio}");
        }
    }

    #[test]
    fn it_is_shaped_like_the_conversation_trace() {
        let requests = trace();
        let mut lengths: Vec<u64> = requests.iter().map(|r| r.input_tokens).collect();
        lengths.sort_unstable();
        let published = [(500, 6_909), (900, 27_367), (990, 85_400)];
        for (permille, expected) in published {
            let length = lengths[lengths.len() * permille / 1000];
            let off = length.abs_diff(expected) * 100 / expected;
            assert!(off < 5, "p{permille}: {length}");
        }
        assert!(lengths.last() <= Some(&INPUT_TOKENS_MAX));
        let mean = |total: u64| total / REQUESTS_DEFAULT;
        let input = mean(lengths.iter().sum());
        assert!(input.abs_diff(12_035) < 600, "{input}");
        let output = mean(requests.iter().map(|r| r.output_tokens).sum());
        assert!(output.abs_diff(343) < 17, "{output}");
        let last = requests.last().expect("some").timestamp_ms;
        assert!(last.abs_diff(3_537_000) < 60_000, "{last}");
    }

    #[test]
    fn each_block_has_one_predecessor_and_the_first_is_the_same_for_all() {
        let mut predecessors: HashMap<u64, u64> = HashMap::new();
        for request in trace() {
            let blocks = request.input_tokens.div_ceil(TOKENS_PER_BLOCK);
            assert_eq!(u64::try_from(request.hash_ids.len()), Ok(blocks));
            assert_eq!(request.hash_ids[0], 0);
            for pair in request.hash_ids.windows(2) {
                let known = *predecessors.entry(pair[1]).or_insert(pair[0]);
                assert_eq!(known, pair[0], "of {}", pair[1]);
            }
        }
    }

    #[test]
    fn quantiles_are_interpolated_and_reach_both_ends() {
        let table = &[(0, -10), (500, 10), (1000, 1010)];
        assert_eq!(quantile(table, 0), -10);
        assert_eq!(quantile(table, 250_000), 0);
        assert_eq!(quantile(table, 500_000), 10);
        assert_eq!(quantile(table, 999_999), 1009);
    }
}
