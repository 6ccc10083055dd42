//! Bounds, and what is closed when nobody needs it.

use std::time::Duration;

use lunette_runtime::time;
use lunette_transfer::engine::{
    Batch, Carrier, Engine, Peer, RdmaOptions, RegisterOptions, Statistics,
};

use super::{Scene, post};
use crate::scene::{MIB, memory};

const LEN: usize = 4 * MIB;

async fn read(peer: &Peer, remote: &lunette_transfer::engine::RemoteSegment) {
    let mut batch = Batch::new();
    batch.read(memory(LEN), remote, 0).expect("a read");
    post(peer, &batch, 30).await.expect("done");
}

fn one_sided_up(peer: &Peer) -> usize {
    let rails = peer.rails();
    let up = rails
        .iter()
        .filter(|rail| rail.is_up && rail.carrier == Carrier::OneSided);
    up.count()
}

/// Reads twice, and says how many rails of adapters were up and what was done.
fn reads(mut scene: Scene) -> (usize, usize, Statistics) {
    let outcome = scene.spawn(|engine, peer, remote| async move {
        for _ in 0..2 {
            read(&peer, &remote).await;
            time::sleep(Duration::from_millis(100)).await;
        }
        (one_sided_up(&peer), engine.statistics())
    });
    let (up, statistics) = scene.run(30, &outcome);
    let server: Engine = scene.engine.borrow().clone().expect("it runs");
    (up, server.accepted_queue_pairs(), statistics)
}

#[test]
fn a_peer_gets_so_many_queue_pairs_of_an_adapter_and_goes_on_with_them() {
    for (most, expected) in [(0, 0), (1, 1), (2, 2), (4, 3)] {
        let options = RdmaOptions {
            queue_pairs_max: most,
            ..RdmaOptions::default()
        };
        // Three adapters of the client's, on each of which there is a rail to the only one of the server's.
        let scene = Scene::with(1, [1, 3], LEN, options);
        let (up, accepted, statistics) = reads(scene);
        assert_eq!((up, accepted), (expected, expected), "of {most}");
        assert_eq!(statistics.one_sided_bytes > 0, most > 0);
        assert_eq!(statistics.read_bytes, 2 * LEN as u64);
    }
}

#[test]
fn what_has_no_window_goes_over_streams() {
    for (most, by_adapters) in [(0, 0), (1, 2 * LEN as u64)] {
        let options = RdmaOptions {
            windows_max: most,
            ..RdmaOptions::default()
        };
        let (_, _, statistics) = reads(Scene::with(2, [1, 1], LEN, options));
        assert_eq!(statistics.one_sided_bytes, by_adapters, "{most} windows");
        assert_eq!(statistics.read_bytes, 2 * LEN as u64);
    }
}

#[test]
fn all_of_a_batch_goes_by_adapters_whichever_memory_and_segment_it_is_of() {
    for is_fresh in [false, true] {
        let mut scene = Scene::new(7, 2, LEN);
        let server: Engine = scene.engine.borrow().clone().expect("it runs");
        let registered = scene.world.spawn(scene.server, 0, move || async move {
            server.register(memory(LEN), &RegisterOptions::named("more"))
        });
        assert!(scene.run(1, &registered).is_ok());
        let outcome = scene.spawn(move |engine, peer, kv| async move {
            let more = peer.segment("more").await.expect("a segment");
            let known = memory(LEN);
            let mut batch = Batch::new();
            batch.read(known.clone(), &kv, 0).expect("a read");
            post(&peer, &batch, 30).await.expect("done");
            // Behind what is known lies what is not.
            let behind = if is_fresh {
                batch.read(memory(LEN), &kv, 0)
            } else {
                batch.read(known, &more, 0)
            };
            behind.expect("a read");
            post(&peer, &batch, 30).await.expect("done");
            engine.statistics()
        });
        let statistics = scene.run(30, &outcome);
        let bytes = (statistics.one_sided_bytes, statistics.read_bytes);
        assert_eq!(bytes, (3 * LEN as u64, 3 * LEN as u64), "{is_fresh}");
    }
}

#[test]
fn a_peer_without_adapters_is_reached_over_streams() {
    for adapters in [[0, 2], [2, 0]] {
        let scene = Scene::with(3, adapters, LEN, RdmaOptions::default());
        let (up, accepted, statistics) = reads(scene);
        assert_eq!((up, accepted, statistics.one_sided_bytes), (0, 0, 0));
        assert_eq!(statistics.read_bytes, 2 * LEN as u64);
    }
}

#[test]
fn idle_queue_pairs_are_closed_before_the_streams_and_come_back() {
    let mut scene = Scene::new(4, 2, LEN);
    let outcome = scene.spawn(|_, peer, remote| async move {
        read(&peer, &remote).await;
        let mut up = vec![one_sided_up(&peer)];
        time::sleep(Duration::from_secs(299)).await;
        up.push(one_sided_up(&peer));
        time::sleep(Duration::from_secs(2)).await;
        up.push(one_sided_up(&peer));
        let streams = peer.rails().iter().filter(|rail| rail.is_up).count();
        time::sleep(Duration::from_secs(2)).await;
        read(&peer, &remote).await;
        time::sleep(Duration::from_millis(10)).await;
        up.push(one_sided_up(&peer));
        (up, streams)
    });
    scene.world.run_for(Duration::from_secs(302));
    let server: Engine = scene.engine.borrow().clone().expect("it runs");
    assert_eq!(server.accepted_queue_pairs(), 0, "the peer was told");
    let (up, streams) = scene.run(600, &outcome);
    assert_eq!(up, [2, 2, 0, 2], "{streams} streams");
}

#[test]
fn a_peer_that_is_dropped_takes_its_queue_pairs_along_while_others_of_its_engine_stay() {
    let mut scene = Scene::new(6, 2, LEN);
    let outcome = scene.spawn(|engine, peer, remote| async move {
        read(&peer, &remote).await;
        let addresses = crate::worlds::rails::addresses();
        // More of them than there may be queue pairs at a time.
        for _ in 0..8 {
            let before = engine.statistics().one_sided_bytes;
            let other = engine.open(&addresses).await.expect("a peer");
            read(&other, &remote).await;
            let bytes = engine.statistics().one_sided_bytes - before;
            assert_eq!(bytes, LEN as u64, "by adapters");
            drop(other);
            time::sleep(Duration::from_millis(10)).await;
        }
        peer
    });
    let peer = scene.run(30, &outcome);
    let server: Engine = scene.engine.borrow().clone().expect("it runs");
    assert_eq!(server.accepted_queue_pairs(), 2, "those of the first");
    drop(peer);
}
