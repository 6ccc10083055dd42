//! The system's own accounts of itself.

use std::fs;
use std::path::PathBuf;

/// Files of `/proc`, `/sys` and `/dev`, below a folder of tests' own in tests.
#[derive(Clone, Debug)]
pub(super) struct System {
    root: PathBuf,
}

impl System {
    pub(super) fn this() -> Self {
        Self {
            root: PathBuf::from("/"),
        }
    }

    /// The text of a file, without blanks around it; `None` if it cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// The number that a file consists of.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The names in a folder, in order; none if it cannot be read.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    fn path(&self, path: &str) -> PathBuf {
        assert!(!path.starts_with('/'), "below the root: {path}");
        self.root.join(path)
    }
}

#[cfg(test)]
impl System {
    /// A system that consists of these files, as long as the folder lives.
    pub(super) fn of(files: &[(&str, &str)]) -> (tempfile::TempDir, Self) {
        let folder = tempfile::tempdir().expect("a folder");
        let system = Self {
            root: folder.path().to_owned(),
        };
        for (path, text) in files {
            let path = system.path(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("our own");
            fs::write(path, text).expect("our own");
        }
        (folder, system)
    }
}
