//! Cores that fail: what was under way there says so, and nothing of it is kept for ever.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use lunette_runtime::arena::{HugePages, SharedMemory};
use lunette_runtime::{CoreOptions, DriverChoice, JoinError, Scope, block_on, can_spawn, time};
use lunette_runtime_core::ids::CoreIndex;
use lunette_transfer::engine::{
    Cause, EngineHandle, HandleError, HandleRequest, PostOptions, RegisterOptions, SegmentId, Way,
};
use lunette_verbs::Context;

use super::{Cores, host, post, private, there_and_back, whole};
use crate::between::{Between, Harm};
use crate::raw::Raw;
use crate::scene::MIB;

/// How long what must end may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes a segment away, which must end.
fn unregister(handle: &EngineHandle, segment: SegmentId) {
    let answer = handle.unregister(segment);
    let (says, said) = mpsc::channel();
    thread::spawn(move || says.send(answer.wait().expect("an answer")));
    assert_eq!(said.recv_timeout(PATIENCE), Ok(true), "it is answered");
}

#[test]
fn the_other_cores_go_on_when_one_fails() {
    let (here, there) = (Cores::start(2), Cores::start(2));
    let (near, far) = (&here.handle, &there.handle);
    let allocated = far.allocate(2 * MIB, RegisterOptions::named("kv"));
    let segment = allocated.wait().expect("memory");
    let peer = near.open(there.addresses.clone()).wait().expect("a peer");
    there_and_back(near, far, &peer, 1).expect("there and back");
    // With the first the address is gone by which the peer is known.
    there.poison(0);
    there_and_back(near, far, &peer, 2).expect("there and back");
    here.poison(1);
    there_and_back(near, far, &peer, 3).expect("there and back");
    let late = near.open(there.addresses.clone()).wait().expect("a peer");
    there_and_back(near, far, &late, 4).expect("there and back");
    assert!(far.unregister(segment).wait().expect("an answer"));
    here.poison(0);
    assert!(matches!(near.notified().wait(), Err(HandleError::Gone)));
    let gone = near.open(there.addresses.clone()).wait();
    assert!(matches!(gone, Err(HandleError::Gone)), "{gone:?}");
}

#[test]
fn what_was_under_way_on_a_core_that_fails_says_so_and_nothing_lands_any_more() {
    let (here, there) = (Cores::start(2), Cores::start(2));
    let (near, far) = (&here.handle, &there.handle);
    let len = 16 * MIB;
    let allocated = far.allocate(len, RegisterOptions::named("kv"));
    allocated.wait().expect("memory");
    let memory = SharedMemory::map(len, HugePages::Never, &mut Vec::new()).expect("memory");
    let local = near.register_shared(memory.clone(), private()).wait();
    let local = local.expect("registered");
    let peer = near.open(there.addresses.clone()).wait().expect("a peer");
    let remote = peer.segment("kv").wait().expect("a segment");
    let read = whole(Way::Read, local, remote);
    let reads = peer.post(vec![read; 20], PostOptions::default());
    here.poison(1);
    match reads.wait() {
        Ok(_) => {}
        Err(HandleError::Ended) => {}
        Err(HandleError::Transfer(error)) => {
            assert!(error.is_retryable(), "{error}");
            let is_lost = |cause| matches!(cause, Cause::Lost);
            assert!(error.failures.iter().all(|failure| is_lost(failure.cause)));
        }
        Err(error) => unreachable!("{error}"),
    }
    let here_now = memory.here(std::sync::Arc::new(()));
    here_now.copy_in(0, &vec![9; len]);
    post(
        &peer,
        HandleRequest {
            len_bytes: 1,
            ..read
        },
    )
    .expect("the other core goes on");
    unregister(near, local);
    let bytes = here_now.slice(1, len - 1).to_vec();
    assert!(bytes.iter().all(|&byte| byte == 9), "nothing landed");
}

#[test]
fn memory_of_a_core_that_fails_is_let_go_whatever_was_under_way() {
    for driver in [DriverChoice::default(), DriverChoice::Epoll] {
        for (way, harm) in [
            (Way::Read, Harm::HoldBackReads),
            (Way::Write, Harm::HoldBackWrites),
        ] {
            let (here, there) = (Cores::start_on(2, driver), host(1, false));
            let (near, far) = (&here.handle, there.handle());
            let len = 8 * MIB;
            let allocated = far.allocate(len, RegisterOptions::named("kv"));
            allocated.wait().expect("memory");
            let local = near.allocate(len, private()).wait().expect("memory");
            // In the middle of a payload nothing comes any more: once on the connection of each core.
            let between = Between::start(there.addresses()[0], harm, 2);
            let peer = near.open(vec![between.address]).wait().expect("a peer");
            let remote = peer.segment("kv").wait().expect("a segment");
            let asked = vec![whole(way, local, remote)];
            let under_way = peer.post(asked, PostOptions::default());
            while between.left() > 0 {
                thread::sleep(Duration::from_millis(1));
            }
            here.poison(1);
            drop(under_way);
            unregister(near, local);
        }
    }
}

#[test]
fn what_a_core_that_fails_has_heard_is_remembered_and_then_forgotten_as_other_things_are() {
    /// Sessions without a connection that are remembered, and some that may still be ending.
    const OTHERS: u64 = 1024 + 64;
    let there = Cores::start(2);
    let (first, second) = (there.addresses[0], there.addresses[1]);
    let delivered = || {
        let taken = there.handle.take_notification().wait();
        taken.expect("an answer").is_some()
    };
    let notify = |address: SocketAddr, number: u64| {
        let notified = block_on(None, CoreOptions::default(), move || async move {
            let connection = Raw::greeting(address, 7, &number.to_le_bytes()).await;
            // The first core's end is known to the second.
            while number > 1 && connection.ports().await[0] > 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(connection.notify(5, b"once").await, None);
        });
        notified.expect("a core");
    };
    notify(first, 0);
    assert!(delivered());
    // The connection lasts as long as its core.
    let (opened, is_open) = mpsc::channel();
    let lasting = thread::spawn(move || {
        let open = block_on(None, CoreOptions::default(), move || async move {
            let connection = Raw::greeting(first, 7, &1_u64.to_le_bytes()).await;
            opened.send(()).expect("it is heard");
            connection.ended().await;
        });
        open.expect("a core");
    });
    is_open.recv().expect("it opens");
    there.poison(0);
    lasting.join().expect("no panic");
    notify(second, 2);
    assert!(!delivered(), "it is remembered");
    let others = block_on(None, CoreOptions::default(), move || async move {
        for session in 0..OTHERS {
            drop(Raw::greeting(second, 100 + session, &[0; 8]).await);
        }
        // All that was before has been taken in.
        Raw::greeting(second, 99, &[0; 8]).await.ports().await;
    });
    others.expect("a core");
    notify(second, 3);
    assert!(delivered(), "it is forgotten");
}

#[test]
fn when_the_core_fails_that_serves_by_adapters_another_one_does() {
    let adapters = || vec![Context::null()];
    let (here, there) = (Cores::with(2, adapters), Cores::with(2, adapters));
    let (near, far) = (&here.handle, &there.handle);
    let allocated = far.allocate(MIB, RegisterOptions::named("kv"));
    let segment = allocated.wait().expect("memory");
    let local = near.allocate(MIB, private()).wait().expect("memory");
    // These adapters move nothing: what counts is that they are asked to.
    let by_adapters = || {
        let statistics = near.statistics().wait().expect("an answer");
        statistics.one_sided_bytes
    };
    let read_by_adapters = || {
        let (before, began) = (by_adapters(), Instant::now());
        while by_adapters() == before {
            assert!(began.elapsed() < PATIENCE, "nothing goes by adapters");
            // With queue pairs of its own.
            let peer = near.open(there.addresses.clone()).wait().expect("a peer");
            let remote = peer.segment("kv").wait().expect("a segment");
            let read = post(&peer, whole(Way::Read, local, remote));
            assert!(read.is_ok(), "{read:?}");
        }
    };
    read_by_adapters();
    there.poison(0);
    read_by_adapters();
    unregister(far, segment);
}

#[test]
fn a_core_that_takes_no_more_tasks_says_so_and_nothing_was_done() {
    let (here, there) = (Cores::start(2), Cores::start(1));
    let (near, far) = (&here.handle, &there.handle);
    let allocated = far.allocate(MIB, RegisterOptions::named("kv"));
    allocated.wait().expect("memory");
    let local = near.allocate(MIB, private()).wait().expect("memory");
    let peer = near.open(there.addresses.clone()).wait().expect("a peer");
    let remote = peer.segment("kv").wait().expect("a segment");
    let read = || post(&peer, whole(Way::Read, local, remote));
    read().expect("done");
    let full = |core| {
        let (said, hears) = mpsc::channel();
        let (release, released) = oneshot::channel::<()>();
        let filling = here.runtime.spawn_on(CoreIndex(core), move || async move {
            let others = Scope::new();
            while can_spawn() {
                others.spawn(pending()).expect("there is room");
            }
            said.send(()).expect("it is heard");
            let _released = released.await;
        });
        drop(filling.expect("a core"));
        hears.recv().expect("it is full");
        release
    };
    let filled = [full(0), full(1)];
    let refused = |error: &HandleError| {
        let is_it = matches!(error, HandleError::Task(JoinError::TooManyTasks));
        is_it && error.is_retryable() && error.is_backpressure()
    };
    for error in [
        read().expect_err("no task"),
        peer.segment("kv").wait().expect_err("no task"),
        near.statistics().wait().expect_err("no task"),
    ] {
        assert!(refused(&error), "{error}");
    }
    drop(filled);
    let began = Instant::now();
    while let Err(error) = read() {
        assert!(refused(&error) && began.elapsed() < PATIENCE, "{error}");
    }
}
