//! Engines of several cores: one to their peers, whatever core is reached, and also when one fails (`failing`); files and
//! namespaces, which each core opens (`opening`).

mod failing;
mod opening;

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lunette_runtime::{CoreOptions, DriverChoice, Placement, Runtime, block_on, time};
use lunette_runtime_core::ids::CoreIndex;
use lunette_transfer::engine::{
    Access, Cause, Done, Engine, EngineHandle, EngineHost, EngineOptions, FileSegment,
    FileSegmentOptions, HandleError, HandleRequest, PeerHandle, PostOptions, RegisterOptions,
    RegisterRefusal, RemoteSegment, Rights, SegmentId, StartError, Way,
};
use lunette_transfer_proto::engine::siblings::Greeting;
use lunette_verbs::Context;

use crate::raw::Raw;
use crate::scene::{MIB, memory, options, pattern};

fn host(cores: usize, same_host: bool) -> EngineHost {
    let options = EngineOptions {
        same_host,
        ..options()
    };
    let placement = Placement::Anywhere(cores);
    EngineHost::start(&placement, CoreOptions::default(), &options).expect("an engine")
}

fn private() -> RegisterOptions {
    RegisterOptions {
        name: None,
        access: Access::Read,
        ..RegisterOptions::named("")
    }
}

/// What is asked of a peer whose segment and ours are of the same length.
fn whole(way: Way, local: SegmentId, remote: RemoteSegment) -> HandleRequest {
    HandleRequest {
        way,
        local,
        local_offset_bytes: 0,
        len_bytes: remote.len_bytes(),
        remote,
        remote_offset_bytes: 0,
    }
}

fn post(peer: &PeerHandle, request: HandleRequest) -> Result<Done, HandleError> {
    peer.post(vec![request], PostOptions::default()).wait()
}

/// Fills a segment and writes it to the peer's, which is as long, with a notification; reads it back over
/// something else.
fn there_and_back(
    near: &EngineHandle,
    far: &EngineHandle,
    peer: &PeerHandle,
    seed: u8,
) -> Result<(), HandleError> {
    let remote = peer.segment("kv").wait()?;
    let len = usize::try_from(remote.len_bytes()).expect("memory");
    let local = near.allocate(len, private()).wait()?;
    near.fill(local, 0, pattern(len, seed)).wait()?;
    let options = PostOptions {
        notification: Some(vec![seed]),
        ..PostOptions::default()
    };
    let write = whole(Way::Write, local, remote);
    let done = peer.post(vec![write], options).wait()?;
    assert_eq!(done.len_bytes, len as u64);
    assert_eq!(far.notified().wait()?.bytes, [seed]);
    near.fill(local, 0, vec![0; len]).wait()?;
    post(peer, whole(Way::Read, local, remote))?;
    let bytes = near.bytes(local, 0, len as u64).wait()?;
    assert!(bytes == pattern(len, seed), "{seed}");
    assert!(near.unregister(local).wait()?);
    Ok(())
}

#[test]
fn engines_of_any_number_of_cores_are_one_to_each_other() {
    for (ours, theirs, same_host) in [
        (1, 2, false),
        (2, 1, false),
        (2, 2, false),
        (3, 2, false),
        (2, 2, true),
    ] {
        let (here, there) = (host(ours, same_host), host(theirs, same_host));
        let (near, far) = (here.handle(), there.handle());
        let segment = far.allocate(3 * MIB, RegisterOptions::named("kv"));
        let segment = segment.wait().expect("memory");
        let peer = near.open(there.addresses().to_vec()).wait();
        let peer = peer.expect("a peer");
        there_and_back(&near, &far, &peer, 3).expect("there and back");
        assert_eq!(far.take_notification().wait().expect("an answer"), None);
        let statistics = near.statistics().wait().expect("an answer");
        let moved = 3 * MIB as u64;
        let asked = (statistics.read_bytes, statistics.written_bytes);
        assert_eq!(asked, (moved, moved), "{ours} and {theirs} cores");
        assert_eq!(statistics.same_host_bytes > 0, same_host);
        assert!(far.unregister(segment).wait().expect("an answer"));
        assert!(!far.unregister(segment).wait().expect("an answer"), "once");
        assert!(peer.segment("kv").wait().is_err(), "at no core");
        let again = far.allocate(MIB, RegisterOptions::named("kv")).wait();
        assert_ne!(again.expect("the name is free"), segment);
        there_and_back(&near, &far, &peer, 5).expect("there and back");
    }
}

/// The cores of an engine, each with its own handle to it.
struct Cores {
    runtime: Runtime,
    handle: EngineHandle,
    addresses: Vec<SocketAddr>,
}

impl Cores {
    fn start(count: usize) -> Self {
        Self::start_on(count, DriverChoice::default())
    }

    fn start_on(count: usize, driver: DriverChoice) -> Self {
        Self::over(count, driver, Vec::new)
    }

    /// With adapters at each core.
    fn with(count: usize, adapters: fn() -> Vec<Context>) -> Self {
        Self::over(count, DriverChoice::default(), adapters)
    }

    fn over(count: usize, driver: DriverChoice, adapters: fn() -> Vec<Context>) -> Self {
        let core = CoreOptions {
            driver,
            ..CoreOptions::default()
        };
        let runtime = Runtime::start(&Placement::Anywhere(count), core);
        let runtime = runtime.expect("cores");
        let options = EngineOptions {
            same_host: false,
            ..options()
        };
        let (handle, siblings) = Engine::siblings(&options, count).expect("a port each");
        let mut addresses = Vec::new();
        for (core, sibling) in (0..).map(CoreIndex).zip(siblings) {
            let (said, hears) = std::sync::mpsc::channel();
            let start = move || async move {
                let engine = sibling.start_with(adapters()).expect("an engine");
                said.send(engine.addresses()[0]).expect("it is heard");
                std::future::pending::<()>().await;
            };
            drop(runtime.spawn_on(core, start).expect("a core"));
            addresses.push(hears.recv().expect("it starts"));
        }
        Self {
            runtime,
            handle,
            addresses,
        }
    }

    /// Has a core fail.
    fn poison(&self, core: u16) {
        let failing = self.runtime.spawn_on(CoreIndex(core), || async {
            unreachable!("a core fails on purpose");
        });
        let failed: Result<(), _> = failing.expect("a core").wait();
        assert!(failed.is_err());
    }
}

#[test]
fn each_core_serves_those_who_are_at_home_there() {
    let there = Cores::start(2);
    let far = &there.handle;
    let allocated = far.allocate(2 * MIB, RegisterOptions::named("kv"));
    allocated.wait().expect("memory");
    // By whichever core a peer is opened, it is both cores that serve.
    for address in &there.addresses {
        let here = host(2, false);
        let near = here.handle();
        let peer = near.open(vec![*address]).wait().expect("a peer");
        there_and_back(&near, far, &peer, 7).expect("there and back");
    }
    let stays_at_home = |epoch| {
        let options = EngineOptions {
            epoch: Some(epoch),
            same_host: false,
            ..EngineOptions::default()
        };
        let placement = Placement::Anywhere(1);
        let here = EngineHost::start(&placement, CoreOptions::default(), &options);
        let here = here.expect("an engine");
        let near = here.handle();
        let peer = near.open(there.addresses[..1].to_vec()).wait();
        let peer = peer.expect("a peer");
        let remote = peer.segment("kv").wait().expect("a segment");
        let late = PostOptions {
            timeout: Duration::ZERO,
            ..PostOptions::default()
        };
        let local = near.allocate(2 * MIB, private()).wait().expect("memory");
        let read = whole(Way::Read, local, remote);
        let error = peer.post(vec![read], late).wait().expect_err("late");
        let HandleError::Transfer(error) = error else {
            unreachable!("{error}");
        };
        error.paths[0]
    };
    assert_eq!(stays_at_home(0), there.addresses[0]);
    assert_eq!(stays_at_home(1), there.addresses[1]);
}

#[test]
fn capabilities_hold_at_every_core_and_are_revoked_at_all_at_once() {
    let (here, there) = (host(2, false), host(2, false));
    let (near, far) = (here.handle(), there.handle());
    let by_capability = RegisterOptions {
        by_capability: true,
        ..private()
    };
    let len = 4 * MIB;
    let segment = far.allocate(len, by_capability).wait().expect("memory");
    let peer = near.open(there.addresses().to_vec()).wait();
    let peer = peer.expect("a peer");
    let token = far.grant(segment, here.epoch(), Rights::READ, 0..len as u64);
    let token = token.wait().expect("granted");
    let remote = peer.redeem(token).wait().expect("redeemed");
    let local = near.allocate(len, private()).wait().expect("memory");
    let read = whole(Way::Read, local, remote);
    // In parts: over both cores of either side.
    post(&peer, read).expect("read");
    assert!(far.revoke(segment).wait().expect("an answer"));
    let Err(HandleError::Transfer(error)) = post(&peer, read) else {
        unreachable!("it is revoked");
    };
    assert_eq!(error.failures.len(), 1, "one request, in two parts");
    let short = HandleRequest {
        len_bytes: 1,
        ..read
    };
    for _ in 0..4 {
        assert!(post(&peer, short).is_err());
    }
}

#[test]
fn what_is_too_late_or_wrong_fails_as_one_batch() {
    let (here, there) = (host(2, false), host(2, false));
    let (near, far) = (here.handle(), there.handle());
    let len = 32 * MIB;
    let allocated = far.allocate(len, RegisterOptions::named("kv"));
    allocated.wait().expect("memory");
    let local = near.allocate(len, private()).wait().expect("memory");
    let peer = near.open(there.addresses().to_vec()).wait();
    let peer = peer.expect("a peer");
    let remote = peer.segment("kv").wait().expect("a segment");
    let read = whole(Way::Read, local, remote);
    let late = PostOptions {
        timeout: Duration::ZERO,
        notification: Some(vec![1]),
        ..PostOptions::default()
    };
    let Err(HandleError::Transfer(error)) = peer.post(vec![read; 3], late).wait() else {
        unreachable!("it is late");
    };
    let failed: Vec<_> = error
        .failures
        .iter()
        .map(|failure| failure.request)
        .collect();
    assert_eq!(failed, [Some(0), Some(1), Some(2)]);
    for failure in &error.failures {
        assert_eq!(failure.cause, Cause::DeadlineExceeded);
    }
    let outside = HandleRequest {
        local_offset_bytes: 1,
        ..read
    };
    let refused = peer.post(vec![read, outside], PostOptions::default());
    assert!(matches!(refused.wait(), Err(HandleError::NoMemory)));
    let long = PostOptions {
        notification: Some(vec![0; 5000]),
        ..PostOptions::default()
    };
    let refused = peer.post(vec![read], long).wait();
    assert!(matches!(refused, Err(HandleError::Post(_))), "{refused:?}");
    assert_eq!(far.take_notification().wait().expect("an answer"), None);
    // Nobody waits: it is given up at both cores, and the engine goes on.
    let failed = || {
        let statistics = near.statistics().wait();
        statistics.expect("an answer").transfers_failed
    };
    let before = failed();
    let unwanted = peer.post(vec![read; 20], PostOptions::default());
    std::thread::sleep(Duration::from_millis(10));
    drop(unwanted);
    let mut looks = 0;
    while failed() < before + 2 {
        looks += 1;
        assert!(looks < 1000, "it goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    post(&peer, read).expect("read");
}

#[test]
fn what_belongs_to_one_core_is_refused_by_an_engine_of_several() {
    let runtime = Runtime::start(&Placement::Anywhere(1), CoreOptions::default());
    let runtime = runtime.expect("a core");
    let (_handle, mut siblings) = Engine::siblings(&options(), 2).expect("two cores");
    let sibling = siblings.remove(0);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("segment");
    let tried = runtime.spawn_on(CoreIndex(0), move || async move {
        let engine = sibling.start().expect("an engine");
        let named = RegisterOptions::named("kv");
        let refused = engine.register(memory(4096), &named);
        let refused = refused.expect_err("of this core");
        assert_eq!(refused.memory.len(), 4096, "it comes back");
        let opening = FileSegmentOptions {
            write: true,
            len_bytes: Some(4096),
            ..FileSegmentOptions::default()
        };
        let file = FileSegment::open(path, opening).await.expect("a file");
        let file = engine
            .register_file(file, &named)
            .expect_err("of this core");
        (refused.refusal, file.refusal)
    });
    let refused = tried.expect("a core").wait().expect("no panic");
    let expected = RegisterRefusal::OfOneCore;
    assert_eq!(refused, (expected.clone(), expected));
    let listening = |listen: &str, cores| {
        let options = EngineOptions {
            listen: vec![listen.parse().expect("an address")],
            ..EngineOptions::default()
        };
        Engine::siblings(&options, cores)
            .map(|(_, siblings)| siblings.len())
            .map_err(|error| error.to_string())
    };
    assert_eq!(listening("127.0.0.1:65534", 2), Ok(2));
    let no_ports = listening("127.0.0.1:65534", 3).expect_err("no third port");
    assert!(no_ports.contains("not enough ports"), "{no_ports}");
    for cores in [0, 257] {
        let expected = StartError::CoreCount { cores }.to_string();
        assert_eq!(listening("127.0.0.1:0", cores), Err(expected));
    }
}

#[test]
fn a_fence_that_is_asked_of_one_core_is_kept_by_the_other() {
    let there = Cores::start(2);
    let (first, second) = (there.addresses[0], there.addresses[1]);
    let asked = block_on(None, CoreOptions::default(), move || async move {
        let number = |number: u64| number.to_le_bytes();
        let lost = Raw::greeting(first, 7, &number(1)).await;
        let another = Raw::greeting(first, 8, &number(1)).await;
        let asks = Raw::greeting(second, 7, &number(2)).await;
        assert_eq!(asks.fence(9).await, None, "it never was");
        let mut ended = pin!(lost.ended());
        let is_there = poll_fn(|cx| Poll::Ready(ended.as_mut().poll(cx).is_pending())).await;
        assert!(is_there);
        assert_eq!(asks.fence(1).await, None);
        // Before the answer it was ended there, which arrives here.
        let patience = Duration::from_secs(5);
        time::timeout(patience, ended).await.expect("it has ended");
        assert_eq!(asks.fence(1).await, None, "it has ended before");
        // A number is the session's own.
        assert_eq!(another.notify(1, b"there").await, None);
        assert_eq!(another.fence(2).await, None);
        assert_eq!(asks.notify(2, b"still").await, None);
    });
    asked.expect("a core");
    let next = || there.handle.notified().wait().expect("a notification");
    assert_eq!((next().from, next().from), (8, 7));
}

#[test]
fn cores_remember_together_what_was_delivered_and_say_where_they_are() {
    let there = Cores::start(2);
    let addresses = there.addresses.clone();
    let asked = block_on(None, CoreOptions::default(), move || async move {
        let ports: Vec<u16> = addresses.iter().map(SocketAddr::port).collect();
        for (core, address) in (0..).zip(&addresses) {
            let connection = Raw::greeting(*address, 7, &u64::to_le_bytes(core)).await;
            let greeting = Greeting::decode(connection.greeted());
            let cores = 2;
            let core = u16::try_from(core).expect("few");
            assert_eq!(greeting, Ok(Greeting { core, cores }));
            assert_eq!(connection.ports().await, ports);
            // Its connection at the core before is gone when it comes to the second.
            assert_eq!(connection.notify(5, b"once").await, None);
        }
    });
    asked.expect("a core");
    let notified = there.handle.notified().wait().expect("a notification");
    assert_eq!(notified.bytes, b"once");
    let again = there.handle.take_notification().wait().expect("an answer");
    assert_eq!(again, None);
    let alone = host(1, false);
    let alone = alone.addresses()[0];
    let asked = block_on(None, CoreOptions::default(), move || async move {
        let connection = Raw::new(alone, 7).await;
        assert!(connection.greeted().is_empty(), "as it was before");
        assert_eq!(connection.ports().await, [alone.port()]);
    });
    asked.expect("a core");
}

#[test]
fn an_engine_that_is_closed_ends_on_all_cores_when_all_is_answered() {
    let (here, there) = (host(2, false), host(2, false));
    let (near, far) = (here.handle(), there.handle());
    let allocated = far.allocate(8 * MIB, RegisterOptions::named("kv"));
    allocated.wait().expect("memory");
    let peer = near.open(there.addresses().to_vec()).wait();
    let peer = peer.expect("a peer");
    let remote = peer.segment("kv").wait().expect("a segment");
    let local = near.allocate(8 * MIB, private()).wait().expect("memory");
    post(&peer, whole(Way::Read, local, remote)).expect("read");
    there.close();
    assert!(matches!(far.notified().wait(), Err(HandleError::Gone)));
    let hurried = PostOptions {
        timeout: Duration::from_millis(100),
        ..PostOptions::default()
    };
    let read = whole(Way::Read, local, remote);
    let error = peer.post(vec![read], hurried).wait();
    assert!(error.expect_err("nobody is there").is_retryable());
    here.close();
    let gone = near.take_notification().wait().expect("an answer");
    assert_eq!(gone, None);
    assert!(matches!(post(&peer, read), Err(HandleError::Gone)));
}
