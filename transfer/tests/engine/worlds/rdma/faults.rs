//! Whatever fails, every batch ends once, and bytes are what a model says.

use std::time::Duration;

use lunette_runtime::sim::Kill;
use lunette_runtime::time;
use lunette_runtime_core::random::SplitMix64;
use lunette_transfer::engine::{Batch, Effect, Engine, Peer, RemoteSegment, TransferError};
use lunette_verbs::PairEvent;
use lunette_verbs::sim::{Fabric, Fault, Raised, Speed};

use super::{SPEED, Scene, post};
use crate::scene::{KIB, MIB, memory};

/// Worlds by default; `LUNETTE_ADAPTER_WORLDS` asks for more.
const SEEDS: u64 = 8;
const LEN: usize = 2 * MIB;
const PIECE: usize = 64 * KIB;

/// What a piece of the peer's memory holds, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Full(u8),
    /// Of these two bytes, in any mixture; what is under way may change it still.
    Torn(u8, u8, bool),
}

/// Writes and reads at random, and says how many were done and how many failed.
async fn load(peer: Peer, remote: RemoteSegment, seed: u64, rounds: u8) -> (u32, u32) {
    let mut random = SplitMix64::new(seed);
    let mut model = [Piece::Full(0); LEN / PIECE];
    let (mut done, mut failed) = (0, 0);
    for round in 1..=rounds {
        let mut batch = Batch::new();
        let mut touched = Vec::new();
        for (at, piece) in model.iter().enumerate() {
            // What may still change is left alone: two writes at a time are in no order.
            if random.below(3) > 0 && !matches!(piece, Piece::Torn(_, _, true)) {
                let source = memory(PIECE);
                source.copy_in(0, &vec![round; PIECE]);
                let offset = (at * PIECE) as u64;
                batch.write(source, &remote, offset).expect("a write");
                touched.push(at);
            }
        }
        let ended = post(&peer, &batch, 4).await;
        done += u32::from(ended.is_ok());
        failed += u32::from(ended.is_err());
        take(&mut model, &touched, round, ended.err());
        let target = memory(LEN);
        let mut batch = Batch::new();
        batch.read(target.clone(), &remote, 0).expect("a read");
        match post(&peer, &batch, 4).await {
            Ok(_) => check(&model, &target.to_vec(), seed, round),
            Err(_) => failed += 1,
        }
    }
    (done, failed)
}

fn take(model: &mut [Piece], touched: &[usize], round: u8, error: Option<TransferError>) {
    let failures = error.map_or_else(Vec::new, |error| error.failures);
    for (request, &at) in (0..).zip(touched) {
        let failure = failures
            .iter()
            .find(|failure| failure.request == Some(request));
        model[at] = match (failure.map(|failure| failure.effect), model[at]) {
            (None, _) => Piece::Full(round),
            (Some(Effect::Untouched), before) => before,
            (Some(effect), Piece::Full(before)) => {
                Piece::Torn(before, round, effect == Effect::MayStillChange)
            }
            // Of three and more it may be anything; it is written again, and known then.
            (Some(effect), Piece::Torn(before, ..)) => {
                Piece::Torn(before, round, effect == Effect::MayStillChange)
            }
        };
    }
}

fn check(model: &[Piece], found: &[u8], seed: u64, round: u8) {
    for (at, piece) in model.iter().enumerate() {
        let bytes = &found[at * PIECE..(at + 1) * PIECE];
        if let Piece::Full(byte) = piece {
            let wrong = bytes.iter().filter(|found| *found != byte).count();
            assert_eq!(wrong, 0, "seed {seed}, round {round}, piece {at} of {byte}");
        }
    }
}

/// Something that goes wrong at one of the adapters.
pub(super) fn strike(fabric: &Fabric, adapters: usize, random: &mut SplitMix64) {
    let count = u32::try_from(2 * adapters).expect("few");
    let device = random.below(count) as usize;
    let pairs = fabric.queue_pairs(device);
    let some = u32::try_from(pairs.len()).expect("few");
    let pair = (some > 0).then(|| pairs[random.below(some) as usize]);
    match random.below(11) {
        0 => fabric.inject(device, Fault::RetryExceeded),
        1 => fabric.inject(device, Fault::Flush),
        2 => fabric.inject(device, Fault::RemoteAccess),
        3 => fabric.inject(device, Fault::Code(random.below(30))),
        4 => fabric.inject(device, Fault::LinkDown),
        5 | 6 => (0..2 * adapters).for_each(|device| fabric.inject(device, Fault::LinkUp)),
        7 => fabric.set_speed(
            device,
            Speed {
                bytes_per_second: 1 << random.below(34),
                ..SPEED
            },
        ),
        8 => fabric.inject(device, Fault::PartialPost { taken: 1 }),
        9 => {
            let event = [
                PairEvent::Fatal,
                PairEvent::InvalidRequest,
                PairEvent::Access,
            ];
            let event = event[random.below(3) as usize];
            if let Some(pair) = pair {
                fabric.raise(device, Raised::Pair(pair, event));
            }
        }
        _ => fabric.set_speed(device, SPEED),
    }
}

#[test]
fn whatever_goes_wrong_with_adapters_batches_end_and_bytes_are_as_they_say() {
    let mut all = (0, 0, 0);
    let asked = std::env::var("LUNETTE_ADAPTER_WORLDS").ok();
    let seeds: u64 = asked.map_or(SEEDS, |asked| asked.parse().expect("a number"));
    for seed in 0..seeds {
        let mut scene = Scene::new(seed, 2, LEN);
        let outcome = scene.spawn(move |engine, peer, remote| async move {
            let (done, failed) = load(peer, remote, seed, 40).await;
            (done, failed, engine.statistics().one_sided_bytes)
        });
        let mut random = SplitMix64::new(seed ^ 0xfa);
        for _ in 0..400 {
            if outcome.is_there() {
                break;
            }
            let pause = Duration::from_micros(u64::from(random.below(3_000)));
            scene.world.run_for(pause);
            strike(&scene.fabric, scene.adapters, &mut random);
        }
        (0..4).for_each(|device| scene.fabric.inject(device, Fault::LinkUp));
        let (done, failed, bytes) = scene.run(600, &outcome);
        all = (all.0 + done, all.1 + failed, all.2 + bytes);
    }
    let (done, failed, bytes) = all;
    // The streams are there all the time: nearly all is done, one way or the other.
    let most = u32::try_from(seeds * 40).expect("few");
    assert!(
        done > most * 9 / 10,
        "{done} done, {failed} failed of {most}"
    );
    assert!(bytes > seeds * LEN as u64, "{bytes} bytes by adapters");
}

/// What becomes of transfers of which adapters fail for good while they are under way.
fn goes_on_without(fault: impl Fn(&Scene)) {
    for seed in 0..6 {
        let mut scene = Scene::new(seed, 2, LEN);
        for device in 0..4 {
            let speed = Speed {
                bytes_per_second: 200_000_000,
                ..SPEED
            };
            scene.fabric.set_speed(device, speed);
        }
        let outcome = scene.spawn(move |engine, peer, remote| async move {
            let (done, failed) = load(peer, remote, seed, 6).await;
            (done, failed, engine.statistics())
        });
        scene.world.run_for(Duration::from_millis(25));
        fault(&scene);
        let (done, failed, statistics) = scene.run(60, &outcome);
        assert_eq!((done, failed), (6, 0), "seed {seed}: {statistics:?}");
        assert!(statistics.one_sided_bytes > 0, "seed {seed}");
    }
}

#[test]
fn an_adapter_that_is_lost_is_done_without() {
    goes_on_without(|scene| scene.fabric.raise(2, Raised::DeviceLost));
    goes_on_without(|scene| scene.fabric.inject(1, Fault::Silence));
}

#[test]
fn when_all_adapters_are_lost_the_streams_take_over() {
    goes_on_without(|scene| {
        for device in [2, 3] {
            scene.fabric.raise(device, Raised::DeviceLost);
        }
    });
    goes_on_without(|scene| {
        for device in [0, 1] {
            scene.fabric.inject(device, Fault::LinkDown);
        }
    });
}

#[test]
fn a_peer_that_is_killed_ends_transfers_and_leaves_nothing_landing() {
    for seed in 0..6 {
        let mut scene = Scene::new(seed, 2, LEN);
        let outcome = scene.spawn(move |_, peer, remote| async move {
            let target = memory(LEN);
            let mut ends = Vec::new();
            for _ in 0..60 {
                let mut batch = Batch::new();
                batch.read(target.clone(), &remote, 0).expect("a read");
                ends.push(post(&peer, &batch, 2).await.is_ok());
                if ends.last() == Some(&false) {
                    break;
                }
                time::sleep(Duration::from_millis(1)).await;
            }
            target.copy_in(0, &vec![9; LEN]);
            time::sleep(Duration::from_secs(5)).await;
            let is_quiet = target.to_vec().iter().all(|&byte| byte == 9);
            (ends, is_quiet)
        });
        scene.world.run_for(Duration::from_millis(20));
        scene.world.kill(scene.server, Kill::Crash);
        let (ends, is_quiet) = scene.run(60, &outcome);
        assert_eq!((ends[0], ends.last()), (true, Some(&false)), "seed {seed}");
        assert!(is_quiet, "seed {seed}");
    }
}

#[test]
fn a_flap_costs_the_others_nothing_and_its_rail_comes_back() {
    let took = |flaps: bool| {
        let mut scene = Scene::new(5, 4, 64 * MIB);
        let outcome = scene.spawn(move |_, peer, remote| async move {
            let target = memory(64 * MIB);
            let mut batch = Batch::new();
            for _ in 0..64 {
                batch.read(target.clone(), &remote, 0).expect("a read");
            }
            let done = post(&peer, &batch, 60).await.expect("done");
            time::sleep(Duration::from_secs(2)).await;
            let after = post(&peer, &batch, 60).await.expect("done");
            (done.took, after.took)
        });
        if flaps {
            scene.world.run_for(Duration::from_millis(30));
            scene.fabric.inject(1, Fault::LinkDown);
            scene.world.run_for(Duration::from_millis(20));
            scene.fabric.inject(1, Fault::LinkUp);
        }
        scene.run(60, &outcome)
    };
    let ((calm, calm_after), (flapped, after)) = (took(false), took(true));
    // 4 GiB over four rails, of which one is away for 20 ms: a quarter of that, and what it takes to notice.
    let lost = flapped.saturating_sub(calm);
    println!("a flap: {flapped:?} instead of {calm:?}");
    assert!(
        lost <= Duration::from_millis(50),
        "{lost:?} more than {calm:?}"
    );
    let slower = after.saturating_sub(calm_after);
    assert!(
        slower < calm_after / 50,
        "{after:?}, and {calm_after:?} without"
    );
}

#[test]
fn peers_are_refused_by_adapters_what_they_are_refused_by_streams() {
    use lunette_transfer::engine::{Access, Cause, Refusal, RegisterOptions};
    for seed in 0..4 {
        let mut scene = Scene::new(seed, 2, LEN);
        let server: Engine = scene.engine.borrow().clone().expect("it runs");
        let ids = scene.world.spawn(scene.server, 0, move || async move {
            let named = |name: &str, access| RegisterOptions {
                access,
                ..RegisterOptions::named(name)
            };
            let register = |options: RegisterOptions| {
                server.register(memory(LEN), &options).expect("registered")
            };
            register(named("read", Access::Read));
            let secret = RegisterOptions {
                by_capability: true,
                ..named("secret", Access::ReadWrite)
            };
            (register(named("gone", Access::ReadWrite)), register(secret))
        });
        let (gone, _) = scene.run(1, &ids);
        let outcome = scene.spawn(move |engine, peer, remote| async move {
            let read = async |name: &str| {
                let segment = peer.segment(name).await?;
                let mut batch = Batch::new();
                batch.read(memory(LEN), &segment, 0).expect("a read");
                Ok::<_, lunette_transfer::engine::OpenError>((batch, segment))
            };
            let (batch, segment) = read("read").await.expect("a segment");
            post(&peer, &batch, 5).await.expect("done");
            let mut write = Batch::new();
            assert!(write.write(memory(LEN), &segment, 0).is_err(), "read only");
            assert!(read("secret").await.is_err());
            let (batch, _) = read("gone").await.expect("a segment");
            post(&peer, &batch, 5).await.expect("done");
            let before = engine.statistics().one_sided_bytes;
            assert_eq!(before, 2 * LEN as u64, "by adapters");
            time::sleep(Duration::from_secs(1)).await;
            let failed = post(&peer, &batch, 5).await.expect_err("it is gone");
            let stale = Cause::Refused(Refusal::Stale);
            assert!(
                failed.failures.iter().all(|failure| failure.cause == stale),
                "{failed:?}"
            );
            // The others go on.
            let mut batch = Batch::new();
            batch.read(memory(LEN), &remote, 0).expect("a read");
            time::sleep(Duration::from_secs(1)).await;
            post(&peer, &batch, 5).await.expect("done");
            assert!(
                engine.statistics().one_sided_bytes > before,
                "over new queue pairs"
            );
        });
        scene.world.run_for(Duration::from_millis(800));
        let server: Engine = scene.engine.borrow().clone().expect("it runs");
        let given_back = scene.world.spawn(scene.server, 0, move || async move {
            server.unregister(gone).await.is_some()
        });
        assert!(scene.run(5, &given_back));
        scene.run(30, &outcome);
    }
}
