//! The corpus of the target `auth`, and every input that ever found a bug there, replayed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod replay;

#[cfg(test)]
mod tests {
    use lunette_fuzz::auth::{Reached, auth};

    use super::replay::{Counter, reaches_everything, replayed};

    const COUNTERS: [Counter<Reached>; 10] = [
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

    #[test]
    fn the_corpus_holds_and_reaches_everything() {
        let reached = replayed("corpus/auth", auth);
        reaches_everything(&reached, &COUNTERS);
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/auth", auth));
    }
}
