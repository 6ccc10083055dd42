//! What a store is to be, and how objects are held.

use std::net::SocketAddr;

use lunette_cluster::ClientOptions;
use lunette_cluster::proto::rack::Rack;
use lunette_p2p_proto::Version;
use lunette_p2p_proto::swarm::Options;
use lunette_transfer::engine::EngineOptions;

/// The lease of a store, in seconds, unless it is told otherwise.
pub const LEASE_TTL_S_DEFAULT: u32 = 10;
/// Chunks of what is registered, unless it is told otherwise: 8 MiB.
const CHUNK_BYTES_DEFAULT: u32 = 8 << 20;

/// What a store is to be.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Its engine: it listens, and its notifications are the store's alone.
    pub engine: EngineOptions,
    /// Where the catalogue is: an etcd, or the embedded coordinator.
    pub coordinator: ClientOptions,
    /// Before all keys there: the cluster's name.
    pub prefix: String,
    /// Where others find its engine; empty for the addresses at which it listens.
    pub advertised: Vec<SocketAddr>,
    /// What is near it.
    pub rack: Rack,
    /// How long it is in the catalogue after it was last heard of, in seconds.
    pub lease_ttl_s: u32,
    /// Bounds of each object's machine.
    pub swarm: Options,
}

impl StoreOptions {
    /// One with an engine and a coordinator, and else what is usual.
    #[must_use]
    pub fn new(engine: EngineOptions, coordinator: ClientOptions) -> Self {
        Self {
            engine,
            coordinator,
            prefix: "lunette".to_owned(),
            advertised: Vec::new(),
            rack: Rack::NONE,
            lease_ttl_s: LEASE_TTL_S_DEFAULT,
            swarm: Options::default(),
        }
    }
}

/// How an object is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterOptions {
    /// Length of its chunks, in bytes.
    pub chunk_bytes: u32,
    /// Whether it takes the place of whatever has its name. Who holds that goes on with it.
    pub may_replace: bool,
}

impl Default for RegisterOptions {
    fn default() -> Self {
        Self {
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            may_replace: false,
        }
    }
}

/// How an object is received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveOptions {
    /// Whether the buffers may hold chunks already: all are verified first, and those that are right are not
    /// fetched.
    pub resume: bool,
    /// This version and no other, if given.
    pub version: Option<Version>,
}

/// How parts of an object's tensors are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceOptions {
    /// Whether the chunks that they are in are kept in memory, as long as the object is held, and served to others: that
    /// takes as much memory again as these chunks have. Otherwise a chunk is let go as soon as what is wanted has been
    /// taken out of it, and nobody has anything from here.
    pub keep_chunks: bool,
    /// Whether the buffers may hold what is wanted of some chunks already. Checksums are of whole chunks: those of which
    /// every byte is wanted are verified first, and not fetched if they are right; of others all is fetched again.
    pub resume: bool,
    /// This version and no other, if given.
    pub version: Option<Version>,
}

impl Default for SliceOptions {
    fn default() -> Self {
        Self {
            keep_chunks: true,
            resume: false,
            version: None,
        }
    }
}
