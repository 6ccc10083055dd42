//! Memory of objects: lent for as long as they are held, and not only for a call.
//!
//! It is kept here until the core has let go of it, whatever becomes of the object that Python has of it.

use std::sync::{Arc, Mutex, PoisonError};

use lunette_runtime::arena::SharedMemory;
use pyo3::prelude::*;

use crate::failure::{Invalid, Unavailable};
use crate::memory::Loans;

/// Most objects whose memory is lent by one store.
const LENT_MAX: usize = 1 << 16;

/// The memory of one object.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) loans: Loans,
    /// What has it.
    _keeps: Py<PyAny>,
}

/// The memory of all objects of a store.
#[derive(Debug, Default)]
pub(super) struct Lending(Mutex<Vec<Arc<Lent>>>);

impl Lending {
    /// Lends these ranges of memory, addresses and lengths, which `keeps` has. Ranges without a byte are nowhere.
    ///
    /// # Errors
    /// `Invalid`, if nothing is mapped at some of it; `Unavailable`, if that of too many objects is lent.
    pub(super) fn lend(
        &self,
        ranges: &[(usize, usize)],
        keeps: Py<PyAny>,
    ) -> PyResult<(Vec<SharedMemory>, Arc<Lent>)> {
        self.sweep();
        let loans = Loans::default();
        let lent = ranges.iter().map(|&range| match range {
            (_, 0) => Some(SharedMemory::owned(Vec::new())),
            range => loans.lend(None, range),
        });
        let lent: Option<Vec<_>> = lent.collect();
        let memory = lent.ok_or_else(|| Invalid::new_err("nothing is mapped at an address"))?;
        let lent = Arc::new(Lent {
            loans,
            _keeps: keeps,
        });
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= LENT_MAX {
            let said = format!("the memory of {LENT_MAX} objects is lent");
            return Err(Unavailable::new_err(said));
        }
        table.push(Arc::clone(&lent));
        drop(table);
        Ok((memory, lent))
    }

    /// Lets go of what nobody has any more.
    pub(super) fn sweep(&self) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = table.extract_if(.., |lent| lent.loans.are_over());
        let over: Vec<_> = over.collect();
        drop(table);
        // Python may be run by that, and come back here.
        drop(over);
    }
}
