//! The corpus of the target `layout`, and every input that ever found a bug there, replayed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod replay;

#[cfg(test)]
mod tests {
    use lunette_fuzz::layout::{Reached, layout};
    use lunette_runtime_core::random::SplitMix64;

    use super::replay::{Counter, reaches_everything, replayed};

    const COUNTERS: [Counter<Reached>; 8] = [
        ("headers", |reached| reached.headers),
        ("no headers", |reached| reached.no_headers),
        ("records", |reached| reached.records),
        ("no records", |reached| reached.no_records),
        ("layouts", |reached| reached.layouts),
        ("no layouts", |reached| reached.no_layouts),
        ("plans", |reached| reached.plans),
        ("no plans", |reached| reached.no_plans),
    ];

    #[test]
    fn the_corpus_holds_and_reaches_everything() {
        let reached = replayed("corpus/layout", layout);
        reaches_everything(&reached, &COUNTERS);
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/layout", layout));
    }

    /// Scripts that a seed draws: what they reach is in the corpus as files.
    #[test]
    fn scripts_of_any_bytes_hold() {
        for seed in 0..2000 {
            let mut random = SplitMix64::new(seed);
            let words = (0..8).flat_map(|_| random.next().to_le_bytes());
            let script: Vec<u8> = words.collect();
            layout(&script);
        }
    }
}
