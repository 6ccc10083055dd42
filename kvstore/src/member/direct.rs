//! Puts by tasks of the core that is the key's home: where nothing is in the way, they are done in one step. In the
//! usual case there is nothing.

use lunette_kvstore_proto::home::NotRecorded;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::owner::{WriteAnswer, WriteAsk};
use lunette_kvstore_proto::retention::Pin;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::bytes::{Extent, Frame};
use super::core::MemberCore;
use super::lending::Placed;
use crate::counting::CopyCounts;
use crate::value::Value;

/// What came of a put in one step.
#[derive(Debug)]
pub(crate) enum AtOnce {
    Done(WriteAnswer),
    /// Nothing was done: as much has left for it as may in one turn.
    NoRoom,
    /// Nothing was done: this core is not the home, or something is in the way. It is to be claimed.
    Unsure,
}

impl MemberCore {
    /// Puts an object whose home and owner is this core, in one step. What is placed is not copied.
    pub(crate) fn put_at_once(
        &self,
        key: Key<'_>,
        (value, placed): (&Value, Option<&Placed>),
        ask: WriteAsk,
    ) -> AtOnce {
        let now = time::now();
        if self.has_left() || !self.may_record(now, ask) {
            return AtOnce::Unsure;
        }
        self.touch(ask.key);
        if !self.machines().borrow().owner.is_free(ask.key) {
            return AtOnce::Unsure;
        }
        let placed_here = placed.and_then(|placed| placed.take(self, key));
        let Some((frame, extent)) =
            placed_here.or_else(|| self.copied(key, value, ask.retention.pin))
        else {
            return AtOnce::NoRoom;
        };
        match self.record_here(now, ask, (frame.len_bytes(), extent.crc32c)) {
            Ok((place, answer)) => {
                (self.bytes().borrow_mut()).keep_recorded(frame, place, extent, ask);
                self.group(place, ask.retention, ask.wanted);
                self.list_soon(place, ask.form);
                self.counts.received(frame.len_bytes());
                CopyCounts::add(&self.copies.written);
                self.tell_copy(place, "kept");
                self.tell_copy(place, "recorded");
                self.count_put(answer);
                AtOnce::Done(answer)
            }
            Err(not) => {
                match placed.filter(|placed| placed.is_of(self)) {
                    Some(placed) => placed.put_back(frame, extent),
                    None => self.bytes().borrow_mut().drop_unused(frame),
                }
                match not {
                    NotRecorded::Exists(version) => {
                        let answer = WriteAnswer::Exists { version };
                        self.count_put(answer);
                        AtOnce::Done(answer)
                    }
                    NotRecorded::Unsure => AtOnce::Unsure,
                }
            }
        }
    }

    /// The value, copied to where it stays, if there is room.
    fn copied(&self, key: Key<'_>, value: &Value, pin: Pin) -> Option<(Frame, Extent)> {
        let len_bytes = u32::try_from(value.len()).expect("a value is bounded");
        let carved = self.carve_or_make_room(key, len_bytes, pin).ok()?;
        let (frame, mut region) = carved.into_empty();
        let crc32c = value.copy_summed(frame.value_mut(&mut region));
        Some((frame, frame.filled(region, crc32c)))
    }

    fn may_record(&self, now: Time, ask: WriteAsk) -> bool {
        // Upserts have others drop what they have, and other copies have to be made.
        let is_simple = (ask.kind, ask.wanted) == (WriteKind::Put, 1);
        let machines = self.machines().borrow();
        is_simple && machines.home.may_record(now, ask.key, ask.namespace)
    }

    fn record_here(
        &self,
        now: Time,
        ask: WriteAsk,
        whole: (u32, u32),
    ) -> Result<(CopyPlace, WriteAnswer), NotRecorded> {
        let machines = &mut *self.machines().borrow_mut();
        let object = (ask.key, ask.form, ask.namespace);
        let put = (machines.owner).put_here(&mut machines.home, now, object, whole);
        self.tell_presence(&mut machines.home);
        put
    }
}
