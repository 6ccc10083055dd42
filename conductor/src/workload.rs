//! What arrives: requests with their blocks, in one piece of memory.

use lunette_conductor_policy::ids::BlockHash;
use lunette_runtime_core::random::SplitMix64;

/// Most tokens of a prompt, and of an answer: longer ones are cut.
pub const TOKENS_MAX: u32 = 1 << 24;
/// Traces of services are often recorded in batches: requests of three seconds get one time.
const BATCH_S: f64 = 3.0;

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// When it arrives, in seconds.
    pub arrival_s: f64,
    /// Length of its prompt, in tokens.
    pub input_tokens: u64,
    /// Length of its answer, in tokens. The rules never see it.
    pub output_tokens: u64,
    /// The prompt's blocks.
    pub hashes: Vec<BlockHash>,
}

/// When the requests of a trace arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// When the trace says.
    Recorded,
    /// Up to three seconds later, so that requests of one batch come apart. The seed says when.
    Spread {
        /// The seed.
        seed: u64,
    },
}

/// Requests in order of arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    requests: Vec<Stored>,
    hashes: Vec<BlockHash>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Stored {
    arrival_s: f64,
    input_tokens: u32,
    output_tokens: u32,
    first_hash: usize,
    end_hash: usize,
}

/// A request of a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    pub(crate) arrival_s: f64,
    pub(crate) input_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) hashes: &'a [BlockHash],
}

impl Workload {
    /// The requests in order of their arrival. Of each, at least one token is prefilled and one
    /// decoded. Times that are no numbers, or negative, count as zero.
    #[must_use]
    pub fn new(arrivals: impl IntoIterator<Item = Arrival>) -> Self {
        let mut workload = Self::default();
        for arrival in arrivals {
            let first_hash = workload.hashes.len();
            workload.hashes.extend(&arrival.hashes);
            let tokens = |count: u64| {
                let count = u32::try_from(count).unwrap_or(TOKENS_MAX);
                count.clamp(1, TOKENS_MAX)
            };
            workload.requests.push(Stored {
                arrival_s: arrival.arrival_s.max(0.0),
                input_tokens: tokens(arrival.input_tokens),
                output_tokens: tokens(arrival.output_tokens),
                first_hash,
                end_hash: workload.hashes.len(),
            });
        }
        workload.sort();
        workload
    }

    /// The same requests with other times: first spread, then faster by `speed_up`.
    ///
    /// # Panics
    /// If `speed_up` is not above zero.
    #[must_use]
    pub fn timed(&self, timing: Timing, speed_up: f64) -> Self {
        assert!(speed_up > 0.0, "time goes on");
        let mut workload = self.clone();
        if let Timing::Spread { seed } = timing {
            let mut random = SplitMix64::new(seed);
            for request in &mut workload.requests {
                request.arrival_s += BATCH_S * random.unit();
            }
        }
        for request in &mut workload.requests {
            request.arrival_s /= speed_up;
        }
        workload.sort();
        workload
    }

    /// The same requests, each with an answer of this many tokens.
    #[must_use]
    pub fn with_output_tokens(&self, output_tokens: u32) -> Self {
        let mut workload = self.clone();
        for request in &mut workload.requests {
            request.output_tokens = output_tokens.max(1);
        }
        workload
    }

    fn sort(&mut self) {
        // Stable, so that requests of one time stay in the order of the trace.
        self.requests
            .sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The request at this place in the order of arrivals.
    pub(crate) fn arrival(&self, at: usize) -> Arrival {
        let item = self.get(at);
        Arrival {
            arrival_s: item.arrival_s,
            input_tokens: u64::from(item.input_tokens),
            output_tokens: u64::from(item.output_tokens),
            hashes: item.hashes.to_vec(),
        }
    }

    pub(crate) fn get(&self, at: usize) -> Item<'_> {
        let request = &self.requests[at];
        Item {
            arrival_s: request.arrival_s,
            input_tokens: request.input_tokens,
            output_tokens: request.output_tokens,
            hashes: &self.hashes[request.first_hash..request.end_hash],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(requests: u64) -> Workload {
        Workload::new((0..requests).map(|id| Arrival {
            arrival_s: 6.0,
            input_tokens: id,
            output_tokens: u64::MAX,
            hashes: vec![id],
        }))
    }

    #[test]
    fn lengths_are_kept_within_their_bounds() {
        let workload = batch(2);
        assert_eq!(workload.get(0).input_tokens, 1);
        assert_eq!(workload.get(0).output_tokens, TOKENS_MAX);
        assert_eq!(workload.get(1).hashes, [1]);
    }

    #[test]
    fn spreading_takes_a_batch_apart_and_a_seed_always_the_same_way() {
        let timed = |seed| batch(100).timed(Timing::Spread { seed }, 2.0);
        assert_eq!(timed(1), timed(1));
        assert_ne!(timed(1), timed(2));
        let times: Vec<f64> = (0..100).map(|at| timed(1).get(at).arrival_s).collect();
        assert!(times.is_sorted());
        assert!(times.iter().all(|time| (3.0..4.5).contains(time)));
        let recorded = batch(3).timed(Timing::Recorded, 2.0);
        assert!((0..3).all(|at| recorded.get(at).arrival_s == 3.0));
    }
}
