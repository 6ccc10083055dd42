//! Reads taken back from a rail that keeps everybody waiting.
//!
//! Slices are given out so that all rails finish together, by rates that were true when they were given
//! out. When nothing is left to give out, a rail that has slowed down since, or on which nothing comes any
//! more, holds up the end. What it still owes is then taken from it and asked for elsewhere. Reads only:
//! nothing of them can land once they have been stopped here, while a write that was sent is sent.

use lunette_runtime_core::time::Time;

use super::{Action, Scheduler, SliceId, SliceState, UnderWay};
use crate::engine::segment::Way;

/// It must be sooner elsewhere by this factor.
const SOONER_TIMES: u32 = 2;

/// A read that could go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Theft {
    /// From when on.
    at: Time,
    slice: SliceId,
    from: usize,
}

impl Scheduler {
    /// Takes back what is overdue, one slice.
    pub(super) fn steal(&mut self, now: Time) {
        let Some(theft) = self.next_theft(now).filter(|theft| theft.at <= now) else {
            return;
        };
        let Theft { slice, from, .. } = theft;
        self.rails[from].on_overtaken(now);
        self.slices.at(slice.index).state = SliceState::Stolen;
        self.actions.push_back(Action::Stop { slice });
    }

    /// When something is to be taken back.
    pub(super) fn steal_at(&self, now: Time) -> Option<Time> {
        self.next_theft(now).map(|theft| theft.at.max(now))
    }

    fn next_theft(&self, now: Time) -> Option<Theft> {
        if self.rails.len() < 2 || !self.ready.is_empty() {
            return None;
        }
        let thefts = self
            .slices
            .iter()
            .filter(|(.., under_way)| is_stealable(under_way))
            .filter_map(|(index, generation, under_way)| {
                let at = self.theft_at(under_way, now)?;
                let slice = SliceId { index, generation };
                let from = under_way.rail;
                Some(Theft { at, slice, from })
            });
        thefts.min()
    }

    /// From when on a slice is to be taken: at once if by what is known of its rail it takes far longer
    /// there than elsewhere, else when nothing has come through there for so long.
    fn theft_at(&self, under_way: &UnderWay, now: Time) -> Option<Time> {
        let rail = &self.rails[under_way.rail];
        let since = rail.waits_since()?;
        let len_bytes = under_way.slice.len_bytes();
        let others = (0..).zip(&self.rails);
        let better = others.filter(|&(index, other)| {
            index != under_way.rail && other.has_room() && other.is_prompt(now)
        });
        let elsewhere = better.map(|(_, other)| other.finish(len_bytes) + other.patience());
        let patience = elsewhere.min()? * SOONER_TIMES;
        Some(if rail.finish(0) > patience {
            now
        } else {
            since + rail.patience() + patience
        })
    }
}

fn is_stealable(under_way: &UnderWay) -> bool {
    under_way.slice.way == Way::Read
        && under_way.state == SliceState::Sent
        && under_way.transfer.is_some()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, connected, drain, finished, options, read, sent, write};
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Two rails, each with a slice under way that was asked for at 1 ms, of which the first is answered
    /// at 2 ms.
    fn one_is_late(requests: [crate::engine::slices::Request; 2]) -> (Scheduler, SliceId, usize) {
        let mut scheduler = connected(2);
        let submitted = scheduler.submit(requests, options(at(5_000)), at(1));
        submitted.expect("room");
        let under_way = sent(&drain(&mut scheduler, at(1)));
        let rails: Vec<usize> = under_way.iter().map(|sent| sent.1).collect();
        assert_eq!(rails, [0, 1], "a slice on each");
        scheduler.on_answered(under_way[0].0, at(2));
        (scheduler, under_way[1].0, under_way[1].1)
    }

    #[test]
    fn a_read_that_is_overdue_goes_another_way_when_it_has_been_stopped() {
        let (mut scheduler, late, from) = one_is_late([read(64 * 1024), read(64 * 1024)]);
        assert_eq!(drain(&mut scheduler, at(2)), [], "it is given time");
        let due = scheduler
            .poll_timeout(at(2))
            .expect("it is looked at again");
        assert!(at(2) < due && due < at(500), "{due:?}");
        let rate_before = scheduler.rails()[from].bytes_per_second();
        let actions = drain(&mut scheduler, due);
        assert_eq!(actions, [Action::Stop { slice: late }]);
        assert!(scheduler.rails()[from].bytes_per_second() < rate_before);
        assert_eq!(drain(&mut scheduler, due), [], "not before it has stopped");
        scheduler.on_stopped(late);
        let again = sent(&drain(&mut scheduler, due));
        let rails: Vec<usize> = again.iter().map(|sent| sent.1).collect();
        assert_eq!(rails, [1 - from]);
        scheduler.on_answered(again[0].0, at(600));
        let ended = drain(&mut scheduler, at(600));
        let [Action::Finished { outcome, .. }] = &ended[..] else {
            panic!("{ended:?}");
        };
        assert_eq!((outcome.stolen, outcome.resent), (1, 0));
        assert!(outcome.failures.is_empty());
    }

    #[test]
    fn one_that_is_answered_before_it_is_stopped_is_done() {
        let (mut scheduler, late, _) = one_is_late([read(64 * 1024), read(64 * 1024)]);
        let due = scheduler
            .poll_timeout(at(2))
            .expect("it is looked at again");
        assert_eq!(drain(&mut scheduler, due).len(), 1);
        scheduler.on_answered(late, at(600));
        let ended = finished(&drain(&mut scheduler, at(600)));
        assert_eq!(ended.len(), 1);
        assert!(ended[0].1.is_empty());
    }

    #[test]
    fn a_write_is_left_where_it_is() {
        let (mut scheduler, ..) = one_is_late([write(64 * 1024), write(64 * 1024)]);
        let stall = scheduler.options.stall;
        assert_eq!(scheduler.poll_timeout(at(2)), Some(at(1) + stall));
        assert_eq!(drain(&mut scheduler, at(900)), []);
    }

    #[test]
    fn nothing_is_taken_while_there_is_something_to_give_out() {
        let mut scheduler = connected(2);
        let submitted = scheduler.submit([read(64 * MIB)], options(at(5_000)), at(1));
        submitted.expect("room");
        let under_way = sent(&drain(&mut scheduler, at(1)));
        // One rail goes on and on, nothing comes over the other.
        let mut on_first: Vec<SliceId> = under_way
            .iter()
            .filter_map(|&(slice, rail)| (rail == 0).then_some(slice))
            .collect();
        for ms in 2..100 {
            let answered = on_first.remove(0);
            scheduler.on_answered(answered, at(ms));
            let actions = drain(&mut scheduler, at(ms));
            let stops = actions.iter().any(|a| matches!(a, Action::Stop { .. }));
            assert!(!stops, "{ms}: {actions:?}");
            on_first.extend(sent(&actions).iter().map(|sent| sent.0));
        }
    }
}
