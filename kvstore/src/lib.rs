//! The KVCache store: nodes that lend memory, clients that put and get. There is no master.
//!
//! A [`Node`] is a process whose cores each lend memory. It runs in one of two ways:
//!
//! - As a member of a cluster ([`ClusterOptions`]): each core is the home of some keys and the owner of
//!   some copies, the map of members changes, and a [`ClusterClient`] follows it.
//! - Alone: each core holds the keys that a [`Client`], which is given the whole list of nodes, finds there by
//!   weighted rendezvous hashing. Nobody is authenticated, so such nodes are to listen on loopback only;
//!   the program enforces that.
//!
//! What leaves the memory of a member may go to drives ([`TierOptions`]). It leaves out replicas from owner to owner by
//! adapters.
//!
//! | module | subject |
//! |---|---|
//! | `node` | [`Node`], [`SeatedNode`]: starting cores, ports, statistics, shut-down |
//! | `member` | a core of a member: its machines, their bytes, messages to other seats |
//! | `cluster_client` | [`ClusterClient`]: homes and owners by the newest map |
//! | `handle` | [`StoreHandle`]: clients on cores, asked from any thread |
//! | `glance` | what threads and clients see of cores on this host without asking them |
//! | `seats` | connections to the seats of a map, of members and of clients |
//! | `rails` | queue pairs that belong to such a connection |
//! | `service` | a core of a node that is alone: requests against shard and extents |
//! | `refusals` | answers that both kinds of core have in common |
//! | `client` | [`Client`]: nodes that are listed |
//! | `counting` | [`CoreReport`]: what a core counts |
//! | [`drive`] | a core's drive: the log in a file, on a device or in a remote namespace |
//! | `joined` | checksums of what is sent together |
//! | `moving` | objects make way for longer ones, within an arena |
//! | `value` | [`Value`], [`extent_bytes`] |
//! | `error` | [`StoreError`], [`ClusterError`], [`NodeError`] |
#![forbid(unsafe_code)]

mod client;
mod cluster_client;
mod counting;
pub mod drive;
mod error;
mod glance;
mod handle;
mod joined;
mod member;
mod moving;
mod node;
mod rails;
mod refusals;
mod seats;
mod service;
mod value;

pub use client::{Client, ClientOptions, Get, GetFailure, Put};
pub use cluster_client::{
    AdapterGets, AdapterPuts, Cleared, ClusterClient, ClusterClientOptions, CommitFailure,
    DeviceCheck, DeviceClient, DeviceFetched, DeviceLanding, DeviceStoreError, Fetched, Landing,
    ListCursor, Listed, Located, OneSided, PARTS, PREFERRED_MAX, Preferred, PutOptions,
    Reservation, Reserved, Stored, TenantQuota, TooManyLandings,
};
pub use counting::{
    CoreReport, DriveReport, HISTOGRAM_BUCKETS, Histogram, MemberReport, Outcome, RequestReport,
    TenantReport,
};
pub use error::{ClusterError, NodeError, StoreError, StoreErrorKind};
pub use handle::{
    Brought, ClientHost, CommitHandleFailure, DEVICE_STAGING_BYTES_MAX, DeviceLent, FetchedBytes,
    Fetching, FetchingBytes, Got, Handing, HandleError, LandFailure, LandedHandle, Lent, Looking,
    ObjectBytes, Placing, QUESTIONS_MAX, ReservationHandle, ReservedHandle, SeatStat, SeenBytes,
    StoreHandle, ToPut,
};
pub use member::{COPIES, ClusterOptions, LifeError, TierOptions, TierPlace};
pub use node::{Node, NodeCore, NodeOptions, NodeWatch, Prefault, SeatedNode};
pub use service::{ANSWERS, RELEASES};
pub use value::{VALUE_PIECES_MAX, Value, extent_bytes};
