//! Memory of this core that threads of its process reach: large copies are read where they lie, and written to where
//! they stay, so that no core copies them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::Op;
use lunette_kvstore_proto::owner::Read;
use lunette_kvstore_proto::retention::Pin;
use lunette_kvstore_proto::shard::EntryId;
use lunette_kvstore_proto::version::{Form, Version};
use lunette_runtime::arena::{Borrowed, BorrowedMut, Lender, LenderMut, Region, RegionMut};
use lunette_runtime_core::checksum::crc32c;
use slab::Slab;

use super::bytes::{Extent, Frame};
use super::core::MemberCore;
use crate::counting::Outcome;

/// Shortest value in bytes that is lent: copying what is shorter takes a core less than retention books.
pub(crate) const LENT_MIN: usize = (64 << 10) + 1;
/// With fewer that are lent it is not looked before each whether some are over.
const LOOKED_AT_MIN: usize = 16;
/// Copies that are lent at a time, and as many rooms for others. What is beyond is copied by its core.
pub(crate) const LENT_MAX: usize = 4096;

/// A copy that a thread reads.
#[derive(Debug)]
pub(crate) struct LentCopy {
    pub(crate) value: Borrowed,
    pub(crate) version: Version,
    pub(crate) is_cut_off: bool,
}

/// Room for an object, which a thread fills.
#[derive(Debug)]
pub(crate) struct LentRoom {
    number: usize,
    memory: BorrowedMut,
    value_at: usize,
}

impl LentRoom {
    /// Where the value goes.
    pub(crate) fn value_mut(&mut self) -> &mut [u8] {
        &mut self.memory.as_mut_slice()[self.value_at..]
    }
}

/// Room of this core for an object that a device fills. It is given back unless it [is filled](Self::filled).
pub(crate) struct RoomHere {
    core: Rc<MemberCore>,
    /// None once it is filled.
    frame: Option<Frame>,
}

impl RoomHere {
    /// Where in the memory that came with it the value goes.
    pub(crate) fn value_at(&self) -> usize {
        self.frame.expect("it is not filled yet").value_at()
    }

    /// The memory has been filled with a value, of this checksum if whoever filled it has summed it: what is placed by
    /// that, and its bytes, for whoever else they go to.
    pub(crate) fn filled(mut self, region: RegionMut, summed: Option<u32>) -> (Placed, Region) {
        let frame = self.frame.take().expect("it is filled once");
        let (value_at, len_bytes) = (frame.value_at(), frame.len_bytes() as usize);
        let sum = || crc32c(&region.as_slice()[value_at..value_at + len_bytes]);
        let crc32c = summed.unwrap_or_else(sum);
        let extent = frame.filled(region, crc32c);
        let value = extent.value();
        let placed = Placed {
            core: Rc::clone(&self.core),
            whole: Cell::new(Some((frame, extent))),
        };
        (placed, value)
    }
}

impl Drop for RoomHere {
    fn drop(&mut self) {
        if let Some(frame) = self.frame {
            self.core.bytes().borrow_mut().drop_unused(frame);
        }
    }
}

/// An object's bytes that are where they stay, before it is known whether it is written. Its room is given back unless
/// it is.
pub(crate) struct Placed {
    core: Rc<MemberCore>,
    whole: Cell<Option<(Frame, Extent)>>,
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placed")
            .field("seat", &self.core.seat())
            .finish_non_exhaustive()
    }
}

impl Placed {
    /// For a write of this core and key.
    pub(super) fn take(&self, core: &MemberCore, key: Key<'_>) -> Option<(Frame, Extent)> {
        if !self.is_of(core) {
            return None;
        }
        let (frame, extent) = self.whole.take()?;
        assert!(extent.key() == key, "it was placed for another key");
        Some((frame, extent))
    }

    /// Whether it is that core's memory.
    pub(super) fn is_of(&self, core: &MemberCore) -> bool {
        std::ptr::eq(Rc::as_ptr(&self.core), core)
    }

    /// It was not written, and stays where it is, in that core's memory.
    pub(super) fn put_back(&self, frame: Frame, extent: Extent) {
        self.whole.set(Some((frame, extent)));
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Some((frame, extent)) = self.whole.take() {
            drop(extent);
            self.core.bytes().borrow_mut().drop_unused(frame);
        }
    }
}

/// What is lent. A copy that leaves meanwhile keeps its memory until it is read.
#[derive(Debug, Default)]
pub(super) struct Lending {
    copies: RefCell<Vec<(EntryId, Lender)>>,
    rooms: RefCell<Slab<(Frame, LenderMut)>>,
    /// What was lent when it was looked at last.
    looked_at: Cell<usize>,
}

impl Lending {
    /// Whether to look for what is over before more is lent: when that is twice as much as the last time.
    fn is_to_be_looked_at(&self) -> bool {
        let lent = self.copies.borrow().len().max(self.rooms.borrow().len());
        lent >= (self.looked_at.get() * 2).clamp(LOOKED_AT_MIN, LENT_MAX)
    }
}

impl MemberCore {
    /// Lends the object, if it is one of [`LENT_MIN`] to `len_max` bytes that this core has. It is pinned until the
    /// thread has read it and this core [has seen that](Self::take_back).
    pub(crate) fn lend_here(
        &self,
        key: Key<'_>,
        namespace: NamespaceKind,
        len_max: usize,
    ) -> Option<LentCopy> {
        if self.lending.is_to_be_looked_at() {
            self.take_back();
        }
        if self.has_left() || self.lending.copies.borrow().len() == LENT_MAX {
            return None;
        }
        let Read::Served {
            place,
            info,
            is_cut_off,
        } = self.read_here(key, namespace)
        else {
            return None;
        };
        let is_long_enough = (LENT_MIN..=len_max).contains(&(info.len_bytes as usize));
        if info.form != Form::Whole || !is_long_enough {
            return None;
        }
        let (id, extent) = self.bytes().borrow_mut().pin(place, key)?;
        let (value, lender) = extent.value().lend();
        self.lending.copies.borrow_mut().push((id, lender));
        self.list_read(place, id.slot_index);
        let mut counting = self.counts.begin(Op::Find.code());
        self.counts.sending(value.as_slice().len());
        counting.end(Outcome::Ok);
        Some(LentCopy {
            value,
            version: place.version,
            is_cut_off,
        })
    }

    /// Room for an object, if this core takes it: as its home, or because nothing has to leave for it. It is there until
    /// the thread [has filled it](Self::filled), or dropped it and this core [has seen that](Self::take_back).
    pub(crate) fn lend_room(&self, key: Key<'_>, len_bytes: u32, pin: Pin) -> Option<LentRoom> {
        if self.lending.is_to_be_looked_at() {
            self.take_back();
        }
        let is_full = self.lending.rooms.borrow().len() == LENT_MAX;
        let is_taken = self.is_home_of(key) || self.takes(key, len_bytes as usize);
        if self.has_left() || is_full || !is_taken {
            return None;
        }
        let carved = self.carve_or_make_room(key, len_bytes, pin).ok()?;
        let (frame, region) = carved.into_empty();
        let value_at = frame.value_at();
        let (memory, lender) = region.lend();
        let number = self.lending.rooms.borrow_mut().insert((frame, lender));
        Some(LentRoom {
            number,
            memory,
            value_at,
        })
    }

    /// Room for an object, if this core takes it, and the memory that is it, for a device to fill.
    pub(crate) fn room_here(
        self: &Rc<Self>,
        key: Key<'_>,
        len_bytes: u32,
        pin: Pin,
    ) -> Option<(RoomHere, RegionMut)> {
        let is_taken = self.is_home_of(key) || self.takes(key, len_bytes as usize);
        if self.has_left() || !is_taken {
            return None;
        }
        let carved = self.carve_or_make_room(key, len_bytes, pin).ok()?;
        let (frame, region) = carved.into_empty();
        let room = RoomHere {
            core: Rc::clone(self),
            frame: Some(frame),
        };
        Some((room, region))
    }

    /// What was lent has been filled with a value of this checksum.
    pub(crate) fn filled(self: &Rc<Self>, room: LentRoom, crc32c: u32) -> Placed {
        let LentRoom { number, memory, .. } = room;
        let (frame, lender) = self.lending.rooms.borrow_mut().remove(number);
        let region = lender.end(memory).expect("the room of this number");
        Placed {
            core: Rc::clone(self),
            whole: Cell::new(Some((frame, frame.filled(region, crc32c)))),
        }
    }

    /// Unpins what has been read, and frees what will not be filled: looked at when much has been lent since, when room is
    /// to be made, and when time passes.
    pub(super) fn take_back(&self) {
        let (mut rooms, mut copies) = (
            self.lending.rooms.borrow_mut(),
            self.lending.copies.borrow_mut(),
        );
        if !rooms.is_empty() || !copies.is_empty() {
            let mut bytes = self.bytes().borrow_mut();
            rooms.retain(|_, (frame, lender)| {
                let is_over = lender.is_over();
                if is_over {
                    bytes.drop_unused(*frame);
                }
                !is_over
            });
            copies.retain_mut(|(id, lender)| {
                let is_over = lender.is_over();
                if is_over {
                    bytes.unpin(*id);
                }
                !is_over
            });
        }
        self.lending.looked_at.set(copies.len().max(rooms.len()));
    }
}
