//! What the seam holds of a fabric.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::Waker;

use lunette_runtime_core::time::Time;
use lunette_verbs_proto::gid::{GidEntry, GidKind};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::world::World;
use crate::provider::{
    Access, Completion, DeviceInfo, Keys, QueueSizes, RawEvent, ReceiveRequest, SendRequest, Step,
};

type Shared = Rc<RefCell<World>>;

/// The address of an adapter.
pub(super) fn gid_of(device: usize) -> [u8; 16] {
    let last = u8::try_from(device + 1).expect("bounded by DEVICES_MAX");
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 2, 0, last]
}

/// An opened adapter.
#[derive(Debug)]
pub(crate) struct SimDevice {
    world: Shared,
    device: usize,
}

/// A registration.
#[derive(Debug)]
pub(crate) struct SimMemory {
    world: Shared,
    device: usize,
    key: u32,
    /// Of device memory; goes when the adapter has let go.
    _mapping: Option<Mapping>,
}

/// Files are mapped by such pages.
const PAGE_BYTES: u64 = 4096;

/// Mapped pages of a file, which nobody borrows.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// Where in the first page the bytes begin that were asked for.
    skipped: usize,
}

impl Mapping {
    fn new(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        let skipped = (offset % PAGE_BYTES) as usize;
        let (from, len) = (offset - offset % PAGE_BYTES, skipped + len);
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at a place of the kernel's choice; it ends in `drop`.
        let start = unsafe { mmap(std::ptr::null_mut(), len, rights, flags, file, from) };
        let start = NonNull::new(start?.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self {
            start,
            len,
            skipped,
        })
    }

    fn bytes(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(self.skipped)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is live, and the adapter that reached it has forgotten it: its
        // registration ends first.
        let gone = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(gone, Ok(()), "a mapping ends");
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct SimCompletions {
    world: Shared,
    device: usize,
    queue: u32,
}

/// Receives that queue pairs share.
#[derive(Debug)]
pub(crate) struct SimShared {
    world: Shared,
    device: usize,
    queue: u32,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct SimQueuePair {
    world: Shared,
    device: usize,
    number: u32,
}

impl SimDevice {
    pub(super) fn open(world: &Shared, device: usize) -> Option<Self> {
        let exists = device < world.borrow().devices.len();
        exists.then(|| Self {
            world: Rc::clone(world),
            device,
        })
    }

    pub(crate) fn info(&self) -> DeviceInfo {
        let world = self.world.borrow();
        let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let entry = |index, gid| GidEntry {
            index,
            gid,
            kind: GidKind::RoceV2,
            is_up: true,
        };
        DeviceInfo {
            name: format!("sim{}", self.device),
            is_active: world.devices[self.device].is_link_up,
            is_ethernet: true,
            is_iwarp: false,
            lid: 0,
            mtu_bytes: 1024,
            gids: vec![entry(0, link_local), entry(1, gid_of(self.device))],
            queue_depth_max: 1 << 15,
            completions_max: 1 << 16,
            reads_out_max: 4,
            reads_in_max: 8,
            has_atomics: true,
        }
    }

    /// # Safety
    /// As [`RawDevice::register`](crate::provider::RawDevice::register).
    pub(crate) unsafe fn register(
        &self,
        address: *mut u8,
        len: usize,
        access: Access,
    ) -> (SimMemory, Keys) {
        self.registered(address.addr() as u64, address, len, access, None)
    }

    /// A part of a file that can be mapped, whose first byte requests name by `address`.
    pub(crate) fn register_file(
        &self,
        (file, offset): (BorrowedFd<'_>, u64),
        address: u64,
        len: usize,
        access: Access,
    ) -> Result<(SimMemory, Keys), Errno> {
        let mapping = Mapping::new(file, offset, len)?;
        let start = mapping.bytes();
        Ok(self.registered(address, start, len, access, Some(mapping)))
    }

    fn registered(
        &self,
        address: u64,
        start: *mut u8,
        len: usize,
        access: Access,
        mapping: Option<Mapping>,
    ) -> (SimMemory, Keys) {
        let mut world = self.world.borrow_mut();
        let key = world.devices[self.device].register(address, start, len, access);
        let memory = SimMemory {
            world: Rc::clone(&self.world),
            device: self.device,
            key,
            _mapping: mapping,
        };
        let keys = Keys {
            lkey: key,
            rkey: key,
        };
        (memory, keys)
    }

    pub(crate) fn completions(&self, entries: u32) -> SimCompletions {
        let queue = self.world.borrow_mut().devices[self.device].add_queue(entries);
        SimCompletions {
            world: Rc::clone(&self.world),
            device: self.device,
            queue,
        }
    }

    pub(crate) fn queue_pair(
        &self,
        completions: &SimCompletions,
        shared: Option<&SimShared>,
        sizes: QueueSizes,
    ) -> SimQueuePair {
        let mut world = self.world.borrow_mut();
        let shared = shared.map(|shared| shared.queue);
        let number = world.add_pair(self.device, completions.queue, shared, sizes);
        SimQueuePair {
            world: Rc::clone(&self.world),
            device: self.device,
            number,
        }
    }

    pub(crate) fn shared_receives(&self, depth: u32) -> SimShared {
        let queue = self.world.borrow_mut().devices[self.device].add_shared(depth);
        SimShared {
            world: Rc::clone(&self.world),
            device: self.device,
            queue,
        }
    }

    pub(crate) fn next_event(&self) -> Option<RawEvent> {
        self.world.borrow_mut().devices[self.device]
            .events
            .pop_front()
    }

    pub(crate) fn wake_at_event(&self, waker: &Waker) -> bool {
        let adapter = &mut self.world.borrow_mut().devices[self.device];
        let wakers = &mut adapter.event_wakers;
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        !adapter.events.is_empty()
    }
}

impl Drop for SimMemory {
    fn drop(&mut self) {
        let mut world = self.world.borrow_mut();
        world.devices[self.device].deregister(self.key);
    }
}

impl SimCompletions {
    pub(crate) fn token(&self) -> u64 {
        self.queue.into()
    }

    pub(crate) fn poll(&self, out: &mut [Completion]) -> Result<usize, Errno> {
        let mut world = self.world.borrow_mut();
        world.advance();
        world.devices[self.device].take_completions(self.queue, out)
    }

    pub(crate) fn has_work(&self) -> bool {
        self.world.borrow().has_work()
    }

    /// When there will be work, unless there is some now.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.world.borrow().next_due()
    }

    /// Wakes `waker` when that comes nearer.
    pub(crate) fn wake_at_begin(&self, waker: &Waker) {
        self.world.borrow_mut().wake_at_begin(waker);
    }
}

impl SimShared {
    pub(crate) fn token(&self) -> u64 {
        self.queue.into()
    }

    pub(crate) fn post(&self, request: &ReceiveRequest) -> Result<(), Errno> {
        let mut world = self.world.borrow_mut();
        world.devices[self.device].post_shared(self.queue, request)
    }
}

impl Drop for SimShared {
    fn drop(&mut self) {
        let mut world = self.world.borrow_mut();
        world.devices[self.device].remove_shared(self.queue);
    }
}

impl Drop for SimCompletions {
    fn drop(&mut self) {
        let mut world = self.world.borrow_mut();
        world.devices[self.device].remove_queue(self.queue);
    }
}

impl SimQueuePair {
    pub(crate) fn token(&self) -> u64 {
        self.number.into()
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn step(&self, step: &Step) -> Result<(), Errno> {
        let mut world = self.world.borrow_mut();
        world.devices[self.device].step_pair(self.number, step)
    }

    /// # Safety
    /// As [`RawQueuePair::post_sends`](crate::provider::RawQueuePair::post_sends).
    pub(crate) unsafe fn post_sends(&self, requests: &[SendRequest]) -> (usize, Option<Errno>) {
        let mut world = self.world.borrow_mut();
        let posted = world.devices[self.device].post_sends(self.number, requests);
        world.begin(self.device, self.number);
        posted
    }

    pub(crate) fn post_receives(&self, requests: &[ReceiveRequest]) -> (usize, Option<Errno>) {
        let mut world = self.world.borrow_mut();
        world.devices[self.device].post_receives(self.number, requests)
    }
}

impl Drop for SimQueuePair {
    fn drop(&mut self) {
        let mut world = self.world.borrow_mut();
        world.devices[self.device].remove_pair(self.number);
    }
}
