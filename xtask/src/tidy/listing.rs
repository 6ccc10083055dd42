//! Which files are checked: those that git tracks or would track.
//!
//! Where git or its folder is missing (an unpacked archive, a copy on another machine) every file
//! is taken but those below the folders that the root's `.gitignore` names.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use crate::task_error::TaskError;
use crate::workspace;

/// Paths relative to the root, sorted, each once.
///
/// # Errors
/// [`TaskError::Read`], when git is missing and a folder cannot be read.
pub(super) fn paths(root: &Path) -> Result<Vec<String>, TaskError> {
    let mut paths = match by_git(root) {
        Ok(paths) => paths,
        Err(error) => {
            eprintln!("tidy: {error}; every file is checked");
            let ignored = ignored_folders(root)?;
            let mut paths = Vec::new();
            below(root, "", &ignored, &mut paths)?;
            paths
        }
    };
    paths.sort();
    paths.dedup();
    Ok(paths)
}

fn by_git(root: &Path) -> Result<Vec<String>, TaskError> {
    let mut git = Command::new("git");
    // A clone may belong to another user than the one that checks it; listing it is harmless.
    git.current_dir(root)
        .args(["-c", "safe.directory=*", "ls-files", "-z"]);
    git.args(["--cached", "--others", "--exclude-standard"]);
    // Hooks set these, and they would point git elsewhere than at `root`.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(variable);
    }
    let listing = workspace::output(&mut git)?;
    if listing.is_empty() {
        // The root lies in an ignored folder of another repository: not a reason to check nothing.
        return Err(TaskError::Malformed {
            file: "git ls-files".to_owned(),
            reason: "it lists no file".to_owned(),
        });
    }
    let paths = listing
        .split(|&byte| byte == 0)
        .filter(|path| !path.is_empty());
    Ok(paths
        .map(|path| String::from_utf8_lossy(path).into_owned())
        .collect())
}

/// Lines like `/target`: folders of the root. Other patterns are git's to understand.
fn ignored_folders(root: &Path) -> Result<Vec<String>, TaskError> {
    let path = root.join(".gitignore");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(source) => return Err(TaskError::Read { path, source }),
    };
    let named = text.lines().filter_map(|line| line.strip_prefix('/'));
    let named = named.map(|name| name.trim_end_matches('/').to_owned());
    Ok(named.chain([".git".to_owned()]).collect())
}

fn below(
    root: &Path,
    folder: &str,
    ignored: &[String],
    paths: &mut Vec<String>,
) -> Result<(), TaskError> {
    let full = root.join(folder);
    let failed = |source| TaskError::Read {
        path: full.clone(),
        source,
    };
    for entry in fs::read_dir(&full).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() {
            name
        } else {
            format!("{folder}/{name}")
        };
        // Links are not followed, so the walk ends.
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_file() {
            paths.push(path);
        } else if kind.is_dir() && !ignored.contains(&path) {
            below(root, &path, ignored, paths)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn the_walk_finds_what_git_finds_in_a_source_folder() {
        let folder = Workspace::find().root().join("xtask/src");
        let mut walked = Vec::new();
        below(&folder, "", &[], &mut walked).expect("the folder is part of the repository");
        assert!(walked.contains(&"main.rs".to_owned()));
        assert!(walked.contains(&"tidy/listing.rs".to_owned()));
        let ignored = ["tidy".to_owned()];
        walked.clear();
        below(&folder, "", &ignored, &mut walked).expect("as above");
        assert!(walked.contains(&"main.rs".to_owned()));
        assert!(!walked.iter().any(|path| path.starts_with("tidy/")));
    }

    #[test]
    fn what_is_built_is_not_walked() {
        let ignored = ignored_folders(Workspace::find().root()).expect("it can be read");
        assert!(ignored.contains(&"target".to_owned()));
        assert!(ignored.contains(&".git".to_owned()));
    }

    #[test]
    fn a_folder_outside_git_is_an_error_of_git() {
        assert!(by_git(Path::new("/proc")).is_err());
    }
}
