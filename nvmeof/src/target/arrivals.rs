//! Commands whose data are coming, and where those go.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use lunette_nvmeof_proto::command::Command;
use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::controller::IoOrder;
use lunette_runtime::arena;
use lunette_runtime::arena::RegionMut;

/// What a command with data from the host is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Connect(Command),
    Authenticate(Command),
    Io(IoOrder),
    /// It ends so as soon as its data have passed.
    Refused(Status),
}

/// A command whose data are coming.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) purpose: Purpose,
    pub(super) len: usize,
    /// None while it is lent to a receive, for one that is refused, and until there is need of it.
    pub(super) room: Option<RegionMut>,
}

impl Arrival {
    /// Room for the data, unless nobody wants them. Without memory the command is refused.
    pub(super) fn room(&mut self) -> Option<&mut RegionMut> {
        if self.room_now().is_none() && self.is_wanted() {
            self.purpose = Purpose::Refused(Status::NAMESPACE_NOT_READY);
        }
        self.room.as_mut()
    }

    /// Room for the data, unless nobody wants them or there is no memory now.
    fn room_now(&mut self) -> Option<&mut RegionMut> {
        if self.room.is_none() && self.is_wanted() {
            self.room = arena().alloc(self.len).ok();
        }
        self.room.as_mut()
    }

    fn is_wanted(&self) -> bool {
        !matches!(self.purpose, Purpose::Refused(_))
    }
}

/// Those of one connection, by their slots. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    by_slot: Rc<RefCell<Vec<Option<Arrival>>>>,
}

impl Arrivals {
    /// Data of a command are to come.
    pub(super) fn begin(&self, slot: u16, purpose: Purpose, len: usize) {
        let index = usize::from(slot);
        let mut by_slot = self.by_slot.borrow_mut();
        if by_slot.len() <= index {
            by_slot.resize_with(index + 1, || None);
        }
        let before = by_slot[index].replace(Arrival {
            purpose,
            len,
            room: None,
        });
        assert!(before.is_none(), "a slot has one command at a time");
    }

    /// They have come, or will never be asked for.
    pub(super) fn end(&self, slot: u16) -> Arrival {
        let arrival = self.by_slot.borrow_mut()[usize::from(slot)].take();
        arrival.expect("data of a command")
    }

    /// Whether so many bytes are all data of a command for I/O, and none have been placed.
    pub(super) fn is_whole(&self, slot: u16, len: usize) -> bool {
        let by_slot = self.by_slot.borrow();
        by_slot[usize::from(slot)].as_ref().is_some_and(|arrival| {
            let is_wanted = matches!(arrival.purpose, Purpose::Io(_));
            is_wanted && arrival.len == len && arrival.room.is_none()
        })
    }

    /// Whether a command's data can come: there is room for them now, or nobody wants them.
    pub(super) fn has_room(&self, slot: u16) -> bool {
        let mut arrival = self.of(slot);
        arrival.room_now().is_some() || !arrival.is_wanted()
    }

    /// Whether there is room that can be lent to a receive.
    pub(super) fn can_lend(&self, slot: u16) -> bool {
        self.of(slot).room().is_some()
    }

    /// The command ends so as soon as its data have passed.
    pub(super) fn refuse(&self, slot: u16, status: Status) {
        self.of(slot).purpose = Purpose::Refused(status);
    }

    /// Places data that arrived elsewhere.
    pub(super) fn place(&self, slot: u16, offset: usize, bytes: &[u8]) {
        if let Some(room) = self.of(slot).room() {
            room.as_mut_slice()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// The room of a command that [can lend it](Self::can_lend), for a receive.
    pub(super) fn lend(&self, slot: u16) -> RegionMut {
        self.of(slot).room.take().expect("just seen")
    }

    /// Gives a command its room, or gives that back.
    pub(super) fn give(&self, slot: u16, room: RegionMut) {
        self.of(slot).room = Some(room);
    }

    fn of(&self, slot: u16) -> RefMut<'_, Arrival> {
        RefMut::map(self.by_slot.borrow_mut(), |by_slot| {
            let arrival = by_slot[usize::from(slot)].as_mut();
            arrival.expect("data of a command")
        })
    }
}
