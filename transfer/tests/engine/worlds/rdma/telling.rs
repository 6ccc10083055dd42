//! Notifications by messages: behind their bytes, once, whatever becomes of adapters.

use std::collections::BTreeMap;
use std::time::Duration;

use lunette_runtime::sim::Kill;
use lunette_runtime::time;
use lunette_runtime_core::random::SplitMix64;
use lunette_transfer::engine::{
    Batch, EngineOptions, Peer, PostOptions, RdmaOptions, RemoteSegment, Statistics, Transfer,
};
use lunette_transfer_proto::engine::message::NOTE_BYTES_MAX;

use super::super::rails::addresses;
use super::{SPEED, Scene, faults::strike};
use crate::scene::{KIB, guarded, memory};

const LEN: usize = 256 * KIB;

/// Fills the peer's memory with a byte, in pieces, and tells.
fn fill(peer: &Peer, remote: &RemoteSegment, byte: u8, note: Vec<u8>) -> Transfer {
    const PIECE: usize = LEN / 4;
    let source = memory(LEN);
    source.copy_in(0, &vec![byte; LEN]);
    let mut batch = Batch::new();
    for at in (0..LEN).step_by(PIECE) {
        let piece = source.slice(at, PIECE);
        batch.write(piece, remote, at as u64).expect("a write");
    }
    let options = PostOptions {
        timeout: Duration::from_secs(30),
        notification: Some(note),
        ..PostOptions::default()
    };
    peer.post(&batch, options).expect("posted")
}

/// Fills it again and again: what was done, and how long each took, the first left out.
fn fills(mut scene: Scene, ours: RdmaOptions, note_bytes: usize) -> (Scene, Statistics, Duration) {
    const ROUNDS: u8 = 40;
    let outcome = scene.spawn_with(ours, move |engine, peer, remote| async move {
        let mut began = time::now();
        for round in 1..=ROUNDS {
            let done = fill(&peer, &remote, round, vec![round; note_bytes]).await;
            done.expect("done");
            if round == 1 {
                began = time::now();
            }
        }
        let took = time::now().since(began) / u32::from(ROUNDS - 1);
        (engine.statistics(), took)
    });
    let (statistics, took) = scene.run(60, &outcome);
    let told: Vec<(u8, u8)> = (1..=ROUNDS).map(|round| (round, round)).collect();
    assert_eq!(
        *scene.landed.borrow(),
        told,
        "bytes come before their notification"
    );
    let notes: Vec<Vec<u8>> = (1..=ROUNDS).map(|round| vec![round; note_bytes]).collect();
    assert_eq!(*scene.notes.borrow(), notes);
    assert_eq!(statistics.one_sided_bytes, u64::from(ROUNDS) * LEN as u64);
    (scene, statistics, took)
}

#[test]
fn a_notification_comes_behind_its_bytes_without_a_round_trip_more() {
    for rails in [1, 2] {
        let fill = |ours| fills(Scene::new(3, rails, LEN), ours, 8);
        let (_, told, took) = fill(RdmaOptions::default());
        let (_, by_streams, slower) = fill(silent());
        assert_eq!(by_streams.one_sided_notes, 0);
        assert_eq!(told.one_sided_notes, 40, "over {rails}");
        println!("{rails} rails: told after {took:?}, by streams {slower:?}");
        assert!(took * 2 < slower, "{took:?}, and {slower:?} by streams");
    }
}

#[test]
fn a_notification_waits_with_the_requests_that_find_no_room() {
    let few = RdmaOptions {
        requests_max: 2,
        ..RdmaOptions::default()
    };
    let (_, statistics, _) = fills(Scene::new(9, 1, LEN), few, 8);
    assert_eq!(statistics.one_sided_notes, 40);
}

#[test]
fn notifications_alone_find_room_as_others_arrive() {
    let few = RdmaOptions {
        requests_max: 2,
        ..RdmaOptions::default()
    };
    let mut scene = Scene::new(10, 1, LEN);
    let outcome = scene.spawn_with(few, |engine, peer, remote| async move {
        fill(&peer, &remote, 1, vec![0xff; 4]).await.expect("done");
        let post = |number: u32| {
            let options = PostOptions {
                notification: Some(number.to_le_bytes().to_vec()),
                ..PostOptions::default()
            };
            peer.post(&Batch::new(), options).expect("posted")
        };
        let all: Vec<Transfer> = (0..30).map(post).collect();
        for transfer in all {
            transfer.await.expect("done");
        }
        engine.statistics().one_sided_notes
    });
    assert_eq!(scene.run(60, &outcome), 31);
    assert_eq!(told(&scene).len(), 31);
}

/// Options of who hears and sends no messages.
fn silent() -> RdmaOptions {
    RdmaOptions {
        messages: false,
        ..RdmaOptions::default()
    }
}

#[test]
fn a_peer_that_hears_no_messages_is_told_over_streams() {
    let scene = Scene::with(4, [1, 1], LEN, silent());
    let (_, statistics, _) = fills(scene, RdmaOptions::default(), 8);
    assert_eq!(statistics.one_sided_notes, 0);
}

#[test]
fn a_notification_too_long_for_a_message_goes_over_a_stream_when_its_bytes_have_arrived() {
    for (len, count) in [(NOTE_BYTES_MAX, 0), (NOTE_BYTES_MAX / 2, 40)] {
        let (_, statistics, _) = fills(Scene::new(5, 1, LEN), RdmaOptions::default(), len);
        assert_eq!(statistics.one_sided_notes, count, "of {len} bytes");
    }
}

/// How often each was told, by its number.
fn told(scene: &Scene) -> BTreeMap<u32, u32> {
    let mut told = BTreeMap::new();
    for note in scene.notes.borrow().iter() {
        let number = u32::from_le_bytes(note[..4].try_into().expect("four bytes"));
        *told.entry(number).or_default() += 1;
    }
    told
}

#[test]
fn of_many_at_a_time_each_comes_once_also_where_few_requests_may_be_under_way() {
    const COUNT: u32 = 300;
    for requests_max in [2, 16, 128] {
        let mut scene = Scene::new(6, 2, LEN);
        let ours = RdmaOptions {
            requests_max,
            ..RdmaOptions::default()
        };
        let outcome = scene.spawn_with(ours, |engine, peer, remote| async move {
            fill(&peer, &remote, 0, vec![0xff; 4]).await.expect("done");
            let post = |number: u32| fill(&peer, &remote, 1, number.to_le_bytes().to_vec());
            let all: Vec<Transfer> = (0..COUNT).map(post).collect();
            for transfer in all {
                transfer.await.expect("done");
            }
            engine.statistics().one_sided_notes
        });
        let by_messages = scene.run(60, &outcome);
        let mut told = told(&scene);
        assert_eq!(told.remove(&u32::MAX), Some(1));
        let once: BTreeMap<u32, u32> = (0..COUNT).map(|number| (number, 1)).collect();
        assert_eq!(told, once, "{requests_max} requests");
        assert!(by_messages > 32, "{by_messages} of {requests_max}");
    }
}

#[test]
fn so_many_queue_pairs_of_an_adapter_tell_and_those_of_more_peers_leave_that_to_streams() {
    let all_peers = RdmaOptions {
        queue_pairs_max: 1_000,
        ..RdmaOptions::default()
    };
    let mut scene = Scene::with(8, [1, 1], LEN, all_peers);
    let few = RdmaOptions {
        requests_max: 8,
        ..RdmaOptions::default()
    };
    let outcome = scene.spawn_with(few, |engine, _, _| async move {
        let (mut peers, mut told) = (Vec::new(), Vec::new());
        for number in 0..260_u32 {
            let peer = engine.open(&addresses()).await.expect("a peer");
            let remote = peer.segment("kv").await.expect("a segment");
            let filled = fill(&peer, &remote, 1, number.to_le_bytes().to_vec());
            filled.await.expect("done");
            peers.push(peer);
            told.push(engine.statistics().one_sided_notes);
        }
        (told, engine.statistics().one_sided_bytes)
    });
    let (by_messages, bytes) = scene.run(600, &outcome);
    assert_eq!(bytes, 260 * LEN as u64, "by adapters");
    let most = 256;
    assert_eq!((by_messages[255], by_messages[259]), (most, most));
    let once: BTreeMap<u32, u32> = (0..260).map(|number| (number, 1)).collect();
    assert_eq!(told(&scene), once);
}

#[test]
fn a_peer_whose_notifications_find_no_room_is_told_again() {
    let server = EngineOptions {
        listen: addresses(),
        notifications_max: 4,
        ..guarded()
    };
    let mut scene = Scene::of(7, [1, 1], LEN, server);
    let outcome = scene.spawn(|engine, peer, remote| async move {
        let post = |number: u32| fill(&peer, &remote, 1, number.to_le_bytes().to_vec());
        let all: Vec<Transfer> = (0..60).map(post).collect();
        for transfer in all {
            transfer.await.expect("done");
        }
        engine.statistics().one_sided_notes
    });
    assert!(scene.run(60, &outcome) > 0);
    let once: BTreeMap<u32, u32> = (0..60).map(|number| (number, 1)).collect();
    assert_eq!(told(&scene), once);
}

#[test]
fn whatever_goes_wrong_with_adapters_who_is_told_is_told_once() {
    let mut by_messages = 0;
    for seed in 0..8 {
        let mut scene = Scene::new(seed, 2, LEN);
        let outcome = scene.spawn(move |engine, peer, remote| async move {
            let mut random = SplitMix64::new(seed);
            let mut ends = Vec::new();
            while ends.len() < 120 {
                let number = u32::try_from(ends.len()).expect("few");
                let count = 1 + random.below(4);
                let post = |more| fill(&peer, &remote, 1, u32::to_le_bytes(number + more).to_vec());
                let all: Vec<Transfer> = (0..count).map(post).collect();
                for transfer in all {
                    ends.push(transfer.await.is_ok());
                }
            }
            (ends, engine.statistics().one_sided_notes)
        });
        let mut random = SplitMix64::new(seed ^ 0xfb);
        while !outcome.is_there() {
            let pause = Duration::from_micros(u64::from(random.below(3_000)));
            scene.world.run_for(pause);
            strike(&scene.fabric, scene.adapters, &mut random);
            (0..4).for_each(|device| scene.fabric.set_speed(device, SPEED));
        }
        let (ends, notes) = scene.run(1, &outcome);
        by_messages += notes;
        let told = told(&scene);
        for (number, is_done) in (0..).zip(ends) {
            let times = told.get(&number).copied().unwrap_or(0);
            assert!(times <= 1, "seed {seed}: {number} was told {times} times");
            assert!(
                times == 1 || !is_done,
                "seed {seed}: {number} is done, and was not told"
            );
        }
    }
    println!("{by_messages} by messages");
    assert!(by_messages > 100, "{by_messages} by messages");
}

#[test]
fn what_a_killed_peer_was_to_be_told_ends() {
    for seed in 0..4 {
        let mut scene = Scene::new(seed, 1, LEN);
        let outcome = scene.spawn(|_, peer, remote| async move {
            let mut number = 0;
            while fill(&peer, &remote, 1, vec![0; 4]).await.is_ok() {
                number += 1;
            }
            number
        });
        scene.world.run_for(Duration::from_millis(20 + seed));
        scene.world.kill(scene.server, Kill::Crash);
        assert!(scene.run(90, &outcome) > 10, "seed {seed}");
    }
}
