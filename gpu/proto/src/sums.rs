//! Memory that is copied and summed on the way, by a kernel: what has come is known to be right without another look at it.
//!
//! Copies are cut into stripes of [`STRIPE_BYTES`], each of which is a block's. The kernel (`sums.ptx`) tells the
//! remainder of each, modulo the polynomial of CRC32C, and [`crc32c`] makes one checksum of those of a copy. What is no
//! whole number of vectors of [`VECTOR_BYTES`], or begins at no multiple of that, is not for it.

use std::fmt::Write;

use lunette_runtime_core::checksum::{Products, after_zeroes, product};

/// What a thread copies at a time.
pub const VECTOR_BYTES: usize = 16;
/// Longest stripe.
pub const STRIPE_BYTES: usize = 32 * 1024;
/// Bytes of a stripe in the list that the kernel reads, and of its remainder.
pub const ENTRY_BYTES: usize = 24;
/// See [`ENTRY_BYTES`].
pub const SUM_BYTES: usize = 4;
/// Bytes of a [`SumJob`] as the kernel reads it.
pub const JOB_BYTES: usize = 24;
/// Most stripes of one launch.
pub const STRIPES_MAX: usize = 1 << 16;
/// The kernel's name in its module.
pub const ENTRY: &str = "lunette_copy_summed";
/// Threads of a block, each of which has every so manieth vector.
const THREADS: usize = 256;
/// Two tables for each byte of a word, and a power for each thread.
const TABLE_WORDS: usize = 2 * 4 * 256 + THREADS;

const TEMPLATE: &str = include_str!("sums.ptx");

/// The module with the kernel, as text.
#[must_use]
pub fn ptx() -> String {
    let vector = |first: usize| {
        let mut text = String::new();
        for word in 0..4 {
            let sum = 14 + word;
            step(&mut text, "%r1", sum, &format!("%v{}", first + word));
        }
        text
    };
    let four: String = (0..4).map(|index| vector(4 * index)).collect();
    let mut join = String::new();
    for word in 15..18 {
        step(&mut join, "%r2", 14, &format!("%r{word}"));
    }
    let tables: Vec<String> = tables()
        .iter()
        .map(|word| format!("{word:#010x}"))
        .collect();
    TEMPLATE
        .replace("@NAME@", ENTRY)
        .replace("@TABLE_WORDS@", &TABLE_WORDS.to_string())
        .replace("@TABLES@", &tables.join(", "))
        .replace("@FOUR@\n", &four)
        .replace("@ONE@\n", &vector(0))
        .replace("@JOIN@\n", &join)
}

/// A sum becomes its product by a table, and what is added.
fn step(text: &mut String, table: &str, sum: usize, added: &str) {
    for byte in 0..4 {
        let (name, shift) = (24 + byte, 8 * byte);
        let source = if shift == 0 {
            format!("%r{sum}")
        } else {
            let _shifted = writeln!(text, "    shr.u32 %r{name}, %r{sum}, {shift};");
            format!("%r{name}")
        };
        if byte < 3 {
            let _low = writeln!(text, "    and.b32 %r{name}, {source}, 255;");
        }
        let _at = writeln!(text, "    mad.lo.u32 %r{name}, %r{name}, 4, {table};");
    }
    let _first = writeln!(text, "    ld.shared.u32 %r28, [%r24];");
    for byte in 1..4 {
        let offset = byte * 1024;
        let _next = writeln!(text, "    ld.shared.u32 %r29, [%r{}+{offset}];", 24 + byte);
        let _sum = writeln!(text, "    xor.b32 %r28, %r28, %r29;");
    }
    let _all = writeln!(text, "    xor.b32 %r{sum}, %r28, {added};");
}

/// The tables of the kernel: products with the power by which a thread's next vector is behind, those with the power of a
/// word, and for each thread the power by which the end is behind, and the word by which a remainder is.
fn tables() -> Vec<u32> {
    let round = after_zeroes((THREADS * VECTOR_BYTES) as u64);
    let word = after_zeroes(4);
    let by_bytes = |power| Products::with(power).table().concat();
    let powers = (0..THREADS).map(|thread| {
        let behind = (THREADS - 1 - thread) * VECTOR_BYTES + 4;
        after_zeroes(behind as u64)
    });
    let tables = [by_bytes(round), by_bytes(word), powers.collect()];
    tables.concat()
}

/// A stripe: where it comes from and goes to, in addresses of the device, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// First byte of the source, a multiple of [`VECTOR_BYTES`].
    pub from: u64,
    /// First byte of the destination, a multiple of [`VECTOR_BYTES`].
    pub to: u64,
    /// A multiple of [`VECTOR_BYTES`], and [`STRIPE_BYTES`] at most.
    pub len_bytes: usize,
}

impl Stripe {
    /// As the kernel reads it.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let vectors = u64::try_from(self.len_bytes / VECTOR_BYTES).expect("a short stripe");
        let longs = [self.from, self.to, vectors];
        for (place, long) in bytes.chunks_exact_mut(8).zip(longs) {
            place.copy_from_slice(&long.to_le_bytes());
        }
        bytes
    }

    /// See [`to_bytes`](Self::to_bytes).
    #[must_use]
    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let vectors = usize::try_from(long(16)).expect("a short stripe");
        Self {
            from: long(0),
            to: long(8),
            len_bytes: vectors * VECTOR_BYTES,
        }
    }
}

/// The stripes of a copy, if the kernel does it: one that has bytes, all in whole vectors.
#[must_use]
pub fn stripes(from: u64, to: u64, len_bytes: usize) -> Option<impl Iterator<Item = Stripe>> {
    let bits = from | to | len_bytes as u64;
    let is_for_it = len_bytes > 0 && bits.is_multiple_of(VECTOR_BYTES as u64);
    is_for_it.then(|| {
        (0..len_bytes).step_by(STRIPE_BYTES).map(move |at| Stripe {
            from: from + at as u64,
            to: to + at as u64,
            len_bytes: STRIPE_BYTES.min(len_bytes - at),
        })
    })
}

/// How many stripes a copy has.
#[must_use]
pub const fn stripe_count(len_bytes: usize) -> usize {
    len_bytes.div_ceil(STRIPE_BYTES)
}

/// A launch, in addresses of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumJob {
    /// Where the list of its stripes lies, of [`ENTRY_BYTES`] each.
    pub list_at: u64,
    /// Where their remainders go, of [`SUM_BYTES`] each.
    pub sums_at: u64,
    /// How many there are.
    pub stripes: u32,
}

impl SumJob {
    /// As the kernel reads it.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; JOB_BYTES] {
        let mut bytes = [0; JOB_BYTES];
        let longs = [self.list_at, self.sums_at, u64::from(self.stripes)];
        for (place, long) in bytes.chunks_exact_mut(8).zip(longs) {
            place.copy_from_slice(&long.to_le_bytes());
        }
        bytes
    }
}

/// The remainder of a stripe, as the kernel tells it.
#[must_use]
pub fn remainder(stripe: &[u8]) -> u32 {
    // A checksum is the remainder of the bytes behind ones, which are added and taken away again, and inverted.
    let crc32c = lunette_runtime_core::checksum::crc32c(stripe);
    !crc32c ^ product(after_zeroes(stripe.len() as u64), !0)
}

/// What a whole stripe behind it makes of a remainder.
static AFTER_STRIPE: Products = Products::with(after_zeroes(STRIPE_BYTES as u64));

/// The CRC32C of a copy of so many bytes, of the remainders of its stripes.
///
/// # Panics
/// If there are not as many as it has stripes.
#[must_use]
pub fn crc32c(len_bytes: usize, remainders: impl ExactSizeIterator<Item = u32>) -> u32 {
    let count = stripe_count(len_bytes);
    assert_eq!(remainders.len(), count, "one of each stripe");
    let mut sum = !0;
    for (index, remainder) in remainders.enumerate() {
        let here = STRIPE_BYTES.min(len_bytes - index * STRIPE_BYTES);
        let after = if here == STRIPE_BYTES {
            AFTER_STRIPE.of(sum)
        } else {
            product(after_zeroes(here as u64), sum)
        };
        sum = after ^ remainder;
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_no_hole_left() {
        let text = ptx();
        assert!(!text.replace("@%p", "").contains('@'));
        assert!(text.contains(ENTRY) && text.is_ascii());
    }

    #[test]
    fn remainders_make_the_checksum() {
        let byte = |at: usize| u8::try_from((at * 31 + at / 777) % 256).expect("a byte");
        let bytes: Vec<u8> = (0..3 * STRIPE_BYTES + 160).map(byte).collect();
        for len in [0, 16, STRIPE_BYTES, STRIPE_BYTES + 16, bytes.len()] {
            let remainders: Vec<u32> = bytes[..len].chunks(STRIPE_BYTES).map(remainder).collect();
            let expected = lunette_runtime_core::checksum::crc32c(&bytes[..len]);
            assert_eq!(crc32c(len, remainders.into_iter()), expected, "{len}");
        }
    }

    #[test]
    fn copies_are_cut_where_vectors_end_or_are_not_for_the_kernel() {
        let cut =
            |from, to, len| -> Option<Vec<Stripe>> { Some(stripes(from, to, len)?.collect()) };
        for (from, to, len) in [(8, 0, 16), (0, 4, 16), (0, 0, 24), (0, 0, 0), (1, 1, 16)] {
            assert_eq!(cut(from, to, len), None);
        }
        let parts = cut(32, 1 << 20, STRIPE_BYTES + 32).expect("whole vectors");
        let last = Stripe {
            from: 32 + STRIPE_BYTES as u64,
            to: (1 << 20) + STRIPE_BYTES as u64,
            len_bytes: 32,
        };
        assert_eq!((parts.len(), parts[1]), (2, last));
        assert_eq!(Stripe::from_bytes(&last.to_bytes()), last);
        assert_eq!(stripe_count(STRIPE_BYTES + 32), 2);
    }
}
