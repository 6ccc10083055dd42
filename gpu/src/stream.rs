//! Streams, and how their operations end.

use std::cell::{Cell as Flag, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use lunette_gpu_proto::fault::Fault;
use lunette_gpu_proto::stream_queue::{Outcome, STREAM_OPERATIONS_MAX, StreamQueue};
use lunette_runtime::CoreWaker;

use crate::device::{Device, Inner};
use crate::error::{CopyError, SetupError};
use crate::lease::{Holds, HostLease, HostMemory};
use crate::operation::{Cell, Operation};
use crate::provider::{Queued, RawEvent, RawStream};

/// `CUDA_ERROR_UNKNOWN`, for what has no code.
const UNKNOWN: u32 = 999;

/// When a sleeping core is woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notice {
    /// When all that was in flight when it fell asleep is done: one call to the host for each sleep.
    #[default]
    Sleep,
    /// When each operation is done: a call to the host for each of them, which takes the device some
    /// microseconds.
    Operation,
}

/// How a stream is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Operations in flight at most, up to [`STREAM_OPERATIONS_MAX`].
    pub depth: usize,
    /// Blocks of a kernel at most, each of which keeps an SM from the model. 0: no kernels.
    pub blocks_max: u32,
    /// When a sleeping core is woken.
    pub notice: Notice,
    /// Whether kernels of it that wait for an SM are started before those of other streams: for transfers that somebody
    /// waits for, which need few. Where a driver knows no order among streams, there is none.
    pub is_urgent: bool,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            depth: 256,
            blocks_max: 16,
            notice: Notice::Sleep,
            is_urgent: false,
        }
    }
}

/// A stream of one device. What is queued in it is done in order; streams overtake one another.
/// Clones share it. Operations go on when the last handle is gone.
#[derive(Clone)]
pub struct Stream {
    device: Device,
    core: Rc<StreamCore>,
}

/// An operation that the device has.
struct Flight {
    /// None where none could be recorded, and the stream has been waited for instead.
    event: Option<RawEvent>,
    cell: Rc<Cell>,
    /// Events of other streams that it waits for.
    _waits: Option<RawEvent>,
}

pub(crate) struct StreamCore {
    // Goes after what it has in flight has ended, see `finish`.
    raw: RawStream,
    queue: RefCell<StreamQueue>,
    /// In the queue's order.
    flights: RefCell<VecDeque<Flight>>,
    /// Events that are not used.
    events: RefCell<Vec<RawEvent>>,
    options: StreamOptions,
    /// How many of the newest operations no call to the host stands behind.
    unannounced: Flag<usize>,
}

impl Stream {
    /// A stream of its own.
    ///
    /// # Errors
    /// [`SetupError`]; [`SetupError::TooMany`] at [`STREAMS_MAX`](crate::STREAMS_MAX).
    pub fn new(device: &Device, options: StreamOptions) -> Result<Self, SetupError> {
        Ok(Self {
            device: device.clone(),
            core: StreamCore::open(device.inner(), options)?,
        })
    }

    /// The device that it is of.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// How it was made.
    #[must_use]
    pub fn options(&self) -> StreamOptions {
        self.core.options
    }

    /// Operations in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.core.queue.borrow().len()
    }

    /// Lets everything that is queued here later wait for everything that is queued in `other` now.
    /// Ready when that has come to pass.
    ///
    /// # Panics
    /// If the streams are of different openings of devices.
    pub fn after(&self, other: &Self) -> Operation<()> {
        let inner = self.inner();
        assert!(
            Rc::ptr_eq(inner, other.inner()),
            "streams of one opening of a device"
        );
        let event = inner.context().event();
        self.wait_for(event.and_then(|event| other.core.raw.record(&event).map(|()| event)))
    }

    /// Keeps an event for as long as the operation that was queued last.
    pub(crate) fn keep_with_last(&self, event: RawEvent) {
        let mut flights = self.core.flights.borrow_mut();
        let last = flights.back_mut().expect("it has just been queued");
        last._waits = Some(event);
    }

    /// Whether both are handles of one stream.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.core, &other.core)
    }

    /// Ready when everything that is queued by now is done.
    pub fn flushed(&self) -> Operation<()> {
        self.submit((), Holds::default(), |_raw| Queued::all(0))
    }

    pub(crate) fn inner(&self) -> &Rc<Inner> {
        self.device.inner()
    }

    /// An operation that ends before it begins.
    pub(crate) fn refuse<H: HostMemory>(lent: H, error: CopyError) -> Operation<H> {
        let cell = Cell::new(lent.into_lease(), Holds::default());
        cell.end(Err(error));
        Operation::new(cell)
    }

    /// Queues an operation, which owns what is lent and holds what it names.
    pub(crate) fn submit<H: HostMemory>(
        &self,
        lent: H,
        holds: Holds,
        enqueue: impl FnOnce(&RawStream) -> Queued,
    ) -> Operation<H> {
        self.submit_lease(lent.into_lease(), holds, enqueue)
    }

    pub(crate) fn submit_lease<H: HostMemory>(
        &self,
        lease: HostLease,
        holds: Holds,
        enqueue: impl FnOnce(&RawStream) -> Queued,
    ) -> Operation<H> {
        let cell = Cell::new(lease, holds);
        if let Err(error) = self.core.queue(self.inner(), &cell, enqueue) {
            cell.end(Err(error));
        }
        Operation::new(cell)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Stream({} in flight, {:?})",
            self.in_flight(),
            self.core.raw
        )
    }
}

impl StreamCore {
    /// One that the device polls.
    pub(crate) fn open(device: &Inner, options: StreamOptions) -> Result<Rc<Self>, SetupError> {
        if !(1..=STREAM_OPERATIONS_MAX).contains(&options.depth) {
            return Err(SetupError::Size);
        }
        let core = Rc::new(Self {
            raw: device.context().stream(options.is_urgent)?,
            queue: RefCell::new(StreamQueue::new(options.depth)),
            flights: RefCell::new(VecDeque::with_capacity(options.depth)),
            events: RefCell::default(),
            options,
            unannounced: Flag::new(0),
        });
        device.add_stream(Rc::clone(&core))?;
        Ok(core)
    }

    fn event(&self, device: &Inner) -> Result<RawEvent, Fault> {
        let spare = self.events.borrow_mut().pop();
        spare.map_or_else(|| device.context().event(), Ok)
    }

    /// Queues an operation. An error says that nothing of it is queued.
    pub(crate) fn queue(
        &self,
        device: &Inner,
        cell: &Rc<Cell>,
        enqueue: impl FnOnce(&RawStream) -> Queued,
    ) -> Result<(), CopyError> {
        let id = self.queue.borrow_mut().begin()?;
        let event = match self.event(device) {
            Ok(event) => event,
            Err(fault) => {
                self.queue.borrow_mut().withdraw(id);
                return Err(self.refused(fault));
            }
        };
        let Queued { count, result } = enqueue(&self.raw);
        if let (0, Err(fault)) = (count, result) {
            self.queue.borrow_mut().withdraw(id);
            self.events.borrow_mut().push(event);
            return Err(self.refused(fault));
        }
        let mut part = result;
        let event = match self.raw.record(&event) {
            Ok(()) => Some(event),
            Err(fault) => {
                part = part.and(Err(fault));
                self.wait_instead();
                None
            }
        };
        self.queue.borrow_mut().queued(id, part);
        self.flights.borrow_mut().push_back(Flight {
            event,
            cell: Rc::clone(cell),
            _waits: None,
        });
        self.unannounced.set(self.unannounced.get() + 1);
        if self.options.notice == Notice::Operation {
            self.announce(device.waker());
        }
        device.is_busy();
        Ok(())
    }

    fn refused(&self, fault: Fault) -> CopyError {
        if fault.is_sticky() {
            self.queue.borrow_mut().poison(fault);
        }
        CopyError::of(fault)
    }

    /// No event stands behind what is in flight: the stream is waited for, here and now. If even
    /// that fails, the context is done for.
    fn wait_instead(&self) {
        if let Err(fault) = self.raw.synchronize() {
            self.poison(fault);
        }
    }

    /// Whatever an event or a stream answers with beside "not yet" is the end of its context.
    fn poison(&self, fault: Fault) {
        let fault = match fault {
            Fault::Poisoned(_) | Fault::Lost(_) => fault,
            Fault::Unsupported(code) | Fault::Refused(code) | Fault::Code(code) => {
                Fault::Poisoned(code)
            }
            Fault::OutOfMemory => Fault::Poisoned(UNKNOWN),
        };
        tracing::error!(%fault, "a device's context is of no use any more");
        self.queue.borrow_mut().poison(fault);
    }

    /// Ends what has come to its end, at most `budget` operations, and says how many.
    pub(crate) fn reap(&self, device: &Inner, budget: usize) -> usize {
        let mut ended = 0;
        while ended < budget {
            let Some(outcome) = self.next_outcome(device) else {
                break;
            };
            self.end_first(outcome);
            ended += 1;
        }
        let mut counts = device.counts.get();
        counts.operations += ended as u64;
        device.counts.set(counts);
        ended
    }

    /// How the oldest operation ended, if it did.
    fn next_outcome(&self, device: &Inner) -> Option<Outcome> {
        self.queue.borrow().oldest()?;
        if let Some((_id, outcome)) = self.queue.borrow_mut().end_oldest() {
            return Some(outcome);
        }
        let mut counts = device.counts.get();
        counts.queries += 1;
        device.counts.set(counts);
        let flights = self.flights.borrow();
        let first = flights.front().expect("one for each operation");
        let has_come = first.event.as_ref().map_or(Ok(true), RawEvent::has_come);
        drop(flights);
        let mut queue = match has_come {
            Ok(false) => return None,
            Ok(true) => self.queue.borrow_mut(),
            Err(fault) => {
                self.poison(fault);
                let mut queue = self.queue.borrow_mut();
                return queue.end_oldest().map(|(_id, outcome)| outcome);
            }
        };
        Some(queue.completed().1)
    }

    fn end_first(&self, outcome: Outcome) {
        let flight = self.flights.borrow_mut().pop_front();
        let Flight { event, cell, .. } = flight.expect("one for each operation");
        self.events.borrow_mut().extend(event);
        let left = self.flights.borrow().len();
        self.unannounced.set(self.unannounced.get().min(left));
        cell.end(match outcome {
            Outcome::Done => Ok(()),
            Outcome::Failed(fault) => Err(CopyError::of(fault)),
        });
    }

    pub(crate) fn has_flights(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// Whether nobody but its device holds it, and nothing is in flight.
    pub(crate) fn is_over(self: &Rc<Self>) -> bool {
        Rc::strong_count(self) == 1 && !self.has_flights()
    }

    /// Lets the device wake the core when it has done what is in flight. False if it does not, or if
    /// the core is to turn once more first.
    pub(crate) fn arm(&self, waker: &CoreWaker) -> bool {
        self.unannounced.get() == 0 || (self.announce(waker) && !self.raw.needs_turn())
    }

    fn announce(&self, waker: &CoreWaker) -> bool {
        if self.queue.borrow().poisoned().is_some() {
            return false;
        }
        match self.raw.notify(waker.clone()) {
            Ok(()) => {
                self.unannounced.set(0);
                true
            }
            // The next look tells what it means for what is in flight.
            Err(_) => false,
        }
    }

    /// Waits until the device has let go of everything, and ends it.
    pub(crate) fn finish(&self) {
        if !self.has_flights() {
            return;
        }
        if let Err(fault) = self.raw.synchronize() {
            self.poison(fault);
        }
        while self.has_flights() {
            let mut queue = self.queue.borrow_mut();
            let ended = queue.end_oldest().unwrap_or_else(|| queue.completed());
            drop(queue);
            self.end_first(ended.1);
        }
    }
}
