//! Memory of devices as this side of requests: from and to memory, devices and files, of a peer over TCP, of one on
//! this host, and of the engine itself.
//!
//! | module | what it proves |
//! |---|---|
//! | `moving` | bytes go where they belong, and nowhere else; several pieces are on their way at a time |
//! | `faults` | what a device does not copy fails alone and says which side it was; what was dropped, killed or too slow |
//! | `handles` | engines of one host that trust each other: what one device copies from and to the other's memory |
//! | `lent` | memory that threads register, at engines of one core and of several |
//! | `processes` | the same between two processes, on a driver that the test builds |
//! | `gpu` | a device that is opened here |
//! | `model` | any batches, beside memory of the test |
mod faults;
pub(crate) mod gpu;
mod handles;
mod lent;
mod model;
mod moving;
mod processes;

use lunette_gpu::fake::{FakeMachine, FakeOptions};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};

use lunette_runtime::CoreOptions;
use lunette_runtime::sim::{World, WorldOptions};
use lunette_transfer::engine::{
    Batch, DeviceSegment, Engine, EngineOptions, Peer, RegisterOptions, RemoteSegment,
};

use gpu::Gpu;

use super::scene::{options, post};
use super::worlds::rails::finish;

/// How two engines meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Tcp,
    SameHost,
    Own,
}

const PATHS: [Path; 3] = [Path::Tcp, Path::SameHost, Path::Own];

/// Two engines, or one that asks itself, and a device of each.
struct Pair {
    here: Engine,
    there: Engine,
    peer: Peer,
    machine: FakeMachine,
    near: Gpu,
    far: Gpu,
}

impl Pair {
    async fn new(path: Path) -> Self {
        Self::with(path, FakeOptions::default(), options()).await
    }

    async fn with(path: Path, fake: FakeOptions, options: EngineOptions) -> Self {
        let engine = || {
            Engine::start(EngineOptions {
                same_host: path == Path::SameHost,
                ..options.clone()
            })
            .expect("an engine")
        };
        let here = engine();
        let there = if path == Path::Own {
            here.clone()
        } else {
            engine()
        };
        let peer = here.open(there.addresses()).await.expect("open");
        assert_eq!(peer.is_self(), path == Path::Own);
        let machine = FakeMachine::new(5);
        let (near, far) = (machine.add_device(fake.clone()), machine.add_device(fake));
        let (near, far) = (Gpu::open(&machine, near), Gpu::open(&machine, far));
        Self {
            here,
            there,
            peer,
            machine,
            near,
            far,
        }
    }

    /// Registers memory of a device with the peer's engine.
    async fn register(&self, name: &str, memory: &DeviceSegment) -> RemoteSegment {
        let registered = self
            .there
            .register_device(memory.clone(), &RegisterOptions::named(name));
        registered.expect("registered");
        self.peer.segment(name).await.expect("a segment")
    }
}

fn read(to: &DeviceSegment, remote: &RemoteSegment, offset: usize) -> Batch {
    let mut batch = Batch::new();
    batch
        .read_device(to, remote, offset as u64)
        .expect("a read");
    batch
}

fn write(from: &DeviceSegment, remote: &RemoteSegment, offset: usize) -> Batch {
    let mut batch = Batch::new();
    batch
        .write_device(from, remote, offset as u64)
        .expect("a write");
    batch
}

async fn done(peer: &Peer, batch: &Batch) {
    post(peer, batch).await.expect("done");
}

/// Runs a scenario in a world alone, whose time is its own.
fn in_world<F: Future<Output = ()> + 'static>(seed: u64, scenario: impl FnOnce() -> F + 'static) {
    // What is lost on the way takes longer to come again than most of what is timed here.
    let options = WorldOptions {
        losses_per_mille: 0,
        ..WorldOptions::default()
    };
    let mut world = World::new(seed, options);
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let process = world.start(host, 1, CoreOptions::default());
    let done = world.spawn(process, 0, scenario);
    finish(&mut world, 600, &done);
}
