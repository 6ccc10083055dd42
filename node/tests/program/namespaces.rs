//! Network namespaces, which take root and `ip`: what tests of several hosts run their programs in.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// Runs `ip`; what it says where it fails.
pub(crate) fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", arguments.join(" "), said.trim()))
}

/// Lets a link carry so many bits per second out of a namespace.
pub(crate) fn shape(namespace: &str, link: &str, rate: &str) -> Result<(), String> {
    ip(&[
        "netns", "exec", namespace, "tc", "qdisc", "add", "dev", link, "root", "tbf", "rate", rate,
        "burst", "128kb", "latency", "20ms",
    ])
}

/// The command, in a namespace and with the secret.
pub(crate) fn within(namespace: &str, command: &Command, secret: &TempDir) -> Command {
    let mut inside = Command::new("ip");
    inside.args(["netns", "exec", namespace]);
    inside.arg(command.get_program()).args(command.get_args());
    inside
        .env_remove("LUNETTE_INSECURE")
        .env("LUNETTE_SECRET_FILE", secret.path().join("secret"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    inside
}

/// A folder with a cluster's secret.
pub(crate) fn secret() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    fs::write(&file, "0123456789abcdef0123456789abcdef\n").expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set");
    folder
}
