//! The same few programs on each runtime.
//!
//! | module | subject |
//! |---|---|
//! | `program` | what a runtime must offer, and the programs over that |
//! | `lunette`, `monoio`, `glommio`, `compio`, `tokio_uring`, `tokio` | the runtimes |
//! | `reads` | random direct reads, as every runtime is to do them |
//! | `epoll` | a busy loop over epoll, by hand |
//! | `ring` | a loop over one ring, by hand |
//! | `atomic` | two threads that spin on a counter |

mod atomic;
mod compio;
mod epoll;
mod glommio;
mod lunette;
mod monoio;
mod program;
mod reads;
#[expect(unsafe_code, reason = "entries of a bare ring name memory")]
mod ring;
mod tokio;
mod tokio_uring;

use clap::ValueEnum;
use lunette_bench::harness::{Failure, Sample};

use lunette_runtime::Idle;

use self::program::Program;
pub(crate) use self::reads::make_file;
use crate::role::Work;

/// What can be one side of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    /// Ours, with its default idle policy: adaptive.
    Lunette,
    /// Ours, sleeping whenever it has nothing to do.
    LunetteEfficient,
    /// Ours, never sleeping.
    LunettePolling,
    Monoio,
    Glommio,
    Compio,
    TokioUring,
    Tokio,
    EpollBusy,
    Ring,
    Atomic,
}

impl Side {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lunette => "lunette",
            Self::LunetteEfficient => "lunette-efficient",
            Self::LunettePolling => "lunette-polling",
            Self::Monoio => "monoio",
            Self::Glommio => "glommio",
            Self::Compio => "compio",
            Self::TokioUring => "tokio-uring",
            Self::Tokio => "tokio",
            Self::EpollBusy => "epoll-busy",
            Self::Ring => "ring",
            Self::Atomic => "atomic",
        }
    }

    /// Echoes until killed.
    pub(crate) fn echo(self, cpu: usize, message_bytes: usize) -> Result<(), Failure> {
        match self {
            Self::Lunette => lunette::Adaptive::echo(cpu, message_bytes),
            Self::LunetteEfficient => lunette::Efficient::echo(cpu, message_bytes),
            Self::Monoio => monoio::Monoio::echo(cpu, message_bytes),
            Self::Glommio => glommio::Glommio::echo(cpu, message_bytes),
            Self::Compio => compio::Compio::echo(cpu, message_bytes),
            Self::TokioUring => tokio_uring::TokioUring::echo(cpu, message_bytes),
            Self::Tokio => tokio::Tokio::echo(cpu, message_bytes),
            Self::EpollBusy => Ok(epoll::echo(message_bytes)?),
            Self::Ring => Ok(ring::echo(message_bytes)?),
            Self::Atomic | Self::LunettePolling => Err("it is not for this".into()),
        }
    }

    /// Nanoseconds per yield, or per spawn and join.
    pub(crate) fn tasks(self, work: Work, cpu: usize) -> Result<Sample, Failure> {
        match self {
            Self::Lunette => lunette::Adaptive::tasks(work, cpu),
            Self::LunetteEfficient => lunette::Efficient::tasks(work, cpu),
            Self::Monoio => monoio::Monoio::tasks(work, cpu),
            Self::Glommio => glommio::Glommio::tasks(work, cpu),
            Self::Compio => compio::Compio::tasks(work, cpu),
            Self::TokioUring => tokio_uring::TokioUring::tasks(work, cpu),
            Self::Tokio => tokio::Tokio::tasks(work, cpu),
            Self::EpollBusy | Self::Ring | Self::Atomic | Self::LunettePolling => {
                Err("it is not for this".into())
            }
        }
    }

    /// Nanoseconds per message, one way.
    pub(crate) fn messages(self, work: Work, cpus: [usize; 2]) -> Result<Sample, Failure> {
        match self {
            Self::Lunette | Self::LunetteEfficient => lunette::messages(work, cpus),
            Self::Monoio => program::messages::<monoio::Monoio>(work, cpus),
            Self::Glommio => glommio::messages(work, cpus),
            Self::Compio => program::messages::<compio::Compio>(work, cpus),
            Self::TokioUring => tokio::messages::<tokio_uring::TokioUring>(work, cpus),
            Self::Tokio => tokio::messages::<tokio::Tokio>(work, cpus),
            Self::Atomic => atomic::messages(cpus),
            Self::EpollBusy | Self::Ring | Self::LunettePolling => Err("it is not for this".into()),
        }
    }

    /// Microseconds per random direct read, `depth` of them under way.
    pub(crate) fn reads(self, cpu: usize, depth: usize) -> Result<Sample, Failure> {
        match self {
            Self::Lunette => lunette::reads(Idle::default(), depth),
            Self::LunetteEfficient => lunette::reads(Idle::Efficient, depth),
            Self::LunettePolling => lunette::reads(Idle::Latency, depth),
            Self::Monoio => monoio::reads(cpu, depth),
            Self::Glommio => glommio::reads(cpu, depth),
            Self::Compio => compio::reads(cpu, depth),
            Self::TokioUring => tokio_uring::reads(cpu, depth),
            Self::Ring => ring::reads(depth),
            Self::Tokio | Self::EpollBusy | Self::Atomic => Err("it has no such reads".into()),
        }
    }
}
