//! Memory of this process that is registered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lunette_gpu::EngineStream;
use lunette_transfer::engine::{Access, EngineHandle, HandleError, RegisterOptions, SegmentId};
use pyo3::prelude::*;

use crate::failure::{Invalid, of_engine};
use crate::memory::{LentParts, Loans};
use crate::waiting::wait;

/// A place in a segment of this engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) segment: SegmentId,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
}

/// One range.
struct Registered {
    len: usize,
    /// Of a device's each allocation by itself: where each begins in the range, in their order.
    segments: Vec<(usize, SegmentId)>,
    /// Until the engine has let go of it.
    loans: Loans,
}

impl Registered {
    fn places(&self, begin: usize, end: usize) -> Vec<Place> {
        let last = self.segments.partition_point(|(start, _)| *start <= begin);
        let mut places = Vec::new();
        for (index, (start, segment)) in self.segments.iter().enumerate().skip(last - 1) {
            let next = self.segments.get(index + 1);
            let stop = next.map_or(self.len, |(next, _)| *next).min(end);
            let from = begin.max(*start);
            if from >= stop {
                break;
            }
            places.push(Place {
                segment: *segment,
                offset_bytes: (from - start) as u64,
                len_bytes: (stop - from) as u64,
            });
        }
        places
    }
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

    pub(super) fn register(
        &self,
        py: Python<'_>,
        (address, len): (usize, usize),
        after: &Arc<[EngineStream]>,
    ) -> PyResult<()> {
        let loans = Loans::default();
        let parts = loans.lend_parts((address, len), after);
        let parts = parts.ok_or_else(|| {
            Invalid::new_err("nothing is mapped there, or not all of it is of one device")
        })?;
        // It takes no time of others, and is waited for whatever signal comes: nobody else would unregister it.
        let segments = match py.detach(|| self.register_parts(address, parts)) {
            Ok(segments) => segments,
            Err(error) => {
                loans.ended(py)?;
                return Err(of_engine(&error));
            }
        };
        let registered = Registered {
            len,
            segments,
            loans,
        };
        // The engine has seen to it that nothing overlaps.
        self.ranges().insert(address, registered);
        Ok(())
    }

    /// Registers all parts, or none.
    fn register_parts(
        &self,
        address: usize,
        parts: LentParts,
    ) -> Result<Vec<(usize, SegmentId)>, HandleError> {
        let lent = match parts {
            LentParts::Host(memory) => {
                let segment = self.engine.register_shared(memory, options()).wait()?;
                return Ok(vec![(0, segment)]);
            }
            LentParts::Device(lent) => lent,
        };
        let mut segments = Vec::with_capacity(lent.len());
        for lent in lent {
            let start = usize::try_from(lent.address).expect("an address of this process");
            match self.engine.register_device(lent, options()).wait() {
                Ok(segment) => segments.push((start - address, segment)),
                Err(error) => {
                    for (_, segment) in segments {
                        // If the engine is gone, so is the segment.
                        let _taken = self.engine.unregister(segment).wait();
                    }
                    return Err(error);
                }
            }
        }
        Ok(segments)
    }

    pub(super) fn unregister(&self, py: Python<'_>, address: usize) -> PyResult<bool> {
        let Some(registered) = self.ranges().remove(&address) else {
            return Ok(false);
        };
        let segments = registered.segments.iter();
        let pending: Vec<_> = segments
            .map(|(_, segment)| self.engine.unregister(*segment))
            .collect();
        let unregistered = wait(py, async move {
            for pending in pending {
                pending.await?;
            }
            Ok(())
        });
        let ended = registered.loans.ended(py);
        unregistered?.map_err(|error: HandleError| of_engine(&error))?;
        ended.map(|()| true)
    }

    /// Where a range of registered memory lies: each segment of which it has something.
    pub(super) fn find(&self, address: usize, len_bytes: u64) -> PyResult<Vec<Place>> {
        let ranges = self.ranges();
        let before = ranges.range(..=address).next_back();
        let places = before.and_then(|(start, registered)| {
            let begin = address - start;
            let end = begin.checked_add(usize::try_from(len_bytes).ok()?)?;
            (end <= registered.len).then(|| registered.places(begin, end))
        });
        places.ok_or_else(|| Invalid::new_err(format!("{address:#x} is not registered")))
    }

    /// The engine has ended: nothing is registered any more.
    pub(super) fn ended(&self) {
        self.ranges().clear();
    }
}

/// Peers reach it by its addresses, and may read and write it.
const fn options() -> RegisterOptions {
    RegisterOptions {
        name: None,
        by_address: true,
        access: Access::ReadWrite,
        same_host: true,
        by_capability: false,
    }
}
