//! How much memory is on its way between what connections do not reach (files, devices) and connections.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use lunette_runtime::Signal;
use lunette_runtime::arena;
use lunette_runtime::arena::{Exposed, RegionMut};

/// Memory of this core's arena that is on its way, up to a bound: who wants more waits in line.
#[derive(Debug)]
pub struct Staging {
    bytes_max: usize,
    bytes: Cell<usize>,
    /// Who waits for room, and for how much, in the order in which they came.
    waiting: RefCell<VecDeque<(usize, Rc<Signal>)>>,
}

/// Memory on its way. Its part of the bound is anybody's again when it is dropped.
#[derive(Debug)]
pub struct Staged {
    memory: Exposed,
    _room: StagedRoom,
}

/// A part of the bound that is in use. It is anybody's again when it is dropped.
#[derive(Debug)]
pub struct StagedRoom {
    staging: Rc<Staging>,
    len: usize,
}

impl Staging {
    /// Nothing on its way, of `bytes_max` at most.
    #[must_use]
    pub const fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            bytes: Cell::new(0),
            waiting: RefCell::new(VecDeque::new()),
        }
    }

    /// Memory of this length, if there is room now and nobody waits; more than the bound, if it is all that
    /// is on its way. `None` also where the core's arena has none.
    #[must_use]
    pub fn try_take(self: &Rc<Self>, len: usize) -> Option<Staged> {
        let is_next = self.waiting.borrow().is_empty() && self.has_room(len);
        let taken = is_next.then(|| self.take_now(len)).flatten();
        taken.map(|(region, room)| Staged::of(region, room))
    }

    /// Memory of this length, as soon as there is room. `None` where the core's arena has none.
    pub async fn take(self: &Rc<Self>, len: usize) -> Option<Staged> {
        let (region, room) = self.take_region(len).await?;
        Some(Staged::of(region, room))
    }

    /// As [`take`](Self::take), memory that is only the caller's, and its part of the bound.
    pub async fn take_region(self: &Rc<Self>, len: usize) -> Option<(RegionMut, StagedRoom)> {
        let is_next = self.waiting.borrow().is_empty() && self.has_room(len);
        if is_next {
            return self.take_now(len);
        }
        let signal = Rc::new(Signal::default());
        let waiting = (len, Rc::clone(&signal));
        self.waiting.borrow_mut().push_back(waiting);
        let _leaves = Leaves {
            staging: self,
            signal: &signal,
        };
        signal.raised().await;
        // Before it leaves the line, so that the next one sees what room is left.
        self.take_now(len)
    }

    fn has_room(&self, len: usize) -> bool {
        let bytes = self.bytes.get();
        bytes == 0 || bytes + len <= self.bytes_max
    }

    fn take_now(self: &Rc<Self>, len: usize) -> Option<(RegionMut, StagedRoom)> {
        self.bytes.set(self.bytes.get() + len);
        let room = StagedRoom {
            staging: Rc::clone(self),
            len,
        };
        let region = arena().alloc(len);
        let region = region.inspect_err(|error| tracing::warn!(%error, "nothing to stage in"));
        Some((region.ok()?, room))
    }

    /// Wakes who is next, if there is room.
    fn wake(&self) {
        let waiting = self.waiting.borrow();
        if let Some((len, signal)) = waiting.front()
            && self.has_room(*len)
        {
            signal.raise();
        }
    }
}

/// Takes who waits out of the line, also if its future is dropped.
struct Leaves<'a> {
    staging: &'a Rc<Staging>,
    signal: &'a Rc<Signal>,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        let mut waiting = self.staging.waiting.borrow_mut();
        waiting.retain(|(_, signal)| !Rc::ptr_eq(signal, self.signal));
        drop(waiting);
        // There may be room for the one behind, too.
        self.staging.wake();
    }
}

impl Staged {
    fn of(region: RegionMut, room: StagedRoom) -> Self {
        Self {
            memory: region.expose(),
            _room: room,
        }
    }

    /// The memory.
    #[must_use]
    pub const fn memory(&self) -> &Exposed {
        &self.memory
    }
}

impl Drop for StagedRoom {
    fn drop(&mut self) {
        let bytes = self.staging.bytes.get();
        self.staging.bytes.set(bytes - self.len);
        self.staging.wake();
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime::{CoreOptions, block_on, spawn_local, time};

    use super::*;

    #[test]
    fn more_than_the_bound_waits_in_line_and_one_alone_may_be_longer() {
        block_on(None, CoreOptions::default(), || async {
            let staging = Rc::new(Staging::new(100));
            let long = staging.try_take(1000).expect("it is alone");
            assert_eq!(long.memory().len(), 1000);
            assert!(staging.try_take(1).is_none());
            let order = Rc::new(RefCell::new(Vec::new()));
            let wait = |name: char, len| {
                let (staging, order) = (Rc::clone(&staging), Rc::clone(&order));
                spawn_local(async move {
                    let staged = staging.take(len).await.expect("memory");
                    order.borrow_mut().push(name);
                    staged
                })
            };
            let first = wait('a', 60);
            time::yield_now().await;
            let second = wait('b', 60);
            time::yield_now().await;
            let third = wait('c', 10);
            time::yield_now().await;
            drop(long);
            let first = first.await.expect("a task");
            time::yield_now().await;
            assert_eq!(*order.borrow(), ['a'], "short ones do not overtake");
            assert!(staging.try_take(1).is_none(), "nor those that do not wait");
            drop(first);
            let (second, third) = (second.await, third.await);
            assert_eq!(*order.borrow(), ['a', 'b', 'c']);
            drop((second, third));
            assert_eq!(staging.bytes.get(), 0);
        })
        .expect("a core");
    }

    #[test]
    fn who_gives_up_waiting_holds_up_nobody() {
        block_on(None, CoreOptions::default(), || async {
            let staging = Rc::new(Staging::new(10));
            let taken = staging.try_take(10).expect("room");
            let waiting = |len| {
                let staging = Rc::clone(&staging);
                spawn_local(async move { staging.take(len).await.is_some() })
            };
            let (gives_up, stays) = (waiting(10), waiting(10));
            time::yield_now().await;
            gives_up.abort();
            drop(taken);
            assert!(stays.await.expect("a task"));
            assert!(staging.try_take(10).is_some());
        })
        .expect("a core");
    }
}
