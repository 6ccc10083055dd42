//! Bugs that are switched on, one after the other, in the worlds of the log: each has to be found within some
//! hundred seeds. `cargo test --profile sim -p lunette-kvstore-log --features mutants --test log_mutants`.

#![cfg(feature = "mutants")]
#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

mod crash;

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use crash::World;
use lunette_runtime_core::mutant::{Mutant, choose};

const SEEDS: u64 = 1000;

/// How a world fails, if it does. A check within the log that panics is a failure as well.
fn failure(seed: u64) -> Option<String> {
    let mut world = World::new(seed);
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(()) => world.failures.first().cloned(),
        Err(_) => Some("a check of the log".to_owned()),
    }
}

/// One test, since there is one switch.
#[test]
fn every_bug_is_found() {
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    let mut found = Vec::new();
    for (name, mutant) in Mutant::LOG {
        choose(mutant);
        match (0..SEEDS).find_map(|seed| Some((seed, failure(seed)?))) {
            Some((seed, failure)) => {
                let what: String = failure.chars().take(160).collect();
                found.push(format!("{name}: seed {seed}: {what}"));
            }
            None => missed.push(name),
        }
    }
    set_hook(hook);
    println!("{}", found.join("\n"));
    assert!(missed.is_empty(), "bugs that were not found: {missed:?}");
}
