//! Errors, as exceptions.

use std::fmt::Display;

use lunette_kvstore::StoreError;
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::PyException;

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

/// The exception for an operation that failed.
pub(crate) fn of_store(error: &StoreError) -> PyErr {
    let said = error.to_string();
    if error.is_corruption() {
        Corrupt::new_err(said)
    } else if error.is_retryable() || error.is_backpressure() {
        Unavailable::new_err(said)
    } else {
        StoreException::new_err(said)
    }
}

/// The exception for something that could not be started or ended.
pub(crate) fn of_start(error: &dyn Display) -> PyErr {
    StoreException::new_err(error.to_string())
}
