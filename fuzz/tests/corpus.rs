//! Every file of the corpus and every input that ever found a bug, replayed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::{fs, io};

    use lunette_fuzz::nvme::{self, nvme};
    use lunette_fuzz::wire::{Reached, wire};

    type Counter = fn(&Reached) -> u32;

    const COUNTERS: [(&str, Counter); 11] = [
        ("frames", |reached| reached.frames),
        ("payloads_intact", |reached| reached.payloads_intact),
        ("payloads_corrupt", |reached| reached.payloads_corrupt),
        ("wire_faults", |reached| reached.wire_faults),
        ("handshakes_open", |reached| reached.handshakes_open),
        ("handshakes_failed", |reached| reached.handshakes_failed),
        ("calls_done", |reached| reached.calls_done),
        ("calls_given_up", |reached| reached.calls_given_up),
        ("calls_fenced", |reached| reached.calls_fenced),
        ("responses_discarded", |reached| reached.responses_discarded),
        ("call_faults", |reached| reached.call_faults),
    ];

    fn files_of(folder: &str) -> io::Result<Vec<PathBuf>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
        let mut files: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
        files.retain(|path| !path.ends_with("README.md"));
        files.sort();
        Ok(files)
    }

    #[test]
    fn the_wire_corpus_holds_and_reaches_everything() {
        let files = files_of("corpus/wire").expect("the corpus is part of the repository");
        assert!(!files.is_empty(), "fuzz/corpus/wire is empty");
        let read = |file| fs::read(file).expect("a corpus file can be read");
        let reached: Vec<Reached> = files.iter().map(|file| wire(&read(file))).collect();
        for (name, counter) in COUNTERS {
            assert!(
                reached.iter().any(|reached| counter(reached) > 0),
                "no file reaches {name}"
            );
        }
    }

    #[test]
    fn inputs_that_found_a_bug_find_it_no_more() {
        let files = files_of("regressions/wire").expect("the folder is part of the repository");
        for file in files {
            wire(&fs::read(&file).expect("a regression file can be read"));
        }
    }

    type NvmeCounter = fn(&nvme::Reached) -> u32;

    const NVME_COUNTERS: [(&str, NvmeCounter); 10] = [
        ("opened", |reached| reached.opened),
        ("faults", |reached| reached.faults),
        ("header_digests", |reached| reached.header_digests),
        ("connected", |reached| reached.connected),
        ("carried_out", |reached| reached.carried_out),
        ("data_complete", |reached| reached.data_complete),
        ("data_corrupt", |reached| reached.data_corrupt),
        ("completed", |reached| reached.completed),
        ("transfers", |reached| reached.transfers),
        ("given_up", |reached| reached.given_up),
    ];

    #[test]
    fn the_nvme_corpus_holds_and_reaches_everything() {
        let files = files_of("corpus/nvme").expect("the corpus is part of the repository");
        let read = |file| fs::read(file).expect("a corpus file can be read");
        let reached: Vec<_> = files.iter().map(|file| nvme(&read(file))).collect();
        for (name, counter) in NVME_COUNTERS {
            assert!(
                reached.iter().any(|reached| counter(reached) > 0),
                "no file reaches {name}"
            );
        }
    }

    #[test]
    fn inputs_that_found_a_bug_in_nvme_find_it_no_more() {
        let files = files_of("regressions/nvme").expect("the folder is part of the repository");
        for file in files {
            nvme(&fs::read(&file).expect("a regression file can be read"));
        }
    }
}
