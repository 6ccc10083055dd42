//! The table of operations in flight: who owns each lease, who waits for it.
//!
//! ```text
//!           insert            complete              poll
//!   (free) ────────▶ InFlight ────────▶ Done ────────────────▶ (free), outcome and lease returned
//!                     │    │ complete,   ▲ │ abandon
//!                     │    │ more to come│ ▼
//!                     │    └──▶ Sent ────┘ (free), lease dropped
//!                     │ abandon  │ abandon
//!                     ▼          ▼
//!                  Orphan ◀──────┘
//!                     └── last completion ─▶ (free), lease dropped
//! ```
//!
//! `Sent` is a send without copies whose result is known while the device still reads the memory.
//! A multishot operation is `Streaming` from the start: its answers queue up, each is handed out
//! once, and after the last one the slot is free. Abandoned, it is an orphan as any other, and what
//! arrives for it (a descriptor, a buffer of a pool) is given back.
//!
//! The last completion is the only event that frees a lease.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use lunette_runtime_core::mutant::{self, Mutant};
use rustix::io::Errno;
use slab::Slab;

use super::{Completion, Descriptor, Handle, OPERATIONS_MAX, Submission};
use crate::lease::Lease;
use crate::pool::PooledBytes;

/// Connections accepted and not yet asked for. Beyond, accepting stops until they have been.
pub(crate) const ACCEPTED_MAX: usize = 256;

/// Names one operation: slot and generation, so that a late completion of an earlier user of the
/// slot is seen for what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Its place in the table, below [`OPERATIONS_MAX`](super::OPERATIONS_MAX).
    pub(super) const fn index(self) -> usize {
        self.index as usize
    }

    pub(crate) const fn user_data(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    pub(super) const fn from_user_data(user_data: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = user_data.to_le_bytes();
        let index = u32::from_le_bytes([a, b, c, d]);
        Self {
            index,
            generation: u32::from_le_bytes([e, f, g, h]),
        }
    }
}

#[derive(Debug)]
enum State {
    InFlight(Option<Waker>),
    Sent(i32, Option<Waker>),
    Streaming(Box<Stream>),
    Done(i32),
    Orphan,
}

impl State {
    const fn is_in_flight(&self) -> bool {
        match self {
            Self::InFlight(_) | Self::Sent(..) | Self::Orphan => true,
            Self::Streaming(stream) => !stream.ended,
            Self::Done(_) => false,
        }
    }
}

/// The answers of a multishot operation.
#[derive(Debug, Default)]
struct Stream {
    wakers: Vec<Waker>,
    arrived: VecDeque<Arrival>,
    /// The last completion has come.
    ended: bool,
    /// It has been asked to end, because too much has arrived.
    throttled: bool,
}

/// One answer of a multishot operation.
#[derive(Debug)]
pub(crate) enum Arrival {
    Accepted(Handle),
    /// No bytes mean that the peer has finished.
    Received(PooledBytes),
    /// The peer has finished.
    Finished,
    /// A bell has been rung, once or more often.
    Rung,
    Failed(Errno),
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    state: State,
    what: Submission,
    lease: Lease,
    /// Keeps the descriptor's number from being reused while the operation is in flight.
    fd: Option<Rc<Descriptor>>,
}

/// What a poll of an operation found.
#[derive(Debug)]
pub(crate) struct Polled {
    /// A count or descriptor, or a negated errno.
    pub(crate) result: i32,
    pub(crate) lease: Lease,
}

/// What the caller is to do after a completion, outside the table's borrow.
#[derive(Debug)]
pub(crate) enum Effect {
    Nothing,
    Wake(Waker),
    /// As `Wake`; and the operation is to be cancelled.
    WakeAll(Vec<Waker>, Option<Key>),
    /// Nobody wants it any more.
    Drop(Dropped),
}

/// What is given back, by being dropped.
#[derive(Debug)]
pub(crate) struct Dropped {
    _lease: Option<Lease>,
    _arrived: VecDeque<Arrival>,
}

/// All operations of one core.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Slab<Slot>,
    generation_next: u32,
}

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            slots: Slab::with_capacity(OPERATIONS_MAX),
            generation_next: 0,
        }
    }

    /// Operations in flight, orphans included, and outcomes not yet fetched.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Takes the lease in, or gives it back if the table is full. The lease does not move again
    /// until its last completion.
    pub(crate) fn insert(
        &mut self,
        what: Submission,
        fd: Option<Rc<Descriptor>>,
        lease: Lease,
    ) -> Result<(Key, &mut Lease), Lease> {
        if self.slots.len() >= OPERATIONS_MAX {
            return Err(lease);
        }
        // The top values are the driver's own tokens.
        self.generation_next = (self.generation_next + 1) % (u32::MAX - 1);
        let generation = self.generation_next;
        let state = if what.is_multishot() {
            State::Streaming(Box::default())
        } else {
            State::InFlight(None)
        };
        let entry = self.slots.vacant_entry();
        let index = u32::try_from(entry.key()).expect("the table is bounded");
        let slot = entry.insert(Slot {
            generation,
            state,
            what,
            lease,
            fd,
        });
        Ok((Key { index, generation }, &mut slot.lease))
    }

    /// Records a completion.
    pub(crate) fn complete(&mut self, completion: Completion) -> Effect {
        let key = Key::from_user_data(completion.user_data);
        let index = key.index as usize;
        let Some(slot) = self
            .slots
            .get_mut(index)
            .filter(|s| s.generation == key.generation)
        else {
            if mutant::is_on(Mutant::BufferReleasedEarly) {
                return Effect::Nothing;
            }
            unreachable!("a completion for an operation that is not in flight");
        };
        let (result, more) = (completion.result, completion.flags.has_more());
        match &mut slot.state {
            State::InFlight(waker) if more => {
                slot.state = State::Sent(result, waker.take());
                Effect::Nothing
            }
            State::InFlight(waker) => {
                let waker = waker.take();
                slot.state = State::Done(result);
                waker.map_or(Effect::Nothing, Effect::Wake)
            }
            State::Sent(result, waker) => {
                assert!(!more, "a send has two completions at most");
                let (result, waker) = (*result, waker.take());
                slot.state = State::Done(result);
                waker.map_or(Effect::Nothing, Effect::Wake)
            }
            State::Streaming(stream) => {
                stream.ended = !more;
                let arrived = arrival(slot.what, slot.fd.as_ref(), &slot.lease, completion);
                stream.arrived.extend(arrived);
                let is_full = slot.what == Submission::AcceptMany
                    && stream.arrived.len() >= ACCEPTED_MAX
                    && !stream.throttled;
                stream.throttled |= is_full;
                let cancel = (is_full && more).then_some(key);
                Effect::WakeAll(std::mem::take(&mut stream.wakers), cancel)
            }
            State::Orphan => {
                let arrived = arrival(slot.what, slot.fd.as_ref(), &slot.lease, completion);
                let lease = (!more).then(|| self.slots.remove(index).lease);
                Effect::Drop(Dropped {
                    _lease: lease,
                    _arrived: arrived.into_iter().collect(),
                })
            }
            State::Done(_) => unreachable!("an operation has one last completion"),
        }
    }

    /// The outcome of an operation, or pending with the waker kept.
    pub(crate) fn poll(&mut self, key: Key, cx: &Context<'_>) -> Poll<Polled> {
        let slot = self.slot(key);
        match &mut slot.state {
            State::InFlight(waker) | State::Sent(_, waker) => {
                match waker {
                    Some(waker) if waker.will_wake(cx.waker()) => {}
                    _ => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            State::Done(result) => {
                let result = *result;
                let slot = self.slots.remove(key.index as usize);
                Poll::Ready(Polled {
                    result,
                    lease: slot.lease,
                })
            }
            State::Streaming(_) => unreachable!("a multishot operation has its own poll"),
            State::Orphan => unreachable!("an abandoned operation is not polled"),
        }
    }

    /// The next answer of a multishot operation, in the order of arrival. `None` is the end: the
    /// lease comes back, and the key names nothing any more.
    pub(crate) fn poll_next(&mut self, key: Key, cx: &Context<'_>) -> Poll<Result<Arrival, Lease>> {
        let State::Streaming(stream) = &mut self.slot(key).state else {
            unreachable!("only a multishot operation has a next answer")
        };
        if let Some(arrival) = stream.arrived.pop_front() {
            return Poll::Ready(Ok(arrival));
        }
        if stream.ended {
            let slot = self.slots.remove(key.index as usize);
            return Poll::Ready(Err(slot.lease));
        }
        if !stream
            .wakers
            .iter()
            .any(|waker| waker.will_wake(cx.waker()))
        {
            stream.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The caller stops caring. Says whether the operation is in flight and worth cancelling, and
    /// returns what is free already, to be dropped outside the table's borrow.
    pub(crate) fn abandon(&mut self, key: Key) -> (bool, Dropped) {
        let slot = self.slot(key);
        let (in_flight, arrived) = match &mut slot.state {
            State::InFlight(_) | State::Sent(..) => (true, VecDeque::new()),
            State::Streaming(stream) => (!stream.ended, std::mem::take(&mut stream.arrived)),
            State::Done(_) => (false, VecDeque::new()),
            State::Orphan => unreachable!("an operation is abandoned once"),
        };
        let lease = if in_flight {
            slot.state = State::Orphan;
            None
        } else {
            Some(self.slots.remove(key.index as usize).lease)
        };
        let dropped = Dropped {
            _lease: lease,
            _arrived: arrived,
        };
        (in_flight, dropped)
    }

    /// What [`Mutant::BufferReleasedEarly`] does: a cancelled receive is over at once, and its memory
    /// free, although the device has not answered.
    pub(crate) fn release_early(&mut self, key: Key) -> Effect {
        match self.slot(key).lease {
            Lease::RegionMut(_) => {
                self.complete(Completion::only(key.user_data(), -libc::ECANCELED))
            }
            _ => Effect::Nothing,
        }
    }

    /// Whether the device may still touch the operation's memory.
    pub(crate) fn is_in_flight(&mut self, key: Key) -> bool {
        self.slot(key).state.is_in_flight()
    }

    /// The keys of everything that the device still owns.
    pub(crate) fn in_flight(&self) -> Vec<Key> {
        self.slots
            .iter()
            .filter(|(_, slot)| slot.state.is_in_flight())
            .map(|(index, slot)| Key {
                index: u32::try_from(index).expect("the table is bounded"),
                generation: slot.generation,
            })
            .collect()
    }

    fn slot(&mut self, key: Key) -> &mut Slot {
        let slot = self
            .slots
            .get_mut(key.index as usize)
            .expect("a key names a live operation");
        assert_eq!(
            slot.generation, key.generation,
            "a key names a live operation"
        );
        slot
    }
}

/// What a completion of a multishot operation brought. Nothing if the operation merely ended:
/// because it was cancelled, or because its pool had no buffer.
fn arrival(
    what: Submission,
    listener: Option<&Rc<Descriptor>>,
    lease: &Lease,
    completion: Completion,
) -> Option<Arrival> {
    let result = completion.result;
    if !what.is_multishot() {
        return None;
    }
    match (what, lease) {
        _ if result == -libc::ECANCELED => None,
        (Submission::ReceiveMany, _) if result == -libc::ENOBUFS => None,
        _ if result < 0 => Some(Arrival::Failed(Errno::from_raw_os_error(-result))),
        (Submission::AcceptMany, _) => {
            let listener = listener.expect("an accept has a listener");
            // SAFETY: the driver just handed this descriptor to us as a result of our accept on
            // that listener, so nobody else owns it.
            Some(Arrival::Accepted(unsafe { listener.accepted(result) }))
        }
        (Submission::RingsMany, _) => Some(Arrival::Rung),
        (_, Lease::Pool(pool)) => Some(match completion.flags.buffer() {
            Some(id) => {
                let len = u32::try_from(result).expect("a count is not negative");
                Arrival::Received(pool.take(id, len, completion.flags.keeps_buffer()))
            }
            None => Arrival::Finished,
        }),
        (what, lease) => unreachable!("{what:?} does not take {lease:?}"),
    }
}

#[cfg(test)]
mod tests;
