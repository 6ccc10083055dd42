//! CPUs: how many, which of them, and how much of them.

use super::check::Check;
use super::system::System;
use crate::program::topo::{ranges, usable_cpus};

const POLICIES: &str = "sys/devices/system/cpu/cpufreq";
/// A larger share of time stolen by the host shows in latencies.
const STEAL_MAX: f64 = 0.01;

pub(super) fn checks(system: &System) -> Vec<Check> {
    let usable = usable_cpus();
    let mut checks = vec![affinity(system, &usable)];
    checks.extend(steal(system));
    checks.push(quota(system, usable.len()));
    checks.extend(governor(system));
    checks
}

fn affinity(system: &System, usable: &[usize]) -> Check {
    let name = "CPUs";
    if usable.is_empty() {
        return Check::missing(name, "none known", "mount /proc and /sys");
    }
    let online = system.text("sys/devices/system/cpu/online");
    let online = online.and_then(|list| ranges::count(&list));
    let listed = ranges::ranges(usable);
    match online {
        Some(online) if online > usable.len() => Check::ok(
            name,
            format!(
                "{} of {online}: this process may use {listed}",
                usable.len()
            ),
        ),
        _ => Check::ok(name, format!("{}: {listed}", usable.len())),
    }
}

/// The share of time since the start that the host gave to others. `None` where it is not counted.
fn steal(system: &System) -> Option<Check> {
    let share = stolen(&system.text("proc/stat")?)?;
    let found = format!("{:.1} % of the time since the start", share * 100.0);
    let name = "steal";
    Some(if share > STEAL_MAX {
        let remedy = "the host runs more than it has CPUs for: use dedicated CPUs";
        Check::warn(name, found, remedy)
    } else {
        Check::ok(name, found)
    })
}

/// Of the line `cpu user nice system idle iowait irq softirq steal ..` of `/proc/stat`.
#[expect(clippy::cast_precision_loss, reason = "a share, shown to people")]
fn stolen(stat: &str) -> Option<f64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields = line.split_whitespace().take(8).map(str::parse);
    let fields: Vec<u64> = fields.collect::<Result<_, _>>().ok()?;
    let stolen = *fields.get(7)?;
    let total: u64 = fields.iter().sum();
    (total > 0).then(|| stolen as f64 / total as f64)
}

/// The CPU time that control groups let this process have, in CPUs.
fn quota(system: &System, usable: usize) -> Check {
    let name = "CPU quota";
    let groups = system.text("proc/self/cgroup").unwrap_or_default();
    let Some(cpus) = quota_cpus(system, &groups) else {
        return Check::ok(name, "none");
    };
    let found = format!("{cpus:.1} CPUs");
    if fits(usable, cpus) {
        return Check::ok(name, found);
    }
    let remedy = "cores that spin use it up and are stopped: raise the quota, run fewer cores, or \
                  --idle efficient";
    Check::warn(name, found, remedy)
}

#[expect(clippy::cast_precision_loss, reason = "counts of CPUs are small")]
fn fits(usable: usize, cpus: f64) -> bool {
    usable as f64 <= cpus
}

/// The lowest quota of this process's group and those above it, of both versions.
fn quota_cpus(system: &System, groups: &str) -> Option<f64> {
    let mut lowest: Option<f64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let second = controllers.is_empty();
        if !second && !controllers.split(',').any(|name| name == "cpu") {
            continue;
        }
        for group in self_and_above(path) {
            let found = if second {
                let max = system.text(&format!("sys/fs/cgroup{group}/cpu.max"));
                max.and_then(|text| second_version(&text))
            } else {
                first_version(system, &format!("sys/fs/cgroup/{controllers}{group}"))
            };
            lowest = match (lowest, found) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
    }
    lowest
}

/// `/a/b` gives `/a/b`, `/a` and the empty path.
fn self_and_above(path: &str) -> impl Iterator<Item = &str> {
    let path = path.trim_end_matches('/');
    std::iter::successors(Some(path), |path| {
        path.rfind('/').map(|slash| &path[..slash])
    })
}

/// `200000 100000` are two CPUs; `max 100000` is no quota.
#[expect(clippy::cast_precision_loss, reason = "a share, shown to people")]
fn second_version(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.trim().parse().ok()?);
    (period > 0).then(|| quota as f64 / period as f64)
}

/// A quota below zero, which is no number here, is none.
fn first_version(system: &System, group: &str) -> Option<f64> {
    let quota = system.number(&format!("{group}/cpu.cfs_quota_us"))?;
    let period = system.number(&format!("{group}/cpu.cfs_period_us"))?;
    second_version(&format!("{quota} {period}"))
}

/// How frequencies are chosen; `None` where the system has no say in it, as in virtual machines.
fn governor(system: &System) -> Option<Check> {
    let mut governors: Vec<String> = system
        .names(POLICIES)
        .iter()
        .filter_map(|policy| system.text(&format!("{POLICIES}/{policy}/scaling_governor")))
        .collect();
    governors.sort_unstable();
    governors.dedup();
    let name = "CPU frequency governor";
    match &governors[..] {
        [] => None,
        [only] if only == "performance" => Some(Check::ok(name, "performance")),
        others => {
            let remedy = "cpupower frequency-set -g performance";
            Some(Check::warn(name, others.join(", "), remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::doctor::check::State;

    #[test]
    fn steal_is_the_eighth_field() {
        let share = stolen("cpu  10 0 10 70 0 0 0 10 7 7\ncpu0 1 1").expect("a line of it");
        assert!((share - 0.1).abs() < 1e-9, "{share}");
        for text in [
            "",
            "cpu 1 2 3",
            "cpu a b c d e f g h",
            "cpu 0 0 0 0 0 0 0 0",
        ] {
            assert_eq!(stolen(text), None, "{text}");
        }
        let state = |stolen: u32| {
            let text = format!("cpu 0 0 0 {} 0 0 0 {stolen}\n", 100 - stolen);
            let (_folder, system) = System::of(&[("proc/stat", &text)]);
            steal(&system).expect("it is counted").state
        };
        assert_eq!((state(1), state(2)), (State::Ok, State::Warn));
    }

    #[test]
    fn the_lowest_quota_of_all_groups_above_counts() {
        let (_folder, system) = System::of(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/a/cpu.max", "250000 100000\n"),
        ]);
        assert_eq!(quota(&system, 2).found, "2.5 CPUs");
        assert_eq!(quota(&system, 2).state, State::Ok);
        assert_eq!(quota(&system, 3).state, State::Warn);
    }

    #[test]
    fn the_first_version_is_read_too() {
        let folder = "sys/fs/cgroup/cpu,cpuacct/a";
        let quota_file = format!("{folder}/cpu.cfs_quota_us");
        let period_file = format!("{folder}/cpu.cfs_period_us");
        let found = |quota_us| {
            let (_folder, system) = System::of(&[
                (
                    "proc/self/cgroup",
                    "5:devices:/\n4:cpu,cpuacct:/a\nnonsense",
                ),
                (&quota_file, quota_us),
                (&period_file, "100000\n"),
            ]);
            quota(&system, 1).found
        };
        assert_eq!(found("50000\n"), "0.5 CPUs");
        assert_eq!(found("-1\n"), "none");
    }

    #[test]
    fn governors_that_save_power_are_warned_of() {
        let state = |second| {
            let first = format!("{POLICIES}/policy0/scaling_governor");
            let other = format!("{POLICIES}/policy1/scaling_governor");
            let (_folder, system) = System::of(&[(&*first, "performance\n"), (&*other, second)]);
            governor(&system).map(|check| check.state)
        };
        assert_eq!(state("performance\n"), Some(State::Ok));
        assert_eq!(state("powersave\n"), Some(State::Warn));
        let (_folder, none) = System::of(&[]);
        assert_eq!(governor(&none), None);
    }

    #[test]
    fn fewer_usable_cpus_than_there_are_is_said() {
        let (_folder, system) = System::of(&[("sys/devices/system/cpu/online", "0-7\n")]);
        assert_eq!(
            affinity(&system, &[2, 3]).found,
            "2 of 8: this process may use 2-3"
        );
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(affinity(&system, &all).found, "8: 0-7");
        assert_eq!(affinity(&system, &[]).state, State::Missing);
    }
}
