//! A question to the store's core: waited for, or left to a queue.

use lunette_p2p::{HandleError, Pending};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::failure::of_objects;
use crate::memory::Loans;
use crate::queue::{Making, NativeQueue};
use crate::waiting::wait;

/// The answer as `make` makes it for Python; or, with a queue, the number under which that will have it.
pub(super) fn answer<T: Send + 'static>(
    py: Python<'_>,
    queue: Option<&NativeQueue>,
    asked: Pending<T>,
    make: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    let making = move |py: Python<'_>, answer: Result<T, HandleError>| {
        make(py, answer.map_err(|error| of_objects(&error))?)
    };
    let Some(queue) = queue else {
        let answer = wait(py, asked)?;
        return making(py, answer);
    };
    let question = async move {
        let answer = asked.await;
        let making: Making = Box::new(move |py| making(py, answer));
        making
    };
    let number = queue.put(Box::pin(question), Loans::default(), py.None());
    number.into_py_any(py)
}
