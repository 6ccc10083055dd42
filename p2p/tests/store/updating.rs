//! Weights that ranks take in buckets.

use std::collections::BTreeMap;

use lunette_p2p::proto::update::{Manifest, ManifestFault};
use lunette_p2p::{
    Block, Dtype, FollowOptions, HoldFault, LentBucket, Offer, OfferOptions, Parts, Store, Tensor,
    Update, UpdateFault,
};
use lunette_runtime::arena::Exposed;
use lunette_runtime::time;

use crate::scene::{Coordinator, LONG, in_chunks, memory, name, patterned, run, until};

/// Rows of each tensor: together three buckets of 128 KiB, one of which is longer.
const ROWS: [u64; 5] = [40, 60, 200, 7, 90];
const COLUMNS: u64 = 1024;

/// Tensors in two buffers, with a gap, and their memory.
fn weights() -> (Vec<Exposed>, Vec<Tensor>) {
    let mut tensors = Vec::new();
    let mut ends = [0, 100];
    for (at, rows) in (0..).zip(ROWS) {
        let buffer = at % 2;
        let end = &mut ends[buffer as usize];
        let shape = vec![rows, COLUMNS];
        tensors.push(Tensor::whole(
            format!("t{at}"),
            Dtype::U8,
            shape,
            buffer,
            *end,
        ));
        *end += rows * COLUMNS;
    }
    let buffers = ends.into_iter().enumerate();
    let buffers = buffers.map(|(seed, len)| patterned(usize::try_from(len).expect("small"), seed));
    (buffers.collect(), tensors)
}

async fn offer(store: &Store) -> Offer {
    let (buffers, tensors) = weights();
    let options = OfferOptions {
        bucket_bytes: 128 << 10,
        register: in_chunks(),
    };
    let offered = store.offer(&name("w"), &buffers, tensors, options).await;
    offered.expect("offered")
}

async fn manifest(store: &Store) -> Manifest {
    let told = store.offered(&name("w"), LONG).await;
    told.expect("told")
}

async fn follow(store: &Store, slots: usize, parts: Parts) -> (Update, Vec<Exposed>) {
    let manifest = manifest(store).await;
    let len = usize::try_from(manifest.slot_bytes()).expect("small");
    let slots: Vec<_> = (0..slots).map(|_| memory(len)).collect();
    let options = FollowOptions {
        parts,
        patience: LONG,
        ..FollowOptions::default()
    };
    let update = store.follow(&name("w"), manifest, slots.clone(), options);
    (update.expect("begun"), slots)
}

/// The rows of a tensor that are in a slot are those of the weights.
fn assert_is_right(lent: &LentBucket, slots: &[Exposed]) {
    let (buffers, tensors) = weights();
    for here in &lent.tensors {
        let whole = tensors.iter().find(|it| it.name == here.name);
        let whole = whole.expect("a tensor of it");
        let skipped = here.block.start[0] * COLUMNS;
        let (at, len) = (
            whole.offset_bytes + skipped,
            here.len_bytes().expect("bytes"),
        );
        let part = |from: &Exposed, at: u64| {
            let short = |number| usize::try_from(number).expect("small");
            from.slice(short(at), short(len)).to_vec()
        };
        let came = part(&slots[here.buffer as usize], here.offset_bytes);
        assert!(
            came == part(&buffers[whole.buffer as usize], at),
            "{here:?}"
        );
    }
}

/// Takes all that is left: names of tensors, in the order in which they came.
async fn take(update: &Update, slots: &[Exposed], mut last: Option<u32>) -> Vec<String> {
    let mut names = Vec::new();
    while let Some(lent) = update.next(last).await.expect("it comes") {
        // What is not said to be copied is told again.
        assert_eq!(update.next(last).await, Ok(Some(lent.clone())));
        assert!(last < Some(lent.bucket), "in their order");
        last = Some(lent.bucket);
        assert_is_right(&lent, slots);
        names.extend(lent.tensors.into_iter().map(|it| it.name));
    }
    names
}

#[test]
fn ranks_take_all_through_a_few_slots_and_feed_each_other() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store_over_connections().await;
        let offered = offer(&origin).await;
        assert!(offered.buckets() > 3, "more than there are slots");
        let mut ranks = Vec::new();
        for slots in [2, 3, 4] {
            let store = coordinator.store_over_connections().await;
            let (update, slots) = follow(&store, slots, Parts::All).await;
            ranks.push((store, update, slots));
        }
        for (_, update, slots) in &ranks {
            let mut names = take(update, slots, None).await;
            names.sort();
            assert_eq!(names, ["t0", "t1", "t2", "t3", "t4"]);
            let copied = usize::try_from(update.progress().0).expect("few");
            assert_eq!(
                (copied, offered.buckets()),
                (offered.buckets(), update.progress().1)
            );
            assert_eq!(update.next(None).await, Ok(None), "and again");
        }
        let id = offered.id();
        offered.withdraw().await;
        // The last buckets are served on by ranks, also when nobody offers them any more.
        let last = u32::try_from(offered.buckets()).expect("few") - 1;
        let last = Manifest::bucket_name(&name("w"), id, last).expect("a name");
        let (store, ..) = &ranks[0];
        assert!(store.find(&last).await.expect("asked").is_some());
        for (_, update, _) in &ranks {
            update.close().await;
            assert_eq!(update.next(None).await, Ok(None), "it was complete");
        }
        // Whoever has offered it sees that nobody has any of it, within a third of a lease.
        let nothing = async || store.list("w").await == Ok(Vec::new());
        until("nothing is left of it", nothing).await;
    });
}

#[test]
fn ranks_that_fail_stop_nobody() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let _offered = offer(&origin).await;
        // One stands still with a bucket that it was lent, one is gone behind its first, one never takes any.
        let still = coordinator.store().await;
        let (stands, slots) = follow(&still, 2, Parts::All).await;
        let lent = stands.next(None).await.expect("it comes").expect("one");
        let gone = coordinator.store().await;
        let (left, _) = follow(&gone, 3, Parts::All).await;
        drop(left.next(None).await.expect("it comes"));
        let idle = coordinator.store().await;
        let (never, _) = follow(&idle, 2, Parts::All).await;
        let well = coordinator.store().await;
        let (update, its_slots) = follow(&well, 2, Parts::All).await;
        assert_is_right(&update.next(None).await.unwrap().expect("one"), &its_slots);
        drop((left, gone));
        let mut names = take(&update, &its_slots, None).await;
        names.sort();
        assert!(names.len() >= 3, "{names:?}");
        assert_eq!(update.progress().0 as usize, update.progress().1);
        // What it was lent is as it was, for as long as it looks at it.
        assert_is_right(&lent, &slots);
        for update in [&stands, &never, &update] {
            update.close().await;
        }
        assert_eq!(stands.next(None).await, Err(UpdateFault::Stopped));
    });
}

#[test]
fn a_rank_takes_its_parts_and_no_buckets_without() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let _offered = offer(&origin).await;
        let store = coordinator.store().await;
        let block = |start, rows| Block {
            start: vec![start, 0],
            shape: vec![rows, COLUMNS],
        };
        let blocks = BTreeMap::from([
            ("t2".to_owned(), block(150, 50)),
            ("t4".to_owned(), block(0, 3)),
            ("not there".to_owned(), block(0, 1)),
        ]);
        for keep_chunks in [false, true] {
            let parts = Parts::Of {
                blocks: blocks.clone(),
                keep_chunks,
            };
            let (update, slots) = follow(&store, 2, parts).await;
            assert_eq!(take(&update, &slots, None).await, ["t2", "t4"]);
            update.close().await;
        }
        let wrong = BTreeMap::from([("t2".to_owned(), block(200, 1))]);
        let parts = Parts::Of {
            blocks: wrong,
            keep_chunks: false,
        };
        let (update, _) = follow(&store, 2, parts).await;
        let fault = update.next(None).await.expect_err("it is outside");
        assert!(
            matches!(fault, UpdateFault::Hold(HoldFault::Slices(_))),
            "{fault}"
        );
        update.close().await;
    });
}

#[test]
fn what_is_not_to_be_had_fails_with_its_cause() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let offered = offer(&origin).await;
        let store = coordinator.store().await;
        let told = manifest(&store).await;
        offered.withdraw().await;
        let slot = || memory(usize::try_from(told.slot_bytes()).expect("small"));
        let options = FollowOptions {
            tries_max: 2,
            ..FollowOptions::default()
        };
        let follow = |slots| store.follow(&name("w"), told.clone(), slots, options.clone());
        let update = follow(vec![slot(), slot()]).expect("begun");
        let fault = update.next(None).await.expect_err("nobody has it");
        assert!(
            matches!(fault, UpdateFault::Hold(HoldFault::NotFound { .. })),
            "{fault}"
        );
        assert_eq!(update.next(None).await, Err(fault), "and again");
        update.close().await;
        for slots in [vec![], vec![slot()], vec![slot(), memory(256)]] {
            let refused = follow(slots).expect_err("too little memory");
            assert!(matches!(refused, UpdateFault::Slots { .. }), "{refused}");
        }
    });
}

#[test]
fn what_is_no_update_is_refused() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let (buffers, tensors) = weights();
        let w = name("w");
        let held = origin.register(&w, buffers.clone(), in_chunks()).await;
        let held = held.expect("registered");
        let store = coordinator.store().await;
        let refused = store.offered(&name("w"), LONG).await;
        assert_eq!(refused, Err(ManifestFault::NoManifest.into()));
        let options = OfferOptions {
            bucket_bytes: 1,
            register: in_chunks(),
        };
        // The name is taken, which is seen when all buckets are there; they are gone again.
        let taken = origin
            .offer(&name("w"), &buffers, tensors.clone(), options)
            .await;
        let is_taken = matches!(taken, Err(UpdateFault::Hold(HoldFault::NameTaken { .. })));
        assert!(is_taken);
        let names = store.list("w").await.expect("asked");
        assert_eq!(names.len(), 1, "{names:?}");
        let mut outside = tensors.clone();
        outside[0].offset_bytes = 1 << 40;
        let outside = origin.offer(&name("x"), &buffers, outside, options).await;
        assert!(matches!(outside, Err(UpdateFault::Layout(_))));
        let long = name(&"n".repeat(190));
        let long = origin.offer(&long, &buffers, tensors, options).await;
        assert!(matches!(long, Err(UpdateFault::Name(_))));
        let none = origin.offer(&name("x"), &buffers, vec![], options).await;
        assert!(matches!(none, Err(UpdateFault::Pack(_))));
        assert!(held.unregister().await.len() == 2);
        time::yield_now().await;
        assert_eq!(store.list("").await, Ok(Vec::new()));
    });
}
