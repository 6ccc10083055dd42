//! A namespace: reads and writes of blocks, by the ways that there are.
//!
//! | module | subject |
//! |---|---|
//! | `ways` | which ways work, and who waits for one |
//! | `keeper` | keeping one way connected, and listening to its controller |
//! | `carry` | having a command carried out, by one way or another |
//! | `hedging` | reads that take long are sent a second way |

mod carry;
mod hedging;
mod keeper;
mod ways;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::host::{
    HedgeCounts, HedgeOptions, PATHS_MAX, PathPolicy, Paths, ReconnectOptions,
};
use lunette_nvmeof_proto::identify::{IdentifyNamespace, NamespaceNames};
use lunette_nvmeof_proto::io::{Blocks, Geometry, IoRequest, RANGES_MAX, encode_ranges};
use lunette_nvmeof_proto::log_page::AnaState;
use lunette_nvmeof_proto::nqn::Nqn;
use lunette_runtime::arena::{Exposed, Region, RegionMut};
use lunette_runtime::{Scope, arena};

use self::hedging::Hedging;
use self::keeper::{Connected, first_of, keep};
use self::ways::Ways;
use super::controller::{HostConfig, disconnect};
use super::queue::Data;
use crate::error::{CommandError, CommandFailure, ConnectError};

/// Longest command where the controller has no limit, in bytes.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Which namespace, and how stubbornly.
#[derive(Clone, Debug)]
pub struct NamespaceOptions {
    /// Where controllers of its subsystem listen: 1 to [`PATHS_MAX`], each of which is a path of its
    /// own. An address may be there twice.
    pub addresses: Vec<SocketAddr>,
    /// Its subsystem.
    pub subsystem: Nqn,
    /// Its id.
    pub nsid: u32,
    /// Who asks.
    pub config: HostConfig,
    /// Which of equally good paths a command goes by.
    pub policy: PathPolicy,
    /// How long a command may be in flight on one path before that counts as dead: its connections
    /// are ended then, and made again.
    pub path_timeout: Duration,
    /// Whether a read that takes long is sent a second way. The region that such a read gives back
    /// is then either the one that was lent or another one of this core's arena.
    pub hedge: Option<HedgeOptions>,
    /// When to connect again after a loss. A path is not given up while there is another one.
    pub reconnect: ReconnectOptions,
    /// Seed of what spreads hosts that come back.
    pub seed: u64,
}

impl NamespaceOptions {
    /// Namespace 1 of a subsystem, by one path, that may leave a command unanswered for 10 s; no read is sent a second way.
    /// Hosts of different ids come back at different times.
    #[must_use]
    pub fn new(address: SocketAddr, subsystem: Nqn, config: HostConfig) -> Self {
        let (low, high) = config.host_id.split_at(8);
        let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        Self {
            addresses: vec![address],
            subsystem,
            nsid: 1,
            policy: PathPolicy::default(),
            path_timeout: Duration::from_secs(10),
            hedge: None,
            reconnect: ReconnectOptions::default(),
            seed: half(low) ^ half(high),
            config,
        }
    }
}

/// A path to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathState {
    /// Where its controller listens.
    pub address: SocketAddr,
    /// How the namespace can be reached there; none while there is no connection.
    pub state: Option<AnaState>,
    /// Commands that go by it.
    pub in_flight: u32,
}

/// A remote namespace, over one queue of each of its paths on this core.
///
/// Commands go by the best paths that there are, as their controllers tell (NVMe Base 2.0,
/// "Asymmetric Namespace Access Reporting"). A connection that is lost is made again in the
/// background. A command that was not carried out, and one that changes nothing, then goes another
/// way, or the same one later, within its deadline; a write whose fate is unknown fails as
/// [`CommandError::Disconnected`] or with a status of its path, and its caller decides. Where no
/// path is accessible commands wait as long as the controllers say that it may take, and fail as
/// [`CommandError::NoPath`] then.
#[derive(Debug)]
pub struct RemoteNamespace {
    inner: Rc<Inner>,
    keepers: Scope,
}

#[derive(Debug)]
struct Inner {
    options: NamespaceOptions,
    identity: IdentifyNamespace,
    names: NamespaceNames,
    geometry: Geometry,
    ways: Rc<Ways>,
    hedging: Option<Hedging>,
    reconnects: Cell<u64>,
    repeats: Cell<u64>,
}

impl RemoteNamespace {
    /// Connects by the first path that there is; the others are made in the background.
    ///
    /// # Errors
    /// [`ConnectError`] of a path, when none can be made: nothing is tried again before the first
    /// success.
    ///
    /// # Panics
    /// If there is no address, or more than [`PATHS_MAX`].
    pub async fn connect(options: NamespaceOptions) -> Result<Self, ConnectError> {
        let count = options.addresses.len();
        assert!((1..=PATHS_MAX).contains(&count), "paths are bounded");
        let (found, connected) = first_of(&options).await?;
        if count > 1 && !connected.names.is_named() {
            return Err(ConnectError::NoName);
        }
        let identity = connected.identity;
        let limit = connected
            .way
            .controller
            .association()
            .identity
            .transfer_bytes_max();
        let geometry = Geometry {
            blocks: identity.blocks,
            block_bytes_log2: identity.block_bytes_log2,
            transfer_bytes_max: limit.unwrap_or(TRANSFER_BYTES_MAX).min(TRANSFER_BYTES_MAX),
        };
        let Connected { ref way, facts, .. } = connected;
        let ways = Rc::new(Ways::new(Paths::new(count, options.policy), count));
        ways.on_up(found, way.clone(), facts);
        let inner = Rc::new(Inner {
            identity,
            names: connected.names,
            geometry,
            ways,
            hedging: options.hedge.map(Hedging::new),
            reconnects: Cell::new(0),
            repeats: Cell::new(0),
            options,
        });
        let keepers = Scope::new();
        let mut first = Some(connected);
        for index in 0..count {
            let first = first.take_if(|_| index == found);
            if let Err(error) = keepers.spawn(keep(Rc::clone(&inner), index, first)) {
                tracing::warn!(%error, "nobody connects again");
            }
        }
        Ok(Self { inner, keepers })
    }

    /// What the namespace is.
    #[must_use]
    pub fn identity(&self) -> &IdentifyNamespace {
        &self.inner.identity
    }

    /// Most data of one command, in bytes.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u32 {
        self.inner.geometry.transfer_bytes_max
    }

    /// How often a connection that was lost was made again.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.inner.reconnects.get()
    }

    /// How often a command was sent again, by another path or by the same one.
    #[must_use]
    pub fn repeats(&self) -> u64 {
        self.inner.repeats.get()
    }

    /// What became of reads that were sent a second way; nothing, where none are.
    #[must_use]
    pub fn hedge_counts(&self) -> HedgeCounts {
        let hedging = self.inner.hedging.as_ref();
        hedging.map(Hedging::counts).unwrap_or_default()
    }

    /// Memory beyond that of callers, which second requests of reads take now, in bytes.
    #[must_use]
    pub fn hedge_bytes(&self) -> usize {
        self.inner.hedging.as_ref().map_or(0, Hedging::bytes)
    }

    /// Whether a command would go by a path at once, as far as is known. Where this is false commands wait, or fail.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.inner.ways.is_any_open()
    }

    /// Whether it has been given up: no path is made again.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.inner.ways.is_lost()
    }

    /// Its paths, in the order of their addresses.
    #[must_use]
    pub fn paths(&self) -> Vec<PathState> {
        let Inner { options, ways, .. } = &*self.inner;
        let addresses = options.addresses.iter().enumerate();
        let path = |(index, &address)| PathState {
            address,
            state: ways.state(index),
            in_flight: ways.in_flight(index),
        };
        addresses.map(path).collect()
    }

    /// Reads from block `first` on, as many as fill `region`, which is lent until then. With
    /// [`NamespaceOptions::hedge`] another region of the same length may come back, and the one that
    /// was lent goes back to the arena when its controller has answered.
    ///
    /// # Errors
    /// [`CommandFailure`], with the region.
    ///
    /// # Panics
    /// If the region's length is no multiple of a block, or more than a command may move.
    pub async fn read(
        &self,
        first: u64,
        region: RegionMut,
        timeout: Duration,
    ) -> Result<RegionMut, CommandFailure> {
        let request = IoRequest::Read(self.blocks(first, region.len()));
        let done = self.inner.run(request, Data::In(region), timeout).await?;
        Ok(done.region.expect("a read gives its region back"))
    }

    /// As [`read`](Self::read), into counted memory that others may look at meanwhile. When it has ended,
    /// nothing is received into it any more. It is never sent a second way.
    ///
    /// # Errors
    /// [`CommandFailure`], without a region.
    ///
    /// # Panics
    /// As for [`RemoteNamespace::read`].
    pub async fn read_exposed(
        &self,
        first: u64,
        memory: Exposed,
        timeout: Duration,
    ) -> Result<(), CommandFailure> {
        let request = IoRequest::Read(self.blocks(first, memory.len()));
        let data = Data::InExposed(memory);
        self.inner.run(request, data, timeout).await?;
        Ok(())
    }

    /// As [`write`](Self::write), from counted memory that others may write meanwhile: what is written is what
    /// lies there when it is sent.
    ///
    /// # Errors
    /// [`CommandFailure`].
    ///
    /// # Panics
    /// As for [`RemoteNamespace::read`].
    pub async fn write_exposed(
        &self,
        first: u64,
        memory: Exposed,
        must_last: bool,
        timeout: Duration,
    ) -> Result<(), CommandFailure> {
        let request = IoRequest::Write {
            blocks: self.blocks(first, memory.len()),
            must_last,
        };
        let data = Data::OutExposed(memory);
        self.inner.run(request, data, timeout).await?;
        Ok(())
    }

    /// Writes all of `region` from block `first` on; `must_last` also past a loss of power.
    ///
    /// # Errors
    /// [`CommandFailure`].
    ///
    /// # Panics
    /// As for [`RemoteNamespace::read`].
    pub async fn write(
        &self,
        first: u64,
        region: Region,
        must_last: bool,
        timeout: Duration,
    ) -> Result<(), CommandFailure> {
        let blocks = self.blocks(first, region.len());
        let request = IoRequest::Write { blocks, must_last };
        self.inner.run(request, Data::Out(region), timeout).await?;
        Ok(())
    }

    /// Whether the blocks from `first` on are the bytes of `region`.
    ///
    /// # Errors
    /// [`CommandFailure`].
    ///
    /// # Panics
    /// As for [`RemoteNamespace::read`].
    pub async fn compare(
        &self,
        first: u64,
        region: Region,
        timeout: Duration,
    ) -> Result<bool, CommandFailure> {
        let request = IoRequest::Compare(self.blocks(first, region.len()));
        match self.inner.run(request, Data::Out(region), timeout).await {
            Ok(_done) => Ok(true),
            Err(CommandFailure {
                error: CommandError::Status(status),
                ..
            }) if status.code() == Status::COMPARE_FAILURE.code() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Fills blocks with zeroes; their memory may be given back.
    ///
    /// # Errors
    /// [`CommandFailure`].
    ///
    /// # Panics
    /// If there are none, or more than 65,536.
    pub async fn write_zeroes(
        &self,
        blocks: Blocks,
        timeout: Duration,
    ) -> Result<(), CommandFailure> {
        let request = IoRequest::WriteZeroes {
            blocks,
            may_deallocate: true,
        };
        self.inner.run(request, Data::None, timeout).await?;
        Ok(())
    }

    /// Tells that nothing in `ranges` has to be kept.
    ///
    /// # Errors
    /// [`CommandFailure`].
    ///
    /// # Panics
    /// If there are none, or more than [`RANGES_MAX`].
    pub async fn deallocate(
        &self,
        ranges: &[Blocks],
        timeout: Duration,
    ) -> Result<(), CommandFailure> {
        assert!((1..=RANGES_MAX).contains(&ranges.len()), "callers split");
        let bytes = encode_ranges(ranges);
        let mut region = arena().alloc(bytes.len()).map_err(CommandError::from)?;
        region.as_mut_slice().copy_from_slice(&bytes);
        let request = IoRequest::Manage {
            ranges: u16::try_from(ranges.len()).expect("just checked"),
            deallocates: true,
        };
        let data = Data::Out(region.freeze());
        self.inner.run(request, data, timeout).await?;
        Ok(())
    }

    /// What has been written is to last.
    ///
    /// # Errors
    /// [`CommandFailure`].
    pub async fn flush(&self, timeout: Duration) -> Result<(), CommandFailure> {
        self.inner
            .run(IoRequest::Flush, Data::None, timeout)
            .await?;
        Ok(())
    }

    /// Ends the connections in order.
    ///
    /// # Errors
    /// [`CommandError`]: a controller did not answer, and its connections are ended all the same.
    pub async fn close(self) -> Result<(), CommandError> {
        let Self { inner, keepers } = self;
        drop(keepers);
        let timeout = inner.options.config.timeout;
        let mut outcome = Ok(());
        for way in inner.ways.close() {
            if way.queue.closed().is_some() {
                continue;
            }
            let parted = way.queue.command(disconnect(), Data::None, timeout).await;
            if let Err(failure) = parted {
                tracing::debug!(%failure, "disconnecting a queue");
            }
            way.queue.close();
            outcome = outcome.and(way.controller.shut_down().await);
        }
        outcome
    }

    fn blocks(&self, first: u64, len: usize) -> Blocks {
        let geometry = &self.inner.geometry;
        let len = u32::try_from(len).expect("a command moves less than 4 GiB");
        assert!(
            len.is_multiple_of(1 << geometry.block_bytes_log2),
            "whole blocks"
        );
        assert!(len <= geometry.transfer_bytes_max, "callers split");
        Blocks {
            first,
            count: len >> geometry.block_bytes_log2,
        }
    }
}
