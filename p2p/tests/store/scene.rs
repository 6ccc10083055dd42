//! Stores, a coordinator (the embedded one, or a real etcd), and objects.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::time::Duration;

use lunette_cluster::proto::coordination::{Ask, KeyRange, Op};
use lunette_cluster::{Client, ClientOptions, Hosted, serve};
use lunette_p2p::proto::catalogue::Catalogue;
use lunette_p2p::proto::pace::Patience;
use lunette_p2p::{Held, ObjectName, ReceiveOptions, RegisterOptions, Store, StoreOptions};
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::net::TcpListener;
use lunette_runtime::{CoreOptions, Scope, block_on};
use lunette_transfer::engine::EngineOptions;

use crate::etcd::Etcd;

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

pub(crate) fn any() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

/// A coordinator that can be taken away.
pub(crate) struct Coordinator {
    address: SocketAddr,
    kind: RefCell<Kind>,
    /// Which cluster's keys its stores see.
    cluster: Cell<u32>,
}

enum Kind {
    /// On this core, while there is a scope.
    Embedded(Option<Scope>),
    Etcd(Etcd),
}

impl Coordinator {
    /// The embedded one, on this core.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind(any()).expect("a port");
        let address = listener.local_addr();
        Self::new(address, Kind::Embedded(Some(serve_on(listener))))
    }

    /// A real etcd; says that `test` is skipped where none is installed.
    pub(crate) fn etcd(test: &str) -> Option<Self> {
        let etcd = Etcd::start(test)?;
        Some(Self::new(etcd.address(), Kind::Etcd(etcd)))
    }

    fn new(address: SocketAddr, kind: Kind) -> Self {
        Self {
            address,
            kind: RefCell::new(kind),
            cluster: Cell::default(),
        }
    }

    /// From now on its stores are another cluster's, which has nothing yet.
    pub(crate) fn begin_anew(&self) {
        self.cluster.set(self.cluster.get() + 1);
    }

    /// It goes without a word: the embedded one with all it knew.
    pub(crate) fn lose(&self) {
        match &mut *self.kind.borrow_mut() {
            Kind::Embedded(serving) => drop(serving.take()),
            Kind::Etcd(etcd) => etcd.kill(),
        }
    }

    /// It is where it was again: an etcd with what it knew, or an embedded one that knows nothing.
    pub(crate) async fn come_back(&self) {
        if let Kind::Etcd(etcd) = &mut *self.kind.borrow_mut() {
            etcd.restart();
            return;
        }
        let bound = TcpListener::bind_within(self.address, LONG).await;
        let serving = serve_on(bound.expect("the port of before"));
        *self.kind.borrow_mut() = Kind::Embedded(Some(serving));
    }

    fn client_options(&self) -> ClientOptions {
        ClientOptions {
            endpoints: vec![self.address],
            security: None,
            silence_max: LONG,
        }
    }

    fn prefix(&self) -> String {
        format!("cluster-{}", self.cluster.get())
    }

    /// It forgets an object's name, and nothing else of it.
    pub(crate) async fn remove_name(&self, object: &ObjectName) {
        let key = Catalogue::new(&self.prefix())
            .expect("a prefix")
            .object_key(object);
        let client = Client::new(self.client_options());
        let removing = Ask::Op(Op::Delete(KeyRange::one(key)));
        client.ask(&removing, LONG).await.expect("removed");
    }

    pub(crate) async fn store(&self) -> Store {
        self.store_with(|_| {}).await
    }

    /// One that is reached over connections, where who serves counts what it serves.
    pub(crate) async fn store_over_connections(&self) -> Store {
        let options = |options: &mut StoreOptions| options.engine.same_host = false;
        self.store_with(options).await
    }

    pub(crate) async fn store_with(&self, change: impl FnOnce(&mut StoreOptions)) -> Store {
        let engine = EngineOptions {
            listen: vec![any()],
            ..EngineOptions::default()
        };
        let mut options = StoreOptions::new(engine, self.client_options());
        options.prefix = self.prefix();
        options.lease_ttl_s = 1;
        options.swarm.patience = Patience {
            min: Duration::from_millis(20),
            max: Duration::from_secs(2),
        };
        change(&mut options);
        Store::start(options).await.expect("a store")
    }

    /// A store that has registered the object of most tests.
    pub(crate) async fn origin(&self, object: &str) -> (Store, Held) {
        let store = self.store().await;
        let held = register(&store, object).await;
        (store, held)
    }
}

fn serve_on(listener: TcpListener) -> Scope {
    let scope = Scope::new();
    let serving = serve(listener, Hosted::in_memory(), None, std::future::pending());
    scope.spawn(serving).expect("a task");
    scope
}

/// Registers the object of most tests.
pub(crate) async fn register(store: &Store, object: &str) -> Held {
    let object = name(object);
    let registering = store.register(&object, patterned_buffers(), in_chunks());
    registering.await.expect("registered")
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

/// What is right already is not fetched.
pub(crate) fn resumed() -> ReceiveOptions {
    ReceiveOptions {
        resume: true,
        ..ReceiveOptions::default()
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

/// Waits until one holder is left of an object, which is written as its own: when the lease of another ends the object
/// may be gone for a moment with it.
pub(crate) async fn until_alone(store: &Store, object: &str, is_whole: bool) {
    let object = name(object);
    let expected = (usize::from(is_whole), 1);
    let is_alone = async || {
        let found = store.find(&object).await.expect("asked");
        found.is_some_and(|found| (found.whole, found.holders) == expected)
    };
    // What is there when it has been seen to be alone is not the other's.
    until("one alone holds it", async || {
        is_alone().await && is_alone().await
    })
    .await;
}
