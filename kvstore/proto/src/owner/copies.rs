//! What is held: served, retracted, dropped.

use core::time::Duration;

use lunette_cluster_proto::fence::{Act, NamespaceKind, Standing};
use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::ids::{NodeId, RequestId};
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;
use thiserror::Error;

use super::limits::HOLD_MAX;
use super::{FreeCause, Out, Owner, OwnerAction, WriteAnswer};
use crate::key::Fingerprint;
use crate::message::directory::{Answer, AskerId, CopyPlace, Found, HoldWish, OpId, ToHome};
use crate::placement::{Seat, has_seat, home_of};
use crate::version::{CopyInfo, Generation, Version};

/// Where a copy is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A replica of what is recorded, which is not recorded itself yet.
    Joining {
        asked: Time,
    },
    Published,
    /// The home has been asked to let it go. It is served meanwhile, unless the map has changed
    /// since: then its bytes are freed, and the home is only told.
    Retracting {
        asked: Time,
        is_freed: bool,
        /// How often it was used after the first time.
        reuses: u8,
    },
}

/// A copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// The write, or the arrival of a replica.
    op: OpId,
    pub(super) info: CopyInfo,
    namespace: NamespaceKind,
    pub(super) state: State,
    /// In which epoch its home became its home.
    pub(super) moved_in: Epoch,
    /// The epoch in which it was recorded, and the last order of its home by then.
    recorded: (Epoch, u64),
}

impl Held {
    pub(super) const fn new(
        op: OpId,
        info: CopyInfo,
        namespace: NamespaceKind,
        state: State,
        moved_in: Epoch,
    ) -> Self {
        Self {
            op,
            info,
            namespace,
            state,
            moved_in,
            recorded: (Epoch(0), 0),
        }
    }

    pub(super) fn is_recorded(&mut self, epoch: Epoch, order: u64) {
        self.recorded = self.recorded.max((epoch, order));
    }

    /// Whether an order was given to a copy that was here before this one.
    const fn came_after(&self, epoch: Epoch, order: u64) -> bool {
        self.recorded.0.0 == epoch.0 && order <= self.recorded.1
    }

    pub(super) const fn namespace(&self) -> NamespaceKind {
        self.namespace
    }

    pub(super) const fn is_published(&self) -> bool {
        matches!(self.state, State::Published)
    }

    /// Whether who was sent here finds it.
    const fn is_served(&self) -> bool {
        matches!(
            self.state,
            State::Published
                | State::Retracting {
                    is_freed: false,
                    ..
                }
        )
    }
}

/// What a read finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// These bytes: pin them and send them.
    Served {
        /// The copy.
        place: CopyPlace,
        /// What it is.
        info: CopyInfo,
        /// The node is cut off, in a cache namespace: it may have been removed meanwhile.
        is_cut_off: bool,
    },
    /// No such copy. Ask the home again.
    Absent,
    /// The node is cut off, or was, and may not tell. Ask again later, or another owner.
    Unavailable,
}

/// Which copy of a key a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// This version: its home has named it.
    Version(Version),
    /// The latest, for somebody who knows the map of this epoch, and has not asked the home.
    Latest(Epoch),
}

/// Why a copy is not evicted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum EvictRefusal {
    /// It is held for somebody.
    #[error("it is held for somebody")]
    Held {
        /// Until when.
        until: Time,
    },
    /// It is not a published copy, or is leaving already.
    #[error("it is no published copy")]
    NotPublished,
}

impl Owner {
    /// Reads a key: that version, or the latest that is served here without its home being asked.
    pub fn read(
        &mut self,
        now: Time,
        key: Fingerprint,
        sought: Sought,
        namespace: NamespaceKind,
    ) -> Read {
        let Ok(standing) = self.permit(now, namespace, Act::Read) else {
            return Read::Unavailable;
        };
        let version = match sought {
            Sought::Version(version) => version,
            Sought::Latest(epoch) => match self.latest(now, key, epoch) {
                Some(version) => version,
                None => return Read::Absent,
            },
        };
        let place = CopyPlace { key, version };
        match self.copies.get(place) {
            Some(held) if held.is_served() => Read::Served {
                place,
                info: held.info,
                is_cut_off: standing == Standing::CutOff,
            },
            _ => Read::Absent,
        }
    }

    /// The latest version that may be spoken of without its home being asked.
    ///
    /// Of a member that was away, none is before all that it has is judged: it may have been removed meanwhile, and its home knows.
    /// Who is cut off may speak of all that it has, where it may speak at all, to who knows no later map: one that does knows
    /// that it is a member again, or is not.
    pub(super) fn latest(&self, now: Time, key: Fingerprint, epoch: Epoch) -> Option<Version> {
        let is_member = has_seat(&self.map, self.seat) && self.fence.is_leased(now);
        let is_sure = match is_member {
            true => self.away.is_none() || mutant::is_on(Mutant::UnjudgedServed),
            false => epoch <= self.map.epoch(),
        };
        self.copies.latest(key).filter(|_| is_sure)
    }

    /// Answers a lookup that a home forwarded.
    pub(super) fn serve(
        &mut self,
        now: Time,
        home: Seat,
        (asker, request): (AskerId, RequestId),
        place: CopyPlace,
        (namespace, hold): (NamespaceKind, HoldWish),
        out: Out<'_>,
    ) {
        let CopyPlace { key, version } = place;
        let info = match self.read(now, key, Sought::Version(version), namespace) {
            Read::Served { info, .. } => info,
            Read::Unavailable => {
                out.push(OwnerAction::Answer(asker, request, Answer::Unavailable));
                return;
            }
            // The home has recorded it, and is about to say so.
            Read::Absent if self.is_arriving(place) => {
                out.push(OwnerAction::Answer(asker, request, Answer::Busy));
                return;
            }
            Read::Absent => {
                let gone = ToHome::Gone {
                    asker,
                    request,
                    key,
                    version,
                    namespace,
                    hold,
                };
                out.push(OwnerAction::ToHome(home, gone));
                return;
            }
        };
        let held_ms = self.hold(now, place, hold);
        let found = Found {
            version,
            form: info.form,
            len_bytes: info.len_bytes,
            crc32c: info.crc32c,
            held_ms,
            owners: vec![self.seat],
        };
        out.push(OwnerAction::Answer(asker, request, Answer::Found(found)));
    }

    /// Keeps a copy from eviction: for how long, in milliseconds. 0 if it is not held: it is leaving already, or
    /// as much is held as may be.
    pub fn hold(&mut self, now: Time, place: CopyPlace, hold: HoldWish) -> u32 {
        let ttl = Duration::from_millis(hold.ttl_ms.into()).min(HOLD_MAX);
        // What is leaving cannot be held any more.
        let held = self.copies.get(place).filter(|held| held.is_published());
        let is_held = held.is_some_and(|held| {
            let len_bytes = held.info.len_bytes;
            (self.holds).hold(place, hold.holder, now + ttl, len_bytes, &self.limits)
        });
        if is_held {
            u32::try_from(ttl.as_millis()).expect("HOLD_MAX fits")
        } else {
            0
        }
    }

    /// Whether somebody relies on where a copy lies.
    #[must_use]
    pub fn is_held(&self, now: Time, place: CopyPlace) -> bool {
        self.holds.until(place).is_some_and(|until| now < until)
    }

    fn is_arriving(&self, place: CopyPlace) -> bool {
        let held = self.copies.get(place);
        let is_joining = held.is_some_and(|held| matches!(held.state, State::Joining { .. }));
        is_joining || self.publishing(place).is_some()
    }

    /// Memory is wanted: the copy is to leave. It stays until the home has recorded that. `reuses`: how often it was used
    /// after the first time, for who has the key next.
    ///
    /// # Errors
    /// [`EvictRefusal`]: choose another.
    pub fn evict(
        &mut self,
        now: Time,
        place: CopyPlace,
        reuses: u8,
        out: Out<'_>,
    ) -> Result<(), EvictRefusal> {
        let held = self.copies.get(place).filter(|held| held.is_published());
        if held.is_none() {
            return Err(EvictRefusal::NotPublished);
        }
        if let Some(until) = self.held_until(now, place) {
            return Err(EvictRefusal::Held { until });
        }
        self.retract(now, place, reuses, out);
        Ok(())
    }

    /// Until when a copy is held, if it is.
    #[must_use]
    pub fn held_until(&self, now: Time, place: CopyPlace) -> Option<Time> {
        let until = self.holds.until(place);
        until.filter(|until| now < *until && !mutant::is_on(Mutant::HoldIgnored))
    }

    /// Whether a copy is here, or arriving, and not leaving.
    #[must_use]
    pub fn stays(&self, place: CopyPlace) -> bool {
        let held = self.copies.get(place);
        held.is_some_and(Held::is_published) || self.is_arriving(place)
    }

    /// Its bytes are gone: the copy leaves, whatever was promised of it. Whether it does; one that is arriving cannot yet, and
    /// [`stays`](Self::stays).
    pub fn lose(&mut self, now: Time, place: CopyPlace, reuses: u8, out: Out<'_>) -> bool {
        let held = self.copies.get(place);
        let leaves = held.is_some_and(Held::is_published);
        if leaves {
            self.holds.forget(place);
            self.retract(now, place, reuses, out);
        }
        leaves
    }

    pub(super) fn retract(&mut self, now: Time, place: CopyPlace, reuses: u8, out: Out<'_>) {
        let held = self.copies.get_mut(place).expect("a copy that is here");
        let is_freed = false;
        held.state = State::Retracting {
            asked: now,
            is_freed,
            reuses,
        };
        self.asking.insert(place);
        self.ask_about(now, place, out);
    }

    /// A replica of a recorded version is here, whole. Whether it may be kept: it is dropped unless
    /// the home still wants it.
    pub fn replica(
        &mut self,
        now: Time,
        key: Fingerprint,
        info: CopyInfo,
        namespace: NamespaceKind,
        out: Out<'_>,
    ) -> bool {
        let place = CopyPlace {
            key,
            version: info.version,
        };
        let is_known = self.copies.contains(place) || self.publishing(place).is_some();
        let is_full = self.copies.len() + self.writes.len() >= self.limits.copies_max;
        if is_known || is_full || info.generation < self.generation() {
            return false;
        }
        let state = State::Joining { asked: now };
        let op = self.next_op();
        let held = Held::new(op, info, namespace, state, self.map.epoch());
        self.copies.insert(key, held);
        self.asking.insert(place);
        self.ask_about(now, place, out);
        true
    }

    /// The home says that copies are missing. One that is leaving is no source of others: the home asks
    /// somebody else, or again.
    pub(super) fn replicate(
        &self,
        place: CopyPlace,
        missing: u8,
        holders: Vec<NodeId>,
        out: Out<'_>,
    ) {
        let held = self.copies.get(place).filter(|held| held.is_published());
        let Some(&Held {
            info, namespace, ..
        }) = held
        else {
            return;
        };
        out.push(OwnerAction::Replicate {
            place,
            info,
            namespace,
            missing,
            holders,
        });
    }

    /// The home says how often a key had been used before it came here.
    pub(super) fn was_used(&self, key: Fingerprint, reuses: u8, out: Out<'_>) {
        if let Some(version) = self.copies.latest(key) {
            out.push(OwnerAction::WasUsed(CopyPlace { key, version }, reuses));
        }
    }

    pub(super) const fn generation(&self) -> Generation {
        Generation(self.map.generation())
    }

    /// Asks the home about a copy that joins or leaves.
    pub(super) fn ask_about(&mut self, now: Time, place: CopyPlace, out: Out<'_>) {
        let held = self.copies.get_mut(place).expect("a copy that is here");
        let CopyPlace { key, version } = place;
        let item = match &mut held.state {
            State::Joining { asked } => {
                *asked = now;
                let (op, info, namespace) = (held.op, held.info, held.namespace);
                ToHome::Publish {
                    op,
                    key,
                    info,
                    namespace,
                }
            }
            State::Retracting { asked, reuses, .. } => {
                *asked = now;
                let reuses = *reuses;
                ToHome::Retract {
                    key,
                    version,
                    reuses,
                }
            }
            State::Published => unreachable!("nothing is asked about a published copy"),
        };
        if let Some(home) = home_of(&self.map, key) {
            out.push(OwnerAction::ToHome(home, item));
        }
    }

    /// Asks again where no answer has come since `before`.
    pub(super) fn ask_again(&mut self, now: Time, before: Time, out: Out<'_>) {
        let asking: Vec<CopyPlace> = self.asking.iter().copied().collect();
        for place in asking {
            match self.copies.get(place).expect("listed").state {
                State::Joining { asked } | State::Retracting { asked, .. } if asked <= before => {
                    self.ask_about(now, place, out);
                }
                _ => {}
            }
        }
    }

    /// A copy that no write publishes any more is recorded: a replica, or one that is gone.
    pub(super) fn keep(
        &mut self,
        home: Seat,
        (op, order): (OpId, u64),
        place: CopyPlace,
        out: Out<'_>,
    ) {
        let CopyPlace { key, version } = place;
        let epoch = self.map.epoch();
        let item = match self.copies.get_mut(place) {
            None => ToHome::Retract {
                key,
                version,
                reuses: 0,
            },
            // Said of one that was here before.
            Some(held) if held.op != op => return,
            Some(held) => {
                held.is_recorded(epoch, order);
                if matches!(held.state, State::Joining { .. }) {
                    held.state = State::Published;
                    held.moved_in = epoch;
                    self.asking.remove(&place);
                    self.by_home.entry(home).or_default().insert(place, ());
                }
                ToHome::Kept { op, key, version }
            }
        };
        out.push(OwnerAction::ToHome(home, item));
    }

    /// A replica is not wanted.
    pub(super) fn has_not_joined(&mut self, op: OpId, place: CopyPlace, out: Out<'_>) {
        let held = self.copies.get(place).filter(|held| held.op == op);
        if held.is_some_and(|held| matches!(held.state, State::Joining { .. })) {
            self.free(place, FreeCause::Unrecorded, out);
        }
    }

    /// The home orders it: the copy goes, whatever it is.
    pub(super) fn drop_copy(
        &mut self,
        now: Time,
        home: Seat,
        place: CopyPlace,
        (order, was_recorded): (u64, bool),
        out: Out<'_>,
    ) {
        let CopyPlace { key, version } = place;
        let held = self.copies.get(place);
        if held.is_some_and(|held| held.came_after(self.map.epoch(), order)) {
            return;
        }
        match self.publishing(place) {
            // The message that it is recorded was overtaken, or is lost.
            Some(publishing) if was_recorded => {
                self.publish(
                    now,
                    publishing,
                    (place, order.saturating_sub(1)),
                    false,
                    out,
                );
            }
            Some((write, _)) => {
                self.unlist(place);
                out.push(OwnerAction::Discard(write.op));
                self.conclude(now, key, WriteAnswer::Interrupted, out);
            }
            None => {}
        }
        if let Some(held) = self.copies.get(place) {
            let cause = match held.state {
                State::Retracting { .. } => FreeCause::Evicted,
                State::Published => FreeCause::Ordered,
                State::Joining { .. } => FreeCause::Unrecorded,
            };
            self.free(place, cause, out);
        }
        let dropped = ToHome::Dropped {
            key,
            version,
            order,
        };
        out.push(OwnerAction::ToHome(home, dropped));
    }

    /// Forgets a copy, and frees its bytes if they are still there.
    pub(super) fn free(&mut self, place: CopyPlace, cause: FreeCause, out: Out<'_>) {
        let held = self.copies.remove(place).expect("a copy that is here");
        self.asking.remove(&place);
        self.unlist(place);
        self.holds.forget(place);
        match cause {
            FreeCause::Evicted => self.stats.evicted += 1,
            FreeCause::Ordered => self.stats.ordered += 1,
            FreeCause::Cleared | FreeCause::Unrecorded => {}
        }
        if !matches!(held.state, State::Retracting { is_freed: true, .. }) {
            out.push(OwnerAction::Free(place, cause));
        }
    }

    /// "Remove all": what is of an earlier generation is dead.
    pub(super) fn clear(&mut self, now: Time, out: Out<'_>) {
        let generation = self.generation();
        let copies = self.copies.iter();
        let dead = copies.filter(|(_, held)| held.info.generation < generation);
        let dead: Vec<CopyPlace> = dead.map(|(place, _)| place).collect();
        for place in dead {
            self.free(place, FreeCause::Cleared, out);
        }
        self.clear_writes(now, out);
    }

    /// The map has changed: what was leaving leaves now, since the new homes are not told of it.
    pub(super) fn let_go(&mut self, out: Out<'_>) {
        let asking: Vec<CopyPlace> = self.asking.iter().copied().collect();
        for place in asking {
            self.unlist(place);
            self.holds.forget(place);
            let held = self.copies.get_mut(place).expect("listed");
            if let State::Retracting { is_freed, .. } = &mut held.state
                && !*is_freed
            {
                *is_freed = true;
                out.push(OwnerAction::Free(place, FreeCause::Evicted));
            }
        }
    }
}
