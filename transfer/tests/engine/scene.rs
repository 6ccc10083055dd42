//! Engines and memory, and what is asked of them.

use std::net::SocketAddr;

use lunette_auth::{Policy, Secrets};
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_transfer::engine::{
    Batch, Engine, EngineOptions, Peer, PostOptions, RemoteSegment, TransferError,
};

pub(crate) const KIB: usize = 1024;
pub(crate) const MIB: usize = 1024 * KIB;

/// One that listens here.
pub(crate) fn options() -> EngineOptions {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    EngineOptions {
        listen: vec![any],
        ..EngineOptions::default()
    }
}

/// One that is authenticated, and authenticates.
pub(crate) fn guarded() -> EngineOptions {
    let secrets = Secrets::parse(b"0123456789abcdef0123456789abcdef");
    EngineOptions {
        policy: Policy::Authenticated(secrets.expect("a secret")),
        ..EngineOptions::default()
    }
}

pub(crate) fn engine() -> Engine {
    Engine::start(options()).expect("an engine")
}

pub(crate) fn memory(len: usize) -> Exposed {
    Exposed::map(len, HugePages::Never, &mut Vec::new()).expect("memory")
}

/// Memory that nobody maps: a part of a mapping, with neighbours.
pub(crate) fn part(len: usize) -> Exposed {
    memory(len + 8 * KIB).slice(4 * KIB, len)
}

/// Memory full of one byte.
pub(crate) fn full_of(byte: u8, len: usize) -> Exposed {
    let memory = memory(len);
    memory.copy_in(0, &vec![byte; len]);
    memory
}

/// Bytes of which no two neighbours are alike, of 251 kinds.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let bytes = (0..=250).cycle().skip(usize::from(seed));
    bytes.take(len).collect()
}

/// Memory of that pattern.
pub(crate) fn patterned(len: usize, seed: u8) -> Exposed {
    let memory = memory(len);
    memory.copy_in(0, &pattern(len, seed));
    memory
}

pub(crate) async fn post(peer: &Peer, batch: &Batch) -> Result<(), TransferError> {
    let posted = peer.post(batch, PostOptions::default()).expect("posted");
    posted.await.map(|_| ())
}

pub(crate) async fn read(
    peer: &Peer,
    remote: &RemoteSegment,
    to: Exposed,
    offset: u64,
) -> Result<(), TransferError> {
    let mut batch = Batch::new();
    batch.read(to, remote, offset).expect("a read");
    post(peer, &batch).await
}

pub(crate) async fn write(
    peer: &Peer,
    remote: &RemoteSegment,
    from: Exposed,
    offset: u64,
) -> Result<(), TransferError> {
    let mut batch = Batch::new();
    batch.write(from, remote, offset).expect("a write");
    post(peer, &batch).await
}
