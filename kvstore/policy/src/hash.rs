//! A hasher for keys that are hashes already: no seed, so the same everywhere.

use core::hash::{BuildHasherDefault, Hasher};

use lunette_runtime_core::random::mix;

/// Mixes, since keys of traces may be small numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct MixHasher(u64);

impl Hasher for MixHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = mix(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Makes one for each key.
pub type MixBuild = BuildHasherDefault<MixHasher>;
