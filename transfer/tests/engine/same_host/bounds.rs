//! The bounds of what is shared, from both sides: beyond them bytes go another way.

use std::time::Duration;

use lunette_runtime::boot_id;
use lunette_runtime::time;
use lunette_transfer::engine::{Engine, EngineOptions, RegisterOptions};

use super::guest::{Guest, whereabouts};
use crate::on_each_driver::run;
use crate::scene::{KIB, memory, options, pattern, read, write};

fn engine(same_host_peers_max: usize, same_host_segments_max: usize) -> Engine {
    Engine::start(EngineOptions {
        same_host_peers_max,
        same_host_segments_max,
        ..options()
    })
    .expect("an engine")
}

fn copied_once(engine: &Engine) -> u64 {
    let statistics = engine.statistics();
    statistics.same_host_bytes - statistics.window_bytes
}

#[test]
fn as_many_peers_are_let_in_as_there_is_room_for_and_the_next_goes_over_the_network() {
    run(0, || async {
        let there = engine(2, 4);
        let registered = there.register(memory(KIB), &RegisterOptions::named("kv"));
        registered.expect("registered");
        let guests = (Guest::new(&there).await, Guest::new(&there).await);
        let boot_id = boot_id().expect("a kernel");
        let place = whereabouts(&there, boot_id).await.expect("here");
        let third = Guest::join(place.name, place.ticket).await;
        assert!(third.is_none(), "the house is full");
        let here = engine(2, 4);
        let peer = here.open(there.addresses()).await.expect("open");
        assert!(!peer.is_same_host());
        let remote = peer.segment("kv").await.expect("a segment");
        read(&peer, &remote, memory(KIB), 0).await.expect("sent");
        assert_eq!(here.statistics().same_host_bytes, 0);
        // Who leaves makes room.
        drop(guests.0);
        time::sleep(Duration::from_millis(20)).await;
        let peer = here.open(there.addresses()).await.expect("open");
        assert!(peer.is_same_host());
    });
}

#[test]
fn segments_beyond_the_bound_are_not_mapped_and_go_through_the_window() {
    run(0, || async {
        let (here, there) = (engine(4, 3), engine(4, 100));
        let peer = here.open(there.addresses()).await.expect("open");
        let mut ids = Vec::new();
        for index in 0..5_u8 {
            let shown = memory(KIB);
            shown.copy_in(0, &pattern(KIB, index));
            let name = format!("kv{index}");
            let registered = there.register(shown, &RegisterOptions::named(&name));
            ids.push(registered.expect("registered"));
            let remote = peer.segment(&name).await.expect("a segment");
            let target = memory(KIB);
            read(&peer, &remote, target.clone(), 0).await.expect("done");
            assert_eq!(target.to_vec(), pattern(KIB, index));
            let mapped = u64::from(index + 1).min(3);
            assert_eq!(copied_once(&here), mapped * KIB as u64, "{index}");
        }
        // What is unregistered there is swept here, and makes room.
        there.unregister(ids[0]).await.expect("registered");
        time::sleep(Duration::from_millis(1_500)).await;
        let remote = peer.segment("kv4").await.expect("a segment");
        read(&peer, &remote, memory(KIB), 0).await.expect("done");
        assert_eq!(copied_once(&here), 4 * KIB as u64);
    });
}

#[test]
fn segments_beyond_the_bound_of_either_side_are_not_lent() {
    run(0, || async {
        for (ours, theirs) in [(2, 100), (100, 2)] {
            let (here, there) = (engine(4, ours), engine(4, theirs));
            let target = memory(KIB);
            let named = RegisterOptions::named("kv");
            there.register(target, &named).expect("registered");
            let peer = here.open(there.addresses()).await.expect("open");
            let remote = peer.segment("kv").await.expect("a segment");
            for index in 0..4_usize {
                let source = memory(KIB);
                let name = RegisterOptions::named(&format!("source{index}"));
                here.register(source.clone(), &name).expect("registered");
                for _ in 0..10 {
                    let first = source.slice(0, 1);
                    write(&peer, &remote, first, 0).await.expect("done");
                    time::sleep(Duration::from_millis(2)).await;
                }
                let before = copied_once(&here);
                write(&peer, &remote, source, 0).await.expect("done");
                let is_lent = copied_once(&here) - before == KIB as u64;
                assert_eq!(is_lent, index < 2, "{index} of {ours} and {theirs}");
            }
        }
    });
}
