//! The blocks that a policy knows of, in lists through one slab.
//!
//! A block may be in one list. Some blocks, drawn by their keys, stand for all: they are in the *timeline*, by their last
//! use, and a cursor per age bucket walks along it, so that each of them is counted once when it outlives a bucket.

use lunette_runtime_core::random::mix;

use crate::age::{BUCKETS, end_of};
use crate::class::Class;
use crate::hazard::Hazard;

/// No block.
pub(crate) const NIL: u32 = u32::MAX;

/// Where a block is in a list.
#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
}

const UNLINKED: Link = Link {
    newer: NIL,
    older: NIL,
};

/// Both ends of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    front: u32,
    tail: u32,
}

impl Ends {
    pub(crate) const EMPTY: Self = Self {
        front: NIL,
        tail: NIL,
    };

    pub(crate) const fn tail(self) -> u32 {
        self.tail
    }
}

/// What a block is to its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// In the cache, and may be a victim.
    Listed,
    /// In the cache, and no victim.
    Withheld,
    /// Gone from the cache, and remembered.
    Ghost,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Track {
    pub(crate) key: u64,
    /// When it was used last.
    pub(crate) used_at: u64,
    /// The caller's slot; [`NIL`] of a ghost.
    pub(crate) slot_index: u32,
    timeline: Link,
    list: Link,
    pub(crate) class: Class,
    pub(crate) reuses: u8,
    /// Buckets that it was counted to have outlived since its last use; [`UNCOUNTED`] of what is not in the timeline.
    outlived: u8,
    pub(crate) standing: Standing,
}

const UNCOUNTED: u8 = u8::MAX;

/// Bytes per block that is known.
pub const TRACK_BYTES: usize = size_of::<Track>();

#[derive(Debug)]
pub(crate) struct Tracks {
    all: Vec<Track>,
    free: Vec<u32>,
    /// One block of so many is counted.
    one_of: u32,
    timeline: Ends,
    /// Per bucket, the newest block that was counted to have outlived it.
    cursors: [u32; BUCKETS],
    /// Per bucket, when the next block may outlive it: not before.
    due_at: [u64; BUCKETS],
}

impl Tracks {
    /// Room for so many blocks, all of which are counted.
    pub(crate) fn with_capacity(tracks: usize) -> Self {
        Self {
            all: Vec::with_capacity(tracks),
            free: Vec::new(),
            one_of: 1,
            timeline: Ends::EMPTY,
            cursors: [NIL; BUCKETS],
            due_at: [0; BUCKETS],
        }
    }

    /// From now on one block of `one_of` stands for all. Others that were counted leave the timeline when they are used
    /// next.
    pub(crate) fn count_one_of(&mut self, one_of: u32) {
        assert!(one_of.is_power_of_two(), "a mask of keys");
        self.one_of = one_of;
    }

    /// Blocks in the timeline.
    #[cfg(test)]
    pub(crate) fn counted(&self) -> usize {
        let first = (self.timeline.front != NIL).then_some(self.timeline.front);
        let older = |&id: &u32| Some(self.all[id as usize].timeline.older).filter(|&id| id != NIL);
        core::iter::successors(first, older).count()
    }

    fn is_counted(&self, key: u64) -> bool {
        mix(key) & u64::from(self.one_of - 1) == 0
    }

    pub(crate) fn get(&self, id: u32) -> &Track {
        &self.all[id as usize]
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> &mut Track {
        &mut self.all[id as usize]
    }

    /// A block that is used for the first time, in no list.
    pub(crate) fn add(&mut self, key: u64, slot_index: u32, now: u64) -> u32 {
        let is_counted = self.is_counted(key);
        let track = Track {
            key,
            used_at: now,
            slot_index,
            timeline: UNLINKED,
            list: UNLINKED,
            class: Class::ZERO,
            reuses: 0,
            outlived: if is_counted { 0 } else { UNCOUNTED },
            standing: Standing::Withheld,
        };
        let id = if let Some(id) = self.free.pop() {
            self.all[id as usize] = track;
            id
        } else {
            self.all.push(track);
            u32::try_from(self.all.len() - 1).expect("far fewer blocks")
        };
        if is_counted {
            self.link_timeline(id);
        }
        id
    }

    /// Forgets a block that is in no list.
    pub(crate) fn drop(&mut self, id: u32) {
        if self.get(id).outlived != UNCOUNTED {
            self.unlink_timeline(id);
        }
        self.free.push(id);
    }

    /// A block is used: counts that, if it is one that is counted, and makes it the newest of the timeline.
    pub(crate) fn renew(&mut self, id: u32, now: u64, hazard: &mut Hazard) {
        let track = self.all[id as usize];
        if track.outlived == UNCOUNTED || !self.is_counted(track.key) {
            if track.outlived != UNCOUNTED {
                self.unlink_timeline(id);
            }
            let track = &mut self.all[id as usize];
            (track.used_at, track.outlived) = (now, UNCOUNTED);
            return;
        }
        let age = now - track.used_at;
        let mut bucket = usize::from(track.outlived);
        while age >= end_of(bucket) {
            hazard.outlived(track.class, bucket, self.one_of);
            bucket += 1;
        }
        hazard.used(track.class, bucket, self.one_of);
        self.unlink_timeline(id);
        let track = &mut self.all[id as usize];
        track.used_at = now;
        track.outlived = 0;
        self.link_timeline(id);
    }

    /// Counts the blocks that have outlived a bucket by now.
    pub(crate) fn advance(&mut self, now: u64, hazard: &mut Hazard) {
        for bucket in 0..BUCKETS - 1 {
            if now >= self.due_at[bucket] {
                self.due_at[bucket] = self.advance_cursor(bucket, now, hazard);
            }
        }
    }

    /// When it has to go on: the next block, whichever it will be, was used no earlier than the one that is next now.
    fn advance_cursor(&mut self, bucket: usize, now: u64, hazard: &mut Hazard) -> u64 {
        // Neighbours are mostly of one class: they are counted together.
        let (mut class, mut blocks) = (Class::ZERO, 0);
        let due_at = loop {
            let id = match self.cursors[bucket] {
                NIL => self.timeline.tail,
                cursor => self.all[cursor as usize].timeline.newer,
            };
            if id == NIL {
                break now + end_of(bucket);
            }
            let is_counted = self.is_counted(self.all[id as usize].key);
            let track = &mut self.all[id as usize];
            let due_at = track.used_at + end_of(bucket);
            if now < due_at {
                break due_at;
            }
            // It may have been counted when it was older than this cursor knew.
            let is_new = usize::from(track.outlived) <= bucket;
            if is_new {
                track.outlived = u8::try_from(bucket + 1).expect("buckets are few");
            }
            if is_new && is_counted {
                if track.class != class {
                    hazard.outlived(class, bucket, blocks);
                    (class, blocks) = (track.class, 0);
                }
                blocks += self.one_of;
            }
            self.cursors[bucket] = id;
        };
        hazard.outlived(class, bucket, blocks);
        due_at
    }

    fn link_timeline(&mut self, id: u32) {
        let older = self.timeline.front;
        self.all[id as usize].timeline = Link { newer: NIL, older };
        match older {
            NIL => self.timeline.tail = id,
            _ => self.all[older as usize].timeline.newer = id,
        }
        self.timeline.front = id;
    }

    fn unlink_timeline(&mut self, id: u32) {
        let Track {
            timeline: Link { newer, older },
            outlived,
            ..
        } = self.all[id as usize];
        for cursor in self.cursors[..usize::from(outlived)].iter_mut().rev() {
            if *cursor != id {
                break;
            }
            *cursor = older;
        }
        match newer {
            NIL => self.timeline.front = older,
            _ => self.all[newer as usize].timeline.older = older,
        }
        match older {
            NIL => self.timeline.tail = newer,
            _ => self.all[older as usize].timeline.newer = newer,
        }
    }

    /// Puts a block at the front of a list.
    pub(crate) fn push_front(&mut self, ends: &mut Ends, id: u32) {
        let older = ends.front;
        self.all[id as usize].list = Link { newer: NIL, older };
        match older {
            NIL => ends.tail = id,
            _ => self.all[older as usize].list.newer = id,
        }
        ends.front = id;
    }

    /// Takes a block off the list that it is in.
    pub(crate) fn unlink(&mut self, ends: &mut Ends, id: u32) {
        let Link { newer, older } = self.all[id as usize].list;
        match newer {
            NIL => ends.front = older,
            _ => self.all[newer as usize].list.older = older,
        }
        match older {
            NIL => ends.tail = newer,
            _ => self.all[older as usize].list.newer = newer,
        }
        self.all[id as usize].list = UNLINKED;
    }
}
