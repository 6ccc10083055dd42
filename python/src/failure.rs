//! Errors, as exceptions: one class for each thing that a caller may do then.

use std::fmt::Display;
use std::io::ErrorKind;

use lunette_kvstore::{StoreError, StoreErrorKind};
use lunette_kvstore_proto::message::Status;
use lunette_p2p::{FileFault, HandleError as ObjectsError, HoldFault, UpdateFault};
use lunette_runtime::OpError;
use lunette_transfer::CallError;
use lunette_transfer::engine::DeviceLendError;
use lunette_transfer::engine::{Cause, HandleError, TransferError};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::{Bound, PyErr, PyResult, types::PyModule, types::PyModuleMethods};
use rustix::io::Errno;

create_exception!(
    lunette,
    StoreException,
    PyException,
    "The store did not do what it was asked for."
);
create_exception!(
    lunette,
    Unavailable,
    StoreException,
    "The same again may succeed: nodes are away, or busy."
);
create_exception!(lunette, TimedOut, Unavailable, "Time was over.");
create_exception!(
    lunette,
    NoRoom,
    Unavailable,
    "There is no room, and eviction makes none at the moment."
);
create_exception!(
    lunette,
    OverQuota,
    NoRoom,
    "What the tenant has pinned for ever leaves too little of its quota: remove some of it, or raise the quota."
);
create_exception!(
    lunette,
    Unknown,
    StoreException,
    "It is not known whether a write or a removal was done, now or later."
);
create_exception!(
    lunette,
    Invalid,
    StoreException,
    "What was asked for breaks a limit, or does not fit the object: nothing was done."
);
create_exception!(
    lunette,
    InvalidKey,
    Invalid,
    "What is given as a key is none: there is no object under it, and none can be put."
);
create_exception!(
    lunette,
    Corrupt,
    StoreException,
    "The bytes are not those that were put."
);
create_exception!(
    lunette,
    Closed,
    StoreException,
    "It was closed, or belongs to the process that this one was forked from."
);

create_exception!(
    lunette.p2p,
    NameTaken,
    Invalid,
    "Something else is registered under the name: take another one, or replace it."
);
create_exception!(
    lunette.p2p,
    NotFound,
    Unavailable,
    "Nobody holds an object of the name, or of the version that is wanted."
);

/// Adds the classes to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("StoreError", py.get_type::<StoreException>())?;
    module.add("Unavailable", py.get_type::<Unavailable>())?;
    module.add("TimedOut", py.get_type::<TimedOut>())?;
    module.add("NoRoom", py.get_type::<NoRoom>())?;
    module.add("OverQuota", py.get_type::<OverQuota>())?;
    module.add("Unknown", py.get_type::<Unknown>())?;
    module.add("Invalid", py.get_type::<Invalid>())?;
    module.add("InvalidKey", py.get_type::<InvalidKey>())?;
    module.add("Corrupt", py.get_type::<Corrupt>())?;
    module.add("Closed", py.get_type::<Closed>())?;
    module.add("NameTaken", py.get_type::<NameTaken>())?;
    module.add("NotFound", py.get_type::<NotFound>())
}

/// The exception for an operation that failed.
pub(crate) fn of_store(error: &StoreError) -> PyErr {
    let said = error.to_string();
    if error.is_corruption() {
        return Corrupt::new_err(said);
    }
    match error.kind {
        StoreErrorKind::Interrupted => Unknown::new_err(said),
        StoreErrorKind::Refused(Status::OverQuota) => OverQuota::new_err(said),
        StoreErrorKind::Refused(Status::Full | Status::PinnedFull) => NoRoom::new_err(said),
        StoreErrorKind::TimedOut => TimedOut::new_err(said),
        StoreErrorKind::Key(_) => InvalidKey::new_err(said),
        StoreErrorKind::ValueTooLong { .. }
        | StoreErrorKind::TooManyPieces { .. }
        | StoreErrorKind::Copies { .. }
        | StoreErrorKind::OfAllTenants
        | StoreErrorKind::Preferred { .. }
        | StoreErrorKind::Ranges { .. }
        | StoreErrorKind::OutOfRange { .. }
        | StoreErrorKind::NotOfDevice
        | StoreErrorKind::Call(CallError::TooLong { .. })
        | StoreErrorKind::Refused(Status::TooLarge | Status::Unfinished | Status::TooManyQuotas) => {
            Invalid::new_err(said)
        }
        StoreErrorKind::ShutDown => Closed::new_err(said),
        _ if error.is_retryable() || error.is_backpressure() => Unavailable::new_err(said),
        _ => StoreException::new_err(said),
    }
}

/// The exception for a question to a transfer engine.
pub(crate) fn of_engine(error: &HandleError) -> PyErr {
    let said = error.to_string();
    match error {
        HandleError::Transfer(failed) if failed.is_corruption() => Corrupt::new_err(said),
        HandleError::Transfer(failed) if is_late(failed) => TimedOut::new_err(said),
        HandleError::Register(_)
        | HandleError::NoMemory
        | HandleError::Batch(_)
        | HandleError::Device(DeviceLendError::NotOfDevice | DeviceLendError::Import(_)) => {
            Invalid::new_err(said)
        }
        HandleError::Gone | HandleError::Ended => Closed::new_err(said),
        _ if error.is_retryable() => Unavailable::new_err(said),
        _ => StoreException::new_err(said),
    }
}

/// The exception for a question to a store of objects from peers.
pub(crate) fn of_objects(error: &ObjectsError) -> PyErr {
    let said = error.to_string();
    match error {
        ObjectsError::Ended | ObjectsError::LetGo | ObjectsError::Update(UpdateFault::Stopped) => {
            Closed::new_err(said)
        }
        ObjectsError::Incomplete(_) | ObjectsError::Update(UpdateFault::Incomplete(_)) => {
            TimedOut::new_err(said)
        }
        ObjectsError::File(fault) => of_file(fault),
        ObjectsError::Disk(OpError::Os(Errno::NOSPC | Errno::DQUOT)) => NoRoom::new_err(said),
        ObjectsError::Disk(_) => StoreException::new_err(said),
        ObjectsError::Device(DeviceLendError::Copy(_) | DeviceLendError::Stream(_)) => {
            StoreException::new_err(said)
        }
        ObjectsError::Device(_) => Invalid::new_err(said),
        ObjectsError::Source(_) => Corrupt::new_err(said),
        ObjectsError::Hold(fault) | ObjectsError::Update(UpdateFault::Hold(fault)) => {
            of_hold(fault)
        }
        ObjectsError::Update(
            UpdateFault::Shape(_)
            | UpdateFault::Layout(_)
            | UpdateFault::Pack(_)
            | UpdateFault::Name(_)
            | UpdateFault::Manifest(_)
            | UpdateFault::Slots { .. },
        ) => Invalid::new_err(said),
        _ if error.is_retryable() => Unavailable::new_err(said),
        _ => StoreException::new_err(said),
    }
}

fn of_file(fault: &FileFault) -> PyErr {
    let said = fault.to_string();
    match fault.kind {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => NoRoom::new_err(said),
        ErrorKind::NotFound
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::PermissionDenied
        | ErrorKind::ReadOnlyFilesystem
        | ErrorKind::InvalidInput => Invalid::new_err(said),
        _ => StoreException::new_err(said),
    }
}

fn of_hold(fault: &HoldFault) -> PyErr {
    let said = fault.to_string();
    match fault {
        HoldFault::NameTaken { .. } => NameTaken::new_err(said),
        HoldFault::NotFound { .. } => NotFound::new_err(said),
        HoldFault::Shape(_)
        | HoldFault::Layout(_)
        | HoldFault::LongLayout
        | HoldFault::Slices(_)
        | HoldFault::WrongCount { .. }
        | HoldFault::WrongLength { .. }
        | HoldFault::ReadOnly { .. }
        | HoldFault::Held { .. } => Invalid::new_err(said),
        _ if fault.is_retryable() => Unavailable::new_err(said),
        _ => StoreException::new_err(said),
    }
}

fn is_late(failed: &TransferError) -> bool {
    let late = [Cause::DeadlineExceeded, Cause::Unreachable];
    let mut causes = failed.failures.iter().map(|failure| failure.cause);
    causes.any(|cause| late.contains(&cause))
}

/// The exception for something that could not be started or ended.
pub(crate) fn of_start(error: &dyn Display) -> PyErr {
    StoreException::new_err(error.to_string())
}
