//! What homes are told after a new map.

use lunette_runtime_core::time::Time;

use super::limits::RESEND;
use super::writes::Stage;
use super::{Out, Owner, OwnerAction};
use crate::message::directory::{CopyPage, CopyPlace, PAGE_COPIES_MAX, ToHome};
use crate::placement::{Seat, has_seat, home_of, seats};
use crate::version::CopyInfo;
use lunette_cluster_proto::map::{ClusterMap, Epoch};

impl Owner {
    /// Finds the homes of all copies under the new map.
    ///
    /// If the map has only lost members, only what they were the homes of has moved, so that the
    /// loss of a node costs in proportion to what that node was concerned with.
    pub(super) fn find_homes(&mut self, previous: &ClusterMap) {
        let mut members = self.map.members().iter();
        let has_shrunk = members.all(|member| {
            let before = previous.member(member.id);
            before.is_some_and(|before| {
                let is_same = before.incarnation == member.incarnation;
                is_same && before.cores == member.cores && before.weight() == member.weight()
            })
        });
        let homes = self.by_home.keys().copied();
        let stale = homes.filter(|home| !has_shrunk || !has_seat(&self.map, *home));
        let stale: Vec<Seat> = stale.collect();
        for former in stale {
            let places = self.by_home.remove(&former).unwrap_or_default();
            for (place, ()) in places.iter() {
                self.list(place, former);
            }
        }
    }

    fn list(&mut self, place: CopyPlace, former: Seat) {
        let Some(home) = home_of(&self.map, place.key) else {
            // Nobody is a home: it is told to the next one, whoever that is.
            self.by_home.entry(former).or_default().insert(place, ());
            return;
        };
        self.by_home.entry(home).or_default().insert(place, ());
        if home != former {
            let epoch = self.map.epoch();
            if let Some(held) = self.copies.get_mut(place) {
                held.moved_in = epoch;
            }
        }
    }

    /// Homes need not be told of it any more.
    pub(super) fn unlist(&mut self, place: CopyPlace) {
        let Some(home) = home_of(&self.map, place.key) else {
            for places in self.by_home.values_mut() {
                places.remove(place);
            }
            return;
        };
        if let Some(places) = self.by_home.get_mut(&home) {
            places.remove(place);
            if places.is_empty() {
                self.by_home.remove(&home);
            }
        }
    }

    /// A listed copy: what it is, and since when its home is its home.
    fn listed(&self, place: CopyPlace) -> (CopyInfo, Epoch) {
        if let Some(held) = self.copies.get(place) {
            return (held.info, held.moved_in);
        }
        let write = &self.writes[&place.key];
        let Stage::Publishing(info) = write.stage else {
            unreachable!("what is listed is a copy, or about to be one");
        };
        (info, write.moved_in)
    }

    /// A home wants to know what is held of its shard.
    pub(super) fn report(&self, home: Seat, is_full: bool, after: Option<CopyPlace>, out: Out<'_>) {
        let is_full = is_full || !self.is_continuous || self.away_since.is_some();
        let epoch = self.map.epoch();
        let places = self.by_home.get(&home).map(|places| places.after(after));
        let told = places.into_iter().flatten().filter_map(|(place, ())| {
            let (info, moved_in) = self.listed(place);
            (is_full || moved_in == epoch).then_some((place.key, info))
        });
        let mut copies: Vec<_> = told.take(PAGE_COPIES_MAX + 1).collect();
        let is_last = copies.len() <= PAGE_COPIES_MAX;
        copies.truncate(PAGE_COPIES_MAX);
        let away_since = self.away_since;
        let page = CopyPage {
            after,
            is_full,
            away_since,
            copies,
            is_last,
        };
        out.push(OwnerAction::Page(home, page));
    }

    /// Who was away asks each home whether everything has been judged.
    pub(super) fn settle(&mut self, now: Time, out: Out<'_>) {
        if self.away_since.is_none()
            || !has_seat(&self.map, self.seat)
            || now < self.settle_asked + RESEND
        {
            return;
        }
        self.settle_asked = now;
        for home in seats(&self.map).filter(|home| !self.settled.contains(home)) {
            out.push(OwnerAction::ToHome(home, ToHome::Settle));
        }
    }

    pub(super) fn has_settled(&mut self, home: Seat) {
        self.settled.insert(home);
        if seats(&self.map).all(|home| self.settled.contains(&home)) {
            self.away_since = None;
        }
    }
}
