//! The corpus of the target `auth`, and every input that ever found a bug there, replayed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use lunette_fuzz::auth::{Reached, auth};

    type Counter = fn(&Reached) -> u32;

    const COUNTERS: [(&str, Counter); 10] = [
        ("authenticated", |reached| reached.authenticated),
        ("waiting", |reached| reached.waiting),
        ("wrong_secret", |reached| reached.wrong_secret),
        ("replayed", |reached| reached.replayed),
        ("malformed", |reached| reached.malformed),
        ("refused", |reached| reached.refused),
        ("opened", |reached| reached.opened),
        ("record_faults", |reached| reached.record_faults),
        ("granted", |reached| reached.granted),
        ("denied", |reached| reached.denied),
    ];

    fn replayed(folder: &str) -> Vec<Reached> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let entries = fs::read_dir(folder).expect("the folder is part of the repository");
        let paths = entries.map(|entry| entry.expect("it can be listed").path());
        paths
            .filter(|path| !path.ends_with("README.md"))
            .map(|path| auth(&fs::read(path).expect("it can be read")))
            .collect()
    }

    #[test]
    fn the_corpus_holds_and_reaches_everything() {
        let reached = replayed("corpus/auth");
        for (name, counter) in COUNTERS {
            let is_reached = reached.iter().any(|reached| counter(reached) > 0);
            assert!(is_reached, "no file reaches {name}");
        }
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/auth"));
    }
}
