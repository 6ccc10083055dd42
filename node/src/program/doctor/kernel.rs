//! The kernel's version, io_uring and its features.

use std::time::Duration;

use lunette::runtime::{
    CoreOptions, DriverChoice, DriverKind, DriverOptions, Feature, Features, ProbeError,
    StartError, block_on, driver,
};

use super::check::Check;
use super::system::System;

/// The oldest supported kernel.
const OLDEST: (u32, u32) = (6, 1);
const NEWER: &str = "run Linux 6.1 or later";

pub(super) fn checks(system: &System) -> Vec<Check> {
    let mut checks = vec![version(system)];
    match open(DriverChoice::Uring) {
        Ok(DriverKind::Uring(features)) => {
            checks.push(Check::ok("io_uring", "allowed"));
            checks.extend(of_features(features));
        }
        // The choice of io_uring gives io_uring or an error.
        Ok(DriverKind::Epoll | DriverKind::Simulated) => {
            checks.push(Check::warn("io_uring", "not used", NEWER))
        }
        Err(error) => {
            checks.push(refused(&error, system));
            // What a node would do: epoll stands in for some refusals of io_uring, not for all.
            checks.push(match open(DriverChoice::Best) {
                Ok(_) => Check::ok("epoll", "serves in place of io_uring"),
                Err(error) => Check::missing("driver", "none", error.to_string()),
            });
        }
    }
    checks
}

/// Opens a core, looks at its driver, closes it.
fn open(choice: DriverChoice) -> Result<DriverKind, StartError> {
    let options = CoreOptions {
        driver: choice,
        // Asked for, to see whether it can be had.
        driver_options: DriverOptions {
            busy_poll: Some(Duration::from_micros(1)),
        },
        ..CoreOptions::default()
    };
    block_on(None, options, || async { driver() })
}

fn version(system: &System) -> Check {
    let name = "kernel";
    let Some(release) = system.text("proc/sys/kernel/osrelease") else {
        return Check::warn(name, "unknown: no /proc/sys/kernel/osrelease", NEWER);
    };
    let found = format!("Linux {release}");
    match major_and_minor(&release) {
        Some(version) if version >= OLDEST => Check::ok(name, found),
        Some(_) => Check::missing(name, found, NEWER),
        None => Check::warn(name, found, NEWER),
    }
}

/// `6.18.44-cloud` is 6 and 18.
fn major_and_minor(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The runtime's error says what to do; the sysctl, which of the two it is.
fn refused(error: &StartError, system: &System) -> Check {
    let forbidden = matches!(error, StartError::Driver(ProbeError::Forbidden(_)));
    let found = match system.text("proc/sys/kernel/io_uring_disabled").as_deref() {
        Some(level @ ("1" | "2")) => format!("forbidden: kernel.io_uring_disabled is {level}"),
        Some("0") if forbidden => "forbidden, by a seccomp filter".to_owned(),
        _ if forbidden => "forbidden".to_owned(),
        _ => "not usable".to_owned(),
    };
    Check::warn("io_uring", found, error.to_string())
}

fn of_features(features: Features) -> Vec<Check> {
    let check = |feature: Feature| {
        let name = format!("io_uring: {}", feature.name);
        if feature.is_there {
            Check::ok(name, "there")
        } else {
            let remedy = format!("run Linux {} or later", feature.since);
            Check::warn(name, "not there", remedy)
        }
    };
    features.list().into_iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::doctor::check::State;

    fn state(release: &str) -> State {
        let (_folder, system) = System::of(&[("proc/sys/kernel/osrelease", release)]);
        version(&system).state
    }

    #[test]
    fn kernels_are_supported_from_6_1_on() {
        assert_eq!(state("6.1.0-18-amd64\n"), State::Ok);
        assert_eq!(state("10.0\n"), State::Ok);
        assert_eq!(state("6.0.19\n"), State::Missing);
        assert_eq!(state("5.15.0-91-generic\n"), State::Missing);
        assert_eq!(state("unknown\n"), State::Warn);
    }

    #[test]
    fn each_way_to_forbid_io_uring_has_its_name_and_remedy() {
        let forbidden = StartError::Driver(ProbeError::Forbidden(rustix::io::Errno::PERM));
        let found = |level: &str| {
            let (_folder, system) = System::of(&[("proc/sys/kernel/io_uring_disabled", level)]);
            refused(&forbidden, &system)
        };
        assert!(found("2\n").found.ends_with("io_uring_disabled is 2"));
        assert!(found("0\n").found.ends_with("seccomp filter"));
        let remedy = found("2\n").remedy.expect("there is one");
        assert!(remedy.contains("kernel.io_uring_disabled=0"), "{remedy}");
    }

    #[test]
    fn features_that_are_not_there_name_their_kernel() {
        let none = of_features(Features::default());
        assert!(none.iter().all(|check| check.state == State::Warn));
        assert_eq!(none[0].remedy.as_deref(), Some("run Linux 6.1 or later"));
    }
}
