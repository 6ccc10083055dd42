//! Reads by the owner, which keep their segments.

use lunette_runtime_core::time::Time;

use super::Log;
use crate::effect::{PinId, PinRefused, ReadOutcome, ReadPlan};
use crate::index::Location;
use crate::record::Fingerprint;

/// A read that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pin {
    fingerprint: Fingerprint,
    location: Location,
}

impl Log {
    /// How to read a record. Its segment is not freed before the read has [ended](Self::end_read), also where the
    /// record is removed or replaced meanwhile.
    ///
    /// # Errors
    /// [`PinRefused`].
    pub fn pin(&mut self, fingerprint: Fingerprint) -> Result<ReadPlan, PinRefused> {
        let located = *self.index.get(&fingerprint).ok_or(PinRefused::NotHere)?;
        let pins = self.pins.len();
        if pins >= self.options.pins_max {
            return Err(PinRefused::TooMany { pins });
        }
        let location = located.location;
        self.segments.get_mut(location.segment_index).pins += 1;
        let pin = PinId(self.pins.insert(Pin {
            fingerprint,
            location,
        }));
        let window = located.window(self.superblock.geometry);
        Ok(ReadPlan {
            pin,
            record: located.record(fingerprint),
            offset_bytes: window.offset_bytes,
            len_bytes: window.len_bytes,
            key_at: window.key_at,
            key_len: located.key_len(),
            payload_at: window.payload_at,
        })
    }

    /// A read has ended: the drive does not touch its memory any more. What it found wrong is dropped.
    ///
    /// # Panics
    /// If there is no such read.
    pub fn end_read(&mut self, now: Time, pin: PinId, outcome: ReadOutcome) {
        let Pin {
            fingerprint,
            location,
        } = self.pins.remove(pin.0);
        self.segments.get_mut(location.segment_index).pins -= 1;
        let is_here = self
            .index
            .get(&fingerprint)
            .is_some_and(|located| located.location == location);
        // What is being moved is verified by that.
        let is_moving = self
            .flight_of
            .get(&fingerprint)
            .is_some_and(|&at| self.flights[at].is_move());
        if outcome != ReadOutcome::Right && is_here && !is_moving {
            self.bury_judged(fingerprint);
            self.forget(fingerprint);
            // The drive says that it is there.
            self.add_ghost(fingerprint, location.segment_index);
            self.stats.lost_records += 1;
        }
        self.advance(now);
    }
}
