//! What a build needs from the system: looked for first, installed where that is allowed.
//!
//! A need is met when dpkg knows its package as installed or its own probe succeeds, so that other
//! distributions work too. Only root on a system with apt-get gets packages installed; everyone
//! else gets one line that names them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::task_error::TaskError;
use crate::workspace::{self, succeeds};

/// One Debian package, and how to see that what it brings is here already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    package: &'static str,
    probe: &'static [&'static str],
}

const PKG_CONFIG: Need = Need {
    package: "pkg-config",
    probe: &["pkg-config", "--version"],
};
const GCC: Need = Need {
    package: "gcc",
    probe: &["cc", "--version"],
};
const HWLOC: Need = Need {
    package: "libhwloc-dev",
    probe: &["pkg-config", "--atleast-version=2.0", "hwloc"],
};
const UDEV: Need = Need {
    package: "libudev-dev",
    probe: &["pkg-config", "--exists", "libudev"],
};
const GXX: Need = Need {
    package: "g++",
    probe: &["c++", "--version"],
};

/// To build the product: the program reads the topology through hwloc, which reads udev.
pub(crate) const PRODUCT: &[Need] = &[PKG_CONFIG, GCC, HWLOC, UDEV];
/// To compile C for aarch64, which some of the product's dependencies have.
pub(crate) const CROSS: &[Need] = &[
    Need::new(
        "gcc-aarch64-linux-gnu",
        &["aarch64-linux-gnu-gcc", "--version"],
    ),
    Need::new(
        "libc6-dev-arm64-cross",
        &["test", "-f", "/usr/aarch64-linux-gnu/include/stdio.h"],
    ),
];
/// To count instructions and system calls.
pub(crate) const COUNTS: &[Need] = &[
    Need::new("valgrind", &["valgrind", "--version"]),
    Need::new("strace", &["strace", "--version"]),
];
/// To run what is tested against software of others, which is skipped without.
pub(crate) const PEERS: &[Need] = &[
    Need::new("etcd-server", &["etcd", "--version"]),
    Need::new("redis-server", &["redis-server", "--version"]),
    Need::new("nginx", &["nginx", "-v"]),
];
/// To build what is in TLS.
pub(crate) const TLS: &[Need] = &[
    PKG_CONFIG,
    Need::new(
        "libssl-dev",
        &["pkg-config", "--atleast-version=3.0", "openssl"],
    ),
];
/// To build libFuzzer, which is C++, into a fuzz target.
pub(crate) const FUZZ: &[Need] = &[GCC, GXX];

impl Need {
    /// A package, and a command that succeeds where what it brings is here already.
    pub(crate) const fn new(package: &'static str, probe: &'static [&'static str]) -> Self {
        Self { package, probe }
    }

    fn is_met(&self) -> bool {
        installed(self.package) || succeeds(self.probe[0], &self.probe[1..])
    }
}

/// Sees to it that every need is met.
///
/// # Errors
/// [`TaskError::Missing`] when something is missing and this is not root on a system with apt-get;
/// [`TaskError::Failed`] when apt-get could not install it.
pub(crate) fn ensure(needs: &[Need]) -> Result<(), TaskError> {
    let missing = unmet(needs, Need::is_met);
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() || !succeeds("apt-get", &["--version"]) {
        return Err(TaskError::Missing {
            packages: missing.join(" "),
        });
    }
    workspace::run(Command::new("apt-get").args(["update", "-q"]))?;
    let mut install = Command::new("apt-get");
    install
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "-y", "-q", "--no-install-recommends"])
        .args(&missing);
    workspace::run(&mut install)
}

/// Whether every need is met.
pub(crate) fn are_met(needs: &[Need]) -> bool {
    unmet(needs, Need::is_met).is_empty()
}

/// Sees to it that these needs are met where that can be done, and says so where it cannot: what
/// needs them is skipped, and counted.
pub(crate) fn offer(needs: &[Need]) {
    if let Err(error) = ensure(needs) {
        println!("some tests are skipped: {error}");
    }
}

fn unmet(needs: &[Need], is_met: impl Fn(&Need) -> bool) -> Vec<&'static str> {
    needs
        .iter()
        .filter(|need| !is_met(need))
        .map(|need| need.package)
        .collect()
}

fn installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${db:Status-Status}", package]);
    query
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

/// The owner of our entry in procfs is the user that we run as.
fn is_root() -> bool {
    fs::metadata(Path::new("/proc/self")).is_ok_and(|entry| entry.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_named() {
        let needs = [PKG_CONFIG, HWLOC, UDEV];
        let missing = unmet(&needs, |need| need.package == "pkg-config");
        assert_eq!(missing, ["libhwloc-dev", "libudev-dev"]);
    }

    #[test]
    fn a_need_is_met_by_its_probe_alone() {
        let here = Need {
            package: "lunette-no-such-package",
            probe: &["true"],
        };
        let absent = Need {
            package: "lunette-no-such-package",
            probe: &["false"],
        };
        assert!(here.is_met());
        assert!(!absent.is_met());
    }

    #[test]
    fn a_missing_package_is_named_in_the_error() {
        let error = TaskError::Missing {
            packages: "libhwloc-dev libudev-dev".into(),
        };
        assert!(
            error
                .to_string()
                .ends_with("apt-get install -y libhwloc-dev libudev-dev")
        );
    }
}
