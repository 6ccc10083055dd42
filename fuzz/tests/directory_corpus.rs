//! The corpus of the target `directory`, every input that ever found a bug there, replayed, and scripts
//! that seeds draw.
#![forbid(unsafe_code)]

#[cfg(test)]
mod replay;

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use lunette_fuzz::directory::{Reached, directory};
    use lunette_generate::Source;
    use lunette_runtime_core::random::SplitMix64;

    use super::replay::{Counter, reaches_everything, replayed};

    const SEEDS: u64 = 3000;
    const SCRIPT_BYTES: usize = 400;

    const COUNTERS: [Counter<Reached>; 10] = [
        ("complete", |reached| reached.complete),
        ("named", |reached| reached.named),
        ("evicting", |reached| reached.evicting),
        ("replicas", |reached| reached.replicas),
        ("freed", |reached| reached.freed),
        ("answered", |reached| reached.answered),
        ("written", |reached| reached.written),
        ("told", |reached| reached.told),
        ("understood", |reached| reached.understood),
        ("malformed", |reached| reached.malformed),
    ];

    #[test]
    fn the_corpus_holds_and_reaches_everything() {
        let reached = replayed("corpus/directory", directory);
        reaches_everything(&reached, &COUNTERS);
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/directory", directory));
    }

    #[test]
    fn scripts_of_seeds_hold() {
        for seed in 0..SEEDS {
            let mut random = SplitMix64::new(seed);
            let mut script: Vec<u8> = (0..SCRIPT_BYTES).map(|_| random.u8()).collect();
            script[0] &= 0x7f;
            let ran = catch_unwind(AssertUnwindSafe(|| directory(&script)));
            if let Err(panic) = ran {
                println!("seed {seed}");
                resume_unwind(panic);
            }
        }
    }
}
