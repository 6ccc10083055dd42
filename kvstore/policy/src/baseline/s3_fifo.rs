//! S3-FIFO (Yang et al., SOSP '23): a small queue for what is new, a main one for what was used again
//! there, and a memory of the keys that left the small one.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::slots::{Links, List};
use crate::Policy;
use crate::class::Use;
use crate::hash::MixBuild;

/// Uses that are counted.
const USES_MAX: u8 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Queue {
    #[default]
    None,
    Small,
    Main,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    key: u64,
    queue: Queue,
    uses: u8,
}

/// S3-FIFO, with a tenth of its blocks in the small queue.
#[derive(Debug)]
pub struct S3Fifo {
    links: Links,
    small: List,
    main: List,
    slots: Vec<Slot>,
    small_max: usize,
    ghosts: VecDeque<(u64, u64)>,
    /// The number of the latest ghost of each key.
    ghosts_by_key: HashMap<u64, u64, MixBuild>,
    ghosts_max: usize,
    next_ghost: u64,
}

impl S3Fifo {
    /// The policy of a cache of so many blocks.
    #[must_use]
    pub fn new(blocks_max: usize) -> Self {
        let small_max = (blocks_max / 10).max(1);
        Self {
            links: Links::default(),
            small: List::default(),
            main: List::default(),
            slots: Vec::new(),
            small_max,
            ghosts: VecDeque::new(),
            ghosts_by_key: HashMap::default(),
            ghosts_max: blocks_max - small_max.min(blocks_max),
            next_ghost: 0,
        }
    }

    fn push(&mut self, slot_index: u32, queue: Queue) {
        self.slots[slot_index as usize].queue = queue;
        match queue {
            Queue::Small => self.small.push_front(&mut self.links, slot_index),
            Queue::Main => self.main.push_front(&mut self.links, slot_index),
            Queue::None => {}
        }
    }

    fn unlink(&mut self, slot_index: u32) -> Queue {
        let queue = core::mem::take(&mut self.slots[slot_index as usize].queue);
        match queue {
            Queue::Small => self.small.unlink(&mut self.links, slot_index),
            Queue::Main => self.main.unlink(&mut self.links, slot_index),
            Queue::None => {}
        }
        queue
    }

    fn remember(&mut self, key: u64) {
        self.ghosts_by_key.insert(key, self.next_ghost);
        self.ghosts.push_back((key, self.next_ghost));
        self.next_ghost += 1;
        while self.ghosts.len() > self.ghosts_max {
            if let Some((key, number)) = self.ghosts.pop_front()
                && self.ghosts_by_key.get(&key) == Some(&number)
            {
                self.ghosts_by_key.remove(&key);
            }
        }
    }

    /// Moves what was used on, until a tail was not.
    fn settle(&mut self) {
        loop {
            let is_small = self.small.len() >= self.small_max || self.main.len() == 0;
            let list = if is_small { &self.small } else { &self.main };
            let Some(tail) = list.tail() else { return };
            let slot = &mut self.slots[tail as usize];
            let is_spared = if is_small {
                slot.uses > 1
            } else {
                slot.uses > 0
            };
            if !is_spared {
                return;
            }
            slot.uses = if is_small { 0 } else { slot.uses - 1 };
            self.unlink(tail);
            self.push(tail, Queue::Main);
        }
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, slot_index: u32, key: u64, _used: Use) {
        let slots = self.slots.len().max(slot_index as usize + 1);
        self.slots.resize(slots, Slot::default());
        self.slots[slot_index as usize] = Slot {
            key,
            ..Slot::default()
        };
        let is_known = self.ghosts_by_key.remove(&key).is_some();
        self.push(
            slot_index,
            if is_known { Queue::Main } else { Queue::Small },
        );
    }

    fn touch(&mut self, slot_index: u32, _used: Use) {
        let uses = &mut self.slots[slot_index as usize].uses;
        *uses = (*uses + 1).min(USES_MAX);
    }

    fn withhold(&mut self, slot_index: u32) {
        self.unlink(slot_index);
    }

    fn offer(&mut self, slot_index: u32) {
        self.unlink(slot_index);
        self.push(slot_index, Queue::Main);
    }

    fn remembers(&self, key: u64) -> bool {
        self.ghosts_by_key.contains_key(&key)
    }

    fn victim(&mut self) -> Option<u32> {
        self.settle();
        let is_small = self.small.len() >= self.small_max || self.main.len() == 0;
        let list = if is_small { &self.small } else { &self.main };
        list.tail()
    }

    fn evict(&mut self, slot_index: u32) {
        if self.unlink(slot_index) == Queue::Small {
            self.remember(self.slots[slot_index as usize].key);
        }
    }

    fn remove(&mut self, slot_index: u32) {
        self.unlink(slot_index);
    }
}
