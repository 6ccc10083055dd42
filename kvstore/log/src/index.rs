//! Where each record is: one entry of 64 bytes.

use core::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use lunette_runtime_core::random::mix;

use crate::format::batch::{
    ALIGN_BYTES, PlacedObject, footprint_bytes, key_room_bytes, room_bytes_max,
};
use crate::format::{BLOCK_BYTES, Geometry};
use crate::record::{Fingerprint, Record, Version};

/// Bytes of an entry, key included. A table has a byte more for each, and is at most 7/8 full.
pub const INDEX_ENTRY_BYTES: usize = size_of::<(Fingerprint, Located)>();

const _: () = assert!(INDEX_ENTRY_BYTES == 64);

/// Where in the log a payload begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location {
    /// Its segment.
    pub(crate) segment_index: u32,
    /// Where in its segment, in units of [`ALIGN_BYTES`].
    units: u32,
}

impl Location {
    /// Of an object of the batch that begins at this block of this segment.
    pub(crate) fn of(segment_index: u32, at_block: u32, object: &PlacedObject) -> Self {
        let units =
            at_block * (BLOCK_BYTES / ALIGN_BYTES) + object.payload_offset_bytes / ALIGN_BYTES;
        Self {
            segment_index,
            units,
        }
    }

    /// The block of its segment in which the payload begins.
    pub(crate) const fn block(self) -> u32 {
        self.units / (BLOCK_BYTES / ALIGN_BYTES)
    }
}

/// A record that is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    version: Version,
    generation: u64,
    pub(crate) location: Location,
    len_bytes: u32,
    crc32c: u32,
    notes: u32,
    key_len: u16,
    /// Whether earlier records of the key may be on the drive.
    pub(crate) has_history: bool,
}

/// Blocks of the drive that have a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u32,
    pub(crate) key_at: u32,
    pub(crate) payload_at: u32,
}

impl Located {
    pub(crate) fn new(object: &PlacedObject, location: Location, has_history: bool) -> Self {
        let record = &object.record;
        Self {
            version: record.version,
            generation: record.generation,
            location,
            len_bytes: record.len_bytes,
            crc32c: record.crc32c,
            notes: record.notes,
            key_len: object.key_len,
            has_history,
        }
    }

    pub(crate) const fn version(&self) -> Version {
        self.version
    }

    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) const fn key_len(&self) -> u16 {
        self.key_len
    }

    pub(crate) const fn record(&self, fingerprint: Fingerprint) -> Record {
        Record {
            fingerprint,
            version: self.version,
            generation: self.generation,
            notes: self.notes,
            len_bytes: self.len_bytes,
            crc32c: self.crc32c,
        }
    }

    pub(crate) fn footprint_bytes(&self) -> u64 {
        footprint_bytes(self.key_len, self.len_bytes)
    }

    /// The most that it adds to a batch.
    pub(crate) fn room_bytes_max(&self) -> u64 {
        room_bytes_max(self.key_len, self.len_bytes)
    }

    /// The whole blocks in which its key and payload are.
    pub(crate) fn window(&self, geometry: Geometry) -> Window {
        let payload = u64::from(self.location.units) * u64::from(ALIGN_BYTES);
        let begin = payload - u64::from(key_room_bytes(self.key_len));
        let block_bytes = u64::from(BLOCK_BYTES);
        let first = begin / block_bytes * block_bytes;
        let end = (payload + u64::from(self.len_bytes)).next_multiple_of(block_bytes);
        let narrow = |bytes: u64| u32::try_from(bytes).expect("a segment is at most 1 GiB");
        Window {
            offset_bytes: geometry.offset_bytes(self.location.segment_index, 0) + first,
            len_bytes: narrow(end - first),
            key_at: narrow(begin - first),
            payload_at: narrow(payload - first),
        }
    }
}

/// Fingerprints are hashes: their halves are mixed, since whoever may choose keys can make one half alike.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
    }

    fn write_u128(&mut self, value: u128) {
        let [a, b, c, d, e, f, g, h, low @ ..] = value.to_be_bytes();
        self.write_u64(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
        self.write_u64(u64::from_be_bytes(low));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map of fingerprints whose order nobody relies on.
pub(crate) type ByFingerprint<V> = HashMap<Fingerprint, V, BuildHasherDefault<FingerprintHasher>>;
