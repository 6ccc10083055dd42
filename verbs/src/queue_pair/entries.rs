//! Requests from staging to the moment their futures have taken the outcome.
//!
//! A table of its own: places keep their content between uses, so that taking one in and giving it
//! back writes no more than what changes. An entry is one request's, or that of all requests of a
//! list, which are over together.

use std::task::Waker;

use super::list::Listed;
use crate::device_memory::DeviceMemory;
use crate::error::RequestError;
use crate::lent::Lent;
use crate::memory::Piece;

/// What a request holds that is no piece.
#[derive(Debug)]
pub(super) enum Held {
    Device(#[expect(dead_code, reason = "held, so that it stays registered")] DeviceMemory),
    Lent(#[expect(dead_code, reason = "as above")] Lent),
    List(Vec<Listed>),
}

/// What is over: its outcome, and what it held, to be dropped by who has nothing borrowed.
pub(super) type Over = (Result<(), RequestError>, Option<Piece>, Option<Held>);

/// A request, or a list of them, and what it holds until it is over.
#[derive(Debug)]
struct Entry {
    piece: Option<Piece>,
    held: Option<Held>,
    /// Requests that are not over; a list that may grow counts as one.
    left: u32,
    /// Of requests that are over, the first failure: those behind it failed because of it.
    failure: Option<RequestError>,
    waker: Option<Waker>,
    /// Nobody waits for it any more.
    is_abandoned: bool,
}

/// The requests of one queue pair. Free places hold nothing, have nothing left and wake nobody.
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

    /// Takes a request in, or the beginning of a list, and answers with its place.
    #[inline]
    pub(super) fn insert(&mut self, piece: Option<Piece>) -> u32 {
        if let Some(key) = self.free.pop() {
            let entry = &mut self.places[key as usize];
            entry.left = 1;
            let before = std::mem::replace(&mut entry.piece, piece);
            // So known to be nothing, it is not dropped either.
            std::mem::forget(before);
            return key;
        }
        let key = u32::try_from(self.places.len()).expect("futures fit memory");
        self.places.push(Entry {
            piece,
            held: None,
            left: 1,
            failure: None,
            waker: None,
            is_abandoned: false,
        });
        key
    }

    /// Has a request hold this until it is over, whoever waits for it.
    #[inline]
    pub(super) fn hold(&mut self, key: u32, held: Held) {
        self.places[key as usize].held = Some(held);
    }

    /// Takes a list in, of whose requests none is made yet.
    pub(super) fn insert_list(&mut self, requests: Vec<Listed>) -> u32 {
        let key = self.insert(None);
        self.hold(key, Held::List(requests));
        key
    }

    /// The requests of a list, and how many of those that were made are not over, and one.
    pub(super) fn list(&mut self, key: u32) -> (&[Listed], &mut u32) {
        let entry = &mut self.places[key as usize];
        match &entry.held {
            Some(Held::List(requests)) => (requests, &mut entry.left),
            _ => unreachable!("it was taken in as a list"),
        }
    }

    /// A request of a list was not made.
    pub(super) fn fail(&mut self, key: u32, error: RequestError) {
        self.places[key as usize].failure.get_or_insert(error);
    }

    /// The request is over, or one of a list's. `wake` gets who waits for the last; if nobody does, `freed` gets what it
    /// held.
    #[inline]
    pub(super) fn end(
        &mut self,
        key: u32,
        outcome: Result<(), RequestError>,
        wake: &mut Vec<Waker>,
        freed: &mut Vec<Over>,
    ) {
        let entry = &mut self.places[key as usize];
        assert!(entry.left > 0, "a request ends once");
        entry.left -= 1;
        if let Err(error) = outcome {
            entry.failure.get_or_insert(error);
        }
        if entry.left > 0 {
            return;
        }
        if let Some(waker) = entry.waker.take() {
            wake.push(waker);
        }
        if entry.is_abandoned {
            freed.push(self.remove(key));
        }
    }

    /// No more requests of a list are made.
    pub(super) fn close(&mut self, key: u32) {
        let entry = &mut self.places[key as usize];
        assert!(
            entry.left > 0 && entry.waker.is_none(),
            "a list is closed once, by who makes it"
        );
        entry.left -= 1;
    }

    /// The outcome and what was held, if it is over; else `waker` is woken then.
    #[inline]
    pub(super) fn take(&mut self, key: u32, waker: &Waker) -> Option<Over> {
        let entry = &mut self.places[key as usize];
        if entry.left == 0 {
            return Some(self.remove(key));
        }
        if !(entry.waker.as_ref()).is_some_and(|known| known.will_wake(waker)) {
            entry.waker = Some(waker.clone());
        }
        None
    }

    /// Nobody waits for the request any more. What it held is given back if it is over.
    pub(super) fn abandon(&mut self, key: u32) -> Option<Over> {
        let entry = &mut self.places[key as usize];
        if entry.left == 0 {
            return Some(self.remove(key));
        }
        entry.is_abandoned = true;
        entry.waker = None;
        None
    }

    #[inline]
    fn remove(&mut self, key: u32) -> Over {
        let entry = &mut self.places[key as usize];
        entry.is_abandoned = false;
        self.free.push(key);
        let outcome = match entry.failure {
            None => Ok(()),
            Some(_) => entry.failure.take().map_or(Ok(()), Err),
        };
        // What is not there is not moved.
        let held = match entry.held {
            None => None,
            Some(_) => entry.held.take(),
        };
        (outcome, entry.piece.take(), held)
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
        assert!(entries.abandon(first).is_some_and(|over| over.0 == Ok(())));
        assert_eq!(entries.insert(None), first);
    }

    #[test]
    fn a_list_is_over_with_its_last_request_and_fails_as_the_first_that_failed() {
        let mut entries = Entries::with_capacity(1);
        let (waker, mut woken, mut freed) = (Waker::noop(), Vec::new(), Vec::new());
        let outcomes = [
            Ok(()),
            Err(RequestError::Length),
            Err(RequestError::Flushed),
        ];
        for is_abandoned in [false, true] {
            let list = entries.insert_list(Vec::new());
            let mut ended = outcomes.into_iter();
            *entries.list(list).1 += 3;
            // It may be over before it is closed but for that.
            entries.end(list, ended.next().unwrap(), &mut woken, &mut freed);
            entries.close(list);
            if is_abandoned {
                assert!(entries.abandon(list).is_none());
            } else {
                assert!(entries.take(list, waker).is_none());
            }
            for outcome in ended {
                assert!(woken.is_empty() && freed.is_empty());
                entries.end(list, outcome, &mut woken, &mut freed);
            }
            let over = if is_abandoned {
                freed.pop()
            } else {
                woken.pop().and_then(|_| entries.take(list, waker))
            };
            let (outcome, _, held) = over.expect("it is over");
            assert_eq!(outcome, Err(RequestError::Length));
            assert!(matches!(held, Some(Held::List(_))));
            assert!(woken.is_empty() && freed.is_empty());
        }
        // One of nothing is over at once, and remembers no failure but its own.
        for failure in [None, Some(RequestError::Refused)] {
            let list = entries.insert_list(Vec::new());
            failure
                .into_iter()
                .for_each(|error| entries.fail(list, error));
            entries.close(list);
            let (outcome, ..) = entries.take(list, waker).expect("it is over");
            assert_eq!(outcome.err(), failure);
        }
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
