//! Rules that choose the prefill instance, and whether it fetches blocks from another.

use crate::cost::CostModel;
use crate::discipline::{Plan, rank_s};
use crate::ids::{InstanceId, TOKENS_PER_BLOCK};
use crate::index::Match;
use crate::pending::Awaited;
use crate::state::{PrefillJob, PrefillState, count};
use lunette_runtime_core::random::SplitMix64;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Any instance.
    Random,
    /// One after the other.
    RoundRobin,
    /// The fewest requests.
    LeastLoad,
    /// The longest match, whatever its queue.
    LongestMatch,
    /// The earliest first token, each instance using its own cache only.
    CacheAware,
    /// Mooncake's Algorithm 1: as `CacheAware`, but an instance may fetch the longest match.
    Algorithm1,
    /// The shortest queue, which fetches the longest match, however long that takes: a pool whose
    /// blocks lie anywhere, without an estimate of transfers.
    Pooled,
    /// The fewest blocks to prefill, queued ones included, as NVIDIA Dynamo weighs them.
    DynamoLike,
    /// The least harm: own time to first token, and what it does to the jobs already queued.
    Marginal,
}

impl Routing {
    /// All rules.
    pub const ALL: [Self; 9] = [
        Self::Random,
        Self::RoundRobin,
        Self::LeastLoad,
        Self::LongestMatch,
        Self::CacheAware,
        Self::Algorithm1,
        Self::Pooled,
        Self::DynamoLike,
        Self::Marginal,
    ];

    /// Whether it may have blocks fetched from another instance.
    #[must_use]
    pub const fn fetches(self) -> bool {
        matches!(self, Self::Algorithm1 | Self::Pooled | Self::Marginal)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::RoundRobin => "round-robin",
            Self::LeastLoad => "least-load",
            Self::LongestMatch => "longest-match",
            Self::CacheAware => "cache-aware",
            Self::Algorithm1 => "algorithm1",
            Self::Pooled => "pooled",
            Self::DynamoLike => "dynamo-like",
            Self::Marginal => "ours",
        }
    }
}

/// What a rule needs to know of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompt {
    pub(crate) id: u64,
    pub(crate) input_tokens: u32,
    pub(crate) deadline_s: f64,
    pub(crate) value: f64,
}

/// Blocks to be copied to the prefill instance before the prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Who has them.
    pub from: InstanceId,
    /// The first block of the prompt to be copied: those before are there.
    pub first_block: u32,
    /// The end: one after the last block to be copied.
    pub end_block: u32,
    /// The first of them that the holder is to drop when they have arrived; the end if none is.
    pub moved_from_block: u32,
}

/// Where a request is prefilled, and what that is expected to mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// The instance.
    pub instance: InstanceId,
    /// What it fetches.
    pub fetch: Option<Fetch>,
    /// The request at the same instance whose prefill it waits for, to use its blocks.
    pub after: Option<u64>,
    /// Work of the prefill, in seconds.
    pub work_s: f64,
    /// When the first token is expected.
    pub first_token_s: f64,
    /// Value of the jobs that would be late because of it.
    pub lost: f64,
    /// Whether it would be in time itself, with the reserve kept.
    pub is_in_time: bool,
}

/// What all rules read.
#[derive(Debug)]
pub(crate) struct Sight<'a> {
    pub(crate) now_s: f64,
    pub(crate) cost: &'a CostModel,
    pub(crate) prefill: &'a [PrefillState],
    pub(crate) matches: &'a [Match],
    /// What each instance will hold when what is queued there is done. Empty if nobody looks.
    pub(crate) awaited: &'a [Awaited],
    pub(crate) prompt: Prompt,
}

impl Sight<'_> {
    fn cached_tokens(&self, blocks: u32) -> u32 {
        self.prompt
            .input_tokens
            .min(blocks.saturating_mul(TOKENS_PER_BLOCK))
    }

    /// Work at an instance that has `blocks`, of which all but `memory_blocks` lie on a drive.
    fn work_s(&self, blocks: u32, memory_blocks: u32) -> f64 {
        let cached = self.cached_tokens(blocks);
        let on_drive = cached - self.cached_tokens(memory_blocks.min(blocks));
        self.cost.prefill.time_s(self.prompt.input_tokens, cached) + self.cost.ssd_s(on_drive)
    }

    fn local(&self, at: usize) -> Route {
        let matched = self.matches[at];
        let work_s = self.work_s(matched.blocks, matched.memory_blocks);
        let backlog_s = self.prefill[at].backlog_s(self.now_s);
        Route {
            instance: InstanceId::at(at),
            fetch: None,
            after: None,
            work_s,
            first_token_s: self.now_s + backlog_s + work_s,
            lost: 0.0,
            is_in_time: self.now_s + backlog_s + work_s <= self.prompt.deadline_s,
        }
    }

    /// Waiting for a prefill that is queued there and leaves blocks that the prompt begins with, and
    /// how long that one takes to end. It has to be due first, or the plan would hold it up.
    fn follow(&self, at: usize) -> Option<(Route, f64)> {
        let awaited = self.awaited.get(at)?;
        if awaited.blocks <= self.matches[at].blocks {
            return None;
        }
        let state = &self.prefill[at];
        let mut jobs = state.jobs().iter();
        let producer = jobs.find(|job| job.id == awaited.producer)?;
        if producer.deadline_s > self.prompt.deadline_s {
            return None;
        }
        let rank_s = rank_s(state, producer, 1.0);
        let sooner = |job: &&PrefillJob| job.id != producer.id && job.remaining_s < rank_s;
        let sooner = state.jobs().iter().filter(sooner);
        let sooner_s: f64 = sooner.map(|job| job.remaining_s).sum();
        let route = Route {
            after: Some(producer.id),
            work_s: self.work_s(awaited.blocks, awaited.blocks),
            ..self.local(at)
        };
        let end_s = state.running_s(self.now_s) + sooner_s + producer.remaining_s;
        Some((route, end_s))
    }

    fn fetch_s(&self, fetch: Fetch) -> f64 {
        let tokens = self.cached_tokens(fetch.end_block) - self.cached_tokens(fetch.first_block);
        let queued = self.prefill[fetch.from.index()].sending_bytes;
        queued / self.cost.network_bytes_per_s + self.cost.transfer_s(tokens)
    }

    /// The instance with the longest match; of several, the one that sends least.
    fn longest(&self) -> usize {
        let mut best = 0;
        for at in 1..self.matches.len() {
            let (new, old) = (self.matches[at].blocks, self.matches[best].blocks);
            let sends_less = self.prefill[at].sending_bytes < self.prefill[best].sending_bytes;
            if new > old || (new == old && sends_less) {
                best = at;
            }
        }
        best
    }

    fn remote(&self, at: usize, longest: usize) -> Option<(Fetch, f64)> {
        let here = self.matches[at];
        let there = self.matches[longest];
        if there.blocks <= here.blocks {
            return None;
        }
        let fetch = Fetch {
            from: InstanceId::at(longest),
            first_block: here.blocks,
            end_block: there.blocks,
            moved_from_block: there.blocks,
        };
        let on_drive = there.blocks - there.memory_blocks.clamp(here.blocks, there.blocks);
        let work_s = self.work_s(there.blocks, there.blocks - on_drive);
        Some((fetch, work_s))
    }
}

fn least(sight: &Sight<'_>, mut cost: impl FnMut(&Route) -> f64) -> Route {
    let routes = (0..sight.prefill.len()).map(|at| sight.local(at));
    let costed = routes.map(|route| (cost(&route), route));
    let best = costed.min_by(|a, b| a.0.total_cmp(&b.0));
    best.expect("a cluster has a prefill instance").1
}

pub(crate) fn random(sight: &Sight<'_>, random: &mut SplitMix64) -> Route {
    let instances = u32::try_from(sight.prefill.len()).expect("they are few");
    let at = random.below(instances);
    sight.local(usize::try_from(at).expect("it is small"))
}

pub(crate) fn round_robin(sight: &Sight<'_>, turn: &mut usize) -> Route {
    let at = *turn % sight.prefill.len();
    *turn = at + 1;
    sight.local(at)
}

pub(crate) fn least_load(sight: &Sight<'_>) -> Route {
    least(sight, |route| {
        let state = &sight.prefill[route.instance.index()];
        let running = f64::from(u8::from(state.running_s(sight.now_s) > 0.0));
        count(state.jobs().len()) + 0.5 * running
    })
}

pub(crate) fn longest_match(sight: &Sight<'_>) -> Route {
    least(sight, |route| {
        -f64::from(sight.matches[route.instance.index()].blocks)
    })
}

pub(crate) fn cache_aware(sight: &Sight<'_>) -> Route {
    least(sight, |route| route.first_token_s)
}

/// The queue counts in blocks' worth of work; the blocks of the request that are cached do not.
pub(crate) fn dynamo_like(sight: &Sight<'_>) -> Route {
    let block_s = sight.cost.prefill.time_s(TOKENS_PER_BLOCK, 0) - sight.cost.prefill.fixed_s;
    let blocks = sight.prompt.input_tokens.div_ceil(TOKENS_PER_BLOCK);
    least(sight, |route| {
        let at = route.instance.index();
        let own = blocks - sight.matches[at].blocks.min(blocks);
        sight.prefill[at].backlog_s(sight.now_s) / block_s + f64::from(own)
    })
}

/// Mooncake's Algorithm 1. A `threshold` of 1 fetches at any gain.
pub(crate) fn algorithm1(sight: &Sight<'_>, threshold: f64) -> Route {
    let longest = sight.longest();
    let mut best: Option<Route> = None;
    for at in 0..sight.prefill.len() {
        let mut route = sight.local(at);
        let here = f64::from(sight.matches[at].blocks);
        let there = f64::from(sight.matches[longest].blocks);
        if there > here * threshold
            && let Some((fetch, work_s)) = sight.remote(at, longest)
        {
            let backlog_s = sight.prefill[at].backlog_s(sight.now_s);
            route.fetch = Some(fetch);
            route.work_s = work_s;
            route.first_token_s = sight.now_s + sight.fetch_s(fetch) + backlog_s + work_s;
        }
        if best.is_none_or(|best| route.first_token_s < best.first_token_s) {
            best = Some(route);
        }
    }
    best.expect("a cluster has a prefill instance")
}

pub(crate) fn pooled(sight: &Sight<'_>) -> Route {
    let backlog_s = |route: &Route| sight.prefill[route.instance.index()].backlog_s(sight.now_s);
    let mut route = least(sight, backlog_s);
    if let Some((fetch, work_s)) = sight.remote(route.instance.index(), sight.longest()) {
        let wait_s = backlog_s(&route).max(sight.fetch_s(fetch));
        route.fetch = Some(fetch);
        route.work_s = work_s;
        route.first_token_s = sight.now_s + wait_s + work_s;
        route.is_in_time = route.first_token_s <= sight.prompt.deadline_s;
    }
    route
}

/// What counts in our choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    /// A second of delay of a queued job, beside one of the request's own.
    pub(crate) delay: f64,
    /// Share of the time before the deadline that is not booked.
    pub(crate) reserve: f64,
}

/// Ours. The fetch overlaps with queueing, an instance may do without one, or let the request wait
/// for a prefill that begins like it, and what counts beside the own time is the value lost, and the
/// work for each job that it delays.
pub(crate) fn marginal(sight: &Sight<'_>, weights: Weights, plan: &mut Plan) -> Route {
    let longest = sight.longest();
    let mut best: Option<(f64, Route)> = None;
    for at in 0..sight.prefill.len() {
        plan.make(&sight.prefill[at], sight.now_s, None);
        let lost_before = plan.lost();
        let mut offer = |mut route: Route, ready_s: f64| {
            route.lost = judge(sight, &mut route, ready_s, weights.reserve, plan) - lost_before;
            let state = &sight.prefill[at];
            let longer = state
                .jobs()
                .iter()
                .filter(|job| job.remaining_s > route.work_s);
            let delay_s = weights.delay * route.work_s * count(longer.count());
            let cost = route.first_token_s - sight.now_s + delay_s;
            let is_better = best.is_none_or(|(least, kept)| {
                let lateness = kept.is_in_time.cmp(&route.is_in_time);
                let loss = route.lost.max(0.0).total_cmp(&kept.lost.max(0.0));
                lateness.then(loss).then(cost.total_cmp(&least)).is_lt()
            });
            if is_better {
                best = Some((cost, route));
            }
        };
        offer(sight.local(at), 0.0);
        if let Some((fetch, work_s)) = sight.remote(at, longest) {
            let fetch_s = sight.fetch_s(fetch);
            let route = Route {
                fetch: Some(fetch),
                work_s,
                ..sight.local(at)
            };
            offer(route, fetch_s);
        }
        if let Some((route, ready_s)) = sight.follow(at) {
            offer(route, ready_s);
        }
    }
    best.expect("a cluster has a prefill instance").1
}

/// Sets when the first token is expected and whether it is in time, and returns the value lost with
/// the request in the queue. Its blocks are there after `ready_s`; if that is too late, it loses its
/// own value.
///
/// An instance that is booked to the last second before the deadlines can only serve in their order,
/// which is that of arrival where all get the same time, and short requests wait behind long ones.
/// So a reserve is kept, by refusing earlier: what is served stays the same, since an instance with
/// half a minute of work is as busy as one with a little less.
fn judge(sight: &Sight<'_>, route: &mut Route, ready_s: f64, reserve: f64, plan: &mut Plan) -> f64 {
    let state = &sight.prefill[route.instance.index()];
    let prompt = sight.prompt;
    let job = PrefillJob {
        id: prompt.id,
        remaining_s: route.work_s,
        deadline_s: prompt.deadline_s,
        value: prompt.value,
        is_ready: ready_s <= 0.0,
        has_started: false,
        after: None,
    };
    plan.make(state, sight.now_s, Some(&job));
    let shorter = state
        .jobs()
        .iter()
        .filter(|job| job.remaining_s <= route.work_s);
    let ahead: f64 = shorter.map(|job| job.remaining_s).sum();
    let wait_s = (state.running_s(sight.now_s) + ahead).max(ready_s);
    route.first_token_s = sight.now_s + wait_s + route.work_s;
    if plan.tried_end_s().is_none() {
        let alone_s = state.backlog_s(sight.now_s).max(ready_s) + route.work_s;
        route.first_token_s = route.first_token_s.max(sight.now_s + alone_s);
    }
    let slack_s = prompt.deadline_s - sight.now_s - route.work_s;
    let bookable_s = prompt.deadline_s - reserve * slack_s.max(0.0);
    let is_booked_in_time = plan.tried_end_s().is_some_and(|end_s| end_s <= bookable_s);
    // The blocks that it waits for must be there in time as well.
    let is_ready_late = sight.now_s + ready_s + route.work_s > prompt.deadline_s;
    route.is_in_time = is_booked_in_time && !is_ready_late;
    let own = if plan.tried_end_s().is_some() && is_ready_late {
        prompt.value
    } else {
        0.0
    };
    plan.lost() + own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(blocks: u32) -> Match {
        Match {
            blocks,
            memory_blocks: blocks,
        }
    }

    const WEIGHTS: Weights = Weights {
        delay: 1.0,
        reserve: 0.0,
    };

    fn with_sight<R>(backlogs_s: &[f64], blocks: &[u32], act: impl Fn(&Sight<'_>) -> R) -> R {
        let prefill: Vec<PrefillState> = backlogs_s
            .iter()
            .map(|&backlog_s| {
                let mut state = PrefillState::default();
                state.busy_until_s = backlog_s;
                state
            })
            .collect();
        let matches: Vec<Match> = blocks.iter().map(|&blocks| matched(blocks)).collect();
        let prompt = Prompt {
            id: 1,
            input_tokens: 16_384,
            deadline_s: 10.0,
            value: 1.0,
        };
        act(&Sight {
            now_s: 0.0,
            cost: &CostModel::a800_llama3_70b(),
            prefill: &prefill,
            matches: &matches,
            awaited: &[],
            prompt,
        })
    }

    #[test]
    fn cache_aware_takes_the_cached_instance_until_its_queue_costs_more() {
        let chosen = |backlog_s: f64| {
            with_sight(&[0.0, backlog_s], &[0, 30], |sight| {
                cache_aware(sight).instance.0
            })
        };
        assert_eq!(chosen(1.0), 1);
        assert_eq!(chosen(3.0), 0);
    }

    #[test]
    fn algorithm1_fetches_when_the_holder_is_busy_and_the_match_is_long_enough() {
        let route = |threshold: f64| {
            with_sight(&[0.0, 9.0], &[10, 30], |sight| algorithm1(sight, threshold))
        };
        let fetch = Fetch {
            from: InstanceId(1),
            first_block: 10,
            end_block: 30,
            moved_from_block: 30,
        };
        assert_eq!(route(1.0).fetch, Some(fetch));
        assert_eq!(route(2.9).fetch, Some(fetch));
        assert_eq!(route(3.0).fetch, None);
        assert!(route(1.0).first_token_s < route(3.0).first_token_s);
    }

    #[test]
    fn the_same_holds_for_ours_and_what_is_lost_is_said() {
        let route = |backlog_s: f64| {
            with_sight(&[backlog_s, 9.0], &[10, 30], |sight| {
                marginal(sight, WEIGHTS, &mut Plan::default())
            })
        };
        assert!(route(0.0).fetch.is_some());
        assert_eq!(route(0.0).lost, 0.0);
        assert_eq!(route(30.0).instance, InstanceId(1));
        assert_eq!(route(9.9).lost, 0.0, "the holder is still in time");
    }

    #[test]
    fn a_reserve_refuses_what_would_end_in_the_last_of_the_time() {
        let is_in_time = |backlog_s: f64, reserve: f64| {
            with_sight(&[backlog_s], &[0], |sight| {
                let weights = Weights {
                    delay: 1.0,
                    reserve,
                };
                marginal(sight, weights, &mut Plan::default()).is_in_time
            })
        };
        // The work is 2.07 s, the deadline 10 s: 7.93 s of slack.
        for (backlog_s, reserve, expected) in [
            (7.9, 0.0, true),
            (8.0, 0.0, false),
            (5.9, 0.25, true),
            (6.0, 0.25, false),
        ] {
            assert_eq!(
                is_in_time(backlog_s, reserve),
                expected,
                "{backlog_s} s, {reserve}"
            );
        }
    }

    #[test]
    fn simple_rules_do_what_their_names_say() {
        with_sight(&[1.0, 0.0, 1.0], &[0, 0, 5], |sight| {
            assert_eq!(least_load(sight).instance, InstanceId(1));
            assert_eq!(longest_match(sight).instance, InstanceId(2));
            assert_eq!(dynamo_like(sight).instance, InstanceId(1));
            let pooled = pooled(sight);
            assert_eq!(pooled.instance, InstanceId(1));
            assert_eq!(pooled.fetch.map(|fetch| fetch.end_block), Some(5));
            let mut turn = 0;
            let turns = [0; 4].map(|_| round_robin(sight, &mut turn).instance.0);
            assert_eq!(turns, [0, 1, 2, 0]);
            let mut seeded = SplitMix64::new(1);
            let drawn: Vec<u16> = (0..50)
                .map(|_| random(sight, &mut seeded).instance.0)
                .collect();
            assert!((0..3).all(|instance| drawn.contains(&instance)));
        });
    }

    #[test]
    fn ours_waits_for_a_queued_prefix_that_is_due_first() {
        let cost = CostModel::a800_llama3_70b();
        let chosen = |producer_deadline_s: f64| {
            let mut prefill = [PrefillState::default(), PrefillState::default()];
            for (state, id) in prefill.iter_mut().zip([7, 8]) {
                state.push(PrefillJob {
                    id,
                    remaining_s: 1.8,
                    deadline_s: producer_deadline_s,
                    value: 1.0,
                    is_ready: true,
                    has_started: false,
                    after: None,
                });
            }
            let nothing = Awaited::default();
            let queued = Awaited {
                blocks: 30,
                producer: 8,
            };
            let sight = Sight {
                now_s: 0.0,
                cost: &cost,
                prefill: &prefill,
                matches: &[matched(0); 2],
                awaited: &[nothing, queued],
                prompt: Prompt {
                    id: 9,
                    input_tokens: 16_384,
                    deadline_s: 10.0,
                    value: 1.0,
                },
            };
            marginal(&sight, WEIGHTS, &mut Plan::default())
        };
        let route = chosen(9.0);
        assert_eq!((route.instance.0, route.after), (1, Some(8)));
        assert!(route.work_s < 0.3, "{}", route.work_s);
        assert!(route.first_token_s > 1.8, "{}", route.first_token_s);
        assert_eq!(chosen(11.0).after, None);
    }
}
