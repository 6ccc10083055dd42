//! The rules put together.
//!
//! What a request is worth under our admission: one, and a share for each token of its prompt where
//! the options say so. It is taken if it can be in time beside worthier ones and is worth more than
//! its work at the price of prefill time, which rises while placed requests are missed. A long
//! request is worth more while its class stays behind the share in time that the options name, and a
//! medium one while its class stays behind what a queue in order of arrival would serve of it.
//!
//! A prompt whose prefix is still queued may wait for that: the blocks that placed requests will
//! leave are remembered until the driver says that a prefill has ended or was given up.

use crate::admission::{Admission, Bounds, DecodeChoice, DecodeMargin, ToDecode};
use crate::arrivals::Arrivals;
use crate::cost::CostModel;
use crate::discipline::{Discipline, Plan, Slice};
use crate::fairness::Fairness;
use crate::ids::{BlockHash, InstanceId, LengthClass, TOKENS_PER_BLOCK};
use crate::index::{Match, PrefixIndex};
use crate::memory::Popularity;
use crate::output::OutputEstimator;
use crate::pending::{Awaited, Pending};
use crate::price::Price;
use crate::routing::{self, Fetch, Prompt, Route, Routing, Sight, Weights};
use crate::slo::{Slo, TtftSlo};
use crate::state::{DecodeState, PrefillState, count};
use lunette_runtime_core::random::SplitMix64;

/// Which rules, with which constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// How the prefill instance is chosen.
    pub routing: Routing,
    /// What is refused.
    pub admission: Admission,
    /// In which order prefill instances serve.
    pub discipline: Discipline,
    /// `kvcache_balancing_threshold` of Algorithm 1.
    pub balancing_threshold: f64,
    /// Share of the objective between tokens at which a decode instance counts as full. Our
    /// admission learns its own instead.
    pub decode_share: f64,
    /// What a second of delay of a queued job counts, beside a second of the request's own.
    pub delay_weight: f64,
    /// Value of a token of a prompt, where that of a request is one.
    pub token_value: f64,
    /// Share of an instance's time before a deadline, less the request's own work, that is not
    /// booked, under an objective that gives all requests the same time.
    pub reserve: f64,
    /// Share of the long requests that is to be served in time, under an objective that gives them
    /// more of it.
    pub class_floor: f64,
    /// Whether blocks that few prompts use are moved rather than copied where memory is tight.
    pub moves_blocks: bool,
    /// Whether a request may wait for a queued prefill whose prompt begins with the same blocks.
    pub follows: bool,
    /// Seed of the choices that are random.
    pub seed: u64,
}

impl Options {
    /// These rules, with the constants found best for each.
    #[must_use]
    pub const fn new(routing: Routing, admission: Admission) -> Self {
        let is_ours = matches!(routing, Routing::Marginal);
        Self {
            routing,
            admission,
            discipline: if is_ours {
                Discipline::DEADLINE_AWARE
            } else {
                Discipline::Fifo
            },
            balancing_threshold: 1.0,
            decode_share: 1.0,
            delay_weight: 1.5,
            token_value: 0.0,
            reserve: 0.3,
            class_floor: 0.875,
            moves_blocks: is_ours,
            follows: is_ours,
            seed: 1,
        }
    }
}

/// A request to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Larger for later requests.
    pub id: u64,
    /// Length of the prompt.
    pub input_tokens: u32,
    /// The prompt's blocks, from its start.
    pub hashes: &'a [BlockHash],
}

/// The cluster as the driver knows it.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'a> {
    /// Prefill instances, as the index counts them. At least one.
    pub prefill: &'a [PrefillState],
    /// Decode instances. At least one.
    pub decode: &'a [DecodeState],
    /// Who holds what.
    pub index: &'a PrefixIndex,
}

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// Serve it.
    Place(Placement),
    /// Answer that the cluster is overloaded (HTTP 429).
    Refuse(Refusal),
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// Where it is prefilled, and what is fetched.
    pub route: Route,
    /// Where it is decoded.
    pub decode: InstanceId,
    /// When its first token is due.
    pub deadline_s: f64,
    /// What it is worth to be in time.
    pub value: f64,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its first token would be late, or it would make worthier requests late.
    Prefill,
    /// Its tokens would come too slowly.
    Decode,
}

/// How a request ended, for the rules to learn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Length of the prompt.
    pub input_tokens: u32,
    /// Whether it was served within both objectives.
    pub is_good: bool,
    /// If it was placed: whether its first token came in time. `None` if it was refused on arrival.
    pub was_in_time: Option<bool>,
    /// If it was decoded to its end: length of the answer, and its time between tokens in seconds.
    pub decoded: Option<(u32, f64)>,
}

/// Decides. One of these serves one cluster.
#[derive(Debug)]
pub struct Conductor {
    options: Options,
    cost: CostModel,
    slo: Slo,
    random: SplitMix64,
    turn: usize,
    outputs: OutputEstimator,
    margin: DecodeMargin,
    fairness: Fairness,
    price: Price,
    popularity: Popularity,
    arrivals: Arrivals,
    pending: Pending,
    matches: Vec<Match>,
    awaited: Vec<Awaited>,
    plan: Plan,
}

impl Conductor {
    /// A conductor that has seen nothing.
    #[must_use]
    pub fn new(options: Options, cost: CostModel, slo: Slo) -> Self {
        let mut options = options;
        match slo.ttft {
            // It asks more of an instance for a long prompt than for a short one. Under overload no
            // rule serves most of the long ones then, and holding on to them costs all.
            TtftSlo::Fixed { .. } => options.class_floor = 0.0,
            // Short prompts are due before long ones here, and go first without it.
            TtftSlo::Proportional { .. } => options.reserve = 0.0,
        }
        Self {
            options,
            cost,
            slo,
            random: SplitMix64::new(options.seed),
            turn: 0,
            outputs: OutputEstimator::new(),
            margin: DecodeMargin::new(),
            fairness: Fairness::new(options.class_floor),
            price: Price::new(),
            popularity: Popularity::new(),
            arrivals: Arrivals::new(),
            pending: Pending::default(),
            matches: Vec::new(),
            awaited: Vec::new(),
            plan: Plan::default(),
        }
    }

    /// Its rules.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Places a request that arrives now, or refuses it. Of one that was placed, the driver says
    /// when it leaves its prefill instance: [`Conductor::prefill_left`].
    ///
    /// # Panics
    /// If the cluster has no prefill or no decode instance, or the index counts other instances.
    pub fn decide(&mut self, now_s: f64, request: Request<'_>, cluster: Cluster<'_>) -> Decision {
        assert_eq!(cluster.prefill.len(), cluster.index.instances());
        self.look(request, cluster.index);
        let limit_s = self
            .slo
            .ttft_limit_s(&self.cost.prefill, request.input_tokens);
        if self.options.admission == Admission::Marginal && self.fairness.has_floor() {
            self.follow_arrivals(now_s, request, limit_s, count(cluster.prefill.len()));
        }
        let prompt = Prompt {
            id: request.id,
            input_tokens: request.input_tokens,
            deadline_s: now_s + limit_s,
            value: self.value(request.input_tokens),
        };
        self.price.arrived(idle_share(cluster.prefill));
        self.plan.price = self.price.value_per_s();
        let mut route = self.route(now_s, prompt, cluster.prefill);
        if self.options.moves_blocks {
            self.popularity.used(request.hashes);
            if let Some(fetch) = &mut route.fetch {
                self.let_move(fetch, request.hashes, cluster.prefill);
            }
        }
        let to_decode = ToDecode {
            now_s,
            input_tokens: request.input_tokens,
            cost: &self.cost,
        };
        let rule = self.options.admission;
        let choice = to_decode.select(rule, cluster.decode, route.first_token_s, &self.outputs);
        let capacity_tokens = cluster.decode[choice.instance.index()].capacity_tokens;
        let refusal = self.refusal(&route, prompt, (to_decode, choice, capacity_tokens));
        let is_placed = refusal.is_none();
        self.fairness.decided(request.input_tokens, is_placed);
        if let Some(refusal) = refusal {
            return Decision::Refuse(refusal);
        }
        if self.options.follows {
            let held = self.matches[route.instance.index()].blocks;
            let held = held.max(route.fetch.map_or(0, |fetch| fetch.end_block));
            let new = &request.hashes[place(held).min(request.hashes.len())..];
            self.pending.add(route.instance, request.id, new);
        }
        Decision::Place(Placement {
            route,
            decode: choice.instance,
            deadline_s: prompt.deadline_s,
            value: prompt.value,
        })
    }

    /// Finds out what the instances hold of a prompt, and will hold when what is queued is done.
    fn look(&mut self, request: Request<'_>, index: &PrefixIndex) {
        index.find(request.hashes, &mut self.matches);
        self.awaited.clear();
        if self.options.follows {
            self.pending
                .find(request.hashes, &self.matches, &mut self.awaited);
        }
    }

    /// What arrives, refused or not, tells what a queue in order of arrival would serve.
    fn follow_arrivals(&mut self, now_s: f64, request: Request<'_>, limit_s: f64, instances: f64) {
        let held = self.matches.iter().map(|matched| matched.blocks);
        let awaited = self.awaited.iter().map(|awaited| awaited.blocks);
        let blocks = held.chain(awaited).max().unwrap_or(0);
        let cached = blocks.saturating_mul(TOKENS_PER_BLOCK);
        let tokens = request.input_tokens;
        let work_s = self.cost.prefill.time_s(tokens, cached.min(tokens));
        let class = LengthClass::of(tokens);
        self.arrivals
            .arrived(now_s, class, limit_s - work_s, work_s);
        let share = self.arrivals.share(LengthClass::Medium, instances);
        self.fairness.first_come(share);
    }

    /// Where the holder's memory is tight, it drops those of the blocks that few prompts use. Of a
    /// prefix, what comes later is never used more.
    fn let_move(&self, fetch: &mut Fetch, hashes: &[BlockHash], prefill: &[PrefillState]) {
        if !prefill[fetch.from.index()].ages.is_tight() {
            return;
        }
        let fetched = &hashes[place(fetch.first_block)..place(fetch.end_block)];
        let shared = fetched.partition_point(|&hash| self.popularity.of(hash) > MOVED_USES_MAX);
        let shared = u32::try_from(shared).expect("a prompt has fewer blocks");
        fetch.moved_from_block = fetch.first_block + shared;
    }

    fn value(&self, input_tokens: u32) -> f64 {
        let plain = 1.0 + self.options.token_value * f64::from(input_tokens);
        plain * self.fairness.weight(input_tokens)
    }

    fn route(&mut self, now_s: f64, prompt: Prompt, prefill: &[PrefillState]) -> Route {
        let sight = Sight {
            now_s,
            cost: &self.cost,
            prefill,
            matches: &self.matches,
            awaited: &self.awaited,
            prompt,
        };
        match self.options.routing {
            Routing::Random => routing::random(&sight, &mut self.random),
            Routing::RoundRobin => routing::round_robin(&sight, &mut self.turn),
            Routing::LeastLoad => routing::least_load(&sight),
            Routing::LongestMatch => routing::longest_match(&sight),
            Routing::CacheAware => routing::cache_aware(&sight),
            Routing::Algorithm1 => routing::algorithm1(&sight, self.options.balancing_threshold),
            Routing::Pooled => routing::pooled(&sight),
            Routing::DynamoLike => routing::dynamo_like(&sight),
            Routing::Marginal => {
                let weights = Weights {
                    delay: self.options.delay_weight,
                    reserve: self.options.reserve,
                };
                routing::marginal(&sight, weights, &mut self.plan)
            }
        }
    }

    fn refusal(
        &self,
        route: &Route,
        prompt: Prompt,
        (to_decode, choice, capacity_tokens): (ToDecode<'_>, DecodeChoice, u64),
    ) -> Option<Refusal> {
        let is_late = match self.options.admission {
            Admission::None => return None,
            Admission::Marginal if self.options.routing == Routing::Marginal => {
                !route.is_in_time || prompt.value < self.price.value_per_s() * route.work_s
            }
            _ => route.first_token_s > prompt.deadline_s,
        };
        if is_late {
            return Some(Refusal::Prefill);
        }
        let (share, headroom) = match self.options.admission {
            Admission::None | Admission::Baseline => return None,
            Admission::Early | Admission::Prediction => (self.options.decode_share, 0.0),
            // Where long requests have a floor, that decides how many of them are refused.
            Admission::Marginal if self.fairness.has_floor() => (self.margin.share(), 0.0),
            Admission::Marginal => (self.margin.share(), DECODE_HEADROOM),
        };
        let bounds = Bounds {
            capacity_tokens,
            step_s: share * self.slo.tbt_s,
        };
        let is_full = to_decode.is_full(choice, bounds, headroom);
        is_full.then_some(Refusal::Decode)
    }

    /// Whether the decode instance still takes a request whose prefill has ended: the check of its
    /// own scheduler. `state` does not count the request.
    #[must_use]
    pub fn is_decodable(&self, now_s: f64, input_tokens: u32, state: &DecodeState) -> bool {
        if self.options.admission == Admission::None {
            return true;
        }
        let to_decode = ToDecode {
            now_s,
            input_tokens,
            cost: &self.cost,
        };
        let choice = to_decode.with(InstanceId(0), state, state.load_now());
        let share = match self.options.admission {
            Admission::Marginal => 1.0,
            _ => self.options.decode_share,
        };
        choice.fits() && choice.step_s <= share * self.slo.tbt_s
    }

    /// What a prefill instance that has just become free serves next, if anything can be served.
    pub fn next_slice(&mut self, now_s: f64, state: &PrefillState) -> Option<Slice> {
        let discipline = self.options.discipline;
        discipline.next(state, now_s, &mut self.plan)
    }

    /// A queued job that is to be refused now, because it and worthier ones cannot all be in time.
    /// Asked again until there is none, whenever the instance becomes free.
    pub fn given_up(&mut self, now_s: f64, state: &PrefillState) -> Option<u64> {
        if self.options.admission != Admission::Marginal {
            return None;
        }
        self.plan.make(state, now_s, None);
        self.plan.first_given_up(now_s, state)
    }

    /// The prefill of a request that was placed has ended, or was given up. `hashes` are those that
    /// the request was placed with.
    pub fn prefill_left(&mut self, id: u64, hashes: &[BlockHash]) {
        if self.options.follows {
            self.pending.remove(id, hashes);
        }
    }

    /// Learns from a request that was refused, dropped, or served.
    pub fn ended(&mut self, outcome: Outcome) {
        if outcome.was_in_time.is_some() && !outcome.is_good {
            self.fairness.failed(outcome.input_tokens);
        }
        self.price.ended(outcome.was_in_time);
        if let Some((output_tokens, tbt_s)) = outcome.decoded {
            self.outputs.ended(output_tokens);
            self.margin.ended(tbt_s, &self.slo);
        }
    }
}

/// The share of the instances that have nothing to do.
fn idle_share(prefill: &[PrefillState]) -> f64 {
    let idle = prefill.iter().filter(|state| state.jobs().is_empty());
    count(idle.count()) / count(prefill.len())
}

fn place(block: u32) -> usize {
    usize::try_from(block).expect("a block number fits")
}

/// A block that was used more often of late is copied, never moved.
const MOVED_USES_MAX: u8 = 6;
/// So many times its own size are to stay free beside a request that is to be decoded.
const DECODE_HEADROOM: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::PrefillJob;

    const LONG: Request<'_> = Request {
        id: 7,
        input_tokens: 16_384,
        hashes: &[],
    };

    fn decide(options: Options, prefill: &PrefillState, decode: &DecodeState) -> Decision {
        let mut conductor =
            Conductor::new(options, CostModel::a800_llama3_70b(), Slo::PROPORTIONAL);
        let cluster = Cluster {
            prefill: std::slice::from_ref(prefill),
            decode: std::slice::from_ref(decode),
            index: &PrefixIndex::new(1),
        };
        conductor.decide(0.0, LONG, cluster)
    }

    fn full() -> DecodeState {
        let mut state = DecodeState::new(10_000_000);
        state.kv_tokens = 9_000_000;
        state
    }

    #[test]
    fn each_admission_looks_at_what_its_description_says() {
        let (idle, roomy) = (PrefillState::default(), DecodeState::new(1_000_000));
        let mut busy = idle.clone();
        busy.busy_until_s = 100.0;
        for admission in Admission::ALL {
            let options = Options::new(Routing::Algorithm1, admission);
            assert!(matches!(decide(options, &idle, &roomy), Decision::Place(_)));
            let is_refused = decide(options, &busy, &roomy) == Decision::Refuse(Refusal::Prefill);
            assert_eq!(is_refused, admission != Admission::None, "{admission:?}");
        }
        let refused = |admission| {
            let options = Options::new(Routing::Algorithm1, admission);
            matches!(decide(options, &idle, &full()), Decision::Refuse(_))
        };
        assert!(!refused(Admission::None));
        assert!(!refused(Admission::Baseline));
        assert!(refused(Admission::Early));
    }

    #[test]
    fn the_baseline_notices_a_full_decode_instance_when_it_is_too_late() {
        let conductor = |admission| {
            let options = Options::new(Routing::Algorithm1, admission);
            Conductor::new(options, CostModel::a800_llama3_70b(), Slo::FIXED)
        };
        assert!(!conductor(Admission::Baseline).is_decodable(0.0, 1, &full()));
        assert!(conductor(Admission::None).is_decodable(0.0, 1, &full()));
    }

    #[test]
    fn ours_takes_a_worthy_request_and_refuses_one_that_costs_a_worthier_one() {
        let options = Options::new(Routing::Marginal, Admission::Marginal);
        for (value, is_placed) in [(0.1, true), (100.0, false)] {
            let mut prefill = PrefillState::default();
            prefill.push(PrefillJob {
                id: 1,
                remaining_s: 7.0,
                deadline_s: 8.0,
                value,
                is_ready: true,
                has_started: false,
                after: None,
            });
            let decision = decide(options, &prefill, &DecodeState::new(1_000_000));
            assert_eq!(matches!(decision, Decision::Place(_)), is_placed, "{value}");
        }
    }
}
