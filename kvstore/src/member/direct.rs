//! Puts by tasks of the core that is the key's home: where nothing is in the way, they are done in one step. In the
//! usual case there is nothing.

use lunette_kvstore_proto::home::NotRecorded;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::owner::{WriteAnswer, WriteAsk};
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::core::MemberCore;
use super::local::Put;
use crate::counting::CopyCounts;
use crate::value::Value;

impl MemberCore {
    /// Puts an object whose home and owner is this core, in one step. `None`, and nothing was done, if that is not
    /// so, or something is in the way: then it is to be [claimed](Self::put_here).
    pub(crate) fn put_at_once(&self, key: Key<'_>, value: &Value, ask: WriteAsk) -> Option<Put> {
        let now = time::now();
        if self.has_left() || !self.may_record(now, ask) {
            return None;
        }
        self.touch(ask.key);
        if !self.machines().borrow().owner.is_free(ask.key) {
            return None;
        }
        let len_bytes = u32::try_from(value.len()).ok()?;
        let carved = self.carve_or_make_room(key, len_bytes).ok()?;
        let (frame, mut region) = carved.into_empty();
        let crc32c = value.copy_summed(frame.value_mut(&mut region));
        match self.record_here(now, ask, (len_bytes, crc32c)) {
            Ok((place, answer)) => {
                let extent = frame.filled(region, crc32c);
                (self.bytes().borrow_mut()).keep_recorded(frame, place, extent);
                self.counts.received(frame.len_bytes());
                CopyCounts::add(&self.copies.written);
                self.tell_copy(place, "kept");
                self.tell_copy(place, "recorded");
                Some(self.count_put(answer))
            }
            Err(not) => {
                self.bytes().borrow_mut().drop_unused(frame);
                match not {
                    NotRecorded::Exists(version) => {
                        Some(self.count_put(WriteAnswer::Exists { version }))
                    }
                    NotRecorded::Unsure => None,
                }
            }
        }
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
        (machines.owner).put_here(&mut machines.home, now, object, whole)
    }
}
