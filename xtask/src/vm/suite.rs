//! The lane `vm`: which test binaries run in which machine.
//!
//! They are built here and run there. Their output is libtest's, so the lane counts it like any
//! other.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, mem, thread};

use super::kernel::{Kernel, io};
use super::{Arguments, Rdma, Series, forwarded, run_lines};
use crate::binaries::{self, Binary};
use crate::tally::Tally;
use crate::task_error::TaskError;
use crate::workspace::Workspace;

/// Limit of one machine's part of the lane, and of one with the long sets.
const PART_MAX: Duration = Duration::from_secs(900);
const LONG_PART_MAX: Duration = Duration::from_secs(3600);

/// Test binaries, and where they run.
#[derive(Debug)]
struct Set {
    /// Folders of their packages.
    packages: &'static [&'static str],
    /// Which tests of theirs; all that cargo builds by itself if empty.
    tests: &'static [&'static str],
    /// Which of their tests, by a part of their names; all if empty.
    filter: &'static str,
    machines: &'static [Kind],
    /// Tests at a time.
    threads: u8,
    /// Takes minutes; run where [`LONG`] is set.
    is_long: bool,
}

/// A machine: its kernel, and the devices on its ports.
type Kind = (Series, Rdma);

const OLDEST: Kind = (Series::V6_1, Rdma::Rxe);
const NEWEST: Kind = (Series::V6_12, Rdma::Rxe);
const IWARP: Kind = (Series::V6_12, Rdma::Siw);
const MACHINES: [Kind; 3] = [OLDEST, NEWEST, IWARP];

/// Asks for the long sets as well.
const LONG: &str = "LUNETTE_VM_LONG";

const SETS: [Set; 10] = [
    Set {
        packages: &["verbs"],
        tests: &["soft"],
        filter: "roce::",
        machines: &[OLDEST, NEWEST],
        // They share two ports.
        threads: 1,
        is_long: false,
    },
    Set {
        packages: &["verbs"],
        tests: &["soft"],
        filter: "iwarp::",
        machines: &[IWARP],
        // As above.
        threads: 1,
        is_long: false,
    },
    Set {
        packages: &["transfer"],
        tests: &["soft"],
        filter: "",
        // It holds on the oldest as well, and takes two minutes.
        machines: &[NEWEST],
        // As above.
        threads: 1,
        is_long: false,
    },
    Set {
        packages: &["kvstore"],
        tests: &["soft"],
        filter: "",
        machines: &[NEWEST],
        threads: 1,
        is_long: false,
    },
    Set {
        packages: &["verbs/rdma-core-sys"],
        tests: &["headers", "extended"],
        filter: "",
        machines: &[NEWEST],
        threads: 2,
        is_long: false,
    },
    Set {
        packages: &["runtime"],
        tests: &["nvme", "scopes", "sockets", "watched"],
        filter: "",
        machines: &[OLDEST, NEWEST],
        // They share the end of one drive.
        threads: 1,
        is_long: false,
    },
    Set {
        packages: &["kvstore"],
        tests: &["devices"],
        filter: "",
        machines: &[NEWEST],
        // They share the end of one drive.
        threads: 1,
        is_long: false,
    },
    Set {
        packages: &["nvmeof"],
        tests: &["kernel"],
        filter: "",
        machines: &[NEWEST],
        // They share the kernel's target.
        threads: 1,
        is_long: false,
    },
    // It holds on the oldest as well, and takes two minutes.
    Set {
        packages: &["nvmeof"],
        tests: &["kernel"],
        filter: "",
        machines: &[OLDEST],
        // As above.
        threads: 1,
        is_long: true,
    },
    // The oldest supported kernel; on a newer one they have run already.
    Set {
        packages: &["runtime", "transfer", "kvstore"],
        tests: &[],
        filter: "",
        machines: &[OLDEST],
        threads: 2,
        is_long: true,
    },
];

/// Tests that cargo builds for those alone who ask.
pub(crate) const ON_REQUEST: [&str; 5] = ["soft", "headers", "extended", "kernel", "devices"];

/// Tests that compare times, which say nothing in an emulated machine, those that spin with more threads
/// than it has CPUs, which take minutes there, and those that run in simulated worlds alone, which know no
/// kernel: half a minute on the host, a quarter of an hour on an emulated CPU. They run on the host.
const LEFT_OUT: [&str; 7] = [
    "sleeps_end_in_the_order_of_their_deadlines_and_never_early",
    "an_idle_core_uses_no_cpu",
    "a_get_that_is_dropped_unpins_what_it_asked_for",
    "a_busy_core_makes_no_system_call_for_a_source",
    "messages_to_a_busy_core_cost_it_no_system_call",
    "no_wake_up_is_lost_by_a_core_that_spins_and_sleeps_by_turns",
    "worlds::",
];

/// Limit of one binary, so that one that hangs does not take the others with it.
const BINARY_MAX: Duration = Duration::from_secs(1200);

impl Set {
    fn has(&self, root: &Path, binary: &Binary) -> bool {
        let is_wanted = if self.tests.is_empty() {
            !ON_REQUEST.contains(&binary.name.as_str())
        } else {
            self.tests.contains(&binary.name.as_str())
        };
        let mut packages = self.packages.iter();
        is_wanted && packages.any(|package| binary.is_in(root, package))
    }

    /// A set that lacks one would pass, and test nothing.
    fn check(&self, binaries: &[Binary]) -> Result<(), TaskError> {
        let is_there = |name: &&&str| binaries.iter().any(|binary| binary.name == **name);
        match self.tests.iter().find(|name| !is_there(name)) {
            None if !binaries.is_empty() => Ok(()),
            lacking => Err(TaskError::Vm(format!(
                "no binary of the tests {lacking:?} of {:?}",
                self.packages
            ))),
        }
    }
}

/// Why there is no machine here, if there is none.
pub(crate) fn absent(workspace: &Workspace) -> Option<String> {
    let prepared = super::prepare(workspace).and_then(|()| {
        for (kernel, _rdma) in MACHINES {
            Kernel::prepare(workspace, kernel)?;
        }
        Ok(())
    });
    prepared.err().map(|error| error.to_string())
}

/// Whether what takes long is asked for, too.
pub(crate) fn is_long() -> bool {
    std::env::var_os(LONG).is_some()
}

/// Builds the binaries, and runs them in each machine, several of which run at a time.
///
/// # Errors
/// Those of building and of [`super::run`]; a failure in one machine does not spare the others.
pub(crate) fn run(workspace: &Workspace, tally: &mut Tally) -> Result<(), TaskError> {
    let mut built = Vec::new();
    let staged = Staged::new(workspace)?;
    let long_too = is_long();
    let all = binaries::build(workspace, &ON_REQUEST)?;
    for set in SETS.iter().filter(|set| long_too || !set.is_long) {
        let of_set = all
            .iter()
            .filter(|binary| set.has(workspace.root(), binary));
        let of_set: Vec<Binary> = of_set.cloned().collect();
        set.check(&of_set)?;
        built.push((set, staged.keep(of_set)?));
    }
    let limit = if long_too { LONG_PART_MAX } else { PART_MAX };
    let in_machine = |machine| {
        let mut tally = Tally::default();
        let lines = lines(&built, machine);
        let arguments = Arguments::of_script(machine, script(lines.into_iter()), limit);
        let ran = run_lines(workspace, &arguments, |line| tally.line(line));
        (tally, ran)
    };
    let in_machines = thread::scope(|scope| {
        let runs = MACHINES.map(|machine| scope.spawn(move || in_machine(machine)));
        let mut ended = Ok(());
        for run in runs {
            let (of_machine, ran) = run
                .join()
                .unwrap_or_else(|_| (Tally::default(), Err(panicked())));
            *tally = mem::take(tally).and(of_machine);
            ended = ended.and(ran);
        }
        ended
    });
    let binaries = || built.iter().flat_map(|(_, binaries)| binaries);
    let kernel = binaries().find(|binary| binary.name == "kernel");
    let kernel = kernel.expect("a set that lacks it has been refused");
    in_machines.and(forwarded::run(workspace, kernel, tally))
}

/// The thread that waits for a machine has.
pub(crate) fn panicked() -> TaskError {
    TaskError::Vm("the thread of a machine has panicked".into())
}

/// Where this run keeps its binaries: another build beside it may replace those that cargo made.
struct Staged {
    folder: PathBuf,
}

impl Staged {
    fn new(workspace: &Workspace) -> Result<Self, TaskError> {
        let name = format!("target/vm/staged.{}", std::process::id());
        let folder = workspace.root().join(name);
        io(fs::create_dir_all(&folder))?;
        Ok(Self { folder })
    }

    fn keep(&self, binaries: Vec<Binary>) -> Result<Vec<Binary>, TaskError> {
        let mut kept = Vec::new();
        for binary in binaries {
            let name = binary.executable.file_name().unwrap_or_default();
            let executable = self.folder.join(name);
            if !executable.exists() && fs::hard_link(&binary.executable, &executable).is_err() {
                io(fs::copy(&binary.executable, &executable))?;
            }
            kept.push(Binary {
                executable,
                ..binary
            });
        }
        Ok(kept)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// What runs in a machine. A binary that a set asks for whole does not run again for a later one,
/// which may want fewer threads than that binary bears.
fn lines(built: &[(&Set, Vec<Binary>)], machine: Kind) -> Vec<String> {
    let mut whole = Vec::new();
    let mut lines = Vec::new();
    for (set, binaries) in built {
        if !set.machines.contains(&machine) {
            continue;
        }
        for binary in binaries {
            if !whole.contains(&binary) {
                lines.push(line(binary, set));
                whole.extend(set.filter.is_empty().then_some(binary));
            }
        }
    }
    lines
}

/// Runs one binary.
fn line(binary: &Binary, set: &Set) -> String {
    let skipped: Vec<String> = LEFT_OUT.map(|name| format!("--skip {name}")).into();
    format!(
        "cd '{}' && timeout -k 10 {} '{}' --show-output --test-threads {} {} {}",
        binary.folder.display(),
        BINARY_MAX.as_secs(),
        binary.executable.display(),
        set.threads,
        set.filter,
        skipped.join(" ")
    )
}

/// Runs every line, and fails if one did.
fn script(lines: impl Iterator<Item = String>) -> String {
    let mut text = String::from("status=0\n");
    for line in lines {
        text += &format!("{line} || {{ echo \"a binary ended with status $?\" >&2; status=1; }}\n");
    }
    text + "exit $status\n"
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_script_runs_every_line_and_tells_of_any_failure() {
        for (lines, status) in [(["true", "true"], 0), (["false", "true"], 1)] {
            let text = script(lines.into_iter().map(str::to_owned));
            let ran = Command::new("sh").args(["-c", &text]).status().unwrap();
            assert_eq!(ran.code(), Some(status), "{text}");
        }
    }

    #[test]
    fn what_is_kept_survives_another_build_and_goes_with_its_keeper() {
        let staged = Staged::new(&Workspace::find()).unwrap();
        let folder = staged.folder.join("built");
        fs::create_dir(&folder).unwrap();
        let executable = folder.join("test-1");
        fs::write(&executable, "first").unwrap();
        let binary = Binary {
            folder: folder.clone(),
            name: "test".into(),
            executable: executable.clone(),
        };
        let kept = staged.keep(vec![binary.clone(), binary]).unwrap();
        // As linkers do.
        fs::remove_file(&executable).unwrap();
        fs::write(&executable, "second").unwrap();
        assert_eq!((kept.len(), &kept[0]), (2, &kept[1]));
        assert_eq!(fs::read(&kept[0].executable).unwrap(), b"first");
        let place = staged.folder.clone();
        drop(staged);
        assert!(!place.exists());
    }

    #[test]
    fn a_binary_runs_once_by_the_first_set_that_asks_for_it_whole() {
        let binary = |name: &str, executable: &str| Binary {
            folder: "/folder".into(),
            name: name.into(),
            executable: executable.into(),
        };
        let part = |filter, threads| Set {
            packages: &[],
            tests: &[],
            filter,
            machines: &[OLDEST],
            threads,
            is_long: false,
        };
        let sets = [part("one::", 1), part("", 1), part("", 2)];
        let built = [
            (&sets[0], vec![binary("a", "a-1")]),
            (&sets[1], vec![binary("a", "a-1")]),
            (&sets[2], vec![binary("a", "a-1"), binary("b", "b-1")]),
        ];
        let ran = lines(&built, OLDEST);
        assert_eq!(ran.len(), 3, "{ran:?}");
        assert!(ran[1].contains("'a-1'") && ran[1].contains("--test-threads 1"));
        assert!(ran[2].contains("'b-1'") && ran[2].contains("--test-threads 2"));
        assert!(lines(&built, IWARP).is_empty());
    }

    #[test]
    fn a_set_that_lacks_a_test_is_refused() {
        let of = |name: &str| Binary {
            folder: "/folder".into(),
            name: name.into(),
            executable: "a".into(),
        };
        let [roce, ..] = SETS;
        assert!(roce.check(&[of("soft")]).is_ok());
        for lacking in [vec![], vec![of("sim")]] {
            let error = roce.check(&lacking).unwrap_err().to_string();
            assert!(error.contains("soft"), "{error}");
        }
    }

    #[test]
    fn every_machine_runs_something_and_every_set_somewhere() {
        for machine in MACHINES {
            assert!(SETS.iter().any(|set| set.machines.contains(&machine)));
        }
        assert!(SETS.iter().all(|set| !set.machines.is_empty()));
    }
}
