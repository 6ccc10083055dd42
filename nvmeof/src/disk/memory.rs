//! A disk in the core's arena.
//!
//! It is made of granules. A read lends slices of them, which are sent from where they lie; a write
//! of a whole granule takes the place of the old one; a smaller write goes into the granule, or,
//! while a read still has it, into a copy. So bytes that a read has been given never change, and
//! the disk never takes more than its length, but for granules that reads still have.

use std::cell::RefCell;

use lunette_nvmeof_proto::completion::Status;
use lunette_runtime::arena;
use lunette_runtime::arena::{AllocError, Region, RegionMut};

use super::Found;

/// Length of a granule, in bytes.
pub const GRANULE_BYTES: usize = 128 * 1024;

/// A disk in memory. What was never written reads as zeroes and takes no memory.
#[derive(Debug)]
pub struct MemoryDisk {
    granules: RefCell<Vec<Option<Region>>>,
    zeroes: Region,
    len_bytes: u64,
}

/// A part of one granule.
#[derive(Clone, Copy, Debug)]
struct Piece {
    index: usize,
    start: usize,
    len: usize,
}

impl MemoryDisk {
    /// A disk of `len_bytes`, rounded up to whole granules. Its memory comes from the current
    /// core's arena as it is written.
    ///
    /// # Errors
    /// [`AllocError`]: not even a granule of zeroes.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn new(len_bytes: u64) -> Result<Self, AllocError> {
        let mut zeroes = arena().alloc(GRANULE_BYTES)?;
        zeroes.as_mut_slice().fill(0);
        let count = len_bytes.div_ceil(GRANULE_BYTES as u64);
        let granules = vec![None; usize::try_from(count).unwrap_or(usize::MAX)];
        Ok(Self {
            granules: RefCell::new(granules),
            zeroes: zeroes.freeze(),
            len_bytes: count * GRANULE_BYTES as u64,
        })
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> Found {
        let granules = self.granules.borrow();
        let mut slices = self.pieces(offset, len as u64).map(|piece| {
            let granule = granules[piece.index].as_ref().unwrap_or(&self.zeroes);
            granule.slice(piece.start, piece.len)
        });
        match slices.next() {
            Some(only) if only.len() == len => Found::One(only),
            first => Found::Several(first.into_iter().chain(slices).collect()),
        }
    }

    pub(super) fn write(&self, offset: u64, bytes: RegionMut) -> Result<(), Status> {
        let len = bytes.len();
        let first = self.pieces(offset, len as u64).next();
        if let Some(Piece {
            index,
            start: 0,
            len: GRANULE_BYTES,
        }) = first
            && len == GRANULE_BYTES
        {
            self.granules.borrow_mut()[index] = Some(bytes.freeze());
            return Ok(());
        }
        self.write_bytes(offset, bytes.as_slice())
    }

    /// As [`MemoryDisk::write`], with bytes that lie elsewhere.
    pub(super) fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<(), Status> {
        let mut rest = bytes;
        for piece in self.pieces(offset, bytes.len() as u64) {
            let (front, behind) = rest.split_at(piece.len);
            self.change(piece, |target| target.copy_from_slice(front))?;
            rest = behind;
        }
        Ok(())
    }

    pub(super) fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), Status> {
        for piece in self.pieces(offset, len) {
            if piece.len == GRANULE_BYTES {
                self.granules.borrow_mut()[piece.index] = None;
            } else if self.granules.borrow()[piece.index].is_some() {
                self.change(piece, |target| target.fill(0))?;
            }
        }
        Ok(())
    }

    pub(super) fn deallocate(&self, offset: u64, len: u64) {
        for piece in self.pieces(offset, len) {
            if piece.len == GRANULE_BYTES {
                self.granules.borrow_mut()[piece.index] = None;
            }
        }
    }

    /// Changes a part of a granule that no read has.
    fn change(&self, piece: Piece, change: impl FnOnce(&mut [u8])) -> Result<(), Status> {
        let known = self.granules.borrow_mut()[piece.index].take();
        let writable = match known.map(Region::try_unfreeze) {
            Some(Ok(granule)) => Ok(granule),
            Some(Err(lent)) => copied(&lent).ok_or(Some(lent)),
            None => copied(&self.zeroes).ok_or(None),
        };
        match writable {
            Ok(mut granule) => {
                change(&mut granule.as_mut_slice()[piece.start..piece.start + piece.len]);
                self.granules.borrow_mut()[piece.index] = Some(granule.freeze());
                Ok(())
            }
            Err(known) => {
                self.granules.borrow_mut()[piece.index] = known;
                Err(Status::CAPACITY_EXCEEDED)
            }
        }
    }

    /// The parts of granules that a range is made of.
    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + use<> {
        let end = offset + len;
        assert!(end <= self.len_bytes, "requests are checked before");
        let mut at = offset;
        std::iter::from_fn(move || {
            let granule = GRANULE_BYTES as u64;
            let start = at % granule;
            let index = at / granule;
            let len = (granule - start).min(end - at);
            at += len;
            let fits = "a granule's index and length fit";
            (len > 0).then(|| Piece {
                index: usize::try_from(index).expect(fits),
                start: usize::try_from(start).expect(fits),
                len: usize::try_from(len).expect(fits),
            })
        })
    }
}

fn copied(granule: &Region) -> Option<RegionMut> {
    let mut copy = arena().alloc(GRANULE_BYTES).ok()?;
    copy.as_mut_slice().copy_from_slice(granule.as_slice());
    Some(copy)
}

#[cfg(test)]
mod tests {
    use lunette_runtime::{CoreOptions, block_on};
    use lunette_runtime_core::random::SplitMix64;

    use super::*;

    fn region(bytes: &[u8]) -> RegionMut {
        let mut region = arena().alloc(bytes.len()).expect("room");
        region.as_mut_slice().copy_from_slice(bytes);
        region
    }

    fn bytes_of(found: &Found) -> Vec<u8> {
        let regions = found.regions();
        regions
            .iter()
            .flat_map(|region| region.as_slice().to_vec())
            .collect()
    }

    #[test]
    fn it_holds_what_a_plain_array_would() {
        let ran = block_on(None, CoreOptions::default(), || async {
            let disk = MemoryDisk::new(3 * GRANULE_BYTES as u64 - 1).expect("room");
            assert_eq!(disk.len_bytes(), 3 * GRANULE_BYTES as u64);
            let mut model = vec![0; 3 * GRANULE_BYTES];
            let mut random = SplitMix64::new(1);
            let mut lent = Vec::new();
            for round in 0..400_u32 {
                let mut draw = |below: usize| {
                    let below = u32::try_from(below).expect("small");
                    random.below(below) as usize
                };
                let (start, len) = match draw(4) {
                    0 => (draw(3) * GRANULE_BYTES, GRANULE_BYTES),
                    1 => (draw(2) * GRANULE_BYTES + 512, GRANULE_BYTES),
                    _ => (draw(300) * 1024, 512 * (1 + draw(100))),
                };
                let range = start..start + len;
                let offset = start as u64;
                match draw(5) {
                    0 => {
                        disk.write_zeroes(offset, len as u64).expect("room");
                        model[range].fill(0);
                    }
                    1 | 2 => {
                        let fill = u8::try_from(round % 251).expect("a byte");
                        model[range.clone()].fill(fill);
                        disk.write(offset, region(&model[range])).expect("room");
                    }
                    _ => {
                        let read = disk.read(offset, len);
                        assert!(bytes_of(&read) == model[range.clone()]);
                        lent.push((read, model[range].to_vec()));
                    }
                }
                if lent.len() > 20 {
                    let (read, then) = lent.swap_remove(draw(20));
                    assert!(bytes_of(&read) == then, "what was read does not change");
                }
            }
        });
        ran.expect("a core");
    }

    #[test]
    fn memory_is_given_back() {
        let ran = block_on(None, CoreOptions::default(), || async {
            let disk = MemoryDisk::new(2 * GRANULE_BYTES as u64).expect("room");
            let empty = arena().used_bytes();
            disk.write(0, region(&[1; 512])).expect("room");
            let used = arena().used_bytes() - empty;
            assert!(used >= GRANULE_BYTES);
            disk.deallocate(0, 512);
            assert_eq!(
                arena().used_bytes() - empty,
                used,
                "a part cannot be given back"
            );
            disk.deallocate(0, GRANULE_BYTES as u64);
            assert_eq!(arena().used_bytes(), empty);
        });
        ran.expect("a core");
    }
}
