//! The lane `vm`: which test binaries run on which kernel.
//!
//! They are built here and run there. Their output is libtest's, so the lane counts it like any
//! other.

use std::path::PathBuf;
use std::time::Duration;

use cargo_metadata::{Message, TargetKind};

use super::kernel::Kernel;
use super::{Arguments, Series, run_lines};
use crate::tally::Tally;
use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

/// Limit of one kernel's part of the lane.
const PART_MAX: Duration = Duration::from_secs(400);

/// What runs on one kernel.
#[derive(Debug)]
struct Part {
    kernel: Series,
    packages: &'static [&'static str],
}

const PARTS: [Part; 2] = [
    Part {
        kernel: Series::V6_1,
        packages: &[
            "lunette-verbs",
            "lunette-runtime",
            "lunette-transfer",
            "lunette-kvstore",
        ],
    },
    Part {
        kernel: Series::V6_12,
        packages: &["lunette-verbs"],
    },
];

/// Tests whose subject is time, which an emulated machine does not have.
const TIMED: [&str; 1] = ["an_idle_core_uses_no_cpu"];

/// A test binary, and the folder it expects to run in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Binary {
    package: String,
    folder: PathBuf,
    executable: PathBuf,
}

/// Why there is no machine here, if there is none.
pub(crate) fn absent(workspace: &Workspace) -> Option<String> {
    let prepared = super::prepare(workspace).and_then(|()| {
        for part in PARTS {
            Kernel::prepare(workspace, part.kernel)?;
        }
        Ok(())
    });
    prepared.err().map(|error| error.to_string())
}

/// Builds the binaries, and runs them on each kernel.
///
/// # Errors
/// Those of building and of [`super::run`]; a failure on one kernel does not spare the other.
pub(crate) fn run(workspace: &Workspace, tally: &mut Tally) -> Result<(), TaskError> {
    let mut binaries = Vec::new();
    for arguments in [
        "-p lunette-verbs --test soft_roce",
        "-p lunette-runtime -p lunette-transfer -p lunette-kvstore --lib --tests",
    ] {
        binaries.extend(build(workspace, arguments)?);
    }
    let mut ended = Ok(());
    for part in PARTS {
        let script = script(&binaries, part.packages);
        let arguments = Arguments::of_script(part.kernel, script, PART_MAX);
        let ran = run_lines(workspace, &arguments, |line| tally.line(line));
        ended = ended.and(ran);
    }
    ended
}

fn build(workspace: &Workspace, arguments: &str) -> Result<Vec<Binary>, TaskError> {
    let mut command = workspace.cargo(["test", "--locked", "--no-run"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    command.args(arguments.split_whitespace());
    let output = workspace::output(&mut command)?;
    let mut binaries = Vec::new();
    for message in Message::parse_stream(output.as_slice()) {
        let Ok(Message::CompilerArtifact(artifact)) = message else {
            continue;
        };
        let is_test = artifact.profile.test && !artifact.target.kind.contains(&TargetKind::Bench);
        let (Some(executable), true) = (artifact.executable, is_test) else {
            continue;
        };
        let folder = artifact.manifest_path.parent().map(PathBuf::from);
        binaries.push(Binary {
            package: artifact.package_id.repr,
            folder: folder.unwrap_or_default(),
            executable: executable.into_std_path_buf(),
        });
    }
    Ok(binaries)
}

/// Runs every binary of these packages, and fails if one did.
fn script(binaries: &[Binary], packages: &[&str]) -> String {
    let skipped: Vec<String> = TIMED.iter().map(|name| format!("--skip {name}")).collect();
    let mut text = String::from("status=0\n");
    for binary in binaries {
        // `path+file:///.../verbs#lunette-verbs@0.1.0`
        let is_of = |package: &&&str| binary.package.contains(&format!("#{package}@"));
        if packages.iter().find(is_of).is_none() {
            continue;
        }
        text += &format!(
            "cd '{}' && '{}' --show-output --test-threads 2 {} || status=1\n",
            binary.folder.display(),
            binary.executable.display(),
            skipped.join(" ")
        );
    }
    text + "exit $status\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_runs_the_binaries_of_its_packages_alone() {
        let binary = |package: &str| Binary {
            package: format!("path+file:///x#{package}@0.1.0"),
            folder: "here".into(),
            executable: format!("target/{package}").into(),
        };
        let binaries = [binary("lunette-verbs"), binary("lunette-verbs-proto")];
        let text = script(&binaries, &["lunette-verbs"]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[1].starts_with("cd 'here' && 'target/lunette-verbs' "));
        assert!(lines[1].ends_with("|| status=1"));
        assert_eq!(lines[2], "exit $status");
    }
}
