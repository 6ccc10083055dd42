//! On one host devices copy objects from where they are seen, and to where they stay.

use std::slice::from_ref;
use std::time::Duration;

use futures_util::future::join;
use lunette_gpu::fake::{FakeMachine, FakeOptions, Fault};
use lunette_kvstore::{ClusterClient, DeviceClient, DeviceFetched, PutOptions, Stored, Value};
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::time;
use lunette_transfer::engine::DeviceSegment;

use crate::gpu::Gpu;
use crate::on_each_driver::run;
use crate::scene::{Scene, eventually, key, pattern};

const MIB: usize = 1 << 20;
/// Worlds have no memory that is seen.
const WORLDS: u64 = 0;
/// What is behind an object in a device's memory.
const BESIDE: u8 = 0xee;
/// Of which some are whole vectors, and some long enough for a device to sum them; the last but one is longer than what
/// travels together, and finds a group begun.
const LENGTHS: [usize; 8] = [1, 16, 4097, 70_000, 160 << 10, MIB, 6 * MIB, 3 * MIB + 5];

/// A node, one of its clients that looks on, and a device.
struct Here {
    scene: Scene,
    client: ClusterClient,
    devices: DeviceClient,
    machine: FakeMachine,
    gpu: Gpu,
}

impl Here {
    async fn new(options: FakeOptions) -> Self {
        let scene = Scene::of(1, 128 << 20).await;
        // Nothing is so long that the client would be told where it lies, by the owner.
        let client = scene.client_from(Some(usize::MAX)).await;
        let machine = FakeMachine::new(5);
        let gpu = Gpu::open(&machine, machine.add_device(options));
        Self {
            devices: DeviceClient::new(client.clone(), 16 * MIB),
            scene,
            client,
            machine,
            gpu,
        }
    }

    async fn put(&self, n: usize, len: usize, kind: WriteKind) {
        let options = PutOptions {
            kind,
            ..PutOptions::default()
        };
        let value = Value::new(pattern(n, len));
        let stored = self.client.put(&key(n), value, options).await;
        assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
    }

    /// An object for each length, and memory that is somewhat longer.
    async fn objects(&self) -> Vec<(Vec<u8>, Vec<DeviceSegment>)> {
        let mut wanted = Vec::new();
        for (n, len) in LENGTHS.into_iter().enumerate() {
            self.put(n, len, WriteKind::Put).await;
            let memory = self.gpu.full_of(&vec![BESIDE; len + 9]).await;
            wanted.push((key(n), vec![memory]));
        }
        wanted
    }

    /// Gets them again and again until none of them has to be asked for.
    async fn are_seen(&self, wanted: &[(Vec<u8>, Vec<DeviceSegment>)]) {
        eventually("all are seen", async || {
            let before = self.client.one_sided().reads;
            let fetched = self.devices.get_all(wanted).await;
            let hit = |fetched: &Result<_, _>| matches!(fetched, Ok(DeviceFetched::Hit { .. }));
            assert!(fetched.iter().all(hit), "{fetched:?}");
            self.client.one_sided().reads - before == wanted.len() as u64
        })
        .await;
    }

    async fn expect(&self, memory: &DeviceSegment, (n, len): (usize, usize)) {
        let found = self.gpu.bytes_of(memory).await;
        assert!(found[..len] == *pattern(n, len).as_slice(), "object {n}");
        assert!(
            found[len..].iter().all(|byte| *byte == BESIDE),
            "behind {n}"
        );
    }
}

/// Memory of the nodes in use.
async fn used_bytes(client: &ClusterClient) -> u64 {
    let stats = client.stat().await.into_iter();
    let used = stats.map(|(_, stat)| stat.expect("it answers").shards.used_bytes);
    used.sum()
}

#[test]
fn what_is_seen_is_copied_from_where_it_lies() {
    run(WORLDS, || async {
        let here = Here::new(FakeOptions::default()).await;
        let wanted = here.objects().await;
        here.are_seen(&wanted).await;
        let launches = here.machine.counts().launches;
        for (n, len) in LENGTHS.into_iter().enumerate() {
            here.expect(&wanted[n].1[0], (n, len)).await;
            // In pieces, of which each goes where it belongs.
            let memory = here.gpu.full_of(&vec![BESIDE; len + 64]).await;
            let cut = (len / 3).next_multiple_of(16).min(len) as u64;
            let end = len as u64 + 64;
            let pieces = [memory.slice(64..64 + cut), memory.slice(64 + cut..end)];
            let fetched = here.devices.get(&key(n), &pieces).await;
            let len_bytes = match fetched {
                Ok(DeviceFetched::Hit { len_bytes, .. }) => len_bytes,
                other => unreachable!("{other:?}"),
            };
            assert_eq!(len_bytes, len);
            let found = here.gpu.bytes_of(&memory).await;
            assert!(found[64..64 + len] == *pattern(n, len).as_slice(), "{n}");
            assert_eq!(found[..64], [BESIDE; 64]);
        }
        // The three that are long and whole vectors, unless a kernel seemed to be long in coming.
        let launched = here.machine.counts().launches - launches;
        assert!(launched <= 3, "{launched}");
        assert_eq!(here.machine.counts().unpinned, 0);
        // Room that is too little, and none.
        let little = here.gpu.full_of(&[BESIDE; 100]).await;
        let refused = here.devices.get(&key(5), from_ref(&little)).await;
        assert!(refused.is_err());
        here.expect(&little, (0, 0)).await;
        let missed = here.devices.get(&key(77), &[little]).await;
        assert_eq!(missed, Ok(DeviceFetched::Miss { is_known: true }));
    });
}

#[test]
fn what_leaves_while_it_is_copied_is_asked_for() {
    run(WORLDS, || async {
        let slow = FakeOptions {
            latency: (Duration::from_millis(20), Duration::from_millis(20)),
            ..FakeOptions::default()
        };
        let here = Here::new(slow).await;
        let wanted = here.objects().await;
        here.are_seen(&wanted).await;
        for n in [3, 5] {
            let reads = here.client.one_sided().reads;
            let replaced = async {
                time::sleep(Duration::from_millis(5)).await;
                let options = PutOptions {
                    kind: WriteKind::Upsert,
                    ..PutOptions::default()
                };
                let value = Value::new(pattern(n + 100, LENGTHS[n]));
                here.client.put(&key(n), value, options).await
            };
            let (name, memory) = &wanted[n];
            let get = here.devices.get(name, memory);
            let (fetched, stored) = join(get, replaced).await;
            let Ok(Stored::Written {
                version: written, ..
            }) = stored
            else {
                unreachable!("{stored:?}");
            };
            assert!(
                matches!(fetched, Ok(DeviceFetched::Hit { version, .. }) if version == written),
                "{fetched:?}, of which {written:?} is the last"
            );
            here.expect(&wanted[n].1[0], (n + 100, LENGTHS[n])).await;
            assert_eq!(here.client.one_sided().reads, reads, "it was not seen");
        }
        here.are_seen(&wanted[4..5]).await;
        let removed = async {
            time::sleep(Duration::from_millis(5)).await;
            here.client.remove(&[key(4)]).await.pop().expect("one")
        };
        let (name, memory) = &wanted[4];
        let get = here.devices.get(name, memory);
        let (fetched, removed) = join(get, removed).await;
        assert!(removed.is_ok());
        assert_eq!(fetched, Ok(DeviceFetched::Miss { is_known: true }));
    });
}

#[test]
fn where_nothing_is_pinned_objects_go_by_way_of_this_core() {
    run(WORLDS, || async {
        let here = Here::new(FakeOptions::default()).await;
        here.machine.inject(0, Fault::PinRefused);
        let wanted = here.objects().await;
        let reads = || here.client.one_sided().reads;
        for _ in 0..30 {
            let fetched = here.devices.get_all(&wanted).await;
            assert!(fetched.iter().all(Result::is_ok), "{fetched:?}");
        }
        let (before, launches) = (reads(), here.machine.counts().launches);
        for (n, len) in LENGTHS.into_iter().enumerate() {
            here.expect(&wanted[n].1[0], (n, len)).await;
        }
        // Short ones are still seen, and copied by the core.
        drop(here.devices.get_all(&wanted).await);
        assert!(reads() - before < wanted.len() as u64);
        assert_eq!(here.machine.counts().launches, launches);
    });
}

#[test]
fn what_stays_on_this_core_is_copied_to_where_it_stays() {
    run(1, || async {
        let here = Here::new(FakeOptions::default()).await;
        let inside = here.scene.inside(0).await;
        let devices = DeviceClient::new(inside.clone(), MIB);
        let mut objects = Vec::new();
        for (n, len) in LENGTHS.into_iter().enumerate() {
            let memory = here.gpu.full_of(pattern(n, len).as_slice()).await;
            objects.push((key(n), vec![memory]));
        }
        let used = async || used_bytes(&inside).await;
        let before = used().await;
        // What a device does not copy is not put, and its room is anybody's again.
        let refused = Fault::Refused {
            after: 0,
            code: 719_000,
        };
        here.machine.inject(0, refused);
        let failed = devices.put_all(&objects[..1], PutOptions::default()).await;
        assert!(failed[0].is_err(), "{failed:?}");
        assert_eq!(
            (used().await, inside.exists(&[key(0)]).await),
            (before, Ok(vec![false]))
        );
        let launches = here.machine.counts().launches;
        let stored = devices.put_all(&objects, PutOptions::default()).await;
        for stored in stored {
            assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
        }
        // All of them together, in groups of some MiB: the kernel takes only groups of whole vectors.
        assert_eq!(here.machine.counts().launches, launches);
        for (n, len) in LENGTHS.into_iter().enumerate() {
            let bytes = pattern(n, len);
            here.scene.expect_bytes(&here.client, &key(n), &bytes).await;
        }
        let again = devices.put_all(&objects, PutOptions::default()).await;
        for stored in again {
            assert!(matches!(stored, Ok(Stored::Exists { .. })), "{stored:?}");
        }
        let full = used().await;
        let memory = here.gpu.full_of(pattern(50, 2 * MIB).as_slice()).await;
        let many: Vec<_> = (50..54)
            .map(|n| {
                let at = (n as u64 - 50) * (MIB as u64 / 4);
                (key(n), vec![memory.slice(at..at + MIB as u64)])
            })
            .collect();
        let stored = devices.put_all(&many, PutOptions::default()).await;
        assert!(stored.iter().all(Result::is_ok), "{stored:?}");
        assert!(here.machine.counts().launches <= launches + 1);
        let bytes = pattern(50, 2 * MIB);
        for n in 50..54 {
            let at = (n - 50) * MIB / 4;
            let part = bytes.slice(at, MIB);
            here.scene.expect_bytes(&here.client, &key(n), &part).await;
        }
        assert!(used().await >= full + 4 * MIB as u64);
        assert_eq!(here.machine.counts().unpinned, 0);
    });
}

/// Until it has happened that no kernel was launched for it, or that one was.
async fn is_summed(here: &Here, by_kernel: bool, what: impl AsyncFn()) {
    eventually("who sums is found out", async || {
        let launches = here.machine.counts().launches;
        what().await;
        let launched = here.machine.counts().launches - launches;
        assert!(launched <= 1, "of one object");
        (launched == 1) == by_kernel
    })
    .await;
}

#[test]
fn where_kernels_wait_for_others_a_core_sums() {
    run(WORLDS, || async {
        let here = Here::new(FakeOptions::default()).await;
        let inside = DeviceClient::new(here.scene.inside(0).await, MIB);
        let wanted = here.objects().await;
        here.are_seen(&wanted).await;
        let long = 5;
        let (name, memory) = &wanted[long];
        let get = async || {
            let reads = here.client.one_sided().reads;
            Gpu::fill(&memory[0], &vec![BESIDE; LENGTHS[long] + 9]).await;
            let fetched = here.devices.get(name, memory).await;
            assert!(
                matches!(fetched, Ok(DeviceFetched::Hit { .. })),
                "{fetched:?}"
            );
            here.expect(&memory[0], (long, LENGTHS[long])).await;
            assert_eq!(here.client.one_sided().reads, reads + 1, "it is seen");
        };
        let source = [here.gpu.full_of(pattern(90, MIB).as_slice()).await];
        let put = async || {
            let options = PutOptions {
                kind: WriteKind::Upsert,
                ..PutOptions::default()
            };
            let stored = inside.put(&key(90), &source, options).await;
            assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
            let bytes = pattern(90, MIB);
            here.scene
                .expect_bytes(&here.client, &key(90), &bytes)
                .await;
        };
        for wait_ms in [0, 30, 0] {
            let wait = Duration::from_millis(wait_ms);
            here.machine.inject(0, Fault::Crowded { wait });
            is_summed(&here, wait_ms == 0, &get).await;
            is_summed(&here, wait_ms == 0, &put).await;
        }
        assert_eq!(here.machine.counts().unpinned, 0);
    });
}

#[test]
fn futures_that_are_dropped_give_everything_back() {
    run(WORLDS, || async {
        let slow = FakeOptions {
            latency: (Duration::from_millis(5), Duration::from_millis(5)),
            ..FakeOptions::default()
        };
        let here = Here::new(slow).await;
        let wanted = here.objects().await;
        here.are_seen(&wanted).await;
        let inside = here.scene.inside(0).await;
        let devices = DeviceClient::new(inside.clone(), MIB);
        let used = async || used_bytes(&inside).await;
        let before = used().await;
        let others: Vec<_> = (0..7)
            .map(|n| (key(n + 200), wanted[n].1.clone()))
            .collect();
        for _ in 0..5 {
            let soon = Duration::from_millis(1);
            let got = time::timeout(soon, here.devices.get_all(&wanted)).await;
            let put = time::timeout(soon, devices.put_all(&others, PutOptions::default())).await;
            assert!(got.is_err() && put.is_err(), "nothing is so fast");
        }
        eventually("all room is back", async || used().await == before).await;
        here.are_seen(&wanted).await;
        for (n, len) in LENGTHS.into_iter().enumerate() {
            here.expect(&wanted[n].1[0], (n, len)).await;
        }
    });
}
