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
///
/// What is appended shifts what came before: a product of polynomials for each bit of the length that is set
/// (Adler, `crc32_combine` of zlib, for the way to do it).
#[must_use]
pub const fn joined_crc32c(first: u32, then: u32, len_bytes: u64) -> u32 {
    product(after_zeroes(len_bytes), first) ^ then
}

/// Its lowest power is in the highest bit, and the highest one is left out.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The product of two polynomials over bits, modulo that of CRC32C. A checksum is such a polynomial.
#[must_use]
pub const fn product(a: u32, mut b: u32) -> u32 {
    let (mut sum, mut bit) = (0, 1 << 31);
    while bit != 0 {
        if a & bit != 0 {
            sum ^= b;
        }
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        bit >>= 1;
    }
    sum
}

/// What a checksum is multiplied with ([`product`]) by so many bytes of zeroes behind it.
#[must_use]
pub const fn after_zeroes(len_bytes: u64) -> u32 {
    // One, and one byte's worth.
    let (mut power, mut bit, mut rest) = (1 << 31, 0, len_bytes);
    while rest != 0 {
        if rest & 1 != 0 {
            power = product(power, BYTES[bit]);
        }
        // Powers repeat after 2^32 - 1 bits, so 2^n bytes and 2^(n + 32) are the same shift.
        bit = (bit + 1) % BYTES.len();
        rest >>= 1;
    }
    power
}

/// Products with one polynomial, by the bytes of the other.
#[derive(Clone, Debug)]
pub struct Products([[u32; 256]; 4]);

impl Products {
    /// With this one.
    #[must_use]
    pub const fn with(power: u32) -> Self {
        let mut table = [[0; 256]; 4];
        let (mut place, mut shift) = (0, 0);
        while place < 4 {
            let (mut byte, mut value) = (0, 0_u32);
            while byte < 256 {
                table[place][byte] = product(power, value << shift);
                (byte, value) = (byte + 1, value + 1);
            }
            (place, shift) = (place + 1, shift + 8);
        }
        Self(table)
    }

    /// The product with that one: [`product`], by four looks at the table.
    #[inline]
    #[must_use]
    pub fn of(&self, other: u32) -> u32 {
        let [a, b, c, d] = other.to_le_bytes();
        let [first, second, third, fourth] = &self.0;
        first[usize::from(a)]
            ^ second[usize::from(b)]
            ^ third[usize::from(c)]
            ^ fourth[usize::from(d)]
    }

    /// The table: by the place of a byte, lowest first, and its value.
    #[must_use]
    pub const fn table(&self) -> &[[u32; 256]; 4] {
        &self.0
    }
}

/// What 2^n bytes of zeroes do.
const BYTES: [u32; 32] = {
    let mut powers = [0; 32];
    // Eight bits.
    let (mut power, mut n) = (1 << 23, 0);
    while n < powers.len() {
        powers[n] = power;
        power = product(power, power);
        n += 1;
    }
    powers
};

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
    fn products_are_looked_up() {
        for power in [0, 1, 1 << 31, 0x1234_5678, u32::MAX] {
            let products = Products::with(power);
            for other in [0, 1, 0xff, 0x8000_0000, 0xdead_beef, u32::MAX] {
                assert_eq!(products.of(other), product(power, other));
            }
        }
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

    /// Of lengths that nobody has the memory for, as zeroes behind one another do.
    #[test]
    fn shifts_add_up() {
        for (one, other) in [(1, 1), (3, 1 << 31), (1 << 32, 7), (1 << 40, (1 << 40) + 5)] {
            let both = product(after_zeroes(one), after_zeroes(other));
            assert_eq!(both, after_zeroes(one + other), "{one} and {other}");
        }
        assert_eq!(joined_crc32c(0x1234_5678, 0, 0), 0x1234_5678);
        let long = vec![7; 100_003];
        let (first, then) = long.split_at(1);
        let joined = joined_crc32c(crc32c(first), crc32c(then), then.len() as u64);
        assert_eq!(joined, crc32c(&long));
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
