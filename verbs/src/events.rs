//! Asynchronous events, brought to whom they name.
//!
//! ```text
//!   the device's descriptor ─▶ a task of this core ─▶ device: kept for `Context::event`
//!                                                  ├▶ queue pair: told, or ended at once
//!                                                  ├▶ completion queue: its queue pairs end
//!                                                  └▶ shared receives: they and theirs end
//! ```
//!
//! The task runs while the context or a completion queue is there. What the adapter has completed
//! before it declared something broken is taken in first; then nothing is waited for any more.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use lunette_runtime::{JoinHandle, OpError, Watched, spawn_local, time};
use rustix::io::Errno;

use crate::completion::Inner as Queue;
use crate::provider::{Cause, DeviceEvent, PairEvent, RawDevice, RawEvent};

/// Most events of a device that are kept for its owner; beyond, the oldest are forgotten.
pub const EVENTS_KEPT_MAX: usize = 64;
/// How long nobody waits for events after a wait was one operation too many.
const WATCH_AGAIN: Duration = Duration::from_millis(10);

/// The events of one device.
pub(crate) struct Events {
    device: Rc<RawDevice>,
    queues: RefCell<Vec<Weak<Queue>>>,
    kept: RefCell<VecDeque<DeviceEvent>>,
    wakers: RefCell<Vec<Waker>>,
    watch: RefCell<Option<JoinHandle<()>>>,
    /// Why nobody watches the descriptor any more.
    unwatched: RefCell<Option<OpError>>,
    is_lost: Cell<bool>,
}

impl Events {
    pub(crate) fn new(device: Rc<RawDevice>) -> Rc<Self> {
        Rc::new(Self {
            device,
            queues: RefCell::default(),
            kept: RefCell::default(),
            wakers: RefCell::default(),
            watch: RefCell::default(),
            unwatched: RefCell::default(),
            is_lost: Cell::new(false),
        })
    }

    /// Sees to it that events of a queue and its queue pairs reach them.
    pub(crate) fn list(self: &Rc<Self>, queue: &Rc<Queue>) -> Result<(), Errno> {
        let mut queues = self.queues.borrow_mut();
        queues.retain(|known| known.strong_count() > 0);
        queues.push(Rc::downgrade(queue));
        drop(queues);
        self.watch()
    }

    /// Watches the device, if nobody does.
    pub(crate) fn watch(self: &Rc<Self>) -> Result<(), Errno> {
        let mut watch = self.watch.borrow_mut();
        if watch.is_none() {
            let descriptor = self.device.events()?.map(Watched::new);
            let watching = spawn_local(watch_device(Rc::downgrade(self), descriptor));
            // The core takes no more tasks: nobody watches.
            if watching.is_finished() {
                return Err(Errno::NOMEM);
            }
            *watch = Some(watching);
        }
        Ok(())
    }

    /// The next event of the device itself, if there is one.
    pub(crate) fn next(&self) -> Option<DeviceEvent> {
        self.take();
        self.kept.borrow_mut().pop_front()
    }

    /// As [`Events::next`], for a caller that waits while somebody watches.
    pub(crate) fn poll_next(&self, cx: &TaskContext<'_>) -> Poll<Result<DeviceEvent, OpError>> {
        if let Some(event) = self.next() {
            return Poll::Ready(Ok(event));
        }
        let unwatched = *self.unwatched.borrow();
        let lost = self.is_lost.get().then_some(OpError::Os(Errno::NODEV));
        if let Some(error) = unwatched.or(lost) {
            return Poll::Ready(Err(error));
        }
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.iter().any(|known| known.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Takes all events there are to whom they name.
    fn take(&self) {
        while !self.is_lost.get() {
            match self.device.next_event() {
                Ok(Some(event)) => self.tell(event),
                Ok(None) => return,
                Err(errno) => {
                    tracing::error!(%errno, "a device has no events any more");
                    self.tell(RawEvent::Device(DeviceEvent::DeviceLost));
                }
            }
        }
    }

    fn tell(&self, event: RawEvent) {
        match event {
            RawEvent::Device(event) => self.keep(event),
            RawEvent::Pair(token, event) => {
                let mut queues = self.queues().into_iter();
                if !queues.any(|queue| queue.tell_pair(token, event)) {
                    tracing::debug!(?event, "an event of a queue pair that is gone");
                }
            }
            RawEvent::CompletionQueue(token) => {
                let mut queues = self.queues().into_iter();
                if let Some(queue) = queues.find(|queue| queue.token() == token) {
                    queue.broken(Cause::CompletionQueue);
                }
            }
            RawEvent::SharedReceives(token) => {
                for queue in self.queues() {
                    queue.shared_broken(token);
                }
            }
        }
    }

    fn keep(&self, event: DeviceEvent) {
        if event == DeviceEvent::DeviceLost {
            self.is_lost.set(true);
            for queue in self.queues() {
                queue.broken(Cause::DeviceLost);
            }
        }
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= EVENTS_KEPT_MAX {
            let forgotten = kept.pop_front();
            tracing::warn!(?forgotten, "nobody asks for the events of a device");
        }
        kept.push_back(event);
        drop(kept);
        self.wake();
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        wakers.into_iter().for_each(Waker::wake);
    }

    fn queues(&self) -> Vec<Rc<Queue>> {
        let queues = self.queues.borrow();
        queues.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
    }
}

/// Waits for events until nobody wants them, or none can come any more.
async fn watch_device(events: Weak<Events>, descriptor: Option<Watched>) {
    loop {
        let ready = match &descriptor {
            Some(descriptor) => descriptor.readable().await,
            None => {
                poll_fn(|cx| without_descriptor(&events, cx)).await;
                Ok(())
            }
        };
        let Some(found) = events.upgrade() else {
            return;
        };
        if let Err(error) = ready {
            if !error.is_retryable() {
                tracing::warn!(%error, "the events of a device are not watched");
                *found.unwatched.borrow_mut() = Some(error);
                return found.wake();
            }
            drop(found);
            time::sleep(WATCH_AGAIN).await;
            continue;
        }
        found.take();
        if found.is_lost.get() {
            return;
        }
    }
}

fn without_descriptor(events: &Weak<Events>, cx: &TaskContext<'_>) -> Poll<()> {
    match events.upgrade() {
        Some(events) if !events.device.wake_at_event(cx.waker()) => Poll::Pending,
        _ => Poll::Ready(()),
    }
}

/// What a queue pair was told, besides that it is broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairNotices {
    /// First packets that came before it was ready to send.
    pub established: u32,
    /// Times that its send queue drained as it was asked to.
    pub drained: u32,
    /// Times that its packets changed to the other path.
    pub migrated: u32,
    /// Times that there was no other path.
    pub not_migrated: u32,
    /// Whether it has taken its last receive from shared ones: 0 or 1.
    pub last_receives: u32,
}

impl PairNotices {
    pub(crate) fn count(&mut self, event: PairEvent) {
        match event {
            PairEvent::Established => self.established += 1,
            PairEvent::SendQueueDrained => self.drained += 1,
            PairEvent::PathMigrated => self.migrated += 1,
            PairEvent::PathMigrationFailed => self.not_migrated += 1,
            PairEvent::LastReceiveTaken => self.last_receives += 1,
            PairEvent::Fatal | PairEvent::InvalidRequest | PairEvent::Access => {}
        }
    }
}
