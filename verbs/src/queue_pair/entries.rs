//! Requests from staging to the moment their futures have taken the outcome.
//!
//! A table of its own: places keep their content between uses, so that taking one in and giving it
//! back writes no more than what changes.

use std::task::Waker;

use crate::device_memory::DeviceMemory;
use crate::error::RequestError;
use crate::lent::Lent;
use crate::memory::Piece;

/// What a request holds that is no piece.
#[derive(Debug)]
#[expect(dead_code, reason = "held, so that it stays registered")]
pub(super) enum Held {
    Device(DeviceMemory),
    Lent(Lent),
}

/// A request, and what it holds until it is over.
#[derive(Debug)]
struct Entry {
    piece: Option<Piece>,
    held: Option<Held>,
    outcome: Option<Result<(), RequestError>>,
    waker: Option<Waker>,
    /// Nobody waits for it any more.
    is_abandoned: bool,
}

/// The requests of one queue pair. Free places hold nothing, have no outcome and wake nobody.
#[derive(Debug)]
pub(super) struct Entries {
    places: Vec<Entry>,
    free: Vec<u32>,
}

impl Entries {
    pub(super) fn with_capacity(count: usize) -> Self {
        Self {
            places: Vec::with_capacity(count),
            free: Vec::with_capacity(count),
        }
    }

    /// Takes a request in and answers with its place.
    #[inline]
    pub(super) fn insert(&mut self, piece: Option<Piece>) -> u32 {
        if let Some(key) = self.free.pop() {
            let before = std::mem::replace(&mut self.places[key as usize].piece, piece);
            // So known to be nothing, it is not dropped either.
            std::mem::forget(before);
            return key;
        }
        let key = u32::try_from(self.places.len()).expect("futures fit memory");
        self.places.push(Entry {
            piece,
            held: None,
            outcome: None,
            waker: None,
            is_abandoned: false,
        });
        key
    }

    /// Has a request hold this until it is over, whoever waits for it.
    pub(super) fn hold(&mut self, key: u32, held: Held) {
        self.places[key as usize].held = Some(held);
    }

    /// The request is over. `wake` gets who waits; if nobody does, `freed` gets its piece.
    pub(super) fn end(
        &mut self,
        key: u32,
        outcome: Result<(), RequestError>,
        wake: &mut Vec<Waker>,
        freed: &mut Vec<Piece>,
    ) {
        let entry = &mut self.places[key as usize];
        assert!(entry.outcome.is_none(), "a request ends once");
        if let Some(waker) = entry.waker.take() {
            wake.push(waker);
        }
        if entry.is_abandoned {
            freed.extend(self.remove(key));
        } else {
            entry.outcome = Some(outcome);
        }
    }

    /// The outcome and the piece, if it is over; else `waker` is woken then.
    #[inline]
    pub(super) fn take(
        &mut self,
        key: u32,
        waker: &Waker,
    ) -> Option<(Result<(), RequestError>, Option<Piece>)> {
        let entry = &mut self.places[key as usize];
        if let Some(outcome) = entry.outcome {
            return Some((outcome, self.remove(key)));
        }
        if !(entry.waker.as_ref()).is_some_and(|known| known.will_wake(waker)) {
            entry.waker = Some(waker.clone());
        }
        None
    }

    /// Nobody waits for the request any more. Its piece is given back if it is over.
    pub(super) fn abandon(&mut self, key: u32) -> Option<Piece> {
        let entry = &mut self.places[key as usize];
        if entry.outcome.is_some() {
            return self.remove(key);
        }
        entry.is_abandoned = true;
        entry.waker = None;
        None
    }

    #[inline]
    fn remove(&mut self, key: u32) -> Option<Piece> {
        let entry = &mut self.places[key as usize];
        entry.outcome = None;
        entry.is_abandoned = false;
        if entry.held.is_some() {
            entry.held = None;
        }
        self.free.push(key);
        entry.piece.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_remember_nothing() {
        let mut entries = Entries::with_capacity(2);
        let (waker, mut woken, mut freed) = (Waker::noop(), Vec::new(), Vec::new());
        let (first, second) = (entries.insert(None), entries.insert(None));
        assert!(entries.take(first, waker).is_none());
        entries.end(first, Ok(()), &mut woken, &mut freed);
        assert_eq!(woken.len(), 1, "who waited is woken");
        // Nobody waits for the second: its place is free when it ends.
        assert!(entries.abandon(second).is_none());
        entries.end(second, Err(RequestError::Flushed), &mut woken, &mut freed);
        assert_eq!(woken.len(), 1);
        assert!(
            entries
                .take(first, waker)
                .is_some_and(|taken| taken.0 == Ok(()))
        );
        for key in [first, second] {
            assert_eq!(entries.insert(None), key);
            assert!(entries.take(key, waker).is_none(), "it is not over");
        }
        // One that is over before it is abandoned is given back at once.
        entries.end(first, Ok(()), &mut woken, &mut freed);
        assert!(entries.abandon(first).is_none());
        assert_eq!(entries.insert(None), first);
    }

    #[test]
    #[should_panic(expected = "ends once")]
    fn a_request_does_not_end_twice() {
        let mut entries = Entries::with_capacity(1);
        let key = entries.insert(None);
        for _ in 0..2 {
            entries.end(key, Ok(()), &mut Vec::new(), &mut Vec::new());
        }
    }
}
