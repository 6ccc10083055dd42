//! Bugs that are switched on, one after the other, in the worlds of the home protocol: the oracle has
//! to find each within 2,000 seeds. `cargo test -p lunette-kvstore-proto --features mutants`.

#![cfg(feature = "mutants")]
#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

mod home_world;

use home_world::World;
use lunette_runtime_core::mutant::{Mutant, choose};

const SEEDS: u64 = 2000;

/// The first seed whose world fails, and how.
fn found() -> Option<(u64, String)> {
    (0..SEEDS).find_map(|seed| {
        let mut world = World::new(seed);
        world.run();
        let failure = world.oracle.failures.first().cloned();
        failure.map(|failure| (seed, failure))
    })
}

/// One test, since there is one switch.
#[test]
fn every_bug_is_found() {
    let mut missed = Vec::new();
    for (name, mutant) in Mutant::HOME {
        choose(mutant);
        match found() {
            Some((seed, failure)) => {
                let what: String = failure.chars().take(160).collect();
                println!("{name}: seed {seed}: {what}");
            }
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "bugs that were not found: {missed:?}");
}
