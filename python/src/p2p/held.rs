//! An object that is held.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lunette_p2p::{HeldHandle, Progress};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use super::asking::answer;
use super::lending::{Lending, Lent};
use super::told::{ToldTensor, told_layout};
use super::updating::let_go;
use crate::failure::Invalid;
use crate::owned::Owned;
use crate::queue::NativeQueue;

/// An object that is held by a store here, whole or in part, and served: until it is closed, or this is dropped.
#[pyclass(frozen, module = "lunette._native")]
pub(crate) struct NativeHeld {
    held: Owned<HeldHandle>,
    lent: Arc<Lent>,
    lending: Arc<Lending>,
}

impl fmt::Debug for NativeHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeHeld").finish_non_exhaustive()
    }
}

impl NativeHeld {
    pub(super) fn new(held: HeldHandle, lent: Arc<Lent>, lending: Arc<Lending>) -> Self {
        Self {
            held: Owned::new(held),
            lent,
            lending,
        }
    }
}

#[pymethods]
impl NativeHeld {
    #[getter]
    fn name(&self) -> PyResult<String> {
        self.held.with(|held| held.name().to_string())
    }

    #[getter]
    fn version(&self) -> PyResult<u64> {
        self.held.with(|held| held.version().0)
    }

    /// The lengths of the object's buffers, in bytes.
    #[getter]
    fn buffers(&self) -> PyResult<Vec<u64>> {
        self.held.with(|held| held.shape().buffers().to_vec())
    }

    /// The object's tensors.
    fn tensors(&self) -> PyResult<Vec<ToldTensor>> {
        self.held.with(|held| told_layout(held.layout()))
    }

    /// Bytes that are here, of how many, and holders that answer.
    fn progress(&self, py: Python<'_>, queue: Option<&NativeQueue>) -> PyResult<Py<PyAny>> {
        admit(queue)?;
        let asked = self.held.with(HeldHandle::progress)?;
        answer(py, queue, asked, |py, progress: Progress| {
            let Progress {
                held_bytes,
                len_bytes,
                neighbours,
                ..
            } = progress;
            (held_bytes, len_bytes, neighbours).into_py_any(py)
        })
    }

    /// Waits until all of it that is wanted is here. `TimedOut`: what came stays, and more comes.
    fn wait(
        &self,
        py: Python<'_>,
        queue: Option<&NativeQueue>,
        timeout_s: f64,
    ) -> PyResult<Py<PyAny>> {
        admit(queue)?;
        let patience = Duration::try_from_secs_f64(timeout_s);
        let patience = patience.map_err(|error| Invalid::new_err(error.to_string()))?;
        let asked = self.held.with(|held| held.whole(patience))?;
        answer(py, queue, asked, |py, ()| Ok(py.None()))
    }

    /// Waits until what has come into files is on the disk.
    fn sync(&self, py: Python<'_>, queue: Option<&NativeQueue>) -> PyResult<Py<PyAny>> {
        admit(queue)?;
        let asked = self.held.with(HeldHandle::sync)?;
        answer(py, queue, asked, |py, ()| Ok(py.None()))
    }

    /// Serves it no more, and waits until nobody has its memory. Ended by a signal, or given up, that goes on.
    fn close(&self, py: Python<'_>, queue: Option<&NativeQueue>) -> PyResult<Py<PyAny>> {
        admit(queue)?;
        let unregistering = self.held.with(HeldHandle::unregister)?;
        let_go(py, queue, unregistering, (&self.lent, &self.lending))
    }
}

/// Whether the queue, if there is one, has room.
pub(super) fn admit(queue: Option<&NativeQueue>) -> PyResult<()> {
    queue.map_or(Ok(()), NativeQueue::admit)
}
