//! Removals.

use lunette_runtime_core::time::Time;

use super::appending::Stage;
use super::writing::{Lane, Requester, Waiting};
use super::{Ghost, Log};
use crate::effect::{AppendFailure, DeviceFault, RemovalId, RemoveRefused, Removing};
use crate::format::batch::Removal;
use crate::record::{Fingerprint, Version};

impl Log {
    /// Removes the record of this key and version, and with it what it replaced. It is not found from now on, and not
    /// after a restart once the removal has ended.
    ///
    /// # Errors
    /// [`RemoveRefused`].
    pub fn remove(
        &mut self,
        now: Time,
        fingerprint: Fingerprint,
        version: Version,
    ) -> Result<Removing, RemoveRefused> {
        self.now = self.now.max(now);
        let flight = self.flight_of.get(&fingerprint).copied();
        let flight = flight.map(|at| (at, &self.flights[at]));
        let is_placed = flight.is_some_and(|(_, flight)| flight.stage == Stage::Placed);
        let arriving = flight
            .filter(|(_, flight)| flight.record.version == version)
            .map(|(at, _)| at);
        // What is kept of the key is older than what is meant, and goes with it.
        let moving = flight
            .filter(|(_, flight)| flight.is_move())
            .map(|(at, _)| at);
        let is_here = self.version_here(fingerprint) == Some(version);
        let is_ghost = self.may_have(fingerprint);
        let is_unsettled =
            !is_here && self.index.contains_key(&fingerprint) && !self.superblock_step.is_settled();
        if arriving.is_none() && ((is_placed && (is_here || is_ghost)) || is_unsettled) {
            return Err(RemoveRefused::Busy);
        }
        if arriving.is_none() && !is_here && !self.counts_before_index(fingerprint) {
            let under_way = self.removal_of.get(&fingerprint);
            return Ok(under_way.map_or(Removing::Done, |&removal| Removing::Written(removal)));
        }
        if self.removals.len() >= self.options.queued_records_max && !self.has_failed {
            return Err(RemoveRefused::QueueFull {
                queued: self.removals.len(),
            });
        }
        if let Some(at) = arriving.or(moving) {
            self.end_flight(at, AppendFailure::Removed);
        }
        let forgotten = self.forget(fingerprint);
        let found_in = forgotten.map(|located| located.location.segment_index);
        if found_in.is_none() && !is_ghost && !is_placed {
            self.advance(now);
            let under_way = self.removal_of.get(&fingerprint);
            return Ok(under_way.map_or(Removing::Done, |&removal| Removing::Written(removal)));
        }
        if self.has_failed {
            self.add_ghost(fingerprint, found_in.unwrap_or(u32::MAX));
            return Err(RemoveRefused::Device(DeviceFault));
        }
        let removal = RemovalId(self.next_token());
        self.removals.insert(removal);
        self.removal_of.insert(fingerprint, removal);
        let covers = self.next_batch - 1;
        let entry = Removal {
            fingerprint,
            version,
            covers,
        };
        let requester = Requester::Owner(removal, found_in);
        self.enqueue(Lane::Removals, Waiting::Removal(entry, requester));
        self.advance(now);
        Ok(Removing::Written(removal))
    }

    /// An owner's removal has ended.
    pub(super) fn end_removal(&mut self, fingerprint: Fingerprint, removal: RemovalId) {
        self.removals.remove(&removal);
        if self.removal_of.get(&fingerprint) == Some(&removal) {
            self.removal_of.remove(&fingerprint);
        }
    }

    /// Whether the drive may have a record of this key that would be found instead of the one that is here.
    fn counts_before_index(&self, fingerprint: Fingerprint) -> bool {
        let Some(located) = self.index.get(&fingerprint) else {
            return self.may_have(fingerprint);
        };
        let here = self
            .segments
            .get(located.location.segment_index)
            .tag
            .sequence;
        let ghosts = self
            .ghosts
            .range((fingerprint, 0, Ghost::Before)..(fingerprint, u32::MAX, Ghost::Before));
        let mut sequences =
            ghosts.map(|(_, ghost_in, _)| self.segments.get(*ghost_in).tag.sequence);
        sequences.any(|sequence| sequence >= here)
    }
}
