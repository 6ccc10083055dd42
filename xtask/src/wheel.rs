//! `cargo xtask wheel`: the wheel as it is given away, for every Linux of manylinux_2_28 (PEP 600).
//!
//! It leaves out where it is given away to.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

/// The folder of the environment with the tools, below the target directory.
const ENVIRONMENT: &str = "wheel-tools";
/// The one in which the wheel is all that is installed.
const BARE: &str = "wheel-bare";
const TOOLS: [&str; 3] = ["maturin>=1.7,<2", "ziglang", "auditwheel>=6,<7"];
/// The newest minor version of glibc 2 that the wheel may ask for: what serving engines' images have.
const GLIBC_MINOR_MAX: u32 = 28;
/// What a program imports of it.
const IMPORTS: &str = "import lunette, lunette.aio, mooncake.engine, mooncake.store";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Builds for this target instead of the machine's own, such as aarch64-unknown-linux-gnu.
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
}

/// Builds the wheel with zig as linker, so that it asks for an old glibc wherever it is built, has auditwheel
/// judge it, and imports it in an environment that has nothing else.
///
/// # Errors
/// [`TaskError::Failed`]: of a tool; [`TaskError::Malformed`]: the wheel asks for more than it may.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<(), TaskError> {
    let target = workspace.target_dir()?;
    let tools = target.join(ENVIRONMENT).join("bin");
    if !tools.join("auditwheel").exists() {
        environment(&target.join(ENVIRONMENT))?;
        let mut install = Command::new(tools.join("python"));
        install
            .args(["-m", "pip", "install", "--quiet"])
            .args(TOOLS);
        workspace::run(&mut install)?;
    }
    let folder = target.join("wheels");
    let wheel = build(workspace, arguments, &tools, &folder)?;
    let shown = workspace::output(
        Command::new(tools.join("auditwheel"))
            .arg("show")
            .arg(&wheel),
    )?;
    let shown = String::from_utf8_lossy(&shown);
    println!("{shown}");
    judge(&wheel, &shown)?;
    if arguments.target.is_none() {
        import(&target.join(BARE), &wheel)?;
    }
    println!("{}", wheel.display());
    Ok(())
}

/// An empty environment at this place, whatever was there.
fn environment(place: &Path) -> Result<(), TaskError> {
    workspace::run(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(place),
    )
}

/// The wheel, alone in its folder.
fn build(
    workspace: &Workspace,
    arguments: &Arguments,
    tools: &Path,
    folder: &Path,
) -> Result<PathBuf, TaskError> {
    if folder.exists() {
        // What an earlier run has left.
        fs::remove_dir_all(folder).map_err(|source| unreadable(folder, source))?;
    }
    let mut command = Command::new(tools.join("maturin"));
    command
        .args(["build", "--release", "--locked", "--strip", "--zig"])
        .args(["--compatibility", &format!("manylinux_2_{GLIBC_MINOR_MAX}")])
        .arg("--out")
        .arg(folder)
        .current_dir(workspace.root().join("python"));
    if let Some(target) = &arguments.target {
        command.args(["--target", target]);
    }
    // maturin looks for zig in the Python that is found first.
    let others = env::var_os("PATH").unwrap_or_default();
    let paths = [tools.to_path_buf()]
        .into_iter()
        .chain(env::split_paths(&others));
    if let Ok(paths) = env::join_paths(paths) {
        command.env("PATH", paths);
    }
    workspace::run(&mut command)?;
    let built = fs::read_dir(folder).map_err(|source| unreadable(folder, source))?;
    let wheel = built.flatten().map(|entry| entry.path()).next();
    wheel.ok_or_else(|| malformed(folder, "no wheel was built"))
}

/// Whether auditwheel finds a tag that is old enough.
fn judge(wheel: &Path, shown: &str) -> Result<(), TaskError> {
    let minor = glibc_minor(shown)
        .ok_or_else(|| malformed(wheel, "auditwheel names no tag of manylinux"))?;
    if minor > GLIBC_MINOR_MAX {
        let reason = format!(
            "it asks for glibc 2.{minor}, where 2.{GLIBC_MINOR_MAX} is the newest that it may ask for"
        );
        return Err(malformed(wheel, &reason));
    }
    Ok(())
}

/// Of `"manylinux_2_28_x86_64"`, the first tag that is named, 28.
fn glibc_minor(shown: &str) -> Option<u32> {
    let (_, after) = shown.split_once("\"manylinux_2_")?;
    let digits = after.find(|c: char| !c.is_ascii_digit())?;
    after[..digits].parse().ok()
}

/// Imports the wheel where nothing else is installed.
fn import(place: &Path, wheel: &Path) -> Result<(), TaskError> {
    environment(place)?;
    let python = place.join("bin/python");
    let mut install = Command::new(&python);
    install
        .args(["-m", "pip", "install", "--quiet", "--no-index"])
        .arg(wheel);
    workspace::run(&mut install)?;
    workspace::run(Command::new(&python).args(["-I", "-c", IMPORTS]))
}

fn unreadable(folder: &Path, source: io::Error) -> TaskError {
    TaskError::Read {
        path: folder.to_path_buf(),
        source,
    }
}

fn malformed(file: &Path, reason: &str) -> TaskError {
    TaskError::Malformed {
        file: file.display().to_string(),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_read_from_what_auditwheel_says() {
        let shown =
            "x.whl is consistent with the following platform tag:\n\"manylinux_2_28_x86_64\".\n";
        assert_eq!(glibc_minor(shown), Some(28));
        assert!(judge(Path::new("x.whl"), shown).is_ok());
    }

    #[test]
    fn a_wheel_that_asks_for_too_much_is_refused() {
        let newer = "tag:\n\"manylinux_2_34_x86_64\"";
        for shown in [newer, "tag:\n\"linux_x86_64\"", "\"manylinux_2_", ""] {
            assert!(judge(Path::new("x.whl"), shown).is_err(), "{shown}");
        }
    }
}
