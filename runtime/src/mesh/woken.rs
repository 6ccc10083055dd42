//! Tasks woken from other threads, on their way to their core.
//!
//! A list through links in the tasks themselves: nothing is allocated, and there is room for all of
//! them. Any thread pushes; the core takes all at once, and closes the list when it ends.

use std::ptr::{self, NonNull};

#[cfg(loom)]
use loom::sync::atomic::{AtomicPtr, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicPtr, Ordering};

/// The place of a node in a list.
pub(crate) type WokenLink<T> = AtomicPtr<T>;

/// Something with a link of its own.
pub(crate) trait Linked: Sized {
    /// The link. It belongs to the list from a push until the node has been taken.
    fn link(&self) -> &WokenLink<Self>;
}

/// The list.
#[derive(Debug)]
pub(crate) struct WokenList<T> {
    /// The node pushed last; null if there is none; [`closed`] at the end.
    head: AtomicPtr<T>,
}

/// No node lies at this address.
fn closed<T>() -> *mut T {
    ptr::without_provenance_mut(usize::MAX)
}

impl<T: Linked> WokenList<T> {
    pub(crate) fn new() -> Self {
        Self {
            head: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Appends a node. False if the list is closed.
    ///
    /// # Safety
    /// The node is in no list, and lives until it has been taken from this one.
    pub(crate) unsafe fn push(&self, node: NonNull<T>) -> bool {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == closed() {
                return false;
            }
            // SAFETY: the node lives, as the caller promises, and its link is ours until the
            // exchange publishes it. Ends with the store.
            let link = unsafe { node.as_ref() }.link();
            link.store(head, Ordering::Relaxed);
            let pushed = self.head.compare_exchange_weak(
                head,
                node.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            );
            match pushed {
                Ok(_) => return true,
                Err(other) => head = other,
            }
        }
    }

    /// Whether nothing waits. May be late.
    pub(crate) fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        head.is_null() || head == closed()
    }

    /// Hands all nodes to `each`, in the order in which they were pushed. A node may be pushed again
    /// as soon as it has been handed over.
    pub(crate) fn take(&self, each: impl FnMut(NonNull<T>)) {
        if !self.is_empty() {
            // Only this thread closes the list, so it is not closed.
            drain(self.head.swap(ptr::null_mut(), Ordering::Acquire), each);
        }
    }

    /// As [`WokenList::take`]; nothing can be pushed afterwards.
    pub(crate) fn close(&self, each: impl FnMut(NonNull<T>)) {
        let head = self.head.swap(closed(), Ordering::AcqRel);
        if head != closed() {
            drain(head, each);
        }
    }
}

fn drain<T: Linked>(head: *mut T, mut each: impl FnMut(NonNull<T>)) {
    // The newest comes first, so the links are turned round.
    let (mut next, mut first) = (head, ptr::null_mut::<T>());
    while let Some(node) = NonNull::new(next) {
        // SAFETY: a node that was pushed lives until it has been taken, which is now. The exchange
        // that took the list made the pusher's store of the link visible. Ends with the store.
        let link = unsafe { node.as_ref() }.link();
        next = link.load(Ordering::Relaxed);
        link.store(first, Ordering::Relaxed);
        first = node.as_ptr();
    }
    while let Some(node) = NonNull::new(first) {
        // SAFETY: as above; read before the node is handed over, since it may then be pushed again.
        first = unsafe { node.as_ref() }.link().load(Ordering::Relaxed);
        each(node);
    }
}
