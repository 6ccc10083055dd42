//! Memory that writes are gathered in: direct writes ask for whole blocks, and records begin anywhere.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use lunette_kvstore_log::effect::{Memory, MemoryId, OpId, Write, WritePiece};
use lunette_runtime::arena::{AllocError, Arena, Region, RegionMut};
use slab::Slab;

/// Bytes of a write that go to the drive at a time.
pub(super) const STAGE_BYTES: usize = 1 << 20;

/// Memory that writes take bytes from.
#[derive(Default)]
pub(super) struct Sources {
    /// Of appends, by their [`MemoryId`].
    pub(super) lent: Slab<Region>,
    /// What the log has read and will write elsewhere.
    pub(super) kept: BTreeMap<OpId, Region>,
}

impl Sources {
    fn bytes(&self, memory: Memory) -> &Region {
        match memory {
            Memory::Owner(MemoryId(memory)) => {
                let index = usize::try_from(memory).expect("it was an index");
                self.lent
                    .get(index)
                    .expect("lent until the append has ended")
            }
            Memory::Read(op) => self.kept.get(&op).expect("kept until it is released"),
        }
    }
}

/// So many stages, each for one write at a time, and the writes that wait for one.
pub(super) struct Staging {
    free: RefCell<Vec<RegionMut>>,
    waiting: RefCell<VecDeque<Write>>,
}

impl Staging {
    /// Of `count` stages, which are there from the beginning: writes wait for nothing but other writes.
    pub(super) fn new(arena: &Arena, count: usize) -> Result<Self, AllocError> {
        let stages: Result<Vec<_>, _> = (0..count).map(|_| arena.alloc(STAGE_BYTES)).collect();
        Ok(Self {
            free: RefCell::new(stages?),
            waiting: RefCell::default(),
        })
    }

    /// A stage for the write, or `None`: then it waits for the [next](Self::next) that is over.
    pub(super) fn begin(&self, write: Write) -> Option<(RegionMut, Write)> {
        let stage = self.free.borrow_mut().pop();
        match stage {
            Some(stage) => Some((stage, write)),
            None => {
                self.waiting.borrow_mut().push_back(write);
                None
            }
        }
    }

    /// The next write for a stage whose write is over; without one it is free.
    pub(super) fn next(&self, stage: RegionMut) -> Option<(RegionMut, Write)> {
        let next = self.waiting.borrow_mut().pop_front();
        match next {
            Some(write) => Some((stage, write)),
            None => {
                self.free.borrow_mut().push(stage);
                None
            }
        }
    }
}

/// How far a write has been gathered.
#[derive(Clone, Copy, Default)]
pub(super) struct Gathered {
    piece: usize,
    /// Of that piece.
    taken_bytes: usize,
}

impl Gathered {
    /// Copies what comes next over the stage; how much that is. Nothing when all is gathered.
    pub(super) fn fill(&mut self, write: &Write, sources: &Sources, stage: &mut [u8]) -> usize {
        let mut filled = 0;
        while let Some(piece) = write.pieces.get(self.piece) {
            let bytes = match piece {
                WritePiece::Own(range) => &write.own[range.clone()],
                &WritePiece::Payload {
                    memory,
                    offset_bytes,
                    len_bytes,
                } => {
                    let all = sources.bytes(memory).as_slice();
                    &all[offset_bytes as usize..][..len_bytes as usize]
                }
            };
            let left = &bytes[self.taken_bytes..];
            let count = left.len().min(stage.len() - filled);
            stage[filled..filled + count].copy_from_slice(&left[..count]);
            filled += count;
            if count < left.len() {
                self.taken_bytes += count;
                break;
            }
            self.piece += 1;
            self.taken_bytes = 0;
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_length_are_gathered_in_their_order() {
        let arena = Arena::new(lunette_runtime::arena::ArenaOptions::default());
        let mut payload = arena.alloc(700).unwrap();
        for (byte, value) in payload.as_mut_slice().iter_mut().zip((0..251).cycle()) {
            *byte = value;
        }
        let payload = payload.freeze();
        let mut sources = Sources::default();
        let lent = sources.lent.insert(payload.clone());
        sources.kept.insert(OpId(9), payload.clone());
        let piece = |memory, offset_bytes, len_bytes| WritePiece::Payload {
            memory,
            offset_bytes,
            len_bytes,
        };
        let write = Write {
            op: OpId(1),
            offset_bytes: 0,
            own: (0..100).collect(),
            pieces: vec![
                WritePiece::Own(0..10),
                piece(Memory::Owner(MemoryId(lent as u64)), 0, 700),
                WritePiece::Own(10..10),
                piece(Memory::Read(OpId(9)), 50, 3),
                WritePiece::Own(90..100),
            ],
        };
        let all = payload.as_slice();
        let expected = [&write.own[..10], all, &all[50..53], &write.own[90..]].concat();
        for stage_len in [1, 7, 64, 512, 4096] {
            let (mut gathered, mut found) = (Gathered::default(), Vec::new());
            let mut stage = vec![0; stage_len];
            loop {
                let filled = gathered.fill(&write, &sources, &mut stage);
                found.extend_from_slice(&stage[..filled]);
                if filled == 0 {
                    break;
                }
            }
            assert_eq!(found, expected, "in stages of {stage_len}");
        }
    }
}
