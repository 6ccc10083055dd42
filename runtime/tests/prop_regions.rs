//! Regions against a model: whoever holds a handle sees its own bytes, and memory comes back exactly
//! when the last handle drops.
#![forbid(unsafe_code)]

use lunette_runtime::arena::{Arena, ArenaOptions, CHUNK_BYTES_MIN, Region};
use lunette_runtime_core::carve::GRANULE_BYTES;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Allocates, fills with a value of its own, freezes.
    Alloc { len: usize },
    /// Clones a handle.
    Clone { which: usize },
    /// Slices a handle; fractions of its length in 1/256.
    Slice { which: usize, from: u8, len: u8 },
    /// Drops a handle.
    Drop { which: usize },
    /// Takes a handle back for writing if it is the last, and fills it anew.
    Rewrite { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..1000_usize;
    prop_oneof![
        3 => (1..300_000_usize).prop_map(|len| Step::Alloc { len }),
        1 => which.clone().prop_map(|which| Step::Clone { which }),
        2 => (which.clone(), any::<u8>(), any::<u8>())
            .prop_map(|(which, from, len)| Step::Slice { which, from, len }),
        3 => which.clone().prop_map(|which| Step::Drop { which }),
        1 => which.prop_map(|which| Step::Rewrite { which }),
    ]
}

/// A handle, the allocation that it pins, and the byte that fills it.
struct Held {
    region: Region,
    allocation: usize,
    fill: u8,
}

/// Handles of each allocation, and what it takes from the arena.
struct Allocation {
    handles: usize,
    bytes: usize,
}

struct Model {
    arena: Arena,
    held: Vec<Held>,
    allocations: Vec<Allocation>,
    fill: u8,
}

impl Model {
    fn apply(&mut self, step: &Step) {
        self.fill = self.fill.wrapping_add(1);
        match *step {
            Step::Alloc { len } => self.alloc(len),
            Step::Clone { which } => {
                if let Some(index) = self.index(which) {
                    let region = self.held[index].region.clone();
                    self.hold(region, index);
                }
            }
            Step::Slice { which, from, len } => {
                if let Some(index) = self.index(which) {
                    let whole = &self.held[index].region;
                    let start = whole.len() * usize::from(from) / 256;
                    let len = (whole.len() - start) * usize::from(len) / 256;
                    let region = whole.slice(start, len);
                    self.hold(region, index);
                }
            }
            Step::Drop { which } => {
                if let Some(index) = self.index(which) {
                    let held = self.held.swap_remove(index);
                    self.allocations[held.allocation].handles -= 1;
                }
            }
            Step::Rewrite { which } => {
                if let Some(index) = self.index(which) {
                    self.rewrite(index);
                }
            }
        }
    }

    fn alloc(&mut self, len: usize) {
        let bytes = len.next_multiple_of(GRANULE_BYTES as usize);
        match self.arena.alloc(len) {
            Ok(mut region) => {
                region.as_mut_slice().fill(self.fill);
                let allocation = self.allocations.len();
                self.allocations.push(Allocation { handles: 1, bytes });
                self.held.push(Held {
                    region: region.freeze(),
                    allocation,
                    fill: self.fill,
                });
            }
            Err(error) => {
                assert!(error.is_backpressure(), "{error}");
                let left = 2 * CHUNK_BYTES_MIN - self.used_bytes();
                assert!(
                    left < 2 * CHUNK_BYTES_MIN,
                    "an empty arena has room for {len} bytes"
                );
            }
        }
    }

    fn hold(&mut self, region: Region, like: usize) {
        let Held {
            allocation, fill, ..
        } = self.held[like];
        self.allocations[allocation].handles += 1;
        self.held.push(Held {
            region,
            allocation,
            fill,
        });
    }

    fn rewrite(&mut self, index: usize) {
        let held = self.held.swap_remove(index);
        let last = self.allocations[held.allocation].handles == 1;
        let (region, fill) = match held.region.try_unfreeze() {
            Ok(mut region) => {
                assert!(last, "only the last handle may write");
                region.as_mut_slice().fill(self.fill);
                (region.freeze(), self.fill)
            }
            Err(region) => {
                assert!(!last, "the last handle may write");
                (region, held.fill)
            }
        };
        self.held.push(Held {
            region,
            fill,
            ..held
        });
    }

    fn index(&self, which: usize) -> Option<usize> {
        (!self.held.is_empty()).then(|| which % self.held.len())
    }

    fn used_bytes(&self) -> usize {
        let live = self
            .allocations
            .iter()
            .filter(|allocation| allocation.handles > 0);
        live.map(|allocation| allocation.bytes).sum()
    }

    fn check(&self) {
        assert_eq!(self.arena.used_bytes(), self.used_bytes());
        for held in &self.held {
            assert!(held.region.as_slice().iter().all(|&byte| byte == held.fill));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn handles_keep_their_bytes_and_memory_comes_back(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let arena = Arena::new(ArenaOptions {
            bytes_max: 2 * CHUNK_BYTES_MIN,
            chunk_bytes: CHUNK_BYTES_MIN,
            ..ArenaOptions::default()
        });
        let mut model = Model { arena, held: Vec::new(), allocations: Vec::new(), fill: 0 };
        for step in &steps {
            model.apply(step);
            model.check();
        }
        model.held.clear();
        prop_assert_eq!(model.arena.used_bytes(), 0);
    }
}
