//! Objects that come from devices and go to them, on the fake device.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Deref;
use std::slice::from_ref;
use std::time::Duration;

use futures_util::future::join;
use lunette_gpu::fake::{FakeMachine, FakeOptions, Fault};
use lunette_kvstore::{
    ClusterClient, DeviceClient, DeviceFetched, DeviceStoreError, PutOptions, Stored, Value,
};
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, arena, block_on, time};
use lunette_transfer::engine::{DeviceFault, DeviceSegment};

use crate::gpu::Gpu;
use crate::on_each_driver::run;
use crate::scene::{Scene, eventually, key, pattern, room};

const MIB: usize = 1 << 20;
/// What is behind an object in a device's memory.
const BESIDE: u8 = 0xee;

/// A device, and the machine that has it.
struct Fake {
    machine: FakeMachine,
    gpu: Gpu,
}

impl Fake {
    fn new(options: FakeOptions) -> Self {
        let machine = FakeMachine::new(3);
        let gpu = Gpu::open(&machine, machine.add_device(options));
        Self { machine, gpu }
    }
}

impl Deref for Fake {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.gpu
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

/// The bytes of the pieces, one after the other, whose memory nobody has changed.
async fn untouched(gpu: &Gpu, memory: &DeviceSegment, pieces: &[DeviceSegment]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        assert_eq!(piece.region().name().index, memory.region().name().index);
        bytes.extend(gpu.bytes_of(piece).await);
    }
    bytes
}

fn on_core<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send) {
    block_on(None, CoreOptions::default(), test).expect("a core");
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
    let gpu = Fake::new(FakeOptions::default());
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
        let gpu = Fake::new(FakeOptions::default());
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
        let gpu = Fake::new(FakeOptions::default());
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
        gpu.machine.inject(0, Fault::Lost);
        let error = devices
            .put(&key(9), &objects[0].1, PutOptions::default())
            .await;
        assert!(!error.expect_err("lost").is_retryable());
        let missed = devices.get(&key(9), &objects[0].1).await;
        assert_eq!(missed, Ok(DeviceFetched::Miss { is_known: true }));
    });
}

/// Part by part, with less staged than the object has.
#[test]
fn long_objects_go_in_parts() {
    run(1, || async {
        const PART: u32 = 5 << 20;
        let scene = Scene::of(2, 512 << 20).await;
        let (outside, inside) = (scene.client().await, scene.inside(0).await);
        let gpu = Fake::new(FakeOptions::default());
        // One part at a time, whatever the bound says, and a few.
        let cases = [
            (&outside, 1, 41 * MIB + 5, Some(PART)),
            (&outside, 24 * MIB, 66 * MIB, None),
            (&inside, 24 * MIB, 41 * MIB + 5, Some(PART)),
        ];
        for (n, (client, bound, len, stripe_len)) in cases.into_iter().enumerate() {
            let devices = DeviceClient::new(client.clone(), bound);
            let options = PutOptions {
                stripe_len,
                ..PutOptions::default()
            };
            let bytes = pattern(n, MIB - 1).as_slice().repeat(len / MIB + 1);
            let bytes = &bytes[..len];
            let memory = gpu.full_of(bytes).await;
            let from = pieces(&memory, len);
            let stored = devices.put(&key(n), &from, options).await;
            assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
            let again = devices.put(&key(n), &from, options).await;
            assert!(matches!(again, Ok(Stored::Exists { .. })), "{again:?}");
            let to = gpu.full_of(&vec![BESIDE; len + MIB]).await;
            let to = to.slice(0..(len + 9) as u64);
            assert_eq!(hit(devices.get(&key(n), from_ref(&to)).await), len);
            let turned = untouched(&gpu, &memory, &from).await;
            let found = gpu.bytes_of(&to).await;
            assert!(found[..len] == turned, "{len}");
            assert_eq!(found[len..], [BESIDE; 9]);
            // A short one, and none, into as much memory; too little memory.
            let other = Value::new(pattern(7, 5000));
            client
                .put(&key(n + 100), other, options)
                .await
                .expect("put");
            assert_eq!(hit(devices.get(&key(n + 100), from_ref(&to)).await), 5000);
            let missed = devices.get(&key(n + 200), from_ref(&to)).await;
            assert_eq!(missed, Ok(DeviceFetched::Miss { is_known: true }));
            let little = to.slice(0..len as u64 - 1);
            let error = devices
                .get(&key(n), from_ref(&little))
                .await
                .expect_err("too little");
            assert!(matches!(error, DeviceStoreError::Store(_)), "{error:?}");
            client
                .remove(&[key(n)])
                .await
                .pop()
                .expect("one")
                .expect("removed");
        }
    });
}

/// Of a long object too, what fails leaves none.
#[test]
fn what_fails_of_a_long_object_is_not_put() {
    run(1, || async {
        const LEN: usize = 34 * MIB;
        let scene = Scene::of(1, 256 << 20).await;
        let client = scene.client().await;
        let devices = DeviceClient::new(client.clone(), 12 * MIB);
        let gpu = Fake::new(FakeOptions::default());
        let memory = gpu.full_of(&vec![7; LEN]).await;
        let options = PutOptions {
            stripe_len: Some(4 << 20),
            ..PutOptions::default()
        };
        let refused = |after| Fault::Refused {
            after,
            code: 719_000,
        };
        gpu.machine.inject(0, refused(3));
        let error = devices.put(&key(0), from_ref(&memory), options).await;
        let error = error.expect_err("refused");
        assert!(matches!(error, DeviceStoreError::Device(_)), "{error:?}");
        assert_eq!(client.exists(&[key(0)]).await, Ok(vec![false]));
        let entries = async || {
            let stats = client.stat().await.into_iter();
            stats
                .map(|(_, stat)| stat.expect("it answers").shards.entries)
                .sum::<u64>()
        };
        eventually("parts are removed", async || entries().await == 0).await;
        let stored = devices.put(&key(0), from_ref(&memory), options).await;
        assert!(stored.is_ok(), "{stored:?}");
        gpu.machine.inject(0, refused(1));
        let error = devices.get(&key(0), from_ref(&memory)).await;
        assert!(
            matches!(error, Err(DeviceStoreError::Device(_))),
            "{error:?}"
        );
        assert_eq!(hit(devices.get(&key(0), from_ref(&memory)).await), LEN);
    });
}

const LONG: usize = 34 * MIB;

fn in_short_parts(kind: WriteKind) -> PutOptions {
    PutOptions {
        kind,
        stripe_len: Some(4 << 20),
        ..PutOptions::default()
    }
}

#[test]
fn a_long_object_that_has_lost_parts_is_missed_and_can_be_put_again() {
    on_core(|| async {
        let mut scene = Scene::of(2, 256 << 20).await;
        let devices = DeviceClient::new(scene.client().await, 12 * MIB);
        let gpu = Fake::new(FakeOptions::default());
        let memory = gpu.full_of(&vec![7; LONG]).await;
        let options = in_short_parts(WriteKind::Put);
        let stored = devices.put(&key(0), from_ref(&memory), options).await;
        assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
        scene.remove_first().await;
        eventually("it is missed", async || {
            let fetched = devices.get(&key(0), from_ref(&memory)).await;
            fetched == Ok(DeviceFetched::Miss { is_known: true })
        })
        .await;
        let stored = devices.put(&key(0), from_ref(&memory), options).await;
        assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
        assert_eq!(hit(devices.get(&key(0), from_ref(&memory)).await), LONG);
    });
}

/// Whoever reads finds parts of the former one gone, and looks again.
#[test]
fn a_long_object_that_is_replaced_while_it_is_read_is_of_one_piece() {
    on_core(|| async {
        let scene = Scene::of(2, 512 << 20).await;
        let writer = DeviceClient::new(scene.client().await, 12 * MIB);
        let reader = DeviceClient::new(scene.client().await, 12 * MIB);
        let gpu = Fake::new(FakeOptions::default());
        let upsert = in_short_parts(WriteKind::Upsert);
        let values = [
            gpu.full_of(&vec![1; LONG]).await,
            gpu.full_of(&vec![2; LONG - 5]).await,
        ];
        let to = gpu.full_of(&vec![0; LONG]).await;
        let stored = writer.put(&key(0), from_ref(&values[0]), upsert).await;
        stored.expect("stored");
        for n in 1..6 {
            let value = from_ref(&values[n % 2]);
            let name = key(0);
            let (replaced, fetched) = join(
                writer.put(&name, value, upsert),
                reader.get(&name, from_ref(&to)),
            )
            .await;
            replaced.expect("stored");
            let len = match fetched.expect("an answer") {
                DeviceFetched::Hit { len_bytes, .. } => len_bytes,
                // It was replaced each time that it was looked at.
                DeviceFetched::Miss { is_known } => {
                    assert!(!is_known);
                    continue;
                }
            };
            let bytes = gpu.bytes_of(&to.slice(0..len as u64)).await;
            let kind = if len == LONG { 1 } else { 2 };
            assert!(bytes.iter().all(|&byte| byte == kind), "{n}: {len}");
        }
    });
}

#[test]
fn dropped_futures_give_everything_back() {
    run(1, || async {
        let scene = Scene::of(1, 64 << 20).await;
        let devices = DeviceClient::new(scene.client().await, 2 * MIB);
        let gpu = Fake::new(FakeOptions::default());
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
                kind: WriteKind::Upsert,
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
        let gpu = Fake::new(FakeOptions {
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
