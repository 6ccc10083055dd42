//! Messages to homes, batched: what one turn of the loop has for one home goes in one message.

use std::collections::BTreeMap;

use crate::message::directory::{ITEMS_MAX, ToHome};
use crate::placement::Seat;

/// Most messages of one batch.
pub const BATCH_ITEMS_MAX: usize = ITEMS_MAX;

/// What is to be sent, by home. It is emptied once a turn, so that it is bounded by what one turn
/// makes.
#[derive(Debug, Default)]
pub struct Outbox {
    by_home: BTreeMap<Seat, Vec<ToHome>>,
}

impl Outbox {
    /// Adds a message, behind those that the same home is to have before it.
    pub fn push(&mut self, home: Seat, item: ToHome) {
        self.by_home.entry(home).or_default().push(item);
    }

    /// The next batch of at most [`BATCH_ITEMS_MAX`]; `None` when all were taken.
    pub fn pop(&mut self) -> Option<(Seat, Vec<ToHome>)> {
        let mut entry = self.by_home.first_entry()?;
        let home = *entry.key();
        if entry.get().len() > BATCH_ITEMS_MAX {
            let rest = entry.get_mut().split_off(BATCH_ITEMS_MAX);
            return Some((home, core::mem::replace(entry.get_mut(), rest)));
        }
        Some((home, entry.remove()))
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;
    use crate::key::Fingerprint;
    use crate::message::directory::OpId;

    fn seat(node: u64) -> Seat {
        Seat {
            node: NodeId(node),
            incarnation: 1,
            core: CoreIndex(0),
        }
    }

    fn item(number: usize) -> ToHome {
        ToHome::Abandon {
            op: OpId(number as u64),
            key: Fingerprint(1),
        }
    }

    #[test]
    fn batches_are_bounded_and_keep_their_order() {
        let mut outbox = Outbox::default();
        for number in 0..=BATCH_ITEMS_MAX {
            outbox.push(seat(2), item(number));
        }
        outbox.push(seat(1), item(7));
        assert_eq!(outbox.pop(), Some((seat(1), vec![item(7)])));
        let first: Vec<_> = (0..BATCH_ITEMS_MAX).map(item).collect();
        assert_eq!(outbox.pop(), Some((seat(2), first)));
        assert_eq!(outbox.pop(), Some((seat(2), vec![item(BATCH_ITEMS_MAX)])));
        assert_eq!(outbox.pop(), None);
    }
}
