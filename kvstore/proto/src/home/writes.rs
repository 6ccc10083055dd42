//! Claims and publications: how a copy comes to be recorded; retractions: how it leaves.

use lunette_cluster_proto::fence::{Act, Standing as Lease};
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use super::table::{Copy, Standing};
use super::waiting::{Request, Waiter};
use super::{Home, HomeAction, Out, Phase};
use crate::key::Fingerprint;
use crate::message::directory::{OpId, Refusal, ToOwner};
use crate::placement::Seat;
use crate::version::{CopyInfo, Version, WriteKind};

/// The right to write a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) seat: Seat,
    pub(super) op: OpId,
    pub(super) kind: WriteKind,
    pub(super) version: Version,
    /// A claimant that is gone blocks its key no longer.
    pub(super) until: Time,
}

/// What a write is to the fence: an upsert replaces what others may be reading.
const fn act_of(kind: WriteKind) -> Act {
    match kind {
        WriteKind::Put => Act::LocalPut,
        WriteKind::Upsert => Act::Change,
    }
}

impl Home {
    /// Whether it was answered; otherwise it waits.
    pub(super) fn claim(&mut self, now: Time, request: Request, out: Out<'_>) -> bool {
        let Waiter::Claim {
            seat,
            op,
            kind,
            namespace,
        } = request.waiter
        else {
            unreachable!("a claim");
        };
        let key = request.key;
        let refused = |refusal| HomeAction::ToOwner(seat, ToOwner::Refused { op, key, refusal });
        if self.permit(now, namespace, act_of(kind)).is_err() {
            out.push(refused(Refusal::Fenced));
            return true;
        }
        if !self.is_complete() {
            return false;
        }
        if let Some(&claim) = self.claims.get(&key) {
            let is_same = (claim.seat, claim.op) == (seat, op);
            let is_ignored = mutant::is_on(Mutant::ClaimUnchecked);
            if is_same {
                self.grant(key, claim, out);
                return true;
            }
            if now < claim.until && !is_ignored {
                return false;
            }
        }
        if self.changes.contains_key(&key) {
            return false;
        }
        let winner = self.winner(key).map(|info| info.version);
        if let (WriteKind::Put, Some(version)) = (kind, winner)
            && !mutant::is_on(Mutant::ClaimUnchecked)
        {
            out.push(HomeAction::ToOwner(
                seat,
                ToOwner::Exists { op, key, version },
            ));
            return true;
        }
        let is_full = self.table.len() >= self.limits.copies_max
            || self.claims.len() >= self.limits.claims_max;
        if is_full {
            self.stats.full += 1;
            out.push(refused(Refusal::Full));
            return true;
        }
        let version = self.next_version();
        let until = request.until;
        let claim = Claim {
            seat,
            op,
            kind,
            version,
            until,
        };
        self.claims.insert(key, claim);
        self.grant(key, claim, out);
        true
    }

    fn grant(&self, key: Fingerprint, claim: Claim, out: Out<'_>) {
        let Claim {
            seat, op, version, ..
        } = claim;
        let generation = self.generation();
        let granted = ToOwner::Granted {
            op,
            key,
            version,
            generation,
        };
        out.push(HomeAction::ToOwner(seat, granted));
    }

    /// Whether it was answered; otherwise it waits.
    pub(super) fn publish(&mut self, now: Time, request: Request, out: Out<'_>) -> bool {
        let Waiter::Publish {
            seat,
            op,
            info,
            namespace,
        } = request.waiter
        else {
            unreachable!("a publication");
        };
        let (key, version) = (request.key, info.version);
        let Ok(lease) = self.permit(now, namespace, act_of(info.kind)) else {
            // The owner asks again until its writer's time is over. Nothing else is right: it may be
            // recorded already.
            return true;
        };
        if !self.is_complete() {
            return false;
        }
        if let Some(known) = self.table.copy(key, seat, version) {
            return self.published_again(now, key, known, (op, lease), out);
        }
        if self.changes.contains_key(&key) {
            return false;
        }
        let claim = self.claims.get(&key).copied();
        let is_claimed = claim
            .is_some_and(|claim| (claim.seat, claim.op, claim.version) == (seat, op, version))
            || mutant::is_on(Mutant::PublishUnclaimed);
        let is_missing = self.live_count(key) < usize::from(info.wanted.max(1));
        let winner = self.winner(key).filter(|_| is_missing);
        let is_wanted = winner.is_some_and(|winner| winner.version == version);
        let standing = match (is_claimed, is_wanted) {
            (true, _) => Standing::Shown,
            (false, true) => Standing::Joining { told: now, op },
            (false, false) => {
                out.push(HomeAction::ToOwner(
                    seat,
                    ToOwner::Lost { op, key, version },
                ));
                return true;
            }
        };
        let copy = Copy {
            seat,
            info,
            standing,
        };
        let is_recorded = self.table.insert(key, copy, self.limits.copies_max).is_ok();
        if is_claimed {
            self.claims.remove(&key);
        }
        if is_claimed && is_recorded {
            self.pass_history(seat, key);
        }
        if !is_recorded {
            self.stats.full += 1;
            out.push(HomeAction::ToOwner(
                seat,
                ToOwner::Lost { op, key, version },
            ));
        } else if is_claimed && info.kind == WriteKind::Upsert {
            self.replace(now, key, (seat, op), version, out);
        } else {
            self.acknowledge(key, seat, version, (op, lease), out);
        }
        if info.wanted > 1 || self.is_emptied(seat) {
            self.note_copies(now, key);
        }
        self.wake(now, key, out);
        true
    }

    /// A copy that is recorded is published again: its owner has not heard that it is.
    ///
    /// An upsert of an earlier epoch may have been recorded because it was reported. Whether all who
    /// held older copies have dropped them is not known then, so the change is made once more.
    fn published_again(
        &mut self,
        now: Time,
        key: Fingerprint,
        known: Copy,
        (op, lease): (OpId, Lease),
        out: Out<'_>,
    ) -> bool {
        let (seat, version) = (known.seat, known.info.version);
        let is_unsure = known.info.kind == WriteKind::Upsert && version.epoch < self.map.epoch();
        match (known.standing, self.changes.get(&key)) {
            // Of a replica that its owner has dropped since, before it took the one that is known. Believed, it would
            // be asked for ever after, and never be there.
            (Standing::Joining { op: its, .. }, _) if op < its => {}
            (Standing::Joining { .. }, _) => {
                let standing = Standing::Joining { told: now, op };
                self.table.set_standing(key, seat, version, standing);
                self.acknowledge(key, seat, version, (op, lease), out);
            }
            (Standing::Shown, Some(change)) if change.version != version => return false,
            (Standing::Shown, None) if is_unsure => {
                self.replace(now, key, (seat, op), version, out);
            }
            (Standing::Shown, _) => self.acknowledge(key, seat, version, (op, lease), out),
            _ => out.push(HomeAction::ToOwner(
                seat,
                ToOwner::Lost { op, key, version },
            )),
        }
        true
    }

    /// The writer is told, unless older copies have to leave before: then the owner is, so that this one stays.
    fn acknowledge(
        &self,
        key: Fingerprint,
        seat: Seat,
        version: Version,
        (op, lease): (OpId, Lease),
        out: Out<'_>,
    ) {
        if self
            .changes
            .get(&key)
            .is_some_and(|change| change.version == version)
        {
            let replacing = ToOwner::Replacing { op, key, version };
            out.push(HomeAction::ToOwner(seat, replacing));
            return;
        }
        let is_cut_off = lease == Lease::CutOff;
        let recorded = ToOwner::Recorded {
            op,
            key,
            version,
            is_cut_off,
            order: self.last_order,
        };
        out.push(HomeAction::ToOwner(seat, recorded));
    }

    /// The owner of a replica says that it is there: it is shown, if the object still is.
    pub(super) fn kept(
        &mut self,
        now: Time,
        seat: Seat,
        key: Fingerprint,
        (version, op): (Version, OpId),
        out: Out<'_>,
    ) {
        let known = self.table.copy(key, seat, version);
        let is_joining = known.is_some_and(
            |copy| matches!(copy.standing, Standing::Joining { op: its, .. } if its == op),
        );
        if !is_joining || !self.is_complete() {
            return;
        }
        self.judge_if_due(now, key, out);
        let still = self
            .table
            .copy(key, seat, version)
            .map(|copy| copy.standing);
        if !matches!(still, Some(Standing::Joining { .. })) {
            return;
        }
        if self
            .winner(key)
            .is_some_and(|winner| winner.version == version)
        {
            self.table.set_standing(key, seat, version, Standing::Shown);
            let copies = self.table.copies(key).iter();
            if copies.clone().any(|copy| self.is_emptied(copy.seat)) {
                // It may be the one for which another one was kept.
                self.unjudged.insert(key);
            }
        } else {
            self.expel(now, key, seat, version, out);
        }
    }

    pub(super) fn abandon(
        &mut self,
        now: Time,
        seat: Seat,
        op: OpId,
        key: Fingerprint,
        out: Out<'_>,
    ) {
        let is_meant = |waiter: &Waiter| matches!(waiter, Waiter::Claim { seat: of, op: its, .. } if (*of, *its) == (seat, op));
        self.waiting.forget(key, is_meant);
        let claim = self.claims.get(&key);
        if claim.is_some_and(|claim| (claim.seat, claim.op) == (seat, op)) {
            self.claims.remove(&key);
            self.wake(now, key, out);
        }
    }

    /// An owner wants to give a copy up: it is shown no more, and then the owner is told to drop it.
    ///
    /// While this owner's report is not complete there is no answer: a page of it that is on its way
    /// would record the copy again after it was dropped.
    pub(super) fn retract(
        &mut self,
        now: Time,
        seat: Seat,
        key: Fingerprint,
        (version, reuses): (Version, u8),
        out: Out<'_>,
    ) {
        if matches!(&self.phase, Phase::Rebuilding(rebuild) if !rebuild.knows(seat)) {
            return;
        }
        let claim = self.claims.get(&key);
        if claim.is_some_and(|claim| (claim.seat, claim.version) == (seat, version)) {
            self.claims.remove(&key);
        }
        let is_known = self.table.copy(key, seat, version).is_some();
        if is_known {
            self.note_history(seat, key, reuses);
        }
        if is_known && !mutant::is_on(Mutant::RetractUnrecorded) {
            self.expel(now, key, seat, version, out);
        } else {
            let order = self.next_order();
            out.push(HomeAction::ToOwner(
                seat,
                ToOwner::Drop {
                    key,
                    version,
                    order,
                    was_recorded: false,
                },
            ));
        }
        self.wake(now, key, out);
    }

    /// An owner has dropped a copy.
    pub(super) fn dropped(
        &mut self,
        now: Time,
        seat: Seat,
        key: Fingerprint,
        (version, order): (Version, u64),
        out: Out<'_>,
    ) {
        let Some(known) = self.table.copy(key, seat, version) else {
            return;
        };
        match known.standing {
            Standing::Leaving { order: its, .. } if its == order => {
                self.table.remove(key, seat, version);
                // Its owner may take another, of a version that lives, whatever this one's writer wanted.
                self.note_copies(now, key);
                self.end_change_if_done(now, key, out);
                self.wake(now, key, out);
            }
            // An order that was repeated on its way has met a copy that came later.
            Standing::Shown | Standing::Joining { .. }
                if self.is_complete() && !mutant::is_on(Mutant::RetractUnrecorded) =>
            {
                self.expel(now, key, seat, version, out);
            }
            _ => {}
        }
    }

    pub(super) fn end_claims(&mut self, now: Time, out: Out<'_>) {
        let claims = self.claims.iter();
        let over: Vec<Fingerprint> = claims
            .filter(|(_, claim)| now >= claim.until)
            .map(|(&key, _)| key)
            .collect();
        for key in over {
            self.claims.remove(&key);
            self.wake(now, key, out);
        }
    }

    /// The number of copies of a key that live, or are about to, but for those of members that are to be emptied.
    pub(super) fn live_count(&self, key: Fingerprint) -> usize {
        let copies = self.table.copies(key).iter();
        let is_live =
            |copy: &&Copy| matches!(copy.standing, Standing::Shown | Standing::Joining { .. });
        let counted = copies.filter(|copy| !self.is_emptied(copy.seat));
        counted.filter(is_live).count()
    }

    /// What lives under a key: an object that all may rely on.
    pub(super) fn winner(&self, key: Fingerprint) -> Option<CopyInfo> {
        let alive = alive(self.table.copies(key), self.tombstones.version(key));
        alive.map(|copy| copy.info).min_by_key(|info| info.version)
    }
}

/// Those of a key's copies that all may rely on, if this is the version of its tombstone: an object is not gone with the
/// last one that is shown while a replica of it joins. Who is sent there is told to ask again until it has.
pub(super) fn alive(
    copies: &[Copy],
    tombstone: Option<Version>,
) -> impl Iterator<Item = &Copy> + '_ {
    let lives = move |copy: &&Copy| Some(copy.info.version) >= tombstone;
    let is_shown = |copy: &&Copy| copy.standing == Standing::Shown;
    let is_any_shown = copies.iter().filter(is_shown).any(|copy| lives(&copy));
    let counts = move |copy: &&Copy| match copy.standing {
        Standing::Shown => true,
        Standing::Joining { .. } => !is_any_shown,
        _ => false,
    };
    copies.iter().filter(counts).filter(lives)
}
