//! The client's table of requests in flight on one connection.
//!
//! A call ends for its caller when its answer has been received, when its deadline passes, when the
//! caller drops it, or with the connection. Its *slot* lives until the peer has answered, because
//! only then is it known that no more bytes come for it:
//!
//! ```text
//!          start            on_response, payload fits            on_response_end
//!   Free ---------> Waiting --------------------------> Placing -------------------> Free
//!                    |  |                                  |   expire, abandon: MustFence
//!    expire, abandon |  | on_response,                     v
//!            (ended) |  | payload too long              Fencing --- on_response_end -> Free
//!                    |  v                                  |
//!                    | Skipping --- on_response_end ----> Free
//!                    |  |                                  |
//!                    |  | expire, abandon (ended)          | on_fenced (ended)
//!                    v  v                                  v
//!             Abandoned --- on_response ---------------> Draining -- on_response_end -> Free
//! ```
//!
//! While a payload is received straight into the caller's memory (`Placing`), that memory is lent
//! to the device. Neither deadline nor cancellation may give it back then: the table asks for a
//! fence ([`Expired::MustFence`], [`Abandon::MustFence`]), the driver stops the receive and waits
//! until it has been reaped, and says so with [`Calls::on_fenced`].
//!
//! Memory that is lent to a *send* (the payload of the request itself) is the driver's concern.
//!
//! A peer that [reads no more requests](Calls::on_goaway) says how many it has read. Calls behind those are
//! `Free` at once, and nothing of what they asked is done.

use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use crate::deadlines::Deadlines;
use crate::receiver::PayloadVerdict;

mod outcome;

pub use outcome::{
    Abandon, CallEnd, CallFault, EndCause, Expired, Fenced, InFlightFull, ResponseSink,
};

/// Most requests in flight on one connection.
pub const IN_FLIGHT_MAX: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State<T> {
    Free,
    /// The peer has not answered yet.
    Waiting {
        token: T,
        room_bytes: u32,
    },
    /// The response's payload, if any, arrives in the caller's memory.
    Placing {
        token: T,
    },
    /// The response's payload arrives, but does not fit.
    Skipping {
        token: T,
        payload_len_bytes: u32,
        room_bytes: u32,
    },
    /// Over for its caller as soon as the receive into its memory has been reaped.
    Fencing {
        token: T,
        cause: EndCause,
    },
    /// Over for its caller; the peer has not answered yet.
    Abandoned,
    /// Over for its caller; the response's payload arrives.
    Draining,
}

#[derive(Debug)]
struct Slot<T> {
    /// Moves on whenever the slot becomes free. Starts at 1, so that no request has id 0.
    generation: u32,
    /// How many calls were started on the connection before this one.
    ordinal: u64,
    state: State<T>,
}

/// The requests in flight on one connection, each with a token of type `T` that leads the driver to
/// its caller and is given back exactly once.
///
/// All memory is reserved by [`new`](Self::new).
#[derive(Debug)]
pub struct Calls<T> {
    slots: Vec<Slot<T>>,
    /// Free slots, the one freed last on top.
    free: Vec<u32>,
    deadlines: Deadlines,
    /// Calls that were ever started.
    started: u64,
}

impl<T> Calls<T> {
    /// An empty table.
    ///
    /// # Panics
    /// If `in_flight_max` is not within `1..=IN_FLIGHT_MAX`.
    #[must_use]
    pub fn new(in_flight_max: u32) -> Self {
        assert!(
            (1..=IN_FLIGHT_MAX).contains(&in_flight_max),
            "in_flight_max out of range"
        );
        let slot = |_| Slot {
            generation: 1,
            ordinal: 0,
            state: State::Free,
        };
        Self {
            slots: (0..in_flight_max).map(slot).collect(),
            free: (0..in_flight_max).rev().collect(),
            deadlines: Deadlines::new(in_flight_max),
            started: 0,
        }
    }

    /// How many slots are taken, those of abandoned calls included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether [`start`](Self::start) would refuse a call.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// The token of a call that is not over yet.
    #[must_use]
    pub fn token(&self, id: RequestId) -> Option<&T> {
        match &self.slots[self.find(id).ok()?].state {
            State::Waiting { token, .. }
            | State::Placing { token }
            | State::Skipping { token, .. }
            | State::Fencing { token, .. } => Some(token),
            State::Free | State::Abandoned | State::Draining => None,
        }
    }

    /// Starts a call that ends at `deadline` ([`Time::MAX`]: never by itself) and has room for a
    /// payload of `room_bytes`. Send the request with the id that this returns, and requests in the order in which
    /// they were started.
    ///
    /// # Errors
    /// [`InFlightFull`] at the limit, with the token: wait for a call to end.
    pub fn start(
        &mut self,
        deadline: Time,
        room_bytes: u32,
        token: T,
    ) -> Result<RequestId, InFlightFull<T>> {
        let Some(index) = self.free.pop() else {
            return Err(InFlightFull { token });
        };
        let slot = &mut self.slots[index as usize];
        assert!(
            matches!(slot.state, State::Free),
            "a free slot holds no call"
        );
        slot.state = State::Waiting { token, room_bytes };
        slot.ordinal = self.started;
        self.started += 1;
        if deadline < Time::MAX {
            self.deadlines.insert(index, deadline);
        }
        Ok(id_of(index, slot.generation))
    }

    /// Takes note of a response's header. When the response is complete, with its payload or
    /// without one, [`on_response_end`](Self::on_response_end) must follow.
    ///
    /// # Errors
    /// [`CallFault`]: the peer answers what was not asked; close the connection.
    pub fn on_response(
        &mut self,
        id: RequestId,
        payload_len_bytes: u32,
    ) -> Result<ResponseSink, CallFault> {
        let index = self.find(id)?;
        let (state, answer) = match self.take(index) {
            State::Waiting { token, room_bytes } if payload_len_bytes <= room_bytes => {
                (State::Placing { token }, Ok(ResponseSink::Place))
            }
            State::Waiting { token, room_bytes } => {
                let state = State::Skipping {
                    token,
                    payload_len_bytes,
                    room_bytes,
                };
                (state, Ok(ResponseSink::Discard))
            }
            State::Abandoned => (State::Draining, Ok(ResponseSink::Discard)),
            answered => (answered, Err(CallFault::AlreadyAnswered { id })),
        };
        self.slots[index].state = state;
        answer
    }

    /// Ends a call whose response is complete and frees its slot. `verdict` is that of the payload,
    /// [`PayloadVerdict::Intact`] if there is none. The token and the caller's memory are the
    /// driver's again.
    ///
    /// # Panics
    /// If the last event of this id was not an accepted [`on_response`](Self::on_response): the
    /// order of calls is the driver's, not the peer's.
    pub fn on_response_end(&mut self, id: RequestId, verdict: PayloadVerdict) -> CallEnd<T> {
        let index = self.find(id).expect("a response ends after it has begun");
        let end = match self.take(index) {
            State::Placing { token } | State::Fencing { token, .. } => match verdict {
                PayloadVerdict::Intact => CallEnd::Done { token },
                PayloadVerdict::Corrupt { expected, computed } => CallEnd::Corrupt {
                    token,
                    expected,
                    computed,
                },
            },
            State::Skipping {
                token,
                payload_len_bytes,
                room_bytes,
            } => CallEnd::TooLong {
                token,
                payload_len_bytes,
                room_bytes,
            },
            State::Draining => CallEnd::Discarded,
            State::Free | State::Waiting { .. } | State::Abandoned => {
                unreachable!("{id} ended before its response began")
            }
        };
        self.release(index);
        end
    }

    /// The earliest deadline of a call that is not over yet.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        if mutant::is_on(Mutant::DeadlineIgnored) {
            return None;
        }
        self.deadlines.first().map(|(deadline, _)| deadline)
    }

    /// Ends the calls whose deadline `now` has reached, earliest first, and appends what came of
    /// each to `expired`.
    pub fn expire(&mut self, now: Time, expired: &mut Vec<Expired<T>>) {
        while let Some((deadline, index)) = self.deadlines.first()
            && deadline <= now
            && !mutant::is_on(Mutant::DeadlineIgnored)
        {
            let id = id_of(index, self.slots[index as usize].generation);
            match self.give_up(index as usize, EndCause::DeadlineExceeded) {
                Abandon::Ended { token } => expired.push(Expired::Ended { id, token }),
                Abandon::MustFence => expired.push(Expired::MustFence { id }),
                Abandon::Over => unreachable!("a call that is over has no deadline"),
            }
        }
    }

    /// Gives up a call: its caller no longer waits for it.
    pub fn abandon(&mut self, id: RequestId) -> Abandon<T> {
        match self.find(id) {
            Ok(index) => self.give_up(index, EndCause::Abandoned),
            Err(_) => Abandon::Over,
        }
    }

    /// Ends a call for which a fence was asked: the receive into its memory has been reaped, and
    /// the rest of its payload is to be discarded. The memory is the driver's again.
    ///
    /// `None` if no fence is pending, for instance because the payload was complete first.
    pub fn on_fenced(&mut self, id: RequestId) -> Option<Fenced<T>> {
        let index = self.find(id).ok()?;
        match self.take(index) {
            State::Fencing { token, cause } => {
                self.slots[index].state = State::Draining;
                Some(Fenced { token, cause })
            }
            other => {
                self.slots[index].state = other;
                None
            }
        }
    }

    /// Ends the calls whose requests the peer does not read: it has read as many as `read`, of all that were started,
    /// and reads no more. Hands out the tokens of those that were not over yet; nothing of what they asked is done, and
    /// no answer of theirs is accepted any more. A call whose answer has begun was read, whatever the peer says.
    #[must_use]
    pub fn on_goaway(&mut self, read: u64) -> Vec<(RequestId, T)> {
        let mut unread = Vec::new();
        for index in 0..self.slots.len() {
            if self.slots[index].ordinal < read {
                continue;
            }
            let id = id_of(index_u32(index), self.slots[index].generation);
            match self.take(index) {
                State::Waiting { token, .. } => unread.push((id, token)),
                State::Abandoned => {}
                other => {
                    self.slots[index].state = other;
                    continue;
                }
            }
            self.release(index);
        }
        unread
    }

    /// Ends every call, because the connection is lost, and hands out the tokens of those that were
    /// not over yet. The table is empty then.
    ///
    /// Call it when no receive is in flight any more: the memory of all calls is given back.
    #[must_use]
    pub fn fail_all(&mut self) -> Vec<(RequestId, T)> {
        let mut failed = Vec::new();
        for index in 0..self.slots.len() {
            let id = id_of(index_u32(index), self.slots[index].generation);
            match self.take(index) {
                State::Free => continue,
                State::Waiting { token, .. }
                | State::Placing { token }
                | State::Skipping { token, .. }
                | State::Fencing { token, .. } => failed.push((id, token)),
                State::Abandoned | State::Draining => {}
            }
            self.release(index);
        }
        assert_eq!(self.in_flight(), 0, "every slot is free");
        failed
    }

    fn give_up(&mut self, index: usize, cause: EndCause) -> Abandon<T> {
        let (state, outcome) = match self.take(index) {
            State::Waiting { token, .. } => (State::Abandoned, Abandon::Ended { token }),
            State::Skipping { token, .. } => (State::Draining, Abandon::Ended { token }),
            State::Placing { token } => (State::Fencing { token, cause }, Abandon::MustFence),
            over => (over, Abandon::Over),
        };
        self.slots[index].state = state;
        self.deadlines.remove(index_u32(index));
        if matches!(outcome, Abandon::Ended { .. }) && mutant::is_on(Mutant::SlotClaimedTwice) {
            self.slots[index].state = State::Free;
            self.release(index);
        }
        outcome
    }

    /// The slot of an id that has not been answered in full yet.
    fn find(&self, id: RequestId) -> Result<usize, CallFault> {
        let never = CallFault::NeverIssued { id };
        let (index, generation) = parts_of(id);
        let slot = self.slots.get(index).ok_or(never)?;
        let is_free = matches!(slot.state, State::Free);
        let is_own = generation == slot.generation || mutant::is_on(Mutant::SlotClaimedTwice);
        if is_own && !is_free {
            return Ok(index);
        }
        // A generation that comes round again after 2^32 calls in one slot may be told apart
        // wrongly here; it is a fault all the same.
        let is_old = (1..slot.generation).contains(&generation);
        Err(if is_old {
            CallFault::AlreadyAnswered { id }
        } else {
            never
        })
    }

    fn take(&mut self, index: usize) -> State<T> {
        core::mem::replace(&mut self.slots[index].state, State::Free)
    }

    fn release(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        assert!(
            matches!(slot.state, State::Free),
            "a call that ended has left its slot"
        );
        slot.generation = slot.generation.checked_add(1).unwrap_or(1);
        self.deadlines.remove(index_u32(index));
        self.free.push(index_u32(index));
    }
}

fn id_of(index: u32, generation: u32) -> RequestId {
    RequestId(u64::from(generation) << 32 | u64::from(index))
}

fn parts_of(id: RequestId) -> (usize, u32) {
    let [a, b, c, d, generation @ ..] = id.0.to_le_bytes();
    (
        u32::from_le_bytes([a, b, c, d]) as usize,
        u32::from_le_bytes(generation),
    )
}

fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("a table has at most IN_FLIGHT_MAX slots")
}

#[cfg(test)]
mod tests {
    use core::fmt::Debug;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const DEADLINE: Time = Time::from_ns(100);
    const ROOM_BYTES: u32 = 10;
    const INTACT: PayloadVerdict = PayloadVerdict::Intact;

    /// A table of one slot, whose call is in the named state.
    fn in_state(name: &str) -> (Calls<char>, RequestId) {
        let mut calls = Calls::new(1);
        let id = calls.start(DEADLINE, ROOM_BYTES, 't').unwrap();
        match name {
            "Waiting" => {}
            "Placing" => drop(calls.on_response(id, ROOM_BYTES).unwrap()),
            "Skipping" => drop(calls.on_response(id, ROOM_BYTES + 1).unwrap()),
            "Fencing" => {
                calls.on_response(id, ROOM_BYTES).unwrap();
                assert_eq!(calls.abandon(id), Abandon::MustFence);
            }
            "Abandoned" => assert_eq!(calls.abandon(id), Abandon::Ended { token: 't' }),
            "Draining" => {
                calls.abandon(id);
                calls.on_response(id, ROOM_BYTES).unwrap();
            }
            "Free" => {
                calls.on_response(id, 0).unwrap();
                calls.on_response_end(id, INTACT);
            }
            other => panic!("no state is named {other}"),
        }
        assert_eq!(name_of(&calls.slots[0].state), name);
        (calls, id)
    }

    /// The outermost names of a value: `Ok(Place)`, `Ended`.
    fn name_of(value: &impl Debug) -> String {
        let text = format!("{value:?}");
        text.split([' ', '{']).next().unwrap_or_default().to_owned()
    }

    fn apply(calls: &mut Calls<char>, id: RequestId, event: &str) -> String {
        match event {
            "respond" => name_of(&calls.on_response(id, ROOM_BYTES)),
            "respond long" => name_of(&calls.on_response(id, ROOM_BYTES + 1)),
            "end" => name_of(&calls.on_response_end(id, INTACT)),
            "expire" => {
                let mut expired = Vec::new();
                calls.expire(DEADLINE, &mut expired);
                assert!(expired.len() <= 1);
                expired.first().map_or("-".to_owned(), name_of)
            }
            "abandon" => name_of(&calls.abandon(id)),
            "fenced" => name_of(&calls.on_fenced(id)),
            "goaway" => calls.on_goaway(0).len().to_string(),
            "fail all" => calls.fail_all().len().to_string(),
            other => panic!("no event is named {other}"),
        }
    }

    const EVENTS: [&str; 8] = [
        "respond",
        "respond long",
        "end",
        "expire",
        "abandon",
        "fenced",
        "goaway",
        "fail all",
    ];

    /// Each state, and what each event gives there: outcome and next state.
    #[rustfmt::skip]
    const TABLE: [(&str, [(&str, &str); 8]); 7] = [
        ("Free", [
            ("Err(AlreadyAnswered", "Free"), ("Err(AlreadyAnswered", "Free"), ("panic", "Free"),
            ("-", "Free"), ("Over", "Free"), ("None", "Free"), ("0", "Free"), ("0", "Free"),
        ]),
        ("Waiting", [
            ("Ok(Place)", "Placing"), ("Ok(Discard)", "Skipping"), ("panic", "Free"),
            ("Ended", "Abandoned"), ("Ended", "Abandoned"), ("None", "Waiting"), ("1", "Free"), ("1", "Free"),
        ]),
        ("Placing", [
            ("Err(AlreadyAnswered", "Placing"), ("Err(AlreadyAnswered", "Placing"), ("Done", "Free"),
            ("MustFence", "Fencing"), ("MustFence", "Fencing"), ("None", "Placing"), ("0", "Placing"), ("1", "Free"),
        ]),
        ("Skipping", [
            ("Err(AlreadyAnswered", "Skipping"), ("Err(AlreadyAnswered", "Skipping"), ("TooLong", "Free"),
            ("Ended", "Draining"), ("Ended", "Draining"), ("None", "Skipping"), ("0", "Skipping"), ("1", "Free"),
        ]),
        ("Fencing", [
            ("Err(AlreadyAnswered", "Fencing"), ("Err(AlreadyAnswered", "Fencing"), ("Done", "Free"),
            ("-", "Fencing"), ("Over", "Fencing"), ("Some(Fenced", "Draining"), ("0", "Fencing"), ("1", "Free"),
        ]),
        ("Abandoned", [
            ("Ok(Discard)", "Draining"), ("Ok(Discard)", "Draining"), ("panic", "Free"),
            ("-", "Abandoned"), ("Over", "Abandoned"), ("None", "Abandoned"), ("0", "Free"), ("0", "Free"),
        ]),
        ("Draining", [
            ("Err(AlreadyAnswered", "Draining"), ("Err(AlreadyAnswered", "Draining"), ("Discarded", "Free"),
            ("-", "Draining"), ("Over", "Draining"), ("None", "Draining"), ("0", "Draining"), ("0", "Free"),
        ]),
    ];

    #[test]
    fn every_state_answers_every_event() {
        for (state, row) in TABLE {
            for (event, (outcome, next)) in EVENTS.into_iter().zip(row) {
                let (mut calls, id) = in_state(state);
                let applied = catch_unwind(AssertUnwindSafe(|| apply(&mut calls, id, event)));
                let found = applied.unwrap_or("panic".to_owned());
                assert_eq!(found, outcome, "{state} x {event}");
                assert_eq!(name_of(&calls.slots[0].state), next, "{state} x {event}");
            }
        }
    }

    #[test]
    fn only_calls_that_are_not_over_have_a_deadline_and_a_token() {
        for (state, _) in TABLE {
            let (calls, id) = in_state(state);
            let has_deadline = ["Waiting", "Placing", "Skipping"].contains(&state);
            let has_token = has_deadline || state == "Fencing";
            assert_eq!(
                calls.next_deadline(),
                has_deadline.then_some(DEADLINE),
                "{state}"
            );
            assert_eq!(calls.token(id), has_token.then_some(&'t'), "{state}");
            assert_eq!(calls.in_flight(), usize::from(state != "Free"), "{state}");
        }
    }

    #[test]
    fn ids_that_were_never_issued_are_told_from_answered_ones() {
        let (mut calls, answered) = in_state("Free");
        let never = [
            RequestId(0),
            RequestId(1),
            RequestId(2 << 32),
            RequestId(u64::MAX),
        ];
        for id in never {
            assert_eq!(calls.on_response(id, 0), Err(CallFault::NeverIssued { id }));
            assert_eq!(calls.abandon(id), Abandon::Over);
            assert_eq!(calls.on_fenced(id), None);
        }
        let id = answered;
        assert_eq!(
            calls.on_response(id, 0),
            Err(CallFault::AlreadyAnswered { id })
        );
        let next = calls.start(DEADLINE, 0, 'u').unwrap();
        assert_eq!(
            next,
            RequestId(2 << 32),
            "the slot is the same, its generation is not"
        );
        assert_eq!(
            calls.on_response(id, 0),
            Err(CallFault::AlreadyAnswered { id })
        );
    }

    #[test]
    fn the_limit_gives_the_token_back_and_counts_abandoned_calls() {
        let mut calls = Calls::new(2);
        let first = calls.start(DEADLINE, 0, 'a').unwrap();
        assert!(!calls.is_full());
        calls.start(DEADLINE, 0, 'b').unwrap();
        assert!(calls.is_full());
        assert_eq!(
            calls.start(DEADLINE, 0, 'c'),
            Err(InFlightFull { token: 'c' })
        );
        assert_eq!(calls.abandon(first), Abandon::Ended { token: 'a' });
        assert_eq!(
            calls.start(DEADLINE, 0, 'c'),
            Err(InFlightFull { token: 'c' })
        );
        calls.on_response(first, 0).unwrap();
        assert_eq!(calls.on_response_end(first, INTACT), CallEnd::Discarded);
        assert!(calls.start(DEADLINE, 0, 'c').is_ok());
    }

    #[test]
    fn a_goaway_ends_what_was_started_behind_what_was_read() {
        let mut calls = Calls::new(3);
        let first = calls.start(DEADLINE, 0, 'a').unwrap();
        calls.on_response(first, 0).unwrap();
        assert_eq!(
            calls.on_response_end(first, INTACT),
            CallEnd::Done { token: 'a' }
        );
        let second = calls.start(DEADLINE, 0, 'b').unwrap();
        let third = calls.start(DEADLINE, 0, 'c').unwrap();
        let fourth = calls.start(DEADLINE, 0, 'd').unwrap();
        assert_eq!(calls.on_goaway(3), [(fourth, 'd')]);
        assert_eq!(calls.in_flight(), 2);
        let answered = CallFault::AlreadyAnswered { id: fourth };
        assert_eq!(calls.on_response(fourth, 0), Err(answered));
        assert_eq!(calls.on_response(second, 0), Ok(ResponseSink::Place));
        assert_eq!(
            calls.on_goaway(1),
            [(third, 'c')],
            "answers begin for what was read"
        );
        assert_eq!(
            calls.on_response_end(second, INTACT),
            CallEnd::Done { token: 'b' }
        );
    }

    #[test]
    fn a_deadline_is_met_at_its_time_and_not_before() {
        let (mut calls, id) = in_state("Waiting");
        let mut expired = Vec::new();
        calls.expire(Time::from_ns(99), &mut expired);
        assert_eq!(expired, []);
        calls.expire(Time::from_ns(100), &mut expired);
        assert_eq!(expired, [Expired::Ended { id, token: 't' }]);
    }

    #[test]
    fn a_call_without_deadline_never_expires() {
        let mut calls = Calls::new(1);
        calls.start(Time::MAX, 0, 't').unwrap();
        let mut expired = Vec::new();
        calls.expire(Time::MAX, &mut expired);
        assert_eq!((expired, calls.next_deadline()), (vec![], None));
    }

    #[test]
    fn the_cause_of_a_fence_is_that_of_who_came_first() {
        let (mut calls, id) = in_state("Placing");
        let mut expired = Vec::new();
        calls.expire(DEADLINE, &mut expired);
        assert_eq!(expired, [Expired::MustFence { id }]);
        assert_eq!(calls.abandon(id), Abandon::Over);
        let fenced = Fenced {
            token: 't',
            cause: EndCause::DeadlineExceeded,
        };
        assert_eq!(calls.on_fenced(id), Some(fenced));
    }

    #[test]
    fn a_damaged_payload_ends_the_call_as_corrupt() {
        let (mut calls, id) = in_state("Placing");
        let verdict = PayloadVerdict::Corrupt {
            expected: 1,
            computed: 2,
        };
        let end = CallEnd::Corrupt {
            token: 't',
            expected: 1,
            computed: 2,
        };
        assert_eq!(calls.on_response_end(id, verdict), end);
    }

    #[test]
    fn tables_have_between_one_slot_and_the_most() {
        assert_eq!(
            Calls::<()>::new(IN_FLIGHT_MAX).slots.len(),
            IN_FLIGHT_MAX as usize
        );
        for out_of_range in [0, IN_FLIGHT_MAX + 1] {
            assert!(catch_unwind(|| Calls::<()>::new(out_of_range)).is_err());
        }
    }

    #[test]
    fn a_generation_comes_round_without_becoming_zero() {
        let mut calls = Calls::new(1);
        calls.slots[0].generation = u32::MAX;
        let id = calls.start(DEADLINE, 0, 't').unwrap();
        calls.on_response(id, 0).unwrap();
        calls.on_response_end(id, INTACT);
        assert_eq!(calls.start(DEADLINE, 0, 'u'), Ok(RequestId(1 << 32)));
    }
}
