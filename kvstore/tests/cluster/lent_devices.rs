//! Memory of devices that threads lend, on a driver that the test builds: an access by the host ends the process.

use std::sync::Arc;
use std::time::Duration;

use lunette_gpu::{Device, Driver, EngineStream};
use lunette_kvstore::{
    DeviceLent, Got, Lent, PutOptions, ReservedHandle, StoreError, StoreErrorKind, StoreHandle,
    Stored,
};
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::arena::SharedMemory;
use lunette_runtime::{CoreOptions, block_on, time};
use lunette_transfer::engine::DeviceSegment;

use crate::gpu::Gpu;
use crate::scene::{Scene, eventually, key};
use crate::stub::stub;

const MIB: usize = 1 << 20;
/// What is behind an object in memory.
const BESIDE: u8 = 0xee;

/// A device whose memory a program lends.
struct Program {
    driver: Driver,
    gpu: Gpu,
    /// Held by everything that is lent.
    keeper: Arc<()>,
}

impl Program {
    fn new(name: &str) -> Self {
        let driver = Driver::probe_at(&stub(name, &[])).expect("it works");
        Self {
            driver,
            gpu: Gpu::of(Device::open_with(driver, 0).expect("one device")),
            keeper: Arc::new(()),
        }
    }

    fn lent(&self, memory: &DeviceSegment, at: usize, len: usize) -> Lent {
        self.lent_at(memory.region().address() + at as u64, len)
    }

    fn lent_at(&self, address: u64, len_bytes: usize) -> Lent {
        Lent::device(DeviceLent {
            driver: self.driver,
            device: 0,
            address,
            len_bytes,
            after: Arc::new([EngineStream::DEFAULT]),
            keeper: Arc::clone(&self.keeper) as _,
        })
    }

    /// Waits until everything that was lent has been let go of.
    async fn is_let_go_of(&self) {
        eventually("memory is let go of", async || {
            Arc::strong_count(&self.keeper) == 1
        })
        .await;
    }
}

fn bytes_of(n: usize, len: usize) -> Vec<u8> {
    let byte = |index| u8::try_from((index + n * 31) % 251).expect("small");
    (0..len).map(byte).collect()
}

fn host(bytes: &[u8]) -> (SharedMemory, Lent) {
    let memory = SharedMemory::owned(bytes.to_vec());
    let lent = Lent::whole(&memory);
    (memory, lent)
}

fn on_core<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send) {
    block_on(None, CoreOptions::default(), test).expect("a core");
}

fn len_of(got: &Result<Got, StoreError>) -> usize {
    match got {
        Ok(Got::Hit { len_bytes, .. }) => *len_bytes,
        other => panic!("{other:?}"),
    }
}

async fn expect(handle: &StoreHandle, n: usize, expected: &[u8]) {
    let found = handle.get_bytes(key(n)).await.expect("an answer");
    assert!(found.expect("it is there") == expected, "{n}");
}

#[test]
fn memory_of_devices_and_of_the_host_is_lent_alike() {
    on_core(|| async {
        let scene = Scene::of(2, 128 << 20).await;
        let program = Program::new("lent");
        let clients = [scene.client().await, scene.inside(0).await];
        for (round, client) in clients.into_iter().enumerate() {
            let handle = client.handle().expect("room for a task");
            for (n, len) in (round * 100..).zip([3, 5000, 300_000, 5 * MIB]) {
                let bytes = bytes_of(n, len);
                let region = program.gpu.full_of(&bytes).await;
                let (first, second) = (len / 3, len / 2);
                // Of an object some bytes are here, and some there.
                let (_, middle) = host(&bytes[first..second]);
                let from = vec![
                    program.lent(&region, 0, first),
                    middle,
                    program.lent(&region, second, len - second),
                ];
                let stored = handle.put(key(n), from, PutOptions::default()).await;
                assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
                expect(&handle, n, &bytes).await;
                let to = program.gpu.full_of(&vec![BESIDE; len + 7]).await;
                let (here, middle) = host(&vec![BESIDE; second - first]);
                let into = vec![
                    program.lent(&to, 0, first),
                    middle,
                    program.lent(&to, second, len - second + 7),
                ];
                assert_eq!(len_of(&handle.get(key(n), into).await), len);
                let found = program.gpu.bytes_of(&to).await;
                assert!(found[..first] == bytes[..first], "{len}");
                assert!(found[second..len] == bytes[second..], "{len}");
                assert_eq!(found[len..], [BESIDE; 7]);
                let here = here.into_bytes().expect("it is let go of");
                assert!(here == bytes[first..second], "{len}");
            }
            program.is_let_go_of().await;
        }
    });
}

#[test]
fn batches_are_of_both_and_keep_their_order() {
    on_core(|| async {
        const COUNT: usize = 40;
        let scene = Scene::of(2, 128 << 20).await;
        let program = Program::new("batches-lent");
        let handle = scene.inside(0).await.handle().expect("room for a task");
        let len = |n: usize| [100, 70_000, 300_000][n % 3];
        for (first, is_placed) in [(0, false), (1000, true)] {
            let mut objects = Vec::new();
            let mut regions = Vec::new();
            for n in (0..COUNT).filter(|n| n % 5 != 1) {
                let bytes = bytes_of(first + n, len(n));
                let piece = if n % 2 == 0 {
                    regions.push(program.gpu.full_of(&bytes).await);
                    program.lent(&regions[regions.len() - 1], 0, len(n))
                } else {
                    host(&bytes).1
                };
                objects.push((key(first + n), vec![piece]));
            }
            let stored = if is_placed {
                let placing = handle.place_all(objects, PutOptions::default()).await;
                placing.finish().await
            } else {
                handle.put_all(objects, PutOptions::default()).await
            };
            assert!(
                stored
                    .iter()
                    .all(|stored| matches!(stored, Ok(Stored::Written { .. })))
            );
            let mut wanted = Vec::new();
            let mut rooms = Vec::new();
            for n in 0..COUNT {
                if n % 3 == 0 {
                    let (memory, lent) = host(&vec![0; len(n)]);
                    wanted.push((key(first + n), vec![lent]));
                    rooms.push((Some(memory), None));
                } else {
                    let region = program.gpu.full_of(&vec![0; len(n)]).await;
                    wanted.push((key(first + n), vec![program.lent(&region, 0, len(n))]));
                    rooms.push((None, Some(region)));
                }
            }
            let got = if is_placed {
                handle.bring_all(wanted).await.finish()
            } else {
                handle.get_all(wanted).await
            };
            for (n, (got, room)) in got.iter().zip(rooms).enumerate() {
                if n % 5 == 1 {
                    assert!(matches!(got, Ok(Got::Miss { is_known: true })), "{got:?}");
                    continue;
                }
                assert_eq!(len_of(got), len(n));
                let found = match room {
                    (Some(memory), _) => memory.into_bytes().expect("it is let go of"),
                    (_, region) => program.gpu.bytes_of(&region.expect("one of both")).await,
                };
                assert!(found == bytes_of(first + n, len(n)), "{n}");
            }
        }
        program.is_let_go_of().await;
    });
}

#[test]
fn ranges_go_to_devices_and_come_from_them() {
    on_core(|| async {
        const LEN: usize = 100_000;
        let scene = Scene::of(1, 64 << 20).await;
        let program = Program::new("ranges-lent");
        let handle = scene.client().await.handle().expect("room for a task");
        let bytes = bytes_of(1, LEN);
        let region = program.gpu.full_of(&bytes).await;
        let keep = Duration::from_secs(30);
        let reserved = handle
            .reserve(key(1), LEN, PutOptions::default(), keep)
            .await;
        let Ok(ReservedHandle::Room(room)) = reserved else {
            panic!("{reserved:?}");
        };
        let (first, last) = (
            program.lent(&region, 0, 60_000),
            program.lent(&region, 60_000, 40_000),
        );
        assert_eq!(room.write(60_000, vec![last]).await, Ok(()));
        assert_eq!(room.write(0, vec![first]).await, Ok(()));
        room.commit().await.expect("all of it is there");
        expect(&handle, 1, &bytes).await;
        let to = program.gpu.full_of(&[BESIDE; 1000]).await;
        let range = |offset_bytes, len_bytes| ByteRange {
            offset_bytes,
            len_bytes,
        };
        let into = vec![program.lent(&to, 0, 300), program.lent(&to, 500, 200)];
        let ranges = vec![range(90_000, 300), range(7, 200)];
        let got = handle.get_ranges(key(1), ranges, into).await;
        assert_eq!(len_of(&got), 500);
        let found = program.gpu.bytes_of(&to).await;
        assert!(found[..300] == bytes[90_000..90_300]);
        assert!(found[500..700] == bytes[7..207]);
        assert!(found[300..500] == [BESIDE; 200] && found[700..] == [BESIDE; 300]);
        program.is_let_go_of().await;
    });
}

#[test]
fn what_is_not_a_devices_is_refused_alone() {
    on_core(|| async {
        let scene = Scene::of(1, 64 << 20).await;
        let program = Program::new("refused-lent");
        let handle = scene.client().await.handle().expect("room for a task");
        let region = program.gpu.full_of(&bytes_of(1, 5000)).await;
        let gone = program.gpu.full_of(&[1; 5000]).await.region().address();
        let (_here, host_memory) = host(&bytes_of(3, 10));
        let objects = vec![
            (key(1), vec![program.lent(&region, 0, 5000)]),
            (key(2), vec![program.lent_at(gone, 5000)]),
            (key(3), vec![host_memory]),
            // Longer than its allocation.
            (key(4), vec![program.lent(&region, 1, 5000)]),
        ];
        let stored = handle.put_all(objects.clone(), PutOptions::default()).await;
        let refused = Err(StoreErrorKind::NotOfDevice);
        let kinds: Vec<_> = stored
            .iter()
            .map(|stored| stored.map_err(|error| error.kind))
            .collect();
        assert!(kinds[0].is_ok() && kinds[2].is_ok(), "{kinds:?}");
        assert_eq!((kinds[1], kinds[3]), (refused, refused));
        let exists = handle.exists((1..5).map(key).collect()).await;
        assert_eq!(exists, [Ok(true), Ok(false), Ok(true), Ok(false)]);
        let got = handle.get(key(1), vec![program.lent_at(gone, 5000)]).await;
        assert_eq!(
            got.map_err(|error| error.kind),
            Err(StoreErrorKind::NotOfDevice)
        );
        // Too little memory is what it is of the host's.
        let little = handle.get(key(1), vec![program.lent(&region, 0, 10)]).await;
        let of_host = handle.get(key(1), vec![host(&[0; 10]).1]).await;
        assert_eq!(little, of_host);
        assert!(little.is_err());
        // Given up: the device goes on, and lets go.
        let upsert = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        for micros in [0, 200, 1000] {
            let pending = handle.giving_up().put_all(objects.clone(), upsert);
            drop(time::timeout(Duration::from_micros(micros), pending).await);
            let wanted = vec![(key(1), vec![program.lent(&region, 0, 5000)])];
            drop(time::timeout(Duration::from_micros(micros), handle.get_all(wanted)).await);
        }
        drop(objects);
        program.is_let_go_of().await;
        assert!(program.gpu.bytes_of(&region).await == bytes_of(1, 5000));
    });
}
