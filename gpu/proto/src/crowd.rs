//! How long a kernel waits for room on a device whose SMs others have.
//!
//! A copy engine begins when it is asked to. A kernel begins when there is room for its blocks, and those of a model may
//! run for milliseconds: where they take turns within one launch, being urgent does not help. So a look is had now and
//! then, which is a kernel that does nothing, beside all streams; what it takes longer than by itself, others wait as well.
//!
//! ```text
//!             is_due                    end, give_up
//!   no look ----------> one is under way ----------> no look for LOOK_PERIOD
//!                              |
//!                              +-- was_away: the core could not have seen its end
//! ```

use std::time::Duration;

use lunette_runtime_core::time::Time;

/// Time between looks, at least.
pub const LOOK_PERIOD: Duration = Duration::from_millis(1);
/// What a look takes where nobody else is: 10 to 25 us on an H200 while its core is awake, 25 to 40 when it is woken.
pub const LOOK_COST: Duration = Duration::from_micros(40);

/// What is known of the wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crowd {
    wait: Duration,
    /// By each of the last looks alone.
    last: [Duration; 2],
    look: Option<Look>,
    looked_at: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    began_at: Time,
    /// How long the core did something else meanwhile, and saw no end.
    away: Duration,
}

impl Crowd {
    /// How long a kernel waits, by the looks that were had. Nothing, before the first one.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        self.wait
    }

    /// Whether it is time for another look, and none is under way.
    #[must_use]
    pub fn is_due(&self, now: Time) -> bool {
        let is_late = |at: Time| now >= at + LOOK_PERIOD;
        self.look.is_none() && self.looked_at.is_none_or(is_late)
    }

    /// A look begins.
    ///
    /// # Panics
    /// If one is under way.
    pub fn begin(&mut self, now: Time) {
        assert!(self.look.is_none(), "one look at a time");
        self.look = Some(Look {
            began_at: now,
            away: Duration::ZERO,
        });
    }

    /// The core did something for so long, without a look at its devices.
    pub fn was_away(&mut self, time: Duration) {
        if let Some(look) = &mut self.look {
            look.away = look.away.saturating_add(time);
        }
    }

    /// The look has ended well.
    ///
    /// # Panics
    /// If none is under way.
    pub fn end(&mut self, now: Time) {
        let look = self.look.take().expect("a look is under way");
        self.looked_at = Some(now);
        let took = now.since(look.began_at);
        let waited = took.saturating_sub(LOOK_COST.saturating_add(look.away));
        // It may have come upon the beginning of what is running, or its end. And a core that does much else sees the end
        // late, now and then: what one look alone has found is not believed.
        let [before, one_before] = self.last;
        let middle = waited
            .max(before.min(one_before))
            .min(before.max(one_before));
        self.wait = (self.wait * 3 + middle) / 4;
        self.last = [waited, before];
    }

    /// If a look is under way, nobody is told of its end: it says nothing.
    pub fn give_up(&mut self) {
        if let Some(look) = self.look.take() {
            self.looked_at = Some(look.began_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(2);

    fn looked(crowd: &mut Crowd, now: &mut Time, away: Duration, waits: Duration) {
        assert!(crowd.is_due(*now));
        crowd.begin(*now);
        crowd.was_away(away);
        *now = *now + waits.max(away) + LOOK_COST;
        crowd.end(*now);
        *now = *now + LOOK_PERIOD;
    }

    #[test]
    fn what_others_take_is_known_after_some_looks_and_forgotten_after_some() {
        let (mut crowd, mut now) = (Crowd::default(), Time::from_ns(5));
        assert_eq!(crowd.wait(), Duration::ZERO);
        looked(&mut crowd, &mut now, Duration::ZERO, WAIT);
        assert_eq!(crowd.wait(), Duration::ZERO, "one alone");
        for _ in 0..10 {
            looked(&mut crowd, &mut now, Duration::ZERO, WAIT);
        }
        assert!(crowd.wait() > WAIT * 9 / 10 && crowd.wait() <= WAIT);
        for _ in 0..20 {
            looked(&mut crowd, &mut now, Duration::ZERO, Duration::ZERO);
        }
        assert!(crowd.wait() < WAIT / 100);
    }

    #[test]
    fn what_a_look_comes_upon_anywhere_is_told_to_be_half_of_it() {
        let (mut crowd, mut now) = (Crowd::default(), Time::ZERO);
        let (mut seed, mut far) = (1_u32, 0);
        for turn in 0..1000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            looked(
                &mut crowd,
                &mut now,
                Duration::ZERO,
                WAIT * (seed >> 16) / (1 << 16),
            );
            let is_near = (WAIT / 4..WAIT * 3 / 4).contains(&crowd.wait());
            far += u32::from(turn > 10 && !is_near);
        }
        assert!(far < 50, "{far} of 1000");
    }

    #[test]
    fn one_look_at_a_time_and_not_sooner_than_its_period() {
        let (mut crowd, now) = (Crowd::default(), Time::from_ns(1));
        crowd.begin(now);
        assert!(!crowd.is_due(now + LOOK_PERIOD * 10));
        let ended_at = now + LOOK_PERIOD * 10;
        crowd.end(ended_at);
        assert!(!crowd.is_due(ended_at + (LOOK_PERIOD - Duration::from_nanos(1))));
        assert!(crowd.is_due(ended_at + LOOK_PERIOD));
    }

    #[test]
    fn what_the_core_did_meanwhile_is_no_wait() {
        let (mut crowd, mut now) = (Crowd::default(), Time::ZERO);
        // Outside a look nobody minds.
        crowd.was_away(WAIT);
        looked(&mut crowd, &mut now, WAIT, Duration::ZERO);
        assert_eq!(crowd.wait(), Duration::ZERO);
        for _ in 0..20 {
            looked(&mut crowd, &mut now, WAIT, WAIT * 3);
        }
        assert!(crowd.wait() > WAIT * 19 / 10 && crowd.wait() <= WAIT * 2);
    }

    #[test]
    fn what_failed_says_nothing_and_is_tried_again_later() {
        let mut crowd = Crowd::default();
        for _ in 0..4 {
            crowd.begin(Time::ZERO);
            crowd.give_up();
        }
        assert_eq!(crowd.wait(), Duration::ZERO);
        let almost = Time::ZERO + (LOOK_PERIOD - Duration::from_nanos(1));
        assert!(!crowd.is_due(almost) && crowd.is_due(Time::ZERO + LOOK_PERIOD));
        crowd.give_up();
    }
}
