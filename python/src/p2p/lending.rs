//! Memory of objects: lent for as long as they are held, and not only for a call.
//!
//! It is kept here until the core has let go of it, whatever becomes of the object that Python has of it.

use std::sync::{Arc, Mutex, PoisonError};

use lunette_p2p::LentBuffers;
use lunette_runtime::arena::SharedMemory;
use pyo3::prelude::*;

use crate::failure::{Invalid, Unavailable};
use crate::memory::{LentParts, Loans, streams};

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
    /// Lends these ranges of memory, addresses and lengths, which `keeps` has, all of the host's or all of devices', whose
    /// copies come after what streams have to do. Ranges without a byte are nowhere.
    ///
    /// # Errors
    /// `Invalid`, if nothing is mapped at some of it, it is of both, or one is of several allocations of a device;
    /// `Unavailable`, if that of too many objects is lent.
    pub(super) fn lend(
        &self,
        ranges: &[(usize, usize)],
        keeps: Py<PyAny>,
        after: &[usize],
    ) -> PyResult<(LentBuffers, Arc<Lent>)> {
        self.sweep();
        let loans = Loans::default();
        let memory = lend(&loans, ranges, after)?;
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

fn lend(loans: &Loans, ranges: &[(usize, usize)], after: &[usize]) -> PyResult<LentBuffers> {
    let after = streams(after);
    let (mut host, mut devices) = (Vec::new(), Vec::new());
    for &range in ranges {
        if range.1 == 0 {
            host.push(None);
            devices.push(None);
            continue;
        }
        let parts = loans.lend_parts(range, &after);
        let parts = parts.ok_or_else(|| {
            Invalid::new_err("nothing is mapped at an address, or not all of it is of one device")
        })?;
        match parts {
            LentParts::Host(memory) => host.push(Some(memory)),
            LentParts::Device(mut parts) if parts.len() == 1 => devices.push(parts.pop()),
            LentParts::Device(_) => {
                return Err(Invalid::new_err(
                    "a buffer is of several allocations of a device",
                ));
            }
        }
    }
    if host.len() == ranges.len() {
        let nowhere = || SharedMemory::owned(Vec::new());
        let host = host
            .into_iter()
            .map(|memory| memory.unwrap_or_else(nowhere));
        return Ok(LentBuffers::Host(host.collect()));
    }
    if devices.len() < ranges.len() {
        return Err(Invalid::new_err(
            "some buffers are of the host, and some of devices",
        ));
    }
    Ok(LentBuffers::Devices(devices))
}
