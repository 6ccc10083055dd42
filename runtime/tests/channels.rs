//! Typed messages between cores: order, bounds, ends, and wake-ups, whether the cores spin or sleep.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use lunette_runtime::{
    CoreOptions, Idle, Placement, Runtime, SendError, block_on, channel, spawn_local, time,
};
use lunette_runtime_core::ids::CoreIndex;

const IDLES: [Idle; 3] = [
    Idle::Efficient,
    Idle::Adaptive(Duration::from_micros(20)),
    Idle::Latency,
];

fn options(idle: Idle) -> CoreOptions {
    CoreOptions {
        idle,
        ..CoreOptions::default()
    }
}

#[test]
fn questions_and_answers_go_between_cores_however_they_idle() {
    const ROUNDS: u64 = 3000;
    for idle in IDLES {
        let runtime = Runtime::start(&Placement::Anywhere(2), options(idle)).expect("two cores");
        let (questions, asked) = channel::<u64>(4);
        let (answers, answered) = channel::<u64>(4);
        let answering = runtime
            .spawn_on(CoreIndex(1), move || async move {
                let mut asked = asked.open().expect("room for a source");
                while let Some(question) = asked.recv().await {
                    answers.send(question + 1).await.expect("somebody waits");
                }
            })
            .expect("the core runs");
        let asking = runtime
            .spawn_on(CoreIndex(0), move || async move {
                let mut answered = answered.open().expect("room for a source");
                for round in 0..ROUNDS {
                    questions.send(round).await.expect("somebody answers");
                    assert_eq!(answered.recv().await, Some(round + 1));
                }
                drop(questions);
                assert_eq!(answered.recv().await, None);
            })
            .expect("the core runs");
        asking.wait().expect("asked");
        answering.wait().expect("answered");
        runtime.shut_down().expect("no panic");
    }
}

#[test]
fn messages_of_each_sender_arrive_in_order_through_a_channel_that_is_too_small() {
    const SENDERS: usize = 3;
    const MESSAGES: u64 = 2000;
    for idle in IDLES {
        let runtime = Runtime::start(&Placement::Anywhere(2), options(idle)).expect("two cores");
        let (sender, port) = channel::<(usize, u64)>(2);
        for number in 0..SENDERS {
            let sender = sender.clone();
            let core = CoreIndex(u16::from(number % 2 == 1));
            let sending = runtime.spawn_on(core, move || async move {
                for message in 0..MESSAGES {
                    sender.send((number, message)).await.expect("received");
                }
            });
            drop(sending.expect("the core runs"));
        }
        drop(sender);
        let receiving = runtime.spawn_on(CoreIndex(0), move || async move {
            let mut receiver = port.open().expect("room for a source");
            let mut next = [0; SENDERS];
            while let Some((sender, message)) = receiver.recv().await {
                let expected = &mut next[sender];
                assert_eq!(message, *expected);
                *expected += 1;
            }
            next
        });
        let next = receiving.expect("the core runs").wait().expect("received");
        assert_eq!(next, [MESSAGES; SENDERS]);
        runtime.shut_down().expect("no panic");
    }
}

#[test]
fn a_full_channel_gives_the_message_back_and_a_closed_one_too() {
    block_on(None, CoreOptions::default(), || async {
        let (sender, port) = channel(2);
        // What is sent before anybody listens is kept.
        sender.try_send("a").expect("room");
        sender.try_send("b").expect("room");
        let full = sender.try_send("c").expect_err("full");
        assert!(full.is_backpressure());
        assert_eq!(full.into_message(), "c");
        let mut receiver = port.open().expect("room for a source");
        let waiting = {
            let sender = sender.clone();
            spawn_local(async move { sender.send("c").await })
        };
        time::yield_now().await;
        assert!(!waiting.is_finished());
        assert_eq!(receiver.recv().await, Some("a"));
        assert_eq!(waiting.await.expect("ran"), Ok(()));
        assert_eq!(receiver.try_recv(), Some("b"));
        assert_eq!(receiver.recv().await, Some("c"));
        assert_eq!(receiver.try_recv(), None);
        // Somebody who waits for room learns of the end.
        sender.try_send("d").expect("room");
        sender.try_send("e").expect("room");
        let waiting = {
            let sender = sender.clone();
            spawn_local(async move { sender.send("f").await })
        };
        time::yield_now().await;
        drop(receiver);
        assert!(sender.is_closed());
        assert_eq!(waiting.await.expect("ran"), Err(SendError::Closed("f")));
        assert_eq!(sender.try_send("g"), Err(SendError::Closed("g")));
        let (sender, port) = channel(1);
        drop(port);
        assert_eq!(sender.try_send("h"), Err(SendError::Closed("h")));
    })
    .expect("a core");
}

#[test]
fn what_nobody_receives_is_dropped_when_that_is_sure() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let (sender, port) = channel(8);
    for _ in 0..5 {
        let sent = sender.try_send(Counted(Arc::clone(&dropped)));
        assert!(sent.is_ok());
    }
    drop(port);
    assert_eq!(
        dropped.load(Ordering::Relaxed),
        5,
        "the sender is still there"
    );
    drop(sender);
    // Also what is sent while the receiver ends: whoever waits for an answer sees that none comes.
    for _ in 0..50 {
        dropped.store(0, Ordering::Relaxed);
        let (sender, port) = channel(64);
        let count = Arc::clone(&dropped);
        let sending = thread::spawn(move || {
            let counted = || Counted(Arc::clone(&count));
            let sent = (0..2000).filter(|_| sender.try_send(counted()).is_ok());
            (sent.count(), sender)
        });
        let received = block_on(None, CoreOptions::default(), || async move {
            let mut receiver = port.open().expect("room for a source");
            let mut received = 0;
            while received < 5 {
                drop(receiver.recv().await);
                received += 1;
            }
            drop(receiver);
            received
        });
        let (sent, sender) = sending.join().expect("no panic");
        assert!(sent >= received.expect("a core"));
        // What was refused came back, and was dropped too.
        assert_eq!(dropped.load(Ordering::Relaxed), 2000);
        drop(sender);
    }
}

#[test]
fn a_sleeping_core_is_woken_by_a_plain_thread_and_by_the_end_of_its_senders() {
    block_on(None, options(Idle::Efficient), || async {
        let (sender, port) = channel(8);
        let thread = thread::spawn(move || {
            for number in 0..20_u32 {
                thread::sleep(Duration::from_millis(1));
                // Of a machine that is busy the core may get nothing for longer than there is room.
                while sender.try_send(number) == Err(SendError::Full(number)) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            thread::sleep(Duration::from_millis(5));
        });
        let mut receiver = port.open().expect("room for a source");
        for number in 0..20 {
            assert_eq!(receiver.recv().await, Some(number));
        }
        assert_eq!(receiver.recv().await, None);
        thread.join().expect("no panic");
    })
    .expect("a core");
}
