//! How one of several who could write to a drive comes to be the only one who does: by a claim on the drive itself,
//! which is kept alive, and which others may take when it has not changed for long enough.
//!
//! ```text
//!            free, or unchanged for a lapse          is still ours
//!   looking -------------------------------> taking ---------------> held --- release --> over
//!    ^   | held by somebody who is alive        |                     |  ^
//!    |   +-----> refused                        | late, or another's  |  | a beat: read, and written again
//!    |                                          |                     +--+
//!    +------------------------------------------+---------------------+
//!                                                 no beat for a lapse
//! ```
//!
//! A drive has no operation that reads and writes at once, so this rests on time, after Chockler and Malkhi, "Light-weight
//! leases for storage-centric coordination" (2004): who takes a drive waits for so long that everybody who found it
//! free as well has written, and looks again; who holds it believes so only for less time than others watch it. What
//! is needed of the drive is that a block is read as it was written last. What is needed of clocks is that they run
//! alike for some seconds.
//!
//! What holds: no two claims [`may_write`](Claim::may_write) at one time. Not told by it: when a write that was begun
//! before ends. A drive that carries out writes long after their time can change bytes of whoever has it then; checksums
//! tell.
//!
//! Operations are one at a time. How long one may take is the driver's affair: what ends late counts for nothing.

use core::time::Duration;

use lunette_runtime_core::time::Time;
use thiserror::Error;

use crate::effect::DeviceFault;
use crate::format::claim::{ClaimRecord, HolderName, LAPSE_MS_MAX};
use crate::format::{BLOCK_BYTES, FormatFault};

/// Failures in a row, before it is held, after which a claim is given up.
const FAILURES_MAX: u32 = 8;
/// Pause after a failure.
const FAILURE_PAUSE: Duration = Duration::from_millis(200);

/// How long everything takes. All who may claim a drive have the same `settle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimTerms {
    /// Between two signs of life.
    pub beat: Duration,
    /// How long a claim has not changed when others may take the drive.
    pub lapse: Duration,
    /// Longest that may pass from a look at the claim to the end of the write that follows from it.
    pub settle: Duration,
}

impl Default for ClaimTerms {
    fn default() -> Self {
        Self {
            beat: Duration::from_secs(1),
            lapse: Duration::from_secs(8),
            settle: Duration::from_secs(1),
        }
    }
}

impl ClaimTerms {
    /// Whether a holder whose beats end in time keeps what it holds.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let lapse_max = Duration::from_millis(LAPSE_MS_MAX.into());
        let is_positive = !self.beat.is_zero() && !self.settle.is_zero();
        is_positive && self.lapse <= lapse_max && self.lapse >= self.beat * 2 + self.settle * 3
    }

    fn lapse_ms(&self) -> u32 {
        let ms = u32::try_from(self.lapse.as_millis()).unwrap_or(LAPSE_MS_MAX);
        ms.clamp(1, LAPSE_MS_MAX)
    }
}

/// What the driver is to do, and to tell the end of, with the block of the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimEffect {
    /// Read it.
    Read,
    /// Write this over it, durably.
    Write(Box<[u8; BLOCK_BYTES as usize]>),
}

/// Why a drive is not, or no longer, this one's.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ClaimRefused {
    /// Somebody else has it.
    #[error("{by} has it")]
    Taken {
        /// Who.
        by: HolderName,
    },
    /// What was there is gone: the drive was replaced, or overwritten.
    #[error("the claim is gone from it")]
    Gone,
    /// A later version of this program has claimed it.
    #[error("its claim has a newer format: {0}")]
    NewerFormat(FormatFault),
    /// The claim could not be read or written.
    #[error(transparent)]
    Device(#[from] DeviceFault),
}

/// How things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// It may come to be held.
    Claiming,
    /// It was taken. Whether it still is at this moment is told by [`Claim::may_write`].
    Held,
    /// It was given up.
    Released,
    /// It is not to be had, or has been lost.
    Refused(ClaimRefused),
}

/// What is there, as it is compared with what will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Record(ClaimRecord),
    /// Something that is no claim.
    Other,
}

/// What is watched, since when, and until when.
#[derive(Clone, Copy, Debug)]
struct Watch {
    seen: Seen,
    until: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// To look at the claim then.
    Look(Time),
    Looking {
        began: Time,
    },
    /// To take it, after a look that began then.
    Take {
        began: Time,
    },
    Taking {
        began: Time,
        issued: Time,
    },
    /// To look again then.
    Settle {
        at: Time,
        issued: Time,
    },
    Settling {
        issued: Time,
    },
    /// Held: to look at it then.
    Rest(Time),
    Beating {
        began: Time,
    },
    Renew {
        began: Time,
    },
    Renewing {
        began: Time,
        issued: Time,
    },
    Releasing,
    Over,
}

/// A claim. See the [module](self).
#[derive(Debug)]
pub struct Claim {
    terms: ClaimTerms,
    own: ClaimRecord,
    state: ClaimState,
    step: Step,
    watch: Option<Watch>,
    /// Held until then.
    valid_until: Time,
    failures: u32,
    is_to_release: bool,
    was_held: bool,
}

impl Claim {
    /// A claim of a drive by `holder`, drawn anew each time, which people know as `name`.
    ///
    /// # Panics
    /// If the terms are not [valid](ClaimTerms::is_valid).
    #[must_use]
    pub fn new(terms: ClaimTerms, holder: u128, name: HolderName, now: Time) -> Self {
        assert!(terms.is_valid(), "who holds a drive can keep it");
        let own = ClaimRecord {
            holder,
            taken: 0,
            beat: 0,
            lapse_ms: terms.lapse_ms(),
            is_held: true,
            name,
        };
        Self {
            terms,
            own,
            state: ClaimState::Claiming,
            step: Step::Look(now),
            watch: None,
            valid_until: Time::ZERO,
            failures: 0,
            is_to_release: false,
            was_held: false,
        }
    }

    /// How things stand.
    #[must_use]
    pub const fn state(&self) -> ClaimState {
        self.state
    }

    /// Whether the drive is this one's at this moment, and nobody else's.
    #[must_use]
    pub fn may_write(&self, now: Time) -> bool {
        self.state == ClaimState::Held && now < self.valid_until
    }

    /// Who holds the drive, while that is watched.
    #[must_use]
    pub fn watched(&self) -> Option<u128> {
        match self.watch?.seen {
            Seen::Record(record) => Some(record.holder),
            Seen::Other => None,
        }
    }

    /// This holder has ended, as is known by other means: what it claims need not be watched until it has lapsed.
    /// Between two operations.
    pub fn has_ended(&mut self, now: Time, holder: u128) {
        let watched = self.watched();
        if let (Some(watch), Step::Look(_)) = (&mut self.watch, self.step)
            && watched == Some(holder)
        {
            watch.until = now;
            self.step = Step::Look(now);
        }
    }

    /// It is not needed any more, and is given up if it is held: nothing else is written by this one. Between two
    /// operations.
    pub fn release(&mut self, now: Time) {
        self.is_to_release = true;
        self.step = match self.step {
            Step::Rest(_) | Step::Renew { .. } if self.may_write(now) => Step::Rest(now),
            _ => Step::Over,
        };
        if self.step == Step::Over {
            self.end_released();
        }
    }

    fn end_released(&mut self) {
        if !matches!(self.state, ClaimState::Refused(_)) {
            self.state = ClaimState::Released;
        }
        self.step = Step::Over;
    }

    /// When to [ask](Self::poll_effect) again, if nothing is under way.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Time> {
        match self.step {
            Step::Look(at) | Step::Settle { at, .. } | Step::Rest(at) => Some(at),
            Step::Take { .. } | Step::Renew { .. } => Some(Time::ZERO),
            _ => None,
        }
    }

    /// What is to be done now.
    pub fn poll_effect(&mut self, now: Time) -> Option<ClaimEffect> {
        self.lapse(now);
        let (next, effect) = match self.step {
            Step::Look(at) if now >= at => (Step::Looking { began: now }, ClaimEffect::Read),
            Step::Settle { at, issued } if now >= at => {
                (Step::Settling { issued }, ClaimEffect::Read)
            }
            Step::Rest(at) if now >= at => (Step::Beating { began: now }, ClaimEffect::Read),
            Step::Take { began } => {
                self.own.beat += 1;
                (Step::Taking { began, issued: now }, self.written_own())
            }
            Step::Renew { .. } if self.is_to_release => {
                self.own.is_held = false;
                // From here on others may take it, whatever is told of this write and when.
                self.valid_until = Time::ZERO;
                (Step::Releasing, self.written_own())
            }
            Step::Renew { began } => {
                self.own.beat += 1;
                (Step::Renewing { began, issued: now }, self.written_own())
            }
            _ => return None,
        };
        self.step = next;
        Some(effect)
    }

    fn written_own(&self) -> ClaimEffect {
        ClaimEffect::Write(Box::new(self.own.encode()))
    }

    /// The read has ended.
    pub fn read_done(&mut self, now: Time, bytes: Result<&[u8], DeviceFault>) {
        let step = self.step;
        match (step, bytes.map(seen)) {
            (_, Err(fault)) => self.failed(now, fault),
            (_, Ok(Err(fault))) => self.refuse(ClaimRefused::NewerFormat(fault)),
            (Step::Looking { began }, Ok(Ok(seen))) => self.look(now, began, seen),
            (Step::Settling { issued }, Ok(Ok(seen))) => self.settled(now, issued, seen),
            (Step::Beating { began }, Ok(Ok(seen))) => self.beat(now, began, seen),
            _ => {}
        }
    }

    /// The write has ended.
    pub fn written(&mut self, now: Time, result: Result<(), DeviceFault>) {
        match (self.step, result) {
            (Step::Releasing, _) => self.end_released(),
            (Step::Taking { began, issued }, Ok(())) if now <= began + self.terms.settle => {
                let at = now + self.terms.settle;
                self.step = Step::Settle { at, issued };
            }
            // It may have been written over another's claim: as likely as not that one is the holder.
            (Step::Taking { .. }, Ok(())) => self.look_again(now),
            (Step::Renewing { began, issued }, Ok(())) => {
                self.failures = 0;
                if now <= began + self.terms.settle {
                    self.hold_since(issued);
                    self.step = Step::Rest(began + self.terms.beat);
                } else {
                    self.step = Step::Rest(now);
                }
            }
            (_, Err(fault)) => self.failed(now, fault),
            _ => {}
        }
    }

    fn hold_since(&mut self, issued: Time) {
        self.valid_until = issued + (self.terms.lapse - self.terms.settle);
    }

    /// Held for too long without a sign of life: it is anybody's, and claimed again.
    fn lapse(&mut self, now: Time) {
        let is_idle = matches!(self.step, Step::Rest(_) | Step::Renew { .. });
        if self.state == ClaimState::Held && now >= self.valid_until && is_idle {
            self.look_again(now);
        }
    }

    /// Nothing is known any more: what is there is watched, one's own claim as any other.
    fn look_again(&mut self, now: Time) {
        self.state = ClaimState::Claiming;
        self.watch = None;
        self.step = Step::Look(now);
    }

    fn watch(&self, seen: Seen, now: Time) -> Watch {
        let lapse = match seen {
            Seen::Record(record) => Duration::from_millis(record.lapse_ms.into()),
            Seen::Other => self.terms.lapse,
        };
        let until = now + lapse.max(self.terms.lapse);
        Watch { seen, until }
    }

    fn look(&mut self, now: Time, began: Time, found: Option<Seen>) {
        let Some(seen) = found else {
            // A drive that was ours does not become blank.
            return if self.was_held || self.watch.is_some() {
                self.refuse(ClaimRefused::Gone);
            } else {
                self.take(began, 0);
            };
        };
        if let Seen::Record(record) = seen
            && !record.is_held
        {
            return self.take(began, record.taken);
        }
        match self.watch {
            None => self.watch = Some(self.watch(seen, now)),
            Some(watch) if watch.seen != seen => return self.lost_to(seen),
            Some(watch) if began >= watch.until => {
                let taken = match seen {
                    Seen::Record(record) => record.taken,
                    Seen::Other => 0,
                };
                return self.take(began, taken);
            }
            Some(_) => {}
        }
        let until = self.watch.map_or(now, |watch| watch.until);
        self.step = Step::Look(until.min(now + self.terms.beat));
    }

    fn take(&mut self, began: Time, taken: u64) {
        self.watch = None;
        self.own.taken = taken + 1;
        self.step = Step::Take { began };
    }

    fn settled(&mut self, now: Time, issued: Time, found: Option<Seen>) {
        match found {
            Some(Seen::Record(record)) if record == self.own => {
                self.failures = 0;
                self.state = ClaimState::Held;
                self.was_held = true;
                self.hold_since(issued);
                self.step = Step::Rest(now + self.terms.beat);
            }
            Some(seen) => self.lost_to(seen),
            None => self.refuse(ClaimRefused::Gone),
        }
    }

    fn beat(&mut self, now: Time, began: Time, found: Option<Seen>) {
        match found {
            // What was written of it last may have failed, and be there all the same.
            Some(Seen::Record(record)) if self.is_own(&record) => {
                if now < self.valid_until {
                    self.step = Step::Renew { began };
                } else {
                    self.look_again(now);
                }
            }
            Some(seen) => self.lost_to(seen),
            None => self.refuse(ClaimRefused::Gone),
        }
    }

    fn is_own(&self, record: &ClaimRecord) -> bool {
        let own = &self.own;
        record.holder == own.holder && record.taken == own.taken && record.is_held
    }

    fn lost_to(&mut self, seen: Seen) {
        self.refuse(match seen {
            Seen::Record(record) => ClaimRefused::Taken { by: record.name },
            Seen::Other => ClaimRefused::Gone,
        });
    }

    fn refuse(&mut self, why: ClaimRefused) {
        self.state = ClaimState::Refused(why);
        self.step = Step::Over;
    }

    fn failed(&mut self, now: Time, fault: DeviceFault) {
        self.failures += 1;
        let at = now + FAILURE_PAUSE;
        self.step = match self.step {
            Step::Beating { .. } | Step::Renewing { .. } if self.is_to_release => Step::Over,
            Step::Beating { .. } | Step::Renewing { .. } => Step::Rest(at),
            Step::Settling { issued } => Step::Settle { at, issued },
            Step::Looking { .. } | Step::Taking { .. } => Step::Look(at),
            step => step,
        };
        if self.step == Step::Over {
            self.end_released();
        }
        if !self.was_held && self.failures >= FAILURES_MAX {
            self.refuse(fault.into());
        }
    }
}

/// What a block has: nothing, if it is blank.
fn seen(bytes: &[u8]) -> Result<Option<Seen>, FormatFault> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    match ClaimRecord::decode(bytes) {
        Ok(record) => Ok(Some(Seen::Record(record))),
        Err(fault @ FormatFault::UnknownFormat { .. }) => Err(fault),
        Err(_) => Ok(Some(Seen::Other)),
    }
}
