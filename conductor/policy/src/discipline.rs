//! Which queued request a prefill instance serves next.

use crate::state::{PrefillJob, PrefillState};

/// A rule for the queue of a prefill instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Discipline {
    /// In order of arrival, each to its end.
    Fifo,
    /// In slices: the shortest remaining work first, as long as every job that can be in time
    /// stays so; where not all can, those that are worth least for their work are put off. Work
    /// that others wait for counts as divided among them.
    DeadlineAware {
        /// Longest slice, in seconds.
        slice_s: f64,
    },
}

/// What to run next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slice {
    /// The request.
    pub id: u64,
    /// For how long, in seconds; a [`f64::INFINITY`] means to the end.
    pub at_most_s: f64,
}

impl Discipline {
    /// The deadline-aware discipline with slices of about four thousand tokens.
    pub const DEADLINE_AWARE: Self = Self::DeadlineAware { slice_s: 0.5 };

    /// The next slice of an instance that has just become free, or `None` if nothing can run.
    #[must_use]
    pub fn next(self, state: &PrefillState, now_s: f64, plan: &mut Plan) -> Option<Slice> {
        match self {
            Self::Fifo => {
                let first = state.jobs().iter().min_by_key(|job| job.id)?;
                first.is_ready.then_some(Slice {
                    id: first.id,
                    at_most_s: f64::INFINITY,
                })
            }
            Self::DeadlineAware { slice_s } => {
                plan.make(state, now_s, None);
                let id = shortest_harmless(state, plan, now_s, slice_s)?;
                Some(Slice {
                    id,
                    at_most_s: slice_s,
                })
            }
        }
    }
}

/// The shortest job that can run and whose next slice makes no planned job late. If no job that can
/// run is planned, the shortest of the others.
fn shortest_harmless(state: &PrefillState, plan: &Plan, now_s: f64, slice_s: f64) -> Option<u64> {
    let jobs = state.jobs();
    let mut best: Option<(f64, u64)> = None;
    let mut end_s = now_s;
    let mut slack_s = f64::INFINITY;
    for (job, _) in jobs.iter().zip(&plan.is_late).filter(|(_, late)| !**late) {
        let is_harmless = slack_s >= job.remaining_s.min(slice_s);
        if is_harmless && job.can_run() {
            let rank_s = rank_s(state, job, 0.0);
            if best.is_none_or(|(best_s, _)| rank_s < best_s) {
                best = Some((rank_s, job.id));
            }
        }
        end_s += job.remaining_s;
        slack_s = slack_s.min(job.deadline_s - end_s);
    }
    let shortest = |jobs: &mut dyn Iterator<Item = &PrefillJob>| {
        jobs.filter(|job| job.can_run())
            .min_by(|a, b| a.remaining_s.total_cmp(&b.remaining_s))
            .map(|job| job.id)
    };
    best.map(|(_, id)| id)
        .or_else(|| shortest(&mut jobs.iter()))
}

/// What a job is ranked by: its remaining work for each job that this serves, itself and those that
/// wait for it, of which there may be `more`.
pub(crate) fn rank_s(state: &PrefillState, job: &PrefillJob, more: f64) -> f64 {
    job.remaining_s / (1.0 + state.followers(job.id) + more)
}

/// Which jobs of an instance can be in time together, served by deadline. Its memory is used
/// again from plan to plan.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What a second of prefill is worth: it is gained when a job is given up.
    pub(crate) price: f64,
    /// For each job, in order of deadlines, whether it is given up.
    is_late: Vec<bool>,
    /// What the jobs given up are worth together, beyond the price of their work.
    lost: f64,
    /// Whether the job that was tried is in time, and when it ends by deadline order.
    tried_end_s: Option<f64>,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    work_s: f64,
    deadline_s: f64,
    value: f64,
    is_late: bool,
    is_started: bool,
    is_tried: bool,
}

impl Entry {
    /// What is lost if it is given up, beyond the price of the work that this saves.
    const fn loss(&self, price: f64) -> f64 {
        (self.value - price * self.work_s).max(0.0)
    }
}

impl Plan {
    /// Plans the jobs of an instance, and one more if there is one to be tried.
    ///
    /// Jobs are taken by deadline. Where one would be late, the job up to there that is worth
    /// least for its work is given up (Moore and Hodgson, with values). One that has been started
    /// is given up only if nothing else helps, or if it would be late alone.
    pub fn make(&mut self, state: &PrefillState, now_s: f64, tried: Option<&PrefillJob>) {
        self.fill(state.jobs(), tried);
        let start_s = now_s + state.running_s(now_s);
        let mut end_s = start_s;
        self.lost = 0.0;
        for at in 0..self.entries.len() {
            let entry = &mut self.entries[at];
            if entry.is_started && start_s + entry.work_s > entry.deadline_s {
                entry.is_late = true;
                self.lost += entry.loss(self.price);
                continue;
            }
            end_s += entry.work_s;
            while end_s > self.entries[at].deadline_s {
                let Some(victim) = self.victim(at) else {
                    break;
                };
                let victim = &mut self.entries[victim];
                victim.is_late = true;
                end_s -= victim.work_s;
                self.lost += victim.loss(self.price);
            }
        }
        self.is_late.clear();
        self.tried_end_s = None;
        let mut end_s = start_s;
        for entry in &self.entries {
            if !entry.is_late {
                end_s += entry.work_s;
            }
            if !entry.is_tried {
                self.is_late.push(entry.is_late);
            } else if !entry.is_late {
                self.tried_end_s = Some(end_s);
            }
        }
    }

    fn fill(&mut self, jobs: &[PrefillJob], tried: Option<&PrefillJob>) {
        let entry = |job: &PrefillJob, is_tried| Entry {
            work_s: job.remaining_s,
            deadline_s: job.deadline_s,
            value: job.value,
            is_late: false,
            is_started: job.has_started,
            is_tried,
        };
        self.entries.clear();
        let mut tried = tried;
        for job in jobs {
            if let Some(new) = tried.take_if(|new| new.deadline_s < job.deadline_s) {
                self.entries.push(entry(new, true));
            }
            self.entries.push(entry(job, false));
        }
        self.entries.extend(tried.map(|new| entry(new, true)));
    }

    /// Of the jobs up to `last` that are not given up, the one that is worth least for its work.
    fn victim(&self, last: usize) -> Option<usize> {
        let candidates = self.entries[..=last].iter().enumerate();
        let candidates = candidates.filter(|(_, entry)| !entry.is_late && entry.work_s > 0.0);
        let by_worth = |(_, a): &(usize, &Entry), (_, b): &(usize, &Entry)| {
            let worth = |entry: &Entry| entry.value / entry.work_s;
            a.is_started
                .cmp(&b.is_started)
                .then(worth(a).total_cmp(&worth(b)))
        };
        candidates.min_by(by_worth).map(|(at, _)| at)
    }

    /// The first job that is given up for good: one that has not been started, or that would be late
    /// even if it ran now. Left in the queue, the latter would count as load for minutes. The plan
    /// was made of this state alone.
    #[must_use]
    pub fn first_given_up(&self, now_s: f64, state: &PrefillState) -> Option<u64> {
        let is_for_good =
            |job: &PrefillJob| !job.has_started || now_s + job.remaining_s > job.deadline_s;
        let mut jobs = state.jobs().iter().zip(&self.is_late);
        let given_up = jobs.find(|(job, is_late)| **is_late && job.is_ready && is_for_good(job));
        given_up.map(|(job, _)| job.id)
    }

    /// What the jobs given up are worth together, beyond the price of the work that this saves.
    #[must_use]
    pub const fn lost(&self) -> f64 {
        self.lost
    }

    /// When the job that was tried ends at the latest, if it is in time.
    #[must_use]
    pub const fn tried_end_s(&self) -> Option<f64> {
        self.tried_end_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u64, remaining_s: f64, deadline_s: f64) -> PrefillJob {
        PrefillJob {
            id,
            remaining_s,
            deadline_s,
            value: 1.0,
            is_ready: true,
            has_started: false,
            after: None,
        }
    }

    fn state(jobs: &[PrefillJob]) -> PrefillState {
        let mut state = PrefillState::default();
        for &job in jobs {
            state.push(job);
        }
        state
    }

    fn next(state: &PrefillState) -> Option<u64> {
        let discipline = Discipline::DeadlineAware { slice_s: 0.5 };
        let slice = discipline.next(state, 0.0, &mut Plan::default());
        slice.map(|slice| slice.id)
    }

    #[test]
    fn fifo_waits_for_the_first_to_be_ready() {
        let mut queue = state(&[job(1, 1.0, 9.0), job(2, 1.0, 3.0)]);
        let first = |queue: &PrefillState| Discipline::Fifo.next(queue, 0.0, &mut Plan::default());
        assert_eq!(first(&queue).map(|slice| slice.id), Some(1));
        queue.job_mut(1).expect("it is there").is_ready = false;
        assert_eq!(first(&queue), None);
    }

    #[test]
    fn the_shortest_goes_first_until_a_deadline_forbids_it() {
        let relaxed = state(&[job(1, 5.0, 10.0), job(2, 1.0, 20.0)]);
        assert_eq!(next(&relaxed), Some(2));
        let tight = state(&[job(1, 5.0, 5.2), job(2, 1.0, 20.0)]);
        assert_eq!(next(&tight), Some(1));
    }

    #[test]
    fn a_job_that_waits_for_its_blocks_holds_up_nobody() {
        let mut queue = state(&[job(1, 1.0, 1.1), job(2, 3.0, 30.0)]);
        queue.job_mut(1).expect("it is there").is_ready = false;
        assert_eq!(next(&queue), Some(2));
        queue.job_mut(2).expect("it is there").is_ready = false;
        assert_eq!(next(&queue), None);
    }

    #[test]
    fn work_that_others_wait_for_goes_before_shorter_work() {
        let mut queue = state(&[job(1, 3.0, 30.0), job(2, 2.0, 30.0)]);
        assert_eq!(next(&queue), Some(2));
        let follower = PrefillJob {
            after: Some(1),
            ..job(3, 0.1, 30.0)
        };
        queue.push(follower);
        assert_eq!(next(&queue), Some(1));
        queue.take(1);
        assert_eq!(next(&queue), Some(3));
    }

    #[test]
    fn what_cannot_all_be_in_time_loses_the_least_worth() {
        let queue = state(&[job(1, 4.0, 5.0), job(2, 1.0, 5.5)]);
        let mut plan = Plan::default();
        plan.make(&queue, 0.0, Some(&job(3, 1.0, 5.6)));
        assert_eq!(plan.is_late, [true, false]);
        assert_eq!(plan.lost(), 1.0);
        assert_eq!(plan.tried_end_s(), Some(2.0));
        plan.make(&queue, 0.0, Some(&job(3, 9.0, 9.6)));
        assert_eq!(plan.tried_end_s(), None);
        plan.make(&queue, 0.0, None);
        assert_eq!(plan.lost(), 0.0);
    }

    #[test]
    fn started_work_is_given_up_last() {
        let mut queue = state(&[job(1, 4.0, 5.0), job(2, 2.0, 5.5)]);
        queue.job_mut(1).expect("it is there").has_started = true;
        let mut plan = Plan::default();
        plan.make(&queue, 0.0, None);
        assert_eq!(plan.is_late, [false, true]);
    }

    #[test]
    fn started_work_that_cannot_be_in_time_any_more_is_given_up_and_takes_nobody_along() {
        let mut queue = state(&[job(1, 1.0, 5.0), job(2, 5.2, 5.1), job(3, 1.0, 9.0)]);
        queue.job_mut(2).expect("it is there").has_started = true;
        let mut plan = Plan::default();
        plan.make(&queue, 0.0, None);
        assert_eq!(plan.is_late, [false, true, false]);
        assert_eq!(plan.first_given_up(0.0, &queue), Some(2));
        queue.job_mut(2).expect("it is there").remaining_s = 5.05;
        plan.make(&queue, 0.0, None);
        assert_eq!(plan.first_given_up(0.0, &queue), Some(1));
    }
}
