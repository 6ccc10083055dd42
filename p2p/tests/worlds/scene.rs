//! A world with a coordinator, and stores in it.

use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use lunette_auth::{Policy, Secrets};
use lunette_cluster::{ClientOptions, Hosted, serve};
use lunette_p2p::{ObjectName, RegisterOptions, Store, StoreOptions};
use lunette_runtime::CoreOptions;
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::net::TcpListener;
use lunette_runtime::sim::{World, WorldOptions};
use lunette_transfer::engine::EngineOptions;

pub(crate) const COORDINATOR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 0));
const PORT: u16 = 2379;
pub(crate) const CHUNK_BYTES: u32 = 16 << 10;
pub(crate) const OPTIONS: RegisterOptions = RegisterOptions {
    chunk_bytes: CHUNK_BYTES,
    may_replace: false,
};
/// Longer than anything takes, in the world's time.
pub(crate) const LONG: Duration = Duration::from_secs(300);

pub(crate) const fn host(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, number))
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let bytes = (0..len).map(|at| (at / 4096 * 7 + at * 13) % 251);
    bytes
        .map(|byte| u8::try_from(byte).expect("below 251"))
        .collect()
}

/// Of the object that most scenes are about.
pub(crate) fn name() -> ObjectName {
    "object".parse().expect("a name")
}

/// Registers it, with so many bytes of [`pattern`].
pub(crate) async fn register(store: &Store, len: usize) {
    let memory = memory(len);
    memory.copy_in(0, &pattern(len));
    let registered = store.register(&name(), vec![memory], OPTIONS).await;
    registered.expect("registered");
}

pub(crate) fn memory(len: usize) -> Exposed {
    Exposed::map(len, HugePages::Never, &mut Vec::new()).expect("memory")
}

/// One with slow links, and a coordinator in it.
pub(crate) fn world(seed: u64) -> World {
    world_with(seed, WorldOptions::default())
}

/// One that is so, but for its links' speed.
pub(crate) fn world_with(seed: u64, options: WorldOptions) -> World {
    let options = WorldOptions {
        bytes_per_second: 4_000_000,
        losses_per_mille: 0,
        ..options
    };
    let mut world = World::new(seed, options);
    let coordinator = world.start(COORDINATOR, 1, CoreOptions::default());
    drop(world.spawn(coordinator, 0, || async {
        let listener = TcpListener::bind(SocketAddr::new(COORDINATOR, PORT));
        let listener = listener.expect("the port is free");
        serve(listener, Hosted::in_memory(), None, pending()).await;
    }));
    world
}

pub(crate) async fn store(at: IpAddr) -> Store {
    let secrets = Secrets::parse(b"0123456789abcdef0123456789abcdef");
    let engine = EngineOptions {
        listen: vec![SocketAddr::new(at, 700)],
        policy: Policy::Authenticated(secrets.expect("a secret")),
        ..EngineOptions::default()
    };
    let coordinator = ClientOptions {
        endpoints: vec![SocketAddr::new(COORDINATOR, PORT)],
        security: None,
        silence_max: LONG,
    };
    let mut options = StoreOptions::new(engine, coordinator);
    options.lease_ttl_s = 2;
    Store::start(options).await.expect("a store")
}
