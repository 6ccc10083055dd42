//! Weights that ranks take in buckets, over links that lose, damage and are cut, and one of which dies.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use lunette_p2p::{
    Dtype, FollowOptions, LentBucket, ObjectName, OfferOptions, RegisterOptions, Store, Tensor,
};
use lunette_runtime::arena::Exposed;
use lunette_runtime::sim::{Kill, Outcome, ProcessId, World};
use lunette_runtime::{CoreOptions, spawn_local, time};

use crate::scene::{CHUNK_BYTES, LONG, host, memory, pattern, store, world};

/// Of each tensor, in bytes: buckets of some, and one of a tensor that is longer.
const LENS: [u64; 8] = [
    70_000, 50_000, 200_000, 9000, 90_000, 120_000, 61_000, 100_000,
];
const BUCKET_BYTES: u64 = 128 << 10;
/// How long a bucket may take each time: less than a rank is cut off.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many buckets that makes.
const BUCKETS: u32 = 6;

fn name() -> ObjectName {
    "weights".parse().expect("a name")
}

fn tensors() -> Vec<Tensor> {
    let mut end = 0;
    let each = (0..).zip(LENS).map(|(at, len): (u32, u64)| {
        let offset_bytes = end;
        end += len;
        Tensor::whole(format!("t{at}"), Dtype::U8, vec![len], 0, offset_bytes)
    });
    each.collect()
}

fn len() -> usize {
    usize::try_from(LENS.iter().sum::<u64>()).expect("short")
}

/// What is in a slot goes to where the weights are.
fn copy(lent: &LentBucket, slots: &[Exposed], weights: &Exposed) {
    let short = |number| usize::try_from(number).expect("short");
    for here in &lent.tensors {
        let tensors = tensors();
        let whole = tensors.iter().find(|it| it.name == here.name);
        let at = short(whole.expect("a tensor of it").offset_bytes);
        let len = short(here.len_bytes().expect("bytes"));
        let from = slots[here.buffer as usize].slice(short(here.offset_bytes), len);
        weights.copy_from(at, &from);
    }
}

/// Takes all of it. How far that has come is seen.
async fn take(store: &Store, slots: usize, seen: &Cell<u32>) -> Vec<u8> {
    let manifest = store.offered(&name(), LONG).await.expect("told");
    let slot_bytes = usize::try_from(manifest.slot_bytes()).expect("short");
    let slots: Vec<_> = (0..slots).map(|_| memory(slot_bytes)).collect();
    let options = FollowOptions {
        patience: PATIENCE,
        ..FollowOptions::default()
    };
    let update = store.follow(&name(), manifest, slots.clone(), options);
    let update = update.expect("begun");
    let weights = memory(len());
    let mut last = None;
    while let Some(lent) = update.next(last).await.expect("it comes") {
        copy(&lent, &slots, &weights);
        time::sleep(Duration::from_millis(3)).await;
        last = Some(lent.bucket);
        seen.set(lent.bucket + 1);
    }
    assert_eq!(update.progress(), (BUCKETS, BUCKETS as usize));
    // The last buckets are served on.
    drop(spawn_local(async move {
        pending::<()>().await;
        drop(update);
    }));
    weights.to_vec()
}

/// An origin that offers, and ranks that follow.
struct Town {
    world: World,
    ranks: Vec<Rank>,
}

struct Rank {
    process: ProcessId,
    /// The weights that it has in the end.
    outcome: Outcome<Vec<u8>>,
    /// How many buckets it was lent.
    taken: Rc<Cell<u32>>,
}

impl Town {
    /// One with ranks of so many slots.
    fn new(seed: u64, slots: &[usize]) -> Self {
        let mut world = world(seed);
        let origin = world.start(host(1), 1, CoreOptions::default());
        drop(world.spawn(origin, 0, || async {
            let store = store(host(1)).await;
            let weights = memory(len());
            weights.copy_in(0, &pattern(len()));
            let options = OfferOptions {
                bucket_bytes: BUCKET_BYTES,
                register: RegisterOptions {
                    chunk_bytes: CHUNK_BYTES,
                    may_replace: false,
                },
            };
            let offered = store
                .offer(&name(), vec![weights], tensors(), options)
                .await;
            let offered = offered.expect("offered");
            assert_eq!(offered.buckets(), BUCKETS as usize);
            pending::<()>().await;
        }));
        world.run_for(Duration::from_millis(400));
        let ranks = (2..).zip(slots).map(|(number, &slots)| {
            let process = world.start(host(number), 1, CoreOptions::default());
            let taken = Rc::new(Cell::new(0));
            let seen = Rc::clone(&taken);
            let outcome = world.spawn(process, 0, move || async move {
                let store = store(host(number)).await;
                take(&store, slots, &seen).await
            });
            Rank {
                process,
                outcome,
                taken,
            }
        });
        let ranks = ranks.collect();
        Self { world, ranks }
    }

    /// Until a rank was lent so many buckets.
    fn until_taken(&mut self, rank: usize, buckets: u32) {
        let taken = Rc::clone(&self.ranks[rank].taken);
        let until = self.world.now() + LONG;
        let is_there = self.world.run_until(until, || taken.get() >= buckets);
        assert!(is_there, "rank {rank} was lent {} buckets", taken.get());
    }

    /// All of these end, with what was offered.
    fn finish(&mut self, seed: u64, ranks: &[usize]) {
        let until = self.world.now() + LONG;
        for &rank in ranks {
            let Rank { outcome, taken, .. } = &self.ranks[rank];
            let is_over = self.world.run_until(until, || outcome.is_there());
            let buckets = taken.get();
            assert!(
                is_over,
                "seed {seed}: rank {rank} was lent {buckets} buckets"
            );
            let is_right = outcome.take().is_some_and(|it| it == pattern(len()));
            assert!(is_right, "seed {seed}: rank {rank} has other bytes");
        }
    }
}

#[test]
fn ranks_over_lossy_links_finish_without_one_that_dies_and_one_link() {
    for seed in 0..4 {
        let mut town = Town::new(seed, &[2, 3, 4, 3]);
        town.world.set_network_faults(2, 200);
        // Two that never hear of each other's chunks.
        town.world.cut(host(2), host(3));
        town.world.cut(host(3), host(2));
        town.until_taken(3, 2);
        assert!(town.ranks[3].taken.get() < BUCKETS, "it is on its way");
        let dies = town.ranks[3].process;
        town.world.kill(dies, Kill::PowerLoss);
        town.finish(seed, &[0, 1, 2]);
    }
}

#[test]
fn a_rank_that_is_cut_off_goes_on_when_it_is_back() {
    for seed in 0..2 {
        let mut town = Town::new(seed, &[3, 2, 3]);
        town.until_taken(1, 1);
        for other in [1, 2, 4] {
            town.world.cut(host(3), host(other));
            town.world.cut(host(other), host(3));
        }
        // The others are done before it: what it lacks only the origin has.
        town.finish(seed, &[0, 2]);
        assert!(town.ranks[1].taken.get() < BUCKETS, "seed {seed}");
        town.world.run_for(PATIENCE * 2);
        for other in [1, 2, 4] {
            town.world.mend(host(3), host(other));
            town.world.mend(host(other), host(3));
        }
        town.finish(seed, &[1]);
    }
}
