//! Objects that are written in ranges.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunette_kvstore::{ReservationHandle, ReservedHandle, StoreError, Stored};
use pyo3::prelude::*;

use crate::failure::{Invalid, of_store};
use crate::objects::waited;
use crate::store::{How, NativeStore};
use crate::waiting::wait;

/// Room for an object at the key's home, for as long as nothing has been written to it for a time.
#[pyclass(frozen, module = "lunette._native")]
pub(crate) struct NativeReservation {
    /// None once it is committed or given back.
    room: Mutex<Option<ReservationHandle>>,
}

impl fmt::Debug for NativeReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeReservation").finish_non_exhaustive()
    }
}

#[pymethods]
impl NativeReservation {
    /// Room for `len` bytes under the key, kept until nothing has been written to it for `keep_s`; `None` if there
    /// is an object.
    #[staticmethod]
    fn reserve(
        py: Python<'_>,
        store: &NativeStore,
        key: Vec<u8>,
        len: usize,
        how: How,
        keep_s: f64,
    ) -> PyResult<Option<Self>> {
        let keep = Duration::try_from_secs_f64(keep_s);
        let keep = keep.map_err(|error| Invalid::new_err(error.to_string()))?;
        let asked = store
            .handle()?
            .reserve(key, len, store.wishes(how)?.of_one(), keep);
        let reserved = wait(py, asked)?.map_err(|error| of_store(&error))?;
        Ok(match reserved {
            ReservedHandle::Room(room) => Some(Self {
                room: Mutex::new(Some(room)),
            }),
            ReservedHandle::Exists { .. } => None,
        })
    }

    /// Writes what lies at the addresses, each to its offset in the object.
    #[pyo3(signature = (store, addresses, lens, offsets, after=Vec::new()))]
    fn write(
        &self,
        py: Python<'_>,
        store: &NativeStore,
        addresses: Vec<usize>,
        lens: Vec<usize>,
        offsets: Vec<usize>,
        after: Vec<usize>,
    ) -> PyResult<()> {
        let asking = store.asking(&after)?;
        let written = waited(py, |loans| {
            let pieces = asking.lend(loans, &addresses, &lens);
            let pieces = pieces.map_err(Invalid::new_err)?;
            if pieces.len() != offsets.len() {
                return Err(Invalid::new_err("a range is empty, or has no offset"));
            }
            let room = self.room();
            let room = room.as_ref().ok_or_else(over)?;
            let pieces = pieces.into_iter().zip(&offsets);
            // All of them are under way from here on.
            let writes: Vec<_> = pieces
                .map(|(piece, offset)| room.write(*offset, vec![piece]))
                .collect();
            Ok(async move {
                let mut written = Ok(());
                for write in writes {
                    written = written.and(write.await);
                }
                written
            })
        })?;
        written.map_err(|error: StoreError| of_store(&error))
    }

    /// Makes what was written the key's value; whether it was: not if there is an object by now. The room is given
    /// back if it fails for good.
    fn commit(&self, py: Python<'_>) -> PyResult<bool> {
        let room = self.room().take().ok_or_else(over)?;
        match wait(py, room.commit())? {
            Ok(stored) => Ok(matches!(stored, Stored::Written { .. })),
            Err(failure) => {
                *self.room() = failure.reservation;
                Err(of_store(&failure.error))
            }
        }
    }

    /// Gives the room back.
    fn revoke(&self, py: Python<'_>) -> PyResult<()> {
        let room = self.room().take().ok_or_else(over)?;
        wait(py, room.revoke())?.map_err(|error| of_store(&error))
    }
}

impl NativeReservation {
    fn room(&self) -> MutexGuard<'_, Option<ReservationHandle>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn over() -> PyErr {
    Invalid::new_err("it is committed, or given back")
}
