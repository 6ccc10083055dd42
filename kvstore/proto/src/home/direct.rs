//! Puts by the owner on the home's own core: where nothing is in their way, they are claimed and recorded in one
//! step, and no message is made.
//!
//! That is no other protocol: it is what claim and publication come to when nothing happens between them.

use lunette_cluster_proto::fence::{Act, NamespaceKind, Standing as Lease};
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use super::Home;
use super::table::{Copy, Standing};
use crate::key::Fingerprint;
use crate::version::{CopyInfo, Form, Version, WriteKind};

/// Why a copy was not recorded in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRecorded {
    /// There is an object, which is left as it is.
    Exists(Version),
    /// The put is to be claimed: it may have to wait, or is refused, or is for another home.
    Unsure,
}

/// A copy that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedHere {
    /// What it is.
    pub info: CopyInfo,
    /// The home is cut off, in a cache namespace.
    pub is_cut_off: bool,
    /// The last order of this home by then.
    pub order: u64,
}

impl Home {
    /// Whether a put of one copy may be recorded in one step, as far as the key itself does not matter.
    #[must_use]
    pub fn may_record(&self, now: Time, key: Fingerprint, namespace: NamespaceKind) -> bool {
        let is_permitted = self.permit(now, namespace, Act::LocalPut).is_ok();
        is_permitted && self.is_complete() && self.is_home_of(key)
    }

    /// Records the only copy of a key that the owner on this core has whole.
    ///
    /// # Errors
    /// [`NotRecorded`]: nothing was done.
    pub fn record_here(
        &mut self,
        now: Time,
        (key, form, namespace): (Fingerprint, Form, NamespaceKind),
        (len_bytes, crc32c): (u32, u32),
    ) -> Result<RecordedHere, NotRecorded> {
        let permitted = self.permit(now, namespace, Act::LocalPut);
        let (Ok(lease), true) = (permitted, self.may_record(now, key, namespace)) else {
            return Err(NotRecorded::Unsure);
        };
        let is_busy = self.claims.contains_key(&key)
            || self.changes.contains_key(&key)
            || self.unjudged.contains(&key)
            || self.waiting.has_any(key);
        if is_busy && !mutant::is_on(Mutant::DirectUnchecked) {
            return Err(NotRecorded::Unsure);
        }
        if let Some(winner) = self.winner(key) {
            return Err(NotRecorded::Exists(winner.version));
        }
        let info = CopyInfo {
            version: self.next_version(),
            kind: WriteKind::Put,
            form,
            generation: self.generation(),
            wanted: 1,
            len_bytes,
            crc32c,
        };
        let copy = Copy {
            seat: self.seat,
            info,
            standing: Standing::Shown,
        };
        let inserted = self.table.insert(key, copy, self.limits.copies_max);
        inserted.map_err(|_full| NotRecorded::Unsure)?;
        self.pass_history(self.seat, key);
        Ok(RecordedHere {
            info,
            is_cut_off: lease == Lease::CutOff,
            order: self.last_order,
        })
    }
}
