//! What a driver knows of the instances, in the form that the rules read.

use crate::memory::Ages;
use crate::output::OutputEstimator;

/// A request that waits for its prefill or is in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillJob {
    /// The request; later requests have larger ids.
    pub id: u64,
    /// Work that is left after the slice that runs now, in seconds. An estimate until it starts.
    pub remaining_s: f64,
    /// When its first token is due.
    pub deadline_s: f64,
    /// What it is worth to finish it in time.
    pub value: f64,
    /// Whether the blocks that it fetches from elsewhere are there.
    pub is_ready: bool,
    /// Whether work has been spent on it.
    pub has_started: bool,
    /// The job of the same instance whose end it waits for, since that one leaves blocks that it
    /// begins with.
    pub after: Option<u64>,
}

impl PrefillJob {
    /// Whether it waits neither for blocks from elsewhere nor for those of another job.
    pub(crate) const fn can_run(&self) -> bool {
        self.is_ready && self.after.is_none()
    }
}

/// An instance that prefills.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrefillState {
    /// When the slice that runs now ends; in the past if none runs.
    pub busy_until_s: f64,
    /// Bytes that it still has to send.
    pub sending_bytes: f64,
    /// Ages of its blocks.
    pub ages: Ages,
    jobs: Vec<PrefillJob>,
}

impl PrefillState {
    /// The jobs, the earliest deadline first.
    #[must_use]
    pub fn jobs(&self) -> &[PrefillJob] {
        &self.jobs
    }

    /// Adds a job.
    pub fn push(&mut self, job: PrefillJob) {
        let at = self
            .jobs
            .partition_point(|other| (other.deadline_s, other.id) < (job.deadline_s, job.id));
        self.jobs.insert(at, job);
    }

    /// The job of a request, to be changed in anything but deadline and id.
    pub fn job_mut(&mut self, id: u64) -> Option<&mut PrefillJob> {
        self.jobs.iter_mut().find(|job| job.id == id)
    }

    /// All jobs, to be changed in anything but deadline and id.
    pub fn jobs_mut(&mut self) -> impl Iterator<Item = &mut PrefillJob> {
        self.jobs.iter_mut()
    }

    /// How many jobs wait for the end of this one.
    pub(crate) fn followers(&self, id: u64) -> f64 {
        count(self.jobs.iter().filter(|job| job.after == Some(id)).count())
    }

    /// Takes the job of a request out. Those that waited for it do so no more.
    pub fn take(&mut self, id: u64) -> Option<PrefillJob> {
        let at = self.jobs.iter().position(|job| job.id == id)?;
        for job in self.jobs.iter_mut().filter(|job| job.after == Some(id)) {
            job.after = None;
        }
        Some(self.jobs.remove(at))
    }

    /// Seconds until the running slice ends.
    #[must_use]
    pub fn running_s(&self, now_s: f64) -> f64 {
        (self.busy_until_s - now_s).max(0.0)
    }

    /// Seconds until all its jobs are done.
    #[must_use]
    pub fn backlog_s(&self, now_s: f64) -> f64 {
        let queued: f64 = self.jobs.iter().map(|job| job.remaining_s).sum();
        self.running_s(now_s) + queued
    }
}

/// A request in the batch of a decode instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeJob {
    /// The request.
    pub id: u64,
    /// Length of its prompt.
    pub input_tokens: u32,
    /// Steps that the instance had done when it joined.
    pub joined_at_step: u32,
    /// When it joined.
    pub joined_s: f64,
}

/// A request that is on its way to a decode instance, or waits there for memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IncomingJob {
    /// The request.
    pub id: u64,
    /// Length of its prompt.
    pub input_tokens: u32,
    /// When its prefill is expected to end, or did.
    pub ready_s: f64,
    /// When it is expected to end at the latest, for prefills that take longer than expected.
    pub latest_s: f64,
    /// Whether it is there, and waits for memory.
    pub has_arrived: bool,
}

impl IncomingJob {
    /// When it is expected, as seen now.
    fn expected_s(&self, now_s: f64) -> f64 {
        if self.has_arrived {
            now_s
        } else if self.ready_s >= now_s {
            self.ready_s
        } else {
            self.latest_s.max(now_s)
        }
    }
}

/// An instance that decodes.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeState {
    /// Steps done so far.
    pub steps: u32,
    /// The batch.
    pub running: Vec<DecodeJob>,
    /// What comes.
    pub incoming: Vec<IncomingJob>,
    /// Tokens that the batch holds.
    pub kv_tokens: u64,
    /// Tokens that its memory has room for.
    pub capacity_tokens: u64,
}

/// How full a decode instance is, or will be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecodeLoad {
    /// Requests in its batch.
    pub requests: f64,
    /// Tokens that they hold.
    pub kv_tokens: f64,
}

impl DecodeState {
    /// An idle instance whose memory has room for this many tokens.
    #[must_use]
    pub const fn new(capacity_tokens: u64) -> Self {
        Self {
            steps: 0,
            running: Vec::new(),
            incoming: Vec::new(),
            kv_tokens: 0,
            capacity_tokens,
        }
    }

    /// Its load now: the batch, and what has arrived and waits.
    #[must_use]
    pub fn load_now(&self) -> DecodeLoad {
        let mut load = DecodeLoad {
            requests: count(self.running.len()),
            kv_tokens: as_f64(self.kv_tokens),
        };
        for job in self.incoming.iter().filter(|job| job.has_arrived) {
            load.requests += 1.0;
            load.kv_tokens += f64::from(job.input_tokens);
        }
        load
    }

    /// Its load if everything that has been placed there were there.
    #[must_use]
    pub fn load_placed(&self) -> DecodeLoad {
        let tokens = |job: &IncomingJob| f64::from(job.input_tokens);
        DecodeLoad {
            requests: count(self.running.len()) + count(self.incoming.len()),
            kv_tokens: as_f64(self.kv_tokens) + self.incoming.iter().map(tokens).sum::<f64>(),
        }
    }

    /// Its load at `at_s`, if each request decodes for `decode_s` seconds.
    #[must_use]
    pub fn load_with_uniform_time(&self, at_s: f64, decode_s: f64) -> DecodeLoad {
        let mut load = DecodeLoad::default();
        for job in &self.running {
            if at_s - job.joined_s < decode_s {
                let made = self.steps - job.joined_at_step;
                load.requests += 1.0;
                load.kv_tokens += f64::from(job.input_tokens) + f64::from(made);
            }
        }
        for job in &self.incoming {
            if job.ready_s <= at_s && at_s - job.ready_s < decode_s {
                load.requests += 1.0;
                load.kv_tokens += f64::from(job.input_tokens);
            }
        }
        load
    }

    /// Its expected load at `at_s`, if a step takes `step_s`, by the chance of each request to
    /// still be there.
    #[must_use]
    pub fn load_expected(
        &self,
        now_s: f64,
        at_s: f64,
        step_s: f64,
        outputs: &OutputEstimator,
    ) -> DecodeLoad {
        let mut load = DecodeLoad::default();
        let ahead = (at_s - now_s).max(0.0) / step_s;
        for job in &self.running {
            let made = f64::from(self.steps - job.joined_at_step);
            let chance = outputs.survival(made, ahead);
            load.requests += chance;
            load.kv_tokens += chance * (f64::from(job.input_tokens) + made + ahead);
        }
        for job in &self.incoming {
            let ready_s = job.expected_s(now_s);
            if ready_s > at_s {
                continue;
            }
            let made = (at_s - ready_s) / step_s;
            let chance = outputs.survival(0.0, made);
            load.requests += chance;
            load.kv_tokens += chance * (f64::from(job.input_tokens) + made);
        }
        load
    }
}

pub(crate) fn count(len: usize) -> f64 {
    f64::from(u32::try_from(len).unwrap_or(u32::MAX))
}

/// Exact up to 2^53, which no count of tokens reaches.
pub(crate) const fn as_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u64, deadline_s: f64) -> PrefillJob {
        PrefillJob {
            id,
            remaining_s: 2.0,
            deadline_s,
            value: 1.0,
            is_ready: true,
            has_started: false,
            after: None,
        }
    }

    #[test]
    fn jobs_lie_in_order_of_their_deadlines() {
        let mut state = PrefillState::default();
        for (id, deadline_s) in [(0, 5.0), (1, 3.0), (2, 5.0), (3, 4.0)] {
            state.push(job(id, deadline_s));
        }
        let ids: Vec<u64> = state.jobs().iter().map(|job| job.id).collect();
        assert_eq!(ids, [1, 3, 0, 2]);
        state.busy_until_s = 11.0;
        assert_eq!(state.backlog_s(10.0), 9.0);
        assert_eq!(state.backlog_s(12.0), 8.0);
        assert_eq!(state.take(3).map(|job| job.id), Some(3));
        assert_eq!(state.take(3), None);
    }

    #[test]
    fn followers_wait_until_the_job_before_them_has_left() {
        let mut state = PrefillState::default();
        state.push(job(1, 5.0));
        state.push(PrefillJob {
            after: Some(1),
            ..job(2, 6.0)
        });
        assert_eq!(state.followers(1), 1.0);
        assert!(!state.jobs()[1].can_run());
        state.take(1);
        assert!(state.jobs()[0].can_run());
    }

    #[test]
    fn a_projection_counts_who_comes_and_leaves_out_who_will_be_gone() {
        let mut state = DecodeState::new(1_000_000);
        state.steps = 10;
        state.kv_tokens = 110;
        let input_tokens = 100;
        state.running.push(DecodeJob {
            id: 0,
            input_tokens,
            joined_at_step: 0,
            joined_s: 0.0,
        });
        state.incoming.push(IncomingJob {
            id: 1,
            input_tokens: 7,
            ready_s: 15.0,
            latest_s: 20.0,
            has_arrived: false,
        });
        assert_eq!(state.load_now().kv_tokens, 110.0);
        state.incoming[0].has_arrived = true;
        assert_eq!(state.load_now().kv_tokens, 117.0);
        assert_eq!(state.load_with_uniform_time(10.0, 12.0).kv_tokens, 110.0);
        assert_eq!(state.load_with_uniform_time(16.0, 12.0).kv_tokens, 7.0);
        assert_eq!(state.load_with_uniform_time(30.0, 12.0).kv_tokens, 0.0);
    }
}
