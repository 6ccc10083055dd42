//! Gets whose bytes adapters bring straight into memory of a device: on the fake device and simulated adapters.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use lunette_gpu::fake::{FakeMachine, FakeOptions, Fault as DeviceFault};
use lunette_kvstore::{
    AdapterGets, DeviceCheck, DeviceClient, DeviceFetched, DeviceLanding, DeviceStoreError,
    PutOptions,
};
use lunette_kvstore_proto::paths::Path;
use lunette_runtime::{arena, time};
use lunette_transfer::engine::DeviceSegment;
use lunette_verbs::sim::Fault;

use super::on_each_driver::run;
use super::pushed::{Pushing, run_in_worlds};
use super::scene::{eventually, key, pattern};
use crate::gpu::Gpu;

const WORLDS: u64 = 3;
const MIB: usize = 1 << 20;
/// What is behind an object in a device's memory.
const BESIDE: u8 = 0xee;
const LENS: [usize; 5] = [1, 4096, 70_001, 1 << 20, 300_000];

/// Nodes, a client with adapters, and memory of a device that these reach.
struct Landed {
    scene: Pushing,
    devices: DeviceClient,
    machine: FakeMachine,
    gpu: Gpu,
    memory: DeviceSegment,
    landing: Option<DeviceLanding>,
}

impl Landed {
    async fn new(path: Path, check: DeviceCheck, options: FakeOptions) -> Self {
        let scene = Pushing::by(Some(path), (2, 2), 4 << 20).await;
        let machine = FakeMachine::new(3);
        let gpu = Gpu::open(&machine, machine.add_device(options));
        let memory = gpu.full_of(&vec![BESIDE; 4 * MIB]).await;
        let devices = DeviceClient::new(scene.client.clone(), 8 * MIB);
        let landing = devices.land(&memory, check).await.expect("room");
        Self {
            scene,
            devices,
            machine,
            gpu,
            memory,
            landing: Some(landing),
        }
    }

    fn brought(&self) -> AdapterGets {
        self.scene.client.by_adapters()
    }

    async fn get(&self, n: usize, to: &DeviceSegment) -> Result<DeviceFetched, DeviceStoreError> {
        self.devices.get(&key(n), std::slice::from_ref(to)).await
    }

    /// Gets an object into a part of the memory, with so much behind it, and looks at what is there.
    async fn expect(&self, n: usize, len: usize, at: usize, beside: usize) {
        let to = self.memory.slice(at as u64..(at + len + beside) as u64);
        let clean = vec![BESIDE; len + beside];
        let from = arena().alloc(clean.len()).expect("room");
        let from = from.expose();
        from.copy_in(0, &clean);
        to.upload(from).await.expect("filled");
        let fetched = self.get(n, &to).await;
        let is_hit =
            matches!(fetched, Ok(DeviceFetched::Hit { len_bytes, .. }) if len_bytes == len);
        assert!(is_hit, "{n}: {fetched:?}");
        let found = self.gpu.bytes_of(&to).await;
        assert!(found[..len] == *pattern(n, len).as_slice(), "{n}");
        assert_eq!(found[len..], clean[len..], "{n}");
    }

    /// Puts all objects, and gets each until adapters bring it.
    async fn put_all(&self) {
        for (n, len) in LENS.into_iter().enumerate() {
            self.scene.scene.put(&self.scene.client, n, n, len).await;
            eventually("adapters bring it", async || {
                let before = self.brought();
                self.expect(n, len, 0, 0).await;
                self.brought().written + self.brought().read > before.written + before.read
            })
            .await;
        }
    }
}

fn sum() -> u64 {
    LENS.iter().map(|len| *len as u64).sum()
}

#[test]
fn owners_write_and_clients_read_straight_into_a_device() {
    run(WORLDS, || async {
        for path in [Path::Written, Path::Read] {
            for check in [DeviceCheck::ReadBack, DeviceCheck::Links] {
                let landed = Landed::new(path, check, FakeOptions::default()).await;
                let landing = landed.landing.as_ref().expect("landed");
                assert_eq!(landing.adapters(), 2);
                landed.put_all().await;
                let (before, told) = (landed.brought(), landed.scene.told().await);
                for (n, len) in LENS.into_iter().enumerate() {
                    landed.expect(n, len, 4096 + 13 * n, 9).await;
                }
                let after = landed.brought();
                let (written, read) = match path {
                    Path::Written => (LENS.len() as u64, 0),
                    _ => (0, LENS.len() as u64),
                };
                let brought = (after.written - before.written, after.read - before.read);
                assert_eq!(brought, (written, read), "{path:?}");
                let bytes = after.written_bytes + after.read_bytes;
                assert_eq!(bytes, before.written_bytes + before.read_bytes + sum());
                assert_eq!(after.fallbacks, before.fallbacks);
                let then = landed.scene.told().await;
                assert_eq!(then.3, told.3, "no core has sent a byte");
            }
        }
    });
}

#[test]
fn the_device_copies_nothing_where_links_are_believed() {
    run(WORLDS, || async {
        for path in [Path::Written, Path::Read] {
            for (check, copies) in [(DeviceCheck::Links, 0), (DeviceCheck::ReadBack, 1)] {
                let landed = Landed::new(path, check, FakeOptions::default()).await;
                landed.put_all().await;
                let len = LENS[2];
                let to = landed.memory.slice(0..len as u64);
                let before = landed.machine.counts().copies;
                let fetched = landed.get(2, &to).await;
                assert!(
                    matches!(fetched, Ok(DeviceFetched::Hit { .. })),
                    "{fetched:?}"
                );
                assert_eq!(landed.machine.counts().copies - before, copies, "{path:?}");
                let found = landed.gpu.bytes_of(&to).await;
                assert!(found == pattern(2, len).as_slice());
            }
        }
    });
}

#[test]
fn what_is_not_read_back_is_asked_for() {
    run(WORLDS, || async {
        for path in [Path::Written, Path::Read] {
            let check = DeviceCheck::ReadBack;
            let landed = Landed::new(path, check, FakeOptions::default()).await;
            landed.put_all().await;
            let len = LENS[2];
            let to = landed.memory.slice(0..len as u64);
            let before = landed.brought();
            landed.machine.inject(
                0,
                DeviceFault::Refused {
                    after: 0,
                    code: 719_000,
                },
            );
            let fetched = landed.get(2, &to).await;
            assert!(
                matches!(fetched, Ok(DeviceFetched::Hit { .. })),
                "{fetched:?}"
            );
            assert_eq!(landed.brought().fallbacks, before.fallbacks + 1, "{path:?}");
            let found = landed.gpu.bytes_of(&to).await;
            assert!(found == pattern(2, len).as_slice());
        }
    });
}

#[test]
fn when_adapters_fail_bytes_come_by_way_of_the_host() {
    run_in_worlds(6, |seed| async move {
        let seed = usize::try_from(seed).expect("small");
        let (path, check) = if seed % 2 == 0 {
            (Path::Written, DeviceCheck::Links)
        } else {
            (Path::Read, DeviceCheck::ReadBack)
        };
        let landed = Landed::new(path, check, FakeOptions::default()).await;
        landed.put_all().await;
        let faults = [
            Fault::RetryExceeded,
            Fault::Flush,
            Fault::RemoteAccess,
            Fault::PartialPost { taken: 1 },
            Fault::Code(9),
        ];
        for round in 0..12 {
            let device = (round + seed) % 6;
            let fault = faults[(round * 3 + seed) % faults.len()];
            landed.scene.fabric.inject(device, fault);
            for (n, len) in LENS.into_iter().enumerate() {
                landed.expect(n, len, 100 * n + round, 5).await;
            }
            time::sleep(Duration::from_millis(60)).await;
        }
        assert!(landed.brought().fallbacks > 0, "{:?}", landed.brought());
    });
}

#[test]
fn what_adapters_do_not_reach_goes_by_way_of_the_host() {
    run(1, || async {
        let without = FakeOptions {
            has_dma_buf: false,
            ..FakeOptions::default()
        };
        for path in [Path::Written, Path::Read] {
            let landed = Landed::new(path, DeviceCheck::ReadBack, without.clone()).await;
            let landing = landed.landing.as_ref().expect("landed");
            assert_eq!(landing.adapters(), 0);
            for (n, len) in LENS.into_iter().enumerate() {
                let (scene, client) = (&landed.scene.scene, &landed.scene.client);
                scene.put(client, n, n, len).await;
                for _ in 0..3 {
                    landed.expect(n, len, n, 7).await;
                }
            }
        }
    });
}

#[test]
fn devices_without_dma_bufs_are_reached_by_address() {
    run(WORLDS, || async {
        let by_address = FakeOptions {
            has_dma_buf: false,
            has_peer_memory: true,
            ..FakeOptions::default()
        };
        for path in [Path::Written, Path::Read] {
            let mut landed = Landed::new(path, DeviceCheck::ReadBack, by_address.clone()).await;
            // What begins within a page is reached too.
            landed.landing = None;
            landed.memory = landed.memory.slice(100..4 * MIB as u64);
            let landing = landed
                .devices
                .land(&landed.memory, DeviceCheck::Links)
                .await;
            assert_eq!(landing.as_ref().expect("room").adapters(), 2);
            landed.landing = landing.ok();
            landed.put_all().await;
            let (before, told) = (landed.brought(), landed.scene.told().await);
            for (n, len) in LENS.into_iter().enumerate() {
                landed.expect(n, len, 4096 + 13 * n, 9).await;
            }
            let after = landed.brought();
            let brought = after.written_bytes + after.read_bytes;
            assert_eq!(brought, before.written_bytes + before.read_bytes + sum());
            let then = landed.scene.told().await;
            assert_eq!(then.3, told.3, "no core has sent a byte");
        }
    });
}

#[test]
fn landings_are_bounded_and_end() {
    run(1, || async {
        let mut landed =
            Landed::new(Path::Written, DeviceCheck::Links, FakeOptions::default()).await;
        landed.put_all().await;
        let again = landed
            .devices
            .land(&landed.memory, DeviceCheck::Links)
            .await;
        assert!(again.is_err(), "it begins there already");
        let before = landed.brought();
        landed.expect(2, LENS[2], 0, 0).await;
        assert_eq!(landed.brought().written, before.written + 1);
        landed.landing = None;
        landed.expect(2, LENS[2], 0, 0).await;
        assert_eq!(landed.brought().written, before.written + 1, "it is sent");
        // In parts of its own it goes by the room, also where that is landed.
        let check = DeviceCheck::Links;
        let landing = landed.devices.land(&landed.memory, check).await;
        landed.landing = Some(landing.expect("room again"));
        let in_parts = PutOptions {
            stripe_len: Some(1 << 20),
            ..PutOptions::default()
        };
        let from = landed.gpu.full_of(pattern(9, 3 * MIB).as_slice()).await;
        let stored = landed.devices.put(&key(9), &[from], in_parts).await;
        stored.expect("stored");
        landed.expect(9, 3 * MIB, 0, 5).await;
        let missed = landed.get(77, &landed.memory.slice(0..10)).await;
        assert_eq!(missed, Ok(DeviceFetched::Miss { is_known: true }));
        // Dropped in the middle, everything is given back.
        for turns in 0..20 {
            let to = landed.memory.slice(0..LENS[3] as u64);
            let get = landed.get(3, &to);
            let mut get = std::pin::pin!(get);
            let mut left = turns;
            let for_a_while = std::future::poll_fn(|cx| {
                if left == 0 || get.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                left -= 1;
                cx.waker().wake_by_ref();
                Poll::Pending
            });
            for_a_while.await;
        }
        let machine = landed.machine.clone();
        let allocations = machine.counts().allocations;
        assert!(allocations > 0);
        drop(landed);
        eventually("the device's memory is given back", async || {
            machine.counts().allocations == 0
        })
        .await;
    });
}
