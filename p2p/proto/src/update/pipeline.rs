//! One rank's way through the buckets of an update.
//!
//! A bucket goes through a slot of staging memory: it is fetched into it, lent to the program, which copies it to where it
//! belongs, and served on until the slot is needed again. Buckets are lent in their order, one at a time. Ranks know
//! nothing of each other here: who fails fails alone.

use core::time::Duration;
use std::collections::VecDeque;

use lunette_runtime_core::time::Time;

/// Fewest slots: one bucket is fetched while one is copied.
pub const SLOTS_MIN: u32 = 2;
/// Most slots.
pub const SLOTS_MAX: u32 = 16;
/// How often a bucket is tried, unless it is told otherwise.
pub const TRIES_MAX_DEFAULT: u32 = 5;
/// How long a bucket rests after it failed: at first, and twice as long each time up to the second.
const REST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Bounds of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineOptions {
    /// How many buckets' memory there is: [`SLOTS_MIN`] to [`SLOTS_MAX`]. From three on, one is for what was copied last,
    /// and is served on while the next is copied.
    pub slots: u32,
    /// How often a bucket is tried that may be had later.
    pub tries_max: u32,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self {
            slots: 3,
            tries_max: TRIES_MAX_DEFAULT,
        }
    }
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All buckets were copied.
    Complete,
    /// This one was not to be had.
    Failed(u32),
    /// The program has stopped it.
    Stopped,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fetch a bucket into a slot, whose memory nobody has. Answered by [`Pipeline::on_fetched`] or
    /// [`Pipeline::on_failed`].
    Fetch {
        /// Which.
        bucket: u32,
        /// Into which.
        slot: u32,
    },
    /// Lend a bucket to the program. Answered by [`Pipeline::on_copied`].
    Lend {
        /// Which.
        bucket: u32,
        /// Where it is.
        slot: u32,
    },
    /// Serve a bucket no more, fetched or not, and let nobody have its slot's memory. Answered by
    /// [`Pipeline::on_released`].
    Release {
        /// Which.
        bucket: u32,
        /// Where it is.
        slot: u32,
    },
    /// All buckets were copied. The last are served on until it is stopped.
    Complete,
    /// Nobody has any slot any more, and nothing more is to be done.
    Ended(Outcome),
}

/// What is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Free,
    Fetching {
        bucket: u32,
        failures: u32,
    },
    Resting {
        bucket: u32,
        failures: u32,
        until: Time,
    },
    Fetched(u32),
    Lent(u32),
    Serving(u32),
    Releasing(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// All are copied, and that is told.
    Complete,
    Ending(Outcome),
    Ended,
}

/// One rank's way through the buckets of an update.
#[derive(Debug)]
pub struct Pipeline {
    buckets: u32,
    options: PipelineOptions,
    slots: Vec<Slot>,
    /// The next to be fetched for the first time.
    next: u32,
    /// How many were copied: they are the first.
    copied: u32,
    phase: Phase,
    actions: VecDeque<Action>,
}

impl Pipeline {
    /// One of so many buckets, which begins at once. Of none it is complete.
    ///
    /// # Panics
    /// If there are not [`SLOTS_MIN`] to [`SLOTS_MAX`] slots, or no try is to be made.
    #[must_use]
    pub fn new(buckets: u32, options: PipelineOptions) -> Self {
        assert!((SLOTS_MIN..=SLOTS_MAX).contains(&options.slots), "slots");
        assert!(options.tries_max > 0, "it is tried");
        let mut pipeline = Self {
            buckets,
            options,
            slots: vec![Slot::Free; options.slots as usize],
            next: 0,
            copied: 0,
            phase: Phase::Running,
            actions: VecDeque::new(),
        };
        pipeline.turn();
        pipeline
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// How many buckets were copied.
    #[must_use]
    pub const fn copied(&self) -> u32 {
        self.copied
    }

    /// A bucket is in its slot, all of it.
    pub fn on_fetched(&mut self, bucket: u32) {
        let slot = self.slot_of(bucket);
        if matches!(*slot, Slot::Fetching { bucket: of, .. } if of == bucket) {
            *slot = Slot::Fetched(bucket);
        }
        self.turn();
    }

    /// A bucket could not be fetched, and nobody has its slot. It is tried again after a rest if that may help.
    pub fn on_failed(&mut self, now: Time, bucket: u32, is_retryable: bool) {
        let tries_max = self.options.tries_max;
        let slot = self.slot_of(bucket);
        if let Slot::Fetching {
            bucket: of,
            failures,
        } = *slot
            && of == bucket
        {
            let failures = failures + 1;
            if is_retryable && failures < tries_max {
                let until = now + rest(failures);
                *slot = Slot::Resting {
                    bucket,
                    failures,
                    until,
                };
            } else {
                *slot = Slot::Free;
                self.phase = Phase::Ending(Outcome::Failed(bucket));
            }
        }
        self.turn();
    }

    /// The program has copied the bucket that it was lent, and looks at its slot no more.
    pub fn on_copied(&mut self, bucket: u32) {
        let slot = self.slot_of(bucket);
        if *slot == Slot::Lent(bucket) {
            *slot = Slot::Serving(bucket);
            self.copied += 1;
        }
        self.turn();
    }

    /// A bucket is served no more, and nobody has its slot.
    pub fn on_released(&mut self, bucket: u32) {
        let slot = self.slot_of(bucket);
        if *slot == Slot::Releasing(bucket) {
            *slot = Slot::Free;
        }
        self.turn();
    }

    /// It is later.
    pub fn on_time(&mut self, now: Time) {
        for index in 0..self.slots.len() {
            if let Slot::Resting {
                bucket,
                failures,
                until,
            } = self.slots[index]
                && until <= now
            {
                self.slots[index] = Slot::Fetching { bucket, failures };
                let slot = index_of(index);
                self.actions.push_back(Action::Fetch { bucket, slot });
            }
        }
    }

    /// When [`on_time`](Self::on_time) is due, if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let resting = self.slots.iter().filter_map(|slot| match slot {
            Slot::Resting { until, .. } => Some(*until),
            _ => None,
        });
        resting.min()
    }

    /// Nothing more is fetched, and nothing served on. What is lent is waited for.
    pub fn stop(&mut self) {
        match self.phase {
            Phase::Running => self.phase = Phase::Ending(Outcome::Stopped),
            Phase::Complete => self.phase = Phase::Ending(Outcome::Complete),
            Phase::Ending(_) | Phase::Ended => {}
        }
        self.turn();
    }

    fn slot_of(&mut self, bucket: u32) -> &mut Slot {
        let slot = bucket % self.options.slots;
        &mut self.slots[slot as usize]
    }

    fn turn(&mut self) {
        match self.phase {
            Phase::Running => {
                self.lend();
                self.fetch();
                if self.copied == self.buckets {
                    self.phase = Phase::Complete;
                    self.actions.push_back(Action::Complete);
                }
            }
            Phase::Ending(outcome) => self.end(outcome),
            Phase::Complete | Phase::Ended => {}
        }
    }

    fn lend(&mut self) {
        let bucket = self.copied;
        let slot = bucket % self.options.slots;
        if self.slots[slot as usize] == Slot::Fetched(bucket) {
            self.slots[slot as usize] = Slot::Lent(bucket);
            self.actions.push_back(Action::Lend { bucket, slot });
        }
    }

    /// Fetches what may be under way, and makes room for it.
    fn fetch(&mut self) {
        // One slot for what is copied, one for what was, if there are as many.
        let ahead = (self.options.slots - SLOTS_MIN).max(1);
        while self.next < self.buckets && self.next <= self.copied + ahead {
            let bucket = self.next;
            let slot = bucket % self.options.slots;
            match self.slots[slot as usize] {
                Slot::Free => {
                    self.slots[slot as usize] = Slot::Fetching {
                        bucket,
                        failures: 0,
                    };
                    self.actions.push_back(Action::Fetch { bucket, slot });
                    self.next += 1;
                }
                Slot::Serving(before) => {
                    self.release(slot, before);
                    return;
                }
                _ => return,
            }
        }
    }

    fn release(&mut self, slot: u32, bucket: u32) {
        self.slots[slot as usize] = Slot::Releasing(bucket);
        self.actions.push_back(Action::Release { bucket, slot });
    }

    fn end(&mut self, outcome: Outcome) {
        for index in 0..self.slots.len() {
            match self.slots[index] {
                Slot::Fetching { bucket, .. } | Slot::Fetched(bucket) | Slot::Serving(bucket) => {
                    self.release(index_of(index), bucket);
                }
                Slot::Resting { .. } => self.slots[index] = Slot::Free,
                Slot::Free | Slot::Lent(_) | Slot::Releasing(_) => {}
            }
        }
        if self.slots.iter().all(|slot| *slot == Slot::Free) {
            self.phase = Phase::Ended;
            self.actions.push_back(Action::Ended(outcome));
        }
    }
}

fn index_of(index: usize) -> u32 {
    u32::try_from(index).expect("slots are bounded")
}

fn rest(failures: u32) -> Duration {
    let (first, most) = REST;
    let doubled = first.checked_mul(1 << (failures - 1).min(16));
    doubled.unwrap_or(most).min(most)
}

#[cfg(test)]
mod tests;
