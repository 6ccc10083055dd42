//! Parts of tensors, taken out of chunks as they come.

use std::cell::RefCell;

use lunette_p2p_proto::layout::{Copied, Plan};
use lunette_p2p_proto::{ChunkSet, Shape};
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::time;

use super::backing::Backing;
use super::local::chunk_of;
use crate::error::HoldFault;

/// Where what is taken goes.
#[derive(Debug)]
pub(super) enum Targets {
    /// The program's buffers, until it is let go of and nobody asks for them.
    Memory(RefCell<Vec<Exposed>>),
    Outside(Backing),
}

impl Targets {
    /// How long each is.
    pub(super) fn lens(&self) -> Vec<u64> {
        match self {
            Self::Memory(buffers) => {
                let buffers = buffers.borrow();
                buffers.iter().map(|buffer| buffer.len() as u64).collect()
            }
            Self::Outside(backing) => backing.lens(),
        }
    }

    /// What the program lent.
    pub(super) fn lent(&self) -> Vec<Exposed> {
        match self {
            Self::Memory(buffers) => buffers.borrow().clone(),
            Self::Outside(_) => Vec::new(),
        }
    }
}

/// What is taken of an object, and where it goes.
#[derive(Debug)]
pub(super) struct Slicing {
    pub(super) plan: Plan,
    targets: Targets,
    /// Memory of whole chunks that were taken and are not kept, for the next ones: as much as was under way at a time.
    rooms: RefCell<Vec<Exposed>>,
}

impl Slicing {
    pub(super) fn new(plan: Plan, targets: Targets) -> Self {
        Self {
            plan,
            targets,
            rooms: RefCell::default(),
        }
    }

    /// What the program lent.
    pub(super) fn lent(&self) -> Vec<Exposed> {
        self.targets.lent()
    }

    /// Where it goes to, if that is no memory of the host.
    pub(super) const fn backing(&self) -> Option<&Backing> {
        match &self.targets {
            Targets::Memory(_) => None,
            Targets::Outside(backing) => Some(backing),
        }
    }

    /// Nobody asks for the memory any more, and nothing comes.
    pub(super) fn forget_memory(&self) {
        if let Targets::Memory(buffers) = &self.targets {
            buffers.take();
        }
        self.rooms.take();
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

    /// Puts what is wanted of a chunk where it belongs. Whether it is there.
    pub(super) async fn take(&self, chunk: u32, bytes: &Exposed) -> bool {
        match &self.targets {
            Targets::Memory(targets) => {
                let targets = targets.borrow();
                self.plan.copies(chunk, |copied| {
                    let target = &targets[copied.buffer as usize];
                    let at = usize::try_from(copied.offset_bytes).expect("it is in memory");
                    target.copy_from(at, &part(bytes, &copied));
                });
                true
            }
            Targets::Outside(backing) => self.write(backing, chunk, bytes).await,
        }
    }

    /// Writes what is wanted of a chunk, what lies together in a file at once: rows of a part are short, and one behind the
    /// other there.
    async fn write(&self, backing: &Backing, chunk: u32, bytes: &Exposed) -> bool {
        let mut copies = Vec::new();
        self.plan.copies(chunk, |copied| copies.push(copied));
        copies.sort_unstable_by_key(|copied| (copied.buffer, copied.offset_bytes));
        let mut room = None;
        let is_next = |one: &Copied, two: &Copied| {
            let end = one.offset_bytes + u64::from(one.len_bytes);
            (one.buffer, end) == (two.buffer, two.offset_bytes)
        };
        for run in copies.chunk_by(is_next) {
            if let [copied] = run {
                let part = part(bytes, copied);
                if !backing
                    .write_at(copied.buffer, copied.offset_bytes, part)
                    .await
                {
                    return false;
                }
                continue;
            }
            let room = match &mut room {
                Some(room) => room,
                none => match backing.room(bytes.len()) {
                    Ok(room) => none.insert(room),
                    Err(error) => {
                        tracing::warn!(chunk, %error, "no memory to gather what is wanted");
                        return false;
                    }
                },
            };
            if !gather(backing, run, bytes, room).await {
                return false;
            }
        }
        if let Some(room) = room {
            backing.reuse(room);
        }
        true
    }
}

/// What is wanted of a chunk in one piece.
fn part(bytes: &Exposed, copied: &Copied) -> Exposed {
    bytes.slice(copied.chunk_offset as usize, copied.len_bytes as usize)
}

/// Puts pieces together that lie one behind the other in a file, and writes them. Whether they are there.
async fn gather(backing: &Backing, run: &[Copied], bytes: &Exposed, room: &Exposed) -> bool {
    let (mut len, mut at) = (0, run[0].offset_bytes);
    for copied in run {
        let piece = part(bytes, copied);
        if len + piece.len() > room.len() {
            if !backing
                .write_at(copied.buffer, at, room.slice(0, len))
                .await
            {
                return false;
            }
            (len, at) = (0, copied.offset_bytes);
        }
        room.copy_from(len, &piece);
        len += piece.len();
    }
    backing
        .write_at(run[0].buffer, at, room.slice(0, len))
        .await
}

impl Slicing {
    /// The chunks that lie in the program's buffers already, as far as that can be told: those of which every byte is wanted,
    /// and is right. They are put together in `chunks`, if those are kept. Others run between chunks.
    pub(super) async fn verified(
        &self,
        shape: &Shape,
        sums: &[u32],
        chunks: &[Exposed],
    ) -> Result<ChunkSet, HoldFault> {
        let mut held = ChunkSet::empty(shape.chunks());
        let mut scratch = None;
        for chunk in self.plan.chunks().iter() {
            let Some(copies) = self.plan.all_of(chunk) else {
                continue;
            };
            let room = if chunks.is_empty() {
                let scratch = match &mut scratch {
                    Some(scratch) => scratch,
                    none => none.insert(no_less(shape.chunk_bytes() as usize)?),
                };
                let place = shape.place(chunk).expect("a chunk of the object");
                scratch.slice(0, place.len_bytes as usize)
            } else {
                chunk_of(shape, chunks, chunk)
            };
            if self.has_all(&copies, &room).await && room.crc32c() == sums[chunk as usize] {
                held.insert(chunk);
            }
            time::yield_now().await;
        }
        Ok(held)
    }

    /// Puts a chunk together from what was taken of it. Whether it is all there, and what was taken twice is the same.
    async fn has_all(&self, copies: &[Copied], room: &Exposed) -> bool {
        for copied in copies {
            if !self.bring(copied, part(room, copied)).await {
                return false;
            }
        }
        let taken: usize = copies.iter().map(|copied| copied.len_bytes as usize).sum();
        if taken == room.len() {
            return true;
        }
        let Ok(other) = no_less(room.len()) else {
            return false;
        };
        for copied in copies {
            let other = part(&other, copied);
            if !self.bring(copied, other.clone()).await
                || other.crc32c() != part(room, copied).crc32c()
            {
                return false;
            }
        }
        true
    }

    /// Copies what lies where a piece goes over `to`. Whether there is such.
    async fn bring(&self, copied: &Copied, to: Exposed) -> bool {
        match &self.targets {
            Targets::Memory(targets) => {
                let at = usize::try_from(copied.offset_bytes).expect("it is in memory");
                let target = targets.borrow()[copied.buffer as usize].clone();
                to.copy_from(0, &target.slice(at, to.len()));
                true
            }
            Targets::Outside(backing) => {
                let reading = backing.read_at(copied.buffer, copied.offset_bytes, to);
                reading.await.is_ok()
            }
        }
    }
}

/// A mapping of so many bytes, or of one: there is none of nothing.
fn no_less(len: usize) -> Result<Exposed, HoldFault> {
    let mapped = Exposed::map(len.max(1), HugePages::Never, &mut Vec::new());
    let mapped = mapped.map_err(|error| HoldFault::NoMemory(error.to_string()))?;
    Ok(mapped.slice(0, len))
}

/// Memory for the chunks of an object, each in its place. What no chunk comes into is not taken from the system.
pub(super) fn room_for_chunks(shape: &Shape) -> Result<Vec<Exposed>, HoldFault> {
    let buffers = shape.buffers().iter().map(|&len_bytes| {
        let len = usize::try_from(len_bytes);
        no_less(len.map_err(|error| HoldFault::NoMemory(error.to_string()))?)
    });
    buffers.collect()
}
