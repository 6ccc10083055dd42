//! Values and what they cost.

use lunette_kvstore_proto::extent::ExtentLayout;
use lunette_runtime::arena::Region;
use lunette_runtime_core::carve::GRANULE_BYTES;
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::limits::{KEY_BYTES_MAX, PAYLOAD_BYTES_MAX};

/// Bytes to be put, and their checksum. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct Value {
    pub(crate) region: Option<Region>,
    pub(crate) crc32c: u32,
}

impl Value {
    /// A value of the region's bytes, whose CRC32C is computed here, once for all puts of it.
    #[must_use]
    pub fn new(region: Region) -> Self {
        let crc32c = crc32c(region.as_slice());
        Self {
            region: Some(region).filter(|region| !region.is_empty()),
            crc32c,
        }
    }

    /// A value of no bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            region: None,
            crc32c: crc32c(&[]),
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.as_ref().map_or(0, Region::len)
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.is_none()
    }
}

/// What an object costs against a node's memory, in bytes: header, key and value, rounded to the
/// allocator's granule.
///
/// # Panics
/// If a length is beyond [`KEY_BYTES_MAX`] or [`PAYLOAD_BYTES_MAX`].
#[must_use]
pub fn extent_bytes(key_len: usize, value_len: usize) -> u64 {
    assert!(key_len <= KEY_BYTES_MAX, "a key of {key_len} bytes");
    assert!(
        value_len <= PAYLOAD_BYTES_MAX,
        "a value of {value_len} bytes"
    );
    let key_len = u16::try_from(key_len).expect("just checked");
    let value_len = u32::try_from(value_len).expect("just checked");
    u64::from(carved_bytes(ExtentLayout::for_object(key_len, value_len)))
}

/// Bytes that the arena takes for an extent.
pub(crate) const fn carved_bytes(layout: ExtentLayout) -> u32 {
    layout.total_bytes.next_multiple_of(GRANULE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_an_object_is_what_the_arena_takes() {
        use lunette_runtime::arena::{Arena, ArenaOptions};
        for (key_len, value_len) in [(1, 0), (16, 512), (64, 65_536), (1024, 1 << 20)] {
            let arena = Arena::new(ArenaOptions::default());
            let cost = extent_bytes(key_len, value_len);
            let _extent = arena
                .alloc(usize::try_from(cost).expect("small"))
                .expect("room");
            assert_eq!(arena.used_bytes() as u64, cost);
        }
    }
}
