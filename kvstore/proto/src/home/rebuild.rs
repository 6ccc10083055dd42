//! The barrier: until everybody has said what it holds.

use std::collections::BTreeMap;

use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use super::limits::{REPORTS_UNDER_WAY_MAX, RESEND};
use super::losses::Back;
use super::table::{Copy, Standing};
use super::{Home, HomeAction, Out, Phase};
use crate::key::Fingerprint;
use crate::message::directory::{
    CopyPage, CopyPlace, Losses, PAGE_COPIES_MAX, PAGE_TOMBSTONES_MAX, Recalled, ToOwner, ToPeer,
    TombstonePage,
};
use crate::placement::{Seat, home_of, next_of, seats};
use crate::version::Generation;

/// How far the report of a seat has come.
#[derive(Clone, Copy, Debug)]
enum Stage<P> {
    Wanted {
        after: Option<P>,
        asked: Option<Time>,
    },
    Complete,
}

impl<P: core::marker::Copy + PartialEq> Stage<P> {
    const BEGIN: Self = Self::Wanted {
        after: None,
        asked: None,
    };

    const fn is_complete(&self) -> bool {
        matches!(self, Self::Complete)
    }

    fn is_under_way(&self, now: Time) -> bool {
        matches!(self, Self::Wanted { asked: Some(at), .. } if now < *at + RESEND)
    }

    fn expects(&self, place: Option<P>) -> bool {
        matches!(self, Self::Wanted { after, asked: Some(_) } if *after == place)
    }

    /// What to ask for now, if it is not complete.
    fn ask(&mut self, now: Time) -> Option<Option<P>> {
        match self {
            Self::Wanted { after, asked } => {
                *asked = Some(now);
                Some(*after)
            }
            Self::Complete => None,
        }
    }

    const fn go_on(&mut self, next: Option<P>) {
        *self = match next {
            Some(_) => Self::Wanted {
                after: next,
                asked: None,
            },
            None => Self::Complete,
        };
    }
}

#[derive(Debug)]
struct Report {
    copies: Stage<CopyPlace>,
    tombstones: Stage<Fingerprint>,
}

impl Report {
    const fn is_complete(&self) -> bool {
        self.copies.is_complete() && self.tombstones.is_complete()
    }

    fn is_under_way(&self, now: Time) -> bool {
        self.copies.is_under_way(now) || self.tombstones.is_under_way(now)
    }
}

/// Who has reported what.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    is_full: bool,
    /// Those that are not complete.
    missing: BTreeMap<Seat, Report>,
    /// Those that were away, and since when.
    away: BTreeMap<Seat, Epoch>,
    /// The latest horizon of those that know of earlier epochs, and whose knowledge they lack.
    informed: Option<Epoch>,
    losses: Vec<Losses>,
    /// One of those knows that nobody serves any more who has left.
    is_quiet: bool,
    /// The horizon of each, and what its former life knew.
    horizons: BTreeMap<Seat, Epoch>,
    recalled: BTreeMap<Seat, Recalled>,
}

impl Rebuild {
    /// Of the home at `own`, which keeps what it knows of other seats unless `is_full`.
    pub(super) fn new(map: &ClusterMap, own: Seat, is_full: bool) -> Self {
        let missing = seats(map).map(|seat| {
            let tombstones = if seat == own {
                Stage::Complete
            } else {
                Stage::BEGIN
            };
            let copies = Stage::BEGIN;
            (seat, Report { copies, tombstones })
        });
        Self {
            is_full,
            missing: missing.collect(),
            away: BTreeMap::new(),
            informed: None,
            losses: Vec::new(),
            is_quiet: false,
            horizons: BTreeMap::new(),
            recalled: BTreeMap::new(),
        }
    }

    /// Whether this seat's copies are all known.
    pub(super) fn knows(&self, seat: Seat) -> bool {
        let report = self.missing.get(&seat);
        report.is_none_or(|report| report.copies.is_complete())
    }

    fn close(&mut self, seat: Seat) {
        if self.missing.get(&seat).is_some_and(Report::is_complete) {
            self.missing.remove(&seat);
        }
    }

    /// What a page says beside its tombstones.
    fn note(&mut self, from: Seat, page: &TombstonePage) {
        let horizon = self.horizons.entry(from).or_default();
        *horizon = page.horizon.max(*horizon);
        if page.is_informed {
            self.informed = self.informed.max(Some(page.horizon));
            self.is_quiet |= page.is_quiet;
            // Those of the first one.
            if page.after.is_none() {
                self.losses.push(page.losses.clone());
            }
        }
        if let Some(recalled) = &page.recalled {
            self.recalled.insert(from, recalled.clone());
        }
    }

    /// Who is there, and what they recall.
    fn back(&self) -> Back {
        let mut back = Back::default();
        for (&seat, &horizon) in &self.horizons {
            back.is_there(seat, horizon);
        }
        for (seat, recalled) in &self.recalled {
            // Some of it may have been forgotten since.
            let now = self.horizons.get(seat).copied().unwrap_or_default();
            let horizon = recalled.horizon.max(now);
            let recalled = Recalled {
                horizon,
                ..recalled.clone()
            };
            back.recalls(*seat, &recalled);
        }
        back
    }

    /// Asks those who are not complete, a bounded number at once.
    fn ask(&mut self, now: Time, out: Out<'_>) {
        let under_way = self
            .missing
            .values()
            .filter(|report| report.is_under_way(now));
        let room = REPORTS_UNDER_WAY_MAX.saturating_sub(under_way.count());
        let is_full = self.is_full;
        let due = self
            .missing
            .iter_mut()
            .filter(|(_, report)| !report.is_under_way(now));
        for (&seat, report) in due.take(room) {
            if let Some(after) = report.copies.ask(now) {
                let wanted = ToOwner::CopiesWanted { is_full, after };
                out.push(HomeAction::ToOwner(seat, wanted));
            }
            if let Some(after) = report.tombstones.ask(now) {
                let wanted = ToPeer::TombstonesWanted { after };
                out.push(HomeAction::ToPeer(seat, wanted));
            }
        }
    }
}

impl Home {
    /// A part of an owner's report has come.
    pub fn on_page(&mut self, now: Time, from: Seat, epoch: Epoch, page: CopyPage, out: Out<'_>) {
        if !self.heeds(from, epoch) {
            return;
        }
        let Phase::Rebuilding(rebuild) = &mut self.phase else {
            return;
        };
        let Some(report) = rebuild.missing.get_mut(&from) else {
            return;
        };
        let last = page.copies.last().map(|(key, info)| CopyPlace {
            key: *key,
            version: info.version,
        });
        // A report that does not get on would never end, and one that is not whole means nothing.
        let gets_on = page.is_last || last > page.after;
        let is_whole = page.is_full || !rebuild.is_full;
        if !report.copies.expects(page.after)
            || !gets_on
            || !is_whole
            || page.copies.len() > PAGE_COPIES_MAX
        {
            return;
        }
        report.copies.go_on(last.filter(|_| !page.is_last));
        rebuild.close(from);
        if let Some(away) = page.away {
            rebuild.away.insert(from, away.since);
        }
        if page.is_full && page.after.is_none() {
            let known = self.table.forget_seat(from);
            self.unjudged.extend(known);
        }
        self.take_in(now, from, &page, out);
        self.go_on(now, out);
    }

    fn take_in(&mut self, now: Time, from: Seat, page: &CopyPage, out: Out<'_>) {
        let generation = if mutant::is_on(Mutant::GenerationIgnored) {
            Generation(0)
        } else {
            self.generation()
        };
        for &(key, info) in &page.copies {
            if !self.is_home_of(key) || info.generation < generation {
                continue;
            }
            let is_away = (page.away).is_some_and(|away| away.may_have_missed(info.version));
            let standing = Standing::Unjudged { is_away };
            let seat = from;
            let copy = Copy {
                seat,
                info,
                standing,
            };
            if self.table.insert(key, copy, self.limits.copies_max).is_ok() {
                self.unjudged.insert(key);
                self.wake(now, key, out);
            } else {
                // What cannot be recorded could not be removed either.
                self.stats.full += 1;
                let version = info.version;
                let order = self.next_order();
                let drop = ToOwner::Drop {
                    key,
                    version,
                    order,
                    was_recorded: false,
                };
                out.push(HomeAction::ToOwner(from, drop));
            }
        }
    }

    /// Another home says something.
    pub fn on_peer(&mut self, now: Time, from: Seat, epoch: Epoch, item: ToPeer, out: Out<'_>) {
        if item == ToPeer::Left {
            self.on_left(now, from, out);
            return;
        }
        if !self.heeds(from, epoch) {
            return;
        }
        match item {
            ToPeer::Bury { key, tombstone } => {
                self.keep_tombstone(now, key, tombstone);
                let version = tombstone.version;
                // It is asked again.
                if !self.is_outdated() {
                    out.push(HomeAction::ToPeer(from, ToPeer::Buried { key, version }));
                }
            }
            ToPeer::Buried { key, version } => self.buried(now, from, key, version, out),
            ToPeer::TombstonesWanted { after } => {
                let page = self.tombstone_page(now, from, after);
                out.push(HomeAction::ToPeer(from, ToPeer::Tombstones(page)));
            }
            ToPeer::Tombstones(page) => self.take_in_tombstones(now, from, page, out),
            ToPeer::CompleteWanted => {
                if self.is_complete() {
                    out.push(HomeAction::ToPeer(from, ToPeer::Complete));
                }
            }
            ToPeer::Complete => self.on_complete(from),
            ToPeer::Left => {}
        }
    }

    /// What `asker` is the home of, or the next, after a key.
    fn tombstone_page(&self, now: Time, asker: Seat, after: Option<Fingerprint>) -> TombstonePage {
        let mut tombstones = Vec::new();
        let mut next = None;
        // Bounded by those that are looked at, not by those that are found.
        let all = self.tombstones.after(after);
        for (count, (key, tombstone)) in all.enumerate() {
            if count == PAGE_TOMBSTONES_MAX {
                break;
            }
            let concerned = [home_of(&self.map, key), next_of(&self.map, key)];
            if concerned.contains(&Some(asker)) {
                tombstones.push((key, tombstone));
            }
            next = (count + 1 == PAGE_TOMBSTONES_MAX).then_some(key);
        }
        let is_first = after.is_none();
        TombstonePage {
            after,
            horizon: self.tombstones.forgotten,
            is_informed: self.is_informed,
            is_quiet: !self.has_gap && now >= self.quiet_until,
            tombstones,
            next,
            losses: if self.is_informed && is_first {
                self.losses.told()
            } else {
                Losses::default()
            },
            recalled: self.recalled_now().filter(|_| is_first),
        }
    }

    fn take_in_tombstones(&mut self, now: Time, from: Seat, page: TombstonePage, out: Out<'_>) {
        let Phase::Rebuilding(rebuild) = &mut self.phase else {
            return;
        };
        let Some(report) = rebuild.missing.get_mut(&from) else {
            return;
        };
        let gets_on = page.next.is_none() || page.next > page.after;
        if !report.tombstones.expects(page.after)
            || !gets_on
            || page.tombstones.len() > PAGE_TOMBSTONES_MAX
        {
            return;
        }
        report.tombstones.go_on(page.next);
        rebuild.note(from, &page);
        rebuild.close(from);
        for (key, tombstone) in page.tombstones {
            self.keep_tombstone(now, key, tombstone);
            if !self.table.copies(key).is_empty() {
                self.unjudged.insert(key);
            }
        }
        self.go_on(now, out);
    }

    /// An owner that was away asks whether all that it reported has been judged, and what lost dropped.
    pub(super) fn settle(&self, owner: Seat, out: Out<'_>) {
        let is_judged = self.is_complete() && self.unjudged.is_empty();
        if is_judged && !self.table.is_telling(owner) {
            out.push(HomeAction::ToOwner(owner, ToOwner::Settled));
        }
    }

    /// Asks for what is missing, or is complete.
    pub(super) fn go_on(&mut self, now: Time, out: Out<'_>) {
        if let Phase::Rebuilding(rebuild) = &mut self.phase
            && !rebuild.missing.is_empty()
            && !mutant::is_on(Mutant::BarrierSkipped)
        {
            rebuild.ask(now, out);
            return;
        }
        let Phase::Rebuilding(rebuild) = &mut self.phase else {
            return;
        };
        let rebuild = core::mem::take(rebuild);
        let horizon = self.horizon_of(&rebuild);
        let cold = rebuild.away.iter().filter(|(_, since)| **since <= horizon);
        self.cold = cold.map(|(&seat, _)| seat).collect();
        self.is_informed = true;
        if self.has_gap && rebuild.is_quiet {
            (self.has_gap, self.quiet_until) = (false, now);
            self.recent.clear();
        }
        self.phase = Phase::Complete;
        self.want_complete();
        for request in self.waiting.take_all() {
            self.dispatch(now, request, out);
        }
    }

    /// Up to which epoch removals may be lost, by what all have told.
    fn horizon_of(&mut self, rebuild: &Rebuild) -> Epoch {
        // Its own memory counts if it has been complete before and in each map since; if nobody's does, what those
        // knew who have left and come back; else nothing is known of earlier epochs.
        let own = self.is_informed.then_some(self.tombstones.forgotten);
        let known = if let Some(informed) = rebuild.informed.max(own) {
            for losses in &rebuild.losses {
                self.losses.take_in(losses.clone());
            }
            Some(informed)
        } else {
            let recalled = self.recalled_by_all(&rebuild.recalled);
            recalled.map(|(horizon, losses)| {
                self.losses = losses;
                horizon
            })
        };
        let before = Epoch(self.map.epoch().0 - 1);
        let known = known.unwrap_or(before).max(self.tombstones.dropped);
        let mut back = rebuild.back();
        back.is_there(self.seat, self.tombstones.forgotten);
        if let Some(recalled) = self.recalled_now() {
            back.recalls(self.seat, &recalled);
        }
        let known = known.max(self.losses.cure(&back));
        self.tombstones.forgotten = self.losses.bound(known);
        self.tombstones.forgotten.max(self.losses.horizon())
    }

    /// If anybody has gone, all are asked whether they are complete.
    fn want_complete(&mut self) {
        self.incomplete.clear();
        if self.losses.is_empty() {
            return;
        }
        let others = seats(&self.map).filter(|seat| *seat != self.seat);
        self.incomplete = others.map(|seat| (seat, None)).collect();
        if self.incomplete.is_empty() {
            self.end_group();
        }
    }

    /// All homes are complete.
    fn end_group(&mut self) {
        self.losses.settle();
        self.tombstones.forgotten = self.losses.bound(self.tombstones.forgotten);
    }

    /// Asks those who may not be complete, a bounded number at once.
    pub(super) fn ask_incomplete(&mut self, now: Time, out: Out<'_>) {
        let is_asked = |asked: &Option<Time>| asked.is_some_and(|at| now < at + RESEND);
        let under_way = self.incomplete.values().filter(|asked| is_asked(asked));
        let room = REPORTS_UNDER_WAY_MAX.saturating_sub(under_way.count());
        let due = self.incomplete.iter_mut();
        let due = due.filter(|(_, asked)| !is_asked(asked));
        for (&seat, asked) in due.take(room) {
            *asked = Some(now);
            out.push(HomeAction::ToPeer(seat, ToPeer::CompleteWanted));
        }
    }

    fn on_complete(&mut self, from: Seat) {
        let was_asked = self.incomplete.remove(&from).is_some();
        if was_asked && self.incomplete.is_empty() {
            self.end_group();
        }
    }

    /// Forgets some of the records whose keys moved to other homes. Copies of the others that nobody could
    /// take may have found somebody.
    pub(super) fn sweep_some(&mut self, now: Time) {
        let Some(after) = self.sweep else {
            return;
        };
        let keys = self.table.keys_after(after, super::KEYS_PER_TICK_MAX);
        for &key in &keys {
            if !self.is_home_of(key) {
                self.table.forget_key(key);
                self.unjudged.remove(&key);
            } else if !self.unjudged.contains(&key) {
                self.note_copies(now, key);
            }
        }
        self.sweep = keys.last().map(|&key| Some(key));
    }
}
