//! The blocks that a policy knows of, in lists through one slab.
//!
//! Each block is in the *timeline*, by its last use, and may be in one list besides. A cursor per age
//! bucket walks along the timeline, so that each block is counted once when it outlives a bucket.

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
    /// Buckets that it was counted to have outlived since its last use.
    outlived: u8,
    pub(crate) standing: Standing,
}

/// Bytes per block that is known.
pub const TRACK_BYTES: usize = size_of::<Track>();

#[derive(Debug)]
pub(crate) struct Tracks {
    all: Vec<Track>,
    free: Vec<u32>,
    timeline: Ends,
    /// Per bucket, the newest block that was counted to have outlived it.
    cursors: [u32; BUCKETS],
}

impl Tracks {
    pub(crate) fn with_capacity(tracks: usize) -> Self {
        Self {
            all: Vec::with_capacity(tracks),
            free: Vec::new(),
            timeline: Ends::EMPTY,
            cursors: [NIL; BUCKETS],
        }
    }

    pub(crate) fn get(&self, id: u32) -> &Track {
        &self.all[id as usize]
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> &mut Track {
        &mut self.all[id as usize]
    }

    /// A block that is used for the first time, in the timeline and in no list.
    pub(crate) fn add(&mut self, key: u64, slot_index: u32, now: u64) -> u32 {
        let track = Track {
            key,
            used_at: now,
            slot_index,
            timeline: UNLINKED,
            list: UNLINKED,
            class: Class::ZERO,
            reuses: 0,
            outlived: 0,
            standing: Standing::Withheld,
        };
        let id = if let Some(id) = self.free.pop() {
            self.all[id as usize] = track;
            id
        } else {
            self.all.push(track);
            u32::try_from(self.all.len() - 1).expect("far fewer blocks")
        };
        self.link_timeline(id);
        id
    }

    /// Forgets a block that is in no list.
    pub(crate) fn drop(&mut self, id: u32) {
        self.unlink_timeline(id);
        self.free.push(id);
    }

    /// A block is used: counts that, and makes it the newest of the timeline.
    pub(crate) fn renew(&mut self, id: u32, now: u64, hazard: &mut Hazard) {
        let track = self.all[id as usize];
        let age = now - track.used_at;
        let mut bucket = usize::from(track.outlived);
        while age >= end_of(bucket) {
            hazard.outlived(track.class, bucket);
            bucket += 1;
        }
        hazard.used(track.class, bucket);
        self.unlink_timeline(id);
        let track = &mut self.all[id as usize];
        track.used_at = now;
        track.outlived = 0;
        self.link_timeline(id);
    }

    /// Counts the blocks that have outlived a bucket by now.
    pub(crate) fn advance(&mut self, now: u64, hazard: &mut Hazard) {
        for bucket in 0..BUCKETS - 1 {
            loop {
                let cursor = self.cursors[bucket];
                let id = match cursor {
                    NIL => self.timeline.tail,
                    _ => self.all[cursor as usize].timeline.newer,
                };
                if id == NIL || now - self.all[id as usize].used_at < end_of(bucket) {
                    break;
                }
                let track = &mut self.all[id as usize];
                // It may have been counted when it was older than this cursor knew.
                if usize::from(track.outlived) <= bucket {
                    track.outlived = u8::try_from(bucket + 1).expect("buckets are few");
                    hazard.outlived(track.class, bucket);
                }
                self.cursors[bucket] = id;
            }
        }
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
