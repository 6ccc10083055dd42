//! Lists of slots.

pub(super) const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
}

/// Where slots are, in whichever list.
#[derive(Debug, Default)]
pub(super) struct Links(Vec<Link>);

#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    front: u32,
    tail: u32,
    len: usize,
}

impl Default for List {
    fn default() -> Self {
        Self {
            front: NIL,
            tail: NIL,
            len: 0,
        }
    }
}

impl List {
    pub(super) const fn tail(&self) -> Option<u32> {
        if self.tail == NIL {
            None
        } else {
            Some(self.tail)
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push_front(&mut self, links: &mut Links, slot_index: u32) {
        let slots = links.0.len().max(slot_index as usize + 1);
        let unlinked = Link {
            newer: NIL,
            older: NIL,
        };
        links.0.resize(slots, unlinked);
        let older = self.front;
        links.0[slot_index as usize] = Link { newer: NIL, older };
        match older {
            NIL => self.tail = slot_index,
            _ => links.0[older as usize].newer = slot_index,
        }
        self.front = slot_index;
        self.len += 1;
    }

    pub(super) fn unlink(&mut self, links: &mut Links, slot_index: u32) {
        let Link { newer, older } = links.0[slot_index as usize];
        match newer {
            NIL => self.front = older,
            _ => links.0[newer as usize].older = older,
        }
        match older {
            NIL => self.tail = newer,
            _ => links.0[older as usize].newer = newer,
        }
        self.len -= 1;
    }
}

impl Links {
    /// The slot next to this one, towards the front of its list.
    pub(super) fn newer(&self, slot_index: u32) -> Option<u32> {
        let newer = self.0[slot_index as usize].newer;
        (newer != NIL).then_some(newer)
    }
}
