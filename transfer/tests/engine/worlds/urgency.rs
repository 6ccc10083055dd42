//! What is urgent does not wait for what is not, whoever was first.

use std::time::Duration;

use lunette_runtime::{spawn_local, time};
use lunette_transfer::engine::{
    Batch, Engine, Intent, PostOptions, Priority, RegisterOptions, Way,
};

use super::rails::{Processes, addresses, finish, world};
use crate::scene::{MIB, full_of, guarded};

const SEEDS: u64 = 2;
const LEN: usize = 8 * MIB;

/// Posts the one and then, at once, the other, half as long. Whether the other one ended first.
fn overtakes(seed: u64, way: Way, first: PostOptions, second: PostOptions) -> bool {
    let (mut world, Processes { client, .. }) = world(seed, move |engine| async move {
        let registered = engine.register(full_of(0, LEN), &RegisterOptions::named("kv"));
        registered.expect("registered");
        std::future::pending::<()>().await;
    });
    let outcome = world.spawn(client, 0, move || async move {
        let engine = Engine::start(guarded()).expect("an engine");
        let peer = engine.open(&addresses()).await.expect("a peer");
        let remote = peer.segment("kv").await.expect("a segment");
        let mut ends = Vec::new();
        for (options, len) in [(first, LEN), (second, LEN / 2)] {
            let mut batch = Batch::new();
            let added = match way {
                Way::Read => batch.read(full_of(1, len), &remote, 0),
                Way::Write => batch.write(full_of(1, len), &remote, 0),
            };
            added.expect("a request");
            let transfer = peer.post(&batch, options).expect("posted");
            ends.push(spawn_local(async move {
                transfer.await.expect("done");
                time::now()
            }));
        }
        let mut ended = Vec::new();
        for end in ends {
            ended.push(end.await.expect("no panic"));
        }
        ended
    });
    let ended = finish(&mut world, 10, &outcome);
    assert_ne!(ended[0], ended[1], "seed {seed}");
    ended[1] < ended[0]
}

fn as_intended(intent: Intent) -> PostOptions {
    PostOptions {
        intent,
        timeout: Duration::from_secs(10),
        ..PostOptions::default()
    }
}

fn told(intent: Intent, priority: Priority) -> PostOptions {
    PostOptions {
        priority: Some(priority),
        ..as_intended(intent)
    }
}

#[test]
fn a_post_in_the_background_waits_for_one_in_the_foreground_that_comes_later() {
    use Intent::{Get, Prefetch};
    use Priority::{Background, Foreground};
    let cases = [
        (told(Get, Background), told(Get, Foreground), true),
        (as_intended(Prefetch), as_intended(Get), true),
        // What is said goes before what is intended.
        (told(Prefetch, Foreground), as_intended(Get), false),
        (as_intended(Get), told(Prefetch, Foreground), false),
        // Equals go in their order, and what is less urgent overtakes nobody.
        (told(Get, Foreground), told(Get, Foreground), false),
        (told(Get, Background), told(Get, Background), false),
        (told(Get, Foreground), told(Get, Background), false),
    ];
    for seed in 0..SEEDS {
        for way in [Way::Read, Way::Write] {
            for (first, second, expected) in &cases {
                let found = overtakes(seed, way, first.clone(), second.clone());
                assert_eq!(
                    found, *expected,
                    "seed {seed}: {way:?}, {first:?}, {second:?}"
                );
            }
        }
    }
}
