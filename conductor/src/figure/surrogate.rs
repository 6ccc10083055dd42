//! Traces with the published statistics of those that cannot be had.

use lunette_runtime_core::random::SplitMix64;

use crate::workload::{Arrival, Workload};

/// Requests of the synthetic trace.
pub const SYNTHETIC_REQUESTS: u32 = 3_993;
/// Requests of the trace of v3, which FAST calls tool and agent.
pub const TOOL_REQUESTS: u32 = 23_608;
/// Its length, in seconds.
const TOOL_S: f64 = 3_600.0;
const SYNTHETIC_PER_S: f64 = 3.91;

/// Between the values at shares 0, 1/n, 2/n .. 1, in straight lines.
fn draw(random: &mut SplitMix64, quantiles: &[f64]) -> f64 {
    let last = u32::try_from(quantiles.len() - 1).expect("tables are short");
    let at = place(random.below(last));
    quantiles[at] + (quantiles[at + 1] - quantiles[at]) * random.unit()
}

fn place(at: u32) -> usize {
    usize::try_from(at).expect("tables are short")
}

/// Whole tokens of a draw, searched for because no cast loses a part here.
fn tokens(drawn: f64) -> u32 {
    let mut low = 0;
    let mut high = 1 << 20;
    while high - low > 1 {
        let middle = u32::midpoint(low, high);
        if f64::from(middle) <= drawn {
            low = middle;
        } else {
            high = middle;
        }
    }
    low.max(1)
}

/// Seconds to the next arrival where `per_s` come.
fn pause_s(random: &mut SplitMix64, per_s: f64) -> f64 {
    -(1.0 - random.unit()).ln() / per_s
}

/// The first blocks of a document, and then blocks that no other prompt has.
fn prompt(random: &mut SplitMix64, document: u64, shared_blocks: u32, blocks: u32) -> Vec<u64> {
    let own = random.next() | 1 << 63;
    let block = |at: u32| {
        if at < shared_blocks {
            document ^ u64::from(at)
        } else {
            own ^ u64::from(at)
        }
    };
    (0..blocks).map(block).collect()
}

/// Like the synthetic trace: 3,993 requests at 3.91 a second (Poisson), prompts of 15.3 thousand
/// tokens on average, answers of 149, .65 of the prompts' tokens in an unbounded cache.
#[must_use]
pub fn synthetic() -> Workload {
    let mut random = SplitMix64::new(15);
    let opening = [100.0, 900.0, 2_500.0, 5_000.0, 9_000.0, 19_000.0, 38_000.0];
    let document = [6_000.0, 11_000.0, 17_000.0, 24_000.0, 33_000.0, 45_000.0];
    let answers = [1.0, 20.0, 45.0, 69.0, 140.0, 260.0, 560.0];
    let mut documents: Vec<(u64, u32)> = Vec::new();
    let mut now_s = 0.0;
    let arrivals = (0..SYNTHETIC_REQUESTS).map(|_| {
        now_s += pause_s(&mut random, SYNTHETIC_PER_S);
        let kind = random.below(100);
        let (id, input_tokens) = if kind < 48 {
            (random.next(), tokens(draw(&mut random, &opening)))
        } else if kind < 54 || documents.is_empty() {
            documents.push((random.next(), tokens(draw(&mut random, &document))));
            documents[documents.len() - 1]
        } else {
            let known = u32::try_from(documents.len()).expect("they are few");
            documents[place(known - 1 - random.below(known.min(40)))]
        };
        let blocks = input_tokens.div_ceil(512);
        Arrival {
            arrival_s: now_s,
            input_tokens: u64::from(input_tokens),
            output_tokens: u64::from(tokens(draw(&mut random, &answers))),
            hashes: prompt(&mut random, id & !(1 << 63), blocks - 1, blocks),
        }
    });
    Workload::new(arrivals.collect::<Vec<_>>())
}

/// One of a session's requests: when it comes in the session's time, prompt, answer, blocks.
type Asked = (f64, u32, u32, Vec<u64>);

/// A share of the synthetic trace that are short chats, in percent, and the seconds over which
/// sessions begin.
const CHATS_PERCENT: u32 = 40;
const DOCUMENT_TOKENS: [f64; 13] = [
    2_500.0, 6_900.0, 11_000.0, 13_300.0, 15_600.0, 17_900.0, 20_000.0, 24_500.0, 29_000.0,
    33_600.0, 38_000.0, 53_000.0, 74_000.0,
];
const QUESTIONS_MEAN: f64 = 2.1;
const QUESTION_PAUSE_S: f64 = 150.0;

/// Like the synthetic trace once more, with what else is published of it: two of five requests are
/// short chats, the others questions to documents of up to 74 thousand tokens, about three to each,
/// half of which come within a minute of the one before. (3,993 requests, Poisson, 3.91 a second;
/// of the prompts' tokens .65 in an unbounded cache, 2,200 requests that find nothing there.)
#[must_use]
pub fn documents(seed: u64) -> Workload {
    let mut random = SplitMix64::new(seed);
    let chats = SYNTHETIC_REQUESTS / 100 * CHATS_PERCENT;
    let mut asked: Vec<Asked> = Vec::new();
    let begin_s =
        |random: &mut SplitMix64| random.unit() * f64::from(SYNTHETIC_REQUESTS) / SYNTHETIC_PER_S;
    while asked.len() < place(chats) {
        let turns = 1 + u32::from(random.below(10) < 3);
        chat(&mut random, begin_s, turns, &mut asked);
    }
    while asked.len() < place(SYNTHETIC_REQUESTS) {
        questions(&mut random, begin_s, &mut asked);
    }
    asked.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut now_s = 0.0;
    let arrivals = asked
        .into_iter()
        .map(|(_, input_tokens, output_tokens, hashes)| {
            now_s += pause_s(&mut random, SYNTHETIC_PER_S);
            Arrival {
                arrival_s: now_s,
                input_tokens: u64::from(input_tokens),
                output_tokens: u64::from(output_tokens),
                hashes,
            }
        });
    Workload::new(arrivals.collect::<Vec<_>>())
}

fn chat(
    random: &mut SplitMix64,
    begin_s: impl Fn(&mut SplitMix64) -> f64,
    turns: u32,
    asked: &mut Vec<Asked>,
) {
    let mut at_s = begin_s(random);
    let id = random.next() & !(1 << 63);
    let mut input_tokens = 0;
    for _ in 0..turns {
        input_tokens += 60 + tokens(pause_s(random, 1.0 / 700.0));
        let blocks = input_tokens.div_ceil(512);
        let answer = 20 + tokens(pause_s(random, 1.0 / 260.0));
        let hashes = prompt(random, id, input_tokens / 512, blocks);
        asked.push((at_s, input_tokens, answer.min(900), hashes));
        at_s += 10.0 + pause_s(random, 1.0 / 60.0);
        input_tokens += 250;
    }
}

fn questions(
    random: &mut SplitMix64,
    begin_s: impl Fn(&mut SplitMix64) -> f64,
    asked: &mut Vec<Asked>,
) {
    let mut at_s = begin_s(random);
    let id = random.next() & !(1 << 63);
    let document_tokens = tokens(draw(random, &DOCUMENT_TOKENS));
    let left = place(SYNTHETIC_REQUESTS) - asked.len();
    let more = tokens(1.5 + pause_s(random, 1.0 / QUESTIONS_MEAN)) - 1;
    for _ in 0..left.min(1 + place(more)) {
        let input_tokens = document_tokens + 30 + tokens(pause_s(random, 1.0 / 60.0));
        let answer = 3 + tokens(pause_s(random, 1.0 / 65.0));
        let blocks = input_tokens.div_ceil(512);
        let hashes = prompt(random, id, document_tokens / 512, blocks);
        asked.push((at_s, input_tokens, answer.min(900), hashes));
        at_s += pause_s(random, 1.0 / QUESTION_PAUSE_S);
    }
}

/// Like the trace of v3: 23,608 requests in an hour, of which 46 % are conversations, 39 % share a
/// prefix of 12 blocks and get short answers, and 15 % share one of 5 blocks. Conversations are
/// those of the trace handed in.
#[must_use]
pub fn tool_and_agent(conversation: &Workload) -> Workload {
    let mut random = SplitMix64::new(3);
    let conversations = TOOL_REQUESTS / 100 * 46;
    let mut arrivals: Vec<Arrival> = (0..place(conversations).min(conversation.len()))
        .map(|at| conversation.arrival(at))
        .collect();
    let last_s = arrivals.last().map_or(TOOL_S, |last| last.arrival_s);
    for arrival in &mut arrivals {
        arrival.arrival_s *= TOOL_S / last_s.max(1.0);
    }
    let others = TOOL_REQUESTS - conversations;
    let per_s = f64::from(others) / TOOL_S;
    let mut now_s = 0.0;
    for _ in 0..others {
        now_s += pause_s(&mut random, per_s);
        let is_agent = random.below(54) < 39;
        let (shared, own_tokens, answers) = if is_agent {
            (12, [20.0, 200.0, 500.0, 900.0, 2_000.0], [3.0, 15.0, 50.0])
        } else {
            (5, [100.0, 350.0, 500.0, 700.0, 1_300.0], [5.0, 18.0, 40.0])
        };
        let input_tokens = shared * 512 + tokens(draw(&mut random, &own_tokens));
        let blocks = input_tokens.div_ceil(512);
        arrivals.push(Arrival {
            arrival_s: now_s,
            input_tokens: u64::from(input_tokens),
            output_tokens: u64::from(tokens(draw(&mut random, &answers))),
            hashes: prompt(&mut random, u64::from(shared) << 40, shared, blocks),
        });
    }
    Workload::new(arrivals)
}

/// `requests` prompts of one length at `per_s` (Poisson), of each of which the first half is one of
/// eight documents, with answers of one length: the simulated data of v3.
#[must_use]
pub fn uniform(
    seed: u64,
    requests: u32,
    per_s: f64,
    input_tokens: u32,
    output_tokens: u32,
) -> Workload {
    let mut random = SplitMix64::new(seed);
    let mut now_s = 0.0;
    let blocks = input_tokens.div_ceil(512);
    let arrivals = (0..requests).map(|_| {
        now_s += pause_s(&mut random, per_s);
        let document = u64::from(random.below(8)) << 40;
        Arrival {
            arrival_s: now_s,
            input_tokens: u64::from(input_tokens),
            output_tokens: u64::from(output_tokens),
            hashes: prompt(&mut random, document, blocks / 2, blocks),
        }
    });
    Workload::new(arrivals.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hits::hit_tokens;
    use crate::report::number;

    fn means(workload: &Workload) -> (f64, f64) {
        let requests = number(workload.len());
        let sum = |value: fn(&Workload, usize) -> u32| -> f64 {
            (0..workload.len())
                .map(|at| f64::from(value(workload, at)))
                .sum()
        };
        let input = sum(|workload, at| workload.get(at).input_tokens);
        let output = sum(|workload, at| workload.get(at).output_tokens);
        (input / requests, output / requests)
    }

    #[test]
    fn the_synthetic_one_has_the_published_statistics() {
        let workload = synthetic();
        let (input, output) = means(&workload);
        let hit = hit_tokens(&workload, usize::MAX);
        assert!((14_500.0..16_500.0).contains(&input), "{input}");
        assert!((130.0..170.0).contains(&output), "{output}");
        assert!((0.60..0.70).contains(&hit), "{hit}");
    }

    #[test]
    fn the_one_of_documents_has_them_too() {
        for seed in 1..4 {
            let workload = documents(seed);
            assert_eq!(workload.len(), place(SYNTHETIC_REQUESTS));
            let (input, output) = means(&workload);
            let hit = hit_tokens(&workload, usize::MAX);
            assert!((14_000.0..17_000.0).contains(&input), "{input}");
            assert!((130.0..170.0).contains(&output), "{output}");
            assert!((0.60..0.70).contains(&hit), "{hit}");
        }
        assert_ne!(documents(1), documents(2));
    }

    #[test]
    fn half_of_each_uniform_prompt_is_found_again() {
        let workload = uniform(1, 800, 1.0, 16_384, 512);
        let hit = hit_tokens(&workload, usize::MAX);
        assert!((0.48..0.50).contains(&hit), "{hit}");
        assert_eq!(means(&workload), (16_384.0, 512.0));
    }

    #[test]
    fn prompts_of_tools_share_their_first_blocks() {
        let workload = tool_and_agent(&Workload::default());
        let (input, output) = means(&workload);
        assert!((5_000.0..6_500.0).contains(&input), "{input}");
        assert!((15.0..30.0).contains(&output), "{output}");
        assert!(hit_tokens(&workload, usize::MAX) > 0.75);
    }
}
