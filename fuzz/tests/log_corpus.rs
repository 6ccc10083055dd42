//! The corpus of the target `log`, every input that ever found a bug there, replayed, and scripts that seeds draw.
#![forbid(unsafe_code)]

#[cfg(test)]
mod replay;

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use lunette_fuzz::log::{Reached, log};
    use lunette_generate::Source;
    use lunette_runtime_core::random::SplitMix64;

    use super::replay::{Counter, reaches_everything, replayed};

    const SEEDS: u64 = 1000;
    const SCRIPT_BYTES_MAX: u32 = 120;

    const COUNTERS: [Counter<Reached>; 9] = [
        ("opened", |reached| reached.opened),
        ("records", |reached| reached.records),
        ("damaged_records", |reached| reached.damaged_records),
        ("damaged_segments", |reached| reached.damaged_segments),
        ("unsealed_segments", |reached| reached.unsealed_segments),
        ("refused_damaged", |reached| reached.refused_damaged),
        ("refused_other", |reached| reached.refused_other),
        ("refused_newer", |reached| reached.refused_newer),
        ("forged", |reached| reached.forged),
    ];

    #[test]
    fn the_corpus_holds_and_reaches_everything() {
        reaches_everything(&replayed("corpus/log", log), &COUNTERS);
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/log", log));
    }

    #[test]
    fn scripts_of_seeds_hold() {
        for seed in 0..SEEDS {
            let mut random = SplitMix64::new(seed);
            let len = random.below(SCRIPT_BYTES_MAX) as usize;
            let script: Vec<u8> = (0..len).map(|_| random.u8()).collect();
            let ran = catch_unwind(AssertUnwindSafe(|| log(&script)));
            if let Err(panic) = ran {
                println!("seed {seed}");
                resume_unwind(panic);
            }
        }
    }
}
