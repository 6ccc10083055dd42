//! Who holds a drive, as its host knows it: a file that is locked for as long as the process lives, and named after the
//! claim.
//!
//! So who finds a claim of a process of this host that has ended need not watch it for a lapse. Of processes of other
//! hosts, and of those that have another folder, nothing is known.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use lunette_runtime::entropy;

/// This process, as a holder of a drive.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) id: u128,
    folder: Option<PathBuf>,
    /// Holds the lock.
    _file: Option<File>,
}

impl Holder {
    /// Begins with an id that nobody has had.
    pub(super) fn begin(folder: Option<&Path>) -> Self {
        let id = u128::from(entropy()) << 64 | u128::from(entropy());
        let locked = folder.map(|folder| locked(&path_of(folder, id)));
        let file = match locked {
            Some(Err(error)) => {
                tracing::warn!(%error, "after a crash this node waits until its claim of a drive has lapsed");
                None
            }
            locked => locked.and_then(Result::ok),
        };
        Self {
            id,
            folder: folder.map(Path::to_owned),
            _file: file,
        }
    }

    /// Whether a holder was a process of this host that has ended.
    pub(super) fn is_gone(&self, id: u128) -> bool {
        let Some(folder) = self.folder.as_deref().filter(|_| id != self.id) else {
            return false;
        };
        let path = path_of(folder, id);
        let is_gone = File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
        if is_gone {
            forget(&path);
        }
        is_gone
    }

    /// Its claim has been given up: nobody will ask.
    pub(super) fn end(&self) {
        if let Some(folder) = &self.folder {
            forget(&path_of(folder, self.id));
        }
    }
}

fn path_of(folder: &Path, id: u128) -> PathBuf {
    folder.join(format!("drive-{id:032x}.holder"))
}

fn locked(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.try_lock()?;
    Ok(file)
}

fn forget(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::debug!(path = %path.display(), %error, "a file of a holder stays");
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime::{CoreOptions, block_on};

    use super::*;

    #[test]
    fn who_lives_is_told_from_who_has_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let ran = block_on(None, CoreOptions::default(), || async move {
            let [first, second, asks] = [(); 3].map(|()| Holder::begin(Some(folder.path())));
            assert!(!asks.is_gone(first.id) && !asks.is_gone(second.id));
            assert!(
                !asks.is_gone(asks.id) && !asks.is_gone(7),
                "nothing is known"
            );
            let id = first.id;
            drop(first);
            assert!(asks.is_gone(id));
            assert!(!asks.is_gone(id), "it is told once");
            let id = second.id;
            second.end();
            drop(second);
            assert!(!asks.is_gone(id), "it has given up what it had");
            assert!(!Holder::begin(None).is_gone(asks.id));
        });
        ran.expect("a core");
    }
}
