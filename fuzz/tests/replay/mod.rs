//! Folders of inputs, replayed.

use std::fs;
use std::path::Path;

/// What is to be reached: its name, and how often one input did.
pub(crate) type Counter<R> = (&'static str, fn(&R) -> u32);

/// What each input of a folder reaches.
pub(crate) fn replayed<R>(folder: &str, target: fn(&[u8]) -> R) -> Vec<R> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(folder).expect("the folder is part of the repository");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("it can be listed").path())
        .collect();
    paths.retain(|path| !path.ends_with("README.md"));
    paths.sort();
    let read = paths
        .iter()
        .map(|path| fs::read(path).expect("it can be read"));
    read.map(|input| target(&input)).collect()
}

/// Fails unless some input reaches each of these.
pub(crate) fn reaches_everything<R>(reached: &[R], counters: &[Counter<R>]) {
    for (name, counter) in counters {
        let is_reached = reached.iter().any(|reached| counter(reached) > 0);
        assert!(is_reached, "no input reaches {name}");
    }
}
