//! The carver against an ordered map of the extents that are live.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::collections::BTreeMap;

use lunette_runtime_core::carve::{Carved, Carver, GRANULE_BYTES, STRETCH_BLOCKS_MAX, StaleSlot};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Alloc {
        len_bytes: u32,
    },
    /// What `largest_free_bytes` promises.
    AllocLargest,
    /// Frees the n-th live extent, counted modulo their number.
    Free {
        nth: usize,
    },
    /// Frees the n-th extent ever issued: mostly stale.
    FreeAny {
        nth: usize,
    },
    /// Clears a stretch of what may move: all but every n-th slot.
    Clear {
        len_bytes: u32,
        nth_stays: u32,
    },
}

fn len_bytes() -> impl Strategy<Value = u32> {
    (0_u32..22, any::<u32>()).prop_map(|(bits, raw)| raw & ((1 << bits) - 1))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => len_bytes().prop_map(|len_bytes| Op::Alloc { len_bytes }),
        1 => Just(Op::AllocLargest),
        5 => any::<usize>().prop_map(|nth| Op::Free { nth }),
        1 => any::<usize>().prop_map(|nth| Op::FreeAny { nth }),
        1 => (len_bytes(), 2..20_u32).prop_map(|(len_bytes, nth_stays)| Op::Clear {
            len_bytes,
            nth_stays,
        }),
    ]
}

struct Model {
    len_bytes: u32,
    live: BTreeMap<u32, Carved>,
    issued: Vec<Carved>,
}

impl Model {
    fn alloc(&mut self, carver: &mut Carver, len_bytes: u32) {
        let promised = carver.largest_free_bytes();
        let Some(extent) = carver.alloc(len_bytes) else {
            assert!(len_bytes.max(1) > promised, "a promised length was refused");
            assert!(
                self.largest_gap() < smallest_certain(len_bytes),
                "a larger class was missed"
            );
            return;
        };
        assert_eq!(
            extent.len_bytes,
            len_bytes.max(1).next_multiple_of(GRANULE_BYTES)
        );
        assert!(extent.offset_bytes.is_multiple_of(GRANULE_BYTES));
        assert!(
            extent.offset_bytes + extent.len_bytes <= self.len_bytes,
            "out of bounds"
        );
        let end = extent.offset_bytes + extent.len_bytes;
        let below = self.live.range(..end).next_back();
        assert!(
            below.is_none_or(
                |(_, other)| other.offset_bytes + other.len_bytes <= extent.offset_bytes
            ),
            "extents overlap"
        );
        assert!(
            self.issued
                .iter()
                .all(|old| (old.slot_index, old.generation)
                    != (extent.slot_index, extent.generation)),
            "a name was issued twice"
        );
        self.live.insert(extent.offset_bytes, extent);
        self.issued.push(extent);
    }

    fn free(&mut self, carver: &mut Carver, extent: Carved) {
        let Carved {
            slot_index,
            generation,
            ..
        } = extent;
        let known = self.live.get(&extent.offset_bytes) == Some(&extent);
        assert_eq!(carver.is_live(slot_index, generation), known);
        assert_eq!(carver.get(slot_index, generation), known.then_some(extent));
        let expected = if known {
            Ok(())
        } else {
            Err(StaleSlot {
                slot_index,
                generation,
            })
        };
        assert_eq!(carver.free(slot_index, generation), expected);
        if known {
            self.live.remove(&extent.offset_bytes);
        }
    }

    /// What moved is not allocated anew: it is as if it had gone to another chunk.
    fn clear(&mut self, carver: &mut Carver, len_bytes: u32, nth_stays: u32) {
        let is_movable = |extent: &Carved| !extent.slot_index.is_multiple_of(nth_stays);
        let Some(stretch) = carver.stretch(len_bytes, is_movable) else {
            return;
        };
        for used in &stretch.used {
            assert!(is_movable(used) && self.live.get(&used.offset_bytes) == Some(used));
        }
        for hole in &stretch.holes {
            assert!(self.live.insert(hole.offset_bytes, *hole).is_none());
            self.issued.push(*hole);
        }
        let used_bytes: u32 = stretch.used.iter().map(|used| used.len_bytes).sum();
        let mut all = [stretch.used, stretch.holes].concat();
        all.sort_by_key(|extent| extent.offset_bytes);
        let joins =
            |pair: &[Carved]| pair[0].offset_bytes + pair[0].len_bytes == pair[1].offset_bytes;
        assert!(all.windows(2).all(joins), "they lie side by side");
        let total_bytes: u32 = all.iter().map(|extent| extent.len_bytes).sum();
        assert!(used_bytes < len_bytes.max(1).next_multiple_of(GRANULE_BYTES));
        assert!(total_bytes >= len_bytes && all.len() <= STRETCH_BLOCKS_MAX);
        self.check(carver);
        for extent in all {
            self.free(carver, extent);
        }
        let extents = self.live.len();
        self.alloc(carver, len_bytes);
        assert_eq!(self.live.len(), extents + 1, "there is room now");
    }

    fn free_nth(&mut self, carver: &mut Carver, nth: usize) {
        if !self.live.is_empty() {
            let extent = *self
                .live
                .values()
                .nth(nth % self.live.len())
                .expect("in range");
            self.free(carver, extent);
        }
    }

    fn largest_gap(&self) -> u32 {
        let mut end = 0;
        let mut largest = 0;
        for extent in self.live.values() {
            largest = largest.max(extent.offset_bytes - end);
            end = extent.offset_bytes + extent.len_bytes;
        }
        largest.max(self.len_bytes - end)
    }

    fn check(&self, carver: &Carver) {
        let used: u32 = self.live.values().map(|extent| extent.len_bytes).sum();
        assert_eq!(carver.used_bytes(), used);
        assert_eq!(carver.free_bytes(), self.len_bytes - used);
        let (promised, largest) = (carver.largest_free_bytes(), self.largest_gap());
        assert!(promised <= largest, "more is promised than there is");
        assert!(
            promised >= largest - largest / 32,
            "the promise is too far below the largest"
        );
    }
}

/// A free block of this length lies in a class above that of `len_bytes`, so it must be found.
fn smallest_certain(len_bytes: u32) -> u32 {
    let granules = len_bytes.max(1).div_ceil(GRANULE_BYTES);
    let width = 1 << granules.ilog2().saturating_sub(5);
    (granules / width + 1) * width * GRANULE_BYTES
}

proptest! {
    #[test]
    fn the_carver_agrees_with_the_map(
        len_granules in 1_u32..5000,
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let len_bytes = len_granules * GRANULE_BYTES;
        let mut carver = Carver::new(len_bytes);
        let mut model = Model { len_bytes, live: BTreeMap::new(), issued: Vec::new() };
        for op in ops {
            match op {
                Op::Alloc { len_bytes } => model.alloc(&mut carver, len_bytes),
                Op::AllocLargest => match carver.largest_free_bytes() {
                    0 => prop_assert_eq!(carver.alloc(1), None),
                    promised => model.alloc(&mut carver, promised),
                },
                Op::Free { nth } => model.free_nth(&mut carver, nth),
                Op::Clear { len_bytes, nth_stays } => {
                    model.clear(&mut carver, len_bytes, nth_stays);
                }
                Op::FreeAny { nth } => {
                    if !model.issued.is_empty() {
                        let extent = model.issued[nth % model.issued.len()];
                        model.free(&mut carver, extent);
                    }
                }
            }
            model.check(&carver);
        }
        while !model.live.is_empty() {
            model.free_nth(&mut carver, 0);
        }
        let whole = carver.alloc(len_bytes).expect("all is free, in one piece");
        prop_assert_eq!((whole.offset_bytes, whole.len_bytes), (0, len_bytes));
    }
}
