//! The text of the kernel that sums what it copies, run instruction by instruction, against the checksum of the bytes.
#![forbid(unsafe_code)]

mod machine;

use lunette_gpu_proto::sums::{
    ENTRY_BYTES, STRIPE_BYTES, SUM_BYTES, Stripe, SumJob, VECTOR_BYTES, crc32c, ptx, remainder,
    stripe_count, stripes,
};
use machine::{Launch, Machine, Program};
use proptest::collection::vec;
use proptest::prelude::*;

const THREADS: u32 = 256;

/// Runs the text for copies of these lengths, each from and to a place of its own: what is in memory then, the stripes, and
/// what it tells of them.
fn run_text(source: &[u8], lens: &[usize], blocks: u32) -> (Vec<u8>, Vec<Stripe>, Vec<u32>) {
    let len = source.len();
    let (from, to) = (256, 256 + len.next_multiple_of(256) + 256);
    let (mut all, mut at) = (Vec::new(), 0);
    for len in lens {
        all.extend(stripes((from + at) as u64, (to + at) as u64, *len).expect("whole vectors"));
        at += len;
    }
    let list = to + len.next_multiple_of(256);
    let sums = (list + all.len() * ENTRY_BYTES).next_multiple_of(256);
    let mut memory = vec![255; sums + all.len() * SUM_BYTES];
    memory[from..from + len].copy_from_slice(source);
    for (place, stripe) in memory[list..].chunks_exact_mut(ENTRY_BYTES).zip(&all) {
        place.copy_from_slice(&stripe.to_bytes());
    }
    let before = memory.clone();
    let job = SumJob {
        list_at: list as u64,
        sums_at: sums as u64,
        stripes: u32::try_from(all.len()).expect("few"),
    };
    let mut machine = Machine {
        memory,
        parameters: job.to_bytes().to_vec(),
    };
    let threads = THREADS;
    machine.run(&Program::parse(&ptx()), Launch { blocks, threads });
    let Machine { memory, .. } = machine;
    // Nothing else was written.
    assert_eq!(memory[..to], before[..to]);
    assert_eq!(memory[to + at..sums], before[to + at..sums]);
    let told = memory[sums..].chunks_exact(SUM_BYTES);
    let told = told.map(|sum| u32::from_le_bytes(sum.try_into().expect("four bytes")));
    (memory[to..to + len].to_vec(), all, told.collect())
}

fn bytes(len: usize, seed: u32) -> Vec<u8> {
    let byte = |at: u32| {
        at.wrapping_mul(2_654_435_761)
            .wrapping_add(seed)
            .to_le_bytes()[3]
    };
    (0..u32::try_from(len).expect("short")).map(byte).collect()
}

fn check(lens: &[usize], seed: u32, blocks: u32) {
    let source = bytes(lens.iter().sum(), seed);
    let (copied, stripes, told) = run_text(&source, lens, blocks);
    assert_eq!(copied, source);
    let (mut at, mut first) = (0, 0);
    for len in lens {
        let count = stripe_count(*len);
        let remainders = told[first..first + count].iter().copied();
        let expected = lunette_runtime_core::checksum::crc32c(&source[at..at + len]);
        assert_eq!(crc32c(*len, remainders), expected, "{len} of {lens:?}");
        for (stripe, told) in stripes[first..].iter().zip(&told[first..first + count]) {
            let start = usize::try_from(stripe.from).expect("an address") - 256;
            assert_eq!(remainder(&source[start..start + stripe.len_bytes]), *told);
        }
        (at, first) = (at + len, first + count);
    }
}

#[test]
fn stripes_of_each_kind_of_length_are_copied_and_summed() {
    // A thread has none, one, or several vectors; four of them at once, or not.
    for vectors in [1, 2, 255, 256, 257, 1023, 1024, 1025, 1300, 2047, 2048] {
        check(&[vectors * VECTOR_BYTES], 7, 1);
    }
    check(
        &[
            STRIPE_BYTES + VECTOR_BYTES,
            3 * VECTOR_BYTES,
            2 * STRIPE_BYTES,
        ],
        9,
        2,
    );
    check(&[VECTOR_BYTES; 5], 1, 8);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn what_is_told_is_the_checksum(
        vectors in vec(1..1200_usize, 1..4),
        seed in any::<u32>(),
        blocks in 1..4_u32,
    ) {
        let lens: Vec<usize> = vectors.iter().map(|count| count * VECTOR_BYTES).collect();
        check(&lens, seed, blocks);
    }
}
