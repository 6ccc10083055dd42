//! `lunette doctor`: what this machine offers, what is missing, and what to do about it.
//!
//! | module | subject |
//! |---|---|
//! | `check` | one finding |
//! | `system` | the system's own accounts of itself, in `/proc`, `/sys` and `/dev` |
//! | `kernel` | its version, io_uring and its features |
//! | `limits` | locked memory, open files |
//! | `memory` | huge pages |
//! | `cpus` | count, affinity, steal, quota, frequency |
//! | `devices` | NICs, RDMA devices, GPUs, topology |

mod check;
mod cpus;
mod devices;
mod kernel;
mod limits;
mod memory;
mod system;

use serde_json::{Value, json};

use self::check::{Check, State};
use self::system::System;
use super::failure::Failure;
use super::output;

pub(super) fn doctor(as_json: bool) -> Result<(), Failure> {
    let checks = examine(&System::this());
    if as_json {
        output::line(&object(&checks).to_string())?;
    } else {
        output::raw(table(&checks).as_bytes())?;
    }
    let missing: Vec<&str> = checks
        .iter()
        .filter(|check| check.state == State::Missing)
        .map(|check| check.name.as_ref())
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Failure::Missing(missing.join(", ")))
    }
}

fn examine(system: &System) -> Vec<Check> {
    let mut checks = kernel::checks(system);
    checks.extend(limits::checks(system));
    checks.extend(memory::checks(system));
    checks.extend(cpus::checks(system));
    checks.extend(devices::checks(system));
    checks
}

fn count_of(checks: &[Check], state: State) -> usize {
    checks.iter().filter(|check| check.state == state).count()
}

fn object(checks: &[Check]) -> Value {
    let objects: Vec<Value> = checks
        .iter()
        .map(|check| {
            json!({
                "name": check.name,
                "state": check.state.word(),
                "found": check.found,
                "remedy": check.remedy,
            })
        })
        .collect();
    json!({
        "checks": objects,
        "warnings": count_of(checks, State::Warn),
        "missing": count_of(checks, State::Missing),
    })
}

fn table(checks: &[Check]) -> String {
    let width = |of: fn(&Check) -> usize| checks.iter().map(of).max().unwrap_or(0);
    let words = width(|check| check.state.word().len());
    let names = width(|check| check.name.len());
    let mut out = String::new();
    for check in checks {
        let (word, name, found) = (check.state.word(), &check.name, &check.found);
        out.push_str(&format!("{word:<words$}  {name:<names$}  {found}\n"));
        if let Some(remedy) = &check.remedy {
            let indent = words + names + 4;
            out.push_str(&format!("{:indent$}to do: {remedy}\n", ""));
        }
    }
    let (warnings, missing) = (
        count_of(checks, State::Warn),
        count_of(checks, State::Missing),
    );
    out.push_str(&format!("{warnings} to improve, {missing} missing\n"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_stand_below_what_they_are_for() {
        let checks = [
            Check::ok("kernel", "Linux 6.1"),
            Check::warn("open files", "1024", "ulimit -n"),
            Check::missing("driver", "none", "another kernel"),
        ];
        let expected = "\
ok       kernel      Linux 6.1
warn     open files  1024
                     to do: ulimit -n
missing  driver      none
                     to do: another kernel
1 to improve, 1 missing
";
        assert_eq!(table(&checks), expected);
        let object = object(&checks);
        assert_eq!(object["missing"], 1);
        assert_eq!(object["warnings"], 1);
        assert_eq!(object["checks"][0]["remedy"], Value::Null);
        assert_eq!(object["checks"][2]["state"], "missing");
    }
}
