//! Every file of the corpus and every input that ever found a bug, replayed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod replay;

#[cfg(test)]
mod tests {
    use lunette_fuzz::nvme::{self, nvme};
    use lunette_fuzz::wire::{Reached, wire};

    use super::replay::{Counter, reaches_everything, replayed};

    const COUNTERS: [Counter<Reached>; 12] = [
        ("frames", |reached| reached.frames),
        ("payloads_intact", |reached| reached.payloads_intact),
        ("payloads_corrupt", |reached| reached.payloads_corrupt),
        ("wire_faults", |reached| reached.wire_faults),
        ("handshakes_open", |reached| reached.handshakes_open),
        ("handshakes_failed", |reached| reached.handshakes_failed),
        ("calls_done", |reached| reached.calls_done),
        ("calls_given_up", |reached| reached.calls_given_up),
        ("calls_unread", |reached| reached.calls_unread),
        ("calls_fenced", |reached| reached.calls_fenced),
        ("responses_discarded", |reached| reached.responses_discarded),
        ("call_faults", |reached| reached.call_faults),
    ];

    #[test]
    fn the_wire_corpus_holds_and_reaches_everything() {
        reaches_everything(&replayed("corpus/wire", wire), &COUNTERS);
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        drop(replayed("regressions/wire", wire));
    }

    const NVME_COUNTERS: [Counter<nvme::Reached>; 20] = [
        ("opened", |reached| reached.opened),
        ("faults", |reached| reached.faults),
        ("header_digests", |reached| reached.header_digests),
        ("connected", |reached| reached.connected),
        ("carried_out", |reached| reached.carried_out),
        ("data_complete", |reached| reached.data_complete),
        ("data_corrupt", |reached| reached.data_corrupt),
        ("completed", |reached| reached.completed),
        ("heads", |reached| reached.heads),
        ("transfers", |reached| reached.transfers),
        ("given_up", |reached| reached.given_up),
        ("proved", |reached| reached.proved),
        ("rejected", |reached| reached.rejected),
        ("unproved", |reached| reached.unproved),
        ("objected", |reached| reached.objected),
        ("several_done", |reached| reached.several_done),
        ("several_read", |reached| reached.several_read),
        ("several_refused", |reached| reached.several_refused),
        ("stranger_connected", |reached| reached.stranger_connected),
        ("stranger_faults", |reached| reached.stranger_faults),
    ];

    #[test]
    fn the_nvme_corpus_holds_and_reaches_everything() {
        reaches_everything(&replayed("corpus/nvme", nvme), &NVME_COUNTERS);
    }

    #[test]
    fn inputs_that_found_a_bug_in_nvme_find_it_no_more() {
        drop(replayed("regressions/nvme", nvme));
    }
}
