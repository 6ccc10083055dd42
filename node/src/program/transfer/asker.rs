//! Who asks in a measurement: an engine on the core that measures, or one on cores of its own.

use lunette::runtime::arena::{Exposed, HugePages};
use lunette::runtime::{CoreOptions, Placement};
use lunette::transfer::engine::{
    Access, AdapterStatus, Batch, Engine, EngineHost, EngineOptions, HandleError, HandleRequest,
    Peer, PeerHandle, PostOptions, RailStatistics, RegisterOptions, RemoteSegment, Statistics, Way,
};

use super::bench::BenchArguments;
use super::failure::{Outcome, TransferFailure};

/// An engine that has opened a segment of a peer.
pub(super) enum Asker {
    /// On this core.
    Here {
        engine: Engine,
        peer: Peer,
        remote: RemoteSegment,
    },
    /// On others.
    Host {
        host: EngineHost,
        peer: PeerHandle,
        remote: RemoteSegment,
    },
}

/// A batch that is posted again and again.
pub(super) enum Prepared {
    Here(Peer, Batch),
    Host(PeerHandle, Vec<HandleRequest>),
}

/// What is registered here: a peer on this host copies from memory that is.
const UNNAMED: RegisterOptions = RegisterOptions {
    name: None,
    by_address: false,
    access: Access::Read,
    same_host: true,
    by_capability: false,
};

impl Asker {
    pub(super) async fn open(arguments: &BenchArguments, options: EngineOptions) -> Outcome<Self> {
        let failed = |error| TransferFailure::Open {
            segment: arguments.segment.clone(),
            error,
        };
        if arguments.cores == 1 {
            let engine = Engine::start(options)?;
            let peer = engine.open_by_name(&arguments.peer).await.map_err(failed)?;
            let remote = peer.segment(&arguments.segment).await.map_err(failed)?;
            return Ok(Self::Here {
                engine,
                peer,
                remote,
            });
        }
        let failed = |error| match error {
            HandleError::Open(error) => failed(error),
            error => error.into(),
        };
        let placement = Placement::Anywhere(usize::from(arguments.cores));
        let core = CoreOptions {
            idle: arguments.idle.policy(),
            ..CoreOptions::default()
        };
        let host = EngineHost::start(&placement, core, &options)?;
        let opening = host.handle().open_by_name(arguments.peer.clone());
        let peer = opening.await.map_err(failed)?;
        let remote = peer.segment(&arguments.segment).await.map_err(failed)?;
        Ok(Self::Host { host, peer, remote })
    }

    /// The adapters of this core; what others have is not asked.
    pub(super) fn adapters(&self) -> &[AdapterStatus] {
        match self {
            Self::Here { engine, .. } => engine.adapters(),
            Self::Host { .. } => &[],
        }
    }

    /// A batch over neighbouring pieces, those of different indexes at different places as far as the
    /// segment goes.
    pub(super) async fn prepare(
        &self,
        arguments: &BenchArguments,
        index: u64,
    ) -> Outcome<Prepared> {
        let (size, count) = (arguments.size.0, arguments.batch);
        let (Self::Here { remote, .. } | Self::Host { remote, .. }) = self;
        let len_bytes = size.saturating_mul(u64::from(count));
        let places = remote.len_bytes().checked_div(len_bytes).unwrap_or(0);
        if places == 0 {
            return Err(TransferFailure::TooLong {
                batch: count,
                size,
                len_bytes: remote.len_bytes(),
            });
        }
        let first = index % places * len_bytes;
        let way = if arguments.write {
            Way::Write
        } else {
            Way::Read
        };
        let starts = (0..u64::from(count)).map(|request| request * size);
        match self {
            Self::Here { engine, peer, .. } => {
                let memory = Exposed::map(in_memory(len_bytes), HugePages::Never, &mut Vec::new());
                let memory = memory.map_err(|errno| TransferFailure::Memory(errno.into()))?;
                let registered = engine.register(memory.clone(), &UNNAMED);
                registered.map_err(|error| error.refusal)?;
                let mut batch = Batch::new();
                for start in starts {
                    let local = memory.slice(in_memory(start), in_memory(size));
                    match way {
                        Way::Write => batch.write(local, remote, first + start)?,
                        Way::Read => batch.read(local, remote, first + start)?,
                    }
                }
                Ok(Prepared::Here(peer.clone(), batch))
            }
            Self::Host { host, peer, .. } => {
                let local = host
                    .handle()
                    .allocate(in_memory(len_bytes), UNNAMED)
                    .await?;
                let requests = starts.map(|start| HandleRequest {
                    way,
                    local,
                    local_offset_bytes: start,
                    len_bytes: size,
                    remote: *remote,
                    remote_offset_bytes: first + start,
                });
                Ok(Prepared::Host(peer.clone(), requests.collect()))
            }
        }
    }

    /// What was done, and over which rails.
    pub(super) async fn account(&self) -> Outcome<(Statistics, Vec<RailStatistics>)> {
        match self {
            Self::Here { engine, peer, .. } => Ok((engine.statistics(), peer.rails())),
            Self::Host { host, peer, .. } => {
                let statistics = host.handle().statistics().await?;
                Ok((statistics, peer.rails().await?))
            }
        }
    }
}

impl Prepared {
    pub(super) async fn post(&self) -> Outcome<()> {
        let options = PostOptions::default();
        match self {
            Self::Here(peer, batch) => peer.post(batch, options)?.await?,
            Self::Host(peer, requests) => peer.post(requests.clone(), options).await?,
        };
        Ok(())
    }
}

fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).expect("as long as a part of a segment")
}
