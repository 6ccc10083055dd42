//! The control thread, which there is one of in a process: so all of it is one test.
#![forbid(unsafe_code)]

use std::sync::mpsc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use lunette_runtime::{CONTROL_CALLS_MAX, ControlError, ControlHere, control};

const SOON: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(20);

fn done_by() -> ThreadId {
    pollster::block_on(control(|| thread::current().id())).expect("it is done")
}

/// Who does what another thread asks for, while this one serves.
fn done_while_served(here: &mut ControlHere) -> ThreadId {
    let asking = thread::spawn(done_by);
    let begun = Instant::now();
    while !asking.is_finished() {
        assert!(begun.elapsed() < PATIENCE, "it is not done");
        here.serve_for(SOON);
    }
    asking.join().expect("answered")
}

#[test]
fn a_thread_that_waits_does_what_blocks_and_leaves_it_to_another_again() {
    let me = thread::current().id();
    let first = done_by();
    assert_ne!(first, me, "it has a thread of its own");
    assert_eq!(done_by(), first);

    let mut here = ControlHere::take().expect("there is one");
    assert_eq!(done_while_served(&mut here), me);
    let begun = Instant::now();
    here.serve_for(Duration::from_millis(20));
    assert!(begun.elapsed() >= Duration::from_millis(20));

    // What waits is done by who comes next, in its order; beyond the bound nothing waits.
    let (tell, told) = mpsc::channel();
    let waiting: Vec<_> = (0..CONTROL_CALLS_MAX)
        .map(|n| {
            let tell = tell.clone();
            control(move || tell.send((n, thread::current().id())).expect("heard"))
        })
        .collect();
    let full = pollster::block_on(control(|| ()));
    assert_eq!(full, Err(ControlError::Full));
    drop(here);
    for (n, waiting) in waiting.into_iter().enumerate() {
        pollster::block_on(waiting).expect("it is done");
        let (done, by) = told.recv().expect("told");
        assert_eq!(done, n);
        assert_ne!(by, me);
    }
    assert_ne!(done_by(), me);

    // Of two that take it, the second has it; the first may go on, and do nothing.
    let mut here = ControlHere::take().expect("there is one");
    let taking = thread::spawn(|| {
        let mut there = ControlHere::take().expect("there is one");
        let by = done_while_served(&mut there);
        (by, thread::current().id())
    });
    let begun = Instant::now();
    while !taking.is_finished() {
        assert!(begun.elapsed() < PATIENCE, "it is not taken");
        here.serve_for(SOON);
    }
    let (by, other) = taking.join().expect("it took it");
    assert_eq!(by, other);
    drop(here);
    assert_ne!(done_by(), me);
}
