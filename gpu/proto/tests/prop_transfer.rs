//! Transfers between layouts against the naive formula, and as pairs of inverses.
#![forbid(unsafe_code)]

use lunette_gpu_proto::layout::{Axis, Layout, Order, Shape};
use lunette_gpu_proto::transfer::{PagePair, PageTransfer, copy_rows};
use proptest::prelude::*;

/// Any order of axes, not only those with names.
fn orders() -> impl Strategy<Value = Order> {
    Just(Axis::ALL).prop_shuffle()
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1..=2u32, 1..=4u32, 1..=4u32, 1..=3u32, 1..=9u32).prop_map(
        |(parts, layers, page_tokens, heads, row_bytes)| Shape {
            parts,
            layers,
            page_tokens,
            heads,
            row_bytes,
        },
    )
}

/// Distinct pages on both sides, some of them skipped.
fn page_lists() -> impl Strategy<Value = Vec<PagePair>> {
    let pages = || Just((0..6u32).collect::<Vec<_>>()).prop_shuffle();
    let skips = prop::collection::vec(prop::bool::weighted(0.2), 6);
    (pages(), pages(), skips, 1..=6usize).prop_map(|(from, to, skips, count)| {
        let pairs = from.into_iter().zip(to).zip(skips).take(count);
        let pairs = pairs.map(|((from, to), skip)| match skip {
            true => PagePair::SKIP,
            false => PagePair { from, to },
        });
        pairs.collect()
    })
}

/// Bytes that tell where they come from.
fn pattern(len: u64) -> Vec<u8> {
    let len = usize::try_from(len).expect("a small one");
    (0..len)
        .map(|at| u8::try_from(at * 31 % 251).expect("below 256"))
        .collect()
}

fn run(transfer: &PageTransfer, pairs: &[PagePair], from: &[u8], to: &mut [u8]) {
    for fragment in transfer.fragments(pairs).expect("it is valid") {
        let [at, to_at, len] = [fragment.from_bytes, fragment.to_bytes, fragment.len_bytes]
            .map(|number| usize::try_from(number).expect("a small one"));
        to[to_at..to_at + len].copy_from_slice(&from[at..at + len]);
    }
}

fn turned(pairs: &[PagePair]) -> Vec<PagePair> {
    let turn = |pair: &PagePair| PagePair {
        from: pair.to,
        to: pair.from,
    };
    pairs.iter().map(turn).collect()
}

proptest! {
    #[test]
    fn fragments_do_what_the_formula_says(
        shape in shapes(),
        (from, to) in (orders(), orders()),
        pairs in page_lists(),
    ) {
        let from = Layout::new(shape, 6, from).expect("it is valid");
        let to = Layout::new(shape, 6, to).expect("it is valid");
        let transfer = PageTransfer::new(&from, &to).expect("it is valid");
        let source = pattern(from.len_bytes());
        let mut naive = vec![255; source.len()];
        let mut fast = naive.clone();
        copy_rows((&from, &source), (&to, &mut naive), &pairs).expect("it is valid");
        run(&transfer, &pairs, &source, &mut fast);
        prop_assert_eq!(naive, fast);
    }

    #[test]
    fn the_way_back_restores_every_byte(
        shape in shapes(),
        (from, to) in (orders(), orders()),
        pairs in page_lists(),
    ) {
        let from = Layout::new(shape, 6, from).expect("it is valid");
        let to = Layout::new(shape, 6, to).expect("it is valid");
        let transfer = PageTransfer::new(&from, &to).expect("it is valid");
        let source = pattern(from.len_bytes());
        let (mut there, mut back) = (vec![0; source.len()], vec![0; source.len()]);
        let mut expected = vec![0; source.len()];
        run(&transfer, &pairs, &source, &mut there);
        let back_pairs = turned(&pairs);
        run(&transfer.reversed(), &back_pairs, &there, &mut back);
        // What the pages of the list held, and nothing else.
        let same: Vec<PagePair> = pairs.iter().map(|pair| PagePair { to: pair.from, ..*pair }).collect();
        copy_rows((&from, &source), (&from, &mut expected), &same).expect("it is valid");
        prop_assert_eq!(&back, &expected);
        prop_assert_eq!(transfer.reversed().reversed(), transfer);
    }

    #[test]
    fn layers_one_by_one_are_the_whole(
        shape in shapes(),
        (from, to) in (orders(), orders()),
        pairs in page_lists(),
    ) {
        let from = Layout::new(shape, 6, from).expect("it is valid");
        let to = Layout::new(shape, 6, to).expect("it is valid");
        let source = pattern(from.len_bytes());
        let mut whole = vec![255; source.len()];
        let mut layered = whole.clone();
        copy_rows((&from, &source), (&to, &mut whole), &pairs).expect("it is valid");
        for layer in 0..shape.layers {
            let (from, to) = (from.layer(layer).expect("it is valid"), to.layer(layer).expect("it is valid"));
            let transfer = PageTransfer::new(&from, &to).expect("it is valid");
            run(&transfer, &pairs, &source, &mut layered);
        }
        prop_assert_eq!(whole, layered);
    }
}
