//! `cargo xtask vm --cost`: what a posted and completed request costs, beside perftest's.
//!
//! Counted are instructions that the guest executes, by a plugin of QEMU, of programs and of the
//! kernel apart; both ends are in the machine, and both are counted. Time in the machine is its
//! instructions too (`-icount`), so that what spins for a time always spins for as long. What is
//! done once (start, calibration, connection) cancels out: each figure is the difference of two
//! runs, divided by that of their counts.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use super::kernel::io;
use super::{Arguments, Rdma, Series, run_lines, tool};
use crate::system::{self, Need};
use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

const TOOLS: &[Need] = &[
    Need::new("gcc", &["cc", "--version"]),
    Need::new("perftest", &["sh", "-c", "command -v ib_write_bw"]),
];
const PLUGIN: &str = include_str!("count.c");
const MARK: &str = include_str!("mark.c");
const SCRIPT: &str = include_str!("cost.sh");

const BYTES: u64 = 4096;
const DEPTH: u64 = 64;
/// Multiples of the lists that perftest posts.
const FEW: u64 = 1024;
const MANY: u64 = 9216;
/// How often all is repeated.
const TURNS: usize = 3;
/// Limit of the whole.
const COST_MAX: Duration = Duration::from_secs(3000);
/// What others are compared with.
const PERFTEST: &str = "perftest";

/// One run in the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    who: String,
    operation: String,
    count: u64,
    /// As the machine's clock has it, in its own words.
    megabytes_per_second: String,
}

/// Instructions of programs, and of the kernel.
type Counts = [u64; 2];

/// Per request: of programs, of the kernel, of both; each in every turn, in order of size.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    who: String,
    operation: String,
    per_request: [Vec<f64>; 3],
    megabytes_per_second: String,
}

/// Measures and prints a table.
///
/// # Errors
/// [`TaskError`], of tools that are missing, of the machine, of what runs in it.
pub(super) fn run(workspace: &Workspace, kernel: Series) -> Result<(), TaskError> {
    system::ensure(TOOLS).map_err(|error| TaskError::Vm(error.to_string()))?;
    let folder = workspace.root().join("target/vm/cost");
    io(fs::create_dir_all(&folder))?;
    let (plugin, mark) = (folder.join("count.so"), folder.join("mark"));
    compile(
        PLUGIN,
        &folder.join("count.c"),
        &plugin,
        &["-shared", "-fPIC"],
    )?;
    compile(MARK, &folder.join("mark.c"), &mark, &["-static"])?;
    let mut build = workspace.cargo(["build", "--release", "--locked", "-p", "lunette-verbs"]);
    workspace::output(build.args(["--example", "requests"]))?;
    let requests = workspace.target_dir()?.join("release/examples/requests");
    let counted = folder.join("counts");
    let mut arguments = Arguments::of_script((kernel, Rdma::Rxe), String::new(), COST_MAX);
    let script = format!(
        "bytes={BYTES} depth={DEPTH} few={FEW} many={MANY} turns={TURNS}\n\
         mark='{}' requests='{}'\n{SCRIPT}",
        mark.display(),
        requests.display()
    );
    arguments.command = vec!["bash".into(), "-c".into(), script];
    // Counts of several processors would race; one at a time also polls no more than it must.
    (arguments.cpus, arguments.nvme) = (1, 0);
    let plugin = format!("{},out={}", plugin.display(), counted.display());
    let icount = "shift=0,sleep=off";
    arguments.qemu = ["-plugin", &plugin, "-icount", icount]
        .map(Into::into)
        .into();
    let runs: Mutex<Vec<Run>> = Mutex::default();
    run_lines(workspace, &arguments, |line| {
        let run = parse_run(line);
        let is_noise = run.is_none();
        let mut runs = runs.lock().expect("nobody panics with it");
        runs.extend(run);
        is_noise
    })?;
    let runs = runs.into_inner().expect("nobody panics with it");
    let counts = parse_counts(&io(fs::read_to_string(counted))?);
    print(&rows(&runs, &counts)?);
    Ok(())
}

/// A table, with the middle of all turns and, behind it, the least and the most.
fn print(rows: &[Row]) {
    println!("{BYTES} bytes, {DEPTH} in flight, {TURNS} turns of {FEW} and {MANY} requests");
    println!("| who | operation | in programs | in the kernel | both | x perftest's | MB/s |");
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        let baseline =
            (rows.iter()).find(|other| other.who == PERFTEST && other.operation == row.operation);
        let ratio = baseline.map_or(f64::NAN, |other| {
            middle(&row.per_request[2]) / middle(&other.per_request[2])
        });
        let [programs, kernel, both] = row.per_request.each_ref().map(|values| spelled(values));
        let Row {
            who,
            operation,
            megabytes_per_second,
            ..
        } = row;
        println!(
            "| {who} | {operation} | {programs} | {kernel} | {both} | {ratio:.3} | {megabytes_per_second} |"
        );
    }
}

fn middle(values: &[f64]) -> f64 {
    values[values.len() / 2]
}

fn spelled(values: &[f64]) -> String {
    let (least, most) = (values[0], values[values.len() - 1]);
    format!("{:.0} ({least:.0}-{most:.0})", middle(values))
}

fn compile(text: &str, source: &Path, output: &Path, flags: &[&str]) -> Result<(), TaskError> {
    io(fs::write(source, text))?;
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-o"]).arg(output).args(flags);
    tool(compile.arg(source)).map(drop)
}

fn parse_run(line: &str) -> Option<Run> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["row", who, operation, count, ref rest @ ..] = words[..] else {
        return None;
    };
    Some(Run {
        who: who.to_owned(),
        operation: operation.to_owned(),
        count: count.parse().ok()?,
        megabytes_per_second: rest.join(" "),
    })
}

/// What was counted at each mark.
fn parse_counts(text: &str) -> Vec<Counts> {
    let numbers = |line: &str| {
        let (programs, kernel) = line.split_once(' ')?;
        Some([programs.parse().ok()?, kernel.parse().ok()?])
    };
    text.lines().filter_map(numbers).collect()
}

/// A row for each who and operation. There are two marks for each run.
fn rows(runs: &[Run], counts: &[Counts]) -> Result<Vec<Row>, TaskError> {
    if counts.len() != 2 * runs.len() {
        let (runs, marks) = (runs.len(), counts.len());
        return Err(TaskError::Vm(format!("{marks} marks of {runs} runs")));
    }
    let spent = |run: usize| {
        let (before, after) = (counts[2 * run], counts[2 * run + 1]);
        [after[0] - before[0], after[1] - before[1]]
    };
    let mut rows: Vec<Row> = Vec::new();
    for (index, run) in runs.iter().enumerate().filter(|(_, run)| run.count == MANY) {
        let is_fewer = |other: &Run| (&other.who, &other.operation) == (&run.who, &run.operation);
        let fewer = runs[..index]
            .iter()
            .rposition(|other| other.count == FEW && is_fewer(other));
        let fewer = fewer.ok_or_else(|| TaskError::Vm("a run without its other one".into()))?;
        let [few, many] = [spent(fewer), spent(index)];
        let row = rows
            .iter()
            .position(|row| (&row.who, &row.operation) == (&run.who, &run.operation));
        let row = row.unwrap_or_else(|| {
            rows.push(Row {
                who: run.who.clone(),
                operation: run.operation.clone(),
                per_request: Default::default(),
                megabytes_per_second: String::new(),
            });
            rows.len() - 1
        });
        let row = &mut rows[row];
        let [programs, kernel] = [0, 1].map(|of| per_request(few[of], many[of]));
        for (values, value) in row
            .per_request
            .iter_mut()
            .zip([programs, kernel, programs + kernel])
        {
            values.push(value);
            values.sort_by(f64::total_cmp);
        }
        row.megabytes_per_second
            .clone_from(&run.megabytes_per_second);
    }
    Ok(rows)
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn per_request(few: u64, many: u64) -> f64 {
    (many as f64 - few as f64) / (MANY - FEW) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(who: &str, count: u64) -> Run {
        parse_run(&format!("row {who} write {count} 12.5")).expect("a row")
    }

    #[test]
    fn a_row_is_the_difference_of_two_runs_by_that_of_their_counts() {
        let runs = [run("x", FEW), run("y", FEW), run("x", MANY), run("y", MANY)];
        let counts = "0 0\n10 100\n20 100\n30 200\n30 200\n8232 16684\n5000 9000\n13202 9100\n";
        let rows = rows(&runs, &parse_counts(counts)).expect("each has its other one");
        let [x, y] = &rows[..] else {
            panic!("{rows:?}")
        };
        assert_eq!(
            (x.who.as_str(), x.megabytes_per_second.as_str()),
            ("x", "12.5")
        );
        assert_eq!(x.per_request, [vec![1.0], vec![2.0], vec![3.0]]);
        assert_eq!(y.per_request, [vec![1.0], vec![0.0], vec![1.0]]);
    }

    #[test]
    fn runs_without_their_marks_or_other_ones_are_refused() {
        assert!(rows(&[run("x", MANY)], &parse_counts("0 0\n1 1\n")).is_err());
        assert!(rows(&[run("x", FEW)], &parse_counts("0 0\n")).is_err());
        for noise in ["", "row", "row x write many", "rows x write 5 1"] {
            assert_eq!(parse_run(noise), None, "{noise}");
        }
    }

    #[test]
    fn plugin_and_program_agree_on_the_marker() {
        let bytes = |text: &str| -> String {
            let marker = text.split("0x0f,").nth(1).expect("it has one");
            let marker = marker.split(['}', '"']).next().expect("it ends");
            marker.chars().filter(|c| !c.is_whitespace()).collect()
        };
        assert_eq!(bytes(PLUGIN), bytes(MARK));
        assert_eq!(bytes(MARK).split(',').count(), 7);
    }
}
