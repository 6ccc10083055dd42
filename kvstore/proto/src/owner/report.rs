//! What homes are told after a new map.

use std::collections::{BTreeMap, VecDeque};

use lunette_runtime_core::time::Time;

use super::copies::{Held, State};
use super::limits::RESEND;
use super::writes::Stage;
use super::{Out, Owner, OwnerAction};
use crate::key::Fingerprint;
use crate::message::directory::{Away, CopyPage, CopyPlace, PAGE_COPIES_MAX, ToHome};
use crate::placement::{Seat, has_seat, home_of, seats};
use crate::sorted::Sorted;
use crate::version::CopyInfo;
use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::{ClusterMap, Epoch};

/// Copies whose homes are not found yet under the newest map, and who wants to know of them.
#[derive(Debug, Default)]
pub(super) struct Relisting {
    tables: VecDeque<Table>,
    /// Homes that asked meanwhile: whether for all, and from where on.
    wanted: BTreeMap<Seat, (bool, Option<CopyPlace>)>,
}

/// Copies of one former home.
#[derive(Debug)]
struct Table {
    /// `None` if the map changed again before they were done: who was their home in between was never found.
    former: Option<Seat>,
    places: Sorted<CopyPlace, ()>,
    /// Those up to this one are done.
    done: Option<CopyPlace>,
}

impl Owner {
    /// Copies that a former life of this owner had, and whose bytes are still there: in several calls as well, and at
    /// most as many as it may have in all. They are reported like those of one who was away since that epoch, in which it had heard of all that had been
    /// removed: its homes judge them, and until then they are served as such are.
    ///
    /// # Panics
    /// If there has been a map already.
    pub fn restore(
        &mut self,
        since: Epoch,
        copies: impl IntoIterator<Item = (Fingerprint, CopyInfo, NamespaceKind)>,
    ) {
        assert!(self.map.members().is_empty(), "nobody has been told of it");
        let mut places = Sorted::default();
        for (key, info, namespace) in copies {
            if self.copies.len() >= self.limits.copies_max {
                break;
            }
            let version = info.version;
            let place = CopyPlace { key, version };
            if self.copies.contains(place) {
                continue;
            }
            let op = self.next_op();
            let held = Held::new(op, info, namespace, State::Published, Epoch(0));
            self.copies.insert(key, held);
            places.insert(place, ());
        }
        if places.is_empty() {
            return;
        }
        let since = self.away.map_or(since, |away| away.since.min(since));
        // It is, when there is a map.
        let back = Epoch(u64::MAX);
        self.away = Some(Away { since, back });
        self.relisting.tables.push_back(Table {
            former: None,
            places,
            done: None,
        });
    }

    /// Begins to find the homes of all copies under the new map: some in this turn, the others in later ones.
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
        self.relisting.wanted.clear();
        for table in &mut self.relisting.tables {
            table.former = None;
        }
        for former in stale {
            let places = self.by_home.remove(&former).unwrap_or_default();
            self.relisting.tables.push_back(Table {
                former: Some(former),
                places,
                done: None,
            });
        }
        self.relist_some();
    }

    /// Whether homes of copies are still to be found. Where nobody is a home, they wait for the next map.
    pub(super) fn is_relisting(&self) -> bool {
        !self.relisting.tables.is_empty() && home_of(&self.map, Fingerprint(0)).is_some()
    }

    /// Goes on finding homes, and tells those who have waited for that.
    pub(super) fn relist(&mut self, out: Out<'_>) {
        if !self.is_relisting() {
            return;
        }
        self.relist_some();
        if self.is_relisting() {
            return;
        }
        for (home, (is_full, after)) in core::mem::take(&mut self.relisting.wanted) {
            self.report(home, is_full, after, out);
        }
    }

    fn relist_some(&mut self) {
        let mut left = self.limits.relisted_per_turn_max;
        while self.is_relisting() && left > 0 {
            let Some(mut table) = self.relisting.tables.pop_front() else {
                return;
            };
            let places = table.places.after(table.done).take(left);
            let mut count = 0;
            for (place, ()) in places {
                self.list(place, table.former);
                table.done = Some(place);
                count += 1;
            }
            // A table that has fewer than there was room for has been gone through.
            if count == left {
                self.relisting.tables.push_front(table);
            }
            left -= count;
        }
    }

    fn list(&mut self, place: CopyPlace, former: Option<Seat>) {
        let Some(home) = home_of(&self.map, place.key) else {
            return;
        };
        self.by_home.entry(home).or_default().insert(place, ());
        if former != Some(home) {
            let epoch = self.map.epoch();
            if let Some(held) = self.copies.get_mut(place) {
                held.moved_in = epoch;
            }
        }
    }

    /// Homes need not be told of it any more.
    pub(super) fn unlist(&mut self, place: CopyPlace) {
        for table in &mut self.relisting.tables {
            table.places.remove(place);
        }
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
    pub(super) fn report(
        &mut self,
        home: Seat,
        is_full: bool,
        after: Option<CopyPlace>,
        out: Out<'_>,
    ) {
        if self.is_relisting() {
            // A page must not leave out what is its home's without its being known.
            self.relisting.wanted.insert(home, (is_full, after));
            return;
        }
        let is_full = is_full || !self.is_continuous || self.away.is_some();
        let epoch = self.map.epoch();
        let places = self.by_home.get(&home).map(|places| places.after(after));
        let told = places.into_iter().flatten().filter_map(|(place, ())| {
            let (info, moved_in) = self.listed(place);
            (is_full || moved_in == epoch).then_some((place.key, info))
        });
        let mut copies: Vec<_> = told.take(PAGE_COPIES_MAX + 1).collect();
        let is_last = copies.len() <= PAGE_COPIES_MAX;
        copies.truncate(PAGE_COPIES_MAX);
        let away = self.away;
        let page = CopyPage {
            after,
            is_full,
            away,
            copies,
            is_last,
        };
        out.push(OwnerAction::Page(home, page));
    }

    /// Who was away asks each home whether everything has been judged.
    pub(super) fn settle(&mut self, now: Time, out: Out<'_>) {
        if self.away.is_none()
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
        // Where all members are to be emptied nobody judges anything.
        let has_homes = self.map.members().iter().any(|it| it.weight() > 0);
        if has_homes && seats(&self.map).all(|home| self.settled.contains(&home)) {
            self.away = None;
        }
    }
}
