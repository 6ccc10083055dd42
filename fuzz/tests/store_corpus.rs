//! The corpus of the target `store`, and every input that ever found a bug there, replayed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod replay;

#[cfg(test)]
mod tests {
    use lunette_fuzz::store::{Reached, store};

    use super::replay::{Counter, reaches_everything, replayed};

    const COUNTERS: [Counter<Reached>; 10] = [
        ("hits", |reached| reached.hits),
        ("touched", |reached| reached.touched),
        ("busy", |reached| reached.busy),
        ("refused", |reached| reached.refused),
        ("aborted", |reached| reached.aborted),
        ("removed_while_held", |reached| reached.removed_while_held),
        ("evicted", |reached| reached.evicted),
        ("understood", |reached| reached.understood),
        ("malformed", |reached| reached.malformed),
        ("manifests", |reached| reached.manifests),
    ];

    #[test]
    fn the_corpus_holds_and_reaches_everything() {
        let reached = replayed("corpus/store", store);
        reaches_everything(&reached, &COUNTERS);
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/store", store));
    }
}
