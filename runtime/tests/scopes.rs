//! Tasks that end with their owner, and tasks by urgency.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{
    Class, CoreOptions, JoinError, Scope, TASKS_MAX, arena, block_on, spawn_local, spawn_local_as,
    time,
};

fn run<F: Future + 'static>(scenario: impl FnOnce() -> F) -> F::Output {
    block_on(None, CoreOptions::default(), scenario).expect("a core")
}

#[test]
fn a_scope_waits_for_its_tasks_and_for_those_they_add() {
    run(|| async {
        let scope = Rc::new(Scope::new());
        let done = Rc::new(Cell::new(0));
        for delay_ms in [3, 1, 2] {
            let (inner, done) = (Rc::clone(&scope), Rc::clone(&done));
            let task = async move {
                time::sleep(Duration::from_millis(delay_ms)).await;
                let later = Rc::clone(&done);
                let added = inner.spawn(async move {
                    time::yield_now().await;
                    later.set(later.get() + 10);
                });
                added.expect("room");
                done.set(done.get() + 1);
            };
            scope.spawn(task).expect("room");
        }
        assert_eq!(scope.len(), 3);
        scope.join().await;
        assert_eq!((done.get(), scope.is_empty()), (33, true));
        // A scope without tasks has nothing to wait for.
        scope.join().await;
    });
}

#[test]
fn a_scope_that_is_dropped_takes_its_tasks_and_their_operations_with_it() {
    run(|| async {
        let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address"));
        let listener = listener.expect("a port");
        let client = TcpStream::connect(listener.local_addr()).await;
        let client = client.expect("connected");
        let server = listener.accept().await.expect("accepted");
        let owner = spawn_local(async move {
            let scope = Scope::new();
            for _ in 0..3 {
                let server = server.clone();
                let region = arena().alloc(4096).expect("room");
                let receive = async move { drop(server.recv(region, 0, 4096).await) };
                scope.spawn(receive).expect("room");
            }
            drop(server);
            pending::<()>().await;
        });
        // However late the tasks run: they are aborted in the middle of their receives.
        while arena().used_bytes() < 3 * 4096 {
            time::sleep(Duration::from_millis(1)).await;
        }
        owner.abort();
        // The tasks held the connection; now its peer sees the end.
        let (end, _) = client.recv(vec![0], 0, 1).await;
        assert_eq!(end, Ok(0));
        assert_eq!(arena().used_bytes(), 0);
    });
}

#[test]
fn a_scope_outlived_by_its_core_is_harmless_and_a_full_core_refuses() {
    let kept = Rc::new(RefCell::new(None));
    let keep = Rc::clone(&kept);
    run(|| async move {
        let scope = Scope::new();
        while scope.spawn(pending()).is_ok() {}
        assert!(scope.len() <= TASKS_MAX);
        assert_eq!(scope.spawn(pending()), Err(JoinError::TooManyTasks));
        keep.replace(Some(scope));
    });
    assert!(kept.take().expect("kept").is_empty());
}

/// Keeps the core busy for a while, as a task does that computes.
fn compute(us: u64) {
    let until = time::now() + Duration::from_micros(us);
    while time::now() < until {
        std::hint::spin_loop();
    }
}

/// How often a core is asked anew what a latency task waits for: a core that was held up in the middle of that task has charged
/// its class with the pause, and others rightly come first until they have had their share.
const ATTEMPTS: usize = 20;

#[test]
fn a_latency_task_waits_for_one_other_task_at_most() {
    let waits = std::iter::repeat_with(most_others_before_a_latency_task);
    let waits: Vec<u32> = waits.take(ATTEMPTS).take_while(|&most| most > 1).collect();
    assert!(
        waits.len() < ATTEMPTS,
        "others that ran before it: {waits:?}"
    );
}

/// Twenty tasks always compute, and each seventh time one of them wakes a latency task: how many of them ran, at most, before
/// that did.
fn most_others_before_a_latency_task() -> u32 {
    run(|| async {
        let ran = Rc::new(Cell::new(0_u32));
        // Who waits, and what had run when it was woken.
        let waiting = Rc::new(Cell::new(None::<Waker>));
        let woken_at = Rc::new(Cell::new(None));
        let scope = Scope::new();
        for _ in 0..20 {
            let (ran, waiting, woken_at) = (ran.clone(), waiting.clone(), woken_at.clone());
            let busy = async move {
                loop {
                    compute(50);
                    ran.set(ran.get() + 1);
                    if ran.get().is_multiple_of(7)
                        && let Some(waker) = waiting.take()
                    {
                        woken_at.set(Some(ran.get()));
                        waker.wake();
                    }
                    time::yield_now().await;
                }
            };
            scope.spawn_as(Class::Background, busy).expect("room");
        }
        let urgent = spawn_local_as(Class::Latency, async move {
            let mut most = 0;
            for _ in 0..50 {
                let woken = poll_fn(|cx| {
                    let woken = woken_at.take();
                    woken.map_or_else(
                        || {
                            waiting.set(Some(cx.waker().clone()));
                            Poll::Pending
                        },
                        Poll::Ready,
                    )
                });
                let woken_at = woken.await;
                most = most.max(ran.get() - woken_at);
            }
            most
        });
        let most = urgent.await.expect("ran");
        scope.abort();
        scope.join().await;
        most
    })
}

#[test]
fn a_task_has_the_class_of_the_task_that_spawned_it() {
    run(|| async {
        // Two tasks that compete: one spawned by a background task, one by this one.
        let share = |class| {
            let spent = Rc::new(Cell::new(0_u32));
            let inner = Rc::clone(&spent);
            let parent = spawn_local_as(class, async move {
                let child = spawn_local(async move {
                    loop {
                        compute(20);
                        inner.set(inner.get() + 1);
                        time::yield_now().await;
                    }
                });
                (child,)
            });
            (parent, spent)
        };
        let (background, few) = share(Class::Background);
        let (normal, many) = share(Class::Normal);
        let children = (background.await.expect("ran"), normal.await.expect("ran"));
        // Long enough that it does not matter if the core is held up once.
        let deadline = time::now() + Duration::from_secs(30);
        while many.get() < 5000 && time::now() < deadline {
            time::sleep(Duration::from_millis(5)).await;
        }
        let (few, many) = (few.get(), many.get());
        children.0.0.abort();
        children.1.0.abort();
        assert!(few > 0 && many > few * 4, "{few} and {many}");
    });
}
