//! Tasks without a driver: these run under Miri as well.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

use lunette_runtime_core::ids::CoreIndex;
use lunette_runtime_core::random::SplitMix64;

use super::super::classes::Class;
use super::scheduler::DRAWN_AMONG_MAX;
use super::*;
use crate::mesh::Inbox;

/// A scheduler that is the calling thread's as long as this lives.
struct Bench {
    _current: Current,
    home: Rc<Scheduler>,
}

impl Bench {
    fn new() -> Self {
        let inbox = Arc::new(Inbox::new(CoreIndex(0)).expect("an eventfd"));
        let home = Rc::new(Scheduler::new(inbox));
        // SAFETY: the scheduler is in a counted box, which drops after the guard.
        let current = unsafe { home.enter() };
        Self {
            _current: current,
            home,
        }
    }

    #[track_caller]
    fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        self.home
            .spawn(Some(Class::Normal), Location::caller(), future)
    }

    /// Runs what is ready until nothing is.
    fn run(&self) {
        loop {
            self.home.take_woken();
            self.home.begin_turn();
            let Some((task, _)) = self.home.next() else {
                return;
            };
            task.run(&self.home);
            while let Some((task, _)) = self.home.next() {
                task.run(&self.home);
            }
        }
    }

    fn shut_down(&self) {
        self.home.inbox_for_tests().close();
        self.home.shut_down();
    }
}

fn output<T>(handle: JoinHandle<T>) -> Poll<Result<T, JoinError>> {
    pin!(handle).poll(&mut Context::from_waker(Waker::noop()))
}

/// A future that hands its waker out and is ready when told; counts its drops by `alive`.
fn patient(
    wakers: &Rc<RefCell<Vec<Waker>>>,
    ready: &Rc<Cell<bool>>,
    alive: &Rc<()>,
) -> impl Future<Output = Rc<()>> + use<> {
    let (wakers, ready, alive) = (Rc::clone(wakers), Rc::clone(ready), Rc::clone(alive));
    poll_fn(move |cx| {
        if ready.get() {
            return Poll::Ready(Rc::clone(&alive));
        }
        wakers.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    })
}

#[test]
fn an_output_reaches_its_handle_and_is_dropped_once() {
    let bench = Bench::new();
    let alive = Rc::new(());
    let inner = Rc::clone(&alive);
    let handle = bench.spawn(async move { inner });
    assert!(!handle.is_finished());
    bench.run();
    assert!(handle.is_finished());
    assert!(matches!(output(handle), Poll::Ready(Ok(_))));
    assert_eq!(Rc::strong_count(&alive), 1);
    // Nobody waits: the output is dropped when the task ends, or with the handle.
    for before in [true, false] {
        let inner = Rc::clone(&alive);
        let handle = bench.spawn(async move { inner });
        if before {
            drop(handle);
            bench.run();
        } else {
            bench.run();
            drop(handle);
        }
        assert_eq!(Rc::strong_count(&alive), 1);
    }
}

#[test]
fn a_task_runs_again_when_it_is_woken_and_once_for_many_wake_ups() {
    let bench = Bench::new();
    let (wakers, ready, alive) = (Rc::default(), Rc::default(), Rc::new(()));
    let handle = bench.spawn(patient(&wakers, &ready, &alive));
    bench.run();
    assert_eq!(wakers.borrow().len(), 1);
    let waker = wakers.borrow_mut().pop().expect("polled once");
    for _ in 0..5 {
        waker.wake_by_ref();
    }
    bench.run();
    assert_eq!(wakers.borrow().len(), 1, "one poll");
    assert!(waker.will_wake(&wakers.borrow()[0]));
    ready.set(true);
    waker.wake();
    bench.run();
    assert!(matches!(output(handle), Poll::Ready(Ok(_))));
    // Wakers of a task that is gone do nothing, and may be cloned.
    for waker in wakers.take() {
        let copy = waker.clone();
        waker.wake();
        copy.wake_by_ref();
    }
    bench.run();
    assert_eq!(Rc::strong_count(&alive), 1);
}

#[test]
fn a_handle_wakes_who_waits_for_it() {
    let bench = Bench::new();
    let (wakers, ready, alive) = (Rc::default(), Rc::default(), Rc::new(()));
    let inner = bench.spawn(patient(&wakers, &ready, &alive));
    let outer = bench.spawn(async move { inner.await.map(drop) });
    bench.run();
    assert!(!outer.is_finished());
    ready.set(true);
    for waker in wakers.take() {
        waker.wake();
    }
    bench.run();
    assert_eq!(output(outer), Poll::Ready(Ok(Ok(()))));
}

#[test]
fn an_aborted_task_is_dropped_at_its_next_turn_also_by_itself() {
    let bench = Bench::new();
    let (wakers, ready, alive) = (Rc::default(), Rc::default(), Rc::new(()));
    let handle = bench.spawn(patient(&wakers, &ready, &alive));
    bench.run();
    handle.abort();
    assert_eq!(Rc::strong_count(&alive), 2);
    bench.run();
    assert_eq!(Rc::strong_count(&alive), 1);
    // A task that holds its own handle.
    let own: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
    let (inner, seen) = (Rc::clone(&own), Rc::clone(&alive));
    let handle = bench.spawn(async move {
        let _seen = seen;
        inner.take().expect("put there").abort();
        std::future::pending::<()>().await;
    });
    own.replace(Some(handle));
    bench.run();
    assert_eq!(Rc::strong_count(&alive), 1);
}

#[test]
fn a_panic_ends_its_task_and_drops_what_it_held() {
    let bench = Bench::new();
    let alive = Rc::new(());
    let inner = Rc::clone(&alive);
    let handle = bench.spawn(async move {
        let _held = inner;
        panic!("on purpose");
    });
    assert!(catch_unwind(AssertUnwindSafe(|| bench.run())).is_err());
    assert_eq!(Rc::strong_count(&alive), 1);
    let gone: Poll<Result<(), JoinError>> = output(handle);
    assert_eq!(gone, Poll::Ready(Err(JoinError::Cancelled)));
    bench.run();
}

#[test]
fn shutting_down_drops_every_future_whatever_its_state() {
    let bench = Bench::new();
    let (wakers, ready, alive) = (Rc::default(), Rc::default(), Rc::new(()));
    let waiting = bench.spawn(patient(&wakers, &ready, &alive));
    bench.run();
    let queued = bench.spawn(patient(&wakers, &ready, &alive));
    let detached = bench.spawn(patient(&wakers, &ready, &alive));
    drop(detached);
    bench.shut_down();
    assert_eq!(Rc::strong_count(&alive), 1);
    for handle in [waiting, queued] {
        assert!(matches!(
            output(handle),
            Poll::Ready(Err(JoinError::Cancelled))
        ));
    }
    assert!(matches!(
        output(bench.spawn(async {})),
        Poll::Ready(Err(JoinError::TooManyTasks))
    ));
    // From here and from elsewhere, wakers of the dead are harmless.
    let waker = wakers.borrow_mut().pop().expect("polled once");
    let elsewhere = waker.clone();
    drop(bench);
    waker.wake();
    thread::spawn(move || elsewhere.wake())
        .join()
        .expect("no panic");
}

#[test]
fn a_task_that_holds_its_own_handle_is_dropped_once() {
    let alive = Rc::new(());
    for by_shut_down in [true, false] {
        let bench = Bench::new();
        let own: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
        let (slot, seen) = (Rc::clone(&own), Rc::clone(&alive));
        let handle = bench.spawn(async move {
            let _held = (slot.take(), seen);
            if by_shut_down {
                std::future::pending::<()>().await;
            }
        });
        own.replace(Some(handle));
        bench.run();
        bench.shut_down();
        assert_eq!(Rc::strong_count(&alive), 1);
    }
}

#[test]
fn an_output_that_holds_the_handle_of_another_task_drops_both() {
    let bench = Bench::new();
    let alive = Rc::new(());
    let seen = Rc::clone(&alive);
    let first = bench.spawn(async move { seen });
    bench.run();
    let second = bench.spawn(async move { (first,) });
    bench.run();
    drop(second);
    assert_eq!(Rc::strong_count(&alive), 1);
}

#[test]
fn references_cross_threads_in_both_directions() {
    let bench = Bench::new();
    let (wakers, ready, alive) = (Rc::default(), Rc::new(Cell::new(false)), Rc::new(()));
    for last_goes_elsewhere in [true, false] {
        ready.set(false);
        let handle = bench.spawn(patient(&wakers, &ready, &alive));
        bench.run();
        let waker = wakers.borrow_mut().pop().expect("polled once");
        // Made here, dropped there; made there, dropped here.
        let given = waker.clone();
        let made = thread::spawn(move || given.clone())
            .join()
            .expect("no panic");
        ready.set(true);
        let woken = made.clone();
        thread::spawn(move || woken.wake())
            .join()
            .expect("no panic");
        bench.run();
        assert!(handle.is_finished());
        drop(handle);
        drop(waker);
        if last_goes_elsewhere {
            thread::spawn(move || drop(made)).join().expect("no panic");
        } else {
            drop(made);
        }
        assert_eq!(Rc::strong_count(&alive), 1);
    }
}

#[test]
fn a_waker_that_was_made_elsewhere_keeps_the_memory_of_its_task() {
    let bench = Bench::new();
    let (wakers, ready, alive) = (Rc::default(), Rc::new(Cell::new(false)), Rc::new(()));
    drop(bench.spawn(patient(&wakers, &ready, &alive)));
    bench.run();
    let here = wakers.borrow_mut().pop().expect("polled once");
    let made = thread::scope(|scope| scope.spawn(|| here.clone()).join()).expect("no panic");
    ready.set(true);
    here.wake();
    bench.run();
    // The task has ended, and only the waker from afar is left. The next task of its kind is not it.
    ready.set(false);
    let next = bench.spawn(patient(&wakers, &ready, &alive));
    bench.run();
    assert_eq!(wakers.borrow().len(), 1);
    made.wake();
    bench.run();
    assert_eq!(wakers.borrow().len(), 1, "nobody has woken it");
    drop(next);
    bench.shut_down();
}

/// What one thread does with the wakers that it is given, by chance.
fn fiddle(mut wakers: Vec<Waker>, seed: u64, steps: usize) -> Vec<Waker> {
    let mut random = SplitMix64::new(seed);
    for _ in 0..steps {
        if wakers.is_empty() {
            break;
        }
        let count = u32::try_from(wakers.len()).expect("few");
        let which = random.below(count) as usize;
        match random.below(4) {
            0 => wakers.push(wakers[which].clone()),
            1 => wakers[which].wake_by_ref(),
            2 => wakers.swap_remove(which).wake(),
            _ => drop(wakers.swap_remove(which)),
        }
    }
    wakers
}

#[test]
fn wakers_on_many_threads_free_each_task_once_whenever_it_ends() {
    let (rounds, threads, steps) = if cfg!(miri) { (4, 2, 12) } else { (200, 3, 60) };
    for round in 0..rounds {
        let bench = Bench::new();
        let (wakers, ready, alive) = (Rc::default(), Rc::default(), Rc::new(()));
        let mut handles: Vec<_> = (0..4)
            .map(|_| bench.spawn(patient(&wakers, &ready, &alive)))
            .collect();
        bench.run();
        let running: Vec<_> = (0..threads)
            .map(|thread_index| {
                let wakers = wakers.borrow().clone();
                let seed = round * 100 + thread_index;
                thread::spawn(move || fiddle(wakers, seed, steps))
            })
            .collect();
        // Meanwhile the tasks run, one is aborted, one loses its handle, all end.
        bench.run();
        handles.pop().expect("four").abort();
        drop(handles.pop());
        ready.set(true);
        let own = fiddle(wakers.take(), round, steps);
        own.iter().for_each(Waker::wake_by_ref);
        bench.run();
        let left: Vec<_> = running
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"))
            .collect();
        if round % 2 == 0 {
            bench.run();
            handles.clear();
        }
        bench.shut_down();
        handles.clear();
        assert_eq!(Rc::strong_count(&alive), 1, "round {round}");
        drop((left, own));
    }
}

#[test]
fn a_world_may_draw_any_task_as_the_next_and_leaves_the_others_in_line() {
    let seeds = if cfg!(miri) { 5 } else { 200 };
    for seed in 0..seeds {
        let bench = Bench::new();
        let mut random = SplitMix64::new(seed);
        let order = Rc::new(RefCell::new(Vec::new()));
        let mut model = Vec::new();
        let mut expected = Vec::new();
        let mut number = 0;
        for _ in 0..random.below(30) {
            if random.below(3) > 0 {
                let (order, own) = (Rc::clone(&order), number);
                drop(bench.spawn(async move { order.borrow_mut().push(own) }));
                model.push(number);
                number += 1;
                continue;
            }
            bench.home.begin_turn();
            let mut at = 0;
            bench.home.draw_next(|ready| {
                assert_eq!(ready, model.len());
                at = random.below(u32::try_from(ready).expect("few")) as usize;
                at
            });
            if let Some((task, _)) = bench.home.next() {
                task.run(&bench.home);
                expected.push(model.remove(at));
            }
        }
        bench.run();
        expected.append(&mut model);
        assert_eq!(*order.borrow(), expected, "seed {seed}");
    }
}

#[test]
fn a_draw_sees_a_bounded_part_of_a_crowd() {
    let bench = Bench::new();
    let last = Rc::new(Cell::new(0));
    for number in 0..2 * DRAWN_AMONG_MAX {
        let last = Rc::clone(&last);
        drop(bench.spawn(async move { last.set(number) }));
    }
    bench.home.begin_turn();
    bench.home.draw_next(|ready| {
        assert_eq!(ready, DRAWN_AMONG_MAX);
        ready - 1
    });
    let (task, _) = bench.home.next().expect("many are ready");
    task.run(&bench.home);
    assert_eq!(last.get(), DRAWN_AMONG_MAX - 1);
    bench.run();
}
