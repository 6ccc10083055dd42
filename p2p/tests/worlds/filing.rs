//! Receivers whose chunks lie in files, on drives that fail.

use std::cell::Cell;
use std::future::pending;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use lunette_p2p::{BufferFile, ReceiveOptions};
use lunette_runtime::fs::{File, OpenOptions};
use lunette_runtime::sim::DiskOptions;
use lunette_runtime::{CoreOptions, time};

use crate::scene::{
    CHUNK_BYTES, LONG, OPTIONS, host, memory, name, pattern, register, store, world,
};

/// Of the object: 32 chunks.
const LEN: usize = 512 << 10;

async fn bytes(path: &Path) -> Vec<u8> {
    let file = File::open(path, OpenOptions::READ).await.expect("a file");
    let (read, bytes) = file.read_exact_at(vec![0; LEN], 0, LEN, 0).await;
    read.expect("read");
    bytes
}

#[test]
fn what_a_drive_does_not_take_is_told_and_tried_again_and_never_served() {
    for seed in 0..4 {
        let mut world = world(seed);
        let origin = world.start(host(1), 1, CoreOptions::default());
        drop(world.spawn(origin, 0, || async {
            let store = store(host(1)).await;
            register(&store, LEN).await;
            pending::<()>().await;
        }));
        world.run_for(Duration::from_millis(200));
        let (begun, are_well) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let receivers = [2, 3].map(|number| {
            let process = world.start(host(number), 1, CoreOptions::default());
            let (begun, are_well) = (Rc::clone(&begun), Rc::clone(&are_well));
            world.spawn(process, 0, move || async move {
                let store = store(host(number)).await;
                let path = Path::new("/object");
                let file = BufferFile::open(path, LEN as u64).await.expect("opened");
                let object = name();
                let receiving = store.receive_files(&object, vec![file], ReceiveOptions::default());
                let held = receiving.await.expect("begun");
                begun.set(begun.get() + 1);
                held.whole(LONG).await.expect("all of it");
                while !are_well.get() {
                    time::sleep(Duration::from_millis(1)).await;
                }
                held.sync().await.expect("on the disk");
                (
                    held.disk_fault().is_some(),
                    bytes(path).await == pattern(LEN),
                )
            })
        });
        let until = world.now() + LONG;
        assert!(world.run_until(until, || begun.get() == 2), "they begin");
        world.set_drives(DiskOptions {
            io_errors_per_million: 100_000,
            short_operations_per_million: 100_000,
            ..DiskOptions::default()
        });
        world.run_for(Duration::from_secs(5));
        world.set_drives(DiskOptions::default());
        are_well.set(true);
        let mut faults = 0;
        for outcome in &receivers {
            assert!(world.run_until(until, || outcome.is_there()), "seed {seed}");
            let (has_failed, is_right) = outcome.take().expect("it is there");
            assert!(is_right, "seed {seed}");
            faults += u32::from(has_failed);
        }
        assert!(faults > 0, "seed {seed}: no write has failed");
    }
}

/// How many chunks are as they are to be.
fn right_chunks(bytes: &[u8]) -> usize {
    let chunk = CHUNK_BYTES as usize;
    let (found, expected) = (bytes.chunks(chunk), pattern(LEN));
    let is_right = |(found, expected): &(&[u8], &[u8])| found == expected;
    found.zip(expected.chunks(chunk)).filter(is_right).count()
}

#[test]
fn what_rots_in_the_file_of_a_source_is_taken_by_nobody() {
    let (mut lacking, mut errors) = (0, 0);
    for seed in 0..4 {
        let mut world = world(seed);
        let origin = world.start(host(1), 1, CoreOptions::default());
        let is_there = Rc::new(Cell::new(false));
        let there = Rc::clone(&is_there);
        drop(world.spawn(origin, 0, || async move {
            let store = store(host(1)).await;
            let path = Path::new("/source");
            let file = File::open(path, OpenOptions::READ_WRITE).await;
            let file = file.expect("made");
            let written = file.write_all_at(pattern(LEN), 0, LEN, 0).await.0;
            written.expect("written");
            let source = BufferFile::existing(path).await.expect("opened");
            let object = name();
            let registering = store.register_files(&object, vec![source], Vec::new(), OPTIONS);
            registering.await.expect("registered");
            there.set(true);
            pending::<()>().await;
        }));
        let until = world.now() + LONG;
        assert!(world.run_until(until, || is_there.get()), "seed {seed}");
        world.set_drives(DiskOptions {
            io_errors_per_million: 50_000,
            rots_per_million: 100_000,
            ..DiskOptions::default()
        });
        let receivers = [2, 3].map(|number| {
            let process = world.start(host(number), 1, CoreOptions::default());
            world.spawn(process, 0, move || async move {
                let store = store(host(number)).await;
                let (object, memory) = (name(), memory(LEN));
                let options = ReceiveOptions::default();
                let receiving = store.receive(&object, vec![memory.clone()], options);
                let held = receiving.await.expect("begun");
                // What has rotted never comes.
                let came = held.whole(Duration::from_secs(20)).await;
                let held_bytes = held.progress().held_bytes;
                let held_chunks =
                    usize::try_from(held_bytes).expect("small") / CHUNK_BYTES as usize;
                (came.is_ok(), held_chunks, memory.to_vec())
            })
        });
        for outcome in &receivers {
            assert!(world.run_until(until, || outcome.is_there()), "seed {seed}");
            let (is_whole, held_chunks, bytes) = outcome.take().expect("it is there");
            assert!(held_chunks <= right_chunks(&bytes), "seed {seed}");
            assert_eq!(is_whole, held_chunks == LEN / CHUNK_BYTES as usize);
            lacking += LEN / CHUNK_BYTES as usize - held_chunks;
        }
        errors += world.fault_counts().io_errors;
    }
    assert!(
        lacking > 0 && errors > 0,
        "{lacking} chunks, {errors} errors"
    );
}
