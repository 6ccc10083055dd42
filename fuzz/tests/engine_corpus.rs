//! The corpora of the targets `engine_message`, `engine_scheduler` and `engine_lane`, every input that ever found
//! a bug there, and a few thousand inputs that are made up here.
#![forbid(unsafe_code)]

#[cfg(test)]
mod replay;

#[cfg(test)]
mod tests {
    use lunette_fuzz::engine::{lane, message, scheduler};

    use super::replay::{Counter, reaches_everything, replayed};

    const OF_MESSAGES: [Counter<message::Reached>; 21] = [
        ("places", |reached| reached.places),
        ("notes", |reached| reached.notes),
        ("writes", |reached| reached.writes),
        ("descriptors", |reached| reached.descriptors),
        ("names", |reached| reached.names),
        ("operations", |reached| reached.operations),
        ("packets", |reached| reached.packets),
        ("introductions", |reached| reached.introductions),
        ("tokens", |reached| reached.tokens),
        ("greetings", |reached| reached.greetings),
        ("ports", |reached| reached.ports),
        ("faults", |reached| reached.faults),
        ("registered", |reached| reached.registered),
        ("refused", |reached| reached.refused),
        ("unregistered", |reached| reached.unregistered),
        ("allowed", |reached| reached.allowed),
        ("stale", |reached| reached.stale),
        ("forbidden", |reached| reached.forbidden),
        ("out_of_range", |reached| reached.out_of_range),
        ("found_by_name", |reached| reached.found_by_name),
        ("found_by_address", |reached| reached.found_by_address),
    ];

    const OF_SCHEDULERS: [Counter<scheduler::Reached>; 13] = [
        ("succeeded", |reached| reached.succeeded),
        ("failed", |reached| reached.failed),
        ("unsettled", |reached| reached.unsettled),
        ("cancelled", |reached| reached.cancelled),
        ("full", |reached| reached.full),
        ("resent", |reached| reached.resent),
        ("refused", |reached| reached.refused),
        ("lost", |reached| reached.lost),
        ("stopped", |reached| reached.stopped),
        ("fenced", |reached| reached.fenced),
        ("stalls", |reached| reached.stalls),
        ("idles", |reached| reached.idles),
        ("replaced", |reached| reached.replaced),
    ];

    const OF_LANES: [Counter<lane::Reached>; 12] = [
        ("succeeded", |reached| reached.succeeded),
        ("untouched", |reached| reached.untouched),
        ("partly", |reached| reached.partly),
        ("unsettled", |reached| reached.unsettled),
        ("cancelled", |reached| reached.cancelled),
        ("late", |reached| reached.late),
        ("full", |reached| reached.full),
        ("refused", |reached| reached.refused),
        ("stray", |reached| reached.stray),
        ("no_slot", |reached| reached.no_slot),
        ("no_room", |reached| reached.no_room),
        ("lost", |reached| reached.lost),
    ];

    /// Inputs without a plan, the same in each run.
    fn made_up(count: u64, len_max: u64) -> impl Iterator<Item = Vec<u8>> {
        (1..=count).map(move |seed| {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut next = move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state >> 11
            };
            let len = next() % len_max;
            (0..len).map(|_| next().to_le_bytes()[0]).collect()
        })
    }

    #[test]
    fn the_corpus_of_messages_holds_and_reaches_everything() {
        let reached = replayed("corpus/engine_message", message::message);
        reaches_everything(&reached, &OF_MESSAGES);
    }

    #[test]
    fn the_corpus_of_schedulers_holds_and_reaches_everything() {
        let reached = replayed("corpus/engine_scheduler", scheduler::scheduler);
        reaches_everything(&reached, &OF_SCHEDULERS);
    }

    #[test]
    fn the_corpus_of_lanes_holds_and_reaches_everything() {
        let reached = replayed("corpus/engine_lane", lane::lane);
        reaches_everything(&reached, &OF_LANES);
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/engine_message", message::message));
        drop(replayed("regressions/engine_lane", lane::lane));
        drop(replayed(
            "regressions/engine_scheduler",
            scheduler::scheduler,
        ));
    }

    #[test]
    fn inputs_without_a_plan_find_nothing() {
        for input in made_up(4000, 512) {
            message::message(&input);
        }
        let reached: Vec<_> = made_up(2000, 512)
            .map(|input| scheduler::scheduler(&input))
            .collect();
        reaches_everything(&reached, &OF_SCHEDULERS);
        let reached: Vec<_> = made_up(4000, 512).map(|input| lane::lane(&input)).collect();
        reaches_everything(&reached, &OF_LANES);
    }
}
