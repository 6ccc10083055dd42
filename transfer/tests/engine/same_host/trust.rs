//! Peers of one host that read each other's process: memory that is no mapping is copied once. Where one of
//! them does not want that, or the system forbids it, the window serves.
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lunette_runtime::arena::Exposed;
use lunette_runtime::{CoreOptions, block_on, time};
use lunette_transfer::engine::{
    Batch, Cause, Engine, EngineOptions, Peer, Refusal, RegisterOptions, RemoteSegment, SegmentId,
};
use lunette_transfer_proto::engine::same_host::commands::Command;
use lunette_transfer_proto::engine::same_host::packet::Packet;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use super::guest::Guest;
use crate::on_each_driver::run;
use crate::scene::{KIB, MIB, memory, options, part, pattern, post, read, write};

const LEN: usize = 2 * MIB;

fn engine(same_host_trust: bool) -> Engine {
    Engine::start(EngineOptions {
        same_host_trust,
        ..options()
    })
    .expect("an engine")
}

/// Bytes that were copied once.
fn copied_once(engine: &Engine) -> u64 {
    let statistics = engine.statistics();
    statistics.same_host_bytes - statistics.window_bytes
}

/// An engine on a thread of its own, with a segment that is no mapping; with a filter for its system calls,
/// if one is given.
struct There {
    address: SocketAddr,
    _stop: mpsc::Sender<()>,
}

impl There {
    fn new(trusts: bool, filter: Option<BpfProgram>) -> Self {
        let (say, hear) = mpsc::channel();
        let (_stop, stopped) = mpsc::channel::<()>();
        let owning = move || async move {
            let there = engine(trusts);
            let options = RegisterOptions::named("kv");
            there.register(part(LEN), &options).expect("registered");
            say.send(there.addresses()[0]).expect("heard");
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                time::sleep(Duration::from_millis(5)).await;
            }
        };
        thread::spawn(move || {
            if let Some(filter) = filter {
                seccompiler::apply_filter(&filter).expect("a filter");
            }
            block_on(None, CoreOptions::default(), owning).expect("a core");
        });
        let address = hear.recv().expect("said");
        Self { address, _stop }
    }
}

/// `process_vm_readv` fails with `EPERM`, as on hardened hosts.
fn no_reading() -> BpfProgram {
    const PROCESS_VM_READV: i64 = if cfg!(target_arch = "x86_64") {
        310
    } else {
        270
    };
    let calls = BTreeMap::from([(PROCESS_VM_READV, Vec::new())]);
    let arch = TargetArch::try_from(std::env::consts::ARCH).expect("known");
    let (allow, refuse) = (SeccompAction::Allow, SeccompAction::Errno(1));
    let filter = SeccompFilter::new(calls, allow, refuse, arch).expect("a filter");
    filter.try_into().expect("a program")
}

/// Writes and reads until memory is lent, and says how many bytes of a last write and a last read were
/// copied once.
async fn once(here: &Engine, address: SocketAddr) -> (u64, u64) {
    let peer = here.open(&[address]).await.expect("open");
    let remote = peer.segment("kv").await.expect("a segment");
    let local = part(LEN);
    let registered = here.register(local.clone(), &RegisterOptions::named("source"));
    let id = registered.expect("registered");
    for _ in 0..20 {
        write(&peer, &remote, local.slice(0, 1), 0)
            .await
            .expect("done");
        time::sleep(Duration::from_millis(2)).await;
    }
    local.copy_in(0, &pattern(LEN, 9));
    let before = copied_once(here);
    write(&peer, &remote, local, 0).await.expect("done");
    let between = copied_once(here);
    let target = part(LEN);
    read(&peer, &remote, target.clone(), 0).await.expect("done");
    assert_eq!(target.to_vec(), pattern(LEN, 9));
    here.unregister(id).await.expect("registered");
    (between - before, copied_once(here) - between)
}

#[test]
fn bytes_are_copied_once_where_both_sides_trust_each_other() {
    run(0, || async {
        let all = LEN as u64;
        for (ours, theirs, copied) in [
            (true, true, (all, all)),
            (true, false, (0, 0)),
            (false, true, (0, 0)),
        ] {
            let there = There::new(theirs, None);
            let here = engine(ours);
            assert_eq!(once(&here, there.address).await, copied, "{ours} {theirs}");
            assert_eq!(here.statistics().transfers_failed, 0);
        }
    });
}

#[test]
fn who_may_not_read_the_other_gets_bytes_through_the_window() {
    let all = LEN as u64;
    // Theirs reads for what is written there, ours for what is read from there.
    let there = There::new(true, Some(no_reading()));
    let copied = block_on(None, CoreOptions::default(), move || async move {
        once(&engine(true), there.address).await
    });
    assert_eq!(copied.expect("a core"), (0, all));
    let there = There::new(true, None);
    let here = thread::spawn(move || {
        seccompiler::apply_filter(&no_reading()).expect("a filter");
        block_on(None, CoreOptions::default(), move || async move {
            once(&engine(true), there.address).await
        })
    });
    let copied = here.join().expect("no panic").expect("a core");
    assert_eq!(copied, (all, 0));
}

/// Two engines that trust each other, on one core.
async fn pair(shown: Exposed) -> (Engine, Engine, Peer, RemoteSegment, SegmentId) {
    let (here, there) = (engine(true), engine(true));
    let registered = there.register(shown, &RegisterOptions::named("kv"));
    let id = registered.expect("registered");
    let peer = here.open(there.addresses()).await.expect("open");
    let remote = peer.segment("kv").await.expect("a segment");
    (here, there, peer, remote, id)
}

#[test]
fn what_was_unregistered_is_not_read_any_more() {
    run(0, || async {
        let shown = part(64 * KIB);
        let (here, there, peer, remote, id) = pair(shown.clone()).await;
        let target = part(64 * KIB);
        read(&peer, &remote, target.clone(), 0).await.expect("done");
        assert_eq!(copied_once(&here), 64 * KIB as u64);
        there.unregister(id).await.expect("registered");
        shown.copy_in(0, &pattern(64 * KIB, 3));
        let error = read(&peer, &remote, target.clone(), 0).await;
        let cause = error.expect_err("gone").failures[0].cause;
        assert_eq!(cause, Cause::Refused(Refusal::Stale));
        assert_eq!(target.to_vec(), vec![0; 64 * KIB]);
    });
}

#[test]
fn segments_that_are_not_shown_go_through_the_window_all_the_same() {
    run(0, || async {
        let (here, there, peer, _, _) = pair(part(KIB)).await;
        let kept = RegisterOptions {
            same_host: false,
            ..RegisterOptions::named("kept")
        };
        there.register(part(64 * KIB), &kept).expect("registered");
        let remote = peer.segment("kept").await.expect("a segment");
        time::sleep(Duration::from_millis(5)).await;
        read(&peer, &remote, part(64 * KIB), 0).await.expect("done");
        assert_eq!(here.statistics().window_bytes, 64 * KIB as u64);
        assert_eq!(copied_once(&here), 0);
    });
}

#[test]
fn parts_of_what_is_registered_are_lent_and_what_only_touches_it_is_not() {
    run(0, || async {
        let (here, _there, peer, remote, _) = pair(part(MIB)).await;
        let whole = memory(MIB);
        let middle = whole.slice(64 * KIB, 128 * KIB);
        let registered = here.register(middle, &RegisterOptions::named("source"));
        registered.expect("registered");
        for _ in 0..20 {
            let inside = whole.slice(100 * KIB, KIB);
            write(&peer, &remote, inside, 0).await.expect("done");
            time::sleep(Duration::from_millis(2)).await;
        }
        for (start, len, lent) in [
            (64 * KIB, 128 * KIB, true),
            (191 * KIB, KIB, true),
            (63 * KIB, 2 * KIB, false),
            (191 * KIB, 2 * KIB, false),
            (192 * KIB, KIB, false),
        ] {
            let before = copied_once(&here);
            let mut batch = Batch::new();
            let local = whole.slice(start, len);
            batch.write(local, &remote, 0).expect("a write");
            post(&peer, &batch).await.expect("done");
            let copied = copied_once(&here) - before;
            assert_eq!(copied, if lent { len as u64 } else { 0 }, "{start}+{len}");
        }
    });
}

#[test]
fn trust_is_tried_out_once_and_nobody_is_told_an_address_before() {
    run(0, || async {
        let wary = engine(false);
        let guest = Guest::new(&wary).await;
        let declined = Packet::Trust {
            address: 0,
            value: 0,
            reads: false,
        };
        let value: Box<u128> = Box::new(77_u128.to_le());
        let own = std::ptr::from_ref(&*value).addr() as u64;
        let trust = |value| Packet::Trust {
            address: own,
            value,
            reads: false,
        };
        assert_eq!(guest.ask(trust(77)).await, Some(declined));
        assert_eq!(guest.ask(Packet::Trusted).await, None, "it was not asked");

        let trusting = engine(true);
        let registered = trusting.register(part(KIB), &RegisterOptions::named("kv"));
        let segment = registered.expect("registered");
        let at = |address| Packet::At {
            segment,
            address,
            len_bytes: 16,
        };
        let mut guest = Guest::new(&trusting).await;
        let map = Packet::Map { segment };
        let refused = Some(Packet::Refused { segment });
        let declined = Some(Packet::Declined { segment });
        assert_eq!(guest.ask(at(own)).await, declined, "not tried out yet");
        let reads = |answer| matches!(answer, Some(Packet::Trust { reads: true, .. }));
        assert!(reads(guest.ask(trust(77)).await));
        assert_eq!(guest.ask(map).await, refused, "it has not read us");
        assert_eq!(guest.ask(at(u64::MAX)).await, declined, "it wraps");
        guest.say(Packet::Trusted);
        assert!(matches!(guest.ask(map).await, Some(Packet::At { .. })));
        let accepted = Some(Packet::Accepted { segment });
        assert_eq!(guest.ask(at(own)).await, accepted);
        let command = Command {
            from: segment,
            from_offset_bytes: 0,
            to: segment,
            to_offset_bytes: 0,
            len_bytes: 16,
        };
        assert_eq!(guest.command(command).await, Ok(()));
        let written = trusting.memory(segment, 0, 2).expect("it is there");
        assert_eq!(written.to_vec(), [77, 0]);
        assert_eq!(guest.ask(trust(77)).await, None, "once");

        let liar = Guest::new(&trusting).await;
        assert!(
            !reads(liar.ask(trust(78)).await),
            "another value lies there"
        );
        assert_eq!(liar.ask(at(own)).await, declined);
    });
}

#[test]
fn who_lends_what_it_does_not_have_loses_its_channel_alone() {
    run(0, || async {
        let (here, there, peer, remote, segment) = pair(part(KIB)).await;
        let mut guest = Guest::new(&there).await;
        let value: Box<u128> = Box::new(5_u128.to_le());
        let trust = Packet::Trust {
            address: std::ptr::from_ref(&*value).addr() as u64,
            value: 5,
            reads: false,
        };
        assert!(guest.ask(trust).await.is_some());
        let nowhere = Packet::At {
            segment,
            address: 4096,
            len_bytes: 16,
        };
        let accepted = Some(Packet::Accepted { segment });
        assert_eq!(
            guest.ask(nowhere).await,
            accepted,
            "it is not looked at yet"
        );
        guest.submit(Command {
            from: segment,
            from_offset_bytes: 0,
            to: segment,
            to_offset_bytes: 0,
            len_bytes: 16,
        });
        assert_eq!(guest.hear().await, None, "its channel ends");
        read(&peer, &remote, part(KIB), 0).await.expect("done");
        assert_eq!(copied_once(&here), KIB as u64);
    });
}
