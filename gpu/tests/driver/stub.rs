//! Builds the driver that stands in place of libcuda: for tests of this package, and of those above it.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu/tests/driver/stub.c");

/// A driver of this name, built with these definitions.
pub(crate) fn stub(name: &str, definitions: &[&str]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("libcuda-{name}.so"));
    let mut command = Command::new("cc");
    command.args([
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-Wno-unused-function",
        "-pthread",
        "-o",
    ]);
    command.arg(&path).arg(SOURCE);
    command.args(definitions.iter().map(|name| format!("-D{name}")));
    let built = command.status().expect("a compiler, which links this test");
    assert!(built.success());
    path
}
