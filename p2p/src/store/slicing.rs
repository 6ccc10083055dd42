//! Parts of tensors, taken out of chunks as they come.

use lunette_p2p_proto::Shape;
use lunette_p2p_proto::layout::Plan;
use lunette_runtime::arena::{Exposed, HugePages};

use crate::error::HoldFault;

/// What is taken of an object, and where it goes.
#[derive(Debug)]
pub(super) struct Slicing {
    pub(super) plan: Plan,
    /// The program's buffers.
    pub(super) targets: Vec<Exposed>,
}

impl Slicing {
    /// Puts what is wanted of a chunk where it belongs.
    pub(super) fn take(&self, chunk: u32, bytes: &Exposed) {
        self.plan.copies(chunk, |copied| {
            let target = &self.targets[copied.buffer as usize];
            let at = usize::try_from(copied.offset_bytes).expect("it is in memory");
            let (from, len) = (copied.chunk_offset as usize, copied.len_bytes as usize);
            target.copy_from(at, &bytes.slice(from, len));
        });
    }
}

/// Memory for the chunks of an object, each in its place. What no chunk comes into is not taken from the system.
pub(super) fn room_for_chunks(shape: &Shape) -> Result<Vec<Exposed>, HoldFault> {
    let no_memory = |why: &dyn std::fmt::Display| HoldFault::NoMemory(why.to_string());
    let buffers = shape.buffers().iter().map(|&len_bytes| {
        let len = usize::try_from(len_bytes).map_err(|error| no_memory(&error))?;
        // There is no mapping of nothing.
        let mapped = Exposed::map(len.max(1), HugePages::Never, &mut Vec::new());
        let mapped = mapped.map_err(|error| no_memory(&error))?;
        Ok(mapped.slice(0, len))
    });
    buffers.collect()
}
