//! Objects that come from devices and go to them, on the fake device.

use std::net::{IpAddr, Ipv4Addr};
use std::slice::from_ref;
use std::time::Duration;

use lunette_gpu::fake::{FakeMachine, FakeOptions, Fault};
use lunette_gpu::{Device, DeviceRegion, Stream, StreamOptions};
use lunette_kvstore::{
    ClusterClient, DeviceClient, DeviceFetched, DeviceStoreError, PutOptions, Stored, Value,
};
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, arena, time};
use lunette_transfer::engine::{DeviceFault, DeviceSegment};

use crate::on_each_driver::run;
use crate::scene::{Scene, eventually, key, pattern, room};

const MIB: usize = 1 << 20;
/// What is behind an object in a device's memory.
const BESIDE: u8 = 0xee;

/// A device.
struct Gpu {
    machine: FakeMachine,
    device: Device,
    stream: Stream,
}

impl Gpu {
    fn new(options: FakeOptions) -> Self {
        let machine = FakeMachine::new(3);
        let device = Device::fake(&machine, machine.add_device(options)).expect("added");
        let stream = Stream::new(&device, StreamOptions::default()).expect("a stream");
        Self {
            machine,
            device,
            stream,
        }
    }

    /// Memory of it, full of these bytes.
    async fn full_of(&self, bytes: &[u8]) -> DeviceSegment {
        let region = DeviceRegion::alloc(&self.device, bytes.len() as u64).expect("memory");
        let mut from = arena().alloc(bytes.len()).expect("room");
        from.as_mut_slice().copy_from_slice(bytes);
        let (filled, _) = self.stream.upload(from, 0, &region).await;
        filled.expect("filled");
        DeviceSegment::new(region, self.stream.clone())
    }

    async fn bytes_of(&self, memory: &DeviceSegment) -> Vec<u8> {
        let len = usize::try_from(memory.len_bytes()).expect("little");
        let to = arena().alloc(len).expect("room").expose();
        memory.download(to.clone()).await.expect("read");
        to.to_vec()
    }
}

/// So many bytes of one memory in three pieces, the last of them first; of little, in one.
fn pieces(memory: &DeviceSegment, len: usize) -> Vec<DeviceSegment> {
    let len = len as u64;
    if len < 3 {
        return vec![memory.slice(0..len)];
    }
    let (one, two) = (len / 3, len / 2);
    vec![
        memory.slice(two..len),
        memory.slice(one..two),
        memory.slice(0..one),
    ]
}

/// The bytes of an object that lies in such pieces, as they lie in memory.
fn turned(bytes: &[u8]) -> Vec<u8> {
    if bytes.len() < 3 {
        return bytes.to_vec();
    }
    let (one, two) = (bytes.len() / 3, bytes.len() / 2);
    let last = bytes.len() - two;
    let middle = last + (two - one);
    [&bytes[middle..], &bytes[last..middle], &bytes[..last]].concat()
}

fn hit(fetched: Result<DeviceFetched, DeviceStoreError>) -> usize {
    match fetched.expect("an answer") {
        DeviceFetched::Hit { len_bytes, .. } => len_bytes,
        missed => panic!("{missed:?}"),
    }
}

const LENGTHS: [usize; 5] = [0, 1, 4097, 70_000, 3 * MIB + 5];

/// What is put from a device is what is got into memory, and the other way round.
async fn there_and_back(scene: &Scene, client: &ClusterClient, first: usize, options: PutOptions) {
    let gpu = Gpu::new(FakeOptions::default());
    let devices = DeviceClient::new(client.clone(), 8 * MIB);
    for (n, len) in (first..).zip(LENGTHS) {
        let bytes = pattern(n, len);
        let memory = [&turned(bytes.as_slice())[..], &[BESIDE; 9]].concat();
        let memory = gpu.full_of(&memory).await;
        let from = pieces(&memory, len);
        let stored = devices.put(&key(n), &from, options).await;
        assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
        scene.expect_bytes(client, &key(n), &bytes).await;
        let again = devices.put(&key(n), &from, options).await;
        assert!(matches!(again, Ok(Stored::Exists { .. })), "{again:?}");
        // From memory, and into a device's that is longer.
        let other = pattern(n + 1, len);
        let name = key(n + 500);
        let stored = client.put(&name, Value::new(other.clone()), options);
        stored.await.expect("stored");
        let to = gpu.full_of(&vec![BESIDE; len + 100]).await;
        let mut parts = pieces(&to, len);
        parts.push(to.slice(len as u64..len as u64 + 100));
        assert_eq!(hit(devices.get(&key(n + 500), &parts).await), len);
        let found = gpu.bytes_of(&to).await;
        assert!(found[..len] == turned(other.as_slice()), "{len}");
        assert_eq!(found[len..], [BESIDE; 100], "{len}");
    }
    let missed = devices.get(&key(first + 400), &[]).await;
    assert_eq!(missed, Ok(DeviceFetched::Miss { is_known: true }));
    assert_eq!(gpu.machine.counts().unpinned, 0);
}

#[test]
fn devices_and_memory_put_and_get_the_same() {
    run(1, || async {
        let scene = Scene::of(2, 128 << 20).await;
        let (inside, outside) = (scene.inside(0).await, scene.client().await);
        let in_parts = PutOptions {
            stripe_len: Some(1 << 20),
            ..PutOptions::default()
        };
        there_and_back(&scene, &outside, 0, PutOptions::default()).await;
        there_and_back(&scene, &outside, 1000, in_parts).await;
        there_and_back(&scene, &inside, 2000, PutOptions::default()).await;
    });
}

#[test]
fn batches_keep_their_order_and_their_bound() {
    run(1, || async {
        const COUNT: usize = 60;
        let len = |n: usize| [4096, 0, 300_000, 17][n % 4];
        let scene = Scene::of(2, 128 << 20).await;
        let gpu = Gpu::new(FakeOptions::default());
        // Less than a group: one after the other.
        for bound in [1, 64 * MIB] {
            let devices = DeviceClient::new(scene.client().await, bound);
            let name = |n: usize| key(n + bound);
            let mut objects = Vec::new();
            for n in (0..COUNT).filter(|n| n % 5 != 1) {
                let bytes = pattern(n, len(n).max(1));
                let memory = gpu.full_of(bytes.as_slice()).await;
                objects.push((name(n), vec![memory.slice(0..len(n) as u64)]));
            }
            for stored in devices.put_all(&objects, PutOptions::default()).await {
                assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
            }
            let mut wanted = Vec::new();
            for n in 0..COUNT {
                let memory = gpu.full_of(&vec![BESIDE; len(n) + 3]).await;
                wanted.push((name(n), vec![memory]));
            }
            let fetched = devices.get_all(&wanted).await;
            assert_eq!(fetched.len(), COUNT);
            for (n, fetched) in fetched.into_iter().enumerate() {
                let found = gpu.bytes_of(&wanted[n].1[0]).await;
                if n % 5 == 1 {
                    assert_eq!(fetched, Ok(DeviceFetched::Miss { is_known: true }));
                    assert!(found.iter().all(|&byte| byte == BESIDE), "{n}");
                    continue;
                }
                assert_eq!(hit(fetched), len(n), "{n}");
                assert!(found[..len(n)] == *pattern(n, len(n)).as_slice(), "{n}");
                assert_eq!(found[len(n)..], [BESIDE; 3], "{n}");
            }
        }
        assert!(
            DeviceClient::new(scene.client().await, 1)
                .get_all(&[])
                .await
                .is_empty()
        );
    });
}

#[test]
fn what_a_device_does_not_copy_fails_alone_and_is_not_put() {
    run(1, || async {
        let scene = Scene::of(1, 64 << 20).await;
        let client = scene.client().await;
        let devices = DeviceClient::new(client.clone(), 8 * MIB);
        let gpu = Gpu::new(FakeOptions::default());
        let mut objects = Vec::new();
        for n in 0..3 {
            let memory = gpu.full_of(pattern(n, 5000).as_slice()).await;
            objects.push((key(n), vec![memory]));
        }
        let keys: Vec<_> = (0..3).map(key).collect();
        let refused = |after| Fault::Refused {
            after,
            code: 719_000,
        };
        gpu.machine.inject(0, refused(1));
        let stored = devices.put_all(&objects, PutOptions::default()).await;
        let error = stored[1].expect_err("refused");
        assert!(matches!(
            error,
            DeviceStoreError::Device(DeviceFault::Copy(_))
        ));
        assert!(error.is_retryable() && !error.is_corruption());
        assert!(stored[0].is_ok() && stored[2].is_ok(), "{stored:?}");
        assert_eq!(client.exists(&keys).await, Ok(vec![true, false, true]));
        devices
            .put(&key(1), &objects[1].1, PutOptions::default())
            .await
            .expect("now");
        gpu.machine.inject(0, refused(2));
        let fetched = devices.get_all(&objects).await;
        assert!(fetched[0].is_ok() && fetched[1].is_ok(), "{fetched:?}");
        assert!(matches!(fetched[2], Err(DeviceStoreError::Device(_))));
        assert_eq!(hit(devices.get(&key(2), &objects[2].1).await), 5000);
        // Too little memory is what the store says of too little room, and nothing is written.
        let little = gpu.full_of(&[BESIDE; 10]).await;
        let failed = devices.get(&key(0), from_ref(&little)).await;
        let of_memory = client.get(&key(0), room(10)).await.expect_err("too long");
        assert_eq!(failed, Err(DeviceStoreError::Store(of_memory.error)));
        assert_eq!(gpu.bytes_of(&little).await, [BESIDE; 10]);
        // Longer than what this core's memory is in.
        let region = DeviceRegion::alloc(&gpu.device, 65 << 20).expect("memory");
        let long = DeviceSegment::new(region, gpu.stream.clone());
        let error = devices.put(&key(9), &[long], PutOptions::default()).await;
        let error = error.expect_err("no room");
        assert_eq!(
            error,
            DeviceStoreError::NoRoom {
                len_bytes: 65 << 20
            }
        );
        gpu.machine.inject(0, Fault::Lost);
        let error = devices
            .put(&key(9), &objects[0].1, PutOptions::default())
            .await;
        assert!(!error.expect_err("lost").is_retryable());
        let missed = devices.get(&key(9), &objects[0].1).await;
        assert_eq!(missed, Ok(DeviceFetched::Miss { is_known: true }));
    });
}

#[test]
fn dropped_futures_give_everything_back() {
    run(1, || async {
        let scene = Scene::of(1, 64 << 20).await;
        let devices = DeviceClient::new(scene.client().await, 2 * MIB);
        let gpu = Gpu::new(FakeOptions::default());
        let memory = gpu.full_of(pattern(1, MIB).as_slice()).await;
        devices
            .put(&key(0), from_ref(&memory), PutOptions::default())
            .await
            .expect("put");
        drop(memory);
        let used = arena().used_bytes();
        for micros in [0, 50, 300, 2000] {
            let patience = Duration::from_micros(micros);
            let memory = gpu.full_of(&vec![BESIDE; MIB]).await;
            let objects = vec![(key(0), vec![memory.clone()]); 12];
            // Either may be done already.
            drop(time::timeout(patience, devices.get_all(&objects)).await);
            let fresh = (0..12).map(|n| (key(1 + n), vec![memory.clone()]));
            let fresh: Vec<_> = fresh.collect();
            let upsert = PutOptions {
                kind: lunette_kvstore_proto::version::WriteKind::Upsert,
                ..PutOptions::default()
            };
            drop(time::timeout(patience, devices.put_all(&fresh, upsert)).await);
        }
        eventually("the device has let go", async || {
            gpu.machine.counts().allocations == 0
        })
        .await;
        // What lies in the store, on the same core, stays.
        let kept = 13 * (MIB + 4096);
        eventually("room is back", async || arena().used_bytes() <= used + kept).await;
        let memory = gpu.full_of(&vec![0; MIB]).await;
        assert_eq!(hit(devices.get(&key(0), from_ref(&memory)).await), MIB);
        assert!(gpu.bytes_of(&memory).await == pattern(1, MIB).as_slice());
    });
}

#[test]
fn groups_are_with_the_device_and_with_the_store_at_the_same_time() {
    // What is lost on the way takes longer to come again than all of this takes.
    let options = WorldOptions {
        losses_per_mille: 0,
        ..WorldOptions::default()
    };
    let mut world = World::new(5, options);
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let process = world.start(host, 1, CoreOptions::default());
    let took = world.spawn(process, 0, || async {
        const COUNT: usize = 12;
        let scene = Scene::of(1, 256 << 20).await;
        let devices = DeviceClient::new(scene.client().await, 64 * MIB);
        // About as long as the store takes for one.
        let gpu = Gpu::new(FakeOptions {
            bytes_per_second: 1_000_000_000,
            ..FakeOptions::default()
        });
        let mut objects = Vec::new();
        for n in 0..COUNT {
            let memory = gpu.full_of(pattern(n, 4 * MIB).as_slice()).await;
            objects.push((key(n), vec![memory]));
        }
        for stored in devices.put_all(&objects, PutOptions::default()).await {
            stored.expect("stored");
        }
        // Whatever way gets go once they are known has been found by then.
        for fetched in devices.get_all(&objects).await {
            hit(fetched);
        }
        let began = time::now();
        for (key, memory) in &objects {
            hit(devices.get(key, memory).await);
        }
        let one_by_one = time::now().since(began);
        let began = time::now();
        for fetched in devices.get_all(&objects).await {
            hit(fetched);
        }
        (one_by_one, time::now().since(began))
    });
    let until = world.now() + Duration::from_secs(600);
    assert!(world.run_until(until, || took.is_there()));
    let (one_by_one, together) = took.take().expect("it is there");
    assert!(
        together < one_by_one * 3 / 4,
        "{together:?} of {one_by_one:?}"
    );
}
