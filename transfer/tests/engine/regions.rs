//! Shared regions as what is written: by several writes at a time, without a copy, kept as long as any of them.

use std::time::Duration;

use lunette_runtime::arena::{Arena, ArenaOptions, Region};
use lunette_runtime::time;
use lunette_transfer::engine::{
    Batch, Cause, Engine, EngineOptions, FileSegment, FileSegmentOptions, Peer, PostOptions,
    RegisterOptions, RemoteSegment, Transfer,
};

use super::on_each_driver::run;
use super::scene::{KIB, full_of, memory, options, pattern, read};

const WORLDS: u64 = 4;
const LEN: usize = 900 * KIB;

fn engine(same_host: bool) -> Engine {
    let options = EngineOptions {
        same_host,
        ..options()
    };
    Engine::start(options).expect("an engine")
}

fn region(arena: &Arena) -> Region {
    let mut region = arena.alloc(LEN).expect("room");
    region.as_mut_slice().copy_from_slice(&pattern(LEN, 1));
    region.freeze()
}

fn write(peer: &Peer, remote: &RemoteSegment, from: Region, at: usize) -> Transfer {
    let mut batch = Batch::new();
    batch.write(from, remote, at as u64).expect("a write");
    peer.post(&batch, PostOptions::default()).expect("posted")
}

/// Waits until nobody has a piece of the arena any more.
async fn is_let_go(arena: &Arena) {
    for _ in 0..1000 {
        if arena.used_bytes() == 0 {
            return;
        }
        time::sleep(Duration::from_millis(5)).await;
    }
    unreachable!("{} bytes are kept", arena.used_bytes());
}

/// Writes a region and part of it at the same time, each to a place of its own, and reads both back.
async fn two_at_a_time(here: &Engine, there: &Engine) {
    let peer = here.open(there.addresses()).await.expect("a peer");
    let remote = peer.segment("kv").await.expect("a segment");
    let arena = Arena::new(ArenaOptions::default());
    let shared = region(&arena);
    let part = LEN / 3..LEN - 5;
    let first = write(&peer, &remote, shared.clone(), 3);
    let slice = shared.slice(part.start, part.len());
    let second = write(&peer, &remote, slice, LEN + 9);
    assert_eq!(shared.as_slice(), pattern(LEN, 1), "whoever else reads it");
    let shared = shared.try_unfreeze().expect_err("it is lent");
    let (first, second) = (first.await, second.await);
    assert_eq!(first.expect("written").len_bytes, LEN as u64);
    assert_eq!(second.expect("written").len_bytes, part.len() as u64);
    for (at, expected) in [(3, 0..LEN), (LEN + 9, part)] {
        let back = memory(expected.len());
        let back_again = read(&peer, &remote, back.clone(), at as u64).await;
        back_again.expect("read");
        assert!(back.to_vec() == pattern(LEN, 1)[expected], "at {at}");
    }
    drop(shared);
    is_let_go(&arena).await;
}

#[test]
fn several_writes_have_the_same_region_whichever_way_they_go() {
    run(WORLDS, || async {
        for same_host in [false, true] {
            let (here, there) = (engine(same_host), engine(same_host));
            let registered = there.register(memory(3 * LEN), &RegisterOptions::named("kv"));
            registered.expect("registered");
            two_at_a_time(&here, &there).await;
            two_at_a_time(&there, &there).await;
        }
    });
}

#[test]
fn a_region_is_written_to_a_file() {
    run(0, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let opening = FileSegmentOptions {
            write: true,
            len_bytes: Some(3 * LEN as u64),
            ..FileSegmentOptions::default()
        };
        let file = FileSegment::open(folder.path().join("segment"), opening).await;
        let (here, there) = (engine(true), engine(true));
        let registered = there.register_file(file.expect("a file"), &RegisterOptions::named("kv"));
        registered.expect("registered");
        two_at_a_time(&here, &there).await;
        two_at_a_time(&there, &there).await;
    });
}

#[test]
fn a_region_stays_until_its_write_is_over_whatever_becomes_of_its_handle() {
    run(WORLDS, || async {
        for same_host in [false, true] {
            let (here, there) = (engine(same_host), engine(same_host));
            let target = memory(LEN);
            let registered = there.register(target.clone(), &RegisterOptions::named("kv"));
            registered.expect("registered");
            let peer = here.open(there.addresses()).await.expect("a peer");
            let remote = peer.segment("kv").await.expect("a segment");
            let arena = Arena::new(ArenaOptions::default());
            let written = write(&peer, &remote, region(&arena), 0);
            assert!(arena.used_bytes() >= LEN, "the handle is gone");
            written.await.expect("written");
            assert_eq!(target.to_vec(), pattern(LEN, 1));
            is_let_go(&arena).await;
        }
    });
}

#[test]
fn a_region_comes_back_for_writing_when_its_write_has_been_given_up() {
    run(WORLDS, || async {
        let (here, there) = (engine(false), engine(false));
        let target = full_of(7, LEN);
        let registered = there.register(target.clone(), &RegisterOptions::named("kv"));
        registered.expect("registered");
        let peer = here.open(there.addresses()).await.expect("a peer");
        let remote = peer.segment("kv").await.expect("a segment");
        for (pause_us, drops) in [(0, false), (50, false), (500, false), (0, true), (50, true)] {
            let arena = Arena::new(ArenaOptions::default());
            let mut shared = region(&arena);
            let written = write(&peer, &remote, shared.clone(), 0);
            time::sleep(Duration::from_micros(pause_us)).await;
            written.cancel();
            if drops {
                drop(written);
            } else if let Err(error) = written.await {
                assert_eq!(error.failures[0].cause, Cause::Cancelled);
            }
            let mut looks = 0;
            let mut owned = loop {
                match shared.try_unfreeze() {
                    Ok(owned) => break owned,
                    Err(lent) => shared = lent,
                }
                looks += 1;
                assert!(looks < 1000, "it comes back");
                time::sleep(Duration::from_millis(5)).await;
            };
            owned.as_mut_slice().fill(0);
            time::sleep(Duration::from_millis(5)).await;
            let whole = pattern(LEN, 1);
            let landed = target.to_vec();
            let is_of_before = |(&landed, &whole): (&u8, &u8)| landed == whole || landed == 7;
            assert!(landed.iter().zip(&whole).all(is_of_before));
            target.copy_in(0, &vec![7; LEN]);
        }
    });
}
