//! Why a command ended early. Each text is one line that says what to do where that is known.

use std::io;
use std::path::PathBuf;

/// The failure of one xtask command. None is retried: a person reads it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TaskError {
    /// The program is not installed, or may not be run.
    #[error("cannot start `{program}`: {source}")]
    Start { program: String, source: io::Error },
    /// The program ran and reported failure; its own output says why.
    #[error("`{command}` failed ({status})")]
    Failed { command: String, status: String },
    /// System packages are missing and may not be installed from here.
    #[error("missing system packages; install them with: apt-get install -y {packages}")]
    Missing { packages: String },
    /// A file of the tree could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file of the tree is not what it should be.
    #[error("{file}: {reason}")]
    Malformed { file: String, reason: String },
    /// `cargo metadata` failed.
    #[error("cargo metadata: {0}")]
    Metadata(#[from] cargo_metadata::Error),
    /// The house rules are broken; the findings are printed already.
    #[error("tidy: {0} finding(s)")]
    Untidy(usize),
    /// Lanes failed; the table is printed already.
    #[error("lanes failed: {0}")]
    Lanes(String),
    /// A fuzz target that is not in `fuzz/fuzz_targets`.
    #[error("no fuzz target `{name}`; there are: {known}")]
    UnknownTarget { name: String, known: String },
    /// No machine for `xtask vm` can be had here, or it did not do its work.
    #[error("vm: {0}")]
    Vm(String),
    /// libFuzzer found something; the commands that replay it are printed already.
    #[error("fuzz: findings in {0}")]
    Fuzz(String),
}
