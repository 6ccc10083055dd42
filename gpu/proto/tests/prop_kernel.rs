//! The kernel's text, run instruction by instruction, against the layouts' formula.
#![forbid(unsafe_code)]

mod machine;

use lunette_gpu_proto::kernel::{Job, Width};
use lunette_gpu_proto::layout::{Axis, Layout, Order, Shape};
use lunette_gpu_proto::transfer::{PagePair, PageTransfer, copy_rows};
use machine::{Launch, Machine, Program};
use proptest::prelude::*;

fn orders() -> impl Strategy<Value = Order> {
    Just(Axis::ALL).prop_shuffle()
}

/// Rows that need each width, and runs that are cut into pieces.
fn shapes() -> impl Strategy<Value = Shape> {
    let row_bytes = prop_oneof![
        Just(1u32),
        Just(3),
        Just(4),
        Just(24),
        Just(64),
        Just(2048),
        Just(4096),
        Just(528)
    ];
    (1..=2u32, 1..=3u32, 1..=3u32, 1..=2u32, row_bytes).prop_map(
        |(parts, layers, page_tokens, heads, row_bytes)| Shape {
            parts,
            layers,
            page_tokens,
            heads,
            row_bytes,
        },
    )
}

fn skews() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(0usize), 1 => Just(8), 1 => Just(4), 1 => Just(1)]
}

fn page_lists() -> impl Strategy<Value = Vec<PagePair>> {
    let pages = || Just((0..4u32).collect::<Vec<_>>()).prop_shuffle();
    let skips = prop::collection::vec(prop::bool::weighted(0.2), 4);
    (pages(), pages(), skips, 1..=4usize).prop_map(|(from, to, skips, count)| {
        let pairs = from.into_iter().zip(to).zip(skips).take(count);
        let pairs = pairs.map(|((from, to), skip)| match skip {
            true => PagePair::SKIP,
            false => PagePair { from, to },
        });
        pairs.collect()
    })
}

/// Where source, destination and page list are in the machine's memory, the first two so many bytes
/// further.
fn places(len: usize, skew: (usize, usize)) -> [usize; 3] {
    let room = len.next_multiple_of(256) + 256;
    [256 + skew.0, 256 + room + skew.1, 256 + 2 * room]
}

/// Runs the text of a job's width over a memory with source, destination and list.
fn run_text(
    job: &Job,
    source: &[u8],
    pairs: &[PagePair],
    skew: (usize, usize),
    blocks: u32,
) -> Vec<u8> {
    let [from, to, list] = places(source.len(), skew);
    let mut memory = vec![255; list + pairs.len() * 8];
    memory[from..from + source.len()].copy_from_slice(source);
    for (place, pair) in memory[list..].chunks_exact_mut(8).zip(pairs) {
        place[..4].copy_from_slice(&pair.from.to_le_bytes());
        place[4..].copy_from_slice(&pair.to.to_le_bytes());
    }
    let before = memory.clone();
    let program = Program::parse(&job.width().ptx());
    let mut machine = Machine {
        memory,
        parameters: job.to_bytes().to_vec(),
    };
    let launch = Launch {
        blocks,
        threads: 64,
    };
    machine.run(&program, launch);
    assert_eq!(machine.memory[..to], before[..to], "only the destination");
    assert_eq!(
        machine.memory[to + source.len()..],
        before[to + source.len()..]
    );
    machine.memory[to..to + source.len()].to_vec()
}

fn pattern(len: u64) -> Vec<u8> {
    let len = usize::try_from(len).expect("a small one");
    (0..len)
        .map(|at| u8::try_from(at * 31 % 251).expect("below 256"))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_text_does_what_the_formula_says(
        shape in shapes(),
        (from, to) in (orders(), orders()),
        pairs in page_lists(),
        skew in (skews(), skews()),
        blocks in 1..4u32,
    ) {
        let from = Layout::new(shape, 4, from).expect("it is valid");
        let to = Layout::new(shape, 4, to).expect("it is valid");
        let transfer = PageTransfer::new(&from, &to).expect("it is valid");
        let source = pattern(from.len_bytes());
        let mut naive = vec![255; source.len()];
        copy_rows((&from, &source), (&to, &mut naive), &pairs).expect("it is valid");
        let [at, to_at, list] = places(source.len(), skew);
        let job = Job::new(&transfer, (at as u64, to_at as u64), list as u64, pairs.len()).expect("it is valid");
        prop_assert_eq!(&run_text(&job, &source, &pairs, skew, blocks), &naive);

        // What the job says of itself is the same once more.
        let mut told = vec![255; source.len()];
        for (from, to, len) in job.copies(&pairs) {
            let [from, to, len] = [from - at as u64, to - to_at as u64, len].map(|number| usize::try_from(number).expect("a small one"));
            told[to..to + len].copy_from_slice(&source[from..from + len]);
        }
        prop_assert_eq!(told, naive);
    }
}

/// One page whose run is `piece_bytes` long, in lanes of this width.
fn one_run(width: Width, vectors: u32) {
    let row_bytes = vectors * width.bytes();
    let layout = Layout::new(Shape::latent(1, 1, row_bytes), 1, Axis::ALL).expect("it is valid");
    let transfer = PageTransfer::new(&layout, &layout).expect("it is valid");
    let source = pattern(u64::from(row_bytes));
    let skew = (width.bytes() as usize, 0);
    let [at, to, list] = places(source.len(), skew);
    let job = Job::new(&transfer, (at as u64, to as u64), list as u64, 1).expect("it is valid");
    assert_eq!(job.width(), width);
    let pairs = [PagePair { from: 0, to: 0 }];
    assert_eq!(
        run_text(&job, &source, &pairs, skew, 1),
        source,
        "{vectors}"
    );
}

#[test]
fn runs_end_where_they_end_whatever_is_left_of_four() {
    for width in [Width::Eight, Width::Four, Width::One] {
        for vectors in [1, 31, 32, 33, 96, 97, 127, 128, 129, 161, 256, 300] {
            one_run(width, vectors);
        }
    }
}
