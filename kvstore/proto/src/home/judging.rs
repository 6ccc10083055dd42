//! Which copies of a key live, once everything is known.

use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use super::limits::{KEYS_PER_TICK_MAX, RESEND};
use super::table::{Copy, Standing};
use super::{Home, HomeAction, Out};
use crate::key::Fingerprint;
use crate::message::directory::{CopyPlace, ToOwner};
use crate::placement::Seat;
use crate::version::{CopyInfo, Version, WriteKind, survivor};

impl Home {
    pub(super) fn judge_if_due(&mut self, now: Time, key: Fingerprint, out: Out<'_>) {
        if self.unjudged.remove(&key) {
            self.judge(now, key, out);
        }
    }

    /// Some of what was reported. What nobody asks for can wait.
    pub(super) fn judge_some(&mut self, now: Time, out: Out<'_>) {
        for _ in 0..KEYS_PER_TICK_MAX {
            let Some(key) = self.unjudged.pop_first() else {
                return;
            };
            self.judge(now, key, out);
        }
    }

    /// Of what is left of a key, one version lives, in as many copies as are wanted.
    fn judge(&mut self, now: Time, key: Fingerprint, out: Out<'_>) {
        assert!(
            self.is_complete(),
            "who judges too early drops what should live"
        );
        if !self.is_home_of(key) {
            self.table.forget_key(key);
            return;
        }
        let present = |copy: &&Copy| {
            matches!(
                copy.standing,
                Standing::Unjudged { .. } | Standing::Shown | Standing::Joining { .. }
            )
        };
        let copies: Vec<Copy> = self
            .table
            .copies(key)
            .iter()
            .filter(present)
            .copied()
            .collect();
        // What it has had since is as good as any.
        let is_cold = |copy: &Copy| {
            let was_away = matches!(copy.standing, Standing::Unjudged { is_away: true });
            was_away && self.cold.contains(&copy.seat)
        };
        let (cold, mut known): (Vec<Copy>, Vec<Copy>) = copies.into_iter().partition(is_cold);
        self.stats.cold += cold.len() as u64;
        let versions = known.iter().map(|copy| (copy.info.version, copy.info.kind));
        let winner = survivor(self.tombstones.version(key), versions);
        let lives = |copy: &Copy| Some(copy.info.version) == winner;
        // Those whose owner was never away first, then in the order of seats.
        known.sort_by_key(|copy| (copy.standing != Standing::Shown, copy.seat));
        let (living, losers): (Vec<Copy>, Vec<Copy>) = known.into_iter().partition(lives);
        let (emptied, living): (Vec<Copy>, Vec<Copy>) = living
            .into_iter()
            .partition(|copy| self.is_emptied(copy.seat));
        self.stats.losers += losers.len() as u64;
        let any = living.iter().chain(&emptied).next();
        let wanted = any.map_or(0, |copy| usize::from(copy.info.wanted.max(1)));
        let kept = if mutant::is_on(Mutant::SurplusMiscounted) && living.len() > wanted {
            0
        } else {
            wanted.min(living.len())
        };
        let (kept, surplus) = living.split_at(kept);
        // What is to be emptied is needed until there is enough without it.
        let is_there = |copy: &&Copy| !matches!(copy.standing, Standing::Joining { .. });
        let is_enough = match kept.iter().filter(is_there).count() {
            0 => false,
            there => there >= wanted.min(self.repairs.takers()),
        };
        let (needed, spare) = emptied.split_at(if is_enough { 0 } else { emptied.len() });
        self.stats.surplus += (surplus.len() + spare.len()) as u64;
        for copy in kept.iter().chain(needed) {
            if !matches!(copy.standing, Standing::Joining { .. }) {
                let version = copy.info.version;
                self.table
                    .set_standing(key, copy.seat, version, Standing::Shown);
            }
        }
        for copy in cold.iter().chain(&losers).chain(surplus).chain(spare) {
            self.expel(now, key, copy.seat, copy.info.version, out);
        }
        if wanted > 1 || !needed.is_empty() {
            self.note_copies(now, key);
        }
        self.end_change_if_done(now, key, out);
        self.wake(now, key, out);
    }

    /// A copy is shown no more, and its owner is told to drop it.
    pub(super) fn expel(
        &mut self,
        now: Time,
        key: Fingerprint,
        seat: Seat,
        version: Version,
        out: Out<'_>,
    ) {
        let Some(copy) = self.table.copy(key, seat, version) else {
            return;
        };
        if matches!(copy.standing, Standing::Departed { .. }) {
            return;
        }
        let (order, was_recorded) = match copy.standing {
            Standing::Leaving {
                order,
                was_recorded,
                ..
            } => (order, was_recorded),
            _ => (self.next_order(), self.is_acknowledged(key, &copy)),
        };
        let standing = Standing::Leaving {
            told: now,
            order,
            was_recorded,
        };
        self.table.set_standing(key, seat, version, standing);
        out.push(HomeAction::ToOwner(
            seat,
            ToOwner::Drop {
                key,
                version,
                order,
                was_recorded,
            },
        ));
        if copy.info.wanted > 1 {
            self.note_copies(now, key);
        }
    }

    /// Whether the write of a copy has been told that it has succeeded, if not in vain.
    fn is_acknowledged(&self, key: Fingerprint, copy: &Copy) -> bool {
        let (version, kind) = (copy.info.version, copy.info.kind);
        // One of an earlier epoch may be known because it was reported.
        let is_unsure = kind == WriteKind::Upsert && version.epoch < self.map.epoch();
        let change = self.changes.get(&key);
        let is_changing = change.is_some_and(|change| change.version == version);
        copy.standing == Standing::Shown && !is_unsure && !is_changing
    }

    pub(super) const fn next_order(&mut self) -> u64 {
        self.last_order += 1;
        self.last_order
    }

    /// What was not heeded, or whose answer was lost, is said again.
    pub(super) fn tell_again(&mut self, now: Time, out: Out<'_>) {
        let resend_ns = u64::try_from(RESEND.as_nanos()).expect("a short time");
        let before = Time::from_ns(now.as_ns().saturating_sub(resend_ns));
        for (CopyPlace { key, version }, copy) in self.table.unheeded(before, KEYS_PER_TICK_MAX) {
            if !self.is_home_of(key) {
                // Its next home knows better.
                self.table.forget_key(key);
                continue;
            }
            let seat = copy.seat;
            let Standing::Joining { op, .. } = copy.standing else {
                self.expel(now, key, seat, version, out);
                continue;
            };
            let standing = Standing::Joining { told: now, op };
            self.table.set_standing(key, seat, version, standing);
            // A replica has no writer who would have to know.
            let is_cut_off = false;
            let recorded = ToOwner::Recorded {
                op,
                key,
                version,
                is_cut_off,
                order: self.last_order,
            };
            out.push(HomeAction::ToOwner(seat, recorded));
        }
    }

    /// What can be shown of a key while not everything is known: nothing of owners that were away, and of replicas that
    /// join where there is nothing else.
    pub(super) fn visible(&self, key: Fingerprint) -> Vec<(Seat, CopyInfo)> {
        let is_there = |standing| match standing {
            Standing::Shown => true,
            Standing::Unjudged { is_away } => !is_away,
            Standing::Leaving { .. } | Standing::Joining { .. } | Standing::Departed { .. } => {
                false
            }
        };
        let there = self.survivors(key, is_there);
        if there.is_empty() {
            return self.survivors(key, |standing| matches!(standing, Standing::Joining { .. }));
        }
        there
    }

    /// The copies of the version that lives, if no others are there.
    fn survivors(
        &self,
        key: Fingerprint,
        is_there: impl Fn(Standing) -> bool,
    ) -> Vec<(Seat, CopyInfo)> {
        let copies = self.table.copies(key).iter();
        let there = copies.filter(|copy| is_there(copy.standing));
        let versions = (there.clone()).map(|copy| (copy.info.version, copy.info.kind));
        let winner = survivor(self.tombstones.version(key), versions);
        let alive = there.filter(|copy| Some(copy.info.version) == winner);
        alive.map(|copy| (copy.seat, copy.info)).collect()
    }
}
