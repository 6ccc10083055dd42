//! The index of a shard: from fingerprint to slot. It is never iterated.

use core::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;

use crate::key::Fingerprint;

/// Passes the low half of a fingerprint through: it is a hash already.
#[derive(Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (low, _) = bytes
            .split_first_chunk()
            .expect("only fingerprints are hashed");
        self.0 = u64::from_le_bytes(*low);
    }

    fn write_u128(&mut self, value: u128) {
        self.write(&value.to_le_bytes());
    }
}

/// The slot of each key of one shard.
#[derive(Debug)]
pub(super) struct Index(HashMap<u128, u32, BuildHasherDefault<Identity>>);

impl Index {
    pub(super) fn with_capacity(entries: usize) -> Self {
        Self(HashMap::with_capacity_and_hasher(
            entries,
            BuildHasherDefault::default(),
        ))
    }

    pub(super) fn get(&self, fingerprint: Fingerprint) -> Option<u32> {
        self.0.get(&fingerprint.0).copied()
    }

    pub(super) fn insert(&mut self, fingerprint: Fingerprint, slot_index: u32) {
        let before = self.0.insert(fingerprint.0, slot_index);
        assert!(before.is_none(), "a key has one entry");
    }

    pub(super) fn remove(&mut self, fingerprint: Fingerprint) {
        let before = self.0.remove(&fingerprint.0);
        assert!(before.is_some(), "an entry in sight is in the index");
    }
}
