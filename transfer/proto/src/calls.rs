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

use lunette_runtime_core::ids::RequestId;
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
            state: State::Free,
        };
        Self {
            slots: (0..in_flight_max).map(slot).collect(),
            free: (0..in_flight_max).rev().collect(),
            deadlines: Deadlines::new(in_flight_max),
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
    /// payload of `room_bytes`. Send the request with the id that this returns.
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
        self.deadlines.first().map(|(deadline, _)| deadline)
    }

    /// Ends the calls whose deadline `now` has reached, earliest first, and appends what came of
    /// each to `expired`.
    pub fn expire(&mut self, now: Time, expired: &mut Vec<Expired<T>>) {
        while let Some((deadline, index)) = self.deadlines.first()
            && deadline <= now
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
        outcome
    }

    /// The slot of an id that has not been answered in full yet.
    fn find(&self, id: RequestId) -> Result<usize, CallFault> {
        let never = CallFault::NeverIssued { id };
        let (index, generation) = parts_of(id);
        let slot = self.slots.get(index).ok_or(never)?;
        let is_free = matches!(slot.state, State::Free);
        if generation == slot.generation && !is_free {
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
