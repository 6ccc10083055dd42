//! Copies by words of 64 bytes, summed by multiplying polynomials.
//!
//! A checksum is what is left of the bytes, taken for a polynomial, modulo that of CRC32C. So what came before may be
//! replaced by something shorter with the same remainder: each 128 bits by the sum of two products, of its halves and
//! the remainders of the powers by which they are ahead. Four words of 64 bytes are carried along; in the end they
//! become one, it becomes 128 bits, and these are summed by the instruction for CRC32C (Gopal et al., "Fast CRC
//! Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).

use std::arch::x86_64::{
    __m128i, __m512i, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_extract_epi64,
    _mm_set_epi64x, _mm_sfence, _mm_xor_si128, _mm512_broadcast_i32x4, _mm512_clmulepi64_epi128,
    _mm512_extracti32x4_epi32, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

use lunette_runtime_core::checksum::after_zeroes;

use super::narrow;

const WORD_BYTES: usize = 64;
/// What is multiplied at a time.
const LANE_BYTES: usize = 16;
/// Words that are carried along.
const WORDS: usize = 4;
/// A ternary function of bits: the sum of three.
const SUM_OF_THREE: i32 = 0x96;

/// Whether this processor has the instructions.
pub(super) fn is_offered() -> bool {
    std::is_x86_feature_detected!("avx512f")
        && std::is_x86_feature_detected!("vpclmulqdq")
        && std::is_x86_feature_detected!("pclmulqdq")
        && narrow::is_offered()
}

/// # Safety
/// As [`copy_summed`](super::copy_summed); and the processor [offers](is_offered) it. Stores of copies of at least
/// `streamed_min` bytes go past the caches.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
pub(super) unsafe fn copy_summed(
    from: *const u8,
    to: *mut u8,
    len: usize,
    streamed_min: usize,
) -> u32 {
    // Words are stored where lines of the cache begin.
    let head = to.align_offset(WORD_BYTES).min(len);
    // SAFETY: the first `head` bytes of `len`.
    let crc = unsafe { narrow::go_on(!0, from, to, head) };
    let words = (len - head) / (WORDS * WORD_BYTES) * WORDS;
    let (from, to) = (from.wrapping_add(head), to.wrapping_add(head));
    let crc = if words == 0 {
        crc
    } else if len < streamed_min {
        // SAFETY: as many words follow, and the target is aligned.
        unsafe { words_summed::<false>(crc, from, to, words) }
    } else {
        // SAFETY: as above.
        unsafe { words_summed::<true>(crc, from, to, words) }
    };
    let done = words * WORD_BYTES;
    let (from, to) = (from.wrapping_add(done), to.wrapping_add(done));
    // SAFETY: what is left of `len`.
    !unsafe { narrow::go_on(crc, from, to, len - head - done) }
}

/// # Safety
/// As [`copy_summed`], of so many words, a positive multiple of [`WORDS`]; `to` is aligned to one.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
unsafe fn words_summed<const IS_STREAMED: bool>(
    crc: u32,
    from: *const u8,
    to: *mut u8,
    words: usize,
) -> u32 {
    // SAFETY: the first words of at least as many; those of the loop lie before `words`.
    let mut carried = [0, 1, 2, 3].map(|at| unsafe { word::<IS_STREAMED>(from, to, at) });
    let before = _mm512_zextsi128_si512(_mm_cvtsi32_si128(crc.cast_signed()));
    carried[0] = _mm512_xor_si512(carried[0], before);
    let over_all = _mm512_broadcast_i32x4(const { Ahead::by(WORDS * WORD_BYTES) }.lane());
    for first in (WORDS..words).step_by(WORDS) {
        for (at, carried) in carried.iter_mut().enumerate() {
            // SAFETY: as above.
            let next = unsafe { word::<IS_STREAMED>(from, to, first + at) };
            *carried = carry(*carried, over_all, next);
        }
    }
    if IS_STREAMED {
        // Whoever is told of these bytes by an ordinary store is to find them.
        _mm_sfence();
    }
    let [first, others @ ..] = carried;
    let over_one = _mm512_broadcast_i32x4(const { Ahead::by(WORD_BYTES) }.lane());
    let one = others
        .into_iter()
        .fold(first, |sum, next| carry(sum, over_one, next));
    left_of(one)
}

/// Copies one word.
///
/// # Safety
/// It lies inside of what the caller of [`words_summed`] vouches for.
#[target_feature(enable = "avx512f")]
unsafe fn word<const IS_STREAMED: bool>(from: *const u8, to: *mut u8, at: usize) -> __m512i {
    let from = from.wrapping_add(at * WORD_BYTES).cast::<__m512i>();
    let to = to.wrapping_add(at * WORD_BYTES).cast::<__m512i>();
    // SAFETY: by this function's contract; a load need not be aligned. Ends with the load.
    let word = unsafe { _mm512_loadu_si512(from) };
    if IS_STREAMED {
        // SAFETY: by this function's contract; it is aligned. Ends with the fence behind the last word.
        unsafe { _mm512_stream_si512(to, word) };
    } else {
        // SAFETY: by this function's contract. Ends with the store.
        unsafe { _mm512_storeu_si512(to, word) };
    }
    word
}

/// What the halves of 128 bits are multiplied with: remainders of powers.
#[derive(Clone, Copy)]
struct Ahead {
    lower: i64,
    upper: i64,
}

impl Ahead {
    /// By what is so many bytes behind them. The lower half is ahead by 64 bits more than the upper one. Remainders have
    /// their lowest power in the highest of 32 bits, and the product of two such words has it one bit lower than its
    /// highest.
    const fn by(bytes: usize) -> Self {
        Self {
            lower: (after_zeroes(bytes as u64 + 4) as i64) << 1,
            upper: (after_zeroes(bytes as u64 - 4) as i64) << 1,
        }
    }

    #[target_feature(enable = "sse2")]
    fn lane(self) -> __m128i {
        _mm_set_epi64x(self.upper, self.lower)
    }
}

/// Replaces each 128 bits by something that is as far ahead as `next`, and adds that.
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn carry(sum: __m512i, ahead: __m512i, next: __m512i) -> __m512i {
    let lower = _mm512_clmulepi64_epi128::<0x00>(sum, ahead);
    let upper = _mm512_clmulepi64_epi128::<0x11>(sum, ahead);
    _mm512_ternarylogic_epi64::<SUM_OF_THREE>(lower, upper, next)
}

/// The checksum of 64 bytes.
#[target_feature(enable = "avx512f,pclmulqdq,sse4.2")]
fn left_of(word: __m512i) -> u32 {
    let ahead = const { Ahead::by(LANE_BYTES) }.lane();
    let carry = |sum: __m128i, next: __m128i| {
        let lower = _mm_clmulepi64_si128::<0x00>(sum, ahead);
        let upper = _mm_clmulepi64_si128::<0x11>(sum, ahead);
        _mm_xor_si128(_mm_xor_si128(lower, upper), next)
    };
    let mut sum = _mm512_extracti32x4_epi32::<0>(word);
    sum = carry(sum, _mm512_extracti32x4_epi32::<1>(word));
    sum = carry(sum, _mm512_extracti32x4_epi32::<2>(word));
    sum = carry(sum, _mm512_extracti32x4_epi32::<3>(word));
    let lower = _mm_extract_epi64::<0>(sum).cast_unsigned();
    let upper = _mm_extract_epi64::<1>(sum).cast_unsigned();
    let crc = _mm_crc32_u64(_mm_crc32_u64(0, lower), upper);
    u32::try_from(crc).expect("the instruction clears the upper half")
}
