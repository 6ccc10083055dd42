//! One of two rails loses what it carries, or comes and goes: its slices go the other way within the deadline, and
//! it carries again when it is back.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::sim::{Outcome, World};
use lunette_runtime::time;
use lunette_transfer::engine::{
    Batch, Done, Engine, Peer, PostOptions, RailStatistics, RegisterOptions, RemoteSegment,
};

use super::rails::{HERE, Processes, RAILS, addresses, world};
use crate::scene::{MIB, full_of, guarded};

const SEEDS: u64 = 4;
const LEN: usize = 2 * MIB;
/// Of each transfer. None may fail.
const DEADLINE: Duration = Duration::from_secs(3);
/// How long a rail that is back may pause still: as long as it was away, and what it takes to be connected.
const BACK_MAX: Duration = Duration::from_secs(12);

/// What is seen of somebody who writes and reads without end.
#[derive(Default)]
struct Watch {
    rounds: Cell<u32>,
    /// Slices that were sent again, or taken back.
    went_another_way: Cell<u64>,
    rails: RefCell<Vec<RailStatistics>>,
}

impl Watch {
    fn carries(&self, rail: usize) -> bool {
        let rails = self.rails.borrow();
        let found = rails.get(rail);
        found.is_some_and(|rail| rail.is_up && rail.under_way_bytes > 0)
    }

    fn connections(&self, rail: usize) -> u32 {
        self.rails.borrow()[rail].connections
    }
}

struct Scene {
    seed: u64,
    world: World,
    watch: Rc<Watch>,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let (mut world, Processes { client, .. }) = world(seed, move |engine| async move {
            let registered = engine.register(full_of(0, LEN), &RegisterOptions::named("kv"));
            registered.expect("registered");
            std::future::pending::<()>().await;
        });
        let watch = Rc::<Watch>::default();
        let seen = Rc::clone(&watch);
        drop::<Outcome<()>>(world.spawn(client, 0, move || async move {
            let engine = Engine::start(guarded()).expect("an engine");
            let peer = engine.open(&addresses()).await.expect("a peer");
            let remote = peer.segment("kv").await.expect("a segment");
            let (watched, rails) = (peer.clone(), Rc::clone(&seen));
            let watching = lunette_runtime::spawn_local(async move {
                loop {
                    *rails.rails.borrow_mut() = watched.rails();
                    time::sleep(Duration::from_millis(1)).await;
                }
            });
            for byte in (0..=u8::MAX).cycle() {
                round(&peer, &remote, byte, &seen, seed).await;
            }
            drop(watching);
        }));
        world.run_for(Duration::from_millis(200));
        let scene = Self { seed, world, watch };
        for rail in 0..RAILS.len() {
            assert_eq!(scene.watch.connections(rail), 1, "seed {seed}: rail {rail}");
        }
        scene
    }

    fn cut(&mut self, rail: usize) {
        self.world.cut(HERE, RAILS[rail]);
        self.world.cut(RAILS[rail], HERE);
    }

    fn mend(&mut self, rail: usize) {
        self.world.mend(HERE, RAILS[rail]);
        self.world.mend(RAILS[rail], HERE);
    }

    /// Runs until so many more rounds are done.
    fn rounds(&mut self, count: u32, what: &str) {
        let wanted = self.watch.rounds.get() + count;
        let until = self.world.now() + DEADLINE * 2 * count;
        let watch = Rc::clone(&self.watch);
        let are_done = self.world.run_until(until, || watch.rounds.get() >= wanted);
        assert!(are_done, "seed {}: {what}: it stands still", self.seed);
    }

    /// Runs until a rail has bytes under way.
    fn back(&mut self, rail: usize) {
        let until = self.world.now() + BACK_MAX;
        let watch = Rc::clone(&self.watch);
        let is_back = self.world.run_until(until, || watch.carries(rail));
        let rails = self.watch.rails.borrow();
        assert!(is_back, "seed {}: rail {rail}: {rails:?}", self.seed);
    }
}

/// Writes, and reads back what was written.
async fn round(peer: &Peer, remote: &RemoteSegment, byte: u8, watch: &Watch, seed: u64) {
    let target = full_of(!byte, LEN);
    let (mut write, mut read) = (Batch::new(), Batch::new());
    let written = write.write(full_of(byte, LEN), remote, 0);
    written.expect("a write");
    read.read(target.clone(), remote, 0).expect("a read");
    for batch in [write, read] {
        let options = PostOptions {
            timeout: DEADLINE,
            ..PostOptions::default()
        };
        let ended = peer.post(&batch, options).expect("posted").await;
        let Done { resent, stolen, .. } =
            ended.unwrap_or_else(|error| unreachable!("seed {seed}: {error}, {:?}", peer.rails()));
        let so_far = watch.went_another_way.get();
        watch.went_another_way.set(so_far + resent + stolen);
    }
    assert!(target.to_vec() == vec![byte; LEN], "seed {seed}: {byte}");
    watch.rounds.set(watch.rounds.get() + 1);
}

#[test]
fn what_is_lost_on_the_way_delays_a_rail_and_goes_another_way() {
    let mut went_another_way = 0;
    for seed in 0..SEEDS {
        let mut scene = Scene::new(seed);
        // What is lost again and again is waited for: then that is how long answers take on such a rail.
        scene.world.set_network_faults(4, 0);
        scene.rounds(30, "bytes are lost");
        let losses = scene.world.fault_counts().losses;
        assert!(losses > 2, "seed {seed}: {losses} losses");
        went_another_way += scene.watch.went_another_way.get();
    }
    assert!(went_another_way > 2 * SEEDS, "{went_another_way} slices");
}

#[test]
fn a_rail_that_goes_and_comes_back_twice_is_left_in_time_and_carries_again() {
    for seed in 0..SEEDS {
        let mut scene = Scene::new(seed);
        for away in [Duration::from_millis(2500), Duration::from_millis(1500)] {
            let so_far = scene.watch.went_another_way.get();
            scene.cut(1);
            scene.rounds(1, "one rail is cut");
            scene.world.run_for(away);
            let since = scene.watch.went_another_way.get() - so_far;
            assert!(since > 0, "seed {seed}: slices went another way");
            scene.rounds(3, "over the other rail alone");
            scene.mend(1);
            scene.back(1);
        }
        // It is the only one now.
        scene.cut(0);
        scene.rounds(4, "over the rail that was down");
        scene.mend(0);
        scene.back(0);
    }
}

#[test]
fn a_rail_that_flaps_without_end_holds_nothing_up_and_carries_when_it_stays() {
    for seed in 0..SEEDS {
        let mut scene = Scene::new(seed);
        let before = scene.watch.rounds.get();
        for _ in 0..40 {
            scene.cut(1);
            scene.world.run_for(Duration::from_millis(170));
            scene.mend(1);
            scene.world.run_for(Duration::from_millis(30));
        }
        let rounds = scene.watch.rounds.get() - before;
        // In 8 seconds. Over the other rail alone a round takes 84 ms.
        assert!(rounds > 20, "seed {seed}: {rounds} rounds");
        scene.back(1);
        scene.cut(0);
        scene.rounds(4, "over the rail that flapped");
    }
}
