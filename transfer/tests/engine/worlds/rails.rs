//! Worlds of two hosts with two rails between them.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use lunette_runtime::CoreOptions;
use lunette_runtime::sim::{Outcome, ProcessId, World, WorldOptions};
use lunette_transfer::engine::{Engine, EngineOptions};

use crate::scene::guarded;

/// Who asks.
pub(crate) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// The server's addresses: a rail to each.
pub(crate) const RAILS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    IpAddr::V4(Ipv4Addr::new(10, 0, 1, 2)),
];
const PORT: u16 = 700;

/// Where the server listens.
pub(crate) fn addresses() -> Vec<SocketAddr> {
    RAILS.map(|ip| SocketAddr::from((ip, PORT))).to_vec()
}

/// The processes of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processes {
    pub(crate) server: ProcessId,
    pub(crate) client: ProcessId,
}

/// A world in which `serve` has the server's engine.
pub(crate) fn world<F: Future<Output = ()> + 'static>(
    seed: u64,
    serve: impl FnOnce(Engine) -> F + 'static,
) -> (World, Processes) {
    let options = WorldOptions {
        bytes_per_second: 50_000_000,
        losses_per_mille: 0,
        ..WorldOptions::default()
    };
    let mut world = World::new(seed, options);
    let server = world.start(RAILS[0], 1, CoreOptions::default());
    world.add_address(RAILS[0], RAILS[1]);
    let client = world.start(HERE, 1, CoreOptions::default());
    drop(world.spawn(server, 0, move || async move {
        let options = EngineOptions {
            listen: addresses(),
            ..guarded()
        };
        serve(Engine::start(options).expect("an engine")).await;
    }));
    world.run_for(Duration::from_millis(10));
    (world, Processes { server, client })
}

/// Runs a world until something is there.
pub(crate) fn finish<T>(world: &mut World, seconds: u64, outcome: &Outcome<T>) -> T {
    let until = world.now() + Duration::from_secs(seconds);
    let ended = world.run_until(until, || outcome.is_there());
    assert!(ended, "it does not end");
    outcome.take().expect("it is there")
}
