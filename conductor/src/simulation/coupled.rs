//! A coupled cluster, as of vLLM: every instance prefills and decodes, in the same steps.
//!
//! A step reads the weights once. It makes one token for each request of the batch and computes
//! tokens of prompts, either whole prompts, during which the batch waits, or a chunk beside the
//! batch. What the batch waits shows up in its intervals between tokens: this is the interference
//! that separating the two avoids. Nothing is refused, except what fits into no memory.
//!
//! Where there is doubt, the cluster is given the better of it: cached blocks lie in accelerator
//! memory beside those of running requests, take nothing to load and are found by all prompts of
//! the instance; no interval holds a transfer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use lunette_conductor_policy::admission::Admission;
use lunette_conductor_policy::conductor::{Cluster, Conductor, Decision, Options, Request};
use lunette_conductor_policy::cost::CostModel;
use lunette_conductor_policy::ids::{InstanceId, TOKENS_PER_BLOCK};
use lunette_conductor_policy::index::PrefixIndex;
use lunette_conductor_policy::routing::Routing;
use lunette_conductor_policy::slo::Slo;
use lunette_conductor_policy::state::{DecodeState, PrefillJob, PrefillState};

use super::clock::{Clock, Event};
use super::{SAMPLE_S, id_of};
use crate::cache::{Cache, Changes};
use crate::report::{Ending, Record, Report, Sample, longest_tenth_mean_s, number};
use crate::scenario::INSTANCES_MAX;
use crate::workload::{Item, Workload};

/// Which tokens a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Prompts before answers: whole prompts, as many as have together this many tokens, one at
    /// least. The batch waits.
    PrefillFirst {
        /// Most tokens of prompts in a step, where there is more than one prompt.
        tokens_max: u32,
    },
    /// The batch, and tokens of prompts up to this many in all.
    Chunked {
        /// Tokens of a step.
        tokens_max: u32,
    },
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoupledScenario {
    /// Instances: 1 to [`INSTANCES_MAX`].
    pub instances: usize,
    /// What a step does.
    pub batching: Batching,
    /// Blocks of prompts that an instance keeps for later ones. 0: no prefix caching.
    pub cache_blocks: usize,
    /// Tokens that the accelerator memory of an instance has room for.
    pub vram_tokens: u64,
    /// How fast everything is.
    pub cost: CostModel,
    /// What has to be met.
    pub slo: Slo,
    /// How requests are spread over the instances: a rule that fetches nothing.
    pub routing: Routing,
    /// Seed of random choices.
    pub seed: u64,
}

impl CoupledScenario {
    /// Nodes of eight A800 that serve Llama-3-70B: prefix caching in all of the memory beside the
    /// weights, and the request goes where the fewest are.
    #[must_use]
    pub const fn new(instances: usize, batching: Batching, slo: Slo) -> Self {
        Self {
            instances,
            batching,
            cache_blocks: 1_330_000 / TOKENS_PER_BLOCK as usize,
            vram_tokens: 1_330_000,
            cost: CostModel::a800_llama3_70b(),
            slo,
            routing: Routing::LeastLoad,
            seed: 1,
        }
    }
}

/// Runs the workload through a coupled cluster.
///
/// # Panics
/// If there is no instance or there are too many, if the routing fetches blocks, or if a rule of the
/// simulation itself is broken.
#[must_use]
pub fn simulate_coupled(workload: &Workload, scenario: &CoupledScenario) -> Report {
    assert!((1..=INSTANCES_MAX).contains(&scenario.instances));
    let mut simulation = Simulation::new(workload, *scenario);
    simulation.run();
    simulation.check_end();
    Report::new(simulation.records, simulation.samples, scenario.instances)
}

#[derive(Debug)]
struct Simulation<'a> {
    workload: &'a Workload,
    scenario: CoupledScenario,
    conductor: Conductor,
    index: PrefixIndex,
    clock: Clock,
    nodes: Vec<Node>,
    /// One for each node: all its requests, of which those in the batch have no work left.
    states: Vec<PrefillState>,
    records: Vec<Record>,
    samples: Vec<Sample>,
    arrived: usize,
    ended: usize,
    changes: Changes,
}

#[derive(Debug)]
struct Node {
    cache: Cache,
    /// Requests that have no memory yet.
    waiting: VecDeque<usize>,
    /// Prompts that have memory, of which tokens are left to be computed.
    prompts: VecDeque<Prompt>,
    /// Requests in the batch, by the step after which each has all its tokens.
    batch: BinaryHeap<Reverse<(u32, Answer)>>,
    /// When each step of the batch ended.
    step_ends_s: Vec<f64>,
    kv_tokens: u64,
    reserved_tokens: u64,
    /// What the step under way does.
    step: Option<Step>,
    intervals_s: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Prompt {
    request: usize,
    cached_tokens: u32,
    computed_tokens: u32,
    work_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Answer {
    request: usize,
    joined_at_step: u32,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    has_batch: bool,
    /// Of the first prompts, those that end with this step.
    prompts_ending: usize,
}

/// Time of what a step computes of prompts.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    tokens: u32,
    squares_s: f64,
    opens_prompt: bool,
}

impl Load {
    fn add(&mut self, cost: &CostModel, item: &Item<'_>, prompt: &Prompt, tokens: u32) -> f64 {
        let from = prompt.cached_tokens + prompt.computed_tokens;
        assert!(from + tokens <= item.input_tokens);
        let square = |tokens: u32| f64::from(tokens) * f64::from(tokens);
        let squares_s = cost.prefill.square_s * (square(from + tokens) - square(from));
        self.tokens += tokens;
        self.squares_s += squares_s;
        self.opens_prompt |= prompt.computed_tokens == 0;
        squares_s + cost.prefill.token_s * f64::from(tokens)
    }

    /// Reading the weights and computing the prompts' tokens overlap: the longer of them counts.
    fn step_s(self, cost: &CostModel, requests: f64, kv_tokens: f64) -> f64 {
        let opening_s = if self.opens_prompt {
            cost.prefill.fixed_s
        } else {
            0.0
        };
        let linear_s = cost.prefill.token_s * f64::from(self.tokens);
        let batch_s = cost.decode.step_s(requests, kv_tokens) - cost.decode.fixed_s;
        opening_s + linear_s.max(cost.decode.fixed_s) + self.squares_s + batch_s
    }
}

fn reservation(item: &Item<'_>) -> u64 {
    u64::from(item.input_tokens) + u64::from(item.output_tokens)
}

impl Node {
    fn new(cache_blocks: usize) -> Self {
        Self {
            cache: Cache::new(cache_blocks, 0),
            waiting: VecDeque::new(),
            prompts: VecDeque::new(),
            batch: BinaryHeap::new(),
            step_ends_s: Vec::new(),
            kv_tokens: 0,
            reserved_tokens: 0,
            step: None,
            intervals_s: Vec::new(),
        }
    }

    fn steps(&self) -> u32 {
        u32::try_from(self.step_ends_s.len()).expect("a run has fewer steps")
    }
}

impl<'a> Simulation<'a> {
    fn new(workload: &'a Workload, scenario: CoupledScenario) -> Self {
        let instances = scenario.instances;
        let mut options = Options::new(scenario.routing, Admission::None);
        options.seed = scenario.seed;
        Self {
            workload,
            scenario,
            conductor: Conductor::new(options, scenario.cost, scenario.slo),
            index: PrefixIndex::new(instances),
            clock: Clock::default(),
            nodes: (0..instances)
                .map(|_| Node::new(scenario.cache_blocks))
                .collect(),
            states: vec![PrefillState::default(); instances],
            records: (0..workload.len())
                .map(|at| Record::new(&workload.get(at)))
                .collect(),
            samples: Vec::new(),
            arrived: 0,
            ended: 0,
            changes: Changes::new(),
        }
    }

    fn run(&mut self) {
        self.plan_arrival();
        while let Some(event) = self.clock.next() {
            match event {
                Event::Arrival => self.arrive(),
                Event::StepEnd { decode: node } => self.end_step(node),
                Event::SliceEnd { .. } | Event::Network { .. } => unreachable!("none is planned"),
            }
        }
    }

    fn plan_arrival(&mut self) {
        if self.arrived < self.workload.len() {
            let arrival_s = self.workload.get(self.arrived).arrival_s;
            self.clock.plan(arrival_s, Event::Arrival);
        }
    }

    fn arrive(&mut self) {
        self.sample();
        let request = self.arrived;
        self.arrived += 1;
        self.plan_arrival();
        let item = self.workload.get(request);
        if reservation(&item) > self.scenario.vram_tokens {
            self.end(request, Ending::RefusedForDecode);
            return;
        }
        let somewhere = DecodeState::new(u64::MAX);
        let cluster = Cluster {
            prefill: &self.states,
            decode: std::slice::from_ref(&somewhere),
            index: &self.index,
        };
        let asked = Request {
            id: id_of(request),
            input_tokens: item.input_tokens,
            hashes: item.hashes,
        };
        let Decision::Place(placement) = self.conductor.decide(self.clock.now_s(), asked, cluster)
        else {
            unreachable!("nothing is refused without an admission rule");
        };
        assert!(placement.route.fetch.is_none(), "nothing can be fetched");
        let node = placement.route.instance.index();
        self.records[request].decode = placement.route.instance;
        self.states[node].push(PrefillJob {
            id: id_of(request),
            remaining_s: placement.route.work_s,
            deadline_s: placement.deadline_s,
            value: placement.value,
            is_ready: true,
            has_started: false,
            after: None,
        });
        self.nodes[node].waiting.push_back(request);
        self.start_step(node);
    }

    /// Begins a step if there is something to do and none is under way.
    fn start_step(&mut self, node: usize) {
        if self.nodes[node].step.is_some() {
            return;
        }
        let load = match self.scenario.batching {
            Batching::PrefillFirst { tokens_max } => self.take_whole(node, tokens_max),
            Batching::Chunked { tokens_max } => {
                let batch = u32::try_from(self.nodes[node].batch.len()).expect("a batch fits");
                self.take_chunks(node, tokens_max.saturating_sub(batch))
            }
        };
        let (load, prompts_ending) = load;
        let is_chunked = matches!(self.scenario.batching, Batching::Chunked { .. });
        let state = &mut self.nodes[node];
        let has_batch = !state.batch.is_empty() && (is_chunked || load.tokens == 0);
        if !has_batch && load.tokens == 0 {
            return;
        }
        let (requests, kv_tokens) = if has_batch {
            let kv_tokens = u32::try_from(state.kv_tokens).unwrap_or(u32::MAX);
            (number(state.batch.len()), f64::from(kv_tokens))
        } else {
            (0.0, 0.0)
        };
        let step_s = load.step_s(&self.scenario.cost, requests, kv_tokens);
        state.step = Some(Step {
            has_batch,
            prompts_ending,
        });
        let end_s = self.clock.now_s() + step_s;
        self.states[node].busy_until_s = end_s;
        self.clock.plan(end_s, Event::StepEnd { decode: node });
    }

    /// Gives memory to the first that waits, if there is any left.
    fn open_prompt(&mut self, node: usize) -> bool {
        let Some(&request) = self.nodes[node].waiting.front() else {
            return false;
        };
        let item = self.workload.get(request);
        let state = &mut self.nodes[node];
        let reserved = state.reserved_tokens + reservation(&item);
        if reserved > self.scenario.vram_tokens {
            return false;
        }
        state.waiting.pop_front();
        state.reserved_tokens = reserved;
        let (blocks, _) = state.cache.leading(item.hashes);
        let cached = blocks
            .saturating_mul(TOKENS_PER_BLOCK)
            .min(item.input_tokens - 1);
        self.records[request].cached_tokens = cached;
        let work_s = self.scenario.cost.prefill.time_s(item.input_tokens, cached);
        state.prompts.push_back(Prompt {
            request,
            cached_tokens: cached,
            computed_tokens: 0,
            work_s,
        });
        true
    }

    fn take_whole(&mut self, node: usize, tokens_max: u32) -> (Load, usize) {
        let mut load = Load::default();
        let mut prompts = 0;
        while self.open_prompt(node) {
            let prompt = self.nodes[node].prompts[prompts];
            let left = self.workload.get(prompt.request).input_tokens - prompt.cached_tokens;
            if prompts > 0 && load.tokens.saturating_add(left) > tokens_max {
                self.close_last_prompt(node);
                break;
            }
            self.compute(node, prompts, left, &mut load);
            prompts += 1;
        }
        (load, prompts)
    }

    /// Puts the prompt opened last back: it does not fit into the step.
    fn close_last_prompt(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        let prompt = state.prompts.pop_back().expect("one was opened");
        assert_eq!(prompt.computed_tokens, 0, "nothing of it is computed");
        state.reserved_tokens -= reservation(&self.workload.get(prompt.request));
        state.waiting.push_front(prompt.request);
    }

    fn take_chunks(&mut self, node: usize, tokens_max: u32) -> (Load, usize) {
        let mut load = Load::default();
        let mut prompts = 0;
        while load.tokens < tokens_max {
            if self.nodes[node].prompts.len() == prompts && !self.open_prompt(node) {
                break;
            }
            let prompt = self.nodes[node].prompts[prompts];
            let input = self.workload.get(prompt.request).input_tokens;
            let left = input - prompt.cached_tokens - prompt.computed_tokens;
            let chunk = left.min(tokens_max - load.tokens);
            self.compute(node, prompts, chunk, &mut load);
            if chunk < left {
                break;
            }
            prompts += 1;
        }
        (load, prompts)
    }

    /// Lets the step compute `tokens` of the prompt at this place of the queue.
    fn compute(&mut self, node: usize, at: usize, tokens: u32, load: &mut Load) {
        let prompt = &mut self.nodes[node].prompts[at];
        let item = self.workload.get(prompt.request);
        let cost = &self.scenario.cost;
        let opening_s = if prompt.computed_tokens == 0 {
            cost.prefill.fixed_s
        } else {
            0.0
        };
        let work_s = load.add(cost, &item, prompt, tokens);
        prompt.computed_tokens += tokens;
        self.records[prompt.request].prefill_s += opening_s + work_s;
        let left = item.input_tokens - prompt.cached_tokens - prompt.computed_tokens;
        let share = f64::from(left) / f64::from(item.input_tokens - prompt.cached_tokens);
        let job = self.states[node].job_mut(id_of(prompt.request));
        let job = job.expect("it is here until its end");
        job.has_started = true;
        job.remaining_s = prompt.work_s * share;
    }

    fn end_step(&mut self, node: usize) {
        let now_s = self.clock.now_s();
        let step = self.nodes[node].step.take().expect("a step is under way");
        if step.has_batch {
            let state = &mut self.nodes[node];
            state.step_ends_s.push(now_s);
            state.kv_tokens += u64::try_from(state.batch.len()).expect("a batch fits");
            self.end_answers(node);
        }
        for _ in 0..step.prompts_ending {
            let prompt = self.nodes[node].prompts.pop_front();
            self.end_prompt(node, prompt.expect("it was in the step").request);
        }
        let state = &self.nodes[node];
        assert!(
            state.kv_tokens <= state.reserved_tokens
                && state.reserved_tokens <= self.scenario.vram_tokens,
            "memory is full"
        );
        self.start_step(node);
    }

    fn end_prompt(&mut self, node: usize, request: usize) {
        let now_s = self.clock.now_s();
        let item = self.workload.get(request);
        self.records[request].ttft_s = now_s - item.arrival_s;
        let state = &mut self.nodes[node];
        state.cache.keep(item.hashes, now_s, &mut self.changes);
        super::publish(&mut self.index, InstanceId::at(node), &mut self.changes);
        if item.output_tokens == 1 {
            state.reserved_tokens -= reservation(&item);
            self.leave(node, request);
            return;
        }
        let joined_at_step = state.steps();
        let answer = Answer {
            request,
            joined_at_step,
        };
        let last_step = joined_at_step + item.output_tokens - 1;
        state.batch.push(Reverse((last_step, answer)));
        state.kv_tokens += u64::from(item.input_tokens);
    }

    fn end_answers(&mut self, node: usize) {
        let steps = self.nodes[node].steps();
        while let Some(&Reverse((last_step, answer))) = self.nodes[node].batch.peek() {
            assert!(last_step >= steps, "nobody gets more tokens than asked for");
            if last_step > steps {
                return;
            }
            self.nodes[node].batch.pop();
            let item = self.workload.get(answer.request);
            let state = &mut self.nodes[node];
            state.kv_tokens -= u64::from(item.input_tokens) + u64::from(item.output_tokens - 1);
            state.reserved_tokens -= reservation(&item);
            let place = |step: u32| usize::try_from(step).expect("a step number fits");
            let ends_s = &state.step_ends_s[place(answer.joined_at_step)..];
            let first_token_s = item.arrival_s + self.records[answer.request].ttft_s;
            state.intervals_s.clear();
            state.intervals_s.push(ends_s[0] - first_token_s);
            let between = ends_s.windows(2).map(|pair| pair[1] - pair[0]);
            state.intervals_s.extend(between);
            let tbt_s = longest_tenth_mean_s(&mut state.intervals_s);
            self.records[answer.request].tbt_s = tbt_s;
            self.leave(node, answer.request);
        }
    }

    fn leave(&mut self, node: usize, request: usize) {
        let job = self.states[node].take(id_of(request));
        assert!(job.is_some_and(|job| job.remaining_s == 0.0));
        self.end(request, Ending::Served);
    }

    fn end(&mut self, request: usize, ending: Ending) {
        self.ended += 1;
        let item = self.workload.get(request);
        let cost = &self.scenario.cost.prefill;
        let record = &mut self.records[request];
        record.ttft_limit_s = self.scenario.slo.ttft_limit_s(cost, item.input_tokens);
        record.end(ending, &self.scenario.slo);
    }

    fn sample(&mut self) {
        let now_s = self.clock.now_s();
        let due_s = self.samples.last().map_or(0.0, |last| last.at_s + SAMPLE_S);
        if now_s >= due_s {
            let backlog = self.states.iter().map(|state| state.backlog_s(now_s));
            self.samples.push(Sample {
                at_s: now_s,
                prefill_backlog_s: backlog.sum(),
                decode_requests: self.nodes.iter().map(|node| node.batch.len()).sum(),
                decode_kv_tokens: self.nodes.iter().map(|node| node.kv_tokens).sum(),
            });
        }
    }

    fn check_end(&self) {
        assert_eq!(self.arrived, self.workload.len(), "every request arrived");
        assert_eq!(self.ended, self.workload.len(), "every request ended");
        for node in &self.nodes {
            assert!(node.waiting.is_empty() && node.prompts.is_empty() && node.batch.is_empty());
            assert_eq!((node.kv_tokens, node.reserved_tokens), (0, 0));
        }
    }
}
