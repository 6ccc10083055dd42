//! The workspace's root, the cargo binary that started us, and child processes.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use cargo_metadata::MetadataCommand;

use crate::task_error::TaskError;

/// Where the workspace lies and which cargo builds it.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    cargo: OsString,
}

impl Workspace {
    /// The workspace that this program was built from, whatever the current folder is.
    pub(crate) fn find() -> Self {
        // Cargo sets the variable when it runs us; a program started by hand falls back on the
        // place it was built in.
        let package = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package
            .parent()
            .expect("xtask lies one folder below the root")
            .to_path_buf();
        Self {
            root,
            cargo: env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
        }
    }

    /// The folder of the root manifest.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A cargo command that starts at the root.
    pub(crate) fn cargo<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let mut command = Command::new(&self.cargo);
        command.current_dir(&self.root).args(arguments);
        command
    }

    /// A command of rustup's proxy, which can choose another toolchain, that starts at the root.
    pub(crate) fn rustup_cargo(&self) -> Command {
        let mut command = Command::new("cargo");
        command.current_dir(&self.root);
        command
    }

    /// Asks cargo about the workspace; the caller adds what it wants to know.
    pub(crate) fn metadata(&self) -> MetadataCommand {
        let mut command = MetadataCommand::new();
        command.cargo_path(&self.cargo).current_dir(&self.root);
        command
    }

    /// Where cargo puts what it builds.
    ///
    /// # Errors
    /// [`TaskError::Metadata`], when cargo cannot read the manifests.
    pub(crate) fn target_dir(&self) -> Result<PathBuf, TaskError> {
        let metadata = self.metadata().no_deps().exec()?;
        Ok(metadata.target_directory.into_std_path_buf())
    }
}

/// Runs a child to its end with its output on ours.
///
/// # Errors
/// [`TaskError::Start`], and [`TaskError::Failed`] unless it exits with success.
pub(crate) fn run(command: &mut Command) -> Result<(), TaskError> {
    announce(command);
    let status = command
        .status()
        .map_err(|source| start_error(command, source))?;
    success(command, status)
}

/// Runs a child as [`run`] does and hands each line of its standard output to `line`, which answers whether
/// to show it.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_lines(
    command: &mut Command,
    mut line: impl FnMut(&str) -> bool,
) -> Result<(), TaskError> {
    announce(command);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| start_error(command, source))?;
    let output = child
        .stdout
        .take()
        .expect("standard output was piped above");
    let copied = copy_lines(output, &mut line);
    let status = child
        .wait()
        .map_err(|source| start_error(command, source))?;
    copied.map_err(|source| start_error(command, source))?;
    success(command, status)
}

fn copy_lines(output: impl io::Read, line: &mut impl FnMut(&str) -> bool) -> io::Result<()> {
    let mut output = BufReader::new(output);
    let mut bytes = Vec::new();
    while output.read_until(b'\n', &mut bytes)? > 0 {
        let text = String::from_utf8_lossy(&bytes);
        if line(text.trim_end()) {
            print!("{text}");
        }
        bytes.clear();
    }
    Ok(())
}

/// Runs a child without output and answers whether it was there and exited with success.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// What a child wrote to standard output.
///
/// # Errors
/// As [`run`].
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, TaskError> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| start_error(command, source))?;
    success(command, output.status)?;
    Ok(output.stdout)
}

/// The command as a person would type it, its program by name.
fn spelled(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(name).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

fn announce(command: &Command) {
    eprintln!("$ {}", spelled(command));
}

fn success(command: &Command, status: ExitStatus) -> Result<(), TaskError> {
    if status.success() {
        return Ok(());
    }
    Err(TaskError::Failed {
        command: spelled(command),
        status: status.to_string(),
    })
}

fn start_error(command: &Command, source: io::Error) -> TaskError {
    TaskError::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_holds_this_package() {
        let workspace = Workspace::find();
        assert!(workspace.root().join("xtask/Cargo.toml").is_file());
    }

    #[test]
    fn lines_reach_the_caller_and_failure_is_told() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "printf 'one\\ntwo'; exit 3"]);
        let outcome = run_lines(&mut command, |line| {
            lines.push(line.to_owned());
            true
        });
        assert_eq!(lines, ["one", "two"]);
        assert!(matches!(outcome, Err(TaskError::Failed { .. })));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let mut command = Command::new("lunette-no-such-program");
        assert!(matches!(run(&mut command), Err(TaskError::Start { .. })));
        assert!(!succeeds("lunette-no-such-program", &[]));
    }
}
