//! Memory of devices that engines of one host hand to each other: the fake device panics where memory is given back while
//! somebody has it open and copies.

use std::time::Duration;

use lunette_gpu::fake::{FakeMachine, FakeOptions, Fault};
use lunette_runtime::{CoreOptions, block_on, time};
use lunette_transfer::engine::{
    Access, Batch, Cause, DeviceSegment, Engine, EngineOptions, Peer, PostOptions, Refusal,
    RegisterOptions, RemoteSegment, SegmentId,
};
use lunette_transfer_proto::engine::same_host::packet::Packet;

use super::{Gpu, read, write};
use crate::same_host::guest::Guest;
use crate::scene::{MIB, options, pattern, post};

/// How long an owner waits for those that do not close what they have opened.
const SETTLE: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(10);

fn on_core<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send) {
    block_on(None, CoreOptions::default(), test).expect("a core");
}

/// Two engines, and a device that each of them has opened.
struct Scene {
    here: Engine,
    there: Engine,
    peer: Peer,
    machine: FakeMachine,
    near: Gpu,
    far: Gpu,
}

fn engine(same_host_trust: bool) -> Engine {
    let mut options = EngineOptions {
        same_host_trust,
        ..options()
    };
    options.scheduler.settle = SETTLE;
    Engine::start(options).expect("an engine")
}

impl Scene {
    async fn new() -> Self {
        Self::with([true, true], FakeOptions::default(), 0).await
    }

    /// Who trusts, here and there; what the devices are, and which one the other engine has.
    async fn with(trust: [bool; 2], fake: FakeOptions, far: usize) -> Self {
        let (here, there) = (engine(trust[0]), engine(trust[1]));
        let peer = here.open(there.addresses()).await.expect("open");
        let machine = FakeMachine::new(5);
        for _ in 0..2 {
            assert!(machine.add_device(fake.clone()) < 2);
        }
        let (near, far) = (Gpu::open(&machine, 0), Gpu::open(&machine, far));
        Self {
            here,
            there,
            peer,
            machine,
            near,
            far,
        }
    }

    fn register(&self, memory: &DeviceSegment, access: Access) -> SegmentId {
        let options = RegisterOptions {
            access,
            ..RegisterOptions::named("far")
        };
        let registered = self.there.register_device(memory.clone(), &options);
        registered.expect("registered")
    }

    async fn remote(&self) -> RemoteSegment {
        self.peer.segment("far").await.expect("a segment")
    }

    /// Bytes that one device has copied from or to the other's memory.
    fn by_handle(&self) -> u64 {
        let statistics = self.here.statistics();
        statistics.same_host_bytes - statistics.window_bytes
    }
}

async fn cause(peer: &Peer, batch: &Batch) -> Cause {
    let failed = post(peer, batch).await.expect_err("it fails");
    failed.failures[0].cause
}

#[test]
fn bytes_go_by_handle_both_ways() {
    on_core(|| async {
        let scene = Scene::new().await;
        let len = 3 * MIB + 777;
        let far = scene.far.full_of(&pattern(len + 100, 1)).await;
        let id = scene.register(&far.slice(50..(len + 50) as u64), Access::ReadWrite);
        let remote = scene.remote().await;
        let mut moved = 0;
        for (at, count) in [(0, len), (1, 1), (4097, 2 * MIB + 1), (len - 7, 7)] {
            let near = scene.near.full_of(&vec![0; count]).await;
            post(&scene.peer, &read(&near, &remote, at))
                .await
                .expect("read");
            let found = scene.near.bytes_of(&near).await;
            assert!(found == pattern(len + 100, 1)[50 + at..][..count], "{at}");
            moved += count as u64;
            assert_eq!(scene.by_handle(), moved);
        }
        // Several requests, of which one is the host's, into the middle.
        let near = scene.near.full_of(&pattern(2 * MIB, 2)).await;
        let mut batch = write(&near.slice(0..MIB as u64), &remote, 100);
        let rest = near.slice(MIB as u64..2 * MIB as u64);
        batch
            .write_device(&rest, &remote, (MIB + 100) as u64)
            .expect("a write");
        post(&scene.peer, &batch).await.expect("written");
        let mut expected = pattern(len + 100, 1);
        expected[150..150 + 2 * MIB].copy_from_slice(&pattern(2 * MIB, 2));
        assert!(scene.far.bytes_of(&far).await == expected);
        assert_eq!(scene.by_handle(), moved + 2 * MIB as u64);
        assert_eq!(scene.there.statistics().refused, 0);
        // It is open once, for all of that.
        drop((near, rest, batch));
        assert_eq!(scene.machine.counts().allocations, 2);
        let taken = scene.there.unregister_device(id).await;
        assert_eq!(taken.expect("it was there").len_bytes(), len as u64);
    });
}

#[test]
fn without_trust_or_another_device_bytes_are_staged() {
    on_core(|| async {
        let unshared = FakeOptions {
            has_shareable: false,
            ..FakeOptions::default()
        };
        let plain = FakeOptions::default();
        for (trust, fake, device) in [
            ([true, false], plain.clone(), 0),
            ([false, true], plain.clone(), 0),
            // Another device does not reach it, and a driver may not have handles.
            ([true, true], plain, 1),
            ([true, true], unshared, 0),
        ] {
            let scene = Scene::with(trust, fake, device).await;
            let far = scene.far.full_of(&pattern(MIB, 1)).await;
            scene.register(&far, Access::ReadWrite);
            let remote = scene.remote().await;
            let near = scene.near.full_of(&vec![0; MIB]).await;
            post(&scene.peer, &read(&near, &remote, 0))
                .await
                .expect("read");
            assert!(scene.near.bytes_of(&near).await == pattern(MIB, 1));
            let near = scene.near.full_of(&pattern(MIB, 3)).await;
            post(&scene.peer, &write(&near, &remote, 0))
                .await
                .expect("written");
            assert!(scene.far.bytes_of(&far).await == pattern(MIB, 3));
            assert_eq!(scene.by_handle(), 0);
        }
    });
}

#[test]
fn who_may_not_write_does_not_and_capabilities_hand_nothing_out() {
    on_core(|| async {
        let scene = Scene::new().await;
        let far = scene.far.full_of(&pattern(5000, 1)).await;
        let id = scene.register(&far, Access::Read);
        let remote = scene.remote().await;
        let near = scene.near.full_of(&pattern(5000, 2)).await;
        let written = Batch::new().write_device(&near, &remote, 0);
        assert!(written.is_err(), "{written:?}");
        let to = scene.near.full_of(&[0; 5000]).await;
        post(&scene.peer, &read(&to, &remote, 0))
            .await
            .expect("read");
        assert!(scene.near.bytes_of(&to).await == pattern(5000, 1));
        assert_eq!(scene.by_handle(), 5000);
        scene
            .there
            .unregister_device(id)
            .await
            .expect("it is there");
        let id = scene.register(&far, Access::Write);
        let remote = scene.remote().await;
        let read = Batch::new().read_device(&near, &remote, 0);
        assert!(read.is_err(), "{read:?}");
        post(&scene.peer, &write(&near, &remote, 0))
            .await
            .expect("written");
        assert!(scene.far.bytes_of(&far).await == pattern(5000, 2));
        assert_eq!(scene.by_handle(), 10_000);
        scene
            .there
            .unregister_device(id)
            .await
            .expect("it is there");
        for options in [
            RegisterOptions {
                same_host: false,
                ..RegisterOptions::named("far")
            },
            RegisterOptions {
                by_capability: true,
                ..RegisterOptions::named("far")
            },
        ] {
            let is_open = !options.by_capability;
            let id = scene
                .there
                .register_device(far.clone(), &options)
                .expect("registered");
            if is_open {
                let remote = scene.remote().await;
                post(&scene.peer, &write(&near, &remote, 0))
                    .await
                    .expect("written");
            } else {
                assert!(scene.peer.segment("far").await.is_err());
            }
            scene
                .there
                .unregister_device(id)
                .await
                .expect("it is there");
        }
        assert_eq!(scene.by_handle(), 10_000);
    });
}

#[test]
fn memory_is_the_owners_when_it_has_been_closed() {
    on_core(|| async {
        let scene = Scene::new().await;
        let far = scene.far.full_of(&pattern(2 * MIB, 1)).await;
        let id = scene.register(&far, Access::ReadWrite);
        let remote = scene.remote().await;
        let near = scene.near.full_of(&vec![0; 2 * MIB]).await;
        post(&scene.peer, &read(&near, &remote, 0))
            .await
            .expect("read");
        // While it is being copied, and afterwards.
        scene.machine.inject(0, Fault::Slow { times: 100 });
        let posted = scene
            .peer
            .post(&read(&near, &remote, 0), PostOptions::default());
        let posted = posted.expect("posted");
        time::sleep(Duration::from_micros(200)).await;
        let began = time::now();
        let taken = time::timeout(PATIENCE, scene.there.unregister_device(id)).await;
        drop(taken.expect("in time").expect("it was there"));
        assert_eq!(scene.machine.counts().allocations, 2, "it is closed");
        assert!(
            time::now().since(began) < SETTLE,
            "it was told, and not given up"
        );
        drop(far);
        match posted.await {
            Ok(_) => assert!(scene.near.bytes_of(&near).await == pattern(2 * MIB, 1)),
            Err(failed) => {
                let stale = Cause::Refused(Refusal::Stale);
                assert!(failed.failures.iter().all(|failure| failure.cause == stale));
            }
        }
        drop(near);
        assert_eq!(scene.machine.counts().allocations, 0);
        // What is there now under the same name is another one.
        scene.machine.inject(0, Fault::Slow { times: 1 });
        let far = scene.far.full_of(&pattern(2 * MIB, 4)).await;
        scene.register(&far, Access::ReadWrite);
        let near = scene.near.full_of(&vec![0; 2 * MIB]).await;
        let stale = cause(&scene.peer, &read(&near, &remote, 0)).await;
        assert_eq!(stale, Cause::Refused(Refusal::Stale));
        let before = scene.by_handle();
        let remote = scene.remote().await;
        post(&scene.peer, &read(&near, &remote, 0))
            .await
            .expect("read");
        assert!(scene.near.bytes_of(&near).await == pattern(2 * MIB, 4));
        assert_eq!(scene.by_handle(), before + 2 * MIB as u64);
    });
}

#[test]
fn what_was_opened_is_closed_when_the_session_ends() {
    on_core(|| async {
        let scene = Scene::new().await;
        let far = scene.far.full_of(&pattern(MIB, 1)).await;
        let id = scene.register(&far, Access::ReadWrite);
        let remote = scene.remote().await;
        let near = scene.near.full_of(&vec![0; MIB]).await;
        post(&scene.peer, &read(&near, &remote, 0))
            .await
            .expect("read");
        let Scene {
            here,
            there,
            peer,
            machine,
            near: near_gpu,
            far: far_gpu,
        } = scene;
        drop((near, remote, peer, here));
        let taken = time::timeout(PATIENCE, there.unregister_device(id)).await;
        drop(taken.expect("in time").expect("it was there"));
        drop((far, near_gpu, far_gpu));
        assert_eq!(machine.counts().allocations, 0);
    });
}

/// Reads what trust is tried by, in this very process, and says so.
async fn trusted(there: &Engine) -> Guest {
    let guest = Guest::new(there).await;
    let value = Box::new(0x0123_4567_89ab_cdef_u128.to_le());
    let trust = Packet::Trust {
        address: std::ptr::from_ref(&*value).addr() as u64,
        value: u128::from_le(*value),
        reads: false,
    };
    let answer = guest.ask(trust).await;
    assert!(matches!(answer, Some(Packet::Trust { reads: true, .. })));
    guest
}

#[test]
fn who_is_not_trusted_is_handed_nothing_and_who_keeps_it_loses_its_channel() {
    on_core(|| async {
        let there = engine(true);
        let machine = FakeMachine::new(5);
        assert_eq!(machine.add_device(FakeOptions::default()), 0);
        let gpu = Gpu::open(&machine, 0);
        let memory = gpu.full_of(&pattern(5000, 1)).await;
        let options = RegisterOptions::named("far");
        let segment = there
            .register_device(memory.clone(), &options)
            .expect("registered");
        let map = Packet::Map { segment };
        let guest = trusted(&there).await;
        assert_eq!(guest.ask(map).await, Some(Packet::Refused { segment }));
        guest.say(Packet::Trusted);
        let handed = guest.ask(map).await;
        let access = Access::ReadWrite;
        assert!(matches!(handed, Some(Packet::Handle { access: found, .. }) if found == access));
        // Closed twice, or what is not open: nothing is to be done.
        guest.say(Packet::Closed { segment });
        guest.say(Packet::Closed { segment });
        assert!(matches!(guest.ask(map).await, Some(Packet::Handle { .. })));
        let began = time::now();
        let taken = time::timeout(PATIENCE, there.unregister_device(segment)).await;
        taken.expect("in time").expect("it was there");
        assert!(time::now().since(began) >= SETTLE, "it was waited for");
        assert_eq!(guest.hear().await, None, "its channel has ended");
        // An owner closes nothing: that is no sense.
        let guest = trusted(&there).await;
        guest.say(Packet::Handle {
            segment,
            access,
            handle: [7; 80],
        });
        assert_eq!(guest.hear().await, None);
    });
}
