//! Any batches, beside memory of the test: what a batch has moved is where it belongs, in whatever pieces and by
//! whatever way, and nothing else has changed.

use lunette_runtime::arena::Exposed;
use lunette_transfer::engine::{Batch, DeviceSegment, RegisterOptions, RemoteSegment};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{PATHS, Pair, done, in_world};
use crate::scene::{KIB, memory, pattern};

/// Length of each memory: longer than a piece.
const LEN: usize = 1300 * KIB;

/// One request: of which memory here and there, and which bytes.
#[derive(Clone, Copy, Debug)]
struct Step {
    is_write: bool,
    /// Device, or memory of this machine.
    is_device: bool,
    /// The device there, its neighbour on the device here, or memory.
    there: usize,
    here_at: usize,
    there_at: usize,
    len: usize,
}

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let len = prop_oneof![6 => 0..9_usize, 6 => 0..5000_usize, 1 => 0..LEN];
    let step = (any::<[bool; 2]>(), 0..3_usize, 0..LEN, 0..LEN, len);
    let step = step.prop_map(
        |([is_write, is_device], there, here_at, there_at, len)| Step {
            is_write,
            is_device,
            there,
            here_at,
            there_at,
            len: len.min(LEN - here_at.max(there_at)),
        },
    );
    vec(vec(step, 1..12), 1..4)
}

fn meets(one: (usize, usize), other: (usize, usize), len: (usize, usize)) -> bool {
    one.0 == other.0 && one.1 < other.1 + len.1 && other.1 < one.1 + len.0
}

/// Requests of one batch have no order: those that meet where another writes are left out.
fn without_races(batch: Vec<Step>) -> Vec<Step> {
    let mut kept: Vec<Step> = Vec::new();
    let here = |step: &Step| (usize::from(step.is_device), step.here_at);
    let there = |step: &Step| (step.there, step.there_at);
    for step in batch {
        let races = |other: &Step| {
            let len = (step.len, other.len);
            let reads_here = step.is_write && other.is_write;
            let reads_there = !step.is_write && !other.is_write;
            !reads_here && meets(here(&step), here(other), len)
                || !reads_there && meets(there(&step), there(other), len)
        };
        if !kept.iter().any(races) {
            kept.push(step);
        }
    }
    kept
}

struct Scene {
    pair: Pair,
    device: DeviceSegment,
    host: Exposed,
    far: DeviceSegment,
    beside: DeviceSegment,
    memory: Exposed,
    remotes: Vec<RemoteSegment>,
}

impl Scene {
    async fn new(pair: Pair) -> Self {
        let device = pair.near.full_of(&pattern(LEN, 1)).await;
        let host = memory(LEN);
        host.copy_in(0, &pattern(LEN, 2));
        let far = pair.far.full_of(&pattern(LEN, 3)).await;
        let beside = pair.near.full_of(&pattern(LEN, 4)).await;
        let memory = memory(LEN);
        memory.copy_in(0, &pattern(LEN, 5));
        let named = RegisterOptions::named("memory");
        pair.there
            .register(memory.clone(), &named)
            .expect("registered");
        let remotes = vec![
            pair.register("far", &far).await,
            pair.register("beside", &beside).await,
            pair.peer.segment("memory").await.expect("a segment"),
        ];
        Self {
            pair,
            device,
            host,
            far,
            beside,
            memory,
            remotes,
        }
    }

    fn batch(&self, steps: &[Step]) -> Batch {
        let mut batch = Batch::new();
        for step in steps {
            let (remote, at) = (&self.remotes[step.there], step.there_at as u64);
            let end = step.here_at + step.len;
            let host = || self.host.slice(step.here_at, step.len);
            let device = || self.device.slice(step.here_at as u64..end as u64);
            let added = match (step.is_device, step.is_write) {
                (true, true) => batch.write_device(&device(), remote, at),
                (true, false) => batch.read_device(&device(), remote, at),
                (false, true) => batch.write(host(), remote, at),
                (false, false) => batch.read(host(), remote, at),
            };
            added.expect("inside");
        }
        batch
    }

    /// All memories: those here, and those there.
    async fn found(&self) -> [Vec<u8>; 5] {
        [
            self.host.to_vec(),
            self.pair.near.bytes_of(&self.device).await,
            self.pair.far.bytes_of(&self.far).await,
            self.pair.near.bytes_of(&self.beside).await,
            self.memory.to_vec(),
        ]
    }
}

fn step_of_model(model: &mut [Vec<u8>; 5], step: &Step) {
    let here = usize::from(step.is_device);
    let there = 2 + step.there;
    let (at, to) = (step.here_at, step.there_at);
    if step.is_write {
        let bytes = model[here][at..at + step.len].to_vec();
        model[there][to..to + step.len].copy_from_slice(&bytes);
    } else {
        let bytes = model[there][to..to + step.len].to_vec();
        model[here][at..at + step.len].copy_from_slice(&bytes);
    }
}

#[test]
fn any_batches_move_what_a_model_moves() {
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(16)
    };
    let mut runner = TestRunner::new(config);
    let result = runner.run(&steps(), |batches| {
        in_world(1, || async move {
            for path in PATHS {
                let scene = Scene::new(Pair::new(path).await).await;
                let mut model = scene.found().await;
                for steps in batches.clone() {
                    let steps = without_races(steps);
                    done(&scene.pair.peer, &scene.batch(&steps)).await;
                    for step in &steps {
                        step_of_model(&mut model, step);
                    }
                    assert!(scene.found().await == model, "{path:?} {steps:?}");
                }
            }
        });
        Ok(())
    });
    result.expect("as the model");
}
