//! How long something is of use that is asked.
//!
//! A request may be on its way for long: its connection may be cut for a while, or whoever is asked stopped. Whoever asked has gone
//! on by then, and perhaps had it done elsewhere and undone since. So who is to change something for all says before how late it
//! is, and is told by that clock until when it may: nobody else's is asked, and none has to agree with it.
//!
//! ```text
//!  clock:  version u8 | to seat
//!  told:   told u64
//!  term:   told u64 | wait u32
//! ```

use std::time::Duration;

use lunette_runtime_core::time::Time;

use super::wire::{body, fields};

/// What the clock of a core says ([`Op::Clock`](crate::message::Op::Clock)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReply {
    /// Nanoseconds, since whatever it counts from.
    pub told_ns: u64,
}

/// Until when something may be done, by the clock of who does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// What the clock of the core that is asked has said ([`ClockReply::told_ns`]).
    pub told_ns: u64,
    /// How long it may be done since then, in milliseconds.
    pub wait_ms: u32,
}

fields!(ClockReply { told_ns });
body!(ClockReply);
fields!(Term { told_ns, wait_ms });

impl Term {
    /// Until when what is asked may be done; `None`: it is too late at `now`, or this was told by another clock.
    #[must_use]
    pub fn until(&self, now: Time) -> Option<Time> {
        let told = Time::from_ns(self.told_ns);
        let until = told + Duration::from_millis(self.wait_ms.into());
        (told <= now && now < until).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::FormatVersion;

    #[test]
    fn golden_answer() {
        let reply = ClockReply { told_ns: 0x0102 };
        let mut body = Vec::new();
        reply.encode(FormatVersion(1), &mut body);
        assert_eq!(body, [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ClockReply::decode(FormatVersion(1), &body), Ok(reply));
        for len in 0..body.len() {
            assert!(ClockReply::decode(FormatVersion(1), &body[..len]).is_err());
        }
    }

    #[test]
    fn it_is_over_by_the_clock_that_told_it() {
        let term = Term {
            told_ns: 5_000_000,
            wait_ms: 3,
        };
        let at = |us: u64| term.until(Time::from_ns(us * 1_000));
        let end = Some(Time::from_ns(8_000_000));
        assert_eq!([at(5_000), at(7_999)], [end; 2]);
        assert_eq!(at(8_000), None, "it is over");
        assert_eq!(at(4_999), None, "another clock has told it");
        let latest = Term {
            told_ns: u64::MAX,
            wait_ms: u32::MAX,
        };
        assert_eq!(latest.until(Time::ZERO), None);
    }
}
