//! Copies by words of eight bytes, summed by the instruction for CRC32C.
//!
//! Three of them run side by side on three stretches, since each takes three cycles and one can begin in each; their
//! results are joined by what a stretch of zeroes does to a checksum, which is a product of polynomials (Gopal et al.,
//! "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", Intel 2011).

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

use lunette_runtime_core::checksum::{Products, after_zeroes};

/// Length of one of three stretches. Short ones keep to a few pages at a time, which is what processors
/// fetch ahead.
const STRETCH_BYTES: usize = 256;

/// What a stretch of zeroes makes of a checksum.
static AFTER_STRETCH: Products = Products::with(after_zeroes(STRETCH_BYTES as u64));

fn after_stretch(crc: u32) -> u32 {
    AFTER_STRETCH.of(crc)
}

/// Whether this processor has the instruction.
pub(super) fn is_offered() -> bool {
    std::is_x86_feature_detected!("sse4.2")
}

/// # Safety
/// As [`copy_summed`](super::copy_summed); and the processor has SSE 4.2.
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn copy_summed(from: *const u8, to: *mut u8, len: usize) -> u32 {
    // SAFETY: the caller's. Ends with the call.
    !unsafe { go_on(!0, from, to, len) }
}

/// The same, behind bytes that have been summed to `crc`. Neither is inverted.
///
/// # Safety
/// As [`copy_summed`].
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn go_on(mut crc: u32, from: *const u8, to: *mut u8, len: usize) -> u32 {
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
    crc
}
