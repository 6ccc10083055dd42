//! The corpus of the target `cluster`, and every input that ever found a bug there, replayed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod replay;

#[cfg(test)]
mod tests {
    use lunette_fuzz::cluster::{Reached, cluster};

    use super::replay::{Counter, reaches_everything, replayed};

    const COUNTERS: [Counter<Reached>; 12] = [
        ("answers", |reached| reached.answers),
        ("refusals", |reached| reached.refusals),
        ("malformed", |reached| reached.malformed),
        ("http_faults", |reached| reached.http_faults),
        ("changes", |reached| reached.changes),
        ("compacted", |reached| reached.compacted),
        ("carried_out", |reached| reached.carried_out),
        ("refused", |reached| reached.refused),
        ("watches", |reached| reached.watches),
        ("maps", |reached| reached.maps),
        ("quotas", |reached| reached.quotas),
        ("asked", |reached| reached.asked),
    ];

    #[test]
    fn the_corpus_holds_and_reaches_everything() {
        let reached = replayed("corpus/cluster", cluster);
        reaches_everything(&reached, &COUNTERS);
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/cluster", cluster));
    }
}
