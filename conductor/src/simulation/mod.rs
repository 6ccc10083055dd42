//! From a workload and a scenario to a report.
//!
//! A request arrives; the conductor places or refuses it. At its prefill instance it waits, for its
//! turn and for the blocks it fetches; what is cached is found out when its work starts. Its keys
//! and values go to the decode instance, whose own scheduler may still refuse it, and it joins the
//! batch at the next step that has memory for it. Memory is reserved for the whole answer, which
//! stands in for the pausing and resuming by which an engine finds that memory.

mod clock;
pub mod coupled;
mod decode;
mod prefill;

use lunette_conductor_policy::conductor::{Cluster, Conductor, Decision, Outcome, Placement};
use lunette_conductor_policy::conductor::{Refusal, Request};
use lunette_conductor_policy::ids::InstanceId;
use lunette_conductor_policy::index::PrefixIndex;
use lunette_conductor_policy::state::{DecodeState, IncomingJob, PrefillState};

use crate::cache::{Cache, Changes};
use crate::network::Network;
use crate::report::{Ending, Record, Report, Sample};
use crate::scenario::{INSTANCES_MAX, Scenario};
use crate::workload::Workload;
use clock::{Clock, Event};
use decode::DecodeNode;
use prefill::PrefillNode;

/// A request that waits longer than this for memory at its decode instance counts as late,
/// whatever its other intervals.
pub const DECODE_WAIT_S_MAX: f64 = 1.0;
/// Time between two samples of the load.
const SAMPLE_S: f64 = 10.0;

/// Runs the workload through the scenario.
///
/// The same workload and scenario give the same report, on every run.
///
/// # Panics
/// If the scenario has no prefill or no decode instance, or too many; and if a rule of the
/// simulation itself is broken: bytes or requests lost, time going back.
#[must_use]
pub fn simulate(workload: &Workload, scenario: &Scenario) -> Report {
    let mut simulation = Simulation::new(workload, *scenario);
    simulation.run();
    simulation.check_end();
    Report::new(simulation.records, simulation.samples, scenario.prefill)
}

#[derive(Debug)]
struct Simulation<'a> {
    workload: &'a Workload,
    scenario: Scenario,
    conductor: Conductor,
    index: PrefixIndex,
    network: Network,
    network_plan: u64,
    clock: Clock,
    prefill: Vec<PrefillNode>,
    prefill_states: Vec<PrefillState>,
    decode: Vec<DecodeNode>,
    decode_states: Vec<DecodeState>,
    progress: Vec<Progress>,
    records: Vec<Record>,
    samples: Vec<Sample>,
    arrived: usize,
    changes: Changes,
    flows_ended: Vec<u64>,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    prefill: usize,
    decode: usize,
    /// Blocks being fetched: first and end.
    fetched: (u32, u32),
    /// Who has them, and the first of them that it is to drop.
    fetched_from: usize,
    moved_from: u32,
    /// Prefill work still to be done, once it has started.
    remaining_s: f64,
    first_token_s: f64,
    is_prefilled: bool,
    is_pushed: bool,
    kv_arrived_s: f64,
    has_ended: bool,
}

/// What a transfer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cargo {
    Fetch,
    Push,
}

fn flow_id(request: usize, cargo: Cargo) -> u64 {
    let request = u64::try_from(request).expect("requests are counted in memory");
    request << 1 | u64::from(cargo == Cargo::Push)
}

fn cargo_of(flow: u64) -> (usize, Cargo) {
    let request = usize::try_from(flow >> 1).expect("it was made from one");
    let cargo = if flow & 1 == 1 {
        Cargo::Push
    } else {
        Cargo::Fetch
    };
    (request, cargo)
}

fn id_of(request: usize) -> u64 {
    u64::try_from(request).expect("requests are counted in memory")
}

fn request_of(id: u64) -> usize {
    usize::try_from(id).expect("it was made from one")
}

/// Tells the index what changed in the cache of an instance.
fn publish(index: &mut PrefixIndex, instance: InstanceId, changes: &mut Changes) {
    for (tier, hash, is_stored) in changes.drain(..) {
        let is_news = if is_stored {
            index.store(instance, tier, hash)
        } else {
            index.remove(instance, tier, hash)
        };
        assert!(is_news, "a cache publishes each change once");
    }
}

impl<'a> Simulation<'a> {
    fn new(workload: &'a Workload, scenario: Scenario) -> Self {
        let Scenario {
            prefill, decode, ..
        } = scenario;
        assert!((1..=INSTANCES_MAX).contains(&prefill));
        assert!((1..=INSTANCES_MAX).contains(&decode));
        let cache = || Cache::new(scenario.dram_blocks, scenario.ssd_blocks);
        Self {
            workload,
            scenario,
            conductor: Conductor::new(scenario.options, scenario.cost, scenario.slo),
            index: PrefixIndex::new(prefill),
            network: Network::new(prefill + decode, scenario.cost.network_bytes_per_s),
            network_plan: 0,
            clock: Clock::default(),
            prefill: (0..prefill).map(|_| PrefillNode::new(cache())).collect(),
            prefill_states: vec![PrefillState::default(); prefill],
            decode: (0..decode).map(|_| DecodeNode::default()).collect(),
            decode_states: vec![DecodeState::new(scenario.vram_tokens); decode],
            progress: vec![Progress::default(); workload.len()],
            records: (0..workload.len())
                .map(|at| Record::new(&workload.get(at)))
                .collect(),
            samples: Vec::new(),
            arrived: 0,
            changes: Changes::new(),
            flows_ended: Vec::new(),
        }
    }

    fn run(&mut self) {
        self.plan_arrival();
        while let Some(event) = self.clock.next() {
            match event {
                Event::Arrival => self.arrive(),
                Event::SliceEnd { prefill } => self.end_slice(prefill),
                Event::Network { plan } if plan == self.network_plan => self.end_flows(),
                Event::Network { .. } => {}
                Event::StepEnd { decode } => self.end_step(decode),
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
        let now_s = self.clock.now_s();
        let item = self.workload.get(request);
        self.network.sending(&mut self.prefill_states);
        let cluster = Cluster {
            prefill: &self.prefill_states,
            decode: &self.decode_states,
            index: &self.index,
        };
        let asked = Request {
            id: id_of(request),
            input_tokens: item.input_tokens,
            hashes: item.hashes,
        };
        match self.conductor.decide(now_s, asked, cluster) {
            Decision::Place(placement) => self.place(request, &placement),
            Decision::Refuse(Refusal::Prefill) => self.end(request, Ending::RefusedForPrefill),
            Decision::Refuse(Refusal::Decode) => self.end(request, Ending::RefusedForDecode),
        }
    }

    fn place(&mut self, request: usize, placement: &Placement) {
        let decode = placement.decode.index();
        self.progress[request].decode = decode;
        self.decode_states[decode].incoming.push(IncomingJob {
            id: id_of(request),
            input_tokens: self.workload.get(request).input_tokens,
            ready_s: placement.route.first_token_s,
            latest_s: placement.deadline_s,
            has_arrived: false,
        });
        self.enqueue(request, placement);
    }

    fn begin_flow(&mut self, request: usize, cargo: Cargo, from: usize, to: usize, tokens: u32) {
        let bytes = f64::from(tokens) * self.scenario.cost.kv_bytes_per_token;
        let flow = flow_id(request, cargo);
        self.network
            .begin(self.clock.now_s(), flow, from, to, bytes);
        self.plan_network();
    }

    fn plan_network(&mut self) {
        self.network_plan += 1;
        if let Some(end_s) = self.network.next_end_s() {
            let plan = self.network_plan;
            self.clock.plan(end_s, Event::Network { plan });
        }
    }

    fn end_flows(&mut self) {
        let mut ended = std::mem::take(&mut self.flows_ended);
        self.network.arrived(self.clock.now_s(), &mut ended);
        self.plan_network();
        for &flow in &ended {
            match cargo_of(flow) {
                (request, Cargo::Fetch) => self.end_fetch(request),
                (request, Cargo::Push) => self.end_push(request),
            }
        }
        self.flows_ended = ended;
    }

    fn publish(&mut self, prefill: usize) {
        publish(&mut self.index, InstanceId::at(prefill), &mut self.changes);
        self.prefill_states[prefill].ages = self.prefill[prefill].ages();
    }

    /// The request has ended, in whatever way.
    fn end(&mut self, request: usize, ending: Ending) {
        let progress = &mut self.progress[request];
        assert!(!progress.has_ended, "a request ends once");
        progress.has_ended = true;
        let item = self.workload.get(request);
        let record = &mut self.records[request];
        let cost = &self.scenario.cost.prefill;
        record.ttft_limit_s = self.scenario.slo.ttft_limit_s(cost, item.input_tokens);
        record.end(ending, &self.scenario.slo);
        let is_decoded = ending == Ending::Served;
        self.conductor.ended(Outcome {
            input_tokens: item.input_tokens,
            is_good: record.is_good,
            was_in_time: match ending {
                Ending::Served | Ending::RefusedLate => Some(record.ttft_s <= record.ttft_limit_s),
                Ending::Dropped => Some(false),
                Ending::RefusedForPrefill | Ending::RefusedForDecode => None,
            },
            decoded: is_decoded.then_some((item.output_tokens, record.tbt_s)),
        });
    }

    fn sample(&mut self) {
        let now_s = self.clock.now_s();
        let due_s = self.samples.last().map_or(0.0, |last| last.at_s + SAMPLE_S);
        if now_s < due_s {
            return;
        }
        let backlog = self
            .prefill_states
            .iter()
            .map(|state| state.backlog_s(now_s));
        self.samples.push(Sample {
            at_s: now_s,
            prefill_backlog_s: backlog.sum(),
            decode_requests: self.decode_states.iter().map(|s| s.running.len()).sum(),
            decode_kv_tokens: self.decode_states.iter().map(|s| s.kv_tokens).sum(),
        });
    }

    fn check_end(&self) {
        assert_eq!(self.arrived, self.workload.len(), "every request arrived");
        assert!(
            self.progress.iter().all(|progress| progress.has_ended),
            "every request ended"
        );
        let (sent, delivered) = self.network.bytes();
        assert!(
            (sent - delivered).abs() <= 1e-6 * sent + 1.0,
            "{sent} bytes sent, {delivered} delivered"
        );
        for state in &self.prefill_states {
            assert!(state.jobs().is_empty(), "a queue is empty in the end");
        }
        for (node, state) in self.decode.iter().zip(&self.decode_states) {
            assert!(state.running.is_empty() && state.incoming.is_empty());
            assert_eq!((state.kv_tokens, node.reserved_tokens()), (0, 0));
        }
        for (at, node) in self.prefill.iter().enumerate() {
            node.check_end(InstanceId::at(at), &self.index);
        }
    }
}
