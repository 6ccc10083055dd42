//! Sources that complete from another thread: no wake-up lost, no system call while busy, no CPU
//! while idle.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::queue::ArrayQueue;
use lunette_runtime::{
    CoreCounts, CoreOptions, CoreWaker, DriverKind, Idle, Placement, Runtime, Source, SourceGuard,
    add_source, block_on, core_counts, core_waker, driver, spawn_local, spawn_on, time,
};
use lunette_runtime_core::ids::CoreIndex;
use lunette_runtime_core::time::Time;
use rustix::time::{ClockId, clock_gettime};

/// A device as another thread plays it: a ring, and a flag that asks for a wake-up.
struct Device {
    ring: ArrayQueue<u64>,
    armed: AtomicBool,
    waker: CoreWaker,
}

impl Device {
    fn of_this_core() -> Self {
        Self {
            ring: ArrayQueue::new(64),
            armed: AtomicBool::new(false),
            waker: core_waker(),
        }
    }

    /// Has the current core poll it.
    fn add(self: &Arc<Self>, delivered: &Rc<RefCell<Delivered>>) -> SourceGuard {
        let source = DeviceSource {
            device: Arc::clone(self),
            delivered: Rc::clone(delivered),
        };
        add_source(source).unwrap_or_else(|_| unreachable!("there is room"))
    }

    /// Publishes, then wakes the core if it asked for that.
    fn complete(&self, value: u64) {
        while self.ring.push(value).is_err() {
            std::hint::spin_loop();
        }
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}

/// What the source and the task that waits for it share.
#[derive(Default)]
struct Delivered {
    values: VecDeque<u64>,
    waiting: Option<Waker>,
}

struct DeviceSource {
    device: Arc<Device>,
    delivered: Rc<RefCell<Delivered>>,
}

impl Source for DeviceSource {
    fn poll(&mut self, budget: usize) -> usize {
        let mut delivered = self.delivered.borrow_mut();
        let mut count = 0;
        while count < budget
            && let Some(value) = self.device.ring.pop()
        {
            delivered.values.push_back(value);
            count += 1;
        }
        let waker = if count > 0 {
            delivered.waiting.take()
        } else {
            None
        };
        drop(delivered);
        if let Some(waker) = waker {
            waker.wake();
        }
        count
    }

    fn try_park(&mut self) -> bool {
        self.device.armed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.device.ring.is_empty() {
            return true;
        }
        self.device.armed.store(false, Ordering::SeqCst);
        false
    }

    fn unpark(&mut self) {
        self.device.armed.store(false, Ordering::SeqCst);
    }
}

async fn next(delivered: &Rc<RefCell<Delivered>>) -> u64 {
    poll_fn(|cx| {
        let mut delivered = delivered.borrow_mut();
        match delivered.values.pop_front() {
            Some(value) => Poll::Ready(value),
            None => {
                delivered.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}

/// How often a device looks for the core's answer before it lets others run: the core may have no other
/// processor than its own.
const LOOKS_MAX: u32 = 1000;

/// How a device pauses: in one of so many rounds, for anything from nothing to the longest.
#[derive(Clone, Copy)]
struct Pauses {
    every: u64,
    longest: Duration,
}

impl Pauses {
    /// Spins, because a thread that sleeps wakes too late to meet a core that falls asleep.
    fn pass(self, round: u64) {
        /// A prime, so that pauses of all lengths follow one another.
        const STEP_NS: u64 = 7919;
        if !round.is_multiple_of(self.every) {
            return;
        }
        let longest_ns = u64::try_from(self.longest.as_nanos()).expect("short");
        let pause = Duration::from_nanos(round * STEP_NS % longest_ns);
        let began = Instant::now();
        while began.elapsed() < pause {
            std::hint::spin_loop();
        }
    }
}

/// One round after the other: the device completes, the task sees it, the device sees that. Now and
/// then the device pauses, so that the core goes through every stage of falling asleep.
fn rounds(idle: Idle, rounds: u64, pauses: Pauses) -> CoreCounts {
    let options = CoreOptions {
        idle,
        ..CoreOptions::default()
    };
    block_on(None, options, move || async move {
        let device = Arc::new(Device::of_this_core());
        let delivered: Rc<RefCell<Delivered>> = Rc::default();
        let guard = device.add(&delivered);
        let seen = Arc::new(AtomicU64::new(0));
        let echoed = Arc::clone(&seen);
        let player = thread::spawn(move || {
            for round in 1..=rounds {
                pauses.pass(round);
                device.complete(round);
                let mut looks = 0;
                while echoed.load(Ordering::Acquire) < round {
                    looks += 1;
                    if looks < LOOKS_MAX {
                        std::hint::spin_loop();
                    } else {
                        thread::yield_now();
                    }
                }
            }
        });
        for round in 1..=rounds {
            assert_eq!(next(&delivered).await, round);
            seen.store(round, Ordering::Release);
        }
        drop(guard);
        player.join().expect("no panic");
        core_counts()
    })
    .expect("a core")
}

/// Asks for ten million rounds, which take one minute and a half, optimised or not:
/// `LUNETTE_MANY_ROUNDS=1 cargo test --release -p lunette-runtime --test sources no_wake_up`.
const MANY_ROUNDS: &str = "LUNETTE_MANY_ROUNDS";

fn rounds_asked_for() -> u64 {
    std::env::var_os(MANY_ROUNDS).map_or(ROUNDS, |_| 10_000_000)
}

const ROUNDS: u64 = 300_000;

const SHORT: Pauses = Pauses {
    every: 5,
    longest: Duration::from_micros(20),
};

#[test]
fn no_wake_up_is_lost_by_a_core_that_spins_and_sleeps_by_turns() {
    let spin = Duration::from_micros(50);
    // More than half of the pauses outlast the spin, and some end as it does.
    let pauses = Pauses {
        every: 10,
        longest: 5 * spin / 2,
    };
    let asked_for = rounds_asked_for();
    let counts = rounds(Idle::Adaptive(spin), asked_for, pauses);
    println!("{asked_for} rounds: {counts:?}");
    assert!(counts.sleeps >= asked_for / 1000, "it slept: {counts:?}");
    // Which rounds it sleeps through depends on where the two run. One that only sleeps turns once in
    // a round, and one that spins turns a hundred times in each of the pauses.
    assert!(counts.turns >= 2 * asked_for, "it spun: {counts:?}");
}

#[test]
fn a_busy_core_makes_no_system_call_for_a_source() {
    let counts = rounds(Idle::Latency, ROUNDS / 10, SHORT);
    // epoll is a system call by its nature.
    assert!(
        by_epoll() || counts.driver_calls < ROUNDS / 1000,
        "{counts:?}"
    );
    assert_eq!(counts.sleeps, 0);
}

fn by_epoll() -> bool {
    let kind = block_on(None, CoreOptions::default(), || async { driver() });
    kind == Ok(DriverKind::Epoll)
}

#[test]
fn no_wake_up_is_lost_by_a_core_that_sleeps_whenever_it_can() {
    let pauses = Pauses { every: 1, ..SHORT };
    let counts = rounds(Idle::Efficient, rounds_asked_for() / 100, pauses);
    assert!(counts.sleeps > 100, "the case was met: {counts:?}");
}

#[test]
fn messages_to_a_busy_core_cost_it_no_system_call() {
    const MESSAGES: u64 = 20_000;
    let options = CoreOptions {
        idle: Idle::Latency,
        ..CoreOptions::default()
    };
    let runtime = Runtime::start(&Placement::Anywhere(2), options).expect("cores");
    let counts = runtime.spawn_on(CoreIndex(0), || async {
        let before = core_counts().driver_calls;
        for n in 0..MESSAGES {
            assert_eq!(
                spawn_on(CoreIndex(1), move || async move { n }).await,
                Ok(n)
            );
        }
        core_counts().driver_calls - before
    });
    let calls = counts.expect("started").wait().expect("an answer");
    assert!(
        by_epoll() || calls < MESSAGES / 100,
        "{calls} calls of the driver"
    );
}

/// What the calling thread has used of its processor in two seconds of sleep.
async fn used_in_two_seconds() -> Duration {
    let cpu_time = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(
            time.tv_sec.unsigned_abs(),
            u32::try_from(time.tv_nsec).expect("below 1 s"),
        )
    };
    time::sleep(Duration::from_millis(50)).await;
    let before = cpu_time();
    time::sleep(Duration::from_secs(2)).await;
    cpu_time() - before
}

const PERCENT_OF_TWO_SECONDS: Duration = Duration::from_millis(20);

fn idle_options() -> CoreOptions {
    CoreOptions {
        idle: Idle::Adaptive(Duration::from_millis(1)),
        ..CoreOptions::default()
    }
}

#[test]
fn an_idle_core_uses_no_cpu() {
    let used = block_on(None, idle_options(), used_in_two_seconds);
    let used = used.expect("a core");
    assert!(used < PERCENT_OF_TWO_SECONDS, "{used:?}");
}

#[test]
fn an_idle_core_with_sources_uses_no_cpu() {
    let measured = block_on(None, idle_options(), || async {
        let devices: Vec<_> = (0..4).map(|_| Arc::new(Device::of_this_core())).collect();
        let delivered: Rc<RefCell<Delivered>> = Rc::default();
        let guards: Vec<_> = devices
            .iter()
            .map(|device| device.add(&delivered))
            .collect();
        let used = used_in_two_seconds().await;
        // They were heard all the time: each still wakes the core.
        for (device, value) in devices.iter().zip(1..) {
            let device = Arc::clone(device);
            let player = thread::spawn(move || device.complete(value));
            assert_eq!(next(&delivered).await, value);
            player.join().expect("no panic");
        }
        drop(guards);
        used
    });
    let used = measured.expect("a core");
    assert!(used < PERCENT_OF_TWO_SECONDS, "{used:?}");
}

/// Something that is there at a time, and says nothing then.
struct Due {
    at: Time,
    waiting: Rc<RefCell<Option<Waker>>>,
}

impl Source for Due {
    fn poll(&mut self, _budget: usize) -> usize {
        let is_there = time::now() >= self.at;
        let waker = self.waiting.borrow_mut().take_if(|_| is_there);
        waker.map_or(0, |waker| {
            waker.wake();
            1
        })
    }

    fn try_park(&mut self) -> bool {
        true
    }

    fn unpark(&mut self) {}

    fn sleeps_until(&self) -> Option<Time> {
        Some(self.at).filter(|_| self.waiting.borrow().is_some())
    }
}

#[test]
fn a_core_sleeps_no_longer_than_a_source_lets_it() {
    let slept = block_on(None, efficient(), || async {
        let waiting: Rc<RefCell<Option<Waker>>> = Rc::default();
        let at = time::now() + Duration::from_millis(20);
        let source = Due {
            at,
            waiting: Rc::clone(&waiting),
        };
        let _guard = add_source(source).unwrap_or_else(|_| unreachable!("there is room"));
        let before = core_counts().sleeps;
        let mut is_asked = false;
        // No timer is set: without the source nothing would wake the core.
        poll_fn(|cx| {
            if is_asked {
                return Poll::Ready(());
            }
            is_asked = true;
            *waiting.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        assert!(time::now() >= at);
        core_counts().sleeps - before
    });
    let slept = slept.expect("a core");
    assert!(
        (1..20).contains(&slept),
        "it sleeps, and does not spin: {slept}"
    );
}

/// Wakes a task with its last look, and lets the core sleep all the same.
struct WakesWhileParking(Rc<RefCell<Option<Waker>>>);

impl Source for WakesWhileParking {
    fn poll(&mut self, _budget: usize) -> usize {
        0
    }

    fn try_park(&mut self) -> bool {
        self.0.borrow_mut().take().into_iter().for_each(Waker::wake);
        true
    }

    fn unpark(&mut self) {}
}

#[test]
fn a_task_that_a_source_wakes_while_it_parks_is_run_before_the_core_sleeps() {
    let done = block_on(None, efficient(), || async {
        let waiting: Rc<RefCell<Option<Waker>>> = Rc::default();
        let source = WakesWhileParking(Rc::clone(&waiting));
        let _guard = add_source(source).unwrap_or_else(|_| unreachable!("there is room"));
        for _ in 0..1000 {
            let mut is_asked = false;
            let woken = poll_fn(|cx| {
                if is_asked {
                    return Poll::Ready(());
                }
                is_asked = true;
                *waiting.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            });
            // What is slept through is run when this timer wakes the core.
            let began = time::now();
            let woken = time::timeout(Duration::from_secs(5), woken).await;
            let is_slept_through = time::now().since(began) >= Duration::from_secs(4);
            assert!(woken.is_ok() && !is_slept_through);
        }
    });
    done.expect("a core");
}

fn efficient() -> CoreOptions {
    CoreOptions {
        idle: Idle::Efficient,
        ..CoreOptions::default()
    }
}

/// What a task of the same core puts there, for another one.
#[derive(Default)]
struct Shelf {
    /// How many turns the task that is always ready has had.
    turns: Cell<u64>,
    put: Cell<bool>,
    seen: Cell<bool>,
    waiting: RefCell<Option<Waker>>,
}

struct ShelfSource(Rc<Shelf>);

impl Source for ShelfSource {
    fn poll(&mut self, _budget: usize) -> usize {
        if !self.0.put.take() {
            return 0;
        }
        self.0.seen.set(true);
        if let Some(waker) = self.0.waiting.take() {
            waker.wake();
        }
        1
    }

    fn try_park(&mut self) -> bool {
        !self.0.put.get()
    }

    fn unpark(&mut self) {}
}

#[test]
fn tasks_that_are_always_ready_keep_no_source_waiting_for_a_whole_turn() {
    const ROUNDS: u64 = 50;
    let delays = block_on(None, CoreOptions::default(), || async {
        let shelf = Rc::new(Shelf::default());
        let _source = add_source(ShelfSource(Rc::clone(&shelf))).ok();
        let busy = Rc::clone(&shelf);
        let ready = spawn_local(async move {
            // 64 tasks are a turn's worth: each round begins elsewhere in one.
            for turn in 1..=ROUNDS * 101 {
                busy.turns.set(turn);
                if turn % 101 == 0 {
                    busy.put.set(true);
                }
                time::yield_now().await;
            }
        });
        let mut delays = Vec::new();
        for round in 1..ROUNDS {
            poll_fn(|cx| {
                if shelf.seen.take() {
                    return Poll::Ready(());
                }
                *shelf.waiting.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            delays.push(shelf.turns.get() - round * 101);
        }
        ready.await.expect("it ends");
        delays
    });
    let delays = delays.expect("a core");
    assert!(delays.iter().all(|delay| *delay <= 8), "{delays:?}");
}
