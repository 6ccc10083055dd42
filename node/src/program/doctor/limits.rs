//! Limits of this process.

use super::check::Check;
use super::system::System;
use crate::program::size::Size;

/// Open files that a node with a thousand connections and some margin needs.
const OPEN_FILES_WANTED: u64 = 4096;
/// CAP_IPC_LOCK exempts from the limit of locked memory (linux/capability.h).
const CAPABILITY_IPC_LOCK: u32 = 14;

pub(super) fn checks(system: &System) -> [Check; 2] {
    let limits = system.text("proc/self/limits").unwrap_or_default();
    [locked_memory(system, &limits), open_files(&limits)]
}

/// A soft limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    None,
    At(u64),
}

/// The soft limit of this name in `/proc/self/limits`.
fn soft_limit(limits: &str, name: &str) -> Option<Limit> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(Limit::None),
        number => number.parse().ok().map(Limit::At),
    }
}

fn locked_memory(system: &System, limits: &str) -> Check {
    let name = "locked memory";
    let remedy = "for --lock-memory and RDMA: ulimit -l unlimited, LimitMEMLOCK=infinity in a \
                  systemd unit, or the capability IPC_LOCK";
    match soft_limit(limits, "Max locked memory") {
        _ if has_capability(system, CAPABILITY_IPC_LOCK) => {
            Check::ok(name, "no limit: this process has the capability IPC_LOCK")
        }
        Some(Limit::None) => Check::ok(name, "no limit"),
        Some(Limit::At(bytes)) => Check::warn(name, format!("at most {}", Size(bytes)), remedy),
        None => Check::warn(name, "unknown: no /proc/self/limits", remedy),
    }
}

fn has_capability(system: &System, capability: u32) -> bool {
    let status = system.text("proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> capability & 1 == 1)
}

fn open_files(limits: &str) -> Check {
    let name = "open files";
    let remedy = "ulimit -n 65536, or LimitNOFILE=65536 in a systemd unit";
    match soft_limit(limits, "Max open files") {
        Some(Limit::None) => Check::ok(name, "no limit"),
        Some(Limit::At(count)) if count >= OPEN_FILES_WANTED => {
            Check::ok(name, format!("at most {count}"))
        }
        Some(Limit::At(count)) => Check::warn(name, format!("at most {count}"), remedy),
        None => Check::warn(name, "unknown: no /proc/self/limits", remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::doctor::check::State;

    const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     \n\
Max open files            1024                 524288               files     \n\
Max locked memory         8388608              8388608              bytes     \n\
Max address space         unlimited            unlimited            bytes     \n";

    fn checks_of(limits: &str, capabilities: &str) -> [Check; 2] {
        let status = format!("Name:\tlunette\nCapEff:\t{capabilities}\n");
        let files = [("proc/self/limits", limits), ("proc/self/status", &*status)];
        let (_folder, system) = System::of(&files);
        checks(&system)
    }

    #[test]
    fn low_limits_are_warned_of() {
        let [locked, files] = checks_of(LIMITS, "0000000000000000");
        assert_eq!(locked.state, State::Warn);
        assert_eq!(locked.found, "at most 8MiB");
        assert_eq!(files.state, State::Warn);
        assert_eq!(files.found, "at most 1024");
        let enough = LIMITS.replace("1024 ", "4096 ");
        let enough = enough.replace("8388608", "unlimited");
        let [locked, files] = checks_of(&enough, "0000000000000000");
        assert_eq!((locked.state, files.state), (State::Ok, State::Ok));
    }

    #[test]
    fn a_capability_lifts_the_limit_of_locked_memory() {
        assert_eq!(checks_of(LIMITS, "0000000000004000")[0].state, State::Ok);
        assert_eq!(checks_of(LIMITS, "0000000000008000")[0].state, State::Warn);
    }

    #[test]
    fn what_is_no_table_of_limits_is_said_to_be_unknown() {
        for text in ["", "Max open files", "Max open files many"] {
            assert_eq!(soft_limit(text, "Max open files"), None, "{text}");
        }
    }
}
