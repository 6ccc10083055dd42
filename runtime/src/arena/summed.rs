//! Copies that are summed on the way: the bytes pass through the processor once.
//!
//! A copy of what does not fit its caches waits for memory; the checksum is computed meanwhile, of the very
//! words that are stored. How wide these are depends on the processor:
//!
//! | the processor multiplies polynomials | `wide`: 64 bytes at a time, faster than a plain copy of what is not in the caches |
//! | it has an instruction for CRC32C | `narrow`: eight bytes at a time |
//! | else | bytes are copied and summed by turns, while they are in the cache |

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod narrow;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide;

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
    {
        if wide::is_offered() {
            // SAFETY: the processor has the instructions; the rest is the caller's. Ends with the call.
            return unsafe { wide::copy_summed(from, to, len) };
        }
        if narrow::is_offered() {
            // SAFETY: as above.
            return unsafe { narrow::copy_summed(from, to, len) };
        }
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

#[cfg(test)]
mod tests {
    use lunette_runtime_core::checksum::crc32c;

    use super::*;

    fn pattern(len: u32) -> Vec<u8> {
        (0..len)
            .map(|n| n.wrapping_mul(7919).to_le_bytes()[1])
            .collect()
    }

    type Copy = unsafe fn(*const u8, *mut u8, usize) -> u32;

    /// Every way that this processor has.
    fn ways() -> Vec<Copy> {
        let mut ways = vec![copy_summed as Copy, by_turns];
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            if narrow::is_offered() {
                ways.push(|from, to, len| {
                    // SAFETY: this processor has the instructions; the rest is the caller's.
                    unsafe { narrow::copy_summed(from, to, len) }
                });
            }
            if wide::is_offered() {
                ways.push(|from, to, len| {
                    // SAFETY: as above.
                    unsafe { wide::copy_summed(from, to, len) }
                });
            }
        }
        ways
    }

    /// Every way gives what copying and summing give, at every length around what it works in, and wherever
    /// the bytes lie.
    #[test]
    fn copies_are_whole_and_their_sums_are_right() {
        let bytes = pattern(5000);
        let lengths = (0..20)
            .chain(50..70)
            .chain(250..340)
            .chain(500..580)
            .chain(760..780)
            .chain(1530..1545)
            .chain([4096, 4890]);
        for len in lengths {
            for (from, to) in [(0, 0), (1, 0), (0, 3), (9, 5), (0, 63), (64, 1)] {
                for copy in ways() {
                    let source = &bytes[from..from + len];
                    let mut target = vec![0xee; to + len + 1];
                    // SAFETY: both vectors are as long, and nobody else has either.
                    let sum = unsafe { copy(source.as_ptr(), target[to..].as_mut_ptr(), len) };
                    assert_eq!(&target[to..to + len], source);
                    assert!(target[..to].iter().all(|&byte| byte == 0xee));
                    assert_eq!(target[to + len], 0xee);
                    assert_eq!(sum, crc32c(source), "{len} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn long_copies() {
        for len in [2 * 16 * 1024 + 77, (1 << 20) + 77] {
            let bytes = pattern(len);
            for copy in ways() {
                let mut target = vec![0; bytes.len()];
                // SAFETY: as above.
                let sum = unsafe { copy(bytes.as_ptr(), target.as_mut_ptr(), bytes.len()) };
                assert!(target == bytes);
                assert_eq!(sum, crc32c(&bytes));
            }
        }
    }
}
