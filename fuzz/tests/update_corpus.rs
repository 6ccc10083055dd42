//! The corpus of the target `update`, and every input that ever found a bug there, replayed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod replay;

#[cfg(test)]
mod tests {
    use lunette_fuzz::update::{Reached, update};
    use lunette_runtime_core::random::SplitMix64;

    use super::replay::{Counter, reaches_everything, replayed};

    const COUNTERS: [Counter<Reached>; 9] = [
        ("manifests", |reached| reached.manifests),
        ("no manifests", |reached| reached.no_manifests),
        ("packed", |reached| reached.packed),
        ("not packed", |reached| reached.not_packed),
        ("complete", |reached| reached.complete),
        ("failed", |reached| reached.failed),
        ("stopped", |reached| reached.stopped),
        ("tried again", |reached| reached.tried_again),
        ("untrue", |reached| reached.untrue),
    ];

    #[test]
    fn the_corpus_holds_and_reaches_everything() {
        let reached = replayed("corpus/update", update);
        reaches_everything(&reached, &COUNTERS);
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/update", update));
    }

    /// Scripts that a seed draws: what they reach is in the corpus as files.
    #[test]
    fn scripts_of_any_bytes_hold() {
        for seed in 0..4000 {
            let mut random = SplitMix64::new(seed);
            let words = (0..24).flat_map(|_| random.next().to_le_bytes());
            let script: Vec<u8> = words.collect();
            update(&script);
        }
    }
}
