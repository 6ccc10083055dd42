//! Puts whose home is on this very core: where nothing is in their way they are claimed, recorded and kept in one
//! step, and no message is made. See [`RecordedHere`].

use lunette_cluster_proto::fence::{Act, NamespaceKind, Standing};
use lunette_runtime_core::time::Time;

use super::copies::{Held, State};
use super::{Owner, WriteAnswer};
use crate::home::{Home, NotRecorded, RecordedHere};
use crate::key::Fingerprint;
use crate::message::directory::CopyPlace;
use crate::placement::has_seat;
use crate::version::Form;

impl Owner {
    /// Whether a put of a key could be kept at once: nothing of it is here or under way, and there is room.
    #[must_use]
    pub fn is_free(&self, key: Fingerprint) -> bool {
        let under_way = self.writes.len();
        let is_settled = self.away.is_none() && has_seat(&self.map, self.seat);
        is_settled
            && !self.writes.contains_key(&key)
            && self.copies.versions(key).is_empty()
            && self.copies.len() + under_way < self.limits.copies_max
    }

    /// Puts an object of one copy whose bytes are here and whole, and whose home is on this core. The copy, which
    /// names the bytes, and how the write ended: not known, if the lease ended meanwhile.
    ///
    /// # Errors
    /// [`NotRecorded`]: nothing was done.
    pub fn put_here(
        &mut self,
        home: &mut Home,
        now: Time,
        (key, form, namespace): (Fingerprint, Form, NamespaceKind),
        whole: (u32, u32),
    ) -> Result<(CopyPlace, WriteAnswer), NotRecorded> {
        if home.epoch() != self.map.epoch() || !self.is_free(key) {
            return Err(NotRecorded::Unsure);
        }
        let recorded = home.record_here(now, (key, form, namespace), whole)?;
        Ok(self.keep_recorded(now, (key, namespace), recorded))
    }

    fn keep_recorded(
        &mut self,
        now: Time,
        (key, namespace): (Fingerprint, NamespaceKind),
        recorded: RecordedHere,
    ) -> (CopyPlace, WriteAnswer) {
        let RecordedHere {
            info,
            is_cut_off,
            order,
        } = recorded;
        let version = info.version;
        let place = CopyPlace { key, version };
        let (op, epoch) = (self.next_op(), self.map.epoch());
        let mut held = Held::new(op, info, namespace, State::Published, epoch);
        held.is_recorded(epoch, order);
        let at_home = self.by_home.entry(self.seat).or_default();
        at_home.insert(place, ());
        self.copies.insert(key, held);
        let answer = match self.permit(now, namespace, Act::LocalPut) {
            Ok(standing) => WriteAnswer::Written {
                version,
                is_cut_off: is_cut_off || standing == Standing::CutOff,
            },
            Err(_) => WriteAnswer::Interrupted,
        };
        (place, answer)
    }
}
