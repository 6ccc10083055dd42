//! The log on a drive that loses, tears and reorders writes, in worlds, one per seed.
//!
//! `LUNETTE_LOG_WORLDS` says how many seeds, `LUNETTE_LOG_WORLD` which one alone.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

mod crash;

use crash::{Tally, World};

/// As many as some seconds have room for in a build without optimization.
const SEEDS: u64 = 2000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var_os(name)?;
    let number = text.to_str().and_then(|text| text.parse().ok());
    Some(number.expect("a number"))
}

/// Names the world in which a check panics.
struct Running {
    seed: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {}: LUNETTE_LOG_WORLD={0} runs it alone", self.seed);
        }
    }
}

#[test]
fn what_was_acknowledged_is_found_after_any_crash() {
    let one = number("LUNETTE_LOG_WORLD");
    let count = number("LUNETTE_LOG_WORLDS").unwrap_or(SEEDS);
    let seeds = one.map_or(0..count, |seed| seed..seed + 1);
    let mut tally = Tally::new();
    let mut failed = Vec::new();
    for seed in seeds {
        let running = Running { seed };
        let mut world = World::new(seed);
        world.run();
        drop(running);
        for (what, count) in &world.tally {
            *tally.entry(what).or_default() += count;
        }
        if let Some(failure) = world.failures.first() {
            println!("seed {seed}: {failure}");
            failed.push(seed);
        }
    }
    println!("{tally:?}");
    assert!(failed.is_empty(), "seeds with a failure: {failed:?}");
    if one.is_none() {
        for what in [
            "busy",
            "damaged segment",
            "drive failed",
            "dropped",
            "dropped by recovery",
            "failed write",
            "flipped",
            "found",
            "found to be damaged",
            "full",
            "generation raised",
            "index full",
            "kept",
            "kill",
            "lost",
            "moved",
            "power cut",
            "queue full",
            "read",
            "released",
            "removal",
            "removal failed",
            "sealed by recovery",
            "unread",
        ] {
            assert!(tally.contains_key(what), "no world has seen: {what}");
        }
    }
}
