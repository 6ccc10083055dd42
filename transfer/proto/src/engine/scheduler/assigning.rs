//! Which slice goes over which rail.

use std::time::Duration;

use lunette_runtime_core::time::Time;

use super::outcome::{Action, SliceId, TransferId};
use super::transfer::NoteState;
use super::{LOOKED_AT_MAX, LOST_MAX, OLDEST_EVERY, Scheduler, SliceState, UnderWay, is_one_sided};
use crate::engine::rail::{Carrier, Rail};
use crate::engine::segment::Way;
use crate::engine::slices::{Measure, Slice, Work};

/// At the end of a transfer a slice from memory to memory is no longer than one part in so many of what each
/// rail still has to carry, so that rails with long slices end together too.
const PARTS_AT_THE_END: u64 = 2;

impl Scheduler {
    /// Sends one slice, if there is one and a rail for it.
    pub(super) fn assign(&mut self, now: Time) {
        if self.lost.len() >= LOST_MAX || !self.rails.iter().any(Rail::has_room) {
            return;
        }
        let oldest_first = self.assigned % OLDEST_EVERY == OLDEST_EVERY - 1;
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
                && let Some((rail, work)) = self.pick(index, now)
            {
                self.send(index, rail, work, now);
                return;
            }
        }
    }

    /// The rail of a transfer's next slice, and of which of its bytes that is.
    fn pick(&mut self, index: u32, now: Time) -> Option<(usize, Work)> {
        let has_one_sided = self
            .rails
            .iter()
            .any(|rail| rail.is_up() && is_one_sided(rail));
        let transfer = self.transfers.at(index);
        if !has_one_sided || transfer.note_is_due() {
            let rail = self.pick_of(index, Carrier::Stream, Work::Any, now)?;
            return Some((rail, Work::Any));
        }
        let kinds = [
            (Carrier::OneSided, Work::Open),
            (Carrier::Stream, Work::Barred),
        ];
        kinds.into_iter().find_map(|(carrier, work)| {
            let waiting = self.transfers.at(index).cutter.waiting(work);
            let rail = (waiting > 0).then(|| self.pick_of(index, carrier, work, now))?;
            Some((rail?, work))
        })
    }

    /// The rail of a kind that will have the transfer's next slice through first. None if every rail with room
    /// would take longer for it than the best one takes for all that waits, or, where slices are long, than all of
    /// them together do: then a better one is waited for, so that all rails finish together. One on which something is overdue is left out while there
    /// is another.
    fn pick_of(&mut self, index: u32, carrier: Carrier, work: Work, now: Time) -> Option<usize> {
        let waiting = self.transfers.at(index).cutter.waiting(work);
        let is_up = |rail: &Rail, prompt: bool| {
            rail.carrier() == carrier && rail.is_up() && (!prompt || rail.is_prompt(now))
        };
        let some_are_prompt = self.rails.iter().any(|rail| is_up(rail, true));
        let up = || {
            let rails = self.rails.iter().enumerate();
            rails.filter(|(_, rail)| is_up(rail, some_are_prompt))
        };
        let count = up().count() as u64;
        let cutter = &self.transfers.at(index).cutter;
        let finish = |rail: &Rail| {
            let measure = measure(rail, work, waiting / count.max(1));
            rail.finish(cutter.next_len_bytes(measure))
        };
        let limit = match carrier {
            Carrier::Stream => up().map(|(_, rail)| rail.finish(waiting)).min()?,
            Carrier::OneSided => {
                let best = up().map(|(_, rail)| finish(rail)).min()?;
                let rails: Vec<&Rail> = up().map(|(_, rail)| rail).collect();
                best.max(all_finish(&rails, waiting))
            }
        };
        let with_room = up().filter(|(_, rail)| rail.has_room());
        let (index, rail) = with_room.min_by_key(|(_, rail)| finish(rail))?;
        (finish(rail) <= limit).then_some(index)
    }

    fn send(&mut self, index: u32, rail: usize, work: Work, now: Time) {
        let carrier = self.rails[rail].carrier();
        let alike = |other: &&Rail| other.is_up() && other.carrier() == carrier;
        let count = self.rails.iter().filter(alike).count() as u64;
        let found = &mut self.rails[rail];
        let transfer = self.transfers.at(index);
        let slice = if transfer.note_is_due() {
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
        transfer.on_sent(rail, slice.attempts);
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
        self.refresh(index);
    }
}

/// How long rails take together for what is under way on them and so many bytes more.
fn all_finish(rails: &[&Rail], waiting_bytes: u64) -> Duration {
    let (mut bytes, mut rate) = (u128::from(waiting_bytes), 0);
    for rail in rails {
        bytes += u128::from(rail.under_way_bytes());
        rate += u128::from(rail.bytes_per_second());
    }
    let nanos = bytes * 1_000_000_000 / rate.max(1);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
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
