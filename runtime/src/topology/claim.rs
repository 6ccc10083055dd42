//! Claims: which program of this host uses which CPU.
//!
//! A claim is an advisory lock on a file per CPU, in a folder of this user. The system gives it up
//! when the process ends, however that happens, so no claim outlives its owner. Whoever does not
//! ask is not kept out.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;

use super::cpus::{TooFewCpus, choose, cpus, in_order_of_choice};

/// Longest process id that a claim's file holds, in decimal digits.
const PID_DIGITS_MAX: u64 = 20;

/// A CPU that this process has claimed for itself, until the value is dropped or the process ends.
///
/// Claims count among the programs of one user that see the same `XDG_RUNTIME_DIR` (without one:
/// the same `/tmp`). A child that is forked without `exec` shares its parent's claims and keeps
/// them until it ends.
#[derive(Debug)]
pub struct CoreClaim {
    cpu: usize,
    // Holds the lock; dropping it gives the claim up.
    _file: File,
}

/// Why a CPU could not be claimed.
#[derive(Debug, Error)]
pub enum ClaimError {
    /// Another claim on this CPU is held, maybe by this process itself.
    #[error("CPU {cpu} is claimed{}", claimed_by(*by))]
    Taken {
        /// The CPU.
        cpu: usize,
        /// The process that holds the claim, where it has said so.
        by: Option<u32>,
    },
    /// The folder for claims belongs to somebody else, or others may write to it.
    #[error("{}: not a folder of this user alone; remove it, or set XDG_RUNTIME_DIR", .0.display())]
    UnsafeFolder(PathBuf),
    /// The system refused the folder or a file in it.
    #[error("{}: {error}", path.display())]
    File {
        /// The folder or the file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
}

fn claimed_by(process: Option<u32>) -> String {
    process.map_or_else(
        || " by another process".to_owned(),
        |id| format!(" by process {id}"),
    )
}

impl ClaimError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Taken { .. })
    }
}

impl CoreClaim {
    /// Claims `cpu` (the system's number). Whether this process may run there is not asked.
    ///
    /// # Errors
    /// [`ClaimError`]: nothing is claimed. After [`ClaimError::Taken`] try another CPU; after the
    /// others claims do not work here, and the caller may go on without.
    pub fn acquire(cpu: usize) -> Result<Self, ClaimError> {
        Self::acquire_in(&folder(), cpu)
    }

    /// The claimed CPU.
    #[must_use]
    pub const fn cpu(&self) -> usize {
        self.cpu
    }

    fn acquire_in(folder: &Path, cpu: usize) -> Result<Self, ClaimError> {
        make_folder(folder)?;
        let path = folder.join(format!("cpu-{cpu}.lock"));
        let failed = |error| ClaimError::File {
            path: path.clone(),
            error,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let by = owner(&mut file);
                return Err(ClaimError::Taken { cpu, by });
            }
            Err(errno) => return Err(failed(errno.into())),
        }
        // For people only: the lock is the claim. The file stays, because removing it would let
        // two processes lock two files of one name.
        let said = file
            .set_len(0)
            .and_then(|()| writeln!(file, "{}", process::id()));
        said.map_err(failed)?;
        Ok(Self { cpu, _file: file })
    }
}

/// The process that wrote its id into a claim's file.
fn owner(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(PID_DIGITS_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// The folder of this user's programs on this host, made if it is not there: `lunette` in
/// `XDG_RUNTIME_DIR`, or without one `/tmp/lunette-UID`. Nobody else can put files or links into it.
///
/// # Errors
/// [`ClaimError`]: it belongs to somebody else, or cannot be made.
pub fn user_folder() -> Result<PathBuf, ClaimError> {
    let folder = folder();
    make_folder(&folder)?;
    Ok(folder)
}

/// Where this user's claims are.
fn folder() -> PathBuf {
    let given = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    given.filter(|folder| folder.is_absolute()).map_or_else(
        || {
            let user = rustix::process::getuid().as_raw();
            PathBuf::from(format!("/tmp/lunette-{user}"))
        },
        |folder| folder.join("lunette"),
    )
}

/// Makes the folder, and sees to it that nobody else can put files or links into it.
fn make_folder(folder: &Path) -> Result<(), ClaimError> {
    let failed = |error| ClaimError::File {
        path: folder.to_owned(),
        error,
    };
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    let metadata = fs::symlink_metadata(folder).map_err(failed)?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    let others_write = metadata.mode() & 0o022 != 0;
    if !metadata.is_dir() || !ours || others_write {
        return Err(ClaimError::UnsafeFolder(folder.to_owned()));
    }
    Ok(())
}

/// Why no CPUs were chosen and claimed.
#[derive(Debug, Error)]
pub enum ChooseError {
    /// Fewer CPUs are both usable by this process and unclaimed.
    #[error(transparent)]
    TooFewCpus(#[from] TooFewCpus),
    /// Claims do not work here.
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

/// Chooses CPUs for `count` cores among those that nobody has claimed, in the order of
/// [`super::choose`], and claims them.
///
/// # Errors
/// [`ChooseError`]: nothing stays claimed. The caller may run cores without pinning.
pub fn choose_unclaimed(count: usize) -> Result<Vec<CoreClaim>, ChooseError> {
    let usable = in_order_of_choice(&cpus());
    choose_unclaimed_in(&folder(), &usable, count)
}

fn choose_unclaimed_in(
    folder: &Path,
    usable: &[usize],
    count: usize,
) -> Result<Vec<CoreClaim>, ChooseError> {
    let mut claims = Vec::new();
    let mut taken = 0;
    for &cpu in usable {
        if claims.len() == count {
            break;
        }
        match CoreClaim::acquire_in(folder, cpu) {
            Ok(claim) => claims.push(claim),
            Err(ClaimError::Taken { .. }) => taken += 1,
            Err(error) => return Err(error.into()),
        }
    }
    if claims.len() < count {
        return Err(TooFewCpus {
            wanted: count,
            usable: usable.len(),
            taken,
        }
        .into());
    }
    Ok(claims)
}

/// CPUs for the cores of a runtime.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) cpus: Vec<usize>,
    /// To be held as long as the cores run, so that the next program chooses other CPUs.
    pub(crate) claims: Vec<CoreClaim>,
}

/// CPUs for `count` cores that nobody has claimed, claimed; where claims do not work, CPUs without
/// claims, and a warning.
pub(crate) fn choose_and_claim(count: usize) -> Result<Chosen, TooFewCpus> {
    chosen(choose_unclaimed(count), || choose(count))
}

fn chosen(
    claims: Result<Vec<CoreClaim>, ChooseError>,
    choose: impl FnOnce() -> Result<Vec<usize>, TooFewCpus>,
) -> Result<Chosen, TooFewCpus> {
    match claims {
        Ok(claims) => {
            let cpus = claims.iter().map(CoreClaim::cpu).collect();
            Ok(Chosen { cpus, claims })
        }
        Err(ChooseError::Claim(error)) => {
            tracing::warn!(%error, "CPUs are not claimed");
            let (cpus, claims) = (choose()?, Vec::new());
            Ok(Chosen { cpus, claims })
        }
        Err(ChooseError::TooFewCpus(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn scratch() -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join("claims");
        (parent, folder)
    }

    #[test]
    fn a_cpu_has_one_claim_until_it_is_dropped() {
        let (_parent, folder) = scratch();
        let claim = CoreClaim::acquire_in(&folder, 3).expect("nobody else");
        assert_eq!(claim.cpu(), 3);
        let second = CoreClaim::acquire_in(&folder, 3).expect_err("it is taken");
        assert!(second.is_retryable());
        let id = process::id();
        assert_eq!(
            second.to_string(),
            format!("CPU 3 is claimed by process {id}")
        );
        let other = CoreClaim::acquire_in(&folder, 4).expect("another CPU");
        drop(claim);
        drop(CoreClaim::acquire_in(&folder, 3).expect("it is free again"));
        drop(other);
    }

    #[test]
    fn choosing_leaves_out_what_is_claimed_and_keeps_nothing_if_too_few_are_left() {
        let (_parent, folder) = scratch();
        let claimed = CoreClaim::acquire_in(&folder, 2).expect("nobody else");
        let usable = [0, 2, 1, 3];
        let claims = choose_unclaimed_in(&folder, &usable, 2).expect("there are three");
        let cpus: Vec<usize> = claims.iter().map(CoreClaim::cpu).collect();
        assert_eq!(cpus, [0, 1]);
        drop(claims);
        for _ in 0..2 {
            let error = choose_unclaimed_in(&folder, &usable, 4).expect_err("there are three");
            let ChooseError::TooFewCpus(TooFewCpus {
                wanted: 4,
                usable: 4,
                taken: 1,
            }) = error
            else {
                panic!("{error}");
            };
        }
        drop(claimed);
        assert_eq!(
            choose_unclaimed_in(&folder, &usable, 4).map_or(0, |claims| claims.len()),
            4
        );
    }

    #[test]
    fn folders_that_others_can_write_to_are_refused() {
        let (_parent, folder) = scratch();
        fs::create_dir(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).expect("our own");
        let error = CoreClaim::acquire_in(&folder, 0).expect_err("others could write");
        assert!(matches!(error, ClaimError::UnsafeFolder(_)), "{error}");
        assert!(!error.is_retryable());

        let link = folder.with_file_name("link");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("our own");
        std::os::unix::fs::symlink(&folder, &link).expect("a link");
        let error = CoreClaim::acquire_in(&link, 0).expect_err("a link is no folder");
        assert!(matches!(error, ClaimError::UnsafeFolder(_)), "{error}");
    }

    #[test]
    fn what_is_no_process_id_names_nobody() {
        let (_parent, folder) = scratch();
        let claim = CoreClaim::acquire_in(&folder, 0).expect("nobody else");
        fs::write(folder.join("cpu-0.lock"), "not a number").expect("our own");
        let error = CoreClaim::acquire_in(&folder, 0).expect_err("it is taken");
        assert!(
            matches!(error, ClaimError::Taken { by: None, .. }),
            "{error}"
        );
        drop(claim);
    }

    #[test]
    fn cpus_are_chosen_without_claims_where_those_do_not_work_but_not_where_they_are_too_few() {
        let no_claims = || {
            let folder = PathBuf::from("claims");
            Err(ChooseError::Claim(ClaimError::UnsafeFolder(folder)))
        };
        let without = chosen(no_claims(), || Ok(vec![3, 5])).expect("two are enough");
        assert_eq!((without.cpus, without.claims.len()), (vec![3, 5], 0));
        let too_few = TooFewCpus {
            wanted: 2,
            usable: 1,
            taken: 0,
        };
        let refused = chosen(no_claims(), || Err(too_few));
        assert_eq!(refused.expect_err("too few"), too_few);
        let refused = chosen(Err(too_few.into()), || Ok(vec![3, 5]));
        assert_eq!(refused.expect_err("too few"), too_few);
    }
}
