//! Parts of tensors, taken out of chunks as they come.

use std::cell::RefCell;

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
    /// Memory of whole chunks that were taken and are not kept, for the next ones: as much as was under way at a time.
    rooms: RefCell<Vec<Exposed>>,
}

impl Slicing {
    pub(super) fn new(plan: Plan, targets: Vec<Exposed>) -> Self {
        Self {
            plan,
            targets,
            rooms: RefCell::default(),
        }
    }

    /// Memory that a chunk of the usual length was in before.
    pub(super) fn used_room(&self, len: usize) -> Option<Exposed> {
        let mut rooms = self.rooms.borrow_mut();
        let is_fit = rooms.last().is_some_and(|room| room.len() == len);
        is_fit.then(|| rooms.pop()).flatten()
    }

    /// A chunk is through, and its memory is for the next.
    pub(super) fn reuse(&self, room: Exposed) {
        self.rooms.borrow_mut().push(room);
    }

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
