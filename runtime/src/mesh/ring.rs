//! A bounded ring from many threads to one.
//!
//! Each slot carries a stamp that says whose turn it is: the sender of number `n` waits for `n`, and
//! leaves `n + 1`; the receiver waits for that, and leaves `n + capacity`, the number of the slot's
//! next message. So the receiver looks at one place, which is also where the message is: a message
//! takes one cache line from the sender's CPU to the receiver's. (The scheme is Dmitry Vyukov's
//! bounded queue; with a single receiver its side needs no exchange, and never looks at the senders'
//! counter.)

use std::fmt;
use std::mem::MaybeUninit;

use crossbeam::utils::CachePadded;

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicUsize, Ordering};

/// What loom calls by other names.
#[cfg(not(loom))]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    fn with<R>(&self, then: impl FnOnce(*const T) -> R) -> R {
        then(self.0.get())
    }

    fn with_mut<R>(&self, then: impl FnOnce(*mut T) -> R) -> R {
        then(self.0.get())
    }
}

struct Slot<T> {
    stamp: AtomicUsize,
    message: UnsafeCell<MaybeUninit<T>>,
}

/// The ring. One receiver at a time.
pub(crate) struct Ring<T> {
    slots: Box<[CachePadded<Slot<T>>]>,
    /// The number of the next message to be sent.
    tail: CachePadded<AtomicUsize>,
    /// The number of the next message to be received. Written by the receiver alone.
    head: CachePadded<AtomicUsize>,
}

// SAFETY: a message goes from one thread to another and is used by one at a time, as the stamps say;
// so the ring may be used by many threads if its messages may go between threads.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// A ring of `capacity` slots, at least 2: with one slot, the stamps of a message that is there
    /// and of a slot that is free for the next one would be the same.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(2);
        let slot = |number| {
            CachePadded::new(Slot {
                stamp: AtomicUsize::new(number),
                message: UnsafeCell::new(MaybeUninit::uninit()),
            })
        };
        Self {
            slots: (0..capacity).map(slot).collect(),
            tail: CachePadded::new(AtomicUsize::new(0)),
            head: CachePadded::new(AtomicUsize::new(0)),
        }
    }

    pub(crate) const fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// How many messages are there. May be late.
    pub(crate) fn len(&self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        self.tail.load(Ordering::Relaxed).saturating_sub(head)
    }

    fn slot(&self, number: usize) -> &Slot<T> {
        &self.slots[number % self.slots.len()]
    }

    /// Sends a message, or gives it back if the ring is full.
    pub(crate) fn push(&self, message: T) -> Result<(), T> {
        let mut number = self.tail.load(Ordering::Relaxed);
        loop {
            let slot = self.slot(number);
            // Acquire: the receiver has read the slot's last message before it is overwritten.
            let stamp = slot.stamp.load(Ordering::Acquire);
            if stamp < number {
                return Err(message);
            }
            if stamp > number {
                // Another sender was first.
                number = self.tail.load(Ordering::Relaxed);
                continue;
            }
            let next = number + 1;
            let claimed =
                self.tail
                    .compare_exchange_weak(number, next, Ordering::Relaxed, Ordering::Relaxed);
            match claimed {
                Ok(_) => {
                    slot.message.with_mut(|place| {
                        // SAFETY: the stamp said that the slot is free for `number`, and the
                        // exchange that `number` is ours; nobody else touches the slot until the
                        // stamp is set below.
                        unsafe { (*place).write(message) };
                    });
                    slot.stamp.store(next, Ordering::Release);
                    return Ok(());
                }
                Err(other) => number = other,
            }
        }
    }

    /// Whether the next message is there.
    ///
    /// As the receiver: a message that is being sent at this moment may be missed, and its sender
    /// then sees to it that the receiver looks again.
    pub(crate) fn has_next(&self) -> bool {
        let number = self.head.load(Ordering::Relaxed);
        self.slot(number).stamp.load(Ordering::Acquire) == number + 1
    }

    /// The next message.
    ///
    /// # Safety
    /// The caller is the only receiver.
    pub(crate) unsafe fn pop(&self) -> Option<T> {
        if !self.has_next() {
            return None;
        }
        let number = self.head.load(Ordering::Relaxed);
        let slot = self.slot(number);
        let message = slot.message.with(|place| {
            // SAFETY: the stamp says that the message has been written and not been read, and the
            // caller is the only one to read. It is read once: the head goes on.
            unsafe { place.cast::<T>().read() }
        });
        slot.stamp
            .store(number + self.capacity(), Ordering::Release);
        self.head.store(number + 1, Ordering::Relaxed);
        Some(message)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the ring any more.
        while unsafe { self.pop() }.is_some() {}
    }
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
