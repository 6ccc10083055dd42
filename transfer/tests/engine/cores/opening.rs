//! Files and namespaces in engines of several cores: any core carries out what it is asked, by whichever handle.

use std::fs;

use lunette_runtime::{CoreOptions, Placement, Runtime};
use lunette_transfer::engine::{
    EngineHandle, FileSegmentOptions, HandleError, Kind, RegisterOptions, RegisterRefusal, Way,
};

use super::{host, post, private, whole};
use crate::disks::{namespace, serve};
use crate::scene::{MIB, pattern};

const LEN: usize = 8 * MIB;

/// By the handles of two engines, which may be one: what one writes to `far`'s segment is read back, from
/// the beginning to the end and again by parts.
fn write_and_read(near: &EngineHandle, addresses: &[std::net::SocketAddr], kind: Kind, seed: u8) {
    let peer = near.open(addresses.to_vec()).wait().expect("a peer");
    let remote = peer.segment("kv").wait().expect("a segment");
    assert_eq!((remote.kind(), remote.len_bytes()), (kind, LEN as u64));
    let local = near.allocate(LEN, private()).wait().expect("memory");
    near.fill(local, 0, pattern(LEN, seed))
        .wait()
        .expect("filled");
    post(&peer, whole(Way::Write, local, remote)).expect("written");
    near.fill(local, 0, vec![0; LEN]).wait().expect("filled");
    post(&peer, whole(Way::Read, local, remote)).expect("read");
    let bytes = near.bytes(local, 0, LEN as u64).wait().expect("bytes");
    assert!(bytes == pattern(LEN, seed), "{kind:?}");
    assert!(near.unregister(local).wait().expect("done"));
}

#[test]
fn a_file_is_one_segment_of_all_cores() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().join("segment");
    let opening = FileSegmentOptions {
        write: true,
        len_bytes: Some(LEN as u64),
        ..FileSegmentOptions::default()
    };
    for cores in [1, 2, 3] {
        let (far, near) = (host(cores, true), host(2, true));
        let handle = far.handle();
        let registered = handle.register_file(path.clone(), opening, RegisterOptions::named("kv"));
        let id = registered.wait().expect("registered");
        write_and_read(&handle, far.addresses(), Kind::File, 1);
        write_and_read(&near.handle(), far.addresses(), Kind::File, 2);
        handle.sync(id).wait().expect("on the device");
        assert!(fs::read(&path).expect("read") == pattern(LEN, 2));
        let again = handle.register_file(path.clone(), opening, RegisterOptions::named("kv"));
        let taken = again.wait().expect_err("the name is taken");
        let is_taken = |error: &HandleError| {
            matches!(
                error,
                HandleError::Register(RegisterRefusal::NameTaken { .. })
            )
        };
        assert!(is_taken(&taken), "{taken}");
        assert!(handle.unregister(id).wait().expect("done"));
        let missing = handle.register_file(
            "/no/such/file",
            FileSegmentOptions::default(),
            RegisterOptions::named("kv"),
        );
        let missing = missing.wait().expect_err("there is none");
        assert!(matches!(missing, HandleError::File(_)), "{missing}");
        // Its name was not taken by what could not be opened.
        let again = handle.register_file(path.clone(), opening, RegisterOptions::named("kv"));
        again.wait().expect("registered");
    }
}

#[test]
fn a_namespace_is_one_segment_of_all_cores() {
    let server = Runtime::start(&Placement::Anywhere(1), CoreOptions::default());
    let server = server.expect("a core");
    let serving = server.spawn_on(lunette_runtime_core::ids::CoreIndex(0), || async {
        serve(LEN)
    });
    let disk = serving.expect("a core").wait().expect("no panic");
    for cores in [1, 2] {
        let (far, near) = (host(cores, true), host(2, true));
        let handle = far.handle();
        let registered = handle.register_namespace(namespace(disk), RegisterOptions::named("kv"));
        let id = registered.wait().expect("registered");
        write_and_read(&handle, far.addresses(), Kind::Namespace, 3);
        let done = handle.statistics().wait().expect("statistics");
        assert_eq!(done.namespace_bytes, 2 * LEN as u64, "straight");
        write_and_read(&near.handle(), far.addresses(), Kind::Namespace, 4);
        handle.sync(id).wait().expect("flushed");
        assert!(handle.unregister(id).wait().expect("done"));
        let mut missing = namespace(disk);
        missing.namespace.nsid = 9;
        let missing = handle.register_namespace(missing, RegisterOptions::named("kv"));
        let missing = missing.wait().expect_err("there is none");
        assert!(matches!(missing, HandleError::Namespace(_)), "{missing}");
        assert!(!missing.is_retryable());
    }
}
