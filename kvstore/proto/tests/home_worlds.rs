//! The home protocol in simulated worlds, one per seed.
//!
//! `LUNETTE_HOME_WORLDS` says how many seeds (10,000 in the long mode), `LUNETTE_HOME_WORLD` which
//! one alone.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

mod home_world;

use std::collections::BTreeMap;

use home_world::World;

/// As many as a minute has room for in a build without optimization.
const SEEDS: u64 = 150;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var_os(name)?;
    let number = text.to_str().and_then(|text| text.parse().ok());
    Some(number.expect("a number"))
}

/// Worlds beyond the first ones in which a bug was found.
const FOUND: [u64; 6] = [218, 366, 766, 2439, 3960, 5206];

/// Names the world in which a check panics.
struct Running {
    seed: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {}: LUNETTE_HOME_WORLD={0} runs it alone", self.seed);
        }
    }
}

#[test]
fn what_is_promised_holds_in_every_world() {
    let one = number("LUNETTE_HOME_WORLD");
    let count = number("LUNETTE_HOME_WORLDS").unwrap_or(SEEDS);
    let seeds: Vec<u64> = match one {
        Some(seed) => vec![seed],
        None => (0..count).chain(FOUND).collect(),
    };
    let mut tally: BTreeMap<&str, u64> = BTreeMap::new();
    let mut failed: Vec<u64> = Vec::new();
    for seed in seeds {
        let running = Running { seed };
        let mut world = World::new(seed);
        world.run();
        drop(running);
        for (what, count) in &world.oracle.tally {
            *tally.entry(what).or_default() += count;
        }
        if let Some(failure) = world.oracle.failures.first() {
            println!("seed {seed}, {:?}: {failure}", world.namespace);
            failed.push(seed);
        }
    }
    println!("{tally:?}");
    assert!(failed.is_empty(), "seeds with a failure: {failed:?}");
    if one.is_none() {
        for what in [
            "hit",
            "miss",
            "unknown",
            "written",
            "exists",
            "removed",
            "evicted",
            "ordered",
            "put at once",
            "looked on",
            "recalled",
            "kept",
            "returned of all",
            "returned of some",
            "emptied",
        ] {
            assert!(tally.contains_key(what), "no world has seen: {what}");
        }
        // Keys are judged soon after a map has changed.
        let (peeked, not_peeked) = (tally["peeked"], tally.get("not peeked"));
        assert!(not_peeked.is_none_or(|not_peeked| not_peeked * 50 < peeked));
    }
}
