//! Fake devices that are stricter than any real one.
//!
//! A machine of fake devices computes with memory of the host, takes its time by the clock of the
//! core that uses it, and does things in an order that the seed fixes: streams overtake one another,
//! and within a stream everything is in order. It runs in simulated worlds, in virtual time, and
//! natively. Where a real device lets much pass, this one lets nothing pass: an address that was
//! freed, was never allocated, belongs to another device or context, or leaves its allocation ends the
//! test by a panic when the copy is *executed*, which shows memory that was given back too early. And
//! where real devices differ in how they fail, these fail in all the ways that [`Fault`] names.
//!
//! Like a real driver it calls nobody back once its context is poisoned, so a core that sleeps for a
//! completion must not rely on that call.

mod memory;
mod objects;
mod stream;
#[cfg(test)]
mod tests;
mod world;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

pub(crate) use objects::{FakeContext, FakeEvent, FakeMemory, FakePin, FakeStream};
use world::World;

/// Devices of one machine.
pub const DEVICES_MAX: usize = 16;

/// What a fake device is like when nothing is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeOptions {
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Least and most time of an operation beside its bytes.
    pub latency: (Duration, Duration),
    /// Bytes per second of a copy.
    pub bytes_per_second: u64,
    /// Whether many copies go in one call.
    pub has_batches: bool,
    /// Whether memory can be made a dma-buf.
    pub has_dma_buf: bool,
    /// Whether adapters reach its memory by its address.
    pub has_peer_memory: bool,
    /// Whether memory can be handed to other processes, by handle or descriptor.
    pub has_shareable: bool,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            latency: (Duration::from_micros(2), Duration::from_micros(30)),
            bytes_per_second: 25_000_000_000,
            has_batches: true,
            has_dma_buf: true,
            has_peer_memory: false,
            has_shareable: true,
        }
    }
}

/// What is to go wrong at a fake device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The next allocation finds no memory.
    OutOfMemory,
    /// The system refuses to pin memory, from now on.
    PinRefused,
    /// The copy or launch that is so many further is refused with this code when it is to be queued:
    /// 0 is the next one. What was queued before it goes on.
    Refused {
        /// How many are queued before it.
        after: u32,
        /// The driver's code: one that a context survives.
        code: u32,
    },
    /// The next event is not recorded, so that nothing stands behind what was queued before it.
    Unrecorded,
    /// The next copy or launch that is executed fails, and the context with it: everything that was
    /// queued is gone.
    Poisoned {
        /// The driver's code.
        code: u32,
    },
    /// The device is gone, now.
    Lost,
    /// Kernels that are queued from now on begin so long after it is their turn, as others have the SMs.
    Crowded {
        /// Zero: there is room.
        wait: Duration,
    },
    /// Everything that is queued from now on takes so many times as long.
    Slow {
        /// 1 is full speed.
        times: u32,
    },
}

/// What fake devices have done since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FakeCounts {
    /// Copies executed, those of launches not counted.
    pub copies: u64,
    /// Calls that queued several copies at once.
    pub batches: u64,
    /// Launches executed.
    pub launches: u64,
    /// Copies from or to memory of the host that was not pinned.
    pub unpinned: u64,
    /// Cores that were woken.
    pub wakes: u64,
    /// Operations that ended before one that was queued earlier, in another stream.
    pub overtakings: u64,
    /// Allocations that have not been given back.
    pub allocations: u64,
    /// A hash of everything that was executed, in order.
    pub hash: u64,
}

/// Fake devices of one machine, which several processes of a world may share. Clones share it.
#[derive(Clone)]
pub struct FakeMachine(Rc<RefCell<World>>);

impl FakeMachine {
    /// A machine without devices, whose order of events `seed` fixes.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(World::new(seed))))
    }

    /// Adds a device and answers with its number.
    ///
    /// # Panics
    /// At [`DEVICES_MAX`] of them.
    #[must_use]
    pub fn add_device(&self, options: FakeOptions) -> usize {
        self.0.borrow_mut().add_device(options)
    }

    /// Lets something go wrong at a device.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn inject(&self, device: usize, fault: Fault) {
        self.0.borrow_mut().inject(device, fault);
    }

    /// What the devices have done: equal for equal seeds and equal calls in a simulated world.
    #[must_use]
    pub fn counts(&self) -> FakeCounts {
        self.0.borrow().counts()
    }

    pub(crate) fn device_count(&self) -> usize {
        self.0.borrow().device_count()
    }

    /// As another process would, opens a context of its own.
    pub(crate) fn open(&self, device: usize) -> FakeContext {
        FakeContext::open(&self.0, device)
    }
}

impl fmt::Debug for FakeMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FakeMachine({:?})", self.counts())
    }
}
