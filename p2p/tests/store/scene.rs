//! Stores, a coordinator, and objects.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use lunette_cluster::{ClientOptions, Hosted, serve};
use lunette_p2p::proto::pace::Patience;
use lunette_p2p::{Held, ObjectName, ReceiveOptions, RegisterOptions, Store, StoreOptions};
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::net::TcpListener;
use lunette_runtime::{CoreOptions, Scope, block_on};
use lunette_transfer::engine::EngineOptions;

pub(crate) const KIB: usize = 1024;
/// Longer than anything takes, also on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn run(test: impl AsyncFnOnce() + 'static) {
    let ran = block_on(
        None,
        CoreOptions::default(),
        move || async move { test().await },
    );
    ran.expect("a core");
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

/// A coordinator that can be taken away.
pub(crate) struct Coordinator {
    address: SocketAddr,
    serving: RefCell<Option<Scope>>,
}

impl Coordinator {
    pub(crate) fn start() -> Self {
        let coordinator = Self {
            address: any(),
            serving: RefCell::default(),
        };
        let listener = TcpListener::bind(any()).expect("a port");
        let address = listener.local_addr();
        coordinator.serve(listener);
        Self {
            address,
            ..coordinator
        }
    }

    fn serve(&self, listener: TcpListener) {
        let scope = Scope::new();
        let hosted = Hosted::in_memory();
        let serving = serve(listener, hosted, None, std::future::pending());
        scope.spawn(serving).expect("a task");
        *self.serving.borrow_mut() = Some(scope);
    }

    /// It goes, with all it knew.
    pub(crate) fn lose(&self) {
        self.serving.borrow_mut().take();
    }

    /// Another one is where it was, and knows nothing.
    pub(crate) async fn come_back(&self) {
        let bound = TcpListener::bind_within(self.address, LONG).await;
        self.serve(bound.expect("the port of before"));
    }

    pub(crate) async fn store(&self) -> Store {
        self.store_with(|_| {}).await
    }

    pub(crate) async fn store_with(&self, change: impl FnOnce(&mut StoreOptions)) -> Store {
        let engine = EngineOptions {
            listen: vec![any()],
            ..EngineOptions::default()
        };
        let coordinator = ClientOptions {
            endpoints: vec![self.address],
            security: None,
            silence_max: LONG,
        };
        let mut options = StoreOptions::new(engine, coordinator);
        options.lease_ttl_s = 1;
        options.swarm.patience = Patience {
            min: Duration::from_millis(20),
            max: Duration::from_secs(2),
        };
        change(&mut options);
        Store::start(options).await.expect("a store")
    }
}

pub(crate) fn name(name: &str) -> ObjectName {
    name.parse().expect("a name")
}

/// Chunks of 64 KiB.
pub(crate) fn in_chunks() -> RegisterOptions {
    RegisterOptions {
        chunk_bytes: 64 << 10,
        may_replace: false,
    }
}

pub(crate) fn memory(len: usize) -> Exposed {
    Exposed::map(len, HugePages::Never, &mut Vec::new()).expect("memory")
}

/// Bytes that differ from chunk to chunk.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    let bytes = (0..len).map(|at| (at / 4096 * 7 + at * 13 + seed) % 251);
    bytes
        .map(|byte| u8::try_from(byte).expect("below 251"))
        .collect()
}

pub(crate) fn patterned(len: usize, seed: usize) -> Exposed {
    let memory = memory(len);
    memory.copy_in(0, &pattern(len, seed));
    memory
}

/// The buffers of most tests: about 40 chunks, one buffer of less than one, and one that is no multiple.
pub(crate) const LENS: [usize; 3] = [1024 * KIB, 7, 1500 * KIB + 3];

pub(crate) fn patterned_buffers() -> Vec<Exposed> {
    let lens = LENS.into_iter().enumerate();
    lens.map(|(seed, len)| patterned(len, seed)).collect()
}

pub(crate) fn empty_buffers() -> Vec<Exposed> {
    LENS.into_iter().map(memory).collect()
}

pub(crate) fn assert_is_the_object(buffers: &[Exposed]) {
    assert_eq!(buffers.len(), LENS.len());
    for (seed, (buffer, len)) in buffers.iter().zip(LENS).enumerate() {
        assert!(buffer.to_vec() == pattern(len, seed), "buffer {seed}");
    }
}

pub(crate) async fn receive(store: &Store, object: &str) -> (Held, Vec<Exposed>) {
    let buffers = empty_buffers();
    let options = ReceiveOptions::default();
    let received = store.receive(&name(object), buffers.clone(), options).await;
    (received.expect("received"), buffers)
}

/// Receives, and waits for all of it.
pub(crate) async fn fetch(store: &Store, object: &str) -> (Held, Vec<Exposed>) {
    let (held, buffers) = receive(store, object).await;
    held.whole(LONG).await.expect("all of it");
    assert_is_the_object(&buffers);
    (held, buffers)
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    for _ in 0..3_000 {
        if is_so().await {
            return;
        }
        lunette_runtime::time::sleep(Duration::from_millis(20)).await;
    }
    unreachable!("{what}");
}
