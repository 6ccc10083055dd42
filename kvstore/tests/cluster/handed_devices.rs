//! Objects whose bytes lie in memory of a device, which threads hand over to another node on this host.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use lunette_gpu::{Device, Driver, EngineStream};
use lunette_kvstore::{DeviceLent, Lent, PutOptions, StoreErrorKind, StoreHandle, Stored};
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::{CoreOptions, block_on};

use super::handed::{handed_over, handing};
use super::scene::key;
use super::threads::{bytes_of, coordinator, node_of, options};
use super::unasked::default_options;
use crate::gpu::Gpu;
use crate::stub::stub;

const MIB: usize = 1 << 20;
/// Objects that are copied from a device at a time.
const COPYING_MAX: usize = 64;

/// Memory of a device, as a program has it, which holds the bytes of object 0.
#[derive(Clone)]
struct Memory {
    driver: Driver,
    address: u64,
    /// Held by everything that is lent.
    keeper: Arc<()>,
}

impl Memory {
    fn lent(&self, at: usize, len_bytes: usize) -> Lent {
        Lent::device(DeviceLent {
            driver: self.driver,
            device: 0,
            address: self.address + at as u64,
            len_bytes,
            after: Arc::new([EngineStream::DEFAULT]),
            keeper: Arc::clone(&self.keeper) as _,
        })
    }

    fn is_let_go_of(&self) {
        let begun = Instant::now();
        while Arc::strong_count(&self.keeper) > 1 {
            assert!(begun.elapsed() < Duration::from_secs(20), "it is let go of");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs a test beside a core that has memory of a device.
fn with_memory(name: &'static str, len: usize, test: impl FnOnce(&Memory)) {
    let (told, memory) = mpsc::channel();
    let (end, is_over) = mpsc::channel::<()>();
    let core = thread::spawn(move || {
        block_on(None, CoreOptions::default(), || async move {
            let driver = Driver::probe_at(&stub(name, &[])).expect("it works");
            let gpu = Gpu::of(Device::open_with(driver, 0).expect("one device"));
            let memory = gpu.full_of(&bytes_of(0, len)).await;
            let address = memory.region().address();
            told.send((driver, address)).expect("it is waited for");
            // Until the other end is dropped.
            let _ended = is_over.recv();
        })
        .expect("a core");
    });
    let (driver, address) = memory.recv().expect("a device");
    let memory = Memory {
        driver,
        address,
        keeper: Arc::new(()),
    };
    test(&memory);
    memory.is_let_go_of();
    drop(end);
    core.join().expect("no panic");
}

fn upsert(handle: &StoreHandle, objects: Vec<(Vec<u8>, Vec<Lent>)>) {
    let options = PutOptions {
        kind: WriteKind::Upsert,
        ..PutOptions::default()
    };
    let stored = handle.put_all_waiting(objects, options);
    let is_written = |stored: &Result<_, _>| matches!(stored, Ok(Stored::Written { .. }));
    assert!(stored.iter().all(is_written), "{stored:?}");
}

#[test]
fn what_lies_in_memory_of_a_device_is_handed_over() {
    let (_coordinating, coordinator) = coordinator();
    let mut options = options(1, coordinator);
    options.memory_bytes = 256 * MIB as u64;
    let node = node_of(1, options);
    let host = handing(&node, default_options());
    let handle = host.handle();
    let len = 5 * MIB;
    let whole = bytes_of(0, len);
    with_memory("handed", len, |memory| {
        let places = [(5, 16), (0, 4096), (77, 70_001), (64, MIB), (1000, 4 * MIB)];
        let objects = places.iter().zip(0..);
        let objects = objects.map(|((at, len), n)| (key(n), vec![memory.lent(*at, *len)]));
        upsert(&handle, objects.collect());
        assert_eq!(handed_over(&node), places.len());
        for ((at, len), n) in places.iter().zip(0..) {
            let got = handle.get_bytes(key(n)).wait().expect("an answer");
            let got = got.expect("it is there");
            assert!(got == whole[*at..at + len], "{len} bytes");
        }
        // In pieces, of which none need be near another.
        let pieces = vec![memory.lent(9000, 777), memory.lent(3, 9), memory.lent(0, 1)];
        upsert(&handle, vec![(key(9), pieces)]);
        let got = handle.get_bytes(key(9)).wait();
        let expected = [&whole[9000..9777], &whole[3..12], &whole[..1]].concat();
        assert_eq!(got, Ok(Some(expected)));
        assert_eq!(handed_over(&node), places.len() + 1);
        // More than are copied at a time, and more bytes than may be on their way.
        let many = 0..3 * COPYING_MAX;
        let objects = many
            .clone()
            .map(|n| (key(n), vec![memory.lent(n, 1000 + n)]));
        upsert(&handle, objects.collect());
        for n in many.clone() {
            let got = handle.get_bytes(key(n)).wait().expect("an answer");
            assert!(got.is_some_and(|got| got == whole[n..1000 + 2 * n]), "{n}");
        }
        let long = 0..30;
        for _ in 0..2 {
            let objects = long
                .clone()
                .map(|n| (key(n), vec![memory.lent(n, 4 * MIB)]));
            upsert(&handle, objects.collect());
        }
        let got = handle.get_bytes(key(29)).wait().expect("an answer");
        assert!(got.is_some_and(|got| got == whole[29..4 * MIB + 29]));
        let handed = handed_over(&node) - (places.len() + 1 + many.len());
        assert!(handed > long.len(), "{handed}");
    });
}

#[test]
fn what_a_core_has_to_put_and_what_is_none_of_the_devices_are_left_to_cores() {
    let (_coordinating, coordinator) = coordinator();
    let node = node_of(1, options(1, coordinator));
    let host = handing(&node, default_options());
    let handle = host.handle();
    let len = 6 * MIB;
    let whole = bytes_of(0, len);
    with_memory("handed_by_cores", len, |memory| {
        // Of both, too long, of nothing, and well.
        let of_both = vec![memory.lent(0, 100), Lent::bytes(whole[100..200].to_vec())];
        let objects = vec![
            (key(0), of_both),
            (key(1), vec![memory.lent(0, 5 * MIB)]),
            (key(2), vec![memory.lent(0, 0)]),
            (key(3), vec![memory.lent(0, 300)]),
        ];
        upsert(&handle, objects);
        for (n, len) in [(0, 200), (1, 5 * MIB), (2, 0), (3, 300)] {
            let got = handle.get_bytes(key(n)).wait().expect("an answer");
            assert!(got.is_some_and(|got| got == whole[..len]), "{n}");
        }
        assert_eq!(handed_over(&node), 1);
        let nobodys = Memory {
            address: memory.address + (1 << 40),
            ..memory.clone()
        };
        let objects = vec![
            (key(4), vec![nobodys.lent(0, 100)]),
            (key(5), vec![memory.lent(0, 100)]),
        ];
        let stored = handle.put_all_waiting(objects, PutOptions::default());
        let kinds: Vec<_> = stored
            .iter()
            .map(|stored| stored.map_err(|error| error.kind))
            .collect();
        assert!(
            matches!(kinds[..], [Err(StoreErrorKind::NotOfDevice), Ok(_)]),
            "{stored:?}"
        );
        // What is dropped is let go of, wherever it was.
        let objects = (0..2 * COPYING_MAX).map(|n| (key(n), vec![memory.lent(n, 100_000)]));
        let mut dropped = handle.hand_over(objects.collect(), PutOptions::default());
        dropped.step();
        drop(dropped);
    });
}
