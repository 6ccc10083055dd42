//! Scripts for the target `member`: those that seeds draw, and every input that ever found a bug there.
#![forbid(unsafe_code)]

#[cfg(test)]
mod replay;

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use lunette_fuzz::member::{Reached, member};
    use lunette_generate::Source;
    use lunette_runtime_core::random::SplitMix64;

    use super::replay::{Counter, reaches_everything, replayed};

    /// Each is a world of its own.
    const SEEDS: u64 = 60;
    const SCRIPT_BYTES: usize = 400;

    const COUNTERS: [Counter<Reached>; 9] = [
        ("done", |reached| reached.done),
        ("malformed", |reached| reached.malformed),
        ("refused", |reached| reached.refused),
        ("told", |reached| reached.told),
        ("answered", |reached| reached.answered),
        ("written", |reached| reached.written),
        ("stored", |reached| reached.stored),
        ("hits", |reached| reached.hits),
        ("misses", |reached| reached.misses),
    ];

    #[test]
    fn the_corpus_holds() {
        assert!(!replayed("corpus/member", member).is_empty());
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/member", member));
    }

    #[test]
    fn scripts_of_seeds_hold_and_reach_everything() {
        let first = std::env::var("LUNETTE_FUZZ_FIRST").ok();
        let first = first.and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut all = Vec::new();
        for seed in first..first + SEEDS {
            let mut random = SplitMix64::new(seed);
            let script: Vec<u8> = (0..SCRIPT_BYTES).map(|_| random.u8()).collect();
            match catch_unwind(AssertUnwindSafe(|| member(&script))) {
                Ok(reached) => all.push(reached),
                Err(panic) => {
                    println!("seed {seed}");
                    resume_unwind(panic);
                }
            }
        }
        reaches_everything(&all, &COUNTERS);
    }
}
