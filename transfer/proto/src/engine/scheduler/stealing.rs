//! What is taken back from a rail that keeps everybody waiting.
//!
//! Slices are given out so that all rails finish together, by rates that were true when they were given
//! out. When nothing is left to give out, a rail that has slowed down since, or on which nothing comes any
//! more, holds up the end. What it still owes is then taken from it and asked for elsewhere.
//!
//! Nothing of a read can land once it has been stopped here. A write that was sent is sent: it may be on its
//! way in any buffer of either system. So its connection is given up, the peer is asked to end it, as one that
//! was lost, and when nothing of it can land any more all that was on it goes another way. That costs a fence
//! and a new connection, so a write is given more time than a read, and a transfer takes back so often only.

use std::time::Duration;

use lunette_runtime_core::time::Time;

use super::{Action, CloseCause, Scheduler, SliceId, SliceState, UnderWay, is_one_sided};
use crate::engine::rail::{Carrier, OVERDUE_MIN, Rail};
use crate::engine::segment::Way;

/// A read must be sooner elsewhere by this factor.
const READ_SOONER_TIMES: u32 = 2;
/// A write.
const WRITE_SOONER_TIMES: u32 = 4;
/// A write is given so much time on top at least: a peer that pauses for a moment is not to lose connections.
const WRITE_PATIENCE_MIN: Duration = Duration::from_millis(50);
/// Connections that are given up for the writes of one transfer.
const GIVEN_UP_MAX: u32 = 4;

/// A slice that could go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Theft {
    /// From when on.
    at: Time,
    slice: SliceId,
    from: usize,
}

impl Scheduler {
    /// Takes back what is overdue: one read, or all that is on the connection of a write.
    pub(super) fn steal(&mut self, now: Time) {
        if !self.rails.iter().any(|rail| may_hold_up(rail, now)) {
            return;
        }
        let Some(theft) = self.next_theft(now).filter(|theft| theft.at <= now) else {
            return;
        };
        let Theft { slice, from, .. } = theft;
        self.rails[from].on_overtaken(now);
        let way = self.slices.at(slice.index).slice.way;
        if way == Way::Read && !is_one_sided(&self.rails[from]) {
            self.slices.at(slice.index).state = SliceState::Stolen;
            self.actions.push_back(Action::Stop { slice });
        } else {
            let owner = self.slices.at(slice.index).transfer;
            let owner = owner.expect("it is stealable");
            self.transfers.at(owner).given_up += 1;
            self.give_up(from, now);
        }
    }

    /// Whether a slice can be stopped by itself: reads from the peer's engine, and nothing that adapters do.
    fn can_be_stopped(&self, under_way: &UnderWay) -> bool {
        under_way.slice.way == Way::Read && !is_one_sided(&self.rails[under_way.rail])
    }

    /// Gives up a rail's connection, so that what is on it goes another way once the peer has ended it.
    fn give_up(&mut self, rail: usize, now: Time) {
        let connection = self.rails[rail].connection();
        for (.., under_way) in self.slices.iter_mut() {
            if (under_way.rail, under_way.connection) == (rail, connection) {
                under_way.is_taken_back = true;
            }
        }
        self.on_rail_failed(rail, connection, now);
        self.actions.push_back(Action::Close {
            rail,
            connection,
            cause: CloseCause::Overtaken,
        });
    }

    /// When something is to be taken back, or at which it is looked at again whether it is.
    pub(super) fn steal_at(&self, now: Time) -> Option<Time> {
        if self.is_nothing_to_steal() {
            return None;
        }
        if self.rails.iter().any(|rail| may_hold_up(rail, now)) {
            return self.next_theft(now).map(|theft| theft.at.max(now));
        }
        let waiting = self.rails.iter();
        let waiting = waiting.filter_map(|rail| Some(rail.waits_since()? + patience_least(rail)));
        waiting.min()
    }

    /// There is no other way, or something to give out.
    fn is_nothing_to_steal(&self) -> bool {
        self.rails.len() < 2 || !self.ready.is_empty()
    }

    fn next_theft(&self, now: Time) -> Option<Theft> {
        if self.is_nothing_to_steal() {
            return None;
        }
        let thefts = self
            .slices
            .iter()
            .filter(|(.., under_way)| self.is_stealable(under_way))
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
        let carrier = self.carrier_elsewhere(under_way);
        let better = others.filter(|&(index, other)| {
            index != under_way.rail
                && other.carrier() == carrier
                && other.has_room()
                && other.is_prompt(now)
        });
        let elsewhere = better.map(|(_, other)| other.finish(len_bytes) + other.patience());
        let elsewhere = elsewhere.min()?;
        let patience = if self.can_be_stopped(under_way) {
            elsewhere * READ_SOONER_TIMES
        } else {
            (elsewhere * WRITE_SOONER_TIMES).max(WRITE_PATIENCE_MIN)
        };
        Some(if rail.finish(0) > patience {
            now
        } else {
            since + rail.patience() + patience
        })
    }

    /// Over which kind of rail a slice would go, were it not for the one that it is on.
    fn carrier_elsewhere(&self, under_way: &UnderWay) -> Carrier {
        let mut others = (0..).zip(&self.rails);
        let has_one_sided = others
            .any(|(index, other)| index != under_way.rail && other.is_up() && is_one_sided(other));
        if has_one_sided && !under_way.slice.is_barred {
            Carrier::OneSided
        } else {
            Carrier::Stream
        }
    }

    fn is_stealable(&self, under_way: &UnderWay) -> bool {
        let Some(owner) = under_way.transfer else {
            return false;
        };
        let may_go = self.can_be_stopped(under_way) || {
            let generation = self.transfers.generation(owner);
            let owner = self.transfers.get(owner, generation);
            let owner = owner.expect("what is under way has its transfer");
            // Of one that is over nothing goes again; a notification by itself is short.
            owner.settle_until.is_none()
                && owner.given_up < GIVEN_UP_MAX
                && !under_way.slice.parts.is_empty()
        };
        may_go && under_way.state == SliceState::Sent
    }
}

/// However soon a slice would be through elsewhere, it is given as much time on its rail.
fn patience_least(rail: &Rail) -> Duration {
    match rail.carrier() {
        Carrier::Stream => OVERDUE_MIN * READ_SOONER_TIMES,
        // Nothing that adapters do is stopped by itself.
        Carrier::OneSided => WRITE_PATIENCE_MIN,
    }
}

/// Whether anything could be due that is on a rail. Mostly that is all that has to be looked at.
fn may_hold_up(rail: &Rail, now: Time) -> bool {
    rail.waits_since().is_some_and(|since| {
        let least = patience_least(rail);
        since + least <= now || rail.finish(0) > least
    })
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

    /// What is to be done next, when nothing else happens, and when.
    fn next_due(scheduler: &mut Scheduler, from: Time) -> (Time, Vec<Action>) {
        let mut now = from;
        loop {
            let next = scheduler.poll_timeout(now);
            let next = next.expect("it is looked at again");
            assert!(now < next, "later each time");
            now = next;
            let actions = drain(scheduler, now);
            if !actions.is_empty() {
                return (now, actions);
            }
        }
    }

    #[test]
    fn a_read_that_is_overdue_goes_another_way_when_it_has_been_stopped() {
        let (mut scheduler, late, from) = one_is_late([read(64 * 1024), read(64 * 1024)]);
        assert_eq!(drain(&mut scheduler, at(2)), [], "it is given time");
        let rate_before = scheduler.rails()[from].bytes_per_second();
        let (due, actions) = next_due(&mut scheduler, at(2));
        assert!(at(2) < due && due < at(500), "{due:?}");
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
        assert_eq!(next_due(&mut scheduler, at(2)).1.len(), 1);
        scheduler.on_answered(late, at(600));
        let ended = finished(&drain(&mut scheduler, at(600)));
        assert_eq!(ended.len(), 1);
        assert!(ended[0].1.is_empty());
    }

    #[test]
    fn a_write_goes_another_way_when_the_peer_has_ended_its_connection_and_not_before() {
        let (mut scheduler, late, from) = one_is_late([write(64 * 1024), write(64 * 1024)]);
        assert_eq!(drain(&mut scheduler, at(2)), [], "it is given time");
        let connection = scheduler.rails()[from].connection();
        let (due, actions) = next_due(&mut scheduler, at(2));
        let stall = scheduler.options.stall;
        assert!(at(2) < due && due < at(1) + stall, "{due:?}");
        let close = Action::Close {
            rail: from,
            connection,
            cause: CloseCause::Overtaken,
        };
        assert_eq!(actions, [close], "its rail is left alone for a while");
        assert_eq!(drain(&mut scheduler, due), [], "it has not ended here");
        scheduler.on_lost(late, due);
        let fence = Action::Fence {
            rail: from,
            connection,
            via: 1 - from,
        };
        assert_eq!(drain(&mut scheduler, due), [fence]);
        assert_eq!(drain(&mut scheduler, due), [], "it may still land");
        scheduler.on_fenced(from, connection, true, due);
        let again = sent(&drain(&mut scheduler, due));
        let rails: Vec<usize> = again.iter().map(|sent| sent.1).collect();
        assert_eq!(rails, [1 - from]);
        scheduler.on_answered(again[0].0, at(600));
        let ended = drain(&mut scheduler, at(600));
        let outcome = ended.iter().find_map(|action| match action {
            Action::Finished { outcome, .. } => Some(outcome),
            _ => None,
        });
        let outcome = outcome.expect("it has finished");
        assert_eq!((outcome.stolen, outcome.resent), (1, 0));
        assert!(outcome.failures.is_empty());
    }

    #[test]
    fn a_write_that_is_slow_everywhere_is_not_taken_back_for_ever() {
        let mut scheduler = connected(2);
        let requests = [write(64 * 1024), write(64 * 1024)];
        let submitted = scheduler.submit(requests, options(at(3_600_000)), at(1));
        submitted.expect("room");
        let mut given_up = 0;
        let mut under_way = sent(&drain(&mut scheduler, at(1)));
        let first = under_way.remove(0);
        scheduler.on_answered(first.0, at(2));
        let mut now = at(2);
        for _ in 0..200 {
            // Nothing is ever answered again; everything else works.
            let Some(next) = scheduler.poll_timeout(now) else {
                break;
            };
            now = next.max(now);
            scheduler.on_timeout(now);
            for action in drain(&mut scheduler, now) {
                match action {
                    Action::Connect { rail, connection } => {
                        scheduler.on_connected(rail, connection, now);
                    }
                    Action::Close { rail, cause, .. } => {
                        given_up += u32::from(cause == CloseCause::Overtaken);
                        let lost = |&(slice, on): &(SliceId, usize)| (on == rail).then_some(slice);
                        let lost: Vec<_> = under_way.iter().filter_map(lost).collect();
                        under_way.retain(|&(_, on)| on != rail);
                        for slice in lost {
                            scheduler.on_lost(slice, now);
                        }
                    }
                    Action::Fence {
                        rail, connection, ..
                    } => scheduler.on_fenced(rail, connection, true, now),
                    Action::Send { slice, rail, .. } => under_way.push((slice, rail)),
                    _ => {}
                }
            }
        }
        assert_eq!(given_up, GIVEN_UP_MAX);
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
