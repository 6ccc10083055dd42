//! Objects that are registered of files.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lunette_p2p::{
    BufferFile, Held, HoldFault, ReceiveOptions, RegisterOptions, SourceFault, Store,
};
use lunette_runtime::time;

use crate::scene::{
    Coordinator, LENS, LONG, assert_is_the_object, empty_buffers, fetch, in_chunks, name, pattern,
    receive, resumed, run, until,
};

/// Longer than it takes that a change is seen, on a machine that is not busy.
const SEEN: Duration = Duration::from_millis(700);

fn write_object(folder: &Path) -> Vec<PathBuf> {
    let lens = LENS.into_iter().enumerate();
    let paths = lens.map(|(seed, len)| {
        let path = folder.join(seed.to_string());
        fs::write(&path, pattern(len, seed)).expect("written");
        path
    });
    paths.collect()
}

async fn opened(paths: &[PathBuf]) -> Vec<BufferFile> {
    let mut files = Vec::new();
    for path in paths {
        files.push(BufferFile::existing(path).await.expect("opened"));
    }
    files
}

async fn try_register(store: &Store, paths: &[PathBuf]) -> Result<Held, HoldFault> {
    let (object, files) = (name("o"), opened(paths).await);
    let options = RegisterOptions {
        may_replace: true,
        ..in_chunks()
    };
    let registering = store.register_files(&object, files, Vec::new(), options);
    registering.await
}

/// An origin of files, and their paths.
async fn origin(coordinator: &Coordinator, folder: &Path) -> (Store, Held, Vec<PathBuf>) {
    let store = coordinator.store().await;
    let paths = write_object(folder);
    let held = try_register(&store, &paths).await.expect("registered");
    (store, held, paths)
}

fn change(path: &Path, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path);
    let written = file.and_then(|file| file.write_all_at(bytes, at));
    written.expect("written");
}

/// Waits until the store has let go of it.
async fn fault_of(store: &Store, held: &Held) -> SourceFault {
    until("it is let go of", async || {
        held.source_fault().is_some() && store.engine().segments() == 0
    })
    .await;
    held.source_fault().expect("it has just been seen")
}

#[test]
fn files_are_served_as_they_lie() {
    run(async || {
        let coordinator = Coordinator::start();
        let folder = tempfile::tempdir().expect("a folder");
        let (store, held, _paths) = origin(&coordinator, folder.path()).await;
        let (near, far) = (
            coordinator.store().await,
            coordinator.store_over_connections().await,
        );
        let (_near, buffers) = fetch(&near, "o").await;
        assert_is_the_object(&buffers);
        drop(near);
        let (_far, buffers) = fetch(&far, "o").await;
        assert_is_the_object(&buffers);
        assert_eq!(held.source_fault(), None);
        assert_eq!(held.unregister().await.len(), 0, "nothing was lent");
        assert_eq!(store.engine().segments(), 0);
    });
}

#[test]
fn what_is_only_touched_or_replaced_is_served_on() {
    run(async || {
        let coordinator = Coordinator::start();
        let folder = tempfile::tempdir().expect("a folder");
        let (_store, held, paths) = origin(&coordinator, folder.path()).await;
        // The same bytes again, another file under the name, and a name less.
        change(&paths[0], 0, &pattern(LENS[0], 0));
        let other = folder.path().join("other");
        fs::write(&other, b"other bytes").expect("written");
        fs::rename(&other, &paths[1]).expect("renamed");
        fs::remove_file(&paths[2]).expect("removed");
        time::sleep(SEEN).await;
        assert_eq!(held.source_fault(), None);
        let receiver = coordinator.store().await;
        let (_copy, buffers) = fetch(&receiver, "o").await;
        assert_is_the_object(&buffers);
    });
}

#[test]
fn what_is_changed_is_let_go_of_and_never_taken_by_a_receiver() {
    run(async || {
        let coordinator = Coordinator::start();
        let folder = tempfile::tempdir().expect("a folder");
        let (store, held, paths) = origin(&coordinator, folder.path()).await;
        let at = 5 * (64 << 10) + 17;
        change(&paths[2], at, b"other bytes");
        // Before the source has seen it.
        let receiver = coordinator.store().await;
        let (copy, buffers) = receive(&receiver, "o").await;
        let fault = fault_of(&store, &held).await;
        assert_eq!(fault, SourceFault::Changed { buffer: 2 });
        copy.whole(Duration::from_millis(500))
            .await
            .expect_err("a chunk is nowhere");
        let progress = copy.progress();
        assert!(progress.held_bytes <= progress.len_bytes - (64 << 10));
        drop(buffers);
        let found = store.find(&name("o")).await.expect("asked");
        assert!(found.is_none_or(|found| found.whole == 0));
        // It is registered as it is now.
        drop(copy.unregister().await);
        let again = try_register(&store, &paths).await.expect("registered");
        let buffers = empty_buffers();
        let options = ReceiveOptions::default();
        let copied = receiver.receive(&name("o"), buffers.clone(), options).await;
        copied.expect("begun").whole(LONG).await.expect("all of it");
        let mut expected = pattern(LENS[2], 2);
        let at = usize::try_from(at).expect("small");
        expected[at..at + 11].copy_from_slice(b"other bytes");
        assert!(buffers[2].to_vec() == expected);
        assert_eq!(again.source_fault(), None);
    });
}

#[test]
fn what_is_made_shorter_is_let_go_of() {
    run(async || {
        let coordinator = Coordinator::start();
        let folder = tempfile::tempdir().expect("a folder");
        let (store, held, paths) = origin(&coordinator, folder.path()).await;
        let file = OpenOptions::new().write(true).open(&paths[0]);
        let cut = file.and_then(|file: File| file.set_len(100));
        cut.expect("shorter");
        let wanted_bytes = LENS[0] as u64;
        let expected = SourceFault::Shortened {
            buffer: 0,
            len_bytes: 100,
            wanted_bytes,
        };
        assert_eq!(fault_of(&store, &held).await, expected);
        assert_eq!(held.unregister().await.len(), 0);
    });
}

#[test]
fn files_that_an_object_has_come_into_are_watched_too() {
    run(async || {
        let coordinator = Coordinator::start();
        let (_origin, _held) = coordinator.origin("o").await;
        let folder = tempfile::tempdir().expect("a folder");
        let paths = LENS.map(|len| folder.path().join(len.to_string()));
        // The second time all of it is there already.
        for _ in 0..2 {
            let store = coordinator.store().await;
            let mut files = Vec::new();
            for (path, len) in paths.iter().zip(LENS) {
                let file = BufferFile::open(path, len as u64).await;
                files.push(file.expect("opened"));
            }
            let object = name("o");
            let receiving = store.receive_files(&object, files, resumed());
            let held = receiving.await.expect("begun");
            held.whole(LONG).await.expect("all of it");
            held.sync().await.expect("on the disk");
            // What it has written itself is not another's.
            time::sleep(SEEN).await;
            assert_eq!(held.source_fault(), None);
            change(&paths[0], 70_000, b"other bytes");
            let fault = fault_of(&store, &held).await;
            assert_eq!(fault, SourceFault::Changed { buffer: 0 });
            change(&paths[0], 70_000, &pattern(LENS[0], 0)[70_000..70_011]);
        }
    });
}

#[test]
fn what_changes_while_it_is_read_is_not_registered() {
    run(async || {
        let coordinator = Coordinator::start();
        let folder = tempfile::tempdir().expect("a folder");
        let paths = write_object(folder.path());
        let is_over = Arc::new(AtomicBool::new(false));
        let (path, ends) = (paths[1].clone(), Arc::clone(&is_over));
        let writing = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                change(&path, 3, b"x");
                thread::sleep(Duration::from_millis(1));
            }
        });
        let store = coordinator.store().await;
        let refused = try_register(&store, &paths).await;
        is_over.store(true, Ordering::Relaxed);
        writing.join().expect("it has written");
        let fault = refused.expect_err("it changes");
        assert_eq!(fault, SourceFault::Changed { buffer: 1 }.into());
        assert!(fault.is_retryable());
        assert_eq!(store.engine().segments(), 0);
        try_register(&store, &paths).await.expect("it rests");
        // What was opened to be read is no place for what comes.
        let (object, files) = (name("o"), opened(&paths).await);
        let receiver = coordinator.store().await;
        let refused = receiver.receive_files(&object, files, ReceiveOptions::default());
        let fault = refused.await.expect_err("it is to be read");
        assert_eq!(fault, HoldFault::ReadOnly { buffer: 0 });
    });
}
