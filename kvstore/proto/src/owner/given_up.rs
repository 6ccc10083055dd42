//! Writes whose writers wait no longer.
//!
//! Before it is published, such a write is abandoned. One that is published may be recorded, and what it replaces gone
//! already: it ends as its home says, and its writer is told that nobody knows. Where the home may be another one by then,
//! it stays only if the former home has said that it is recorded ([`ToOwner::Replacing`]).
//!
//! [`ToOwner::Replacing`]: crate::message::directory::ToOwner::Replacing

use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use super::copies::{Held, State};
use super::writes::Stage;
use super::{Out, Owner, OwnerAction, WriteAnswer};
use crate::key::Fingerprint;
use crate::message::directory::{CopyPlace, OpId, ToHome};
use crate::placement::home_of;

impl Owner {
    /// Ends a write whose time is over, or whose writer is gone.
    pub(super) fn give_up(
        &mut self,
        now: Time,
        key: Fingerprint,
        answer: WriteAnswer,
        out: Out<'_>,
    ) {
        let write = self.writes[&key];
        if let Stage::Publishing(info) = write.stage {
            self.answer(now, key, WriteAnswer::Interrupted, out);
            let is_elsewhere = info.version.epoch < self.map.epoch();
            let leaves = is_elsewhere && !write.is_recorded;
            if (leaves && !mutant::is_on(Mutant::GivenUpKept)) || mutant::is_on(Mutant::UpsertLetGo)
            {
                let place = self.take_back(now, key, out);
                self.ask_about(now, place, out);
            }
            return;
        }
        if let Some(home) = home_of(&self.map, key) {
            let op = write.op;
            out.push(OwnerAction::ToHome(home, ToHome::Abandon { op, key }));
        }
        out.push(OwnerAction::Discard(write.op));
        self.conclude(now, key, answer, out);
    }

    /// A publication that nobody waits for, and of which nobody has said that it is recorded, leaves like a copy that is evicted
    /// once its home may be another one. That one need not know what was removed meanwhile: a removal waits for what is
    /// recorded, and for nothing else.
    fn take_back(&mut self, now: Time, key: Fingerprint, out: Out<'_>) -> CopyPlace {
        let write = self.writes[&key];
        let Stage::Publishing(info) = write.stage else {
            unreachable!("it is published");
        };
        let version = info.version;
        let place = CopyPlace { key, version };
        let state = State::Retracting {
            asked: now,
            is_freed: false,
            reuses: 0,
        };
        let held = Held::new(write.op, info, write.ask.namespace, state, write.moved_in);
        self.copies.insert(key, held);
        self.asking.insert(place);
        out.push(OwnerAction::Name(write.op, place));
        self.conclude(now, key, WriteAnswer::Interrupted, out);
        place
    }

    /// The map has changed.
    pub(super) fn take_back_unrecorded(&mut self, now: Time, out: Out<'_>) {
        let writes = self.writes.iter();
        let unsure = writes.filter(|(_, write)| {
            let is_published = matches!(write.stage, Stage::Publishing(_));
            let is_unsure = write.author.is_none() && !write.is_recorded;
            is_published && is_unsure && !mutant::is_on(Mutant::GivenUpKept)
        });
        let unsure: Vec<Fingerprint> = unsure.map(|(&key, _)| key).collect();
        for key in unsure {
            self.take_back(now, key, out);
        }
    }

    /// Its home has recorded the copy of a write, and goes on with that.
    pub(super) fn replacing(&mut self, op: OpId, place: CopyPlace) {
        let publishing = self.publishing(place);
        if publishing.is_some_and(|(write, _)| write.op == op) {
            let write = self.writes.get_mut(&place.key).expect("it publishes");
            write.is_recorded = true;
        }
    }
}
