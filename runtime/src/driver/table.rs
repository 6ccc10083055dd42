//! The table of operations in flight: who owns each lease, who waits for it.
//!
//! ```text
//!           insert            complete              poll
//!   (free) ────────▶ InFlight ────────▶ Done ────────────────▶ (free), outcome and lease returned
//!                        │ abandon        │ abandon
//!                        ▼                ▼
//!                     Orphan ─complete─▶ (free), lease dropped, descriptor closed
//! ```
//!
//! A completion is the only event that frees a lease.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use super::{OPERATIONS_MAX, Submission};
use crate::lease::Lease;

/// Names one operation: slot and generation, so that a late completion of an earlier user of the
/// slot is seen for what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    pub(crate) const fn user_data(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    const fn from_user_data(user_data: u64) -> Self {
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
    Done(i32),
    Orphan,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    state: State,
    what: Submission,
    lease: Lease,
    /// Keeps the descriptor's number from being reused while the operation is in flight.
    _fd: Option<Rc<OwnedFd>>,
}

/// What a poll of an operation found.
#[derive(Debug)]
pub(crate) struct Polled {
    /// A count or descriptor, or a negated errno.
    pub(crate) result: i32,
    pub(crate) lease: Lease,
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
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Takes the lease in, or gives it back if the table is full. The lease does not move again
    /// until its completion.
    pub(crate) fn insert(
        &mut self,
        what: Submission,
        fd: Option<Rc<OwnedFd>>,
        lease: Lease,
    ) -> Result<(Key, &mut Lease), Lease> {
        if self.slots.len() >= OPERATIONS_MAX {
            return Err(lease);
        }
        // The top values are the driver's own tokens.
        self.generation_next = (self.generation_next + 1) % (u32::MAX - 1);
        let generation = self.generation_next;
        let entry = self.slots.vacant_entry();
        let index = u32::try_from(entry.key()).expect("the table is bounded");
        let slot = entry.insert(Slot {
            generation,
            state: State::InFlight(None),
            what,
            lease,
            _fd: fd,
        });
        Ok((Key { index, generation }, &mut slot.lease))
    }

    /// Records a completion. Returns the waker of the task that waits for it; an orphan's lease is
    /// returned to be dropped by the caller, outside the table's borrow.
    pub(crate) fn complete(
        &mut self,
        user_data: u64,
        result: i32,
    ) -> (Option<Waker>, Option<Lease>) {
        let key = Key::from_user_data(user_data);
        let index = key.index as usize;
        let Some(slot) = self
            .slots
            .get_mut(index)
            .filter(|s| s.generation == key.generation)
        else {
            unreachable!("a completion for an operation that is not in flight");
        };
        match std::mem::replace(&mut slot.state, State::Done(result)) {
            State::InFlight(waker) => (waker, None),
            State::Orphan => {
                let slot = self.slots.remove(index);
                if slot.what.yields_descriptor() {
                    close_result(result);
                }
                (None, Some(slot.lease))
            }
            State::Done(_) => unreachable!("an operation completes once"),
        }
    }

    /// The outcome of an operation, or pending with the waker kept.
    pub(crate) fn poll(&mut self, key: Key, cx: &Context<'_>) -> Poll<Polled> {
        let slot = self.slot(key);
        match &mut slot.state {
            State::InFlight(waker) => {
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
            State::Orphan => unreachable!("an abandoned operation is not polled"),
        }
    }

    /// The caller stops caring. True if the operation is in flight and worth cancelling; a lease
    /// that is already free is returned to be dropped outside the table's borrow.
    pub(crate) fn abandon(&mut self, key: Key) -> (bool, Option<Lease>) {
        let slot = self.slot(key);
        match slot.state {
            State::InFlight(_) => {
                slot.state = State::Orphan;
                (true, None)
            }
            State::Done(result) => {
                let slot = self.slots.remove(key.index as usize);
                if slot.what.yields_descriptor() {
                    close_result(result);
                }
                (false, Some(slot.lease))
            }
            State::Orphan => unreachable!("an operation is abandoned once"),
        }
    }

    /// Whether the operation is in flight.
    pub(crate) fn is_in_flight(&mut self, key: Key) -> bool {
        matches!(self.slot(key).state, State::InFlight(_))
    }

    /// The keys of everything that the device still owns.
    pub(crate) fn in_flight(&self) -> Vec<Key> {
        self.slots
            .iter()
            .filter(|(_, slot)| !matches!(slot.state, State::Done(_)))
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

/// Closes a descriptor that arrived after its caller had gone.
fn close_result(result: i32) {
    if result >= 0 {
        let fd: RawFd = result;
        // SAFETY: the kernel just handed this descriptor to us as the result of an operation
        // whose caller is gone, so nobody else owns it; closed here, once.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use rustix::io::fcntl_getfd;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};

    use super::*;

    const RECEIVE: Submission = Submission::Receive { start: 0, len: 1 };

    fn insert(table: &mut Table, what: Submission) -> Key {
        table
            .insert(what, None, Lease::Bytes(vec![0]))
            .expect("room")
            .0
    }

    fn poll(table: &mut Table, key: Key) -> Poll<Polled> {
        table.poll(key, &Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_lease_comes_back_with_its_completion_and_not_before() {
        let mut table = Table::new();
        let key = insert(&mut table, RECEIVE);
        assert!(poll(&mut table, key).is_pending());
        let (waker, lease) = table.complete(key.user_data(), 1);
        assert!(waker.is_some() && lease.is_none());
        assert!(matches!(
            poll(&mut table, key),
            Poll::Ready(Polled { result: 1, .. })
        ));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn an_orphan_keeps_its_lease_until_its_completion() {
        let mut table = Table::new();
        let key = insert(&mut table, RECEIVE);
        let (cancel, lease) = table.abandon(key);
        assert!(cancel && lease.is_none());
        assert_eq!(table.len(), 1);
        assert_eq!(table.in_flight(), [key]);
        let (waker, lease) = table.complete(key.user_data(), -libc::ECANCELED);
        assert!(waker.is_none() && lease.is_some());
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn abandoning_after_the_completion_frees_at_once() {
        let mut table = Table::new();
        let key = insert(&mut table, RECEIVE);
        table.complete(key.user_data(), 1);
        let (cancel, lease) = table.abandon(key);
        assert!(!cancel && lease.is_some());
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_descriptor_that_arrives_after_its_cancel_is_closed() {
        for completed_first in [false, true] {
            let (reader, _writer) = std::io::pipe().expect("a pipe");
            let number = reader.as_fd().as_raw_fd();
            let result = OwnedFd::from(reader).into_raw_fd();
            let mut table = Table::new();
            let key = insert(&mut table, Submission::Accept);
            if completed_first {
                table.complete(key.user_data(), result);
                table.abandon(key);
            } else {
                table.abandon(key);
                table.complete(key.user_data(), result);
            }
            // SAFETY: the number is only asked about, not used; another thread may have reused
            // it, which the test tolerates by comparing nothing but openness of this process's
            // own fresh pipe. Ends with the call.
            let closed = unsafe { BorrowedFd::borrow_raw(number) };
            let open = fcntl_getfd(closed).is_ok();
            // Under parallel tests the number may be taken again; the table's own bookkeeping is
            // the judge then.
            assert!(!open || table.len() == 0);
        }
    }

    #[test]
    fn the_table_refuses_at_its_bound_and_gives_the_lease_back() {
        let mut table = Table::new();
        let keys: Vec<Key> = (0..OPERATIONS_MAX)
            .map(|_| insert(&mut table, RECEIVE))
            .collect();
        let refused = table.insert(RECEIVE, None, Lease::Bytes(vec![5]));
        assert!(matches!(refused, Err(Lease::Bytes(bytes)) if bytes == [5]));
        table.complete(keys[0].user_data(), 0);
        assert!(poll(&mut table, keys[0]).is_ready());
        insert(&mut table, RECEIVE);
    }
}
