//! Who may read which chunk here, how many at a time, and when nobody does any more.
//!
//! ```text
//!            ask                     a place is free
//!   absent -------> queued ---------------------------------> granted
//!     ^  ^             |  done, forget, close                    |  done, forget, expire
//!     |  +-------------+                                         |
//!     +----------------------------------------------------------+
//! ```
//!
//! A grant that is over binds nothing: memory is kept from readers that are late by who holds it (the engine's
//! registration). So a place is given back when its asker says so, or after a time.

use std::collections::{BTreeMap, VecDeque};

use lunette_runtime_core::time::Time;

use super::PeerId;
use crate::chunks::ChunkSet;
use crate::pace::{Pace, Patience};

/// Most uploads that one neighbour waits for or has under way.
pub const UPLOADS_PER_PEER_MAX: usize = 4;
/// How many times as long as usual a grant lasts.
const GRANT_CHUNKS: u32 = 16;

/// A want of somebody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ask {
    /// Whose.
    pub peer: PeerId,
    /// Its number there.
    pub want: u32,
}

/// What comes of an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The chunk may be read now.
    Granted(u32),
    /// It waits.
    Queued,
    /// There is no room to wait, or nothing to be had.
    Busy,
}

#[derive(Clone, Copy, Debug)]
struct Granted {
    chunk: u32,
    since: Time,
    until: Time,
}

#[derive(Clone, Debug)]
struct Queued {
    ask: Ask,
    candidates: Vec<u32>,
}

/// The uploads of one object at one holder.
#[derive(Clone, Debug)]
pub struct Uploads {
    granted: BTreeMap<Ask, Granted>,
    queue: VecDeque<Queued>,
    /// How often each chunk has been granted.
    served: Vec<u16>,
    granted_max: usize,
    queued_max: usize,
    patience: Patience,
    pace: Pace,
    is_closed: bool,
}

impl Uploads {
    /// Of an object of `chunks` chunks; so many at a time, and so many that wait.
    #[must_use]
    pub fn new(chunks: u32, granted_max: usize, queued_max: usize, patience: Patience) -> Self {
        Self {
            granted: BTreeMap::new(),
            queue: VecDeque::new(),
            served: vec![0; chunks as usize],
            granted_max,
            queued_max,
            patience,
            pace: Pace::default(),
            is_closed: false,
        }
    }

    /// How many wait or are under way.
    #[must_use]
    pub fn load(&self) -> u16 {
        u16::try_from(self.granted.len() + self.queue.len()).unwrap_or(u16::MAX)
    }

    /// Whether nobody reads.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.granted.is_empty()
    }

    /// Somebody wants one of `candidates`; what is here is `held`.
    pub fn ask(&mut self, now: Time, ask: Ask, candidates: Vec<u32>, held: &ChunkSet) -> Verdict {
        let is_known =
            self.granted.contains_key(&ask) || self.queue.iter().any(|queued| queued.ask == ask);
        let has_any = candidates.iter().any(|&chunk| held.contains(chunk));
        if self.is_closed || is_known || !has_any {
            return Verdict::Busy;
        }
        if self.of(ask.peer) >= UPLOADS_PER_PEER_MAX {
            return Verdict::Busy;
        }
        if self.granted.len() < self.granted_max {
            let chunk = self.least_served(&candidates, |chunk| held.contains(chunk));
            let chunk = chunk.expect("there is one");
            self.grant(now, ask, chunk);
            return Verdict::Granted(chunk);
        }
        if self.queue.len() >= self.queued_max {
            return Verdict::Busy;
        }
        self.queue.push_back(Queued { ask, candidates });
        Verdict::Queued
    }

    /// How many one neighbour waits for or has under way.
    pub(super) fn of(&self, peer: PeerId) -> usize {
        let queued = self.queue.iter().filter(|queued| queued.ask.peer == peer);
        let granted = self.granted.keys().filter(|ask| ask.peer == peer);
        queued.count() + granted.count()
    }

    /// The candidate that was granted least often, the first of equals: what nobody has got from here spreads
    /// before what somebody has.
    fn least_served(&self, candidates: &[u32], may: impl Fn(u32) -> bool) -> Option<u32> {
        let known = candidates.iter().copied().filter(|&chunk| may(chunk));
        known.min_by_key(|&chunk| self.served[chunk as usize])
    }

    fn grant(&mut self, now: Time, ask: Ask, chunk: u32) {
        let served = &mut self.served[chunk as usize];
        *served = served.saturating_add(1);
        let until = now + self.pace.patience(GRANT_CHUNKS, self.patience);
        let granted = Granted {
            chunk,
            since: now,
            until,
        };
        self.granted.insert(ask, granted);
        assert!(self.granted.len() <= self.granted_max, "places are bounded");
    }

    /// The next that waits, if there is a place: `wants` says whether an asker still lacks a chunk. A want for which
    /// nothing is left to grant comes with `None`.
    pub fn next(
        &mut self,
        now: Time,
        held: &ChunkSet,
        lacks: impl Fn(PeerId, u32) -> bool,
    ) -> Option<(Ask, Option<u32>)> {
        if self.granted.len() >= self.granted_max {
            return None;
        }
        let Queued { ask, candidates } = self.queue.pop_front()?;
        let may = |chunk| held.contains(chunk) && lacks(ask.peer, chunk);
        let chunk = self.least_served(&candidates, may);
        if let Some(chunk) = chunk {
            self.grant(now, ask, chunk);
        }
        Some((ask, chunk))
    }

    /// An asker is through with a want, or does not want it any more; `is_held` if it has the chunk now. The chunk,
    /// if it was granted one.
    pub fn done(&mut self, now: Time, ask: Ask, is_held: bool) -> Option<u32> {
        self.queue.retain(|queued| queued.ask != ask);
        let granted = self.granted.remove(&ask)?;
        if is_held {
            self.pace.note(now.since(granted.since));
        }
        Some(granted.chunk)
    }

    /// A neighbour is none any more.
    pub fn forget(&mut self, peer: PeerId) {
        self.queue.retain(|queued| queued.ask.peer != peer);
        self.granted.retain(|ask, _| ask.peer != peer);
    }

    /// Gives back the places of those who have not said a word for too long.
    pub fn expire(&mut self, now: Time) {
        self.granted.retain(|_, granted| granted.until > now);
    }

    /// When a place is given back at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.granted.values().map(|granted| granted.until).min()
    }

    /// Grants nothing any more.
    pub fn close(&mut self) {
        self.is_closed = true;
        self.queue.clear();
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const ASK: Ask = Ask {
        peer: PeerId(1),
        want: 7,
    };

    fn at(ms: u64) -> Time {
        Time::from_ns(ms * 1_000_000)
    }

    fn uploads(granted_max: usize, queued_max: usize) -> Uploads {
        Uploads::new(8, granted_max, queued_max, Patience::default())
    }

    fn other(peer: u64, want: u32) -> Ask {
        let peer = PeerId(peer);
        Ask { peer, want }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum State {
        Absent,
        Queued,
        Granted,
    }

    fn state(uploads: &Uploads) -> State {
        let queued = uploads.queue.iter().any(|queued| queued.ask == ASK);
        match (queued, uploads.granted.contains_key(&ASK)) {
            (false, false) => State::Absent,
            (true, false) => State::Queued,
            (false, true) => State::Granted,
            (true, true) => unreachable!("it is in one state"),
        }
    }

    /// One place, taken by somebody else where the want is to wait.
    fn in_state(wanted: State) -> Uploads {
        let mut uploads = uploads(1, 1);
        let held = ChunkSet::full(8);
        if wanted == State::Queued {
            let first = uploads.ask(at(0), other(9, 1), vec![3], &held);
            assert_eq!(first, Verdict::Granted(3));
        }
        if wanted != State::Absent {
            uploads.ask(at(0), ASK, vec![2], &held);
        }
        assert_eq!(state(&uploads), wanted);
        uploads
    }

    #[test]
    fn the_table_of_states() {
        use State::{Absent, Granted, Queued};
        type Event = fn(&mut Uploads);
        let ask: Event = |uploads| {
            uploads.ask(at(1), ASK, vec![2], &ChunkSet::full(8));
        };
        let next: Event = |uploads| {
            uploads.next(at(1), &ChunkSet::full(8), |_, _| true);
        };
        let sated: Event = |uploads| {
            uploads.next(at(1), &ChunkSet::full(8), |_, _| false);
        };
        let freed: Event = |uploads| {
            uploads.done(at(1), other(9, 1), true);
            uploads.next(at(1), &ChunkSet::full(8), |_, _| true);
        };
        let done: Event = |uploads| {
            uploads.done(at(1), ASK, true);
        };
        let forget: Event = |uploads| uploads.forget(ASK.peer);
        let expire: Event = |uploads| uploads.expire(at(60_000));
        let early: Event = |uploads| uploads.expire(at(1));
        let close: Event = Uploads::close;
        let table: [(&str, Event, [State; 3]); 9] = [
            ("ask", ask, [Granted, Queued, Granted]),
            ("next", next, [Absent, Queued, Granted]),
            ("next, who lacks nothing", sated, [Absent, Queued, Granted]),
            ("a place is free", freed, [Absent, Granted, Granted]),
            ("done", done, [Absent, Absent, Absent]),
            ("forget", forget, [Absent, Absent, Absent]),
            ("expire", expire, [Absent, Queued, Absent]),
            ("expire, early", early, [Absent, Queued, Granted]),
            ("close", close, [Absent, Absent, Granted]),
        ];
        for (name, event, expected) in table {
            for (before, after) in [Absent, Queued, Granted].into_iter().zip(expected) {
                let mut uploads = in_state(before);
                event(&mut uploads);
                assert_eq!(state(&uploads), after, "{name} in {before:?}");
            }
        }
    }

    #[test]
    fn places_and_the_queue_are_bounded() {
        let mut uploads = uploads(2, 3);
        let held = ChunkSet::full(8);
        for peer in 0..5 {
            let verdict = uploads.ask(at(0), other(peer, 1), vec![0, 1], &held);
            assert_eq!(verdict == Verdict::Queued, peer >= 2);
        }
        let beyond = uploads.ask(at(0), other(5, 1), vec![0], &held);
        assert_eq!((beyond, uploads.load()), (Verdict::Busy, 5));
        assert_eq!(uploads.next(at(0), &held, |_, _| true), None);
        assert_eq!(uploads.done(at(1), other(0, 1), true), Some(0));
        let next = uploads.next(at(1), &held, |_, chunk| chunk == 1);
        assert_eq!(next, Some((other(2, 1), Some(1))));
        assert_eq!(uploads.done(at(1), other(1, 1), true), Some(1));
        let sated = uploads.next(at(1), &held, |_, _| false);
        assert_eq!(sated, Some((other(3, 1), None)), "it has all of them");
    }

    #[test]
    fn one_neighbour_takes_a_few_places_only() {
        let mut uploads = uploads(8, 8);
        let held = ChunkSet::full(8);
        for want in 0..4 {
            let verdict = uploads.ask(at(0), other(1, want), vec![want], &held);
            assert_eq!(verdict, Verdict::Granted(want));
        }
        let fifth = uploads.ask(at(0), other(1, 4), vec![4], &held);
        assert_eq!(fifth, Verdict::Busy);
        let other = uploads.ask(at(0), other(2, 4), vec![4], &held);
        assert_eq!(other, Verdict::Granted(4));
    }

    #[test]
    fn what_was_served_least_goes_first() {
        let mut uploads = uploads(8, 8);
        let mut held = ChunkSet::full(8);
        held.remove(5);
        let mut granted = Vec::new();
        for peer in 0..4 {
            let candidates = vec![5, 2, 3, 9, 2];
            let verdict = uploads.ask(at(0), other(peer, 1), candidates, &held);
            granted.push(verdict);
        }
        assert_eq!(granted, [2, 3, 2, 3].map(Verdict::Granted));
        let none = uploads.ask(at(0), other(9, 1), vec![5, 8], &held);
        assert_eq!(none, Verdict::Busy, "it has neither");
    }

    #[test]
    fn grants_last_as_long_as_chunks_take() {
        let mut uploads = uploads(1, 0);
        let held = ChunkSet::full(8);
        uploads.ask(at(0), ASK, vec![1], &held);
        let first = uploads.deadline();
        assert_eq!(first, Some(at(0) + Patience::default().max));
        uploads.done(at(10), ASK, true);
        assert_eq!(uploads.deadline(), None);
        uploads.ask(at(10), ASK, vec![1], &held);
        let second = at(10) + Duration::from_millis(10) * GRANT_CHUNKS;
        assert_eq!(uploads.deadline(), Some(second));
        uploads.expire(second);
        assert!(uploads.is_idle());
    }
}
