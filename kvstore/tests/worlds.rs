//! A cluster of members and clients in a simulated world: processes are killed, hosts are cut off,
//! connections are reset; a ledger of all answers judges each.
//!
//! `LUNETTE_STORE_WORLDS=N` runs N worlds, `LUNETTE_STORE_WORLD=S` the one of seed S, and tells it line
//! by line.
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "worlds/ledger.rs"]
mod ledger;
#[cfg(test)]
#[path = "worlds/load.rs"]
mod load;
#[cfg(test)]
#[path = "worlds/town.rs"]
mod town;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::env;

    use super::town::Town;

    /// How many worlds run where nobody says how many.
    const WORLDS: u64 = 2;

    fn number(name: &str) -> Option<u64> {
        env::var(name).ok()?.parse().ok()
    }

    #[test]
    fn no_answer_contradicts_another() {
        if let Some(seed) = number("LUNETTE_STORE_WORLD") {
            let (failures, counts, log) = Town::new(seed, true).run();
            for line in log {
                println!("{line}");
            }
            assert!(failures.is_empty(), "{failures:#?} {counts:?}");
            return;
        }
        let worlds = number("LUNETTE_STORE_WORLDS").unwrap_or(WORLDS);
        let mut total: BTreeMap<&'static str, u64> = BTreeMap::new();
        for seed in 0..worlds {
            let (failures, counts, _) = Town::new(seed, false).run();
            assert!(
                failures.is_empty(),
                "LUNETTE_STORE_WORLD={seed}: {failures:#?}"
            );
            for (what, count) in counts {
                *total.entry(what).or_default() += count;
            }
        }
        println!("{worlds} worlds: {total:?}");
        for what in ["hit", "miss", "written", "exists", "removed", "kill", "cut"] {
            assert!(total.contains_key(what), "{what} never occurred: {total:?}");
        }
    }
}
