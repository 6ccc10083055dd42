//! Memory of a peer's devices, which this side has been handed and opens by their driver.
//!
//! It is the owner's for something else only when it has been closed here, so a copy of it ends before that, whatever
//! becomes of who waits for it: each holds what it [uses](Used).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use lunette_gpu::share::{HANDLE_WIRE_BYTES, IpcHandle};
use lunette_gpu::{Device, DeviceRegion};
use lunette_transfer_proto::engine::same_host::packet::HANDLE_BYTES;
use lunette_transfer_proto::engine::segment::{Access, SegmentId, Way};

use super::super::devices::DevicePart;
use super::link::Link;

const _: () = assert!(HANDLE_BYTES == HANDLE_WIRE_BYTES);

/// What a link has been handed.
#[derive(Debug, Default)]
pub(super) struct Handles(RefCell<BTreeMap<SegmentId, Handed>>);

#[derive(Debug)]
struct Handed {
    handle: IpcHandle,
    access: Access,
    /// By which openings of devices of this side it was opened, and which could not.
    opened: Vec<(usize, Option<Rc<Open>>)>,
}

/// Memory that is open here, until nobody holds this.
#[derive(Debug)]
pub(super) struct Open(DeviceRegion);

/// What is open while something of it is being copied.
#[derive(Debug)]
pub(in crate::engine) struct Used {
    open: Option<Rc<Open>>,
    link: Rc<Link>,
    segment: SegmentId,
}

impl Used {
    pub(super) fn new(open: Rc<Open>, link: &Rc<Link>, segment: SegmentId) -> Self {
        Self {
            open: Some(open),
            link: Rc::clone(link),
            segment,
        }
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.open = None;
        if !self.link.still_shows(self.segment) {
            // Its owner waits until it is closed.
            self.link.commanding.look();
        }
    }
}

impl Handed {
    /// The memory, as a device reaches it. One that cannot is not asked again.
    fn open(&mut self, device: &Device, segment: SegmentId) -> Option<Rc<Open>> {
        let mut known = self.opened.iter();
        if let Some((_, open)) = known.find(|(known, _)| *known == device.opening()) {
            return open.clone();
        }
        let opened = DeviceRegion::open_ipc(device, &self.handle);
        let open = opened
            .inspect_err(|error| tracing::debug!(%error, %segment, "memory of a peer's device"))
            .ok()
            .map(|region| Rc::new(Open(region)));
        self.opened.push((device.opening(), open.clone()));
        open
    }

    fn is_used(&self) -> bool {
        let mut open = self.opened.iter().filter_map(|(_, open)| open.as_ref());
        open.any(|open| Rc::strong_count(open) > 1)
    }
}

impl Handles {
    pub(super) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub(super) fn has(&self, segment: SegmentId) -> bool {
        self.0.borrow().contains_key(&segment)
    }

    pub(super) fn add(&self, segment: SegmentId, access: Access, handle: &[u8; HANDLE_BYTES]) {
        let handed = Handed {
            handle: IpcHandle::from_bytes(handle),
            access,
            opened: Vec::new(),
        };
        self.0.borrow_mut().insert(segment, handed);
    }

    /// As much of a segment as `near` is long, as that one's device reaches it, and what holds it open; `None` if it does
    /// not reach it, may not, or if that is not all inside.
    pub(super) fn reach(
        &self,
        segment: SegmentId,
        way: Way,
        offset_bytes: u64,
        near: &DevicePart,
    ) -> Option<(DevicePart, Rc<Open>)> {
        let mut handles = self.0.borrow_mut();
        let handed = handles.get_mut(&segment)?;
        if !handed.access.allows(way) {
            return None;
        }
        let open = handed.open(near.device(), segment)?;
        let end = offset_bytes.checked_add(near.len() as u64)?;
        if end > open.0.len() {
            return None;
        }
        let part = near.beside(open.0.slice(offset_bytes..end));
        Some((part, open))
    }

    /// Closes what is not shown any more and of which nothing is being copied; which segments these are.
    pub(super) fn closed(&self, shows: impl Fn(SegmentId) -> bool) -> Vec<SegmentId> {
        let mut closed = Vec::new();
        self.0.borrow_mut().retain(|&segment, handed| {
            let stays = shows(segment) || handed.is_used();
            if !stays {
                closed.push(segment);
            }
            stays
        });
        closed
    }

    /// Closes everything, as soon as nothing of it is being copied.
    pub(super) fn clear(&self) {
        let handles = self.0.take();
        drop(handles);
    }
}
