//! Prefill instances: queue, slices, cache.

use std::ops::Range;

use lunette_conductor_policy::conductor::Placement;
use lunette_conductor_policy::ids::{InstanceId, TOKENS_PER_BLOCK, Tier};
use lunette_conductor_policy::index::PrefixIndex;
use lunette_conductor_policy::memory::Ages;
use lunette_conductor_policy::state::PrefillJob;
use lunette_runtime_core::random::mix;

use super::{Cargo, Event, Progress, Simulation, id_of, request_of};
use crate::cache::Cache;
use crate::report::Ending;

/// What it costs to go on with a job after another has been served in between.
const RESUME_S: f64 = 0.005;
/// Work below this is none.
const WORK_S_MIN: f64 = 1e-9;

#[derive(Debug)]
pub(super) struct PrefillNode {
    cache: Cache,
    running: Option<usize>,
    last: Option<usize>,
}

impl PrefillNode {
    pub(super) const fn new(cache: Cache) -> Self {
        Self {
            cache,
            running: None,
            last: None,
        }
    }

    pub(super) const fn ages(&self) -> Ages {
        self.cache.ages()
    }

    /// The index says what the cache holds, no more and no less.
    pub(super) fn check_end(&self, instance: InstanceId, index: &PrefixIndex) {
        assert!(self.running.is_none(), "nothing runs in the end");
        for (tier, len) in [
            (Tier::Dram, self.cache.len().0),
            (Tier::Ssd, self.cache.len().1),
        ] {
            assert_eq!(index.count(instance, tier), len, "{instance:?}, {tier:?}");
        }
    }
}

impl Simulation<'_> {
    /// Puts a request that was placed into the queue, and begins to fetch.
    pub(super) fn enqueue(&mut self, request: usize, placement: &Placement) {
        let prefill = placement.route.instance.index();
        self.progress[request].prefill = prefill;
        let fetch = placement.route.fetch;
        self.prefill_states[prefill].push(PrefillJob {
            id: id_of(request),
            remaining_s: placement.route.work_s,
            deadline_s: placement.deadline_s,
            value: placement.value,
            is_ready: fetch.is_none(),
            has_started: false,
            after: placement.route.after,
        });
        if let Some(fetch) = fetch {
            let progress = &mut self.progress[request];
            progress.fetched = (fetch.first_block, fetch.end_block);
            progress.fetched_from = fetch.from.index();
            progress.moved_from = fetch.moved_from_block;
            let tokens = TOKENS_PER_BLOCK * (fetch.end_block - fetch.first_block);
            self.records[request].fetched_tokens = tokens;
            let fetched = &self.workload.get(request).hashes[self.fetched(request)];
            let now_s = self.clock.now_s();
            let holder = &mut self.prefill[fetch.from.index()].cache;
            holder.use_again(fetched, now_s);
            let from = self.sender(request, fetch.from.index());
            self.begin_flow(request, Cargo::Fetch, from, prefill, tokens);
        }
        self.start_slice(prefill);
    }

    /// The node that sends what a request fetches: the holder, or any other node of a pool.
    fn sender(&self, request: usize, holder: usize) -> usize {
        if !self.scenario.is_pool {
            return holder;
        }
        let prefill = self.progress[request].prefill;
        let others = u64::try_from(self.scenario.prefill + self.scenario.decode - 1);
        let drawn = mix(id_of(request)) % others.expect("instances are few");
        let drawn = usize::try_from(drawn).expect("instances are few");
        drawn + usize::from(drawn >= prefill)
    }

    /// The blocks that a request waited for have come.
    pub(super) fn end_fetch(&mut self, request: usize) {
        let prefill = self.progress[request].prefill;
        if !self.scenario.is_pool {
            let fetched = self.fetched(request);
            let hashes = &self.workload.get(request).hashes[fetched];
            let now_s = self.clock.now_s();
            let cache = &mut self.prefill[prefill].cache;
            cache.keep(hashes, now_s, &mut self.changes);
            self.publish(prefill);
            self.drop_moved(request);
        }
        if let Some(job) = self.prefill_states[prefill].job_mut(id_of(request)) {
            job.is_ready = true;
        }
        self.start_slice(prefill);
    }

    /// The holder drops what has been moved.
    fn drop_moved(&mut self, request: usize) {
        let Progress {
            fetched,
            fetched_from,
            moved_from,
            ..
        } = self.progress[request];
        let place = |block: u32| usize::try_from(block).expect("a block number fits");
        let moved = &self.workload.get(request).hashes[place(moved_from)..place(fetched.1)];
        if !moved.is_empty() {
            self.prefill[fetched_from]
                .cache
                .forget(moved, &mut self.changes);
            self.publish(fetched_from);
        }
    }

    fn fetched(&self, request: usize) -> Range<usize> {
        let place = |block: u32| usize::try_from(block).expect("a block number fits");
        let (first, end) = self.progress[request].fetched;
        place(first)..place(end)
    }

    /// Starts the next slice if the instance is free and something can run.
    fn start_slice(&mut self, prefill: usize) {
        if self.prefill[prefill].running.is_some() {
            return;
        }
        self.drop_hopeless(prefill);
        let now_s = self.clock.now_s();
        let state = &self.prefill_states[prefill];
        let Some(slice) = self.conductor.next_slice(now_s, state) else {
            return;
        };
        let request = request_of(slice.id);
        let is_first = !self.has_started(prefill, slice.id);
        if is_first {
            self.start_work(prefill, request);
        }
        let node = &mut self.prefill[prefill];
        let is_resumed = !is_first && node.last != Some(request);
        let resume_s = if is_resumed { RESUME_S } else { 0.0 };
        node.running = Some(request);
        node.last = Some(request);
        let remaining_s = &mut self.progress[request].remaining_s;
        let work_s = remaining_s.min(slice.at_most_s);
        *remaining_s -= work_s;
        if *remaining_s < WORK_S_MIN {
            *remaining_s = 0.0;
        }
        let left_s = *remaining_s;
        let end_s = now_s + work_s + resume_s;
        self.records[request].prefill_s += work_s + resume_s;
        let state = &mut self.prefill_states[prefill];
        state.busy_until_s = end_s;
        let job = state.job_mut(slice.id).expect("it was chosen from these");
        job.remaining_s = left_s;
        job.has_started = true;
        self.clock.plan(end_s, Event::SliceEnd { prefill });
        if left_s == 0.0 && self.scenario.is_layer_wise {
            self.push(request);
        }
    }

    fn has_started(&mut self, prefill: usize, id: u64) -> bool {
        let job = self.prefill_states[prefill].job_mut(id);
        job.expect("it is in the queue").has_started
    }

    /// Finds out what is cached, and so how much work there is.
    fn start_work(&mut self, prefill: usize, request: usize) {
        let item = self.workload.get(request);
        let (first, end) = self.progress[request].fetched;
        let (blocks, _) = self.prefill[prefill].cache.leading(item.hashes);
        if blocks > 0 && first == end {
            let used = usize::try_from(blocks).expect("a block number fits");
            let now_s = self.clock.now_s();
            let cache = &mut self.prefill[prefill].cache;
            cache.use_again(&item.hashes[..used], now_s);
        }
        let (work_s, cached) = self.work(prefill, request, self.scenario.is_pool);
        assert!(work_s > 0.0, "a prefill takes time");
        self.progress[request].remaining_s = work_s;
        self.records[request].cached_tokens = cached;
    }

    /// The work of a request that has not been started, in seconds, and tokens of it that are
    /// cached; what it fetches counts as cached where `has_fetched`.
    fn work(&self, prefill: usize, request: usize, has_fetched: bool) -> (f64, u32) {
        let item = self.workload.get(request);
        let (mut blocks, mut memory_blocks) = self.prefill[prefill].cache.leading(item.hashes);
        let (first, end) = self.progress[request].fetched;
        if has_fetched && (first..end).contains(&blocks) {
            memory_blocks += end - blocks;
            blocks = end;
        }
        let tokens = |blocks: u32| item.input_tokens.min(blocks * TOKENS_PER_BLOCK);
        let cached = tokens(blocks);
        let on_drive = cached - tokens(memory_blocks);
        let cost = &self.scenario.cost;
        let work_s = cost.prefill.time_s(item.input_tokens, cached) + cost.ssd_s(on_drive);
        (work_s, cached)
    }

    /// The prefill of a request has ended or was given up. What waits there has less to do now if it
    /// begins with the same blocks, and more if it was going to use them.
    fn leave_prefill(&mut self, prefill: usize, request: usize) {
        let hashes = self.workload.get(request).hashes;
        self.conductor.prefill_left(id_of(request), hashes);
        if !self.scenario.options.follows {
            return;
        }
        let mut state = std::mem::take(&mut self.prefill_states[prefill]);
        for job in state.jobs_mut() {
            if !job.has_started && job.after.is_none() {
                let has_fetched = self.scenario.is_pool || !job.is_ready;
                let (work_s, _) = self.work(prefill, request_of(job.id), has_fetched);
                job.remaining_s = work_s;
            }
        }
        self.prefill_states[prefill] = state;
    }

    /// Refuses what waits and is given up.
    fn drop_hopeless(&mut self, prefill: usize) {
        let now_s = self.clock.now_s();
        loop {
            let state = &self.prefill_states[prefill];
            let Some(id) = self.conductor.given_up(now_s, state) else {
                return;
            };
            self.prefill_states[prefill].take(id);
            let request = request_of(id);
            self.leave_prefill(prefill, request);
            self.leave_incoming(request);
            self.end(request, Ending::Dropped);
        }
    }

    pub(super) fn end_slice(&mut self, prefill: usize) {
        let node = &mut self.prefill[prefill];
        let request = node.running.take().expect("a slice has a request");
        if self.progress[request].remaining_s == 0.0 {
            self.end_prefill(prefill, request);
        }
        self.start_slice(prefill);
    }

    fn end_prefill(&mut self, prefill: usize, request: usize) {
        let now_s = self.clock.now_s();
        let job = self.prefill_states[prefill].take(id_of(request));
        assert!(job.is_some(), "it was in the queue");
        let item = self.workload.get(request);
        let record = &mut self.records[request];
        record.ttft_s = now_s - item.arrival_s;
        assert!(
            record.ttft_s + WORK_S_MIN >= record.prefill_s,
            "no token before its work"
        );
        self.progress[request].is_prefilled = true;
        self.progress[request].first_token_s = now_s;
        let fetched = self.fetched(request);
        let node = &mut self.prefill[prefill];
        if !self.scenario.is_pool {
            node.cache.keep(item.hashes, now_s, &mut self.changes);
        } else {
            // From the end to the start, so that a prefix outlives what builds on it.
            let (head, tail) = (&item.hashes[..fetched.start], &item.hashes[fetched.end..]);
            node.cache.keep(tail, now_s, &mut self.changes);
            node.cache.keep(head, now_s, &mut self.changes);
        }
        self.publish(prefill);
        self.leave_prefill(prefill, request);
        if self.progress[request].is_pushed {
            self.arrive_at_decode(request);
        } else if !self.scenario.is_layer_wise {
            self.push(request);
        }
    }

    /// Begins to send keys and values to the decode instance. An answer of one token needs none.
    fn push(&mut self, request: usize) {
        let item = self.workload.get(request);
        if item.output_tokens == 1 {
            self.end_push(request);
            return;
        }
        let progress = self.progress[request];
        let to = self.scenario.prefill + progress.decode;
        self.begin_flow(
            request,
            Cargo::Push,
            progress.prefill,
            to,
            item.input_tokens,
        );
    }

    pub(super) fn end_push(&mut self, request: usize) {
        self.progress[request].is_pushed = true;
        if self.progress[request].is_prefilled {
            self.arrive_at_decode(request);
        }
    }
}
