//! A get whose bytes its owner writes to where they belong: when they are there, and when the room is the
//! caller's again.
//!
//! Two things tell of its end, in any order: the notice that the owner's adapter brings with the last of the bytes,
//! and the answer over the connection. The notice alone says that the bytes are there. What the room waits for is
//! that nothing can land in it any more: the owner answers when nothing of it is under way, and what is not known
//! to be over is fenced, by giving up the queue pair that it would come over.
//!
//! | event | asked | acknowledged |
//! |---|---|---|
//! | [`Noticed`](PushEvent::Noticed) | verify | verify |
//! | [`Answered`](PushEvent::Answered) as written | acknowledged | acknowledged |
//! | as failed | fence, ask again | fence, ask again |
//! | as others | that answer | fence, ask again |
//! | [`QueuePairLost`](PushEvent::QueuePairLost) | ask again | ask again |
//! | [`Unanswered`](PushEvent::Unanswered) | fence, unanswered | fence, ask again |
//! | [`Tick`](PushEvent::Tick) | wait | wait; too late: fence, ask again |
//! | [`GivenUp`](PushEvent::GivenUp) | fence | fence |

use core::time::Duration;

use lunette_runtime_core::time::Time;

/// How long the notice may come behind the answer: it has been with this side's adapter for longer.
pub const NOTICE_WAIT: Duration = Duration::from_millis(100);

/// What happens to such a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushEvent {
    /// The notice has come that names it.
    Noticed,
    /// It was answered.
    Answered(PushAnswer),
    /// The queue pair has ended, here: nothing lands over it any more.
    QueuePairLost,
    /// There will be no answer: the connection has ended, or the answer took too long.
    Unanswered,
    /// Time passes.
    Tick,
    /// Nobody wants it any more.
    GivenUp,
}

/// How it was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushAnswer {
    /// The bytes have been written.
    Written,
    /// They may be on their way still.
    Failed,
    /// In any other way, bytes over the connection among them: none were written, nor will be.
    Other,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushStep {
    /// Nothing, so far.
    Wait,
    /// The bytes are in the room, and the answer in its place: they are to be compared with its checksum.
    Verify,
    /// It ends as it was answered.
    AsAnswered,
    /// The bytes are asked for once more, over the connection.
    AskAgain {
        /// The queue pair is given up first.
        is_fenced: bool,
    },
    /// It ends without an answer, when the queue pair has been given up.
    Unanswered,
    /// It ends, when the queue pair has been given up.
    GivenUp,
}

impl PushStep {
    /// Whether the queue pair is given up before the room is anybody's again.
    #[must_use]
    pub const fn is_fenced(self) -> bool {
        match self {
            Self::AskAgain { is_fenced } => is_fenced,
            Self::Unanswered | Self::GivenUp => true,
            Self::Wait | Self::Verify | Self::AsAnswered => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asked,
    /// The owner says that the bytes have been written; the notice is waited for until then.
    Acknowledged(Time),
    Over,
}

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushedGet(State);

impl PushedGet {
    /// One that is being asked for.
    #[must_use]
    pub const fn asked() -> Self {
        Self(State::Asked)
    }

    /// Whether something may land in the room still.
    #[must_use]
    pub fn is_under_way(self) -> bool {
        self.0 != State::Over
    }

    /// What follows from an event; nothing, once it is over.
    pub fn on(&mut self, now: Time, event: PushEvent) -> PushStep {
        let fenced = PushStep::AskAgain { is_fenced: true };
        let step = match (self.0, event) {
            (State::Over, _) => return PushStep::Wait,
            (_, PushEvent::Noticed) => PushStep::Verify,
            (_, PushEvent::QueuePairLost) => PushStep::AskAgain { is_fenced: false },
            (_, PushEvent::GivenUp) => PushStep::GivenUp,
            (State::Asked, PushEvent::Answered(PushAnswer::Written)) => {
                self.0 = State::Acknowledged(now + NOTICE_WAIT);
                return PushStep::Wait;
            }
            (_, PushEvent::Answered(PushAnswer::Failed)) => fenced,
            (State::Asked, PushEvent::Answered(PushAnswer::Other)) => PushStep::AsAnswered,
            (State::Asked, PushEvent::Unanswered) => PushStep::Unanswered,
            (State::Acknowledged(until), PushEvent::Tick) if until <= now => fenced,
            (State::Asked | State::Acknowledged(_), PushEvent::Tick)
            | (State::Acknowledged(_), PushEvent::Answered(PushAnswer::Written)) => {
                return PushStep::Wait;
            }
            // Who answers twice keeps to no rules.
            (
                State::Acknowledged(_),
                PushEvent::Answered(PushAnswer::Other) | PushEvent::Unanswered,
            ) => fenced,
        };
        self.0 = State::Over;
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_ns(1_000);

    #[test]
    fn each_event_in_each_state() {
        use PushAnswer::{Failed, Other, Written};
        use PushEvent::{Answered, GivenUp, Noticed, QueuePairLost, Tick, Unanswered};
        use PushStep::{AsAnswered, AskAgain, Verify, Wait};
        let again = AskAgain { is_fenced: false };
        let fenced = AskAgain { is_fenced: true };
        let table = [
            // What it comes to while it is asked for, and while it is acknowledged.
            (Noticed, Verify, Verify),
            (Answered(Written), Wait, Wait),
            (Answered(Failed), fenced, fenced),
            (Answered(Other), AsAnswered, fenced),
            (QueuePairLost, again, again),
            (Unanswered, PushStep::Unanswered, fenced),
            (Tick, Wait, Wait),
            (GivenUp, PushStep::GivenUp, PushStep::GivenUp),
        ];
        for (event, asked, acknowledged) in table {
            let mut get = PushedGet::asked();
            assert_eq!(get.on(START, event), asked, "{event:?}");
            assert_eq!(get.is_under_way(), asked == Wait, "{event:?}");
            let mut get = PushedGet::asked();
            assert_eq!(get.on(START, Answered(Written)), Wait);
            assert_eq!(get.on(START, event), acknowledged, "{event:?}");
            assert_eq!(get.is_under_way(), acknowledged == Wait, "{event:?}");
            let mut over = PushedGet(State::Over);
            assert_eq!(over.on(START, event), Wait, "{event:?}");
            assert!(!over.is_under_way(), "{event:?}");
        }
    }

    #[test]
    fn a_notice_is_waited_for_a_while_behind_the_answer() {
        let mut get = PushedGet::asked();
        let much_later = START + NOTICE_WAIT * 100;
        assert_eq!(get.on(START, PushEvent::Tick), PushStep::Wait);
        assert_eq!(get.on(much_later, PushEvent::Tick), PushStep::Wait);
        let written = PushEvent::Answered(PushAnswer::Written);
        assert_eq!(get.on(START, written), PushStep::Wait);
        let end = START + NOTICE_WAIT;
        let before = Time::from_ns(end.as_ns() - 1);
        assert_eq!(get.on(before, PushEvent::Tick), PushStep::Wait);
        let late = get.on(end, PushEvent::Tick);
        assert_eq!(late, PushStep::AskAgain { is_fenced: true });
        assert_eq!(get.on(end, PushEvent::Noticed), PushStep::Wait, "too late");
    }

    #[test]
    fn whatever_may_be_under_way_is_fenced_before_the_room_is_anybodys_again() {
        // Of the ends, these alone say that nothing is under way: the notice, an answer that is not of a failure,
        // and the queue pair's end.
        let ends = [
            (PushEvent::Noticed, false),
            (PushEvent::Answered(PushAnswer::Other), false),
            (PushEvent::QueuePairLost, false),
            (PushEvent::Answered(PushAnswer::Failed), true),
            (PushEvent::Unanswered, true),
            (PushEvent::GivenUp, true),
        ];
        for (event, is_fenced) in ends {
            let step = PushedGet::asked().on(START, event);
            assert_eq!(step.is_fenced(), is_fenced, "{event:?}");
        }
    }
}
