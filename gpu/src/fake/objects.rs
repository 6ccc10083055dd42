//! What the seam holds of a fake machine.

use std::cell::RefCell;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};

use lunette_gpu_proto::fault::Fault;
use lunette_gpu_proto::kernel::Job;
use lunette_gpu_proto::sums::SumJob;
use lunette_runtime::{CoreWaker, Signal, spawn_local, time};
use rustix::fs::{MemfdFlags, memfd_create};

use super::memory::User;
use super::stream::Work;
use super::world::World;
use crate::provider::{DeviceInfo, IPC_HANDLE_BYTES, PointerInfo, Queued, RawCopy};

/// A context of a fake device.
#[derive(Debug)]
pub(crate) struct FakeContext {
    world: Rc<RefCell<World>>,
    user: User,
}

/// Memory of a fake device.
#[derive(Debug)]
pub(crate) struct FakeMemory {
    world: Rc<RefCell<World>>,
    address: u64,
    len: u64,
}

/// Pinned memory of the host.
#[derive(Debug)]
pub(crate) struct FakePin {
    world: Rc<RefCell<World>>,
    id: u64,
    start: u64,
}

/// A stream of a fake device.
#[derive(Debug)]
pub(crate) struct FakeStream {
    world: Rc<RefCell<World>>,
    stream: usize,
    user: User,
}

/// An event of a fake device.
#[derive(Debug)]
pub(crate) struct FakeEvent {
    world: Rc<RefCell<World>>,
    event: usize,
    user: User,
}

impl FakeContext {
    pub(super) fn open(world: &Rc<RefCell<World>>, device: usize) -> Self {
        let context = world.borrow_mut().add_context();
        Self {
            world: Rc::clone(world),
            user: User { device, context },
        }
    }

    pub(crate) fn info(&self) -> DeviceInfo {
        let world = self.world.borrow();
        let options = &world.device(self.user.device).options;
        DeviceInfo {
            name: "fake".to_owned(),
            index: self.user.device,
            memory_bytes: options.memory_bytes,
            multiprocessors: 16,
            capability: 90,
            driver_version: 0,
            has_batches: options.has_batches,
            has_dma_buf: options.has_dma_buf,
            has_peer_memory: options.has_peer_memory,
            has_shareable: options.has_shareable,
        }
    }

    fn memory(&self, (address, len): (u64, u64)) -> FakeMemory {
        FakeMemory {
            world: Rc::clone(&self.world),
            address,
            len,
        }
    }

    pub(crate) fn alloc(&self, len: u64, is_shareable: bool) -> Result<FakeMemory, Fault> {
        let made = self
            .world
            .borrow_mut()
            .alloc(self.user, len, is_shareable)?;
        Ok(self.memory(made))
    }

    /// A fake descriptor is a file that holds the memory's number.
    pub(crate) fn import(&self, memory: BorrowedFd<'_>, len: u64) -> Result<FakeMemory, Fault> {
        let mut world = self.world.borrow_mut();
        world.alive(self.user)?;
        let number = number_in(memory).ok_or(Fault::Code(1))?;
        let shown = world.memory.import(self.user, number)?;
        drop(world);
        let memory = self.memory(shown);
        if memory.len < len {
            return Err(Fault::Code(1));
        }
        Ok(memory)
    }

    pub(crate) fn open_ipc(&self, handle: [u8; IPC_HANDLE_BYTES]) -> Result<FakeMemory, Fault> {
        let mut world = self.world.borrow_mut();
        world.alive(self.user)?;
        let shown = world.memory.open(self.user, &handle)?;
        drop(world);
        Ok(self.memory(shown))
    }

    pub(crate) fn ipc_handle(&self, base: u64) -> Result<[u8; IPC_HANDLE_BYTES], Fault> {
        let world = self.world.borrow();
        world.alive(self.user)?;
        if !world.device(self.user.device).options.has_shareable {
            return Err(Fault::Unsupported(801));
        }
        world.memory.handle(base)
    }

    pub(crate) fn dma_buf(&self, address: u64, len: u64) -> Result<OwnedFd, Fault> {
        let world = self.world.borrow();
        world.alive(self.user)?;
        if !world.device(self.user.device).options.has_dma_buf {
            return Err(Fault::Unsupported(801));
        }
        let PointerInfo {
            is_own,
            base,
            len: size,
        } = world.memory.pointer(self.user, address);
        if !is_own || (address, len) != (base, size) {
            return Err(Fault::Code(1));
        }
        world.memory.dma_buf(address)
    }

    pub(crate) fn imitation(&self, base: u64) -> Option<OwnedFd> {
        self.world.borrow().memory.dma_buf(base).ok()
    }

    pub(crate) fn pointer(&self, address: u64) -> Result<PointerInfo, Fault> {
        let world = self.world.borrow();
        world.alive(self.user)?;
        Ok(world.memory.pointer(self.user, address))
    }

    pub(crate) fn pin(&self, start: u64, len: usize) -> Result<FakePin, Fault> {
        let id = self.world.borrow_mut().pin(self.user, start, len as u64)?;
        Ok(FakePin {
            world: Rc::clone(&self.world),
            id,
            start,
        })
    }

    pub(crate) fn stream(&self) -> Result<FakeStream, Fault> {
        let mut world = self.world.borrow_mut();
        world.alive(self.user)?;
        let (stream, changed) = world.add_stream(self.user);
        drop(spawn_local(keep(
            Rc::downgrade(&self.world),
            stream,
            changed,
        )));
        Ok(FakeStream {
            world: Rc::clone(&self.world),
            stream,
            user: self.user,
        })
    }

    pub(crate) fn event(&self) -> Result<FakeEvent, Fault> {
        let mut world = self.world.borrow_mut();
        world.alive(self.user)?;
        Ok(FakeEvent {
            world: Rc::clone(&self.world),
            event: world.add_event(),
            user: self.user,
        })
    }
}

/// The device's side of a stream: goes on while the core sleeps, as far as somebody asked to be
/// called; else the core's polls do.
async fn keep(world: Weak<RefCell<World>>, stream: usize, changed: Rc<Signal>) {
    loop {
        let alarm = world
            .upgrade()
            .and_then(|world| world.borrow().alarm(stream));
        match alarm {
            None => return,
            Some(None) => changed.raised().await,
            Some(Some(at)) => {
                time::sleep_until(at).await;
                if let Some(world) = world.upgrade() {
                    world.borrow_mut().advance(time::now());
                }
            }
        }
    }
}

/// A file that holds a number.
fn file_of(number: u64) -> Result<OwnedFd, Fault> {
    let made = memfd_create("lunette-fake", MemfdFlags::CLOEXEC);
    let mut file = std::fs::File::from(made.map_err(|_| Fault::Refused(304))?);
    let written = file.write_all(&number.to_le_bytes());
    written.map_err(|_| Fault::Refused(304))?;
    Ok(file.into())
}

fn number_in(file: BorrowedFd<'_>) -> Option<u64> {
    let mut file = std::fs::File::from(file.try_clone_to_owned().ok()?);
    let mut bytes = [0; 8];
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_exact(&mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

impl FakeMemory {
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn export(&self) -> Result<OwnedFd, Fault> {
        let number = self.world.borrow().memory.shareable(self.address);
        file_of(number.ok_or(Fault::Unsupported(801))?)
    }
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        self.world.borrow_mut().memory.free(self.address);
    }
}

impl FakePin {
    pub(crate) const fn device_address(&self) -> u64 {
        self.start
    }
}

impl Drop for FakePin {
    fn drop(&mut self) {
        self.world.borrow_mut().memory.unpin(self.id);
    }
}

impl FakeStream {
    fn queue(&self, work: Work) -> Result<(), Fault> {
        let mut world = self.world.borrow_mut();
        world.queue(self.stream, work, time::now())
    }

    pub(crate) fn copy(&self, copies: &[RawCopy], is_batch: bool) -> Queued {
        let mut world = self.world.borrow_mut();
        if is_batch {
            if !world.device(self.user.device).options.has_batches {
                return Queued::none(Fault::Unsupported(801));
            }
            world.batched();
        }
        drop(world);
        for (index, copy) in copies.iter().enumerate() {
            if let Err(fault) = self.queue(Work::Copy(*copy)) {
                return Queued {
                    count: index,
                    result: Err(fault),
                };
            }
        }
        Queued::all(copies.len())
    }

    pub(crate) fn launch(&self, job: &Job, blocks: u32) -> Result<(), Fault> {
        assert!(blocks > 0, "a launch has blocks");
        self.queue(Work::Launch(Box::new(*job)))
    }

    pub(crate) fn launch_sums(&self, job: &SumJob, blocks: u32) -> Result<(), Fault> {
        let is_look = job.stripes == 0 && blocks > 0;
        assert!(
            is_look || (1..=job.stripes).contains(&blocks),
            "blocks have stripes"
        );
        self.queue(Work::Sum(*job))
    }

    pub(crate) fn record(&self, event: &FakeEvent) -> Result<(), Fault> {
        assert_eq!(event.user, self.user, "an event of the same context");
        self.queue(Work::Record(event.event))
    }

    pub(crate) fn wait(&self, event: &FakeEvent) -> Result<(), Fault> {
        assert_eq!(event.user, self.user, "an event of the same context");
        self.queue(Work::Wait(event.event))
    }

    pub(crate) fn notify(&self, waker: CoreWaker) -> Result<(), Fault> {
        self.queue(Work::Notify(waker))
    }

    pub(crate) fn synchronize(&self) -> Result<(), Fault> {
        self.world.borrow_mut().finish(self.stream)
    }
}

impl Drop for FakeStream {
    fn drop(&mut self) {
        self.world.borrow_mut().remove_stream(self.stream);
    }
}

impl FakeEvent {
    pub(crate) fn has_come(&self) -> Result<bool, Fault> {
        let mut world = self.world.borrow_mut();
        world.advance(time::now());
        world.alive(self.user)?;
        Ok(world.has_come(self.event))
    }
}

impl Drop for FakeEvent {
    fn drop(&mut self) {
        self.world.borrow_mut().remove_event(self.event);
    }
}
