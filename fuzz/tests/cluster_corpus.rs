//! The corpus of the target `cluster`, and every input that ever found a bug there, replayed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use lunette_fuzz::cluster::{Reached, cluster};

    type Counter = fn(&Reached) -> u32;

    const COUNTERS: [(&str, Counter); 10] = [
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
    ];

    fn replayed(folder: &str) -> Vec<Reached> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let entries = fs::read_dir(folder).expect("the folder is part of the repository");
        let paths = entries.map(|entry| entry.expect("it can be listed").path());
        paths
            .filter(|path| !path.ends_with("README.md"))
            .map(|path| cluster(&fs::read(path).expect("it can be read")))
            .collect()
    }

    #[test]
    fn the_corpus_holds_and_reaches_everything() {
        let reached = replayed("corpus/cluster");
        for (name, counter) in COUNTERS {
            let is_reached = reached.iter().any(|reached| counter(reached) > 0);
            assert!(is_reached, "no file reaches {name}");
        }
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/cluster"));
    }
}
