//! Stores on cores of their own, asked from threads that are none.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lunette_cluster::{ClientOptions, Hosted, serve};
use lunette_p2p::{
    Dtype, HandleError, HeldHandle, HoldFault, ReceiveOptions, Slice, SliceOptions, StoreHandle,
    StoreHost, StoreOptions, Tensor,
};
use lunette_runtime::arena::SharedMemory;
use lunette_runtime::net::TcpListener;
use lunette_runtime::{CoreOptions, OpError, Placement, Runtime};
use lunette_runtime_core::ids::CoreIndex;
use lunette_transfer::engine::EngineOptions;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::scene::{LENS, LONG, any, in_chunks, name, pattern};

/// A coordinator on a core of its own.
struct Coordinator {
    address: SocketAddr,
    _runtime: Runtime,
}

impl Coordinator {
    fn start() -> Self {
        let runtime = Runtime::start(&Placement::Anywhere(1), CoreOptions::default());
        let runtime = runtime.expect("a core");
        let (told, bound) = std::sync::mpsc::channel();
        let serving = runtime.spawn_on(CoreIndex(0), move || async move {
            let listener = TcpListener::bind(any()).expect("a port");
            told.send(listener.local_addr()).expect("it waits");
            serve(listener, Hosted::in_memory(), None, std::future::pending()).await;
        });
        drop(serving.expect("a task"));
        Self {
            address: bound.recv().expect("bound"),
            _runtime: runtime,
        }
    }

    fn store(&self) -> StoreHost {
        let endpoints = vec![self.address];
        let options = move || {
            let engine = EngineOptions {
                listen: vec![any()],
                ..EngineOptions::default()
            };
            let coordinator = ClientOptions {
                endpoints,
                security: None,
                silence_max: LONG,
            };
            StoreOptions::new(engine, coordinator)
        };
        StoreHost::start(CoreOptions::default(), options).expect("a store")
    }
}

fn patterned() -> Vec<SharedMemory> {
    let lens = LENS.into_iter().enumerate();
    lens.map(|(seed, len)| SharedMemory::owned(pattern(len, seed)))
        .collect()
}

fn empty() -> Vec<SharedMemory> {
    let lens = LENS.into_iter();
    lens.map(|len| SharedMemory::owned(vec![0; len])).collect()
}

/// Nobody has the memory any more, once that is so: what it has.
fn taken_back(buffers: Vec<SharedMemory>) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    for mut buffer in buffers {
        let until = Instant::now() + LONG;
        loop {
            match buffer.into_bytes() {
                Ok(taken) => break bytes.push(taken),
                // The core lets go of it in its own time.
                Err(again) => buffer = again,
            }
            assert!(Instant::now() < until, "somebody keeps it");
            thread::sleep(Duration::from_millis(1));
        }
    }
    bytes
}

fn assert_is_the_object(buffers: &[Vec<u8>]) {
    for (seed, (bytes, len)) in buffers.iter().zip(LENS).enumerate() {
        assert!(*bytes == pattern(len, seed), "buffer {seed}");
    }
}

fn register(store: &StoreHandle, object: &str, buffers: &[SharedMemory]) -> HeldHandle {
    let registering =
        store.register_tensors(name(object), buffers.to_vec(), Vec::new(), in_chunks());
    registering.wait().expect("registered")
}

#[test]
fn threads_register_and_receive_and_have_their_memory_back() {
    let coordinator = Coordinator::start();
    let (origin, receiver) = (coordinator.store(), coordinator.store());
    let (given, room) = (patterned(), empty());
    let registered = register(&origin.handle(), "model/a", &given);
    let store = receiver.handle();
    let found = store.find(name("model/a")).wait().expect("asked");
    let found = found.expect("there");
    assert_eq!(found.version, registered.version());
    assert_eq!(
        store.list("model/".into()).wait(),
        Ok(vec![found.clone()]),
        "it is listed as it is found"
    );
    let options = ReceiveOptions::default();
    let held = store.receive(name("model/a"), room.clone(), options);
    let held = held.wait().expect("begun");
    // Several threads wait for the same.
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| held.whole(LONG).wait().expect("all of it"));
        }
    });
    let progress = held.progress().wait().expect("asked");
    assert_eq!(progress.held_bytes, found.shape.len_bytes());
    held.unregister().wait().expect("let go of");
    held.unregister().wait().expect("again");
    assert_eq!(held.whole(LONG).wait(), Err(HandleError::LetGo));
    assert_eq!(held.progress().wait(), Err(HandleError::LetGo));
    assert_is_the_object(&taken_back(room));
    // With the last handle, without waiting.
    drop(registered);
    assert_is_the_object(&taken_back(given));
    assert_eq!(store.find(name("model/a")).wait(), Ok(None));
}

#[test]
fn parts_of_tensors_come_by_a_handle() {
    let coordinator = Coordinator::start();
    let (origin, receiver) = (coordinator.store(), coordinator.store());
    let bytes = pattern(64 << 10, 3);
    let tensor = |name: &str, offset_bytes| {
        Tensor::whole(name.into(), Dtype::U8, vec![32, 1024], 0, offset_bytes)
    };
    let tensors = vec![tensor("a", 0), tensor("b", 32 << 10)];
    let buffers = vec![SharedMemory::owned(bytes.clone())];
    let registered =
        origin
            .handle()
            .register_tensors(name("t"), buffers, tensors.clone(), in_chunks());
    let registered = registered.wait().expect("registered");
    assert_eq!(registered.layout().tensors(), tensors);
    let store = receiver.handle();
    let found = store.find(name("t")).wait().expect("asked").expect("there");
    let layout = store.layout(found).wait().expect("asked").expect("there");
    let wanted = &layout.parts("b")[0];
    let mut block = wanted.block.clone();
    (block.start[0], block.shape[0]) = (8, 4);
    let slice = Slice {
        tensor: "b".into(),
        dtype: wanted.dtype,
        shape: wanted.shape.clone(),
        block,
        buffer: 0,
        offset_bytes: 0,
    };
    let room = vec![SharedMemory::owned(vec![0; 4096])];
    let options = SliceOptions::default();
    let held = store.receive_slices(name("t"), room.clone(), vec![slice.clone()], options);
    let held = held.wait().expect("begun");
    held.whole(LONG).wait().expect("all of it");
    held.unregister().wait().expect("let go of");
    let at = (32 << 10) + 8 * 1024;
    assert!(taken_back(room)[0] == bytes[at..at + 4096]);
    // Into a file, and into one that is too short: that is gone again.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("part");
    let receive = |len_bytes| {
        let (files, slices) = (vec![(path.clone(), len_bytes)], vec![slice.clone()]);
        store.receive_slices_files(name("t"), files, slices, options)
    };
    let refused = receive(4095).wait().expect_err("it is short");
    assert!(matches!(refused, HandleError::Hold(HoldFault::Slices(_))));
    assert!(!path.exists());
    let held = receive(4096).wait().expect("begun");
    held.whole(LONG).wait().expect("all of it");
    assert!(fs::read(&path).expect("written") == bytes[at..at + 4096]);
}

#[test]
fn what_nobody_waits_for_is_let_go_of() {
    let coordinator = Coordinator::start();
    let host = coordinator.store();
    let store = host.handle();
    for turn in 0..20 {
        let given = patterned();
        let registering = store.register_tensors(name("o"), given.clone(), Vec::new(), in_chunks());
        // Given up before it is begun, while it is, or when it is done and the handle is on its way.
        thread::sleep(Duration::from_micros(500 * turn));
        drop(registering);
        assert_is_the_object(&taken_back(given));
    }
    // The name is free: nothing of it is left.
    let given = patterned();
    let registered = register(&store, "o", &given);
    let taken = store.register_tensors(name("o"), patterned(), Vec::new(), in_chunks());
    let error = taken.wait().expect_err("it is taken");
    let is_taken = |error: &HandleError| {
        matches!(
            error,
            HandleError::Hold(HoldFault::NameTaken { version, .. }) if *version == registered.version()
        )
    };
    assert!(is_taken(&error) && !error.is_retryable(), "{error}");
    registered.unregister().wait().expect("let go of");
}

#[test]
fn a_store_that_ends_answers_who_waits() {
    let coordinator = Coordinator::start();
    let (origin, receiver) = (coordinator.store(), coordinator.store());
    let given = patterned();
    let registered = register(&origin.handle(), "o", &given);
    // Its holder is gone before a chunk has come.
    let store = receiver.handle();
    let room = empty();
    let held = store.receive(name("o"), room.clone(), ReceiveOptions::default());
    let held = held.wait().expect("begun");
    let waiting = held.whole(LONG);
    receiver.close();
    // Either it was all here before, or the store let it go.
    let came = waiting.wait();
    let is_expected = matches!(came, Ok(()) | Err(HandleError::LetGo | HandleError::Ended));
    assert!(is_expected, "{came:?}");
    assert_eq!(taken_back(room).len(), LENS.len());
    let after = store.find(name("o")).wait();
    assert_eq!(after, Err(HandleError::Ended));
    assert_eq!(held.progress().wait(), Err(HandleError::Ended));
    origin.close();
    assert_eq!(registered.unregister().wait(), Err(HandleError::Ended));
    assert_is_the_object(&taken_back(given));
}

fn paths(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let each = 0..LENS.len();
    each.map(|at| folder.join(format!("{prefix}-{at}")))
        .collect()
}

fn files(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    let read = paths.iter().map(|path| fs::read(path).expect("a file"));
    read.collect()
}

fn is_none_there(paths: &[PathBuf]) -> bool {
    !paths.iter().any(|path| path.exists())
}

#[test]
fn files_are_registered_and_received_by_their_paths() {
    let coordinator = Coordinator::start();
    let (origin, receiver) = (coordinator.store(), coordinator.store());
    let folder = tempfile::tempdir().expect("a folder");
    let (given, room) = (paths(folder.path(), "given"), paths(folder.path(), "room"));
    for ((seed, len), path) in LENS.into_iter().enumerate().zip(&given) {
        fs::write(path, pattern(len, seed)).expect("written");
    }
    let registering =
        origin
            .handle()
            .register_files(name("o"), given.clone(), Vec::new(), in_chunks());
    let registered = registering.wait().expect("registered");
    let store = receiver.handle();
    // A part of it is there, with something behind that is not the object's.
    let mut there = pattern(LENS[0], 0)[..LENS[0] / 2].to_vec();
    there.extend(vec![1; LENS[0]]);
    fs::write(&room[0], there).expect("written");
    let options = ReceiveOptions {
        resume: true,
        version: None,
    };
    let held = store.receive_files(name("o"), room.clone(), options);
    let held = held.wait().expect("begun");
    held.whole(LONG).wait().expect("all of it");
    held.sync().wait().expect("on the disk");
    let progress = held.progress().wait().expect("asked");
    assert_eq!(progress.held_bytes, progress.len_bytes);
    held.unregister().wait().expect("let go of");
    assert_eq!(held.sync().wait(), Err(HandleError::LetGo));
    assert_is_the_object(&files(&room));
    // Who asks is told why it is served no more.
    fs::write(&given[2], b"other").expect("written");
    let until = Instant::now() + LONG;
    let fault = loop {
        match registered.progress().wait() {
            Ok(_) => assert!(Instant::now() < until, "it is not seen"),
            Err(error) => break error,
        }
        thread::sleep(Duration::from_millis(5));
    };
    assert!(matches!(fault, HandleError::Source(_)), "{fault}");
    assert_eq!(registered.whole(LONG).wait(), Err(fault));
}

#[test]
fn files_that_were_made_for_nothing_are_taken_away() {
    let coordinator = Coordinator::start();
    let (origin, receiver) = (coordinator.store(), coordinator.store());
    let given = patterned();
    let _registered = register(&origin.handle(), "o", &given);
    let (folder, store) = (tempfile::tempdir().expect("a folder"), receiver.handle());
    let room = paths(folder.path(), "room");
    let receive = |object: &str, room: &[PathBuf]| {
        let options = ReceiveOptions::default();
        store.receive_files(name(object), room.to_vec(), options)
    };
    let missing = receive("none", &room).wait().expect_err("there is none");
    assert!(matches!(
        missing,
        HandleError::Hold(HoldFault::NotFound { .. })
    ));
    let short = receive("o", &room[1..]).wait();
    let (given, wanted) = (2, 3);
    let expected = HoldFault::WrongCount { given, wanted };
    assert_eq!(short.expect_err("one is missing"), expected.into());
    // One of them cannot be made, or is there already under another name.
    for last in [folder.path().join("no/such"), room[0].clone()] {
        let each = [room[0].clone(), room[1].clone(), last.clone()];
        let error = receive("o", &each).wait().expect_err("no such file");
        let HandleError::File(fault) = error else {
            unreachable!("{error}");
        };
        assert_eq!(fault.path, last);
        assert!(is_none_there(&room), "{fault}");
    }
    // Given up before it is begun, while it is, or when it is done and the handle is on its way: it is not held.
    for turn in 0..10 {
        let receiving = receive("o", &room);
        thread::sleep(Duration::from_micros(700 * turn));
        drop(receiving);
    }
    let until = Instant::now() + LONG;
    let held = loop {
        match receive("o", &room).wait() {
            Ok(held) => break held,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        thread::sleep(Duration::from_millis(5));
    };
    held.whole(LONG).wait().expect("all of it");
    assert_is_the_object(&files(&room));
}

/// A file of that many bytes that nothing can be written to, and its path.
fn sealed(len: usize) -> (OwnedFd, PathBuf) {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("sealed", flags).expect("a file");
    let mut file = fs::File::from(file);
    file.write_all(&vec![0; len]).expect("written");
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).expect("sealed");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    (file.into(), path.into())
}

#[test]
fn a_disk_that_takes_nothing_is_told_to_who_waits() {
    let coordinator = Coordinator::start();
    let (origin, receiver) = (coordinator.store(), coordinator.store());
    let given = patterned();
    let _registered = register(&origin.handle(), "o", &given);
    let folder = tempfile::tempdir().expect("a folder");
    let mut room = paths(folder.path(), "room");
    let (_file, path) = sealed(LENS[2]);
    room[2] = path;
    let options = ReceiveOptions::default();
    let held = receiver.handle().receive_files(name("o"), room, options);
    let held = held.wait().expect("begun");
    // It is tried again, and told again.
    for _ in 0..2 {
        let error = held.whole(LONG).wait().expect_err("nothing is written");
        let HandleError::Disk(OpError::Os(errno)) = error else {
            unreachable!("{error}");
        };
        assert_eq!(errno, Errno::PERM);
    }
    let progress = held.progress().wait().expect("asked");
    assert!(progress.held_bytes <= (LENS[0] + LENS[1]) as u64);
}
