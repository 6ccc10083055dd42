//! `cargo xtask test`: the lanes in order, their table, their exit code.
//!
//! Every lane runs even if one before it failed, so that one run tells everything. All lanes use
//! the dev profile, default features and the caller's flags, so that they share what is built. Lanes whose
//! tests wait for leases and for other processes run beside those that compute, and ask no clock.

use std::fs;
use std::num::NonZero;
use std::process::Command;
use std::thread;
use std::time::Instant;

use clap::ValueEnum;
use toml_edit::Document;

use crate::aarch64;
use crate::beside::beside;
use crate::binaries;
use crate::deny_uring::without_uring;
use crate::next_version;
use crate::outcome::{Outcome, report};
use crate::python;
use crate::sim;
use crate::system;
use crate::tally::Tally;
use crate::task_error::TaskError;
use crate::tidy;
use crate::vm;
use crate::workspace::{self, Workspace};

/// Allowed skips per lane.
const SKIPS: &str = "xtask/skips.toml";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Runs only this lane; may be given several times.
    #[arg(long = "lane", value_name = "NAME")]
    lanes: Vec<Lane>,
}

/// One kind of check, in the order in which they run: the cheap ones that find most come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Lane {
    /// Formatting.
    Fmt,
    /// Lints, with warnings as errors.
    Clippy,
    /// What is embedded elsewhere compiles for the other kind of processor.
    Aarch64,
    /// Documentation builds without a warning.
    Docs,
    /// The house rules.
    Tidy,
    /// Unit, property, integration and documentation tests.
    Test,
    /// The tests of everything above the driver once more, where io_uring is forbidden.
    Epoll,
    /// NVMe/TCP in TLS, which only a build that asks for it has.
    Tls,
    /// The wheel, and its tests in Python.
    Python,
    /// Every interleaving of what cores share without a lock.
    Loom,
    /// Undefined behaviour in what is unsafe and needs no kernel.
    Miri,
    /// A cluster in simulated worlds, and bugs that the simulator is to find.
    Sim,
    /// Soft-RoCE on both kernels, in a machine; where asked, the suites on the oldest kernel too.
    Vm,
}

/// Runs the chosen lanes and prints the table, each skip with its reason, each failure, and the
/// totals as the last line.
///
/// # Errors
/// [`TaskError::Lanes`] when one failed; those of [`system::ensure`] before the first.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<(), TaskError> {
    let all = Lane::value_variants().iter().copied();
    let chosen = all.filter(|lane| arguments.lanes.is_empty() || arguments.lanes.contains(lane));
    let chosen: Vec<Lane> = chosen.collect();
    if chosen.iter().any(|lane| lane.builds()) {
        system::ensure(system::PRODUCT)?;
    }
    if chosen.contains(&Lane::Test) {
        system::offer(system::PEERS);
    }
    if chosen.contains(&Lane::Tls) {
        system::offer(system::TLS);
    }
    let outcomes = run_all(workspace, &chosen);
    print!("\n{}", report(&outcomes));
    let failed: Vec<&str> = outcomes
        .iter()
        .filter(|o| o.failure.is_some())
        .map(|o| o.lane)
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(TaskError::Lanes(failed.join(", ")))
    }
}

/// Runs these lanes, given in their order, and answers in that order. Of those that come between tests and the
/// machine the ones that wait run beside the ones that compute.
fn run_all(workspace: &Workspace, chosen: &[Lane]) -> Vec<Outcome> {
    let run = |turn: Turn| {
        let lanes = chosen.iter().filter(move |lane| lane.turn() == turn);
        lanes
            .map(|lane| lane.run(workspace))
            .collect::<Vec<Outcome>>()
    };
    let mut outcomes = run(Turn::First);
    let (hungry, waiting) = beside(|| run(Turn::Hungry), || run(Turn::Waiting));
    outcomes.extend(waiting);
    outcomes.extend(hungry);
    outcomes.extend(run(Turn::Last));
    outcomes
}

/// When a lane runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// By itself.
    First,
    /// Then: its tests are about time, and leave most of it unused.
    Waiting,
    /// Meanwhile: it takes what is left, and what it finds does not depend on how much that is.
    Hungry,
    /// Then, by itself.
    Last,
}

impl Lane {
    fn turn(self) -> Turn {
        match self {
            Self::Fmt | Self::Clippy | Self::Aarch64 | Self::Docs | Self::Tidy | Self::Test => {
                Turn::First
            }
            Self::Epoll | Self::Tls | Self::Python => Turn::Waiting,
            Self::Loom | Self::Miri | Self::Sim => Turn::Hungry,
            Self::Vm => Turn::Last,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Aarch64 => "aarch64",
            Self::Docs => "docs",
            Self::Tidy => "tidy",
            Self::Test => "test",
            Self::Epoll => "epoll",
            Self::Tls => "tls",
            Self::Python => "python",
            Self::Loom => "loom",
            Self::Miri => "miri",
            Self::Sim => "sim",
            Self::Vm => "vm",
        }
    }

    /// Whether it compiles the product, and so needs what the product needs.
    fn builds(self) -> bool {
        !matches!(self, Self::Fmt | Self::Tidy)
    }

    fn run(self, workspace: &Workspace) -> Outcome {
        println!("\n==== {}", self.name());
        let started = Instant::now();
        let mut tally = None;
        let ended = match self {
            Self::Miri if !has_miri() => {
                let reason = "no nightly toolchain with the component miri is installed";
                println!("not run: {reason}");
                tally = Some(Tally::of_skipped_lane(self.name(), reason));
                Ok(())
            }
            Self::Test | Self::Loom | Self::Miri => {
                let tally = tally.insert(Tally::default());
                let mut command = self.command(workspace);
                let built = (self == Self::Test).then(|| next_version::build(workspace));
                let ran = built.transpose().and_then(|program| {
                    command.envs(program.map(|program| (next_version::SETTING, program)));
                    workspace::run_lines(&mut command, |line| tally.line(line))
                });
                ran.and_then(|()| verdict(self, tally, allowed_skips(workspace, self)?))
            }
            Self::Epoll => {
                let tally = tally.insert(Tally::default());
                let ran = run_without_uring(workspace, tally);
                ran.and_then(|()| verdict(self, tally, allowed_skips(workspace, self)?))
            }
            Self::Tls => self.run_in_tls(workspace, tally.insert(Tally::default())),
            Self::Python => self.run_in_python(workspace, tally.insert(Tally::default())),
            Self::Tidy => tidy::run(workspace),
            Self::Clippy => {
                let all = workspace::run(&mut self.command(workspace));
                all.and_then(|()| workspace::run(&mut lints_on_request(workspace)))
            }
            Self::Aarch64 => match aarch64::absent() {
                Some(reason) => {
                    println!("not run: {reason}");
                    tally = Some(Tally::of_skipped_lane(self.name(), reason));
                    Ok(())
                }
                None => aarch64::check(workspace),
            },
            Self::Sim => sim::check(workspace),
            Self::Vm => self.run_in_machine(workspace, tally.insert(Tally::default())),
            _ => workspace::run(&mut self.command(workspace)),
        };
        let failure = ended.err().map(|error| error.to_string());
        Outcome {
            lane: self.name(),
            elapsed: started.elapsed(),
            failure,
            tally,
        }
    }

    /// Skipped as a whole, and loudly, where no machine can be made.
    fn run_in_machine(self, workspace: &Workspace, tally: &mut Tally) -> Result<(), TaskError> {
        if let Some(reason) = vm::suite::absent(workspace) {
            println!("not run: {reason}");
            *tally = Tally::of_skipped_lane(self.name(), &reason);
        } else {
            thread::scope(|scope| {
                let agreed = scope.spawn(|| sim::agree(workspace));
                let ran = vm::suite::run(workspace, tally);
                let agreed = agreed.join().unwrap_or_else(|_| Err(vm::suite::panicked()));
                ran.and(agreed)
            })?;
        }
        let allowed = if vm::suite::is_long() {
            allowed_as(workspace, "vm-long")?
        } else {
            allowed_skips(workspace, self)?
        };
        verdict(self, tally, allowed)
    }

    /// Lints and tests of what is built in for TLS alone. Skipped as a whole where OpenSSL's headers are not there.
    fn run_in_tls(self, workspace: &Workspace, tally: &mut Tally) -> Result<(), TaskError> {
        if !system::are_met(system::TLS) {
            let reason = "OpenSSL 3 and its headers are not there (libssl-dev)";
            println!("not run: {reason}");
            *tally = Tally::of_skipped_lane(self.name(), reason);
            return Ok(());
        }
        let mut lints = workspace.cargo(["clippy"]);
        lints.args(OF_TLS).args(["--", "-D", "warnings"]);
        workspace::run(&mut lints)?;
        workspace::run_lines(&mut self.command(workspace), |line| tally.line(line))?;
        verdict(self, tally, allowed_skips(workspace, self)?)
    }

    /// Skipped as a whole where there is no Python to run it in.
    fn run_in_python(self, workspace: &Workspace, tally: &mut Tally) -> Result<(), TaskError> {
        if let Some(reason) = python::absent(workspace)? {
            println!("not run: {reason}");
            *tally = Tally::of_skipped_lane(self.name(), reason);
            return Ok(());
        }
        python::run(workspace, tally)?;
        verdict(self, tally, allowed_skips(workspace, self)?)
    }

    fn command(self, workspace: &Workspace) -> Command {
        let words = match self {
            Self::Fmt => "fmt --all --check",
            Self::Clippy => "clippy --workspace --all-targets --locked -- -D warnings",
            Self::Aarch64 => "xtask test --lane aarch64",
            Self::Docs => "doc --workspace --no-deps --locked",
            Self::Tidy => "xtask tidy",
            Self::Sim => "xtask test --lane sim",
            Self::Vm => "xtask test --lane vm",
            // Output of tests that pass is shown, or their skips would be lost.
            Self::Test => "test --workspace --locked --no-fail-fast -- --show-output",
            Self::Epoll => "xtask test --lane epoll",
            Self::Tls => "test",
            Self::Python => "xtask test --lane python",
            // Other flags, so another folder: what the other lanes share stays built.
            Self::Loom => {
                "test -p lunette-runtime --locked --release --test loom_doorbell \
                 --test loom_woken --test loom_ring --target-dir target/loom"
            }
            Self::Miri => {
                "+nightly miri test -p lunette-runtime -p lunette-gpu --locked --lib \
                 --target-dir target/miri -- \
                 arena::region driver::table vectored:: pool::ring executor::task executor::idle \
                 executor::source sim::tests fake::tests"
            }
        };
        let mut command = match self {
            // Choosing a toolchain is the business of rustup's proxy.
            Self::Miri => workspace.rustup_cargo(),
            _ => workspace.cargo([]),
        };
        command.args(words.split_whitespace());
        match self {
            Self::Tls => command.args(OF_TLS).args(["--", "--show-output"]),
            Self::Test => command.env(TEST_THREADS, test_threads()),
            Self::Docs => command.env("RUSTDOCFLAGS", "-D warnings"),
            Self::Loom => command.env("RUSTFLAGS", "--cfg loom"),
            // Tests ask for the time, and for a pipe.
            Self::Miri => command.env("MIRIFLAGS", "-Zmiri-disable-isolation"),
            _ => &mut command,
        };
        command
    }
}

/// What is built and run for TLS: of the whole workspace, so that what the other lanes have built serves.
const OF_TLS: [&str; 6] = [
    "--workspace",
    "--features",
    "lunette-nvmeof/tls",
    "--test",
    "secured",
    "--locked",
];

/// How many tests run at a time, for each CPU: most of their time they wait for leases and for other processes.
const TESTS_PER_CPU: usize = 3;

fn test_threads() -> String {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    (cpus * TESTS_PER_CPU).to_string()
}

/// Lints of tests that cargo builds for those alone who ask for them: they are no part of "all targets", also
/// where they are named beside that.
fn lints_on_request(workspace: &Workspace) -> Command {
    let mut command = workspace.cargo(["clippy", "--workspace", "--locked"]);
    for name in vm::suite::ON_REQUEST {
        command.args(["--test", name]);
    }
    command.args(["--", "-D", "warnings"]);
    command
}

/// What test binaries read of it.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Packages whose tests run on epoll too: folders below the root.
const ON_EPOLL: [&str; 4] = ["runtime", "transfer", "kvstore", "node"];

/// Runs the tests of what lies above the driver where io_uring is forbidden; one binary that fails does not
/// spare the others.
fn run_without_uring(workspace: &Workspace, tally: &mut Tally) -> Result<(), TaskError> {
    let mut ended = Ok(());
    let later = next_version::build(workspace)?;
    for binary in binaries::build(workspace, &[])? {
        let mut packages = ON_EPOLL.iter();
        if !packages.any(|package| binary.is_in(workspace.root(), package)) {
            continue;
        }
        let mut command = Command::new(&binary.executable);
        command.current_dir(&binary.folder).arg("--show-output");
        // A test that runs on each driver is not skipped because it does not run on that one.
        command.env("LUNETTE_WITHOUT_URING", "1");
        command.env(TEST_THREADS, test_threads());
        command.env(next_version::SETTING, &later);
        let ran = without_uring(|| workspace::run_lines(&mut command, |line| tally.line(line)));
        ended = ended.and(ran);
    }
    ended
}

/// Whether a toolchain with Miri is there.
fn has_miri() -> bool {
    workspace::succeeds("cargo", &["+nightly", "miri", "--version"])
}

/// Whether a lane that ran its tests to the end really tested what it should.
fn verdict(lane: Lane, tally: &Tally, allowed: usize) -> Result<(), TaskError> {
    let failed = |status: String| TaskError::Failed {
        command: lane.name().to_owned(),
        status,
    };
    if tally.executed() == 0 {
        return Err(failed("no test was executed".to_owned()));
    }
    if tally.skipped() > allowed {
        return Err(failed(format!(
            "{} skipped, {allowed} allowed: make them run, or raise the number in {SKIPS} and say \
             why there",
            tally.skipped()
        )));
    }
    Ok(())
}

fn allowed_skips(workspace: &Workspace, lane: Lane) -> Result<usize, TaskError> {
    allowed_as(workspace, lane.name())
}

fn allowed_as(workspace: &Workspace, name: &str) -> Result<usize, TaskError> {
    let path = workspace.root().join(SKIPS);
    let text = fs::read_to_string(&path).map_err(|source| TaskError::Read { path, source })?;
    parse_allowed(&text, name)
}

fn parse_allowed(text: &str, name: &str) -> Result<usize, TaskError> {
    let malformed = |reason: String| TaskError::Malformed {
        file: SKIPS.to_owned(),
        reason,
    };
    let document = Document::parse(text).map_err(|error| malformed(error.to_string()))?;
    let number = document
        .as_table()
        .get(name)
        .and_then(toml_edit::Item::as_integer);
    number
        .and_then(|number| usize::try_from(number).ok())
        .ok_or_else(|| malformed(format!("no number for lane `{name}`")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::tally_of;

    #[test]
    fn the_turns_follow_the_order_of_the_lanes() {
        let lanes = Lane::value_variants();
        assert!(lanes.is_sorted_by_key(|lane| lane.turn()));
    }

    const TWO_PASSED: &str = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured";

    #[test]
    fn a_lane_without_tests_fails() {
        assert!(verdict(Lane::Test, &tally_of(&[]), 0).is_err());
        assert!(verdict(Lane::Test, &tally_of(&[TWO_PASSED]), 0).is_ok());
    }

    #[test]
    fn skips_are_bounded_from_both_sides() {
        let tally = tally_of(&[TWO_PASSED, "SKIP a: no device"]);
        assert!(verdict(Lane::Test, &tally, 1).is_ok());
        let error = verdict(Lane::Test, &tally, 0).unwrap_err().to_string();
        assert!(error.contains(SKIPS), "{error}");
    }

    #[test]
    fn the_skip_budget_is_read_or_refused() {
        assert_eq!(parse_allowed("# Why.\ntest = 3\n", "test").unwrap(), 3);
        for text in ["", "test = -1", "test = \"0\"", "test ="] {
            assert!(parse_allowed(text, "test").is_err(), "{text}");
        }
    }
}
