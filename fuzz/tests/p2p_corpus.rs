//! The corpus of the target `p2p`, and every input that ever found a bug there, replayed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod replay;

#[cfg(test)]
mod tests {
    use lunette_fuzz::p2p::{Reached, p2p};
    use lunette_runtime_core::random::SplitMix64;

    use super::replay::{Counter, reaches_everything, replayed};

    const COUNTERS: [Counter<Reached>; 11] = [
        ("records", |reached| reached.records),
        ("malformed", |reached| reached.malformed),
        ("messages", |reached| reached.messages),
        ("granted", |reached| reached.granted),
        ("busy", |reached| reached.busy),
        ("refused", |reached| reached.refused),
        ("held", |reached| reached.held),
        ("cancelled", |reached| reached.cancelled),
        ("copies", |reached| reached.copies),
        ("whole", |reached| reached.whole),
        ("closed", |reached| reached.closed),
    ];

    #[test]
    fn the_corpus_holds_and_reaches_everything() {
        let reached = replayed("corpus/p2p", p2p);
        reaches_everything(&reached, &COUNTERS);
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/p2p", p2p));
    }

    /// Scripts that a seed draws: what they reach is in the corpus as files.
    #[test]
    fn scripts_of_any_bytes_hold() {
        for seed in 0..300 {
            let mut random = SplitMix64::new(seed);
            let script: Vec<u8> = (0..1000)
                .flat_map(|_| random.next().to_le_bytes())
                .collect();
            p2p(&script);
        }
    }
}
