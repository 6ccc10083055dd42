//! Memory of this process that is registered.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lunette_transfer::engine::{Access, EngineHandle, RegisterOptions, SegmentId};
use pyo3::prelude::*;

use crate::failure::{Invalid, of_engine};
use crate::memory::Loans;
use crate::waiting::wait;

/// A place in a segment of this engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) segment: SegmentId,
    pub(super) offset_bytes: u64,
}

/// One range.
struct Registered {
    len: usize,
    segment: SegmentId,
    /// Until the engine has let go of it.
    loans: Loans,
}

/// Ranges by their first address, which do not overlap.
pub(super) struct Local {
    engine: EngineHandle,
    ranges: Mutex<BTreeMap<usize, Registered>>,
}

impl Local {
    pub(super) fn new(engine: EngineHandle) -> Self {
        Self {
            engine,
            ranges: Mutex::default(),
        }
    }

    fn ranges(&self) -> MutexGuard<'_, BTreeMap<usize, Registered>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, py: Python<'_>, address: usize, len: usize) -> PyResult<()> {
        let loans = Loans::default();
        let memory = loans
            .lend(None, (address, len))
            .ok_or_else(|| Invalid::new_err("nothing is mapped there"))?;
        let options = RegisterOptions {
            name: None,
            by_address: true,
            access: Access::ReadWrite,
            same_host: true,
            by_capability: false,
        };
        let registering = self.engine.register_shared(memory, options);
        // It takes no time of others, and is waited for whatever signal comes: nobody else would unregister it.
        let segment = py.detach(|| registering.wait());
        let segment = match segment {
            Ok(segment) => segment,
            Err(error) => {
                loans.ended(py)?;
                return Err(of_engine(&error));
            }
        };
        let registered = Registered {
            len,
            segment,
            loans,
        };
        // The engine has seen to it that nothing overlaps.
        self.ranges().insert(address, registered);
        Ok(())
    }

    pub(super) fn unregister(&self, py: Python<'_>, address: usize) -> PyResult<bool> {
        let Some(registered) = self.ranges().remove(&address) else {
            return Ok(false);
        };
        let unregistered = wait(py, self.engine.unregister(registered.segment));
        let ended = registered.loans.ended(py);
        unregistered?.map_err(|error| of_engine(&error))?;
        ended.map(|()| true)
    }

    /// Where a range of registered memory lies.
    pub(super) fn find(&self, address: usize, len_bytes: u64) -> PyResult<Place> {
        let ranges = self.ranges();
        let before = ranges.range(..=address).next_back();
        let place = before.and_then(|(start, registered)| {
            let offset_bytes = (address - start) as u64;
            let end = offset_bytes.checked_add(len_bytes)?;
            (end <= registered.len as u64).then_some(Place {
                segment: registered.segment,
                offset_bytes,
            })
        });
        place.ok_or_else(|| Invalid::new_err(format!("{address:#x} is not registered")))
    }

    /// The engine has ended: nothing is registered any more.
    pub(super) fn ended(&self) {
        self.ranges().clear();
    }
}
