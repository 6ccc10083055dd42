//! Engines on cores of their own, asked from plain threads.
use std::time::Duration;

use lunette_runtime::arena::SharedMemory;
use lunette_runtime::{CoreOptions, Placement};
use lunette_transfer::engine::{
    Access, Cause, EngineHost, EngineOptions, GrantError, HandleError, HandleRequest, OpenError,
    PostOptions, Refusal, RegisterOptions, Rights, Way,
};

const MIB: usize = 1 << 20;

fn host() -> EngineHost {
    host_with(true)
}

/// One whose peers on this host map memory of both, or do not.
fn host_with(same_host: bool) -> EngineHost {
    let options = EngineOptions {
        listen: vec!["127.0.0.1:0".parse().expect("an address")],
        same_host,
        ..EngineOptions::default()
    };
    let placement = Placement::Anywhere(1);
    EngineHost::start(&placement, CoreOptions::default(), &options).expect("an engine")
}

fn private() -> RegisterOptions {
    RegisterOptions {
        name: None,
        by_address: false,
        access: Access::Read,
        same_host: true,
        by_capability: false,
    }
}

#[test]
fn a_thread_grants_and_another_redeems() {
    let (here, there) = (host(), host());
    let (near, far) = (here.handle(), there.handle());
    let by_capability = RegisterOptions {
        by_capability: true,
        ..private()
    };
    let segment = far.allocate(MIB, by_capability).wait().expect("memory");
    far.fill(segment, 500, vec![8; 100]).wait().expect("filled");
    let token = far.grant(segment, here.epoch(), Rights::READ, 500..600);
    let token = token.wait().expect("granted");
    let peer = near.open(there.addresses().to_vec()).wait();
    let peer = peer.expect("a peer");
    let remote = peer.redeem(token).wait().expect("redeemed");
    let local = near.allocate(MIB, private()).wait().expect("memory");
    let request = HandleRequest {
        way: Way::Read,
        local,
        local_offset_bytes: 0,
        len_bytes: 100,
        remote,
        remote_offset_bytes: 500,
    };
    let post = || peer.post(vec![request], PostOptions::default()).wait();
    post().expect("read");
    let bytes = near.bytes(local, 0, 100).wait().expect("bytes");
    assert_eq!(bytes, vec![8; 100]);
    let too_much = far.grant(segment, here.epoch(), Rights::WRITE, 0..1).wait();
    let expected = GrantError::Forbidden(Rights::WRITE);
    assert!(matches!(too_much, Err(HandleError::Grant(error)) if error == expected));

    assert!(far.revoke(segment).wait().expect("an answer"));
    let Err(HandleError::Transfer(error)) = post() else {
        unreachable!("it is revoked");
    };
    let cause = Cause::Refused(Refusal::Revoked);
    assert_eq!(error.failures[0].cause, cause);
    let redeemed = peer.redeem(token).wait();
    let revoked = Err(Refusal::Revoked);
    let refused = redeemed.map_err(|error| match error {
        HandleError::Open(OpenError::Refused(refusal)) => refusal,
        error => unreachable!("{error}"),
    });
    assert_eq!(refused, revoked);
}

#[test]
fn memory_of_the_program_is_moved_where_it_lies_until_it_is_unregistered() {
    const LEN: usize = 300_000;
    for same_host in [true, false] {
        let (here, there) = (host_with(same_host), host_with(same_host));
        let (near, far) = (here.handle(), there.handle());
        let theirs = SharedMemory::owned(vec![5; LEN]);
        let ours = SharedMemory::owned(vec![7; LEN]);
        let segment = far.register_shared(theirs.clone(), RegisterOptions::named("vector"));
        let segment = segment.wait().expect("registered");
        let local = near.register_shared(ours.clone(), private());
        let local = local.wait().expect("registered");
        let peer = near.open(there.addresses().to_vec()).wait();
        let peer = peer.expect("a peer");
        let remote = peer.segment("vector").wait().expect("a segment");
        assert_eq!(remote.len_bytes(), LEN as u64);
        let request = |way, at: u64| HandleRequest {
            way,
            local,
            local_offset_bytes: at,
            len_bytes: 100_000,
            remote,
            remote_offset_bytes: at,
        };
        let post = |request| peer.post(vec![request], PostOptions::default()).wait();
        post(request(Way::Write, 0)).expect("written");
        post(request(Way::Read, 200_000)).expect("read");

        assert!(far.unregister(segment).wait().expect("an answer"));
        for way in [Way::Read, Way::Write] {
            let Err(HandleError::Transfer(error)) = post(request(way, 100_000)) else {
                unreachable!("it is unregistered");
            };
            let cause = Cause::Refused(Refusal::Stale);
            assert_eq!(error.failures[0].cause, cause, "{same_host}: {way:?}");
        }
        assert!(near.unregister(local).wait().expect("an answer"));
        let refused = post(request(Way::Read, 100_000));
        assert!(matches!(refused, Err(HandleError::NoMemory)), "{refused:?}");

        let part = |byte| vec![byte; 100_000];
        for (memory, bytes) in [(theirs, [7, 5, 5]), (ours, [7, 7, 5])] {
            let found = memory.into_bytes().expect("nobody has a hold on it");
            assert!(found == bytes.map(part).concat(), "same host: {same_host}");
        }
    }
}

#[test]
fn many_threads_share_two_engines() {
    const THREADS: u8 = 4;
    let (here, there) = (host(), host());
    let far = there.handle();
    let segment = far.allocate(usize::from(THREADS) * MIB, RegisterOptions::named("kv"));
    let segment = segment.wait().expect("memory");
    let peer = here.handle().open(there.addresses().to_vec()).wait();
    let peer = peer.expect("a peer");
    let threads: Vec<_> = (0..THREADS)
        .map(|index| {
            let (near, peer) = (here.handle(), peer.clone());
            std::thread::spawn(move || {
                let remote = peer.segment("kv").wait().expect("a segment");
                let local = near.allocate(MIB, private()).wait().expect("memory");
                near.fill(local, 0, vec![index + 1; MIB])
                    .wait()
                    .expect("filled");
                let request = HandleRequest {
                    way: Way::Write,
                    local,
                    local_offset_bytes: 0,
                    len_bytes: MIB as u64,
                    remote,
                    remote_offset_bytes: u64::from(index) * MIB as u64,
                };
                let options = PostOptions {
                    notification: Some(vec![index]),
                    ..PostOptions::default()
                };
                for _ in 0..20 {
                    peer.post(vec![request], PostOptions::default())
                        .wait()
                        .expect("written");
                }
                peer.post(vec![request], options).wait().expect("written");
                near.fill(local, 0, vec![0; MIB]).wait().expect("filled");
                let back = HandleRequest {
                    way: Way::Read,
                    ..request
                };
                peer.post(vec![back], PostOptions::default())
                    .wait()
                    .expect("read");
                let bytes = near.bytes(local, 0, MIB as u64).wait().expect("bytes");
                assert!(bytes.iter().all(|&byte| byte == index + 1));
                assert!(near.unregister(local).wait().expect("an answer"));
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    let mut told: Vec<u8> = (0..THREADS)
        .map(|_| far.notified().wait().expect("a notification").bytes[0])
        .collect();
    told.sort_unstable();
    assert_eq!(told, [0, 1, 2, 3]);
    assert_eq!(far.take_notification().wait().expect("an answer"), None);
    let first = far.bytes(segment, 0, 1).wait().expect("bytes");
    assert_eq!(first, [1]);
    let statistics = here.handle().statistics().wait().expect("an answer");
    assert_eq!(statistics.transfers_done, 22 * u64::from(THREADS));
}

#[test]
fn answers_that_nobody_waits_for_cancel_their_transfers() {
    let (here, there) = (host(), host());
    let near = here.handle();
    let allocated = there
        .handle()
        .allocate(64 * MIB, RegisterOptions::named("kv"));
    allocated.wait().expect("memory");
    let local = near.allocate(64 * MIB, private()).wait().expect("memory");
    let peer = near
        .open(there.addresses().to_vec())
        .wait()
        .expect("a peer");
    let remote = peer.segment("kv").wait().expect("a segment");
    let request = HandleRequest {
        way: Way::Read,
        local,
        local_offset_bytes: 0,
        len_bytes: 64 * MIB as u64,
        remote,
        remote_offset_bytes: 0,
    };
    let options = PostOptions::default();
    drop(peer.post(vec![request; 20], options.clone()));
    let mut failed = 0;
    for _ in 0..400 {
        std::thread::sleep(Duration::from_millis(5));
        failed = near
            .statistics()
            .wait()
            .expect("an answer")
            .transfers_failed;
        if failed > 0 {
            break;
        }
    }
    assert_eq!(failed, 1);
    let outside = HandleRequest {
        local_offset_bytes: 1,
        ..request
    };
    let refused = peer.post(vec![outside], options.clone()).wait();
    assert!(matches!(refused, Err(HandleError::NoMemory)), "{refused:?}");
    let late = PostOptions {
        timeout: Duration::ZERO,
        ..options.clone()
    };
    let error = peer.post(vec![request], late).wait().expect_err("too late");
    assert!(error.is_retryable() && !error.is_backpressure(), "{error}");
    let HandleError::Transfer(error) = error else {
        panic!("{error}")
    };
    assert_eq!(error.failures[0].cause, Cause::DeadlineExceeded);
    drop(here);
    let gone = peer.post(vec![request], options).wait();
    assert!(matches!(gone, Err(HandleError::Gone)), "{gone:?}");
}

#[test]
fn an_engine_that_cannot_listen_says_so() {
    let taken = host();
    let options = EngineOptions {
        listen: taken.addresses().to_vec(),
        ..EngineOptions::default()
    };
    let placement = Placement::Anywhere(1);
    let refused = EngineHost::start(&placement, CoreOptions::default(), &options);
    let refused = refused.expect_err("the port is taken");
    assert!(refused.to_string().contains("cannot listen"), "{refused}");
}

/// Asks far more than an engine keeps waiting while its core copies, and answers nothing. How many questions
/// were refused; each of the others was answered.
fn refused_while_it_copies(host: &EngineHost) -> usize {
    /// What an engine keeps waiting (`JOBS_MAX`).
    const WAITING_MAX: usize = 4096;
    let handle = host.handle();
    let len = 128 * MIB;
    let segment = handle.allocate(len, private()).wait().expect("memory");
    let bytes = vec![3; len];
    let slow = handle.fill(segment, 0, bytes);
    let asked: Vec<_> = (0..WAITING_MAX + 100)
        .map(|at| handle.bytes(segment, at as u64, 1))
        .collect();
    slow.wait().expect("filled");
    let mut refused = 0;
    for asked in asked {
        match asked.wait() {
            Ok(bytes) => assert_eq!(bytes, [3]),
            Err(error) => {
                assert!(matches!(error, HandleError::Busy), "{error}");
                assert!(error.is_backpressure() && error.is_retryable());
                refused += 1;
            }
        }
    }
    let again = handle.bytes(segment, 0, 1).wait();
    assert_eq!(again.expect("there is room again"), [3]);
    assert!(handle.unregister(segment).wait().expect("an answer"));
    refused
}

#[test]
fn questions_beyond_the_bound_are_refused_and_the_others_answered() {
    let host = host();
    // A machine that is busy may let the core copy to its end before all is asked.
    let refused = (0..20).map(|_| refused_while_it_copies(&host));
    let refused = refused.into_iter().find(|&refused| refused > 0);
    let refused = refused.expect("some are too many");
    assert!(refused <= 101, "{refused} refused of 100 too many");
}
