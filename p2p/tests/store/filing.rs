//! Receivers whose chunks lie in files.

use std::fs;
use std::path::{Path, PathBuf};

use lunette_p2p::{BufferFile, Held, HoldFault, ReceiveOptions, Store};

use crate::scene::{
    Coordinator, LENS, LONG, assert_is_the_object, fetch, name, pattern, resumed, run, until_alone,
};

fn paths(folder: &Path) -> Vec<PathBuf> {
    let each = (0..LENS.len()).map(|at| folder.join(at.to_string()));
    each.collect()
}

async fn opened(folder: &Path) -> Vec<BufferFile> {
    let mut files = Vec::new();
    for (path, len) in paths(folder).iter().zip(LENS) {
        let file = BufferFile::open(path, len as u64).await;
        files.push(file.expect("opened"));
    }
    files
}

async fn receive(store: &Store, folder: &Path, options: ReceiveOptions) -> Held {
    let object = name("o");
    let received = store.receive_files(&object, opened(folder).await, options);
    received.await.expect("received")
}

fn assert_is_there(folder: &Path) {
    for (seed, (path, len)) in paths(folder).iter().zip(LENS).enumerate() {
        let bytes = fs::read(path).expect("a file");
        assert!(bytes == pattern(len, seed), "buffer {seed}");
    }
}

#[test]
fn what_comes_into_files_is_served_from_there() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.origin("o").await;
        let folder = tempfile::tempdir().expect("a folder");
        let store = coordinator.store().await;
        let held = receive(&store, folder.path(), ReceiveOptions::default()).await;
        held.whole(LONG).await.expect("all of it");
        held.sync().await.expect("on the disk");
        assert_eq!(held.disk_fault(), None);
        assert_is_there(folder.path());
        drop(origin);
        until_alone(&store, "o", true).await;
        // Into memory, and into files again.
        let other = coordinator.store_over_connections().await;
        let (_other, buffers) = fetch(&other, "o").await;
        assert_is_the_object(&buffers);
        let again = tempfile::tempdir().expect("a folder");
        let third = coordinator.store_over_connections().await;
        let copy = receive(&third, again.path(), ReceiveOptions::default()).await;
        copy.whole(LONG).await.expect("all of it");
        assert_is_there(again.path());
        assert_eq!(held.unregister().await.len(), 0, "nothing was lent");
        assert_eq!(store.engine().segments(), 0);
    });
}

#[test]
fn files_are_gone_on_with() {
    run(async || {
        let coordinator = Coordinator::start();
        let (_origin, _held) = coordinator.origin("o").await;
        let folder = tempfile::tempdir().expect("a folder");
        let paths = paths(folder.path());
        // Of the first a part, of the second nothing, of the last all but a byte in its middle.
        fs::write(&paths[0], &pattern(LENS[0], 0)[..LENS[0] / 2]).expect("written");
        let mut last = pattern(LENS[2], 2);
        last[LENS[2] / 2] ^= 1;
        fs::write(&paths[2], last).expect("written");
        let store = coordinator.store().await;
        let held = receive(&store, folder.path(), resumed()).await;
        held.whole(LONG).await.expect("all of it");
        assert_is_there(folder.path());
        let shape = held.shape().clone();
        let read_bytes = store.engine().statistics().read_bytes;
        let chunk_bytes = u64::from(shape.chunk_bytes());
        let lacking = (LENS[0] / 2 + LENS[1]) as u64 + chunk_bytes;
        assert!(
            (lacking..=lacking + chunk_bytes).contains(&read_bytes),
            "{read_bytes} of {lacking}"
        );
    });
}

#[test]
fn files_that_do_not_fit_are_refused() {
    run(async || {
        let coordinator = Coordinator::start();
        let (_origin, _held) = coordinator.origin("o").await;
        let folder = tempfile::tempdir().expect("a folder");
        let store = coordinator.store().await;
        let mut files = opened(folder.path()).await;
        files.pop();
        let (object, options) = (name("o"), ReceiveOptions::default());
        let refused = store.receive_files(&object, files.clone(), options);
        let fault = refused.await.expect_err("one is missing");
        let (given, wanted) = (2, 3);
        assert_eq!(fault, HoldFault::WrongCount { given, wanted });
        let short = BufferFile::open(&folder.path().join("short"), 6).await;
        files.push(short.expect("opened"));
        let refused = store.receive_files(&object, files, options);
        let fault = refused.await.expect_err("it is short");
        assert!(matches!(fault, HoldFault::WrongLength { buffer: 2, .. }));
        let missing = BufferFile::open(&folder.path().join("no/such"), 6).await;
        assert!(missing.is_err());
        assert_eq!(store.engine().segments(), 0);
    });
}
