//! Objects in memory of devices: of those that are registered, and of those that come.

use lunette_gpu::fake::{FakeMachine, FakeOptions, Fault};
use lunette_gpu::{Device, DeviceRegion, Stream, StreamOptions};
use lunette_p2p::{
    Block, Dtype, FollowOptions, Held, HoldFault, OfferOptions, Parts, ReceiveOptions, Slice,
    SliceOptions, SourceFault, Store, Tensor,
};
use lunette_runtime::arena;
use lunette_transfer::engine::{DeviceFault, DeviceSegment};

use crate::scene::{
    Coordinator, LENS, LONG, assert_is_the_object, fetch, in_chunks, name, pattern, register,
    resumed, run, until_alone,
};

/// What lies in memory before anything comes.
const BEFORE: u8 = 0xee;

struct Gpu {
    machine: FakeMachine,
    device: Device,
    stream: Stream,
}

impl Gpu {
    fn new() -> Self {
        let machine = FakeMachine::new(5);
        let number = machine.add_device(FakeOptions::default());
        let device = Device::fake(&machine, number).expect("added");
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
        let memory = DeviceSegment::new(region, self.stream.clone());
        let from = arena().alloc(bytes.len()).expect("room");
        let from = from.expose();
        from.copy_in(0, bytes);
        memory.upload(from).await.expect("filled");
        memory
    }

    /// The buffers of the object, as `bytes` makes them.
    async fn buffers(&self, bytes: impl Fn(usize, usize) -> Vec<u8>) -> Vec<DeviceSegment> {
        let mut buffers = Vec::new();
        for (seed, len) in LENS.into_iter().enumerate() {
            buffers.push(self.full_of(&bytes(len, seed)).await);
        }
        buffers
    }

    async fn empty(&self) -> Vec<DeviceSegment> {
        self.buffers(|len, _| vec![BEFORE; len]).await
    }
}

async fn bytes_of(memory: &DeviceSegment) -> Vec<u8> {
    let len = usize::try_from(memory.len_bytes()).expect("little");
    let to = arena().alloc(len).expect("room").expose();
    memory.download(to.clone()).await.expect("read");
    to.to_vec()
}

async fn assert_is_there(memory: &[DeviceSegment]) {
    for (seed, (memory, len)) in memory.iter().zip(LENS).enumerate() {
        assert!(bytes_of(memory).await == pattern(len, seed), "{seed}");
    }
}

async fn begin(store: &Store, memory: &[DeviceSegment], options: ReceiveOptions) -> Held {
    let object = name("o");
    let receiving = store.receive_devices(&object, memory.to_vec(), options);
    receiving.await.expect("begun")
}

#[test]
fn what_is_in_one_devices_memory_comes_into_anothers_and_is_served_from_there() {
    run(async || {
        let coordinator = Coordinator::start();
        let (one, two) = (Gpu::new(), Gpu::new());
        let origin = coordinator.store().await;
        let (object, given) = (name("o"), one.buffers(pattern).await);
        let registering = origin.register_devices(&object, given.clone(), Vec::new(), in_chunks());
        let registered = registering.await.expect("registered");
        let (receiver, room) = (coordinator.store().await, two.empty().await);
        let held = begin(&receiver, &room, ReceiveOptions::default()).await;
        held.whole(LONG).await.expect("all of it");
        assert_is_there(&room).await;
        assert_eq!((held.device_fault(), held.disk_fault()), (None, None));
        // From the first into memory, and, when that is gone, from the second.
        let (third, buffers) = fetch(&coordinator.store().await, "o").await;
        assert_is_the_object(&buffers);
        third.unregister().await;
        assert_eq!(registered.unregister().await.len(), 0, "nothing was lent");
        assert_eq!(origin.engine().segments(), 0);
        drop((given, buffers));
        until_alone(&receiver, "o", true).await;
        let (_fourth, buffers) = fetch(&coordinator.store_over_connections().await, "o").await;
        assert_is_the_object(&buffers);
        held.unregister().await;
        assert_eq!(receiver.engine().segments(), 0);
        drop(room);
        // Nobody keeps any of it.
        for gpu in [one, two] {
            let counts = gpu.machine.counts();
            assert_eq!((counts.allocations, counts.unpinned), (0, 0));
        }
    });
}

/// Tensors of an update, each a buffer of its own.
const UPDATE_LENS: [usize; 5] = [40 << 10, 60_000, 100_000, 777, 90 << 10];

#[test]
fn updates_go_from_one_devices_memory_through_slots_in_anothers() {
    run(async || {
        let coordinator = Coordinator::start();
        let (one, two) = (Gpu::new(), Gpu::new());
        let (origin, rank) = (coordinator.store().await, coordinator.store().await);
        let (mut buffers, mut tensors) = (Vec::new(), Vec::new());
        for (seed, len) in UPDATE_LENS.into_iter().enumerate() {
            buffers.push(one.full_of(&pattern(len, seed)).await);
            let (name, buffer) = (format!("t{seed}"), u32::try_from(seed).expect("few"));
            let shape = vec![len as u64];
            tensors.push(Tensor::whole(name, Dtype::U8, shape, buffer, 0));
        }
        let options = OfferOptions {
            bucket_bytes: 128 << 10,
            register: in_chunks(),
        };
        let update = name("w");
        let offered = origin.offer(&update, buffers.clone(), tensors, options);
        let offered = offered.await.expect("offered");
        for parts in [None, Some((100_u64, 500_u64))] {
            let manifest = rank.offered(&name("w"), LONG).await.expect("told");
            let len = usize::try_from(manifest.slot_bytes()).expect("small");
            let mut slots = Vec::new();
            for _ in 0..2 {
                slots.push(two.full_of(&vec![BEFORE; len]).await);
            }
            let block = |(start, len)| Block {
                start: vec![start],
                shape: vec![len],
            };
            let blocks = parts.map(|part| {
                let names = (0..UPDATE_LENS.len()).map(|seed| format!("t{seed}"));
                names.map(|name| (name, block(part))).collect()
            });
            let options = FollowOptions {
                parts: blocks.map_or(Parts::All, |blocks| Parts::Of {
                    blocks,
                    keep_chunks: false,
                }),
                patience: LONG,
                ..FollowOptions::default()
            };
            let update = rank.follow(&name("w"), manifest, slots.clone(), options);
            let update = update.expect("begun");
            let (mut copied, mut taken) = (None, 0);
            while let Some(lent) = update.next(copied).await.expect("a bucket") {
                for tensor in &lent.tensors {
                    let seed: usize = tensor.name[1..].parse().expect("a number");
                    let len = tensor.len_bytes().expect("bytes");
                    let slot = &slots[tensor.buffer as usize];
                    let at = tensor.offset_bytes;
                    let found = bytes_of(&slot.slice(at..at + len)).await;
                    let first = usize::try_from(tensor.block.start[0]).expect("small");
                    let expected = pattern(UPDATE_LENS[seed], seed);
                    assert!(found == expected[first..first + found.len()], "{tensor:?}");
                    taken += 1;
                }
                copied = Some(lent.bucket);
            }
            assert_eq!(taken, UPDATE_LENS.len());
            update.close().await;
        }
        offered.withdraw().await;
        drop((buffers, offered));
        for gpu in [one, two] {
            assert_eq!(gpu.machine.counts().allocations, 0);
        }
    });
}

#[test]
fn what_a_device_has_already_is_not_fetched() {
    run(async || {
        let coordinator = Coordinator::start();
        let (_origin, _held) = coordinator.origin("o").await;
        let gpu = Gpu::new();
        let there = |len: usize, seed| {
            let mut bytes = pattern(len, seed);
            bytes[len / 2] ^= 1;
            bytes
        };
        let (store, room) = (coordinator.store().await, gpu.buffers(there).await);
        let held = begin(&store, &room, resumed()).await;
        held.whole(LONG).await.expect("all of it");
        assert_is_there(&room).await;
        let read_bytes = store.engine().statistics().read_bytes;
        // A chunk of each of the long buffers, and all of the short one.
        assert_eq!(read_bytes, 2 * (64 << 10) + LENS[1] as u64);
        let (object, short) = (name("o"), room[..2].to_vec());
        let other = coordinator.store().await;
        let refused = other.receive_devices(&object, short, ReceiveOptions::default());
        let fault = refused.await.expect_err("one is missing");
        let (given, wanted) = (2, 3);
        assert_eq!(fault, HoldFault::WrongCount { given, wanted });
    });
}

#[test]
fn parts_of_tensors_come_into_a_devices_memory() {
    run(async || {
        let coordinator = Coordinator::start();
        let (gpu, origin) = (Gpu::new(), coordinator.store().await);
        let (rows, columns) = (128, 640);
        let matrix = pattern(128 * 640, 3);
        let memory = gpu.full_of(&matrix).await;
        let tensor = Tensor::whole("m".into(), Dtype::U8, vec![rows, columns], 0, 0);
        let object = name("o");
        let registering = origin.register_devices(&object, vec![memory], vec![tensor], in_chunks());
        let _registered = registering.await.expect("registered");
        for keep_chunks in [true, false] {
            let store = coordinator.store().await;
            let room = gpu.full_of(&vec![BEFORE; 128 * 10 + 5]).await;
            let slice = Slice {
                tensor: "m".into(),
                dtype: Dtype::U8,
                shape: vec![rows, columns],
                block: Block {
                    start: vec![0, 300],
                    shape: vec![rows, 10],
                },
                buffer: 0,
                offset_bytes: 5,
            };
            let options = SliceOptions {
                keep_chunks,
                ..SliceOptions::default()
            };
            let (devices, slices) = (vec![room.clone()], [slice]);
            let receiving = store.receive_slices_devices(&object, devices, &slices, options);
            let held = receiving.await.expect("begun");
            held.whole(LONG).await.expect("all of it");
            let found = bytes_of(&room).await;
            assert_eq!(found[..5], [BEFORE; 5]);
            let expected = matrix.chunks(640).flat_map(|row| &row[300..310]);
            assert!(found[5..].iter().eq(expected), "kept: {keep_chunks}");
        }
    });
}

#[test]
fn a_copy_that_a_device_refuses_is_tried_again_and_a_device_that_is_lost_is_told() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let _registered = register(&origin, "o").await;
        let gpu = Gpu::new();
        let (store, room) = (coordinator.store().await, gpu.empty().await);
        let refused = Fault::Refused {
            after: 3,
            code: 719_000,
        };
        gpu.machine.inject(0, refused);
        let held = begin(&store, &room, ReceiveOptions::default()).await;
        held.whole(LONG).await.expect("all of it");
        assert_is_there(&room).await;
        let fault = held.device_fault().expect("one was refused");
        assert!(matches!(fault, DeviceFault::Copy(_)), "{fault}");
        held.unregister().await;
        let held = begin(&store, &room, ReceiveOptions::default()).await;
        gpu.machine.inject(0, Fault::Lost);
        held.not_written().await;
        let fault = held.device_fault().expect("it is lost");
        assert!(!fault.is_retryable(), "{fault}");
        assert!(held.progress().held_bytes < held.progress().len_bytes);
        held.unregister().await;
        assert_eq!(store.engine().segments(), 0);
        // What cannot be read is not registered.
        let object = name("lost");
        let refused = origin.register_devices(&object, room, Vec::new(), in_chunks());
        let fault = refused.await.expect_err("it is lost");
        let is_unreadable = |fault: &HoldFault| {
            matches!(
                fault,
                HoldFault::Source(SourceFault::Unreadable { buffer: 0, .. })
            )
        };
        assert!(is_unreadable(&fault), "{fault}");
    });
}
