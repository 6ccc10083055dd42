//! Tasks, timers and messages as a user of the runtime sees them.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use lunette_runtime::{
    CoreOptions, Idle, JoinError, MESSAGES_MAX, MeshError, Placement, Runtime, StartError,
    TASKS_MAX, block_on, can_spawn, core_count, current_core, spawn_local, spawn_on, time,
};
use lunette_runtime_core::ids::CoreIndex;

fn run<F: Future + 'static>(start: impl FnOnce() -> F) -> F::Output {
    block_on(None, CoreOptions::default(), start).expect("a core")
}

fn cores(count: usize, idle: Idle) -> Runtime {
    let options = CoreOptions {
        idle,
        ..CoreOptions::default()
    };
    Runtime::start(&Placement::Anywhere(count), options).expect("cores")
}

#[test]
fn sleeps_end_in_the_order_of_their_deadlines_and_never_early() {
    run(|| async {
        let order: Rc<RefCell<Vec<u64>>> = Rc::default();
        let tasks: Vec<_> = [7, 1, 20, 3, 12, 0]
            .into_iter()
            .map(|ms| {
                let order = Rc::clone(&order);
                spawn_local(async move {
                    let start = Instant::now();
                    time::sleep(Duration::from_millis(ms)).await;
                    assert!(start.elapsed() >= Duration::from_millis(ms));
                    order.borrow_mut().push(ms);
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("ended");
        }
        assert_eq!(*order.borrow(), [0, 1, 3, 7, 12, 20]);
    });
}

#[test]
fn a_timeout_drops_what_is_late_and_keeps_what_is_not() {
    struct Dropped(Rc<Cell<bool>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    run(|| async {
        let dropped = Rc::new(Cell::new(false));
        let guard = Dropped(Rc::clone(&dropped));
        let late = async move {
            let _guard = guard;
            pending::<()>().await;
        };
        assert!(time::timeout(Duration::from_millis(2), late).await.is_err());
        assert!(dropped.get());
        assert_eq!(
            time::timeout(Duration::from_secs(60), async { 5 }).await,
            Ok(5)
        );
    });
}

#[test]
fn yielding_lets_the_others_run_in_turn() {
    run(|| async {
        let trace: Rc<RefCell<Vec<u32>>> = Rc::default();
        let tasks: Vec<_> = (0..3)
            .map(|id| {
                let trace = Rc::clone(&trace);
                spawn_local(async move {
                    for _ in 0..3 {
                        trace.borrow_mut().push(id);
                        time::yield_now().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("ended");
        }
        assert_eq!(*trace.borrow(), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    });
}

#[test]
fn an_aborted_task_is_dropped_and_a_dropped_handle_lets_it_run() {
    run(|| async {
        let ended = Rc::new(Cell::new(0));
        let task = |count: &Rc<Cell<u32>>| {
            let count = Rc::clone(count);
            async move {
                time::sleep(Duration::from_millis(2)).await;
                count.set(count.get() + 1);
            }
        };
        spawn_local(task(&ended)).abort();
        drop(spawn_local(task(&ended)));
        time::sleep(Duration::from_millis(10)).await;
        assert_eq!(ended.get(), 1);
        assert_eq!(
            Rc::strong_count(&ended),
            1,
            "the aborted one is gone as well"
        );
    });
}

#[test]
fn tasks_are_refused_at_their_bound() {
    run(|| async {
        // This test's own task and the core's are two.
        let mut handles: Vec<_> = (0..TASKS_MAX - 2)
            .map(|_| spawn_local(pending::<()>()))
            .collect();
        assert!(!handles.last().expect("some").is_finished());
        assert!(!can_spawn());
        assert_eq!(spawn_local(async {}).await, Err(JoinError::TooManyTasks));
        handles.pop().expect("some").abort();
        time::yield_now().await;
        time::yield_now().await;
        assert_eq!(spawn_local(async {}).await, Ok(()));
    });
}

#[test]
fn messages_reach_every_core_and_answers_come_back() {
    let runtime = cores(3, Idle::default());
    let answers = runtime.spawn_on(CoreIndex(0), || async {
        let mut answers = Vec::new();
        for index in 0..core_count() {
            let index = CoreIndex(u16::try_from(index).expect("few"));
            answers.push(
                spawn_on(index, || async { current_core() })
                    .await
                    .expect("an answer"),
            );
        }
        let missing = spawn_on(CoreIndex(3), || async {}).await;
        assert_eq!(missing, Err(MeshError::NoSuchCore(CoreIndex(3))));
        answers
    });
    let answers = answers.expect("started").wait().expect("an answer");
    assert_eq!(answers, [CoreIndex(0), CoreIndex(1), CoreIndex(2)]);
    runtime.shut_down().expect("no panic");
}

#[test]
fn a_core_that_does_not_look_refuses_messages_at_the_bound() {
    let runtime = cores(1, Idle::default());
    let held = Arc::new(AtomicU64::new(0));
    let holding = Arc::clone(&held);
    let busy = runtime.spawn_on(CoreIndex(0), move || async move {
        holding.store(1, Ordering::SeqCst);
        while holding.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
    });
    while held.load(Ordering::SeqCst) < 1 {
        std::thread::yield_now();
    }
    let mut answers = Vec::new();
    let full = loop {
        match runtime.spawn_on(CoreIndex(0), || async {}) {
            Ok(answer) => answers.push(answer),
            Err(error) => break error,
        }
    };
    assert_eq!(full, MeshError::Full(CoreIndex(0)));
    assert!(full.is_backpressure());
    assert_eq!(answers.len(), MESSAGES_MAX);
    held.store(2, Ordering::SeqCst);
    busy.expect("started").wait().expect("ended");
    for answer in answers {
        answer.wait().expect("what was accepted is done");
    }
}

#[test]
fn no_wake_up_from_a_foreign_thread_is_lost() {
    // Each round a thread that is no core wakes a task of a core that is about to sleep.
    const ROUNDS: u64 = 20_000;
    for idle in [Idle::Efficient, Idle::Adaptive(Duration::from_micros(5))] {
        let runtime = cores(1, idle);
        let round = Arc::new(AtomicU64::new(0));
        let waker: Arc<std::sync::Mutex<Option<Waker>>> = Arc::default();
        let (seen, slot) = (Arc::clone(&round), Arc::clone(&waker));
        let task = runtime.spawn_on(CoreIndex(0), move || async move {
            for expected in 1..=ROUNDS {
                poll_fn(|cx| {
                    *slot.lock().expect("not poisoned") = Some(cx.waker().clone());
                    if seen.load(Ordering::SeqCst) >= expected {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                })
                .await;
            }
        });
        for _ in 0..ROUNDS {
            round.fetch_add(1, Ordering::SeqCst);
            loop {
                let taken = waker.lock().expect("not poisoned").take();
                if let Some(waker) = taken {
                    waker.wake();
                    break;
                }
                std::hint::spin_loop();
            }
        }
        // The last rounds may have been seen at once; the task needs no more wake-ups then.
        task.expect("started").wait().expect("every round was seen");
        runtime.shut_down().expect("no panic");
    }
}

#[test]
fn a_panic_ends_its_core_alone_and_is_reported() {
    let runtime = cores(2, Idle::Efficient);
    let lost = runtime.spawn_on(CoreIndex(1), || async {
        assert_eq!(core_count(), 3, "a bug of the test's own making");
    });
    assert_eq!(
        lost.expect("started").wait(),
        Err(MeshError::Poisoned(CoreIndex(1)))
    );
    let alive = runtime.spawn_on(CoreIndex(0), || async { 7 });
    assert_eq!(alive.expect("started").wait(), Ok(7));
    while !matches!(
        runtime.spawn_on(CoreIndex(1), || async {}),
        Err(MeshError::Poisoned(CoreIndex(1)))
    ) {
        std::thread::yield_now();
    }
    let error = runtime.shut_down().expect_err("a core panicked");
    assert_eq!(error.0, CoreIndex(1));
}

#[test]
fn a_core_stops_that_takes_no_more_tasks() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = cores(1, Idle::default());
        let (said, hears) = std::sync::mpsc::channel();
        let filling = runtime.spawn_on(CoreIndex(0), move || async move {
            while can_spawn() {
                drop(spawn_local(pending::<()>()));
            }
            said.send(()).expect("it is heard");
            // It is one of them itself.
            pending::<()>().await;
        });
        drop(filling.expect("a core"));
        hears.recv().expect("it is full");
        drop(runtime);
        done.send(()).expect("it is waited for");
    });
    let ended = ended.recv_timeout(Duration::from_secs(60));
    assert!(ended.is_ok(), "it waits for a core that does not stop");
}

#[test]
fn impossible_placements_are_refused() {
    let start = |placement| Runtime::start(&placement, CoreOptions::default());
    assert!(matches!(
        start(Placement::Anywhere(0)),
        Err(StartError::CoreCount(0))
    ));
    assert!(matches!(
        start(Placement::Anywhere(257)),
        Err(StartError::CoreCount(257))
    ));
    assert!(matches!(
        start(Placement::Pinned(vec![100_000])),
        Err(StartError::Pin(_))
    ));
}

#[test]
fn a_panic_closes_the_connections_of_its_core() {
    use lunette_runtime::net::{TcpListener, TcpStream};
    let runtime = cores(2, Idle::Efficient);
    let (tell, told) = std::sync::mpsc::channel();
    let panicking = runtime.spawn_on(CoreIndex(1), move || async move {
        let address = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpListener::bind(address).expect("a port");
        tell.send(listener.local_addr()).expect("the test waits");
        let stream = listener.accept().await.expect("accepted");
        let (count, _) = stream.recv(vec![0; 1], 0, 1).await;
        assert_eq!(count, Ok(2), "a bug of the test's own making");
    });
    let address = told.recv().expect("bound");
    let seen = runtime.spawn_on(CoreIndex(0), move || async move {
        let stream = TcpStream::connect(address).await.expect("connected");
        stream.send_all(vec![1], 0, 1).await.0.expect("sent");
        stream.recv(vec![0; 1], 0, 1).await.0
    });
    let seen = seen.expect("started").wait().expect("an answer");
    assert!(
        !matches!(seen, Ok(1..)),
        "the connection has ended: {seen:?}"
    );
    assert!(panicking.expect("started").wait().is_err());
}

#[test]
fn what_a_core_that_ends_lets_go_last_still_wakes_the_others() {
    use futures_channel::oneshot;
    use lunette_runtime::arena::{HugePages, SharedMemory};
    use lunette_runtime::net::{TcpListener, TcpStream};
    // A core that sleeps for ever is not waited for.
    let runtime = ManuallyDrop::new(cores(2, Idle::Efficient));
    let (kept, lets_go) = oneshot::channel::<()>();
    let woken = runtime.spawn_on(CoreIndex(0), || lets_go);
    let woken = woken.expect("started");
    let memory = SharedMemory::map(4096, HugePages::Never, &mut Vec::new()).expect("memory");
    let ending = runtime.spawn_on(CoreIndex(1), move || async move {
        let address = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpListener::bind(address).expect("a port");
        let silent = TcpStream::connect(listener.local_addr()).await;
        let silent = silent.expect("connected");
        // The device has it until the core has ended all its tasks.
        let lent = memory.here(Arc::new(kept));
        drop(spawn_local(
            async move { silent.recv(lent, 0, 4096).await.0 },
        ));
        time::sleep(Duration::from_millis(50)).await;
        unreachable!("a bug of the test's own making");
    });
    let ended: Result<(), _> = ending.expect("started").wait();
    assert_eq!(ended, Err(MeshError::Poisoned(CoreIndex(1))));
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(woken.wait()));
    let patience = Duration::from_secs(30);
    let woken = told.recv_timeout(patience).expect("it is woken");
    assert_eq!(woken, Ok(Err(oneshot::Canceled)));
    drop(ManuallyDrop::into_inner(runtime));
}

#[test]
fn a_stall_is_reported_once_with_the_line_that_spawned_it() {
    let runtime = cores(2, Idle::Adaptive(Duration::from_micros(10)));
    let (tell, told) = std::sync::mpsc::channel();
    let limit = Duration::from_millis(100);
    let watch = runtime.watch_stalls(limit, move |stall| {
        tell.send(stall).expect("the test outlives the watch");
    });
    std::thread::sleep(2 * limit);
    assert!(told.try_recv().is_err(), "sleeping is no stall");
    let stalling = runtime.spawn_on(CoreIndex(1), move || async move {
        let line = line!() + 1;
        let stalling = spawn_local(async move { std::thread::sleep(4 * limit) });
        stalling.await.expect("ended");
        line
    });
    let line = stalling.expect("started").wait().expect("ended");
    let stall = told.recv_timeout(Duration::from_secs(5)).expect("a report");
    assert_eq!(stall.core, CoreIndex(1));
    assert!(stall.lasted >= limit);
    let spawned_at = stall.spawned_at.expect("a task");
    assert_eq!((spawned_at.file(), spawned_at.line()), (file!(), line));
    drop(watch);
    assert!(told.try_recv().is_err(), "once");
}
