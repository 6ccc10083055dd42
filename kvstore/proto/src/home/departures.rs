//! Who has left the map, and may be serving still: for a while, or until it says that it does not.

use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_runtime_core::time::Time;

use super::limits::{DEPARTED_WAIT, RECENT_MAPS_MAX};
use super::losses::LossBook;
use super::table::Standing;
use super::{Home, Out};
use crate::placement::{Seat, has_seat, is_there_since, seats};

impl Home {
    /// Notes who left: what it may still be serving, and which tombstones may be lost with it.
    pub(super) fn note_gone(&mut self, now: Time, previous: &ClusterMap, is_kept: bool) {
        let is_gone = |seat: &Seat| !has_seat(&self.map, *seat) && !self.left.contains(seat);
        let gone: Vec<Seat> = seats(previous).filter(is_gone).collect();
        if !gone.is_empty() || !is_kept {
            self.quiet_until = now + DEPARTED_WAIT;
        }
        let until = self.quiet_until;
        self.departed
            .extend(gone.into_iter().map(|seat| (seat, until)));
        self.has_gap |= !is_kept || self.recent.len() == RECENT_MAPS_MAX;
        if now < self.quiet_until && !self.has_gap {
            self.recent.push_back(previous.clone());
        }
        // What was removed under a map that it was not in, others know, or nobody does. Under one that it was in, and has not heard of,
        // nothing was: without it no home was complete.
        let is_next = previous.epoch().0 + 1 == self.map.epoch().0;
        let is_there = is_there_since(&self.map, self.seat, previous.epoch());
        if !(is_next || is_there) || !has_seat(&self.map, self.seat) {
            self.is_informed = false;
            self.losses = LossBook::default();
        } else {
            self.losses.on_map(previous, &self.map);
            self.tombstones.forgotten = self.losses.bound(self.tombstones.forgotten);
        }
        self.incomplete.clear();
        self.tombstones.dropped = Epoch(0);
        self.cores = self
            .map
            .member(self.seat.node)
            .map_or(self.cores, |me| me.cores);
    }

    /// What seats held that have left counts until they have surely stopped serving.
    pub(super) fn depart(&mut self, previous: &ClusterMap) {
        for seat in seats(previous).filter(|seat| !has_seat(&self.map, *seat)) {
            let Some(&until) = self.departed.get(&seat) else {
                let held = self.table.forget_seat(seat);
                self.unjudged.extend(held);
                continue;
            };
            for key in self.table.keys_of(seat) {
                for copy in self.table.copies(key).to_vec() {
                    if copy.seat == seat {
                        let version = copy.info.version;
                        let standing = Standing::Departed { until };
                        self.table.set_standing(key, seat, version, standing);
                    }
                }
                self.unjudged.insert(key);
            }
        }
        let is_grown = seats(&self.map).any(|seat| !has_seat(previous, seat));
        let weights = |map: &ClusterMap| -> Vec<_> {
            let members = map.members().iter();
            let members = members.filter(|member| self.map.member(member.id).is_some());
            members.map(|member| (member.id, member.weight())).collect()
        };
        if is_grown || weights(previous) != weights(&self.map) {
            self.sweep = Some(None);
        }
    }

    pub(super) fn end_departures(&mut self, now: Time, out: Out<'_>) {
        let over: Vec<Seat> = {
            let departed = self.departed.iter();
            let over = departed.filter(|(_, until)| now >= **until);
            over.map(|(&seat, _)| seat).collect()
        };
        for seat in over {
            self.end_departure(now, seat, out);
        }
    }

    /// A seat that has left has stopped serving.
    fn end_departure(&mut self, now: Time, seat: Seat, out: Out<'_>) {
        self.departed.remove(&seat);
        if has_seat(&self.map, seat) {
            return;
        }
        for key in self.table.forget_seat(seat) {
            self.end_change_if_done(now, key, out);
        }
    }

    /// A seat says that it serves no more, before it is gone from the map or later.
    pub(super) fn on_left(&mut self, now: Time, from: Seat, out: Out<'_>) {
        if has_seat(&self.map, from) {
            self.left.insert(from);
            return;
        }
        if !self.departed.contains_key(&from) {
            return;
        }
        self.end_departure(now, from, out);
        if self.departed.is_empty() && !self.has_gap {
            self.quiet_until = self.quiet_until.min(now);
            self.end_changes(now, out);
        }
    }
}
