//! Blocks that queued prefills will leave behind.
//!
//! A prompt whose prefix is still queued finds nothing in the index. It had better wait for that
//! prefill, at the same instance, than have the same blocks computed once more elsewhere.

use hashbrown::HashTable;

use crate::ids::{BlockHash, InstanceId};
use crate::index::Match;
use lunette_runtime_core::random::mix;

/// Blocks that placed requests are about to leave, and where.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    table: HashTable<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: BlockHash,
    producer: u64,
    instance: InstanceId,
}

/// Leading blocks of a prompt that an instance will hold when what is queued there is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Awaited {
    pub(crate) blocks: u32,
    /// The request whose prefill makes the last of them; of no meaning if none is queued.
    pub(crate) producer: u64,
}

impl Pending {
    /// `producer` is going to leave these blocks at `instance`. Blocks that another one was
    /// going to leave before stay with that one.
    pub(crate) fn add(&mut self, instance: InstanceId, producer: u64, hashes: &[BlockHash]) {
        for &hash in hashes {
            let is_it = |entry: &Entry| entry.hash == hash;
            let entry = self.table.entry(mix(hash), is_it, |entry| mix(entry.hash));
            entry.or_insert(Entry {
                hash,
                producer,
                instance,
            });
        }
    }

    /// The prefill of `producer` has ended, or will not be.
    pub(crate) fn remove(&mut self, producer: u64, hashes: &[BlockHash]) {
        for &hash in hashes {
            let is_it = |entry: &Entry| entry.hash == hash && entry.producer == producer;
            if let Ok(entry) = self.table.find_entry(mix(hash), is_it) {
                entry.remove();
            }
        }
    }

    /// Tells for each instance how many leading blocks it will hold. `matches` is what each holds
    /// now.
    pub(crate) fn find(&self, hashes: &[BlockHash], matches: &[Match], awaited: &mut Vec<Awaited>) {
        awaited.clear();
        awaited.extend(matches.iter().map(|matched| Awaited {
            blocks: matched.blocks,
            producer: 0,
        }));
        if self.table.is_empty() {
            return;
        }
        for (&hash, depth) in hashes.iter().zip(0..) {
            let found = self.table.find(mix(hash), |entry| entry.hash == hash);
            if let Some(entry) = found {
                let at = &mut awaited[entry.instance.index()];
                if at.blocks == depth {
                    at.blocks += 1;
                    at.producer = entry.producer;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pending: &Pending, held: &[u32], hashes: &[BlockHash]) -> Vec<Awaited> {
        let matches: Vec<Match> = held
            .iter()
            .map(|&blocks| Match {
                blocks,
                memory_blocks: blocks,
            })
            .collect();
        let mut awaited = Vec::new();
        pending.find(hashes, &matches, &mut awaited);
        awaited
    }

    #[test]
    fn what_is_queued_goes_on_where_what_is_held_ends() {
        let mut pending = Pending::default();
        pending.add(InstanceId(1), 7, &[13, 14]);
        let awaited = found(&pending, &[3, 2], &[11, 12, 13, 14, 15]);
        assert_eq!(awaited[0].blocks, 3);
        let expected = Awaited {
            blocks: 4,
            producer: 7,
        };
        assert_eq!(awaited[1], expected);
        let behind_a_gap = found(&pending, &[0, 1], &[11, 12, 13, 14, 15]);
        assert_eq!(behind_a_gap[1].blocks, 1);
    }

    #[test]
    fn blocks_stay_with_the_first_that_makes_them_until_it_leaves() {
        let mut pending = Pending::default();
        pending.add(InstanceId(0), 7, &[1, 2]);
        pending.add(InstanceId(1), 8, &[1, 2, 3]);
        let awaited = found(&pending, &[0, 0], &[1, 2, 3]);
        assert_eq!((awaited[0].blocks, awaited[1].blocks), (2, 0));
        pending.remove(8, &[1, 2, 3]);
        assert_eq!(found(&pending, &[0, 0], &[1, 2, 3])[0].producer, 7);
        pending.remove(7, &[1, 2]);
        assert_eq!(found(&pending, &[0, 0], &[1, 2, 3])[0].blocks, 0);
    }
}
