//! A fabric of simulated adapters that are stricter than any real one.
//!
//! Everything happens while completion queues are polled, in an order that the seed fixes; there
//! is no clock, unless adapters are given a rate ([`Fabric::set_speed`]). Where adapters differ in how much they let pass, these let nothing pass: a queue
//! takes what it holds and no more, counting requests whose end nobody has been told; keys, bounds,
//! alignment and rights are checked byte by byte; packet numbers must meet; a completion queue that
//! overflows takes its queue pairs with it. And where adapters differ in how they fail, these fail
//! in all the ways that [`Fault`] names, when told to.
//!
//! The adapters reach memory as real ones do, by address: what was registered, and nothing else.

mod adapter;
mod objects;
mod timing;
mod world;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

pub(crate) use objects::{SimCompletions, SimDevice, SimMemory, SimQueuePair, SimShared};
use world::World;

use crate::provider::PairEvent;

/// Adapters of one fabric.
pub const DEVICES_MAX: usize = 64;

/// What is to go wrong at an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The peer has no receive for the next request, whatever it posted.
    ReceiverNotReady,
    /// The peer does not answer the next request.
    RetryExceeded,
    /// The queue pair of the next request breaks before it.
    Flush,
    /// The peer refuses the next request.
    RemoteAccess,
    /// The next request fails with this code.
    Code(u32),
    /// The link goes away: requests wait for it, as long as retries last.
    LinkDown,
    /// The link comes back.
    LinkUp,
    /// The completion queue of the next request overflows.
    CompletionOverrun,
    /// Every request from now on takes so many steps of the fabric; 0 and 1 are full speed.
    Slow {
        /// Steps of a request.
        steps: u32,
    },
    /// No request completes from now on, and no flush either.
    Silence,
    /// The next doorbell is taken in part.
    PartialPost {
        /// Requests that are taken at most.
        taken: u32,
    },
}

/// How fast an adapter is, in the time of the core that polls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Bytes that its port carries, those that it sends and those that it fetches together.
    pub bytes_per_second: u64,
    /// How long after its last byte a request is done.
    pub latency: Duration,
}

/// What an adapter says of itself, outside of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// This of the queue pair of this number. One that the adapter failed at
    /// ([`PairEvent::Fatal`]) completes nothing any more, not even as flushed.
    Pair(u32, PairEvent),
    /// The completion queue of the queue pair of this number broke: it holds nothing any more.
    CompletionQueue(u32),
    /// The receives that the queue pair of this number shares broke, and with them every queue pair
    /// that shares them.
    SharedReceives(u32),
    /// The adapter is lost: nothing completes any more.
    DeviceLost,
}

/// Adapters that reach one another. Clones share the fabric.
#[derive(Clone)]
pub struct Fabric(Rc<RefCell<World>>);

impl Fabric {
    /// A fabric without adapters, whose order of events `seed` fixes.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(World::new(seed))))
    }

    /// Adds an adapter and answers with its number.
    ///
    /// # Panics
    /// At [`DEVICES_MAX`] of them.
    pub fn add_device(&self) -> usize {
        self.0.borrow_mut().add_device()
    }

    /// Gives an adapter a rate from now on. Its requests take time then, one after the other over all of its
    /// queue pairs, and the slower of both ends says how much; a link that is down is waited for as long as
    /// retries last, in time and not in steps.
    ///
    /// # Panics
    /// If there is no such adapter, or it would never be done.
    pub fn set_speed(&self, device: usize, speed: Speed) {
        assert!(speed.bytes_per_second > 0, "some bytes at least");
        self.0.borrow_mut().devices[device].speed = Some(speed);
    }

    /// The queue pairs of an adapter, by number, with its end: for [`Raised::Pair`].
    ///
    /// # Panics
    /// If there is no such adapter.
    #[must_use]
    pub fn queue_pairs(&self, device: usize) -> Vec<u32> {
        let world = self.0.borrow();
        world.devices[device].pairs.keys().copied().collect()
    }

    /// How much memory is registered with an adapter: registrations, by everybody who has opened it.
    ///
    /// # Panics
    /// If there is no such adapter.
    #[must_use]
    pub fn registrations(&self, device: usize) -> usize {
        self.0.borrow().devices[device].memory.len()
    }

    /// Lets something go wrong at an adapter.
    ///
    /// # Panics
    /// If there is no such adapter.
    pub fn inject(&self, device: usize, fault: Fault) {
        self.0.borrow_mut().inject(device, fault);
    }

    /// Lets an adapter say something of itself, and be so.
    ///
    /// # Panics
    /// If there is no such adapter, queue pair, or no receives that it shares.
    pub fn raise(&self, device: usize, event: Raised) {
        self.0.borrow_mut().raise(device, event);
    }

    /// Requests that the adapters executed, failed and flushed since the beginning, and their order
    /// as a hash: equal for equal seeds and equal calls.
    #[must_use]
    pub fn trace(&self) -> (u64, u64) {
        self.0.borrow().trace()
    }

    pub(crate) fn device(&self, index: usize) -> Option<SimDevice> {
        SimDevice::open(&self.0, index)
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fabric({:?})", self.trace())
    }
}
