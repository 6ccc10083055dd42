//! What is queued in a stream of a fake device.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use lunette_gpu_proto::kernel::Job;
use lunette_gpu_proto::sums::SumJob;
use lunette_runtime::{CoreWaker, Signal};
use lunette_runtime_core::time::Time;

use super::memory::User;
use crate::provider::RawCopy;

/// A piece of work.
#[derive(Debug)]
pub(super) enum Work {
    Copy(RawCopy),
    Launch(Box<Job>),
    Sum(SumJob),
    Record(usize),
    Wait(usize),
    Notify(CoreWaker),
}

/// A piece of work in line.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) work: Work,
    pub(super) since: Time,
    pub(super) takes: Duration,
    /// Which of all that was ever queued.
    pub(super) number: u64,
}

#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) user: User,
    pub(super) line: VecDeque<Queued>,
    /// When the last piece of work ended.
    pub(super) free_at: Time,
    /// Raised when the keeper has something to look at.
    pub(super) changed: Rc<Signal>,
}

impl StreamState {
    pub(super) fn new(user: User) -> Self {
        Self {
            user,
            line: VecDeque::new(),
            free_at: Time::ZERO,
            changed: Rc::default(),
        }
    }

    /// When the first piece of work ends, if nothing else holds it up.
    pub(super) fn due(&self, has_come: impl Fn(usize) -> Option<Time>) -> Option<Time> {
        let first = self.line.front()?;
        let begins = first.since.max(self.free_at);
        match first.work {
            Work::Wait(event) => has_come(event).map(|at| at.max(begins)),
            _ => Some(begins + first.takes),
        }
    }

    /// Whether anything in line names memory.
    pub(super) fn moves(&self) -> bool {
        let names_memory =
            |queued: &Queued| matches!(queued.work, Work::Copy(_) | Work::Launch(_) | Work::Sum(_));
        self.line.iter().any(names_memory)
    }

    pub(super) fn notifies(&self) -> bool {
        let is_notice = |queued: &Queued| matches!(queued.work, Work::Notify(_));
        self.line.iter().any(is_notice)
    }

    /// When it comes to the first call to the host, unless it waits for another stream before.
    pub(super) fn notice_due(&self, has_come: impl Fn(usize) -> Option<Time>) -> Option<Time> {
        let mut at = self.free_at;
        for queued in &self.line {
            at = at.max(queued.since) + queued.takes;
            match queued.work {
                Work::Notify(_) => return Some(at),
                Work::Wait(event) => at = at.max(has_come(event)?),
                _ => {}
            }
        }
        None
    }
}
