//! `cargo xtask vm --disks`: commands per second over NVMe/TCP of our ends beside the kernel's, in one machine.
//!
//! The machine is emulated, and all its processors share those of the host: what is compared are the two ends by turns on the same
//! ones, and nothing else is told by a rate.

use std::sync::Mutex;
use std::time::Duration;

use super::machine::NVMET_NQN;
use super::{Arguments, Rdma, Series, run_lines};
use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

const SCRIPT: &str = include_str!("disks.sh");

/// Queues of a host, each of a processor of its own, and so many of the machine's.
const QUEUES: u8 = 4;
const DISK_MEGABYTES: u32 = 64;
/// Of each run.
const SECONDS: u32 = 5;
/// How often all is repeated.
const TURNS: usize = 5;
/// Limit of the whole.
const DISKS_MAX: Duration = Duration::from_secs(1500);

/// Who asks whom for what.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    host: String,
    target: String,
    what: String,
}

/// What a pair did, each turn, in order of size.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    pair: Pair,
    per_second: Vec<f64>,
}

/// Measures and prints a table.
///
/// # Errors
/// [`TaskError`], of the machine and of what runs in it.
pub(super) fn run(workspace: &Workspace, kernel: Series) -> Result<(), TaskError> {
    let mut build = workspace.cargo(["build", "--release", "--locked", "-p", "lunette"]);
    workspace::output(&mut build)?;
    let lunette = workspace.target_dir()?.join("release/lunette");
    let script = format!(
        "lunette='{}' queues={QUEUES} server_cores={QUEUES} seconds={SECONDS} turns={TURNS} megabytes={DISK_MEGABYTES}\n\
         kernel_nqn={NVMET_NQN}\n{SCRIPT}",
        lunette.display()
    );
    let mut arguments = Arguments::of_script((kernel, Rdma::None), script, DISKS_MAX);
    (arguments.cpus, arguments.nvme) = (QUEUES, 0);
    (arguments.nvmet, arguments.scratch) = (DISK_MEGABYTES, false);
    let rows: Mutex<Vec<Row>> = Mutex::default();
    run_lines(workspace, &arguments, |line| {
        let Some((pair, per_second)) = parse(line) else {
            return true;
        };
        add(
            &mut rows.lock().expect("nobody panics with it"),
            pair,
            per_second,
        );
        false
    })?;
    let rows = rows.into_inner().expect("nobody panics with it");
    println!(
        "{QUEUES} queues of depth 32 (`one`: one of depth 1), 4 KiB anywhere, {TURNS} turns of {SECONDS} s"
    );
    println!("| host | target | what | commands/s | x the kernel's with itself |");
    println!("|---|---|---|---|---|");
    for row in &rows {
        println!("{}", told(row, &rows));
    }
    Ok(())
}

/// A row, with the middle of all turns and, in brackets, the least and the most.
fn told(row: &Row, rows: &[Row]) -> String {
    let is_kernels = |other: &&Row| {
        let Pair { host, target, what } = &other.pair;
        host == "kernel" && target == "kernel" && *what == row.pair.what
    };
    let baseline = rows.iter().find(is_kernels);
    let ratio = baseline.map_or(f64::NAN, |other| middle(row) / middle(other));
    let (least, most) = (row.per_second[0], row.per_second[row.per_second.len() - 1]);
    let Pair { host, target, what } = &row.pair;
    format!(
        "| {host} | {target} | {what} | {:.0} ({least:.0}-{most:.0}) | {ratio:.2} |",
        middle(row)
    )
}

fn middle(row: &Row) -> f64 {
    row.per_second[row.per_second.len() / 2]
}

fn parse(line: &str) -> Option<(Pair, f64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["row", host, target, what, per_second] = words[..] else {
        return None;
    };
    let [host, target, what] = [host, target, what].map(str::to_owned);
    Some((Pair { host, target, what }, per_second.parse().ok()?))
}

fn add(rows: &mut Vec<Row>, pair: Pair, per_second: f64) {
    let known = rows.iter().position(|row| row.pair == pair);
    let known = known.unwrap_or_else(|| {
        rows.push(Row {
            pair,
            per_second: Vec::new(),
        });
        rows.len() - 1
    });
    let values = &mut rows[known].per_second;
    values.push(per_second);
    values.sort_by(f64::total_cmp);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_stands_beside_the_kernels_with_itself() {
        let mut rows = Vec::new();
        for line in [
            "row kernel kernel read 100",
            "row ours kernel read 90",
            "row kernel kernel read 300",
            "row kernel kernel read 200",
            "row ours kernel read 210",
            "row ours kernel read 150",
            "row kernel kernel write 1000",
        ] {
            let (pair, per_second) = parse(line).expect("a row");
            add(&mut rows, pair, per_second);
        }
        let lines: Vec<_> = rows.iter().map(|row| told(row, &rows)).collect();
        assert_eq!(
            lines,
            [
                "| kernel | kernel | read | 200 (100-300) | 1.00 |",
                "| ours | kernel | read | 150 (90-210) | 0.75 |",
                "| kernel | kernel | write | 1000 (1000-1000) | 1.00 |",
            ]
        );
        for noise in ["", "row", "row ours kernel read many", "row a b c 1 2"] {
            assert_eq!(parse(noise), None, "{noise}");
        }
    }
}
