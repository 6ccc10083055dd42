//! A world of simulated processes: cores, hosts and a network, from one seed.
//!
//! The runtime above its driver is the real one, and so is everything on it: tasks, timers, the
//! operations' table, the inboxes of cores. What is simulated is what the system would do: time, the
//! network, drives, the order in which things happen, and processes that die, stop, slow down or lose their
//! power. All of it happens on one thread, chosen by a generator that the seed fixes, so that a seed
//! shows the same world again.
//!
//! ```text
//!   World ── events by time ──▶ Network (sockets, links, drives) ──▶ wakes a core
//!     │                                                                  │
//!     └── steps the core ◀───────────────────────────────────────────────┘
//!           Core::step ── SimulatedDriver ── submissions, completions
//! ```
//!
//! It leaves out devices that are polled, and what runs on threads of its own.
//!
//! ```
//! use std::time::Duration;
//! use lunette_runtime::sim::{World, WorldOptions};
//! use lunette_runtime::{CoreOptions, net::{TcpListener, TcpStream}};
//!
//! let mut world = World::new(7, WorldOptions::default());
//! let server = world.start("10.0.0.1".parse().unwrap(), 1, CoreOptions::default());
//! let client = world.start("10.0.0.2".parse().unwrap(), 1, CoreOptions::default());
//! let address = "10.0.0.1:80".parse().unwrap();
//! world.spawn(server, 0, move || async move {
//!     let listener = TcpListener::bind(address).unwrap();
//!     let stream = listener.accept().await.unwrap();
//!     stream.send_all(b"hello".to_vec(), 0, 5).await.0.unwrap();
//!     // Closed when it has arrived.
//! });
//! let got = world.spawn(client, 0, move || async move {
//!     let stream = TcpStream::connect(address).await.unwrap();
//!     let (count, bytes) = stream.recv(vec![0; 1], 0, 1).await;
//!     (count, bytes)
//! });
//! world.run_for(Duration::from_secs(1));
//! assert_eq!(got.take(), Some((Ok(1), b"h".to_vec())));
//! ```

mod disk;
mod driver;
mod events;
mod handles;
mod network;
mod options;
mod sectors;

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lunette_runtime_core::ids::CoreIndex;
use lunette_runtime_core::limits::CORES_MAX;
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

use crate::clock::Clock;
use crate::driver::Driver;
use crate::executor::{Core, Idle, Step};
use crate::mesh::Inbox;
use crate::runtime::CoreOptions;
pub(crate) use driver::SimulatedDriver;
use events::{Event, Seat};
pub(crate) use handles::{
    SimulatedBell, SimulatedClock, SimulatedFile, SimulatedHost, SimulatedSocket,
};
use network::Network;
pub use options::{DiskOptions, FaultCounts, WorldOptions};

/// A process of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(usize);

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// By a signal: its system closes its connections.
    Crash,
    /// With its host: nobody is told. The host is up again when a process starts on it.
    PowerLoss,
}

/// One core, as the world sees it.
struct SimulatedCore {
    core: Rc<Core>,
    process: ProcessId,
    bell: SimulatedBell,
    /// It turns, and does nothing else before this time.
    busy_until: Time,
}

struct Process {
    host: IpAddr,
    seats: Vec<Seat>,
    clock: SimulatedClock,
    is_alive: bool,
    is_paused: bool,
    /// How many times as long as usual its turns take.
    slowness: u32,
}

/// The output of a task in a world.
#[derive(Debug)]
pub struct Outcome<T>(Rc<RefCell<Option<T>>>);

impl<T> Outcome<T> {
    /// The output, once, when the task has ended.
    #[must_use]
    pub fn take(&self) -> Option<T> {
        self.0.borrow_mut().take()
    }

    /// Whether the task has ended, and its output has not been taken.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.borrow().is_some()
    }
}

/// Processes on hosts, and a network between them.
pub struct World {
    network: Rc<RefCell<Network>>,
    processes: Vec<Process>,
    /// By seat. None once its process is gone.
    cores: Vec<Option<SimulatedCore>>,
}

impl World {
    /// An empty world, whose future the seed fixes.
    #[must_use]
    pub fn new(seed: u64, options: WorldOptions) -> Self {
        Self {
            network: Rc::new(RefCell::new(Network::new(seed, options))),
            processes: Vec::new(),
            cores: Vec::new(),
        }
    }

    /// Starts a process of `cores` cores on `host`, which is up from then on. Of the options its
    /// driver and idle policy are the world's.
    ///
    /// # Panics
    /// If there are no cores or too many.
    pub fn start(&mut self, host: IpAddr, cores: usize, options: CoreOptions) -> ProcessId {
        assert!((1..=CORES_MAX).contains(&cores), "{cores} cores");
        let id = ProcessId(self.processes.len());
        let options = CoreOptions {
            idle: Idle::Efficient,
            ..options
        };
        let mut network = self.network.borrow_mut();
        network.boot(host);
        let clock = SimulatedClock::new(network.time());
        drop(network);
        let bells: Vec<SimulatedBell> = (0..cores).map(|_| SimulatedBell::default()).collect();
        let inboxes = bells.iter().enumerate().map(|(index, bell)| {
            let index = u16::try_from(index).expect("cores are bounded");
            Arc::new(Inbox::simulated(CoreIndex(index), bell.clone()))
        });
        let peers: Arc<[Arc<Inbox>]> = inboxes.collect();
        let mut seats = Vec::new();
        for (index, bell) in bells.into_iter().enumerate() {
            let seat = Seat(u32::try_from(self.cores.len()).expect("cores are few"));
            let index = CoreIndex(u16::try_from(index).expect("cores are bounded"));
            let driver = SimulatedDriver::new(Rc::clone(&self.network), seat, host, bell.clone());
            let driver = Driver::Simulated(Box::new(driver));
            let clock = Clock::Simulated(clock.clone());
            let core = Core::with_driver(index, Arc::clone(&peers), clock, &options, driver);
            self.cores.push(Some(SimulatedCore {
                core: core.expect("a simulated system refuses nothing"),
                process: id,
                bell,
                busy_until: Time::ZERO,
            }));
            self.network.borrow_mut().wake(seat);
            seats.push(seat);
        }
        self.processes.push(Process {
            host,
            seats,
            clock,
            is_alive: true,
            is_paused: false,
            slowness: 1,
        });
        id
    }

    /// Starts a task on a core of a process. `start` runs there.
    ///
    /// # Panics
    /// If the process is gone, or has no such core.
    pub fn spawn<S, F>(&mut self, process: ProcessId, core: usize, start: S) -> Outcome<F::Output>
    where
        S: FnOnce() -> F,
        F: Future + 'static,
        F::Output: 'static,
    {
        let seat = self.processes[process.0].seats[core];
        let outcome = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&outcome);
        self.inside(seat, |core| {
            let future = start();
            drop(core.spawn(async move {
                let output = future.await;
                slot.borrow_mut().replace(output);
            }));
        });
        self.network.borrow_mut().wake(seat);
        Outcome(outcome)
    }

    /// Calls `then` as the core would.
    fn inside<T>(&self, seat: Seat, then: impl FnOnce(&Rc<Core>) -> T) -> T {
        let simulated = self.cores[seat.0 as usize].as_ref();
        let core = &simulated.expect("its process is there").core;
        let _entered = core.enter();
        then(core)
    }

    /// The world's time, since its beginning.
    #[must_use]
    pub fn now(&self) -> Time {
        self.network.borrow().now()
    }

    /// A generator of its own for whoever arranges the world, fixed by the seed and by what has
    /// happened so far.
    pub fn draw(&mut self) -> SplitMix64 {
        SplitMix64::new(self.network.borrow_mut().random.next())
    }

    /// Lets `delay` pass.
    pub fn run_for(&mut self, delay: Duration) {
        let until = self.now() + delay;
        self.run_until(until, || false);
    }

    /// Lets time pass until `is_over`, at most until `until`. Whether it was over.
    pub fn run_until(&mut self, until: Time, is_over: impl Fn() -> bool) -> bool {
        loop {
            if is_over() {
                return true;
            }
            let event = self.network.borrow_mut().next_event(until);
            match event {
                None => return is_over(),
                Some(Event::Step(seat)) => self.step(seat),
                Some(event) => self.network.borrow_mut().happen(event),
            }
        }
    }

    /// A core turns, unless it is busy or stopped.
    fn step(&mut self, seat: Seat) {
        let Some(simulated) = self.cores[seat.0 as usize].as_mut() else {
            return;
        };
        let process = &self.processes[simulated.process.0];
        let (now, turn) = {
            let network = self.network.borrow();
            (network.now(), network.options.turn)
        };
        if process.is_paused {
            return;
        }
        if now < simulated.busy_until {
            let busy_until = simulated.busy_until;
            return self.network.borrow_mut().plan_step(seat, busy_until);
        }
        let entered = simulated.core.enter();
        let step = simulated.core.step();
        drop(entered);
        let took = turn * process.slowness;
        simulated.busy_until = now + took;
        let busy_until = simulated.busy_until;
        let mut network = self.network.borrow_mut();
        network.trace.add(now, "turn", [seat.0.into(), 0, 0]);
        match step {
            Step::Busy => network.plan_step(seat, busy_until),
            Step::Asleep(None) => {}
            Step::Asleep(Some(at)) => {
                let at = process.clock.world_time(at).max(busy_until);
                network.plan_step(seat, at);
            }
        }
        // Whom it woke, of other processes too: what simulated devices share is no socket.
        for (index, core) in self.cores.iter().enumerate() {
            if core.as_ref().is_some_and(|core| core.bell.is_rung()) {
                network.wake(Seat(u32::try_from(index).expect("cores are few")));
            }
        }
    }

    /// Ends a process. Its tasks are dropped, and nothing of what they do then is seen outside.
    ///
    /// # Panics
    /// If it is gone already.
    pub fn kill(&mut self, process: ProcessId, how: Kill) {
        let gone = &mut self.processes[process.0];
        assert!(gone.is_alive, "{process:?} is gone");
        gone.is_alive = false;
        let (host, seats) = (gone.host, gone.seats.clone());
        let mut network = self.network.borrow_mut();
        let now = network.now();
        let is_power = how == Kill::PowerLoss;
        network
            .trace
            .add(now, "killed", [process.0 as u64, is_power.into(), 0]);
        match how {
            Kill::Crash => network.counts.crashes += 1,
            Kill::PowerLoss => network.counts.power_losses += 1,
        }
        network.remove_process(host, &seats, is_power);
        drop(network);
        for seat in &seats {
            self.inside(*seat, |core| {
                core.end_simulation();
                core.shut_down();
            });
        }
        for seat in seats {
            self.cores[seat.0 as usize] = None;
            self.network.borrow_mut().unplan_step(seat);
        }
    }

    /// Whether a process runs, or is merely paused.
    #[must_use]
    pub fn is_alive(&self, process: ProcessId) -> bool {
        self.processes[process.0].is_alive
    }

    /// Stops a process where it is, as SIGSTOP does: its system still receives for it.
    pub fn pause(&mut self, process: ProcessId) {
        self.processes[process.0].is_paused = true;
        self.network.borrow_mut().counts.pauses += 1;
    }

    /// Lets a paused process go on.
    pub fn resume(&mut self, process: ProcessId) {
        self.processes[process.0].is_paused = false;
        for seat in &self.processes[process.0].seats {
            self.network.borrow_mut().wake(*seat);
        }
    }

    /// Has each turn of a process take `times` as long as usual.
    pub fn slow_down(&mut self, process: ProcessId, times: u32) {
        self.processes[process.0].slowness = times.max(1);
        self.network.borrow_mut().counts.slowed += u64::from(times > 1);
    }

    /// Moves a process's clocks ahead, as when its machine has been stopped and goes on.
    pub fn jump_clock(&mut self, process: ProcessId, ahead: Duration) {
        self.processes[process.0].clock.jump(ahead);
        self.network.borrow_mut().counts.clock_jumps += 1;
        for seat in &self.processes[process.0].seats {
            self.network.borrow_mut().wake(*seat);
        }
    }

    /// Gives a host one more address, at which its processes may listen. Links are between addresses:
    /// each may be cut and slowed by itself. What a process connects comes from its host's own address,
    /// unless it says another ([`ConnectOptions`](crate::net::ConnectOptions)).
    pub fn add_address(&mut self, host: IpAddr, address: IpAddr) {
        self.network.borrow_mut().add_address(host, address);
    }

    /// Has a name stand for these addresses from now on, for every process that asks
    /// ([`resolve`](crate::net::resolve)). Without an address it is unknown.
    pub fn set_name(&mut self, name: &str, addresses: &[IpAddr]) {
        self.network.borrow_mut().set_name(name, addresses);
    }

    /// What connections send from one address to the other takes its time from now on, instead of
    /// [`WorldOptions::bytes_per_second`].
    pub fn set_rate(&mut self, from: IpAddr, to: IpAddr, bytes_per_second: u64) {
        self.network
            .borrow_mut()
            .set_rate(from, to, bytes_per_second);
    }

    /// Nothing gets from one host to the other any more, until [`World::mend`]. What is sent waits.
    pub fn cut(&mut self, from: IpAddr, to: IpAddr) {
        self.network.borrow_mut().cut(from, to);
    }

    /// Undoes [`World::cut`].
    pub fn mend(&mut self, from: IpAddr, to: IpAddr) {
        self.network.borrow_mut().mend(from, to);
    }

    /// Breaks each connection between two hosts: both ends are told.
    pub fn reset_connections(&mut self, one: IpAddr, other: IpAddr) {
        self.network.borrow_mut().reset(one, other);
    }

    /// Changes [`WorldOptions::losses_per_mille`] and [`WorldOptions::damages_per_million`].
    pub fn set_network_faults(&mut self, losses_per_mille: u32, damages_per_million: u32) {
        let options = &mut self.network.borrow_mut().options;
        options.losses_per_mille = losses_per_mille;
        options.damages_per_million = damages_per_million;
    }

    /// Changes how the hosts' drives behave from now on.
    pub fn set_drives(&mut self, disk: DiskOptions) {
        self.network.borrow_mut().options.disk = disk;
    }

    /// How often each fault has occurred so far.
    #[must_use]
    pub fn fault_counts(&self) -> FaultCounts {
        self.network.borrow().counts
    }

    /// A hash of everything that has happened so far.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.network.borrow().trace.hash()
    }

    /// Keeps a line for each thing that happens from now on.
    pub fn keep_log(&mut self) {
        self.network.borrow_mut().trace.keep_lines();
    }

    /// The lines so far.
    #[must_use]
    pub fn take_log(&mut self) -> Vec<String> {
        self.network.borrow_mut().trace.take_lines()
    }

    /// A hand for notes in the log, for tasks: what it is told is part of the trace.
    #[must_use]
    pub fn log(&self) -> Log {
        Log(Rc::clone(&self.network))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for process in 0..self.processes.len() {
            if self.processes[process].is_alive && !std::thread::panicking() {
                self.kill(ProcessId(process), Kill::Crash);
            }
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("now", &self.now())
            .field("processes", &self.processes.len())
            .finish_non_exhaustive()
    }
}

/// Adds to a world's log.
#[derive(Clone)]
pub struct Log(Rc<RefCell<Network>>);

impl Log {
    /// Adds a line.
    pub fn note(&self, text: &str) {
        let mut network = self.0.borrow_mut();
        let now = network.now();
        network.trace.note(now, text);
    }

    /// The world's time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.0.borrow().now()
    }

    /// How often each fault has occurred so far.
    #[must_use]
    pub fn fault_counts(&self) -> FaultCounts {
        self.0.borrow().counts
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

#[cfg(test)]
mod tests;
