//! Names of regions: values that pin nothing and go stale.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use crate::region::Piece;

/// Most regions of one opening of a device.
pub const REGIONS_MAX: usize = 1 << 20;

/// The name of device memory: a value that pins nothing and goes stale when the memory is given
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionName {
    /// Its place.
    pub index: u32,
    /// Which of those that had this place.
    pub generation: u32,
    /// First byte within what was allocated, carved or imported at once.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    piece: Weak<Piece>,
}

/// Who has which name.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
}

impl Listing {
    /// Makes a piece that knows its place. None if there are too many.
    pub(crate) fn list(self: &Rc<Self>, piece: impl FnOnce(Place) -> Piece) -> Option<Rc<Piece>> {
        let mut slots = self.slots.borrow_mut();
        let index = match self.free.borrow_mut().pop() {
            Some(index) => index,
            None if slots.len() >= REGIONS_MAX => return None,
            None => {
                slots.push(Slot {
                    generation: 0,
                    piece: Weak::new(),
                });
                u32::try_from(slots.len() - 1).expect("bounded by REGIONS_MAX")
            }
        };
        let slot = &mut slots[index as usize];
        assert_eq!(slot.piece.strong_count(), 0, "a place has one piece");
        slot.generation = slot.generation.wrapping_add(1);
        let place = Place {
            listing: Rc::clone(self),
            index,
            generation: slot.generation,
        };
        let piece = Rc::new(piece(place));
        slot.piece = Rc::downgrade(&piece);
        Some(piece)
    }

    /// The piece of this name, while it is there.
    pub(crate) fn find(&self, index: u32, generation: u32) -> Option<Rc<Piece>> {
        let slots = self.slots.borrow();
        let slot = slots.get(index as usize)?;
        (slot.generation == generation)
            .then(|| slot.piece.upgrade())
            .flatten()
    }
}

/// A place in the list, free again when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    listing: Rc<Listing>,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.listing.free.borrow_mut().push(self.index);
    }
}
