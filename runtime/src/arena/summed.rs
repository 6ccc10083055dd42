//! Copies that are summed on the way: the bytes pass through the processor once.
//!
//! A copy of what does not fit its caches waits for memory; the checksum is computed meanwhile, of the very
//! words that are stored. Where the processor has an instruction for CRC32C, three of them run side by side on
//! three stretches, since each takes three cycles and one can begin in each; their results are joined by what a
//! stretch of zeroes does to a checksum, which is a product of polynomials (Gopal et al., "Fast CRC Computation
//! for iSCSI Polynomial Using CRC32 Instruction", Intel 2011). Elsewhere, bytes are copied and summed by turns,
//! while they are in the cache.

use lunette_runtime_core::checksum::Crc32c;

/// Bytes that are copied before they are summed, where that is done by turns.
const TURN_BYTES: usize = 16 * 1024;

/// Copies `len` bytes; the CRC32C of what has been written.
///
/// # Safety
/// `from..+len` must be readable and `to..+len` writable memory, which do not overlap. The source may be written
/// by others meanwhile: then what is copied may be of both, and the checksum is of that. To the target nobody
/// else has access.
pub(super) unsafe fn copy_summed(from: *const u8, to: *mut u8, len: usize) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions; the rest is the caller's. Ends with the call.
        return unsafe { x86::copy_summed(from, to, len) };
    }
    // SAFETY: the caller's. Ends with the call.
    unsafe { by_turns(from, to, len) }
}

/// # Safety
/// As [`copy_summed`].
unsafe fn by_turns(from: *const u8, to: *mut u8, len: usize) -> u32 {
    let mut checksum = Crc32c::new();
    for start in (0..len).step_by(TURN_BYTES) {
        let count = TURN_BYTES.min(len - start);
        let (from, to) = (from.wrapping_add(start), to.wrapping_add(start));
        // SAFETY: both ranges lie inside those that the caller vouches for. Ends with the copy.
        unsafe { to.copy_from_nonoverlapping(from, count) };
        // SAFETY: the bytes have just been written, and nobody else has access. Ends with the turn.
        checksum.fold(unsafe { std::slice::from_raw_parts(to, count) });
    }
    checksum.value()
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

    use lunette_runtime_core::checksum::{after_zeroes, product};

    /// Length of one of three stretches. Short ones keep to a few pages at a time, which is what processors
    /// fetch ahead.
    const STRETCH_BYTES: usize = 256;

    /// What a stretch of zeroes makes of each byte of a checksum.
    static AFTER_STRETCH: [[u32; 256]; 4] = after(STRETCH_BYTES as u64);

    /// By the bytes of a checksum: what it is after so many zeroes.
    const fn after(bytes: u64) -> [[u32; 256]; 4] {
        let power = after_zeroes(bytes);
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
        table
    }

    fn after_stretch(crc: u32) -> u32 {
        let [a, b, c, d] = crc.to_le_bytes();
        let [first, second, third, fourth] = &AFTER_STRETCH;
        first[usize::from(a)]
            ^ second[usize::from(b)]
            ^ third[usize::from(c)]
            ^ fourth[usize::from(d)]
    }

    /// # Safety
    /// As [`copy_summed`](super::copy_summed); and the processor has SSE 4.2.
    #[target_feature(enable = "sse4.2")]
    pub(super) unsafe fn copy_summed(from: *const u8, to: *mut u8, len: usize) -> u32 {
        /// One word, and its place in a checksum.
        ///
        /// # Safety
        /// Eight bytes lie `at` bytes behind either, as the caller of [`copy_summed`] vouches.
        #[target_feature(enable = "sse4.2")]
        unsafe fn word(from: *const u8, to: *mut u8, at: usize, crc: u64) -> u64 {
            let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
            // SAFETY: by this function's contract; it need not be aligned. Ends with the load.
            let word = unsafe { from.cast::<u64>().read_unaligned() };
            // SAFETY: as above. Ends with the store.
            unsafe { to.cast::<u64>().write_unaligned(word) };
            _mm_crc32_u64(crc, word)
        }
        let low = |crc: u64| u32::try_from(crc).expect("the instruction clears the upper half");
        let mut crc = !0_u32;
        let mut at = 0;
        while len - at >= 3 * STRETCH_BYTES {
            let (mut first, mut second, mut third) = (u64::from(crc), 0, 0);
            for at in (at..at + STRETCH_BYTES).step_by(8) {
                // SAFETY: the word lies in the first of three stretches, which the loop's condition leaves
                // inside `len`.
                first = unsafe { word(from, to, at, first) };
                // SAFETY: in the second.
                second = unsafe { word(from, to, at + STRETCH_BYTES, second) };
                // SAFETY: in the third.
                third = unsafe { word(from, to, at + 2 * STRETCH_BYTES, third) };
            }
            crc = after_stretch(after_stretch(low(first)) ^ low(second)) ^ low(third);
            at += 3 * STRETCH_BYTES;
        }
        while len - at >= 8 {
            // SAFETY: the word lies inside `len`.
            crc = low(unsafe { word(from, to, at, crc.into()) });
            at += 8;
        }
        let (mut rest, count) = ([0; 8], len - at);
        let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
        // SAFETY: fewer than eight bytes are left, of either. Ends with the copy.
        unsafe { from.copy_to_nonoverlapping(rest.as_mut_ptr(), count) };
        // SAFETY: as above.
        unsafe { to.copy_from_nonoverlapping(rest.as_ptr(), count) };
        for &byte in &rest[..count] {
            crc = _mm_crc32_u8(crc, byte);
        }
        !crc
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::checksum::crc32c;

    use super::*;

    fn pattern(len: u32) -> Vec<u8> {
        (0..len).map(|n| (n * 7919).to_le_bytes()[1]).collect()
    }

    type Copy = unsafe fn(*const u8, *mut u8, usize) -> u32;

    /// Every way gives what copying and summing give, at every length around what it works in, and wherever
    /// the bytes lie.
    #[test]
    fn copies_are_whole_and_their_sums_are_right() {
        let bytes = pattern(5000);
        let lengths = (0..20)
            .chain(250..260)
            .chain(760..780)
            .chain(1530..1545)
            .chain([4096, 4990]);
        for len in lengths {
            for (from, to) in [(0, 0), (1, 0), (0, 3), (9, 5)] {
                for copy in [copy_summed as Copy, by_turns as Copy] {
                    let source = &bytes[from..from + len];
                    let mut target = vec![0xee; to + len + 1];
                    // SAFETY: both vectors are as long, and nobody else has either.
                    let sum = unsafe { copy(source.as_ptr(), target[to..].as_mut_ptr(), len) };
                    assert_eq!(&target[to..to + len], source);
                    assert_eq!((target[..to].len(), target[to + len]), (to, 0xee));
                    assert_eq!(sum, crc32c(source), "{len} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn several_turns() {
        let bytes = pattern(2 * 16 * 1024 + 77);
        for copy in [copy_summed as Copy, by_turns as Copy] {
            let mut target = vec![0; bytes.len()];
            // SAFETY: as above.
            let sum = unsafe { copy(bytes.as_ptr(), target.as_mut_ptr(), bytes.len()) };
            assert!(target == bytes);
            assert_eq!(sum, crc32c(&bytes));
        }
    }
}
