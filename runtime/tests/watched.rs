//! Descriptors that somebody else reads, on each driver.
#![forbid(unsafe_code)]

mod on_each_driver;

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use lunette_runtime::{Watched, spawn_local, time};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use on_each_driver::run;

fn counter() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

fn ring(counter: impl AsFd) {
    rustix::io::write(counter, &1_u64.to_ne_bytes()).expect("room in the counter");
}

fn drain(counter: impl AsFd) -> Result<u64, Errno> {
    let mut word = [0; 8];
    rustix::io::read(counter, &mut word)?;
    Ok(u64::from_ne_bytes(word))
}

#[test]
fn what_is_readable_already_does_not_wait() {
    run(0, || async {
        let counter = counter();
        ring(&counter);
        let watched = Watched::new(counter);
        for _ in 0..3 {
            watched.readable().await.expect("until it has been read");
        }
        assert_eq!(drain(&watched), Ok(1));
        let waits = time::timeout(Duration::from_millis(20), watched.readable());
        assert!(waits.await.is_err(), "nothing is there any more");
    });
}

#[test]
fn a_core_that_sleeps_is_woken_by_each_event_of_another_thread() {
    const EVENTS: u64 = 1000;
    run(0, || async {
        let counter = counter();
        let watched = Watched::new(counter.try_clone().expect("a duplicate"));
        let acknowledge = self::counter();
        let heard = acknowledge.try_clone().expect("a duplicate");
        let rings = thread::spawn(move || {
            for _ in 0..EVENTS {
                ring(&counter);
                // One at a time: the core goes to sleep between two of them.
                while drain(&heard) == Err(Errno::AGAIN) {
                    thread::yield_now();
                }
            }
        });
        let mut events = 0;
        while events < EVENTS {
            watched.readable().await.expect("readable");
            events += drain(&watched).expect("it was readable");
            ring(&acknowledge);
        }
        assert_eq!(events, EVENTS);
        rings.join().expect("it rang");
    });
}

#[test]
fn the_other_sides_end_is_something_to_read() {
    run(0, || async {
        let (reads, writes) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("a pipe");
        let watched = Watched::new(reads);
        let closes = spawn_local(async move {
            time::sleep(Duration::from_millis(10)).await;
            drop(writes);
        });
        watched.readable().await.expect("the end");
        assert_eq!(rustix::io::read(&watched, &mut [0; 8]), Ok(0));
        closes.await.expect("closed");
    });
}

#[test]
fn a_wait_that_is_dropped_leaves_the_others() {
    run(0, || async {
        let watched = Rc::new(Watched::new(counter()));
        let waits = || {
            let watched = Rc::clone(&watched);
            spawn_local(async move { watched.readable().await })
        };
        let (first, second) = (waits(), waits());
        let dropped = time::timeout(Duration::from_millis(10), watched.readable());
        assert!(dropped.await.is_err());
        ring(&*watched);
        assert_eq!(first.await.expect("a task"), Ok(()));
        assert_eq!(second.await.expect("a task"), Ok(()));
    });
}

#[test]
fn a_plain_file_can_always_be_read() {
    run(0, || async {
        let file = std::fs::File::open("Cargo.toml").expect("this package's");
        let watched = Watched::new(file.into());
        assert_eq!(watched.readable().await, Ok(()));
    });
}

#[test]
fn the_descriptor_is_closed_when_nothing_waits_for_it_any_more() {
    run(0, || async {
        let (reads, writes) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("a pipe");
        let watched = Watched::new(reads);
        let clone = watched.clone();
        drop(watched);
        let abandoned = time::timeout(Duration::from_millis(5), clone.readable()).await;
        assert!(abandoned.is_err());
        drop(clone);
        // The cancelled wait keeps it until its completion has come.
        let closed = async {
            while rustix::io::write(&writes, b"x") != Err(Errno::PIPE) {
                time::sleep(Duration::from_millis(1)).await;
            }
        };
        let closed = time::timeout(Duration::from_secs(10), closed).await;
        assert!(closed.is_ok(), "somebody keeps the descriptor open");
    });
}
