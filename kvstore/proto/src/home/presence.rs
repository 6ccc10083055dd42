//! What a home would tell whoever peeks, told ahead: for those who look on without asking, from other threads say.
//!
//! Who looks on keeps a list of keys. A key on it is present or not sure; of a key that is not on it this home would
//! say that it is absent, while it [knows of all](Home::is_all_told) and is the key's home under the map of its epoch.

use super::Home;
use super::writes::alive;
use crate::key::Fingerprint;
use crate::message::directory::Peek;

/// Keys that are listed anew in one tick, after a map or for who begins to look on.
pub const LISTED_PER_TICK_MAX: usize = 4096;

/// What those who look on are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PresenceChange {
    /// Nothing that was told stands any more.
    Reset,
    /// What is known of a key; [`Peek::Absent`]: it is off the list.
    Key(Fingerprint, Peek),
}

/// What may have changed since it was told.
#[derive(Debug, Default)]
pub(super) struct Watched {
    is_watched: bool,
    is_reset: bool,
    changed: Vec<Fingerprint>,
    /// After which key those that are recorded are to be told anew.
    listing: Option<Option<Fingerprint>>,
}

impl Watched {
    /// Something about a key is another.
    pub(super) fn note(&mut self, key: Fingerprint) {
        if self.is_watched {
            self.changed.push(key);
        }
    }

    /// Everything may be another.
    pub(super) fn reset(&mut self) {
        if self.is_watched {
            self.is_reset = true;
            self.changed.clear();
            self.listing = Some(None);
        }
    }

    pub(super) const fn is_listing(&self) -> bool {
        self.listing.is_some()
    }
}

impl Home {
    /// From now on somebody looks on, and [is told](Self::tell_presence) of what is recorded already too, some with
    /// each tick.
    pub fn watch(&mut self) {
        self.table.watched.is_watched = true;
        self.table.watched.reset();
    }

    /// From now on nobody does.
    pub fn end_watch(&mut self) {
        self.table.watched = Watched::default();
    }

    /// Tells those who look on what has changed. To be called after each event that this home is told, and before
    /// anything is done that it wants done: who has been answered finds what it was told.
    pub fn tell_presence(&mut self, mut tell: impl FnMut(PresenceChange)) {
        if core::mem::take(&mut self.table.watched.is_reset) {
            tell(PresenceChange::Reset);
        }
        let mut changed = core::mem::take(&mut self.table.watched.changed);
        for key in changed.drain(..) {
            tell(PresenceChange::Key(key, self.presence(key)));
        }
        self.table.watched.changed = changed;
    }

    /// Whether a key that is not on the list is absent, if this is its home.
    #[must_use]
    pub fn is_all_told(&self) -> bool {
        let is_listed = self.table.watched.is_watched && !self.table.watched.is_listing();
        is_listed && self.is_complete() && self.unjudged.is_empty()
    }

    fn presence(&self, key: Fingerprint) -> Peek {
        // Records of keys that moved to other homes are kept until they are swept.
        let is_ours = self.sweep.is_none() || self.is_home_of(key);
        let copies = self.table.copies(key);
        if !is_ours || copies.is_empty() {
            Peek::Absent
        } else if alive(copies, self.tombstones.version(key)).next().is_some() {
            Peek::Present
        } else {
            Peek::Unsure
        }
    }

    /// Tells some of what is recorded anew.
    pub(super) fn list_some(&mut self) {
        let Some(after) = self.table.watched.listing else {
            return;
        };
        let keys = self.table.keys_after(after, LISTED_PER_TICK_MAX);
        self.table.watched.listing = keys.last().map(|&key| Some(key));
        self.table.watched.changed.extend(keys);
    }
}
