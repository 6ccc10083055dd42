//! Standard output.

use std::io::{self, Write};

use super::failure::Failure;

/// Writes a line, at once: whoever reads it may be waiting.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    raw(format!("{text}\n").as_bytes())
}

/// Writes bytes as they are.
pub(crate) fn raw(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::file("standard output", error))
}
