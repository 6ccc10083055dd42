//! How often keys were used before their copies left memory, until they are written again.
//!
//! What leaves is remembered by the owner that let it go, and is mostly written again at another one. So that what the
//! latter learns of it is not lost, and the former does not take it for gone for ever, its home tells both. That is
//! advice for eviction, and nothing else depends on it: it may be lost, late, or of another life of an owner.

use hashbrown::HashMap;
use lunette_kvstore_policy::{MixBuild, ghosts_beside};
use lunette_runtime_core::ids::{CoreIndex, NodeId};

use super::{Home, HomeAction, Out};
use crate::key::Fingerprint;
use crate::message::directory::ToOwner;
use crate::placement::Seat;

/// Most that owners are to be told and have not been: what comes beyond that, they are not told.
const UNTOLD_MAX: usize = 4096;

/// What a key was, where it left last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct History {
    node: NodeId,
    core: CoreIndex,
    reuses: u8,
}

/// In two tables: when the newer one is full, the older one is forgotten.
#[derive(Debug, Default)]
pub(super) struct Histories {
    newer: HashMap<u64, History, MixBuild>,
    older: HashMap<u64, History, MixBuild>,
    /// Where keys were written, and what owners are to be told of that.
    untold: Vec<(Seat, ToOwner)>,
}

impl Histories {
    pub(super) fn has_told(&self) -> bool {
        self.untold.is_empty()
    }

    fn note(&mut self, key: Fingerprint, history: History, histories_max: usize) {
        self.take(key);
        if self.newer.len() >= histories_max / 2 {
            self.older = core::mem::take(&mut self.newer);
        }
        if histories_max > 1 {
            self.newer.insert(key.low(), history);
        }
    }

    fn take(&mut self, key: Fingerprint) -> Option<History> {
        let key = key.low();
        self.newer.remove(&key).or_else(|| self.older.remove(&key))
    }

    fn tell(&mut self, to: Seat, item: ToOwner) {
        if self.untold.len() < UNTOLD_MAX {
            self.untold.push((to, item));
        }
    }
}

impl Home {
    /// An owner lets go of a copy that was used so often after the first time.
    pub(super) fn note_history(&mut self, from: Seat, key: Fingerprint, reuses: u8) {
        let history = History {
            node: from.node,
            core: from.core,
            reuses,
        };
        // What the owner does not remember for long itself is not told to others either.
        let histories_max = ghosts_beside(self.table.len());
        let histories_max = histories_max.min(self.limits.histories_max);
        self.histories.note(key, history, histories_max);
    }

    /// A key is removed: what is written under it next is something new.
    pub(super) fn forget_history(&mut self, key: Fingerprint) {
        self.histories.take(key);
    }

    /// A copy is recorded: who had the key before is told so, and its new owner what it was there. In a later tick, with
    /// others.
    pub(super) fn pass_history(&mut self, to: Seat, key: Fingerprint) {
        let Some(history) = self.histories.take(key) else {
            return;
        };
        let History { node, core, reuses } = history;
        // Who has begun anew since ignores what it does not know.
        let from = self.map.member(node).map(|member| Seat {
            node,
            incarnation: member.incarnation,
            core,
        });
        if from == Some(to) {
            return;
        }
        if let Some(from) = from {
            self.histories.tell(from, ToOwner::CameBack { key });
        }
        self.histories.tell(to, ToOwner::WasUsed { key, reuses });
    }

    /// Tells owners what they have not been told.
    pub(super) fn tell_histories(&mut self, out: Out<'_>) {
        let untold = core::mem::take(&mut self.histories.untold);
        out.extend(
            untold
                .into_iter()
                .map(|(to, item)| HomeAction::ToOwner(to, item)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn history(reuses: u8) -> History {
        History {
            node: NodeId(1),
            core: CoreIndex(0),
            reuses,
        }
    }

    #[test]
    fn the_older_half_is_forgotten_at_the_bound() {
        let mut histories = Histories::default();
        for key in 0..10 {
            histories.note(Fingerprint(key), history(0), 8);
        }
        let kept = histories.newer.len() + histories.older.len();
        assert!(kept <= 8, "{kept} are remembered");
        assert_eq!(histories.take(Fingerprint(0)), None);
        let last = (6..10).map(|key| histories.take(Fingerprint(key)));
        assert!(last.into_iter().all(|known| known.is_some()));
    }

    #[test]
    fn the_last_owner_is_remembered_and_once() {
        let mut histories = Histories::default();
        for reuses in 0..4 {
            histories.note(Fingerprint(7), history(reuses), 2);
        }
        assert_eq!(histories.take(Fingerprint(7)), Some(history(3)));
        assert_eq!(histories.take(Fingerprint(7)), None);
    }

    #[test]
    fn beyond_a_bound_owners_are_not_told() {
        let mut histories = Histories::default();
        let seat = Seat {
            node: NodeId(1),
            incarnation: 1,
            core: CoreIndex(0),
        };
        for key in 0..=UNTOLD_MAX as u128 {
            let key = Fingerprint(key);
            histories.tell(seat, ToOwner::CameBack { key });
        }
        assert_eq!(histories.untold.len(), UNTOLD_MAX);
    }
}
