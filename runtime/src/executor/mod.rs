//! One core: its tasks, its operations, its timers, and the loop that turns them.
//!
//! A turn runs the tasks that are ready, delivers messages from other cores, fires timers, hands
//! submissions to the driver and takes completions. A core with nothing to do spins for a while as
//! its [`Idle`] policy says, then sleeps in the driver, in one place, until a completion, a timer
//! or another core's wake-up.

mod classes;
mod devices;
mod idle;
mod near;
mod scope;
mod source;
mod stall;
mod task;
mod turn;

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lunette_runtime_core::ids::CoreIndex;
use lunette_runtime_core::time::Time;
use lunette_runtime_core::wheel::{TimerKey, TimersFull, Wheel};
use slab::Slab;

use crate::arena::Arena;
use crate::clock::Clock;
use crate::driver::{
    Arrival, Completion, Descriptor, Driver, DriverKind, ProbeError, Submission, Table, Wait,
};
use crate::mesh::{Inbox, Message};
use crate::op::{Multishot, Op, OpError};
use crate::runtime::CoreOptions;
use crate::sim::SimulatedHost;
pub use classes::Class;
pub use idle::Idle;
use idle::IdleState;
use near::Near;
pub use near::asked_from;
pub use scope::Scope;
use source::Sources;
pub use source::{CoreWaker, SOURCES_MAX, Source, SourceGuard};
pub(crate) use stall::Pulse;
pub use stall::{Stall, StallWatch};
use task::{Current, NO_RUNTIME};
pub(crate) use task::{Header, Scheduler};
pub use task::{JoinError, JoinHandle};
pub(crate) use turn::Step;

/// Tasks of one core.
pub const TASKS_MAX: usize = 65_536;
/// How long a core that shuts down waits for the devices to let go of leases.
const DRAIN_MAX: Duration = Duration::from_secs(5);

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// One core's state, reached through the thread that runs it.
pub(crate) struct Core {
    inbox: Arc<Inbox>,
    peers: Arc<[Arc<Inbox>]>,
    clock: Clock,
    scheduler: Scheduler,
    table: RefCell<Table>,
    timers: RefCell<Wheel<Waker>>,
    idle: RefCell<IdleState>,
    near: Near,
    sources: RefCell<Sources>,
    /// Pools of buffers that the driver knows, by their group.
    pools: RefCell<Slab<()>>,
    counters: Counters,
    stopping: Cell<bool>,
    /// A simulated core that sleeps.
    rests: Cell<bool>,
    /// Scratch of the loop, kept for its capacity.
    completions: RefCell<Vec<Completion>>,
    expired: RefCell<Vec<Waker>>,
    /// What tasks of this core share, one value of each type.
    locals: RefCell<BTreeMap<TypeId, Rc<dyn Any>>>,
    /// Dropped after every lease.
    driver: RefCell<Driver>,
    /// Dropped last: the driver may know its chunks.
    arena: Arena,
}

/// Is woken each time that the bell rings, by one operation: a counter that is read is to be waited for anew, which takes a
/// microsecond of each wake-up.
async fn hear_rings(core: &Rc<Core>, bell: &Rc<Descriptor>) -> Result<Infallible, OpError> {
    loop {
        let mut rings = Multishot::submit(core, Submission::RingsMany, bell, ())?;
        // It ends where the ring's answers have no room, for one.
        while let Some(ring) = poll_fn(|cx| rings.poll_next(cx)).await {
            if let Arrival::Failed(errno) = ring {
                return Err(errno.into());
            }
        }
    }
}

/// The same, by reading the counter.
async fn read_counts(core: &Rc<Core>, bell: &Rc<Descriptor>) -> Result<Infallible, OpError> {
    let mut counter = Box::new(0_u64);
    loop {
        let (result, back) = Op::submit(core, Submission::ReadCounter, bell, counter).await;
        result?;
        counter = back;
    }
}

impl Core {
    /// Opens the core on the calling thread, as one of `peers`.
    pub(crate) fn open(
        index: CoreIndex,
        peers: Arc<[Arc<Inbox>]>,
        clock: Clock,
        options: &CoreOptions,
    ) -> Result<Rc<Self>, ProbeError> {
        let driver = Driver::open(options.driver, &options.driver_options)?;
        Self::with_driver(index, peers, clock, options, driver)
    }

    /// As [`Core::open`], with a driver that is open already.
    pub(crate) fn with_driver(
        index: CoreIndex,
        peers: Arc<[Arc<Inbox>]>,
        clock: Clock,
        options: &CoreOptions,
        driver: Driver,
    ) -> Result<Rc<Self>, ProbeError> {
        let inbox = Arc::clone(&peers[usize::from(index.0)]);
        inbox.open(driver.wake_fd());
        let scheduler = Scheduler::new(Arc::clone(&inbox));
        let core = Rc::new(Self {
            inbox,
            peers,
            clock,
            scheduler,
            table: RefCell::new(Table::new()),
            timers: RefCell::new(Wheel::new(Time::ZERO)),
            idle: RefCell::new(IdleState::new(options.idle)),
            near: Near::default(),
            sources: RefCell::default(),
            pools: RefCell::default(),
            counters: Counters::default(),
            stopping: Cell::new(false),
            rests: Cell::new(false),
            completions: RefCell::new(Vec::new()),
            expired: RefCell::new(Vec::new()),
            locals: RefCell::default(),
            driver: RefCell::new(driver),
            arena: Arena::new(options.arena),
        });
        core.listen_for_bell()?;
        Ok(core)
    }

    /// Starts the task that waits at the eventfd by which foreign threads wake this core.
    fn listen_for_bell(self: &Rc<Self>) -> Result<(), ProbeError> {
        let bell = self.inbox.bell().map_err(ProbeError::from_setup)?;
        let (core, bell) = (Rc::clone(self), Descriptor::plain(bell));
        let here = Location::caller();
        let listening = self.spawn_at(here, Some(Class::Latency), async move {
            let listened = match core.driver_kind() {
                DriverKind::Uring(_) => hear_rings(&core, &bell).await,
                DriverKind::Epoll | DriverKind::Simulated => read_counts(&core, &bell).await,
            };
            let Err(error) = listened;
            tracing::error!(%error, "the wake-up descriptor of a core failed");
        });
        drop(listening);
        Ok(())
    }

    /// See [`core_local`](crate::core_local).
    pub(crate) fn local<T: Default + 'static>(&self) -> Rc<T> {
        let id = TypeId::of::<T>();
        let known = self.locals.borrow().get(&id).cloned();
        // Made without a borrow: it may ask for others.
        let value = known.unwrap_or_else(|| Rc::new(T::default()));
        let mut locals = self.locals.borrow_mut();
        let value = Rc::clone(locals.entry(id).or_insert(value));
        value.downcast().expect("each type has a value of its own")
    }

    /// The core of the calling thread.
    ///
    /// # Panics
    /// Outside a runtime's thread.
    pub(crate) fn current() -> Rc<Self> {
        CURRENT.with_borrow(Option::clone).expect(NO_RUNTIME)
    }

    /// As [`Core::current`], for the length of a call.
    ///
    /// # Panics
    /// Outside a runtime's thread.
    #[track_caller]
    pub(crate) fn with_current<T>(then: impl FnOnce(&Rc<Self>) -> T) -> T {
        CURRENT.with_borrow(|current| then(current.as_ref().expect(NO_RUNTIME)))
    }

    /// Makes this core the calling thread's until the guard drops.
    pub(crate) fn enter(self: &Rc<Self>) -> Entered {
        let before = CURRENT.with_borrow_mut(|current| current.replace(Rc::clone(self)));
        assert!(before.is_none(), "a runtime inside a runtime");
        // SAFETY: the scheduler lies in the core, which the guard keeps, and drops after this one.
        let current = unsafe { self.scheduler.enter() };
        Entered {
            _current: current,
            _core: Rc::clone(self),
        }
    }

    /// Starts a task on this core, of the class of the task that runs.
    #[track_caller]
    pub(crate) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.spawn_at(Location::caller(), None, future)
    }

    /// Starts a task of `class`, or of the class of the task that runs, which is named by the line
    /// that spawned it.
    pub(crate) fn spawn_at<F>(
        &self,
        spawned_at: &'static Location<'static>,
        class: Option<Class>,
        future: F,
    ) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.scheduler.spawn(class, spawned_at, future)
    }

    pub(crate) fn can_spawn(&self) -> bool {
        self.scheduler.can_spawn()
    }

    pub(crate) const fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    pub(crate) fn index(&self) -> CoreIndex {
        self.inbox.index()
    }

    pub(crate) fn peer(&self, index: CoreIndex) -> Option<&Arc<Inbox>> {
        self.peers.get(usize::from(index.0))
    }

    fn is_peer(&self, inbox: &Inbox) -> bool {
        self.peer(inbox.index())
            .is_some_and(|peer| ptr::eq(Arc::as_ptr(peer), inbox))
    }

    pub(crate) fn peers_len(&self) -> usize {
        self.peers.len()
    }

    pub(crate) const fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(crate) fn driver_kind(&self) -> DriverKind {
        self.driver.borrow().kind()
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// See [`crate::time::unix_ns`].
    pub(crate) fn unix_ns(&self) -> u64 {
        self.clock.unix_ns()
    }

    /// The simulated network that the core's driver is connected to, if it is simulated.
    pub(crate) fn simulated_host(&self) -> Option<SimulatedHost> {
        match &*self.driver.borrow() {
            Driver::Simulated(driver) => Some(driver.host()),
            Driver::Uring(_) | Driver::Epoll(_) => None,
        }
    }

    /// Whether the world draws which ready task is next.
    fn draws_tasks(&self) -> bool {
        match &*self.driver.borrow() {
            Driver::Simulated(driver) => driver.draws_tasks(),
            Driver::Uring(_) | Driver::Epoll(_) => false,
        }
    }

    /// A number below `bound`, of the world's generator.
    fn draw_below(&self, bound: usize) -> usize {
        match &*self.driver.borrow() {
            Driver::Simulated(driver) => driver.draw_below(bound),
            Driver::Uring(_) | Driver::Epoll(_) => unreachable!("the core is not simulated"),
        }
    }

    /// The simulated process of this core is gone.
    pub(crate) fn end_simulation(&self) {
        match &mut *self.driver.borrow_mut() {
            Driver::Simulated(driver) => driver.die(),
            Driver::Uring(_) | Driver::Epoll(_) => unreachable!("the core is not simulated"),
        }
    }

    /// Ends the loop after the current turn.
    pub(crate) fn stop(&self) {
        self.stopping.set(true);
    }

    /// Runs until `future` ends.
    pub(crate) fn block_on<F>(self: &Rc<Self>, future: F) -> F::Output
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let core = Rc::clone(self);
        let handle = self.spawn(async move {
            let output = future.await;
            core.stop();
            output
        });
        self.run();
        let mut handle = std::pin::pin!(handle);
        match handle
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(Ok(output)) => output,
            Poll::Ready(Err(error)) => unreachable!("the first task: {error}"),
            Poll::Pending => unreachable!("a finished task has its output"),
        }
    }

    /// Runs until [`Core::stop`].
    pub(crate) fn run(&self) {
        while !self.stopping.get() {
            self.turn();
        }
    }

    /// Drops every task, then waits until the devices have let go of every lease.
    pub(crate) fn shut_down(&self) {
        self.inbox.close();
        self.scheduler.shut_down();
        while let Some(message) = self.inbox.next_message() {
            drop(message);
        }
        for key in self.table.borrow().in_flight() {
            self.driver.borrow_mut().cancel(key);
        }
        // Other cores wait for what was put in the ring before.
        self.drive(Wait::Poll);
        let deadline = self.now() + DRAIN_MAX;
        while !self.table.borrow().in_flight().is_empty() && self.now() < deadline {
            self.drive(Wait::For(Duration::from_millis(10)));
        }
        if !self.table.borrow().in_flight().is_empty() {
            // A device that does not let go may still write: its memory is given up, not freed.
            tracing::error!("operations did not end; their buffers are leaked");
            let table = std::mem::replace(&mut *self.table.borrow_mut(), Table::new());
            std::mem::forget(table);
        }
    }

    pub(crate) fn insert_timer(
        &self,
        at: Time,
        waker: Waker,
    ) -> Result<TimerKey, TimersFull<Waker>> {
        self.timers.borrow_mut().insert(at, waker)
    }

    pub(crate) fn cancel_timer(&self, key: TimerKey) {
        let waker = self.timers.borrow_mut().cancel(key);
        drop(waker);
    }

    /// Wakes another core from this one, through the ring where that works. Who takes the announcement of a
    /// sleep away has to wake that core, and what a core that ends puts in its ring may never leave.
    pub(crate) fn wake_peer(&self, peer: &Inbox) {
        if peer.take_asleep() {
            let ring = peer.wake_fd().filter(|_| !self.inbox.is_closed());
            let by_ring = ring.is_some_and(|fd| self.driver.borrow_mut().wake_ring(fd));
            if !by_ring {
                peer.ring_bell();
            }
        }
    }

    pub(crate) fn counts(&self) -> CoreCounts {
        CoreCounts {
            turns: self.counters.turns.get(),
            driver_calls: self.counters.driver_calls.get(),
            sleeps: self.counters.sleeps.get(),
            operations: self.table.borrow().len(),
        }
    }
}

/// What a core has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreCounts {
    /// Turns of the loop.
    pub turns: u64,
    /// Calls of the driver: under io_uring, system calls.
    pub driver_calls: u64,
    /// Those of them in which the core slept.
    pub sleeps: u64,
    /// Operations that are in flight now, or whose outcome nobody has taken yet: of
    /// [`OPERATIONS_MAX`](crate::OPERATIONS_MAX). One of them is the core's own.
    pub operations: usize,
}

#[derive(Default)]
struct Counters {
    turns: Cell<u64>,
    driver_calls: Cell<u64>,
    sleeps: Cell<u64>,
}

fn add_one(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("index", &self.index())
            .finish_non_exhaustive()
    }
}

/// Leaves the core when dropped.
pub(crate) struct Entered {
    _current: Current,
    _core: Rc<Core>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|current| current.take());
    }
}

/// Gives a core a message and wakes it: by a message between rings if the calling thread is another
/// core of the same runtime, which will turn its own ring soon; else by the eventfd, at once.
pub(crate) fn deliver(inbox: &Arc<Inbox>, message: Message) -> Result<(), Message> {
    inbox.push_message(message)?;
    wake_inbox(inbox);
    Ok(())
}

/// Wakes a core that has mail: see [`deliver`].
pub(crate) fn wake_inbox(inbox: &Inbox) {
    let current = CURRENT.with_borrow(Option::clone);
    match current.filter(|core| core.is_peer(inbox)) {
        Some(core) => core.wake_peer(inbox),
        None => inbox.wake(),
    }
}
