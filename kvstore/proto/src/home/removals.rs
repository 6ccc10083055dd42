//! Changes: removals and upserts, which end when nobody holds what they make obsolete.

use lunette_cluster_proto::fence::Act;
use lunette_cluster_proto::fence::NamespaceKind;
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use super::limits::RESEND;
use super::lookups::found;
use super::table::Standing;
use super::waiting::{Request, Waiter};
use super::{Home, HomeAction, Out};
use crate::key::Fingerprint;
use crate::message::directory::{Answer, AskerId, Only, OpId, ToOwner, ToPeer};
use crate::placement::{Seat, home_of, next_of};
use crate::version::{CopyInfo, Tombstone, Version};

/// Who is told that a change has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Author {
    Remover {
        asker: AskerId,
        request: RequestId,
        namespace: NamespaceKind,
        found: bool,
    },
    /// The owner of the upsert's copy.
    Owner(Seat, OpId),
    /// The author has been told that it is not known how this ends.
    Nobody,
}

/// A removal or an upsert under way. Nothing else begins at its key before it has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// Copies of earlier versions have to leave.
    pub(super) version: Version,
    author: Author,
    /// Until when its author waits.
    until: Time,
    /// Who keeps the tombstone too.
    buried: Burial,
    /// Until then somebody outside the map may be serving an older copy that this home never knew.
    quiet_until: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Burial {
    Wanted { asked: Option<Time> },
    Done,
}

impl Home {
    /// Whether it was answered or begun; otherwise it waits.
    pub(super) fn remove(&mut self, now: Time, request: Request, out: Out<'_>) -> bool {
        let Waiter::Remove {
            asker,
            request: id,
            namespace,
            only,
        } = request.waiter
        else {
            unreachable!("a removal");
        };
        let key = request.key;
        if self.permit(now, namespace, Act::Change).is_err() {
            self.conclude(now, asker, id, Answer::Unavailable, out);
            return true;
        }
        if !self.is_complete() {
            return false;
        }
        if self.changes.contains_key(&key) {
            // Asked twice, it is done once.
            return self.is_removing(asker, id, key);
        }
        // There is no room to remember that it was refused, which is remembered wherever there is.
        if self.answered.len() + self.changes.len() >= self.limits.answered_max {
            self.stats.full += 1;
            out.push(HomeAction::Answer(asker, id, Answer::Full));
            return true;
        }
        if self.changes.len() >= self.limits.changes_max {
            self.stats.full += 1;
            self.conclude(now, asker, id, Answer::Full, out);
            return true;
        }
        let winner = self.winner(key);
        if let Some(answer) = self.other_than(key, only, winner) {
            self.conclude(now, asker, id, answer, out);
            return true;
        }
        // What is being written has an earlier version and would be dead; its owner claims again.
        self.claims.remove(&key);
        self.forget_history(key);
        let found = winner.is_some();
        let version = self.next_version();
        let author = Author::Remover {
            asker,
            request: id,
            namespace,
            found,
        };
        self.change(now, key, version, author, request.until, out);
        true
    }

    /// What is there instead of what is to be removed. Nothing is done then.
    fn other_than(&self, key: Fingerprint, only: Only, winner: Option<CopyInfo>) -> Option<Answer> {
        match winner {
            Some(info) if !only.takes(&info) => Some(found(info, &self.visible(key))),
            None if matches!(only, Only::Version { .. }) => Some(Answer::Miss),
            _ => None,
        }
    }

    /// An upsert's copy is recorded: older ones leave, and then its owner is told.
    pub(super) fn replace(
        &mut self,
        now: Time,
        key: Fingerprint,
        (owner, op): (Seat, OpId),
        version: Version,
        out: Out<'_>,
    ) {
        self.change(now, key, version, Author::Owner(owner, op), Time::MAX, out);
        let waits = self.changes.contains_key(&key);
        let mut copies = self.table.copies(key).iter();
        if waits && copies.any(|copy| copy.info.version < version) {
            // Before those have left: nothing may be left otherwise, if another map comes first.
            let replacing = ToOwner::Replacing { op, key, version };
            out.push(HomeAction::ToOwner(owner, replacing));
        }
    }

    fn change(
        &mut self,
        now: Time,
        key: Fingerprint,
        version: Version,
        author: Author,
        until: Time,
        out: Out<'_>,
    ) {
        let generation = self.generation();
        self.keep_tombstone(
            now,
            key,
            Tombstone {
                version,
                generation,
            },
        );
        for copy in self.table.copies(key).to_vec() {
            let is_ordered = matches!(copy.standing, Standing::Leaving { .. });
            if copy.info.version < version && !is_ordered {
                self.expel(now, key, copy.seat, copy.info.version, out);
            }
        }
        let quiet_until = if self.was_elsewhere(key) {
            self.quiet_until
        } else {
            Time::ZERO
        };
        let buried = Burial::Wanted { asked: None };
        let change = Change {
            version,
            author,
            until,
            buried,
            quiet_until,
        };
        let known = self.changes.insert(key, change);
        assert!(known.is_none(), "one change of a key at a time");
        self.bury(now, key, out);
        self.end_change_if_done(now, key, out);
    }

    pub(super) fn keep_tombstone(&mut self, now: Time, key: Fingerprint, tombstone: Tombstone) {
        let is_lost = mutant::is_on(Mutant::TombstoneLost) && key.0.is_multiple_of(2);
        if !is_lost {
            let tombstones_max = self.limits.tombstones_max;
            if (self.tombstones).insert(now, key, tombstone, tombstones_max) {
                self.outdate(now);
            }
            // Who looks on may have been told of copies that it makes dead, before they are judged.
            if !self.table.copies(key).is_empty() {
                self.table.watched.note(key);
            }
        }
    }

    /// Whether this home may not know who held the key in the maps whose members may be serving.
    fn was_elsewhere(&self, key: Fingerprint) -> bool {
        let mut recent = self.recent.iter();
        self.has_gap || recent.any(|map| home_of(map, key) != Some(self.seat))
    }

    /// Sends the tombstone to the next node, or finds that there is none.
    fn bury(&mut self, now: Time, key: Fingerprint, out: Out<'_>) {
        let next = next_of(&self.map, key);
        let generation = self.generation();
        let Some(change) = self.changes.get_mut(&key) else {
            return;
        };
        let Burial::Wanted { asked } = &mut change.buried else {
            return;
        };
        if asked.is_some_and(|at| now < at + RESEND) {
            return;
        }
        let Some(next) = next else {
            change.buried = Burial::Done;
            return;
        };
        *asked = Some(now);
        let version = change.version;
        let tombstone = Tombstone {
            version,
            generation,
        };
        out.push(HomeAction::ToPeer(next, ToPeer::Bury { key, tombstone }));
    }

    pub(super) fn bury_again(&mut self, now: Time, out: Out<'_>) {
        let keys: Vec<Fingerprint> = self.changes.keys().copied().collect();
        for key in keys {
            self.bury(now, key, out);
        }
    }

    pub(super) fn buried(
        &mut self,
        now: Time,
        from: Seat,
        key: Fingerprint,
        version: Version,
        out: Out<'_>,
    ) {
        let is_next = next_of(&self.map, key) == Some(from);
        if let Some(change) = self.changes.get_mut(&key)
            && change.version == version
            && is_next
        {
            change.buried = Burial::Done;
            self.end_change_if_done(now, key, out);
        }
    }

    /// A change ends when no older copy is left with anybody who may be serving it.
    pub(super) fn end_change_if_done(&mut self, now: Time, key: Fingerprint, out: Out<'_>) {
        let Some(&change) = self.changes.get(&key) else {
            return;
        };
        let is_older = |standing: Standing| match standing {
            Standing::Departed { until } => now < until,
            _ => true,
        };
        let mut copies = self.table.copies(key).iter();
        let is_held =
            copies.any(|copy| copy.info.version < change.version && is_older(copy.standing));
        let is_done = self.is_complete()
            && !self.unjudged.contains(&key)
            && !is_held
            && change.buried == Burial::Done
            && !self.is_outdated()
            && now >= change.quiet_until.min(self.quiet_until);
        if !is_done {
            return;
        }
        self.changes.remove(&key);
        match change.author {
            Author::Remover {
                asker,
                request,
                namespace,
                found,
            } => {
                // Who lost its lease meanwhile cannot tell what others have done since.
                let answer = match self.permit(now, namespace, Act::Change) {
                    Ok(_) => Answer::Removed {
                        found,
                        version: change.version,
                    },
                    Err(_) => Answer::Interrupted,
                };
                self.conclude(now, asker, request, answer, out);
            }
            Author::Owner(seat, op) => {
                let version = change.version;
                let is_there = self.table.copy(key, seat, version);
                if is_there.is_some_and(|copy| copy.standing == Standing::Shown) {
                    let recorded = ToOwner::Recorded {
                        op,
                        key,
                        version,
                        is_cut_off: false,
                        order: self.last_order,
                    };
                    out.push(HomeAction::ToOwner(seat, recorded));
                }
            }
            Author::Nobody => {}
        }
        self.wake(now, key, out);
    }

    /// Changes that have ended by time.
    pub(super) fn end_changes(&mut self, now: Time, out: Out<'_>) {
        let keys: Vec<Fingerprint> = self.changes.keys().copied().collect();
        for key in keys {
            self.end_change_if_done(now, key, out);
        }
    }

    /// Authors who wait no longer, also where somebody has yet to report.
    pub(super) fn interrupt_late(&mut self, now: Time, out: Out<'_>) {
        let late = self
            .changes
            .iter()
            .filter(|(_, change)| now >= change.until);
        let keys: Vec<Fingerprint> = late.map(|(key, _)| *key).collect();
        for key in keys {
            self.interrupt(now, key, out);
        }
    }

    /// Whether this very removal is under way: its answer will come.
    pub(super) fn is_removing(&self, asker: AskerId, id: RequestId, key: Fingerprint) -> bool {
        let change = self.changes.get(&key);
        change.is_some_and(|change| {
            matches!(change.author,
                Author::Remover { asker: of, request, .. } if (of, request) == (asker, id))
        })
    }

    /// The author is told that it is not known how this ends. It goes on all the same.
    fn interrupt(&mut self, now: Time, key: Fingerprint, out: Out<'_>) {
        let change = self.changes.get_mut(&key).expect("a change under way");
        let author = core::mem::replace(&mut change.author, Author::Nobody);
        if let Author::Remover { asker, request, .. } = author {
            self.conclude(now, asker, request, Answer::Interrupted, out);
        }
    }

    /// The map has changed. Changes of keys that stay go on; the others are the next home's, which
    /// learns of the tombstones.
    pub(super) fn carry_changes(&mut self, now: Time, is_kept: bool, out: Out<'_>) {
        let keys: Vec<Fingerprint> = self.changes.keys().copied().collect();
        for key in keys {
            if is_kept && self.is_home_of(key) {
                let change = self.changes.get_mut(&key).expect("listed");
                change.buried = Burial::Wanted { asked: None };
            } else {
                self.interrupt(now, key, out);
                self.changes.remove(&key);
            }
        }
    }
}
