//! What an engine is to be.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lunette_auth::{Encryption, Policy};
use lunette_transfer_proto::engine::scheduler::SchedulerOptions;
use lunette_transfer_proto::topology::Sources;

use super::resolver::Resolver;
use crate::adapters::RdmaOptions;

/// What an engine is to be.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where it listens; empty for an engine that only asks.
    pub listen: Vec<SocketAddr>,
    /// Its session epoch, which no other engine and no earlier one has, and which nobody can guess.
    /// By default it is drawn.
    pub epoch: Option<u64>,
    /// How connections are authenticated, those that it accepts and those that it makes; without a
    /// secret it listens on loopback only.
    pub policy: Policy,
    /// Whether what goes over connections is sealed; one side's wish is enough. It takes a secret, and a
    /// copy and a cipher on both sides. Peers on the same host copy from memory all the same
    /// ([`same_host`](Self::same_host)).
    pub encryption: Encryption,
    /// Rails, failover, fences.
    pub scheduler: SchedulerOptions,
    /// Connections that it accepts at each address.
    pub connections_max: usize,
    /// Longest payload of a frame, in bytes; a slice is no longer.
    pub payload_bytes_max: u32,
    /// Memory that is on its way between peers and files or segments of devices, at most, in bytes, unless a single
    /// frame is longer. Reads wait for room, writes are refused as busy and sent again.
    pub file_bytes_max: usize,
    /// Memory that is on its way between peers and devices that are this side of transfers
    /// ([`Batch::read_device`](super::Batch::read_device)), at most, in bytes, unless a single piece is longer: of
    /// 1 MiB at most, four of a transfer at a time. Pieces wait for room, each in its turn.
    pub device_bytes_max: usize,
    /// Notifications that wait to be taken; more are refused as busy.
    pub notifications_max: usize,
    /// Whether bytes go between this engine and peers on this host through memory that both map, and are
    /// not sent: registered memory
    /// ([`RegisterOptions::same_host`](super::RegisterOptions::same_host)), or a window of the session.
    pub same_host: bool,
    /// Whether peers on this host may read this process's memory (`process_vm_readv`), if they want that
    /// too: so what is no mapping of its own is copied once and not through the window. Who may do that may
    /// read all of it. Where the system forbids it, the window serves. Peers that do are also handed memory of devices
    /// (CUDA IPC): who has such a handle may read and write the whole allocation.
    pub same_host_trust: bool,
    /// Peers on this host that are let in at each place where they come in; others go over the network.
    pub same_host_peers_max: usize,
    /// Segments of one peer that are mapped, and segments that one peer has mapped here for its writes; the
    /// bytes of others go through the window.
    pub same_host_segments_max: usize,
    /// A folder in which this engine and peers on this host meet that are in another network namespace: in
    /// another container, say, into which the folder is mounted. Each side names it as it sees it. Peers in
    /// the same network namespace need none.
    pub same_host_dir: Option<PathBuf>,
    /// How long a connection may take to come about, from the name of its host on.
    pub connect_timeout: Duration,
    /// Who is asked for the addresses of names.
    pub resolver: Resolver,
    /// A name that leads nowhere any more is asked for again after this time at the earliest.
    pub resolve_interval_min: Duration,
    /// The addresses of this host that connections are made from; without it the system's routes say.
    pub sources: Option<Sources>,
    /// RDMA: by default none. Bytes go over connections until adapters are there, and where they do not reach.
    pub rdma: RdmaOptions,
    /// How long a peer may pause in the middle of a payload, or answer nothing at all.
    pub stall_timeout: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            epoch: None,
            policy: Policy::LoopbackOnly,
            encryption: Encryption::Optional,
            scheduler: SchedulerOptions::default(),
            connections_max: 1024,
            payload_bytes_max: 4 * 1024 * 1024,
            file_bytes_max: 64 * 1024 * 1024,
            device_bytes_max: 64 * 1024 * 1024,
            notifications_max: 4096,
            same_host: true,
            same_host_trust: false,
            same_host_peers_max: 1024,
            same_host_segments_max: 4096,
            same_host_dir: None,
            connect_timeout: Duration::from_secs(2),
            resolver: Resolver::default(),
            resolve_interval_min: Duration::from_secs(1),
            sources: None,
            rdma: RdmaOptions::default(),
            stall_timeout: Duration::from_secs(5),
        }
    }
}
