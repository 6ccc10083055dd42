//! A core and its devices: operations, and what the driver knows beforehand.

use std::os::fd::RawFd;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use lunette_runtime_core::mutant::{self, Mutant};
use rustix::io::Errno;

use super::{Core, add_one};
use crate::driver::{Arrival, Descriptor, DriverKind, Effect, Key, Polled, Submission, Wait};
use crate::lease::Lease;
use crate::pool::{OfferRing, POOLS_MAX, PoolError};

impl Core {
    pub(crate) fn submit(
        &self,
        what: Submission,
        fd: Rc<Descriptor>,
        lease: Lease,
        timeout: Option<Duration>,
    ) -> Result<Key, Lease> {
        let mut table = self.table.borrow_mut();
        let target = fd.target();
        let (key, lease) = table.insert(what, Some(fd), lease)?;
        let mut driver = self.driver.borrow_mut();
        driver.submit(key, target, what, lease, timeout);
        Ok(key)
    }

    pub(crate) fn poll(&self, key: Key, cx: &Context<'_>) -> Poll<Polled> {
        self.table.borrow_mut().poll(key, cx)
    }

    pub(crate) fn poll_next(&self, key: Key, cx: &Context<'_>) -> Poll<Result<Arrival, Lease>> {
        self.table.borrow_mut().poll_next(key, cx)
    }

    pub(crate) fn cancel(&self, key: Key) {
        let mut table = self.table.borrow_mut();
        if table.is_in_flight(key) {
            self.driver.borrow_mut().cancel(key);
            if mutant::is_on(Mutant::BufferReleasedEarly)
                && let Effect::Wake(waker) = table.release_early(key)
            {
                waker.wake();
            }
        }
    }

    pub(crate) fn abandon(&self, key: Key) {
        let (cancel, dropped) = self.table.borrow_mut().abandon(key);
        drop(dropped);
        if cancel {
            self.driver.borrow_mut().cancel(key);
        }
    }

    /// One call of the driver, and the delivery of what it brought.
    pub(super) fn drive(&self, wait: Wait) {
        let mut completions = self.completions.take();
        add_one(&self.counters.driver_calls);
        self.driver.borrow_mut().turn(wait, &mut completions);
        let mut idle = self.idle.borrow_mut();
        if !completions.is_empty() && !idle.is_efficient() {
            idle.on_wake(self.now());
            idle.on_work();
        }
        drop(idle);
        for (index, completion) in completions.drain(..).enumerate() {
            // The table's borrow ends here: what an effect drops or wakes may come back to it.
            let effect = self.table.borrow_mut().complete(completion);
            match effect {
                Effect::Nothing => {}
                Effect::Wake(_) if index > 0 && mutant::is_on(Mutant::WakeUpLost) => {}
                Effect::Wake(waker) => waker.wake(),
                Effect::WakeAll(wakers, cancel) => {
                    if let Some(key) = cancel {
                        self.driver.borrow_mut().cancel(key);
                    }
                    for waker in wakers {
                        waker.wake();
                    }
                }
                Effect::Drop(dropped) => drop(dropped),
            }
        }
        self.completions.replace(completions);
    }

    /// Whether the driver sends without copies.
    pub(crate) fn sends_without_copies(&self) -> bool {
        match self.driver_kind() {
            DriverKind::Uring(features) => features.zero_copy_send,
            DriverKind::Epoll | DriverKind::Simulated => false,
        }
    }

    /// Whether connections are to be known to the driver by index.
    pub(crate) fn registers_connections(&self) -> bool {
        match self.driver_kind() {
            DriverKind::Uring(features) => features.registered_connections,
            DriverKind::Epoll | DriverKind::Simulated => false,
        }
    }

    /// Whether the driver passes commands on to NVMe namespaces.
    pub(crate) fn passes_commands(&self) -> bool {
        match self.driver_kind() {
            DriverKind::Uring(features) => features.device_commands,
            DriverKind::Epoll | DriverKind::Simulated => false,
        }
    }

    /// See [`Driver::register_file`](crate::driver::Driver::register_file).
    pub(crate) fn register_file(&self, fd: RawFd) -> Option<u32> {
        self.driver.borrow_mut().register_file(fd)
    }

    pub(crate) fn unregister_file(&self, slot: u32) {
        self.driver.borrow_mut().unregister_file(slot);
    }

    /// Makes the arena's chunks known to the driver, and says how many are. They stay mapped as
    /// long as the core, which owns both.
    pub(crate) fn register_chunks(&self) -> Result<usize, Errno> {
        let chunks = self.arena.chunks();
        for &(address, len) in &chunks {
            let mut driver = self.driver.borrow_mut();
            driver.register_buffer(address.as_ptr(), len)?;
        }
        Ok(chunks.len())
    }

    /// Gives a pool its group. Also says whether it is the kernel that picks its buffers.
    pub(crate) fn register_pool(&self, ring: &OfferRing) -> Result<(u16, bool), PoolError> {
        let mut pools = self.pools.borrow_mut();
        if pools.len() >= POOLS_MAX {
            return Err(PoolError::TooManyPools);
        }
        let entry = pools.vacant_entry();
        let group = u16::try_from(entry.key()).expect("pools are few");
        let by_kernel = self.driver.borrow_mut().register_pool(group, ring);
        let by_kernel = by_kernel.map_err(PoolError::Refused)?;
        entry.insert(());
        Ok((group, by_kernel))
    }

    pub(crate) fn unregister_pool(&self, group: u16) {
        self.pools.borrow_mut().remove(usize::from(group));
        self.driver.borrow_mut().unregister_pool(group);
    }
}
