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

/// What becomes of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Somebody reads it.
    Read,
    /// It stays where it is.
    Kept,
}

impl Then {
    /// From so many bytes on stores go past the caches, where the processor can: memory is not read first to be overwritten.
    /// What is kept nobody reads soon; what is long, or a piece of something longer, is mostly not read before others have
    /// taken its place there.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    const fn streamed_min(self) -> usize {
        match self {
            Self::Read => 256 << 10,
            Self::Kept => 4 << 10,
        }
    }
}

/// Copies `len` bytes; the CRC32C of what has been written.
///
/// # Safety
/// `from..+len` must be readable and `to..+len` writable memory, which do not overlap. The source may be written
/// by others meanwhile: then what is copied may be of both, and the checksum is of that. To the target nobody
/// else has access.
#[cfg_attr(
    not(all(target_arch = "x86_64", not(miri))),
    expect(unused_variables, reason = "all stores are alike there")
)]
pub(super) unsafe fn copy_summed(from: *const u8, to: *mut u8, len: usize, then: Then) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        if wide::is_offered() {
            // SAFETY: the processor has the instructions; the rest is the caller's. Ends with the call.
            return unsafe { wide::copy_summed(from, to, len, then.streamed_min()) };
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

    /// Copies over as many bytes, and sums.
    type Way = Box<dyn Fn(&[u8], &mut [u8]) -> u32>;

    /// Every way that this processor has.
    fn ways() -> Vec<Way> {
        let mut ways: Vec<Way> = Vec::new();
        for then in [Then::Read, Then::Kept] {
            ways.push(Box::new(move |from, to| {
                // SAFETY: both are borrowed, the target exclusively, and as long (asserted by the callers).
                unsafe { copy_summed(from.as_ptr(), to.as_mut_ptr(), to.len(), then) }
            }));
        }
        ways.push(Box::new(|from, to| {
            // SAFETY: as above.
            unsafe { by_turns(from.as_ptr(), to.as_mut_ptr(), to.len()) }
        }));
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if narrow::is_offered() {
            ways.push(Box::new(|from, to| {
                // SAFETY: as above, and this processor has the instructions.
                unsafe { narrow::copy_summed(from.as_ptr(), to.as_mut_ptr(), to.len()) }
            }));
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
                    let sum = copy(source, &mut target[to..to + len]);
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
                let sum = copy(&bytes, &mut target);
                assert!(target == bytes);
                assert_eq!(sum, crc32c(&bytes));
            }
        }
    }
}
