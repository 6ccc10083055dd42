//! What devices are and can do.

use lunette_verbs_proto::gid::GidEntry;

/// What a device and its first port are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device's name, as in `/sys/class/infiniband`.
    pub name: String,
    /// Whether the port's link is up.
    pub is_active: bool,
    /// Whether it is an Ethernet port.
    pub is_ethernet: bool,
    /// Whether its packets are iWARP: connected by the connection manager alone, without immediate
    /// data.
    pub is_iwarp: bool,
    /// The port's address on an InfiniBand subnet.
    pub lid: u16,
    /// The port's active MTU, in bytes.
    pub mtu_bytes: u16,
    /// The port's addresses.
    pub gids: Vec<GidEntry>,
    /// Deepest queue of a queue pair.
    pub queue_depth_max: u32,
    /// Deepest completion queue.
    pub completions_max: u32,
    /// Reads and atomics in flight, as the side that asks.
    pub reads_out_max: u8,
    /// Reads and atomics in flight, as the side that serves.
    pub reads_in_max: u8,
    /// Whether it does atomics.
    pub has_atomics: bool,
}

/// What a peer may do with memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Peers may read.
    pub remote_read: bool,
    /// Peers may write.
    pub remote_write: bool,
    /// Peers may do atomics.
    pub remote_atomic: bool,
    /// The adapter's writes may pass one another: for bulk data, never for flags.
    pub relaxed_ordering: bool,
}

/// Which calls of libibverbs post and poll. Both do the same; what they cost depends on the adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calls {
    /// Lists of requests and arrays of completions, which every provider has.
    #[default]
    Lists,
    /// Requests are built and completions are read where the adapter has them (`ibv_wr_*`,
    /// `ibv_cq_ex`), by one thread without locks; lists and arrays where the provider cannot do so.
    Extended,
}

/// Keys of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}
