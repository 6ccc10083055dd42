//! The file of the cluster's secrets: read here and nowhere else.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use lunette_auth::Secrets;
use lunette_auth::secret::{SECRET_FILE_BYTES_MAX, SecretFault, SecretFile};
use thiserror::Error;

/// Why the secrets could not be had. The process must not go on without.
#[derive(Debug, Error)]
pub enum SecretFileError {
    /// The file could not be read.
    #[error("{}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It was read and holds no secrets that are safe to use.
    #[error("{}: {fault}", .path.display())]
    Fault {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: SecretFault,
    },
}

/// Reads the file that `LUNETTE_SECRET_FILE` names. It blocks: call it when the process starts, or on
/// the control thread. Rights are those of the file that was opened, whatever has its name then.
///
/// # Errors
/// [`SecretFileError`], with what to change.
pub fn read_secrets(path: &Path) -> Result<Secrets, SecretFileError> {
    let read = |source| SecretFileError::Read {
        path: path.to_path_buf(),
        source,
    };
    let file = File::open(path).map_err(read)?;
    let metadata = file.metadata().map_err(read)?;
    let mut bytes = Vec::new();
    let most = u64::try_from(SECRET_FILE_BYTES_MAX).expect("it is small") + 1;
    file.take(most).read_to_end(&mut bytes).map_err(read)?;
    let secrets = Secrets::from_file(SecretFile {
        bytes: &bytes,
        mode: metadata.mode(),
        owner_uid: metadata.uid(),
        process_uid: rustix::process::geteuid().as_raw(),
    });
    // What was read of a file that is refused is a secret all the same.
    bytes.fill(0);
    secrets.map_err(|fault| SecretFileError::Fault {
        path: path.to_path_buf(),
        fault,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_of_its_owner_is_read_and_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_secrets(&path).unwrap().count(), 1);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let refused = read_secrets(&path).unwrap_err();
        let fault = SecretFault::Permissions { mode: 0o640 };
        assert!(matches!(refused, SecretFileError::Fault { fault: found, .. } if found == fault));
        let absent = read_secrets(&folder.path().join("absent")).unwrap_err();
        assert!(absent.to_string().contains("absent"));
    }

    #[test]
    fn a_file_without_end_is_not_read_to_its_end() {
        let refused = read_secrets(Path::new("/dev/zero")).unwrap_err();
        assert!(
            matches!(refused, SecretFileError::Fault { .. }),
            "{refused}"
        );
    }
}
