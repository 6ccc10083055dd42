//! Whether a thread that waits for a core does well to look for the answer for a while before it sleeps.
//!
//! It does where the core runs elsewhere and answers soon. Where both have been put on one processor, as systems do that
//! take a processor without work for one that is not there (guests of a hypervisor, after a pause), it keeps the core from
//! answering; and one that has to be woken first is not waited for so. Which it is nobody tells, so it is learnt from what
//! came of it.

use std::cell::Cell;
use std::time::Duration;

/// How sure it can be that looking pays.
const SCORE_MAX: u8 = 4;
/// How often it is tried though it did not pay.
const TRIED_EACH: u8 = 8;
/// After so many looks that paid it is asked again who is in the way: one that shares this thread's processor may have it for
/// a while within a look.
const UNSURE: u8 = 16;
/// What takes so many times as long as it is looked for takes its time, whoever looks.
const LONG: u32 = 10;

/// What one thread has learnt of whether to look for an answer before it sleeps: it does while that pays, and tries again from
/// time to time where it did not.
#[derive(Debug)]
pub struct Patience {
    score: Cell<u8>,
    not_looked: Cell<u8>,
    /// How many of the newest answers came while they were looked for, since it was asked who is in the way.
    paid: Cell<u8>,
}

impl Default for Patience {
    fn default() -> Self {
        Self::new()
    }
}

impl Patience {
    /// At first it looks.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            score: Cell::new(SCORE_MAX),
            not_looked: Cell::new(0),
            paid: Cell::new(UNSURE),
        }
    }

    /// For how long to look now: `longest`, or not at all.
    pub fn spin(&self, longest: Duration) -> Duration {
        if self.score.get() > 0 {
            return longest;
        }
        let not_looked = self.not_looked.get() + 1;
        let is_tried = not_looked == TRIED_EACH;
        self.not_looked.set(if is_tried { 0 } else { not_looked });
        if is_tried { longest } else { Duration::ZERO }
    }

    /// The same, but not at all if this thread `is_in_the_way` of who is to answer, which is asked less often while looking
    /// pays.
    pub fn spin_unless(&self, is_in_the_way: impl FnOnce() -> bool, longest: Duration) -> Duration {
        let spin = self.spin(longest);
        if spin.is_zero() || self.paid.get() < UNSURE {
            return spin;
        }
        self.paid.set(0);
        if is_in_the_way() {
            Duration::ZERO
        } else {
            spin
        }
    }

    /// The answer has come after so long, where it was looked for `spin`.
    pub fn learn(&self, spin: Duration, waited: Duration) {
        let paid = if waited < spin {
            self.paid.get() + 1
        } else {
            UNSURE
        };
        self.paid.set(paid.min(UNSURE));
        let score = self.score.get();
        if spin.is_zero() || waited >= spin * LONG {
            return;
        }
        self.score.set(if waited < spin {
            SCORE_MAX.min(score + 1)
        } else {
            score.saturating_sub(1)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Duration = Duration::from_micros(20);
    const SOON: Duration = Duration::from_micros(19);
    const LATE: Duration = SPIN;
    const LONG_AFTER: Duration = Duration::from_micros(200);

    /// Of so many waits, each of which takes that long, those that looked.
    fn looks(patience: &Patience, waits: u32, took: Duration) -> u32 {
        let looked = (0..waits).filter(|_| {
            let spin = patience.spin(SPIN);
            patience.learn(spin, took);
            spin == SPIN
        });
        u32::try_from(looked.count()).expect("few")
    }

    #[test]
    fn it_looks_while_that_pays_and_finds_out_when_it_does_again() {
        let patience = Patience::default();
        assert_eq!(looks(&patience, 100, SOON), 100);
        assert_eq!(looks(&patience, 4, LATE), 4, "one or a few do not tell");
        assert_eq!(looks(&patience, 80, LATE), 10, "one in eight");
        assert_eq!(looks(&patience, 8, SOON), 1);
        assert_eq!(looks(&patience, 100, SOON), 100);
    }

    #[test]
    fn what_takes_its_time_tells_nothing() {
        let patience = Patience::new();
        assert_eq!(looks(&patience, 100, LONG_AFTER), 100);
        assert_eq!(looks(&patience, 4, LATE), 4);
        assert_eq!(looks(&patience, 80, LONG_AFTER), 10);
        assert_eq!(looks(&patience, 7, SOON), 0, "it is tried with the eighth");
    }

    #[test]
    fn it_makes_room_for_who_answers_from_its_own_processor() {
        let patience = Patience::new();
        let waits = |is_here: bool, took: Duration| {
            let asked = Cell::new(0);
            let is_in_the_way = || {
                asked.set(asked.get() + 1);
                is_here
            };
            let spin = patience.spin_unless(is_in_the_way, SPIN);
            patience.learn(spin, took);
            (spin == SPIN, asked.get())
        };
        assert_eq!(waits(false, SOON), (true, 1), "nothing is known");
        for _ in 1..UNSURE {
            assert_eq!(waits(false, SOON), (true, 0), "it pays");
        }
        assert_eq!(waits(false, SOON), (true, 1), "from time to time");
        assert_eq!(waits(true, LATE), (true, 0), "it does not pay any more");
        for _ in 0..20 {
            assert_eq!(waits(true, SOON), (false, 1));
        }
        assert_eq!(waits(false, SOON), (true, 1), "it has left");
        assert_eq!(waits(false, SOON), (true, 0));
    }
}
