//! How requests ended, for askers that ask again.
//!
//! An asker says with its requests below which id all of its are over, whatever it was told; nobody waits
//! for those any more. Their outcomes are forgotten, and one of them that comes all the same, late or
//! twice, is not done: it is over. So what is remembered is what askers have under way, however many
//! requests they make. An asker that has not been heard of for a while is forgotten with its outcomes.

use core::time::Duration;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;

use crate::message::directory::AskerId;

/// How often it is looked for askers that have not been heard of.
const SWEEP: Duration = Duration::from_secs(1);

/// What is known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known<A> {
    /// It ended so.
    Ended(A),
    /// Its asker waits for it no more.
    Over,
}

#[derive(Debug)]
struct Asker<A> {
    below: RequestId,
    answers: BTreeMap<RequestId, A>,
    heard: Time,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Answered<A> {
    askers: BTreeMap<AskerId, Asker<A>>,
    answers: usize,
    keep: Duration,
    swept: Time,
}

impl<A: Clone> Answered<A> {
    /// Nothing yet. Askers are kept for so long after they have been heard of.
    pub(crate) const fn new(keep: Duration) -> Self {
        Self {
            askers: BTreeMap::new(),
            answers: 0,
            keep,
            swept: Time::ZERO,
        }
    }

    /// Outcomes and askers that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.answers + self.askers.len()
    }

    pub(crate) fn get(&self, asker: AskerId, request: RequestId) -> Option<Known<A>> {
        let asker = self.askers.get(&asker)?;
        if request < asker.below {
            return Some(Known::Over);
        }
        asker.answers.get(&request).cloned().map(Known::Ended)
    }

    /// All requests of the asker below this one are over. Where there is no room for another asker, it is
    /// as if it had said nothing.
    pub(crate) fn over(&mut self, now: Time, id: AskerId, below: RequestId, len_max: usize) {
        if !self.askers.contains_key(&id) && self.len() >= len_max {
            return;
        }
        let asker = self.asker(now, id);
        if below <= asker.below {
            return;
        }
        asker.below = below;
        let left = asker.answers.split_off(&below);
        let over = core::mem::replace(&mut asker.answers, left);
        self.answers -= over.len();
    }

    /// A request has ended. Who gives one number to several requests, of several keys, is told of one of them
    /// from here on: the first that ended.
    pub(crate) fn remember(&mut self, now: Time, id: AskerId, request: RequestId, answer: A) {
        let asker = self.asker(now, id);
        if request < asker.below {
            return;
        }
        if let Entry::Vacant(vacant) = asker.answers.entry(request) {
            vacant.insert(answer);
            self.answers += 1;
        }
    }

    fn asker(&mut self, now: Time, id: AskerId) -> &mut Asker<A> {
        let asker = self.askers.entry(id).or_insert(Asker {
            below: RequestId(0),
            answers: BTreeMap::new(),
            heard: now,
        });
        asker.heard = now;
        asker
    }

    /// Forgets whom it has not heard of for long.
    pub(crate) fn forget_old(&mut self, now: Time) {
        if now < self.swept + SWEEP {
            return;
        }
        self.swept = now;
        let keep = self.keep;
        self.askers.retain(|_, asker| now < asker.heard + keep);
        let answers = self.askers.values().map(|asker| asker.answers.len());
        self.answers = answers.sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(20);
    const ASKER: AskerId = AskerId(1);

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_over_is_forgotten_and_not_begun_again() {
        let mut answered = Answered::new(KEEP);
        for request in 1..=5 {
            answered.remember(at(1), ASKER, RequestId(request), request);
        }
        answered.over(at(1), ASKER, RequestId(4), 100);
        assert_eq!(answered.len(), 3, "two outcomes, of one asker");
        let known = |request| answered.get(ASKER, RequestId(request));
        assert_eq!([known(1), known(3)], [Some(Known::Over); 2]);
        assert_eq!([known(4), known(5)].map(|known| known.is_some()), [true; 2]);
        assert_eq!(known(6), None, "it may begin");
        assert_eq!(answered.get(AskerId(2), RequestId(1)), None);
        answered.over(at(1), ASKER, RequestId(2), 100);
        assert_eq!(
            answered.get(ASKER, RequestId(3)),
            Some(Known::Over),
            "for good"
        );
        answered.remember(at(1), ASKER, RequestId(2), 2);
        assert_eq!(answered.len(), 3, "nobody will ask for it");
    }

    #[test]
    fn one_number_for_two_requests_has_one_outcome() {
        let mut answered = Answered::new(KEEP);
        answered.remember(at(1), ASKER, RequestId(7), "first");
        answered.remember(at(1), ASKER, RequestId(7), "second");
        let known = answered.get(ASKER, RequestId(7));
        assert_eq!(known, Some(Known::Ended("first")));
        assert_eq!(answered.len(), 2, "one outcome, of one asker");
    }

    #[test]
    fn who_is_silent_is_forgotten() {
        let mut answered = Answered::new(KEEP);
        answered.remember(at(1), ASKER, RequestId(1), ());
        answered.over(at(15), AskerId(2), RequestId(1), 100);
        answered.forget_old(at(20));
        assert_eq!(answered.len(), 3);
        answered.forget_old(at(21));
        assert_eq!(answered.len(), 1);
        answered.forget_old(at(35));
        assert_eq!(answered.len(), 0);
    }

    #[test]
    fn askers_that_say_nothing_but_what_is_over_are_bounded() {
        let mut answered = Answered::<()>::new(KEEP);
        for asker in 0..10 {
            answered.over(at(1), AskerId(asker), RequestId(1), 4);
        }
        assert_eq!(answered.len(), 4);
        answered.over(at(1), AskerId(3), RequestId(9), 4);
        assert_eq!(answered.get(AskerId(3), RequestId(8)), Some(Known::Over));
    }
}
