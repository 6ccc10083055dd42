//! The ways to a namespace: which of them work, and who waits for one.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::host::{Choice, NoPath, PathFacts, Paths};
use lunette_nvmeof_proto::log_page::{AnaGroup, AnaState};
use lunette_runtime::{Signal, time};
use lunette_runtime_core::time::Time;

use super::super::controller::RemoteController;
use super::super::queue::Queue;
use super::carry::Limits;
use crate::error::{CloseReason, CommandError};

/// A way that works.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) queue: Queue,
    pub(super) controller: Rc<RemoteController>,
}

/// The ways to one namespace, each at an address of its own.
#[derive(Debug)]
pub(super) struct Ways {
    paths: RefCell<Paths>,
    ways: RefCell<Vec<Option<Way>>>,
    /// Raised when what a path says of its groups is to be read again.
    looks: Vec<Signal>,
    waiters: RefCell<Vec<Waker>>,
    /// Why the last way was given up.
    lost: Cell<CloseReason>,
}

impl Ways {
    pub(super) fn new(paths: Paths, count: usize) -> Self {
        Self {
            paths: RefCell::new(paths),
            ways: RefCell::new(vec![None; count]),
            looks: (0..count).map(|_| Signal::default()).collect(),
            waiters: RefCell::default(),
            lost: Cell::new(CloseReason::Local),
        }
    }

    /// A way works, or is known anew.
    pub(super) fn on_up(&self, index: usize, way: Way, facts: PathFacts) {
        self.ways.borrow_mut()[index] = Some(way);
        self.paths.borrow_mut().on_up(index, facts, time::now());
        self.wake();
    }

    /// A way does not work, and is being made again.
    pub(super) fn on_down(&self, index: usize) {
        self.paths.borrow_mut().on_down(index);
        let way = self.ways.borrow_mut()[index].take();
        drop(way);
        self.wake();
    }

    /// A way has been given up.
    pub(super) fn on_lost(&self, index: usize, reason: CloseReason) {
        self.lost.set(reason);
        self.paths.borrow_mut().on_lost(index);
        self.wake();
    }

    pub(super) fn on_groups(&self, index: usize, groups: &[AnaGroup]) {
        let mut paths = self.paths.borrow_mut();
        paths.on_groups(index, groups, time::now());
        drop(paths);
        self.wake();
    }

    pub(super) fn on_absent(&self, index: usize) {
        self.paths.borrow_mut().on_absent(index, time::now());
        self.wake();
    }

    /// A command was carried out by a way.
    pub(super) fn on_success(&self, index: usize) {
        self.paths.borrow_mut().on_success(index);
    }

    /// A command was answered by a way.
    pub(super) fn on_status(&self, index: usize, status: Status) {
        let mut paths = self.paths.borrow_mut();
        if paths.on_status(index, status, time::now()) {
            drop(paths);
            self.looks[index].raise();
        }
    }

    /// Raised when what a path says of its groups is to be read again.
    pub(super) fn look(&self, index: usize) -> &Signal {
        &self.looks[index]
    }

    /// How a way says that the namespace can be reached, if it works.
    pub(super) fn state(&self, index: usize) -> Option<AnaState> {
        self.paths.borrow().state(index)
    }

    pub(super) fn in_flight(&self, index: usize) -> u32 {
        self.paths.borrow().in_flight(index)
    }

    pub(super) fn count(&self) -> usize {
        self.looks.len()
    }

    /// Whether any works.
    pub(super) fn is_any_up(&self) -> bool {
        self.ways.borrow().iter().any(Option::is_some)
    }

    /// Whether one works by which the namespace can be reached.
    pub(super) fn is_any_open(&self) -> bool {
        let is_closed = |way: &Way| way.queue.closed().is_some();
        // Who keeps it may not have seen the end of its queue yet.
        let is_up = (self.ways.borrow().iter().flatten()).any(|way| !is_closed(way));
        is_up && self.paths.borrow().is_any_open()
    }

    /// Whether all have been given up.
    pub(super) fn is_lost(&self) -> bool {
        self.paths.borrow().is_lost()
    }

    /// Ends the ways that have been changing for too long, and says when to look again.
    pub(super) fn end_overdue(&self) -> Option<Time> {
        let mut paths = self.paths.borrow_mut();
        while let Some(index) = paths.expire(time::now()) {
            tracing::warn!(index, "a path has been changing for too long");
            if let Some(way) = &self.ways.borrow()[index] {
                way.queue.end(CloseReason::Stuck);
            }
        }
        paths.poll_timeout()
    }

    /// No way is to be used any more.
    pub(super) fn close(&self) -> Vec<Way> {
        for index in 0..self.count() {
            self.on_lost(index, CloseReason::Local);
        }
        self.ways.borrow_mut().drain(..).flatten().collect()
    }

    /// The way that a command goes by now, which is not to be `avoided`.
    pub(super) fn choose(
        self: &Rc<Self>,
        avoided: Option<usize>,
        now: Time,
    ) -> Result<OnItsWay, Choice> {
        loop {
            let chosen = self.paths.borrow_mut().choose(avoided, now);
            let Choice::Use(index) = chosen else {
                return Err(chosen);
            };
            let ways = self.ways.borrow();
            let queue = ways[index].as_ref().map(|way| way.queue.clone());
            drop(ways);
            match queue.filter(|queue| queue.closed().is_none()) {
                Some(queue) => return Ok(self.began(index, queue)),
                // Who keeps it has not seen that yet.
                None => self.paths.borrow_mut().on_down(index),
            }
        }
    }

    /// The way that a command goes by, once there is one: it may be later then.
    pub(super) async fn chosen(
        self: &Rc<Self>,
        limits: &mut Limits,
    ) -> Result<OnItsWay, CommandError> {
        loop {
            let until = match self.choose(None, limits.now) {
                Ok(on_its_way) => return Ok(on_its_way),
                Err(Choice::Never(NoPath::Lost)) => {
                    return Err(CommandError::NotSent(self.lost.get()));
                }
                Err(Choice::Never(reason)) => return Err(reason.into()),
                Err(Choice::WaitUntil(at)) => at,
                Err(Choice::Use(_)) => unreachable!("it would have been taken"),
            };
            if limits.now >= limits.deadline {
                return Err(CommandError::DeadlineExceeded);
            }
            self.changed_until(until.min(limits.deadline)).await;
            limits.now = time::now();
        }
    }

    /// Waits until something has changed, or until `at`.
    async fn changed_until(&self, at: Time) {
        let mut sleep = pin!(time::sleep_until(at));
        let mut is_told = false;
        poll_fn(|cx| {
            if is_told {
                return Poll::Ready(());
            }
            is_told = true;
            self.waiters.borrow_mut().push(cx.waker().clone());
            sleep.as_mut().poll(cx)
        })
        .await;
    }

    fn began(self: &Rc<Self>, index: usize, queue: Queue) -> OnItsWay {
        self.paths.borrow_mut().began(index);
        OnItsWay {
            ways: Rc::clone(self),
            index,
            queue,
        }
    }

    fn wake(&self) {
        for waiter in self.waiters.take() {
            waiter.wake();
        }
    }
}

/// A command that goes by a way, from its choice to its end.
#[derive(Debug)]
pub(super) struct OnItsWay {
    pub(super) ways: Rc<Ways>,
    pub(super) index: usize,
    pub(super) queue: Queue,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.ways.paths.borrow_mut().ended(self.index);
    }
}
