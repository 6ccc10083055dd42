//! Notifications over rails from memory to memory.
//!
//! What goes over one connection arrives in its order, so a notification need not wait until the writes before it are
//! answered: it is sent behind them, and saves the time that their answers take. Its own answer says that they have
//! arrived, too.

use lunette_runtime_core::time::Time;

use super::assigning::Pick;
use super::transfer::NoteState;
use super::{Scheduler, SliceId};
use crate::engine::rail::{Carrier, Rail};
use crate::engine::segment::Way;
use crate::engine::slices::Work;

impl Scheduler {
    /// The connection of a rail from memory to memory that has just come up carries notifications, too.
    pub fn on_tells(&mut self, rail: usize) {
        self.rails[rail].on_tells();
    }

    /// The notification cannot go over its rail: it is too long, or there are as many under way as may be. It goes over a
    /// stream, when all bytes are where they belong.
    ///
    /// # Panics
    /// As [`on_answered`](Self::on_answered).
    pub fn on_note_barred(&mut self, id: SliceId) {
        let (_, index) = self.take_unsent(id);
        if let Some(index) = index {
            let transfer = self.transfers.at(index);
            transfer.is_note_barred = true;
            if transfer.note == NoteState::UnderWay {
                transfer.note = NoteState::Waiting;
            }
            self.refresh(index);
        }
    }

    /// The rail of a transfer's notification, of which nothing else is to be sent.
    pub(super) fn pick_for_note(&mut self, index: u32, now: Time) -> Option<Pick> {
        let transfer = self.transfers.at(index);
        let (follows, is_barred) = (transfer.note_follows(), transfer.is_note_barred);
        if let Some((rail, connection)) = follows {
            let found = &self.rails[rail];
            let is_it = found.connection() == connection && found.takes_notes();
            return is_it.then(|| Pick::of_note(rail));
        }
        let tells = |rail: &&(usize, &Rail)| rail.1.takes_notes() && rail.1.is_prompt(now);
        let telling = self.rails.iter().enumerate();
        let telling = telling.filter(|rail| !is_barred && tells(&rail));
        let soonest = telling.min_by_key(|(_, rail)| rail.patience());
        match soonest {
            Some((rail, _)) => Some(Pick::of_note(rail)),
            None => self.pick_of(index, Carrier::Stream, Work::Any, now),
        }
    }

    /// Whether the bytes of a slice are known to have arrived, although nobody has said so of the slice.
    pub(super) fn has_arrived(&mut self, id: SliceId) -> bool {
        let under_way = self.slices.at(id.index);
        let (transfer, way) = (under_way.transfer, under_way.slice.way);
        way == Way::Write && transfer.is_some_and(|index| self.transfers.at(index).is_told)
    }

    /// A slice was lost: no notification follows it.
    pub(super) fn does_not_follow(&mut self, id: SliceId) {
        if let Some(index) = self.slices.at(id.index).transfer {
            self.transfers.at(index).on_lost();
            self.refresh(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, drain, finished, options, read, sent, write};
    use super::super::{Action, SchedulerOptions, TransferId, TransferOptions};
    use super::*;
    use crate::engine::message::Refusal;
    use crate::engine::slices::Request;

    const KIB: u64 = 1 << 10;

    /// A stream and so many rails from memory to memory that tell, all of them up; these are 1.. in its count.
    fn connected(telling: usize) -> Scheduler {
        let mut scheduler = Scheduler::with_one_sided(SchedulerOptions::default(), 1, telling);
        scheduler.adopt(0, at(0));
        scheduler.expect().expect("room");
        assert_eq!(drain(&mut scheduler, at(0)).len(), telling);
        for rail in 1..=telling {
            assert!(scheduler.on_connected(rail, 1, at(0)));
            scheduler.on_tells(rail);
        }
        scheduler.expect_no_more();
        scheduler
    }

    fn submit(scheduler: &mut Scheduler, requests: Vec<Request>) -> TransferId {
        let asked = TransferOptions {
            has_note: true,
            ..options(at(60_000))
        };
        scheduler.submit(requests, asked, at(1)).expect("room")
    }

    /// What is sent: over which rail, and whether it is the notification.
    fn told(scheduler: &mut Scheduler, ms: u32) -> Vec<(SliceId, usize, bool)> {
        let sent = sent(&drain(scheduler, at(ms)));
        let told = sent.into_iter().map(|(slice, rail)| {
            let (_, carries_note) = scheduler.slice(slice).expect("under way");
            (slice, rail, carries_note)
        });
        told.collect()
    }

    fn ways(told: &[(SliceId, usize, bool)]) -> Vec<(usize, bool)> {
        told.iter().map(|&(_, rail, note)| (rail, note)).collect()
    }

    #[test]
    fn a_notification_follows_writes_of_one_rail_at_once_and_its_answer_is_theirs() {
        let mut scheduler = connected(1);
        let id = submit(&mut scheduler, vec![write(100), write(KIB)]);
        let under_way = told(&mut scheduler, 1);
        assert_eq!(ways(&under_way), [(1, false), (1, true)]);
        let rate = scheduler.rails()[1].bytes_per_second();
        scheduler.on_answered(under_way[1].0, at(500));
        assert_eq!(scheduler.rails()[1].bytes_per_second(), rate, "no byte");
        assert_eq!(finished(&drain(&mut scheduler, at(500))), []);
        // Nobody fences what has arrived, or sends it again.
        scheduler.on_lost(under_way[0].0, at(501));
        let after = drain(&mut scheduler, at(501));
        assert_eq!(finished(&after), [(id, vec![])]);
        assert_eq!(after.len(), 1, "{after:?}");
    }

    #[test]
    fn a_notification_has_no_bytes_and_follows_them_although_no_more_may_be_under_way() {
        let mut scheduler = connected(1);
        submit(&mut scheduler, vec![write(128 * KIB)]);
        let under_way = told(&mut scheduler, 1);
        assert_eq!(ways(&under_way), [(1, false), (1, false), (1, true)]);
        assert!(!scheduler.rails()[1].has_room());
    }

    #[test]
    fn a_notification_waits_for_reads_and_for_what_goes_over_several_rails() {
        for (rails, requests) in [(1, vec![read(100)]), (2, vec![write(256 * KIB)])] {
            let mut scheduler = connected(rails);
            let id = submit(&mut scheduler, requests);
            let under_way = told(&mut scheduler, 1);
            assert!(under_way.iter().all(|&(.., note)| !note), "{under_way:?}");
            let (last, all) = under_way.split_last().expect("some");
            for (slice, ..) in all {
                scheduler.on_answered(*slice, at(2));
                assert_eq!(told(&mut scheduler, 2), [], "over {rails}");
            }
            scheduler.on_answered(last.0, at(2));
            let note = told(&mut scheduler, 2);
            assert!(matches!(note[..], [(_, 1.., true)]), "{note:?}");
            scheduler.on_answered(note[0].0, at(3));
            assert_eq!(finished(&drain(&mut scheduler, at(3))), [(id, vec![])]);
        }
    }

    #[test]
    fn a_notification_that_is_barred_goes_over_a_stream_when_all_bytes_have_arrived() {
        let mut scheduler = connected(1);
        let id = submit(&mut scheduler, vec![write(100)]);
        let under_way = told(&mut scheduler, 1);
        scheduler.on_note_barred(under_way[1].0);
        assert_eq!(told(&mut scheduler, 2), []);
        scheduler.on_answered(under_way[0].0, at(2));
        let note = told(&mut scheduler, 2);
        assert_eq!(ways(&note), [(0, true)]);
        scheduler.on_answered(note[0].0, at(3));
        let over = drain(&mut scheduler, at(3));
        let [Action::Finished { transfer, outcome }] = &over[..] else {
            panic!("{over:?}");
        };
        assert_eq!((*transfer, outcome.slices, outcome.resent), (id, 2, 0));
    }

    #[test]
    fn what_is_lost_with_its_notification_goes_again_when_it_is_fenced_and_that_behind_it() {
        let mut scheduler = connected(2);
        let id = submit(&mut scheduler, vec![write(100)]);
        let under_way = told(&mut scheduler, 1);
        let (slice, rail, _) = under_way[0];
        scheduler.on_lost(slice, at(2));
        scheduler.on_lost(under_way[1].0, at(2));
        let fence = Action::Fence {
            rail,
            connection: 1,
            via: 0,
        };
        assert_eq!(drain(&mut scheduler, at(2)), [fence]);
        scheduler.on_fenced(rail, 1, true, at(3));
        let again = told(&mut scheduler, 3);
        assert_eq!(ways(&again), [(3 - rail, false), (3 - rail, true)]);
        // One that is refused goes by itself.
        scheduler.on_answered(again[0].0, at(4));
        scheduler.on_refused(again[1].0, Refusal::Busy, 0, at(4));
        let last = told(&mut scheduler, 100);
        assert!(matches!(last[..], [(_, 1.., true)]), "{last:?}");
        scheduler.on_answered(last[0].0, at(101));
        assert_eq!(finished(&drain(&mut scheduler, at(101))), [(id, vec![])]);
    }

    #[test]
    fn nothing_follows_what_was_lost() {
        let mut scheduler = connected(1);
        submit(&mut scheduler, vec![write(100)]);
        let under_way = told(&mut scheduler, 1);
        scheduler.on_refused(under_way[1].0, Refusal::Busy, 0, at(1));
        assert_eq!(scheduler.ready.len(), 1, "it follows, after a pause");
        scheduler.on_lost(under_way[0].0, at(1));
        assert!(scheduler.ready.is_empty(), "it waits for a fence");
    }

    #[test]
    fn notifications_under_way_on_one_rail_are_bounded_as_slices_are() {
        let mut scheduler = connected(1);
        let most = SchedulerOptions::default().one_sided_rail.slices_max as usize;
        for _ in 0..=most {
            submit(&mut scheduler, vec![]);
        }
        let under_way = told(&mut scheduler, 1);
        let over = |rail| under_way.iter().filter(|sent| sent.1 == rail).count();
        assert_eq!(
            (over(1), over(0)),
            (most, 1),
            "the rest goes over the stream"
        );
        assert!(!scheduler.rails()[1].takes_notes());
    }
}
