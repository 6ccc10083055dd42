//! CRC32C (Castagnoli, iSCSI), the one checksum of extents and wires.
//!
//! It is folded into each received chunk while that chunk is in cache; the sender of stored bytes
//! never computes it again. Source: RFC 3720, appendix B.4.

use crc_fast::{CrcAlgorithm, Digest};

/// A CRC32C under computation.
#[derive(Clone, Debug)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// The checksum of no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Folds the next `bytes` in. Chunks may be split anywhere.
    pub fn fold(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of everything folded in so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        low_half(self.0.finalize())
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

/// The CRC32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    low_half(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// The CRC32C of bytes whose first part has the checksum `first`, and whose other part, of `len_bytes`,
/// has the checksum `then`. Nothing is read.
#[must_use]
pub fn joined_crc32c(first: u32, then: u32, len_bytes: u64) -> u32 {
    let joined = crc_fast::checksum_combine(
        CrcAlgorithm::Crc32Iscsi,
        first.into(),
        then.into(),
        len_bytes,
    );
    low_half(joined)
}

/// A 32-bit checksum comes in the low half of the library's 64-bit result.
fn low_half(value: u64) -> u32 {
    u32::try_from(value).expect("a 32-bit checksum fits 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_rfc_3720() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn checksums_of_parts_join() {
        let bytes: Vec<u8> = (0..=255).collect();
        for cut in [0, 1, 100, 255, 256] {
            let (first, then) = bytes.split_at(cut);
            let joined = joined_crc32c(crc32c(first), crc32c(then), then.len() as u64);
            assert_eq!(joined, crc32c(&bytes), "cut at {cut}");
        }
    }

    #[test]
    fn folding_in_pieces_gives_the_whole() {
        let bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
        for cut in [0, 1, 15, 16, 17, 255, 256, 4096, 5000] {
            let mut crc = Crc32c::new();
            crc.fold(&bytes[..cut]);
            crc.fold(&bytes[cut..]);
            assert_eq!(crc.value(), crc32c(&bytes), "cut at {cut}");
        }
    }
}
