//! Receivers that are sharded otherwise than who registered.

use std::fs;
use std::time::Duration;

use lunette_p2p::{
    Block, BufferFile, Dtype, Held, HoldFault, LayoutFault, PlanFault, RegisterOptions, Slice,
    SliceOptions, Store, Tensor, TensorFault,
};
use lunette_runtime::arena::Exposed;
use lunette_runtime::time;

use crate::scene::{Coordinator, LONG, fetch, memory, name, patterned, run, until, until_alone};

/// A matrix that two ranks have in halves of its rows, and a vector that the first has whole.
const ROWS: u64 = 128;
const COLUMNS: u64 = 96;
const MATRIX: &str = "layers.0.weight";
const VECTOR: &str = "layers.0.norm";
const VECTOR_LEN: u64 = 5000;
/// Bytes before the matrix, as a header is.
const BEFORE: usize = 136;
const HALF_BYTES: usize = 128 * 96 * 4 / 2;

fn in_short_chunks() -> RegisterOptions {
    RegisterOptions {
        chunk_bytes: 4096,
        may_replace: false,
    }
}

/// What an element of the matrix is.
fn element(row: u64, column: u64) -> [u8; 4] {
    let flat = u32::try_from(row * COLUMNS + column).expect("small");
    flat.wrapping_mul(0x9e37_79b9).to_le_bytes()
}

fn block_bytes(block: &Block) -> Vec<u8> {
    let rows = block.start[0]..block.start[0] + block.shape[0];
    let columns = block.start[1]..block.start[1] + block.shape[1];
    let elements = rows.flat_map(|row| columns.clone().map(move |column| element(row, column)));
    elements.flatten().collect()
}

fn half(rank: u64) -> Block {
    Block::shard(&[ROWS, COLUMNS], 0, rank, 2)
}

/// The buffers of the two ranks, and their tensors.
fn model() -> (Vec<Exposed>, Vec<Tensor>) {
    let vector_bytes = usize::try_from(VECTOR_LEN).expect("small") * 2;
    let first = patterned(BEFORE + HALF_BYTES + vector_bytes, 1);
    let second = patterned(BEFORE + HALF_BYTES, 2);
    let mut tensors = Vec::new();
    for (buffer, memory) in (0..).zip([&first, &second]) {
        let block = half(u64::from(buffer));
        memory.copy_in(BEFORE, &block_bytes(&block));
        tensors.push(Tensor {
            name: MATRIX.into(),
            dtype: Dtype::F32,
            shape: vec![ROWS, COLUMNS],
            block,
            buffer,
            offset_bytes: BEFORE as u64,
        });
    }
    let at = (BEFORE + HALF_BYTES) as u64;
    let vector = Tensor::whole(VECTOR.into(), Dtype::Bf16, vec![VECTOR_LEN], 0, at);
    tensors.push(vector);
    (vec![first, second], tensors)
}

async fn register_model(store: &Store) -> Held {
    let (buffers, tensors) = model();
    let object = name("model");
    let registering = store.register_tensors(&object, buffers, tensors, in_short_chunks());
    registering.await.expect("registered")
}

/// A part of the matrix, 10 bytes into the first buffer.
fn slice_of(block: &Block) -> Slice {
    Slice {
        tensor: MATRIX.into(),
        dtype: Dtype::F32,
        shape: vec![ROWS, COLUMNS],
        block: block.clone(),
        buffer: 0,
        offset_bytes: 10,
    }
}

fn columns(rank: u64, ranks: u64) -> Block {
    Block::shard(&[ROWS, COLUMNS], 1, rank, ranks)
}

async fn receive_block(store: &Store, block: &Block, options: SliceOptions) -> (Held, Exposed) {
    let target = memory(10 + block_bytes(block).len());
    let (object, slices) = (name("model"), [slice_of(block)]);
    let receiving = store.receive_slices(&object, vec![target.clone()], &slices, options);
    (receiving.await.expect("received"), target)
}

fn assert_is_block(target: &Exposed, block: &Block) {
    let bytes = target.to_vec();
    assert!(bytes[10..] == block_bytes(block), "{block:?}");
    assert_eq!(bytes[..10], [0; 10], "nothing else was written");
}

#[test]
fn each_rank_gets_its_part_and_fetches_the_chunks_of_it() {
    run(async || reshard(&Coordinator::start()).await);
}

/// Three receivers want a third of the columns each, and one some rows.
pub(crate) async fn reshard(coordinator: &Coordinator) {
    let origin = coordinator.store().await;
    let registered = register_model(&origin).await;
    let options = SliceOptions::default();
    for rank in 0..3 {
        let receiver = coordinator.store().await;
        let block = columns(rank, 3);
        let (held, target) = receive_block(&receiver, &block, options).await;
        held.whole(LONG).await.expect("all of it");
        assert_is_block(&target, &block);
        assert_eq!(held.layout(), registered.layout());
        // What is given back is what was lent.
        let lent = held.unregister().await;
        assert_eq!((lent.len(), lent[0].len()), (1, target.len()));
    }
    let receiver = coordinator.store().await;
    let rows = Block {
        start: vec![60, 0],
        shape: vec![9, COLUMNS],
    };
    let (held, target) = receive_block(&receiver, &rows, options).await;
    held.whole(LONG).await.expect("all of it");
    assert_is_block(&target, &rows);
    // Four rows at the first half's end are in two chunks, five at the second's beginning in one.
    let progress = held.progress();
    assert_eq!(progress.held_bytes, progress.len_bytes);
    assert_eq!(progress.len_bytes, 3 * 4096);
    let read_bytes = receiver.engine().statistics().read_bytes;
    assert!(
        read_bytes < registered.shape().len_bytes() / 2,
        "{read_bytes}"
    );
}

#[test]
fn receivers_of_parts_feed_each_other_what_they_keep() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let registered = register_model(&origin).await;
        let (keeper, other) = (coordinator.store().await, coordinator.store().await);
        let block = half(0);
        let options = SliceOptions::default();
        let (held, _) = receive_block(&keeper, &block, options).await;
        held.whole(LONG).await.expect("all of it");
        registered.unregister().await;
        drop(origin);
        // It has no more than that, and whoever wants it has it from there.
        let (again, target) = receive_block(&other, &columns(1, 2), options).await;
        let some = |held: &Held| held.progress().held_bytes;
        until("the first half's columns are here", async || {
            some(&again) == some(&held)
        })
        .await;
        let waited = again.whole(Duration::ZERO).await;
        let incomplete = waited.expect_err("nobody has the second half");
        assert_eq!(incomplete.chunks - incomplete.held, HALF_CHUNKS);
        let bytes = target.to_vec();
        let upper = Block {
            start: vec![0, COLUMNS / 2],
            shape: vec![ROWS / 2, COLUMNS / 2],
        };
        let upper = block_bytes(&upper);
        assert!(bytes[10..10 + upper.len()] == upper);
    });
}

/// The chunks of one half of the matrix.
const HALF_CHUNKS: u32 = 7;

#[test]
fn ranks_that_share_chunks_do_not_all_ask_the_origin() {
    run(async || {
        let coordinator = Coordinator::start();
        let start = async || coordinator.store_over_connections().await;
        let origin = start().await;
        let registered = register_model(&origin).await;
        let mut ranks = Vec::new();
        for rank in 0..6 {
            let (store, block) = (start().await, columns(rank, 6));
            let (held, target) = receive_block(&store, &block, SliceOptions::default()).await;
            ranks.push((store, held, target, block));
        }
        for (_, held, target, block) in &ranks {
            held.whole(LONG).await.expect("all of it");
            assert_is_block(target, block);
        }
        // Each needs nearly every chunk of the matrix, for a sixth of its bytes.
        let served = |store: &Store| store.engine().statistics().served_read_bytes;
        let by_ranks: u64 = ranks.iter().map(|(store, ..)| served(store)).sum();
        let len_bytes = registered.shape().len_bytes();
        assert!(by_ranks > len_bytes, "{by_ranks} of {len_bytes} bytes");
    });
}

#[test]
fn who_keeps_no_chunks_is_no_holder() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let _registered = register_model(&origin).await;
        let receiver = coordinator.store().await;
        let options = SliceOptions {
            keep_chunks: false,
            ..SliceOptions::default()
        };
        let block = columns(1, 2);
        let (held, target) = receive_block(&receiver, &block, options).await;
        held.whole(LONG).await.expect("all of it");
        assert_is_block(&target, &block);
        assert_eq!(receiver.engine().segments(), 0);
        let found = origin.find(&name("model")).await.unwrap().expect("found");
        assert_eq!((found.whole, found.holders), (1, 1));
        let lent = held.unregister().await;
        assert_is_block(&lent[0], &block);
        let found = origin.find(&name("model")).await.unwrap();
        assert!(found.is_some(), "it was not its to remove");
    });
}

/// Of the half of the matrix, how many of its chunks are all its own.
const OWN_CHUNKS: u64 = 5;

#[test]
fn parts_that_are_here_already_are_not_fetched_again() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let registered = register_model(&origin).await;
        let block = half(0);
        let len = 10 + HALF_BYTES;
        // The second slice wants the same bytes behind the first.
        let mut slices = [slice_of(&block), slice_of(&block)];
        slices[1].offset_bytes = len as u64;
        let receiver = coordinator.store().await;
        let begin = async |buffer: Exposed, slices: &[Slice], keep_chunks| {
            let options = SliceOptions {
                keep_chunks,
                resume: true,
                version: None,
            };
            let object = name("model");
            let receiving = receiver.receive_slices(&object, vec![buffer], slices, options);
            receiving.await.expect("begun")
        };
        let mut buffer = memory(len + HALF_BYTES);
        for keep_chunks in [false, true] {
            for (slices, damaged, resumed) in [
                (&slices[..], 10, 0),
                (&slices[..], 10, OWN_CHUNKS),
                (&slices[..], 10 + HALF_BYTES / 2, OWN_CHUNKS - 1),
                (&slices[..], len + HALF_BYTES / 2, OWN_CHUNKS - 1),
                (&slices[..1], len + HALF_BYTES / 2, OWN_CHUNKS),
            ] {
                if resumed == 0 {
                    buffer = memory(len + HALF_BYTES);
                }
                buffer.copy_in(damaged, &[0xAA]);
                let read_before = receiver.engine().statistics().read_bytes;
                let held = begin(buffer, slices, keep_chunks).await;
                held.whole(LONG).await.expect("all of it");
                // However much has come meanwhile.
                assert_eq!(held.progress().resumed_bytes, resumed * 4096);
                buffer = held.unregister().await.remove(0);
                let read_bytes = receiver.engine().statistics().read_bytes - read_before;
                let fetched = u64::from(HALF_CHUNKS) - resumed;
                assert_eq!(read_bytes, fetched * 4096, "{damaged} {keep_chunks}");
                assert_is_block(&buffer.slice(0, len), &block);
                let again = buffer.slice(len, HALF_BYTES).to_vec();
                assert!(slices.len() == 1 || again == block_bytes(&block));
            }
        }
        // What was kept is served as if it had been fetched.
        let held = begin(buffer, &slices, true).await;
        held.whole(LONG).await.expect("all of it");
        registered.unregister().await;
        drop(origin);
        let other = coordinator.store().await;
        let options = SliceOptions::default();
        let (again, target) = receive_block(&other, &block, options).await;
        again.whole(LONG).await.expect("all of it");
        assert_is_block(&target, &block);
    });
}

#[test]
fn survivors_tell_of_the_tensors_too() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let registered = register_model(&origin).await;
        let survivor = coordinator.store().await;
        let lens = registered.shape().buffers().to_vec();
        let room = lens
            .iter()
            .map(|&len| memory(usize::try_from(len).expect("small")));
        let received = survivor
            .receive(&name("model"), room.collect(), Default::default())
            .await;
        let held = received.expect("received");
        held.whole(LONG).await.expect("all of it");
        drop(registered);
        drop(origin);
        let late = coordinator.store().await;
        until_alone(&late, "model", true).await;
        let found = late.find(&name("model")).await.unwrap().expect("found");
        let layout = late.layout(&found).await.unwrap().expect("it is there");
        assert_eq!(layout.tensors().len(), 3);
        let block = columns(2, 5);
        let (held, target) = receive_block(&late, &block, SliceOptions::default()).await;
        held.whole(LONG).await.expect("all of it");
        assert_is_block(&target, &block);
    });
}

/// Its holder sees the name go, and looks whether it is there by itself as well: both may write it at once.
#[test]
fn a_name_that_is_written_again_has_its_tensors() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let _registered = register_model(&origin).await;
        let other = coordinator.store().await;
        let object = name("model");
        let begun = time::now();
        let mut gone = 0;
        while time::now().since(begun) < Duration::from_secs(2) {
            coordinator.remove_name(&object).await;
            gone += 1;
            let mut found = None;
            while found.is_none() {
                found = other.find(&object).await.expect("asked");
            }
            let layout = other.layout(&found.expect("there")).await;
            let layout = layout.expect("asked");
            assert!(layout.is_some(), "it was gone {gone} times");
        }
        assert!(gone > 10, "it was gone {gone} times");
    });
}

#[test]
fn wrong_tensors_and_slices_are_refused_and_buffers_given_back() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let (buffers, mut tensors) = model();
        tensors[1].offset_bytes += 1;
        let object = name("model");
        let registering = origin.register_tensors(&object, buffers, tensors, in_short_chunks());
        let error = registering.await.expect_err("it is too long by a byte");
        let (tensor, fault) = (MATRIX.to_owned(), TensorFault::Place);
        let expected = HoldFault::Layout(LayoutFault::Tensor { tensor, fault });
        assert_eq!((error.fault, error.buffers.len()), (expected, 2));
        assert_eq!(origin.find(&object).await, Ok(None));
        let _registered = register_model(&origin).await;
        let receiver = coordinator.store().await;
        let refused = async |slice: Slice, len: usize| {
            let options = SliceOptions::default();
            let slices = [slice];
            let receiving = receiver.receive_slices(&object, vec![memory(len)], &slices, options);
            let error = receiving.await.expect_err("it is refused");
            assert!(!error.is_retryable());
            assert_eq!(error.buffers[0].len(), len, "given back");
            match error.fault {
                HoldFault::Slices(fault) => fault,
                fault => unreachable!("{fault}"),
            }
        };
        let good = slice_of(&half(0));
        let tensor = MATRIX.to_owned();
        let short = refused(good.clone(), HALF_BYTES + 9).await;
        assert_eq!(short, PlanFault::Target { tensor });
        let other = Slice {
            dtype: Dtype::I32,
            ..good.clone()
        };
        let fault = refused(other, HALF_BYTES + 10).await;
        assert!(matches!(fault, PlanFault::Dtype { .. }), "{fault}");
        let other = Slice {
            shape: vec![COLUMNS, ROWS],
            block: Block::whole(&[1, 1]),
            ..good.clone()
        };
        let fault = refused(other, HALF_BYTES + 10).await;
        assert!(matches!(fault, PlanFault::Shape { .. }), "{fault}");
        let tensor = "none".to_owned();
        let none = Slice {
            tensor: tensor.clone(),
            ..good
        };
        let fault = refused(none, HALF_BYTES + 10).await;
        assert_eq!(fault, PlanFault::NoTensor { tensor });
        assert_eq!(receiver.engine().segments(), 0);
        // An object of which no tensors are told has none.
        let plain = coordinator.origin("o").await;
        let slices = [slice_of(&half(0))];
        let (object, options) = (name("o"), SliceOptions::default());
        let receiving = receiver.receive_slices(&object, vec![memory(9)], &slices, options);
        let fault = receiving.await.expect_err("it has no tensors").fault;
        assert!(matches!(fault, HoldFault::Slices(_)), "{fault}");
        fetch(&receiver, "o").await;
        drop(plain);
    });
}

#[test]
fn parts_come_into_files_and_are_gone_on_with() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let _registered = register_model(&origin).await;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("part");
        let all = Block::whole(&[ROWS, COLUMNS]);
        // Rows that lie together, columns that are gathered, and all of it, kept for others and not.
        for block in [all.clone(), columns(1, 3), half(1)] {
            for keep_chunks in [true, false] {
                let len = 10 + block_bytes(&block).len();
                fs::write(&path, vec![9; len]).expect("written");
                let options = SliceOptions {
                    keep_chunks,
                    resume: true,
                    version: None,
                };
                let receive = async || {
                    let store = coordinator.store().await;
                    let file = BufferFile::open(&path, len as u64).await.expect("opened");
                    let (object, slices) = (name("model"), [slice_of(&block)]);
                    let receiving =
                        store.receive_slices_files(&object, vec![file], &slices, options);
                    let held = receiving.await.expect("received");
                    let resumed_bytes = held.progress().held_bytes;
                    held.whole(LONG).await.expect("all of it");
                    held.sync().await.expect("on the disk");
                    assert_eq!(held.disk_fault(), None);
                    assert_eq!(held.unregister().await.len(), 0, "nothing was lent");
                    assert_eq!(store.engine().segments(), 0);
                    resumed_bytes
                };
                assert_eq!(receive().await, 0);
                let bytes = fs::read(&path).expect("written");
                assert!(bytes[10..] == block_bytes(&block), "{block:?}");
                assert_eq!(bytes[..10], [9; 10], "nothing else was written");
                // Chunks of which every byte is wanted are known again: none of columns.
                let resumed_bytes = receive().await;
                let has_whole = block.shape[1] == COLUMNS;
                assert_eq!(resumed_bytes > 0, has_whole, "{block:?}");
            }
        }
        let store = coordinator.store().await;
        let file = BufferFile::open(&path, 20).await.expect("opened");
        let (object, slices) = (name("model"), [slice_of(&all)]);
        let options = SliceOptions::default();
        let refused = store.receive_slices_files(&object, vec![file], &slices, options);
        let fault = refused.await.expect_err("it is short");
        assert!(matches!(fault, HoldFault::Slices(_)), "{fault}");
    });
}
