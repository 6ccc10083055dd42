//! Which slice goes over which rail.

use std::time::Duration;

use lunette_runtime_core::time::Time;

use super::outcome::{Action, SliceId, TransferId};
use super::transfer::NoteState;
use super::{
    LOOKED_AT_MAX, LOST_MAX, OLDEST_EVERY, RAILS_MAX, Scheduler, SliceState, UnderWay, is_one_sided,
};
use crate::engine::rail::{Carrier, Rail, time_of};
use crate::engine::segment::Way;
use crate::engine::slices::{Measure, Slice, Work};

/// At the end of a transfer a slice from memory to memory is no longer than one part in so many of what each
/// rail still has to carry, so that rails with long slices end together too.
const PARTS_AT_THE_END: u64 = 2;

/// What a slice goes over, and how much longer that may take with the next ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick {
    rail: usize,
    work: Work,
    /// A slice that would be through later waits for a better rail.
    limit: Duration,
}

impl Pick {
    /// A notification goes over this rail.
    pub(super) const fn of_note(rail: usize) -> Self {
        Self {
            rail,
            work: Work::Any,
            limit: Duration::ZERO,
        }
    }
}

impl Scheduler {
    /// Sends a slice, if there is one and a rail for it, or several for which no other rail would do better.
    pub(super) fn assign(&mut self, now: Time) {
        if self.ready.is_empty() {
            return;
        }
        for rail in &mut self.rails {
            rail.look_again(now);
        }
        if self.lost.len() >= LOST_MAX || !self.rails.iter().any(Rail::has_room) {
            return;
        }
        let oldest_first = self.is_the_oldests_turn();
        let oldest = self.ready_by_age.iter().map(|&(_, index)| index);
        let oldest = oldest.take(usize::from(oldest_first));
        let urgent = self.ready.iter().map(|&(.., index)| index);
        let mut candidates = [0; LOOKED_AT_MAX + 1];
        let mut count = 0;
        for index in oldest.chain(urgent.take(LOOKED_AT_MAX)) {
            candidates[count] = index;
            count += 1;
        }
        for &index in &candidates[..count] {
            if self.transfers.at(index).not_before <= now
                && let Some(pick) = self.pick(index, now)
            {
                let carrier = self.rails[pick.rail].carrier();
                let alike = |other: &&Rail| other.is_up() && other.carrier() == carrier;
                let count = self.rails.iter().filter(alike).count() as u64;
                self.send(index, pick, count, now);
                // Whose turn it is only now has had it.
                if carrier == Carrier::OneSided && !oldest_first {
                    self.go_on(index, pick, count, now);
                }
                self.refresh(index);
                return;
            }
        }
    }

    const fn is_the_oldests_turn(&self) -> bool {
        self.assigned % OLDEST_EVERY == OLDEST_EVERY - 1
    }

    /// Sends more of a transfer over the same rail. As long as more waits than the others have room for, all of
    /// them will be full, so it does not matter which is filled first.
    fn go_on(&mut self, index: u32, pick: Pick, count: u64, now: Time) {
        let Pick { rail, work, limit } = pick;
        let others = self.rails.iter().enumerate();
        let others = others.filter(|(at, other)| {
            *at != rail && other.is_up() && other.carrier() == Carrier::OneSided
        });
        let others_bytes: u64 = others.map(|(_, other)| other.room_bytes()).sum();
        while !self.is_the_oldests_turn() {
            let transfer = self.transfers.at(index);
            let waiting = transfer.cutter.waiting(work);
            let found = &self.rails[rail];
            if waiting <= others_bytes || !found.has_room() {
                return;
            }
            let measure = measure(found, work, waiting / count);
            if found.finish(transfer.cutter.next_len_bytes(measure)) > limit {
                return;
            }
            self.send(index, pick, count, now);
        }
    }

    /// The rail of a transfer's next slice, and of which of its bytes that is.
    fn pick(&mut self, index: u32, now: Time) -> Option<Pick> {
        let has_one_sided = self
            .rails
            .iter()
            .any(|rail| rail.is_up() && is_one_sided(rail));
        if self.transfers.at(index).cutter.waiting_bytes() == 0 {
            return self.pick_for_note(index, now);
        }
        if !has_one_sided {
            return self.pick_of(index, Carrier::Stream, Work::Any, now);
        }
        let kinds = [
            (Carrier::OneSided, Work::Open),
            (Carrier::Stream, Work::Barred),
        ];
        kinds.into_iter().find_map(|(carrier, work)| {
            let waiting = self.transfers.at(index).cutter.waiting(work);
            (waiting > 0).then(|| self.pick_of(index, carrier, work, now))?
        })
    }

    /// The rail of a kind that will have the transfer's next slice through first. None if every rail with room
    /// would take longer for it than the best one takes for all that waits, or, where slices are long, than all of
    /// them together do: then a better one is waited for, so that all rails finish together. One on which something
    /// is overdue is left out while there is another.
    pub(super) fn pick_of(
        &mut self,
        index: u32,
        carrier: Carrier,
        work: Work,
        now: Time,
    ) -> Option<Pick> {
        let cutter = &self.transfers.at(index).cutter;
        let waiting = cutter.waiting(work);
        let up = RailsUp::of(&self.rails, carrier, now);
        let share = waiting / (up.count as u64).max(1);
        let (mut best, mut all, mut chosen) = (Duration::MAX, Together::default(), None);
        for rail in up.indices() {
            let found = &self.rails[rail];
            let finish = found.finish(cutter.next_len_bytes(measure(found, work, share)));
            best = best.min(match carrier {
                Carrier::Stream => found.finish(waiting),
                Carrier::OneSided => finish,
            });
            all.add(found);
            let is_better = chosen.is_none_or(|(_, sooner)| finish < sooner);
            if is_better && found.has_room() {
                chosen = Some((rail, finish));
            }
        }
        let (rail, finish) = chosen?;
        let limit = match carrier {
            Carrier::Stream => best,
            Carrier::OneSided => best.max(all.finish(waiting)),
        };
        (finish <= limit).then_some(Pick { rail, work, limit })
    }

    /// Sends a slice over one of `count` rails of its kind. The lists are to be brought up to date then.
    fn send(&mut self, index: u32, pick: Pick, count: u64, now: Time) {
        let Pick { rail, work, .. } = pick;
        let found = &mut self.rails[rail];
        let carrier = found.carrier();
        let transfer = self.transfers.at(index);
        let slice = if transfer.cutter.waiting_bytes() == 0 {
            Slice {
                way: Way::Write,
                parts: Vec::new(),
                attempts: transfer.note_attempts,
                is_barred: false,
            }
        } else {
            let share = transfer.cutter.waiting(work) / count.max(1);
            let slice = transfer.cutter.next_of(measure(found, work, share));
            slice.expect("what is ready has bytes to send")
        };
        let goes_along = carrier == Carrier::Stream && transfer.note_fits(&slice);
        let carries_note = slice.parts.is_empty() || goes_along;
        if carries_note {
            transfer.note = NoteState::UnderWay;
        }
        let link = (rail, found.connection());
        let telling = (slice.way == Way::Write && found.takes_notes()).then_some(link);
        transfer.on_sent(rail, slice.attempts, telling);
        let ahead_bytes = found.under_way_bytes();
        found.on_sent(slice.len_bytes(), now);
        let (slice, generation) = self.slices.insert(UnderWay {
            slice,
            transfer: Some(index),
            rail,
            connection: found.connection(),
            carries_note,
            sent: now,
            ahead_bytes,
            state: SliceState::Sent,
            is_taken_back: false,
        });
        self.assigned += 1;
        let transfer = TransferId {
            index,
            generation: self.transfers.generation(index),
        };
        let slice = SliceId {
            index: slice,
            generation,
        };
        self.actions.push_back(Action::Send {
            slice,
            transfer,
            rail,
        });
    }
}

/// The rails of a kind that are up, without those on which something is overdue while there are others.
struct RailsUp {
    indices: [u8; RAILS_MAX],
    count: usize,
}

impl RailsUp {
    fn of(rails: &[Rail], carrier: Carrier, now: Time) -> Self {
        let mut up = Self {
            indices: [0; RAILS_MAX],
            count: 0,
        };
        up.take(rails, |rail| {
            rail.is_up() && rail.carrier() == carrier && rail.is_prompt(now)
        });
        if up.count == 0 {
            up.take(rails, |rail| rail.is_up() && rail.carrier() == carrier);
        }
        up
    }

    fn take(&mut self, rails: &[Rail], which: impl Fn(&Rail) -> bool) {
        for (index, rail) in (0..).zip(rails) {
            if which(rail) {
                self.indices[self.count] = index;
                self.count += 1;
            }
        }
    }

    fn indices(&self) -> impl Iterator<Item = usize> {
        let indices = self.indices[..self.count].iter();
        indices.map(|&index| usize::from(index))
    }
}

/// Rails that carry together.
#[derive(Debug, Default)]
struct Together {
    under_way_bytes: u64,
    bytes_per_second: u64,
}

impl Together {
    fn add(&mut self, rail: &Rail) {
        self.under_way_bytes = self.under_way_bytes.saturating_add(rail.under_way_bytes());
        let rate = rail.bytes_per_second();
        self.bytes_per_second = self.bytes_per_second.saturating_add(rate);
    }

    /// How long they take for what is under way on them and so many bytes more.
    fn finish(&self, waiting_bytes: u64) -> Duration {
        let bytes = self.under_way_bytes.saturating_add(waiting_bytes);
        time_of(bytes, self.bytes_per_second.max(1))
    }
}

/// What a rail takes now, of bytes of which each rail has `share_bytes` to carry.
fn measure(rail: &Rail, work: Work, share_bytes: u64) -> Measure {
    let options = rail.options();
    let bytes = rail.slice_bytes();
    let bytes = match rail.carrier() {
        Carrier::Stream => bytes,
        Carrier::OneSided => {
            let least = options.slice_bytes_min;
            let most = share_bytes / PARTS_AT_THE_END;
            let most = u32::try_from(most).unwrap_or(u32::MAX).max(least);
            bytes.min(most)
        }
    };
    Measure {
        work,
        bytes,
        bytes_max: options.slice_bytes_max,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, drain, options, read, sent};
    use super::*;
    use crate::engine::rail::RailOptions;
    use crate::engine::scheduler::{Priority, SchedulerOptions, TransferOptions};

    const MIB: u64 = 1 << 20;

    /// One stream and so many rails from memory to memory, all of them up; these are 1.. in its count.
    fn connected(one_sided: usize) -> Scheduler {
        let mut scheduler = Scheduler::with_one_sided(SchedulerOptions::default(), 1, one_sided);
        scheduler.adopt(0, at(0));
        scheduler.expect().expect("room");
        assert_eq!(drain(&mut scheduler, at(0)).len(), one_sided);
        for rail in 1..=one_sided {
            assert!(scheduler.on_connected(rail, 1, at(0)));
        }
        scheduler.expect_no_more();
        scheduler
    }

    /// By how much each rail is busy, and over how many rails the slices went one after the other.
    fn given(scheduler: &mut Scheduler, now: u32) -> (Vec<u64>, usize) {
        let sent = sent(&drain(scheduler, at(now)));
        let rails: Vec<usize> = sent.iter().map(|sent| sent.1).collect();
        let runs = rails.chunk_by(|one, other| one == other).count();
        let busy = scheduler.rails().iter().map(Rail::under_way_bytes);
        (busy.skip(1).collect(), runs)
    }

    #[test]
    fn a_rail_is_filled_at_once_as_long_as_more_waits_than_the_others_have_room_for() {
        for rails in 1..=4 {
            let mut scheduler = connected(rails);
            let submitted = scheduler.submit([read(64 * MIB)], options(at(5_000)), at(1));
            submitted.expect("room");
            let (busy, runs) = given(&mut scheduler, 1);
            // As nothing is known of them yet, two of the shortest each.
            assert_eq!(busy, vec![128 * 1024; rails]);
            assert_eq!(runs, rails, "each was filled in one go");
        }
    }

    #[test]
    fn what_fits_the_rails_is_given_out_one_by_one() {
        let mut scheduler = connected(4);
        let submitted = scheduler.submit([read(MIB / 4)], options(at(5_000)), at(1));
        submitted.expect("room");
        let (busy, runs) = given(&mut scheduler, 1);
        assert_eq!(busy, [64 * 1024; 4], "all of them finish together");
        assert_eq!(runs, 4);
    }

    #[test]
    fn the_oldest_has_its_turn_also_while_a_rail_is_filled() {
        let narrow = RailOptions {
            slice_bytes_max: 64 * 1024,
            ..RailOptions::ONE_SIDED
        };
        let scheduler_options = SchedulerOptions {
            one_sided_rail: narrow,
            ..SchedulerOptions::default()
        };
        let mut scheduler = Scheduler::with_one_sided(scheduler_options, 1, 1);
        scheduler.adopt(0, at(0));
        let submit = |scheduler: &mut Scheduler, priority| {
            let asked = TransferOptions {
                priority,
                ..options(at(500_000))
            };
            let submitted = scheduler.submit([read(64 * MIB)], asked, at(1));
            submitted.expect("room")
        };
        let oldest = submit(&mut scheduler, Priority::Background);
        submit(&mut scheduler, Priority::Foreground);
        drain(&mut scheduler, at(0));
        assert!(scheduler.on_connected(1, 1, at(1)));
        let (mut of_oldest, mut all, mut ms) = (0_u64, 0, 1);
        // As long as both have something to send.
        while all < 40 * OLDEST_EVERY {
            ms += 1;
            let actions = drain(&mut scheduler, at(ms));
            for action in actions {
                if let Action::Send {
                    slice,
                    transfer,
                    rail: 1,
                } = action
                {
                    all += 1;
                    of_oldest += u64::from(transfer == oldest);
                    scheduler.on_answered(slice, at(ms));
                }
            }
        }
        assert!(
            of_oldest.abs_diff(all / OLDEST_EVERY) <= 1,
            "{of_oldest} of {all}"
        );
    }
}
