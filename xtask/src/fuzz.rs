//! `cargo xtask fuzz`: libFuzzer on every protocol machine, with stable Rust.
//!
//! What it builds, finds and collects stays below cargo's target folder. `fuzz/README.md` says what
//! each target attacks and what to do with a finding.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::system;
use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

/// Coverage from LLVM's own pass, checks as in a debug build; see `fuzz/README.md`.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
     -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks --cfg fuzzing";
/// Longest input, in bytes: scripts longer than this reach nothing new.
const INPUT_BYTES_MAX: usize = 512;
/// Longest run of one input, in seconds; a longer one is a finding.
const INPUT_SECONDS_MAX: usize = 10;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The target to run; all of them, if none is named.
    target: Option<String>,
    /// How long each target runs, in seconds.
    #[arg(default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

/// Builds and runs the targets one after the other; a finding does not keep the next from running.
///
/// # Errors
/// [`TaskError::UnknownTarget`], those of the build, and [`TaskError::Fuzz`] when something was found.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<(), TaskError> {
    let targets = chosen(&listed(workspace.root())?, arguments.target.as_deref())?;
    system::ensure(system::FUZZ)?;
    let host = host_triple(workspace)?;
    let folder = workspace.target_dir()?.join("fuzz");
    let mut failed = Vec::new();
    for target in targets {
        build(workspace, &target, &host, &folder)?;
        let program = folder.join(&host).join("release").join(&target);
        if !attack(workspace, &target, &program, &folder, arguments.seconds)? {
            failed.push(target);
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(TaskError::Fuzz(failed.join(", ")))
    }
}

/// Names of all targets: one file each.
fn listed(root: &Path) -> Result<Vec<String>, TaskError> {
    let folder = root.join("fuzz/fuzz_targets");
    let files = files_of(&folder)?;
    let sources = files
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let stems = sources.filter_map(|path| path.file_stem());
    Ok(stems
        .map(|stem| stem.to_string_lossy().into_owned())
        .collect())
}

fn chosen(listed: &[String], wanted: Option<&str>) -> Result<Vec<String>, TaskError> {
    let Some(wanted) = wanted else {
        return Ok(listed.to_vec());
    };
    if listed.iter().any(|name| name == wanted) {
        return Ok(vec![wanted.to_owned()]);
    }
    Err(TaskError::UnknownTarget {
        name: wanted.to_owned(),
        known: listed.join(", "),
    })
}

/// Naming the target explicitly keeps the flags away from build scripts.
fn host_triple(workspace: &Workspace) -> Result<String, TaskError> {
    let text = workspace::output(&mut workspace.cargo(["-vV"]))?;
    let text = String::from_utf8_lossy(&text);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| TaskError::Malformed {
        file: "cargo -vV".to_owned(),
        reason: "it names no host".to_owned(),
    })
}

fn build(workspace: &Workspace, target: &str, host: &str, folder: &Path) -> Result<(), TaskError> {
    let mut build = workspace.cargo(["build", "-p", "lunette-fuzz", "--locked", "--release"]);
    build.args(["--features", "libfuzzer", "--bin", target, "--target", host]);
    build
        .arg("--target-dir")
        .arg(folder)
        .env("RUSTFLAGS", FLAGS);
    // Flags of the caller in this form would win over ours.
    build.env_remove("CARGO_ENCODED_RUSTFLAGS");
    workspace::run(&mut build)
}

/// Runs one target and answers whether it held.
fn attack(
    workspace: &Workspace,
    target: &str,
    program: &Path,
    folder: &Path,
    seconds: u32,
) -> Result<bool, TaskError> {
    let corpus = folder.join("corpus").join(target);
    let artifacts = folder.join("artifacts").join(target);
    for made in [&corpus, &artifacts] {
        fs::create_dir_all(made).map_err(|source| TaskError::Read {
            path: made.clone(),
            source,
        })?;
    }
    let before = files_of(&artifacts)?;
    let mut command = Command::new(program);
    command.current_dir(workspace.root()).arg(&corpus);
    // New inputs go to the first folder; these are only read.
    let tracked = ["corpus", "regressions"].map(|kind| format!("fuzz/{kind}/{target}"));
    command.args(
        tracked
            .iter()
            .filter(|folder| workspace.root().join(folder).is_dir()),
    );
    command.args([
        format!("-max_total_time={seconds}"),
        format!("-max_len={INPUT_BYTES_MAX}"),
        format!("-timeout={INPUT_SECONDS_MAX}"),
        "-print_final_stats=1".to_owned(),
        format!("-artifact_prefix={}/", artifacts.display()),
    ]);
    let outcome = workspace::run(&mut command);
    let mut found = files_of(&artifacts)?;
    found.retain(|file| !before.contains(file));
    for file in &found {
        println!(
            "fuzz: `{target}` fails; replay: {} {}",
            program.display(),
            file.display()
        );
    }
    match outcome {
        Ok(()) => Ok(found.is_empty()),
        Err(TaskError::Failed { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn files_of(folder: &Path) -> Result<Vec<PathBuf>, TaskError> {
    let read = |source| TaskError::Read {
        path: folder.to_path_buf(),
        source,
    };
    let entries = fs::read_dir(folder).map_err(read)?;
    let entries = entries.collect::<Result<Vec<_>, _>>().map_err(read)?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_files_of_their_folder() {
        let workspace = Workspace::find();
        let listed = listed(workspace.root()).expect("the folder is part of the repository");
        assert!(listed.contains(&"wire".to_owned()), "{listed:?}");
    }

    #[test]
    fn an_unknown_target_is_refused_with_the_known_ones() {
        let listed = ["wire".to_owned(), "store".to_owned()];
        assert_eq!(chosen(&listed, None).unwrap(), listed);
        assert_eq!(chosen(&listed, Some("store")).unwrap(), ["store"]);
        let error = chosen(&listed, Some("wier")).unwrap_err().to_string();
        assert!(error.ends_with("wire, store"), "{error}");
    }

    #[test]
    fn the_host_is_known() {
        let host = host_triple(&Workspace::find()).expect("cargo tells its host");
        assert!(host.contains('-'), "{host}");
    }
}
