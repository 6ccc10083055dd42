//! Decode instances: continuous batching.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use lunette_conductor_policy::ids::InstanceId;
use lunette_conductor_policy::state::{DecodeJob, IncomingJob};

use super::{Event, Simulation, id_of};
use crate::report::{Ending, longest_tenth_mean_s};

#[derive(Debug, Default)]
pub(super) struct DecodeNode {
    /// Requests whose keys and values are there, but not yet in the batch.
    waiting: VecDeque<usize>,
    /// The batch, by the step after which each has all its tokens.
    ends: BinaryHeap<Reverse<(u32, usize)>>,
    /// Time of each step so far.
    step_s: Vec<f64>,
    reserved_tokens: u64,
    is_stepping: bool,
    /// Memory used again by each measurement.
    intervals_s: Vec<f64>,
}

impl DecodeNode {
    pub(super) const fn reserved_tokens(&self) -> u64 {
        self.reserved_tokens
    }
}

impl Simulation<'_> {
    /// Prefill and transfer of the request are done.
    pub(super) fn arrive_at_decode(&mut self, request: usize) {
        let now_s = self.clock.now_s();
        let decode = self.progress[request].decode;
        let item = self.workload.get(request);
        self.leave_incoming(request);
        if item.output_tokens == 1 {
            self.end(request, Ending::Served);
            return;
        }
        let state = &self.decode_states[decode];
        let fits_ever = reservation(&item) <= state.capacity_tokens;
        if !fits_ever || !self.conductor.is_decodable(now_s, item.input_tokens, state) {
            self.end(request, Ending::RefusedLate);
            return;
        }
        self.progress[request].kv_arrived_s = now_s;
        self.decode_states[decode].incoming.push(IncomingJob {
            id: id_of(request),
            input_tokens: item.input_tokens,
            ready_s: now_s,
            latest_s: now_s,
            has_arrived: true,
        });
        self.decode[decode].waiting.push_back(request);
        self.start_step(decode);
    }

    /// Takes the request from those that are expected at its decode instance.
    pub(super) fn leave_incoming(&mut self, request: usize) {
        let incoming = &mut self.decode_states[self.progress[request].decode].incoming;
        let at = incoming.iter().position(|job| job.id == id_of(request));
        incoming.swap_remove(at.expect("it was expected"));
    }

    fn start_step(&mut self, decode: usize) {
        if self.decode[decode].is_stepping {
            return;
        }
        let stall_s = self.admit(decode);
        let state = &self.decode_states[decode];
        if state.running.is_empty() {
            return;
        }
        let requests = u32::try_from(state.running.len()).expect("a batch fits");
        let kv_tokens = f64::from(u32::try_from(state.kv_tokens).unwrap_or(u32::MAX));
        let decode_cost = &self.scenario.cost.decode;
        let step_s = decode_cost.step_s(f64::from(requests), kv_tokens) + stall_s;
        let node = &mut self.decode[decode];
        node.is_stepping = true;
        node.step_s.push(step_s);
        let end_s = self.clock.now_s() + step_s;
        self.clock.plan(end_s, Event::StepEnd { decode });
    }

    /// Lets requests join while there is memory for them. Returns how long that holds up the step.
    fn admit(&mut self, decode: usize) -> f64 {
        let now_s = self.clock.now_s();
        let mut stall_s = 0.0;
        while let Some(&request) = self.decode[decode].waiting.front() {
            let item = self.workload.get(request);
            let node = &mut self.decode[decode];
            let reserved = node.reserved_tokens + reservation(&item);
            if reserved > self.scenario.vram_tokens {
                break;
            }
            node.reserved_tokens = reserved;
            node.waiting.pop_front();
            self.leave_incoming(request);
            let state = &mut self.decode_states[decode];
            let last_step = state.steps + item.output_tokens - 1;
            self.decode[decode].ends.push(Reverse((last_step, request)));
            state.kv_tokens += u64::from(item.input_tokens);
            state.running.push(DecodeJob {
                id: id_of(request),
                input_tokens: item.input_tokens,
                joined_at_step: state.steps,
                joined_s: now_s,
            });
            stall_s += self.scenario.cost.admit_stall_s_per_token * f64::from(item.input_tokens);
            let record = &mut self.records[request];
            record.decode_wait_s = now_s - self.progress[request].kv_arrived_s;
        }
        stall_s
    }

    pub(super) fn end_step(&mut self, decode: usize) {
        let state = &mut self.decode_states[decode];
        state.steps += 1;
        state.kv_tokens += u64::try_from(state.running.len()).expect("a batch fits");
        let steps = state.steps;
        let node = &mut self.decode[decode];
        node.is_stepping = false;
        assert!(
            state.kv_tokens <= self.scenario.vram_tokens,
            "memory is full"
        );
        while let Some(&Reverse((last_step, request))) = self.decode[decode].ends.peek() {
            assert!(last_step >= steps, "nobody gets more tokens than asked for");
            if last_step > steps {
                break;
            }
            self.decode[decode].ends.pop();
            self.end_decode(decode, request);
        }
        self.start_step(decode);
    }

    fn end_decode(&mut self, decode: usize, request: usize) {
        let item = self.workload.get(request);
        let state = &mut self.decode_states[decode];
        let at = state
            .running
            .iter()
            .position(|job| job.id == id_of(request));
        let job = state.running.swap_remove(at.expect("it is in the batch"));
        let made = state.steps - job.joined_at_step;
        assert_eq!(made, item.output_tokens - 1, "every token was made once");
        state.kv_tokens -= u64::from(item.input_tokens) + u64::from(made);
        let node = &mut self.decode[decode];
        node.reserved_tokens -= reservation(&item);
        let place = |step: u32| usize::try_from(step).expect("a step number fits");
        let steps = place(job.joined_at_step)..place(state.steps);
        node.intervals_s.clear();
        node.intervals_s.extend_from_slice(&node.step_s[steps]);
        if self.scenario.counts_first_interval {
            let wait_s = job.joined_s - self.progress[request].first_token_s;
            node.intervals_s[0] += wait_s;
        }
        let record = &mut self.records[request];
        record.tbt_s = longest_tenth_mean_s(&mut node.intervals_s);
        record.decode = InstanceId::at(decode);
        self.end(request, Ending::Served);
    }
}

/// Tokens that a request occupies at most.
fn reservation(item: &crate::workload::Item<'_>) -> u64 {
    u64::from(item.input_tokens) + u64::from(item.output_tokens)
}
