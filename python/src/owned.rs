//! What has threads of its own, until it is closed: it belongs to the process that made it.

use std::process;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::failure::Closed;

/// A value that is there until it is closed, and for the process that made it. In a child of a fork it is refused,
/// and not dropped: the child has none of the threads that would be waited for.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    process: u32,
    value: Mutex<Option<T>>,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            process: process::id(),
            value: Mutex::new(Some(value)),
        }
    }

    /// What `ask` makes of the value.
    ///
    /// # Errors
    /// `Closed`.
    pub(crate) fn with<R>(&self, ask: impl FnOnce(&T) -> R) -> PyResult<R> {
        self.check()?;
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = value.as_ref().map(ask);
        asked.ok_or_else(|| Closed::new_err("closed"))
    }

    /// Takes the value out; `None` if that was done before.
    ///
    /// # Errors
    /// `Closed`, in a child of a fork.
    pub(crate) fn close(&self) -> PyResult<Option<T>> {
        self.check()?;
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(value.take())
    }

    /// # Errors
    /// `Closed`, in a child of a fork.
    pub(crate) fn check(&self) -> PyResult<()> {
        if self.process == process::id() {
            return Ok(());
        }
        Err(Closed::new_err("used after fork"))
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process != process::id() {
            let value = self.value.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(value.take());
        }
    }
}
