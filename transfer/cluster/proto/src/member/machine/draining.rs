//! How a member asks to be emptied: never the last of those that take objects, and not late.
//!
//! Two that ask at one time each see that the other would stay. So what one of them writes of itself is compared with what another has
//! written that stays: of the two, the coordinator takes one. Who stays may leave afterwards all the same.

use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;

use super::{Member, Phase, Purpose};
use crate::coordination::{Ask, Compare, Expected, Op, Revision, Txn};
use crate::member::Draining;

impl Member {
    /// Asks to be emptied, which is not tried any more from `until` on: [`draining`](Self::draining) tells what has become of it. An ask
    /// that is under way then may still be taken, within the lease. Who is emptied stays so, also when it joins again.
    pub fn drain(&mut self, now: Time, until: Time) {
        let until = match self.draining {
            Draining::Yes => return,
            Draining::Wanted { until: known } => until.max(known),
            Draining::No | Draining::Last => until,
        };
        self.draining = Draining::Wanted { until };
        if self.phase == Phase::Joined {
            self.retry_at = self.retry_at.min(now);
        }
        self.advance(now);
    }

    /// Whether it is emptied, or is to be.
    #[must_use]
    pub const fn draining(&self) -> Draining {
        self.draining
    }

    /// Asks for what is wanted, if it is, and may be.
    pub(super) fn begin_draining(&mut self, now: Time) {
        let Draining::Wanted { until } = self.draining else {
            return;
        };
        if now >= until {
            self.draining = Draining::No;
            return;
        }
        let id = self.options.member.id;
        let (Some(own), Some(held)) = (self.view.members.get(&id), self.lease) else {
            debug_assert!(false, "who has joined is registered, under a lease");
            return;
        };
        let Some((other, modified)) = self.who_stays() else {
            self.draining = Draining::Last;
            return;
        };
        let key = self.keys.member(id);
        let compare = [
            (key.clone(), own.modified),
            (self.keys.member(other), modified),
        ];
        let compare = compare.map(|(key, modified)| Compare {
            key,
            expected: Expected::Modified(modified),
        });
        let mut registration = self.registration();
        registration.member.is_draining = true;
        let txn = Txn {
            compare: compare.to_vec(),
            success: vec![Op::Put {
                key,
                value: registration.encode(),
                lease: Some(held.id),
            }],
            failure: Vec::new(),
        };
        self.ask(now, Purpose::Drain, Ask::Txn(txn));
    }

    /// Another member that takes objects, as it is registered: one of the map, if there is any.
    fn who_stays(&self) -> Option<(NodeId, Revision)> {
        let own = self.options.member.id;
        let others = self
            .view
            .members
            .iter()
            .filter(|(id, known)| **id != own && known.registration.member.weight() > 0);
        let is_in_map = |id: NodeId| self.map().is_some_and(|map| map.member(id).is_some());
        let other = others.min_by_key(|(id, _)| (!is_in_map(**id), **id));
        other.map(|(id, known)| (*id, known.modified))
    }

    /// The coordinator has it as one that is emptied.
    pub(super) fn set_drained(&mut self) {
        self.draining = Draining::Yes;
        self.options.member.is_draining = true;
    }

    /// What it has read of itself may be what it was not told.
    pub(super) fn note_draining(&mut self) {
        let own = self.view.members.get(&self.options.member.id);
        let held = self.lease.map(|held| held.id);
        let own = own.filter(|own| held.is_some() && own.lease == held);
        if own.is_some_and(|own| own.registration.member.is_draining) {
            self.set_drained();
        }
    }
}
