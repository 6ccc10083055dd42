//! Rules that refuse, and the choice of the decode instance.

use crate::cost::CostModel;
use crate::ids::InstanceId;
use crate::output::OutputEstimator;
use crate::slo::Slo;
use crate::state::{DecodeLoad, DecodeState, as_f64};

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Nothing is refused.
    None,
    /// Prefill load is checked on arrival, decode load only before decoding: late refusals waste
    /// a prefill.
    Baseline,
    /// Both are checked on arrival, with the decode load of that moment.
    Early,
    /// Both are checked on arrival, with the decode load expected at the end of the prefill if
    /// every request decodes for the same time.
    Prediction,
    /// A request is taken if that gains more value than it loses: see [`crate::conductor`].
    Marginal,
}

impl Admission {
    /// All rules.
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::Baseline,
        Self::Early,
        Self::Prediction,
        Self::Marginal,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Baseline => "baseline",
            Self::Early => "early",
            Self::Prediction => "prediction",
            Self::Marginal => "ours",
        }
    }
}

/// The decode instance chosen for a request, and what a step there is expected to take with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DecodeChoice {
    pub(crate) instance: InstanceId,
    pub(crate) step_s: f64,
    /// Room that is left beside it; less than nothing if it does not fit.
    pub(crate) free_tokens: f64,
}

impl DecodeChoice {
    pub(crate) const fn fits(&self) -> bool {
        self.free_tokens >= 0.0
    }
}

/// What a decode instance can take at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) capacity_tokens: u64,
    pub(crate) step_s: f64,
}

/// Headroom is at most this share of what an empty instance would have left.
const HEADROOM_SHARE_MAX: f64 = 0.25;

/// A request to be decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToDecode<'a> {
    pub(crate) now_s: f64,
    pub(crate) input_tokens: u32,
    pub(crate) cost: &'a CostModel,
}

impl ToDecode<'_> {
    /// The instance where a step takes least, among those that the rule expects to have memory for
    /// the request if there are any. What has been placed there and is not there yet counts in full
    /// in the step, whatever the rule then checks: or all would go where little runs yet. In memory
    /// it does not: much of it comes when what runs now is gone, and the short requests would all go
    /// to the one instance that has a little room left on paper.
    pub(crate) fn select(
        &self,
        admission: Admission,
        decode: &[DecodeState],
        ready_s: f64,
        outputs: &OutputEstimator,
    ) -> DecodeChoice {
        let judged = |at: usize, state: &DecodeState| {
            let instance = InstanceId::at(at);
            let checked = self.with(
                instance,
                state,
                self.load(admission, state, ready_s, outputs),
            );
            let compared = self.with(instance, state, state.load_placed());
            (compared, checked)
        };
        let choices = decode.iter().enumerate();
        let best = choices.map(|(at, state)| judged(at, state)).min_by(
            |(a, a_checked), (b, b_checked)| {
                let by_room = b_checked.fits().cmp(&a_checked.fits());
                by_room.then(a.step_s.total_cmp(&b.step_s))
            },
        );
        best.expect("a cluster has a decode instance").1
    }

    /// What the request would make of an instance with this load.
    pub(crate) fn with(
        &self,
        instance: InstanceId,
        state: &DecodeState,
        load: DecodeLoad,
    ) -> DecodeChoice {
        let kv_tokens = load.kv_tokens + f64::from(self.input_tokens);
        DecodeChoice {
            instance,
            step_s: self.cost.decode.step_s(load.requests + 1.0, kv_tokens),
            free_tokens: as_f64(state.capacity_tokens) - kv_tokens,
        }
    }

    /// Whether the instance has no room for the request and `headroom` more of its size.
    ///
    /// Of an instance that is full to the brim, whoever comes next is refused, which is mostly a
    /// short request, though one long one occupies as much as ten of those. Headroom in proportion
    /// to the size refuses the long ones first. No request is asked for more than a quarter of what
    /// an empty instance would have left beside it, so each is taken by an empty one.
    pub(crate) fn is_full(&self, choice: DecodeChoice, bounds: Bounds, headroom: f64) -> bool {
        let input = f64::from(self.input_tokens);
        let alone_s = self.cost.decode.step_s(1.0, input);
        let some = |asked: f64, left: f64| asked.min(HEADROOM_SHARE_MAX * left).max(0.0);
        let free_tokens = some(headroom * input, as_f64(bounds.capacity_tokens) - input);
        let added_s = headroom * self.cost.decode.token_s * input;
        let free_s = some(added_s, bounds.step_s - alone_s);
        choice.free_tokens < free_tokens || choice.step_s > bounds.step_s - free_s
    }

    /// The load that a rule looks at, for a prefill that ends at `ready_s`.
    fn load(
        &self,
        admission: Admission,
        state: &DecodeState,
        ready_s: f64,
        outputs: &OutputEstimator,
    ) -> DecodeLoad {
        let step_s = self.cost.decode.step_s(
            as_f64(u64::try_from(state.running.len()).unwrap_or(u64::MAX)),
            as_f64(state.kv_tokens),
        );
        match admission {
            Admission::None | Admission::Baseline | Admission::Early => state.load_now(),
            Admission::Prediction => {
                state.load_with_uniform_time(ready_s, outputs.mean_tokens() * step_s)
            }
            // What is there now is a fact; what is expected to be gone by then is not.
            Admission::Marginal => {
                let expected = state.load_expected(self.now_s, ready_s, step_s, outputs);
                let now = state.load_now();
                DecodeLoad {
                    requests: expected.requests.max(now.requests),
                    kv_tokens: expected.kv_tokens.max(now.kv_tokens),
                }
            }
        }
    }
}

/// Learns how near to the objective the predicted step may come, from requests that ended.
///
/// A prediction that is right on average is late half the time. So the margin falls by
/// `DOWN` with each request that missed its time between tokens and rises by `UP` with each
/// that met it: it rests where one in twenty misses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecodeMargin {
    share: f64,
}

const UP: f64 = 0.0005;
const DOWN: f64 = 0.0095;
const SHARE_FIRST: f64 = 0.95;
const SHARE_MIN: f64 = 0.7;
const SHARE_MAX: f64 = 0.95;

impl DecodeMargin {
    pub(crate) const fn new() -> Self {
        Self { share: SHARE_FIRST }
    }

    pub(crate) const fn share(self) -> f64 {
        self.share
    }

    pub(crate) fn ended(&mut self, tbt_s: f64, slo: &Slo) {
        let change = if tbt_s > slo.tbt_s { -DOWN } else { UP };
        self.share = (self.share + change).clamp(SHARE_MIN, SHARE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{DecodeJob, IncomingJob};

    #[test]
    fn an_instance_with_room_is_chosen_before_a_faster_one_without() {
        let cost = CostModel::a800_llama3_70b();
        let request = ToDecode {
            now_s: 0.0,
            input_tokens: 1_000,
            cost: &cost,
        };
        let mut decode = [DecodeState::new(999), DecodeState::new(100_000)];
        decode[1].kv_tokens = 50_000;
        let choice = request.select(Admission::Early, &decode, 0.0, &OutputEstimator::new());
        assert_eq!(choice.instance, InstanceId(1));
        assert!(choice.fits());
        decode[0].capacity_tokens = 1_000;
        let choice = request.select(Admission::Early, &decode, 0.0, &OutputEstimator::new());
        assert_eq!(choice.instance, InstanceId(0));
    }

    #[test]
    fn what_is_on_its_way_counts_as_load_and_not_as_memory() {
        let cost = CostModel::a800_llama3_70b();
        let request = ToDecode {
            now_s: 0.0,
            input_tokens: 1_000,
            cost: &cost,
        };
        let mut decode = [DecodeState::new(100_000), DecodeState::new(100_000)];
        // Many short ones run at the first; a long one is on its way to the second.
        let running = |id| DecodeJob {
            id,
            input_tokens: 2_000,
            joined_at_step: 0,
            joined_s: 0.0,
        };
        decode[0].running.extend((2..42).map(running));
        decode[0].kv_tokens = 80_000;
        decode[1].incoming.push(IncomingJob {
            id: 1,
            input_tokens: 99_500,
            ready_s: 60.0,
            latest_s: 60.0,
            has_arrived: false,
        });
        let chosen = |decode: &[DecodeState]| {
            let outputs = OutputEstimator::new();
            let choice = request.select(Admission::Marginal, decode, 0.0, &outputs);
            choice.instance
        };
        assert_eq!(chosen(&decode), InstanceId(1));
        decode[1].incoming[0].has_arrived = true;
        assert_eq!(chosen(&decode), InstanceId(0), "the other has no room now");
    }

    #[test]
    fn headroom_refuses_long_requests_first_and_none_at_an_empty_instance() {
        let cost = CostModel::a800_llama3_70b();
        let is_full = |input_tokens, kv_tokens, headroom| {
            let request = ToDecode {
                now_s: 0.0,
                input_tokens,
                cost: &cost,
            };
            let mut state = DecodeState::new(1_000_000);
            state.kv_tokens = kv_tokens;
            let bounds = Bounds {
                capacity_tokens: state.capacity_tokens,
                step_s: 0.1,
            };
            let choice = request.with(InstanceId(0), &state, state.load_now());
            request.is_full(choice, bounds, headroom)
        };
        assert!(!is_full(10_000, 940_000, 5.0));
        assert!(is_full(10_000, 940_001, 5.0));
        assert!(!is_full(10_000, 990_000, 0.0));
        assert!(is_full(10_000, 990_001, 0.0));
        assert!(is_full(60_000, 940_000, 5.0));
        for input_tokens in [10_000, 200_000, 1_000_000] {
            assert!(!is_full(input_tokens, 0, 5.0), "{input_tokens}");
        }
    }

    #[test]
    fn the_margin_moves_with_what_it_sees_and_stays_in_its_bounds() {
        let mut margin = DecodeMargin::new();
        for _ in 0..1_000 {
            margin.ended(0.11, &Slo::FIXED);
        }
        assert_eq!(margin.share(), SHARE_MIN);
        for _ in 0..10_000 {
            margin.ended(0.1, &Slo::FIXED);
        }
        assert_eq!(margin.share(), SHARE_MAX);
    }
}
