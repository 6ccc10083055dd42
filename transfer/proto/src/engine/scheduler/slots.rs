//! A table whose entries are named once and for all.

/// Entries under an index and a generation.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Its index and generation.
    pub(super) fn insert(&mut self, value: T) -> (u32, u32) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            u32::try_from(self.slots.len() - 1).expect("entries are bounded")
        });
        let (generation, slot) = &mut self.slots[index as usize];
        assert!(slot.is_none(), "a free slot is empty");
        *slot = Some(value);
        (index, *generation)
    }

    pub(super) fn get(&self, index: u32, generation: u32) -> Option<&T> {
        let (found, slot) = self.slots.get(index as usize)?;
        slot.as_ref().filter(|_| *found == generation)
    }

    pub(super) fn remove(&mut self, index: u32, generation: u32) -> Option<T> {
        let (found, slot) = self.slots.get_mut(index as usize)?;
        if *found != generation {
            return None;
        }
        let value = slot.take()?;
        *found = found.wrapping_add(1);
        self.free.push(index);
        Some(value)
    }

    pub(super) fn generation(&self, index: u32) -> u32 {
        self.slots[index as usize].0
    }

    /// The entry that is at an index now.
    pub(super) fn at(&mut self, index: u32) -> &mut T {
        let slot = &mut self.slots[index as usize].1;
        slot.as_mut().expect("who names an index knows its entry")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32, &T)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(index, (generation, slot))| {
                let value = slot.as_ref()?;
                Some((index, *generation, value))
            })
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, u32, &mut T)> {
        (0..)
            .zip(&mut self.slots)
            .filter_map(|(index, (generation, slot))| {
                let value = slot.as_mut()?;
                Some((index, *generation, value))
            })
    }
}
