//! What is asked of a scheduler, and what it answers.

use std::time::Duration;

use lunette_runtime_core::time::Time;
use thiserror::Error;

use crate::engine::message::Refusal;
use crate::engine::rail::RailOptions;

/// Bounds of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Those of each rail that is a stream.
    pub rail: RailOptions,
    /// Those of each rail from memory to memory.
    pub one_sided_rail: RailOptions,
    /// How often a slice is sent before its requests fail.
    pub attempts_max: u32,
    /// A rail on which nothing came through for so long, with slices under way, is given up.
    pub stall: Duration,
    /// A rail over which nothing was to be sent for so long is closed until there is something.
    pub idle_max: Duration,
    /// How long a transfer that is over (deadline, cancel) waits for what it has under way to be
    /// settled: answered, or fenced.
    pub settle: Duration,
    /// Pause before a slice goes to a peer that was busy, or that had damaged bytes. Where it is busy again
    /// the next one is four times as long, up to [`BUSY_PAUSE_GROWTH_MAX`] times this.
    pub busy_pause: Duration,
    /// Transfers at a time.
    pub transfers_max: usize,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            rail: RailOptions::default(),
            one_sided_rail: RailOptions::ONE_SIDED,
            attempts_max: 8,
            stall: Duration::from_secs(1),
            idle_max: Duration::from_secs(300),
            settle: Duration::from_secs(2),
            busy_pause: Duration::from_millis(1),
            transfers_max: 4096,
        }
    }
}

/// How much longer than the first the pauses for a busy peer may become: its drive may be slow, and others may
/// be before us, but whoever waits is told in the end.
pub const BUSY_PAUSE_GROWTH_MAX: u32 = 1 << 10;

impl SchedulerOptions {
    /// Pause after a slice was refused for the so-many-th time.
    pub(super) fn pause_after(&self, refusal: Refusal, attempts: u32) -> Duration {
        let growth = 4_u32.saturating_pow(attempts.saturating_sub(1));
        if refusal.is_backpressure() {
            self.busy_pause * growth.min(BUSY_PAUSE_GROWTH_MAX)
        } else {
            self.busy_pause
        }
    }
}

/// How urgent a transfer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody waits for it. Among equals the earlier deadline goes first.
    #[default]
    Foreground,
    /// It gets what the others leave, and one slice in sixteen.
    Background,
}

/// Names a transfer of one scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// Names a slice that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect a rail; say [`on_connected`](super::Scheduler::on_connected) or
    /// [`on_rail_failed`](super::Scheduler::on_rail_failed).
    Connect {
        /// Which.
        rail: usize,
        /// The number of the connection.
        connection: u32,
    },
    /// Send a slice ([`slice`](super::Scheduler::slice)); say how it was answered.
    Send {
        /// Which.
        slice: SliceId,
        /// Of which transfer.
        transfer: TransferId,
        /// Over which rail.
        rail: usize,
    },
    /// Give a read up; say [`on_stopped`](super::Scheduler::on_stopped) when nothing of it can land
    /// in our memory any more.
    Stop {
        /// Which.
        slice: SliceId,
    },
    /// Close a connection. Slices that are under way on it are lost, each to be told.
    Close {
        /// Which rail.
        rail: usize,
        /// Which of its connections.
        connection: u32,
        /// Why.
        cause: CloseCause,
    },
    /// Ask the peer, over `via`, to end a connection of `rail`; say
    /// [`on_fenced`](super::Scheduler::on_fenced).
    Fence {
        /// Whose connection.
        rail: usize,
        /// Which.
        connection: u32,
        /// The rail that carries the question.
        via: usize,
    },
    /// A transfer is over. Its id names nothing any more.
    Finished {
        /// Which.
        transfer: TransferId,
        /// What came of it.
        outcome: Outcome,
    },
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCause {
    /// Nothing comes through although something is under way.
    Stalled,
    /// Nothing was to be sent for long.
    Idle,
    /// Another rail has what is under way on it through far sooner, and writes cannot be stopped otherwise.
    Overtaken,
}

/// What came of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The requests that failed, in no order. All others are done. The notification was delivered if
    /// none failed.
    pub failures: Vec<RequestFailure>,
    /// Slices that were sent, those sent again included.
    pub slices: u64,
    /// Slices that were sent again.
    pub resent: u64,
    /// Slices that were taken back from a slow rail and sent over another one. They count as sent twice, and
    /// not as sent again: nothing was lost.
    pub stolen: u64,
}

/// Why one request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFailure {
    /// Its index in the batch; `None` for the notification.
    pub request: Option<u32>,
    /// Why.
    pub cause: Cause,
    /// What it left behind.
    pub effect: Effect,
    /// The rail that it was last under way on.
    pub rail: Option<usize>,
    /// How often the slice in question was sent.
    pub attempts: u32,
    /// How long after its submission it failed.
    pub age: Duration,
}

/// Why a request fails.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Cause {
    /// The peer refuses it.
    #[error(transparent)]
    Refused(Refusal),
    /// Its bytes arrived damaged, each time.
    #[error("the bytes arrived damaged each time")]
    Corrupt,
    /// Its rails were lost, each time.
    #[error("the connection was lost each time")]
    Lost,
    /// The deadline passed while no rail was up.
    #[error("no rail to the peer came up before the deadline")]
    Unreachable,
    /// The deadline passed.
    #[error("deadline exceeded")]
    DeadlineExceeded,
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// Another engine answers where the peer was: what was to be reached is gone.
    #[error("the peer is gone, another engine answers in its place")]
    PeerReplaced,
    /// The device that has the bytes on this side, or is to have them, did not copy them, and may copy others.
    #[error("this side's device did not copy the bytes")]
    OwnDevice,
    /// The device on this side is lost, and what was in its memory.
    #[error("this side's device is lost")]
    OwnDeviceLost,
    /// The memory of the device on this side is none that the stream beside it knows.
    #[error("this side's stream does not copy this side's memory")]
    OwnDeviceForeign,
    /// This core has no memory in which the bytes could be staged on their way.
    #[error("no memory on this side to stage the bytes in")]
    OwnRoom,
}

impl Cause {
    /// Whether the same request may fare better later.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_retryable(),
            Self::Corrupt | Self::Lost | Self::Unreachable | Self::DeadlineExceeded => true,
            Self::OwnDevice | Self::OwnRoom => true,
            Self::Cancelled | Self::PeerReplaced => false,
            Self::OwnDeviceLost | Self::OwnDeviceForeign => false,
        }
    }

    /// Whether a limit was met, at the peer or here.
    #[must_use]
    pub const fn is_backpressure(self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_backpressure(),
            Self::OwnRoom => true,
            _ => false,
        }
    }

    /// Whether bytes were damaged.
    #[must_use]
    pub const fn is_corruption(self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_corruption(),
            Self::Corrupt => true,
            _ => false,
        }
    }
}

/// What a failed request left where its bytes were to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Nothing was written.
    Untouched,
    /// Some of it may have been written, damaged bytes included; nothing more will be.
    Partly,
    /// As `Partly`, and what is still under way may yet be written.
    MayStillChange,
}

/// No more transfers fit.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{transfers_max} transfers are under way: wait for one to end")]
pub struct TransfersFull {
    /// The bound.
    pub transfers_max: usize,
}

/// What goes with a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferOptions {
    /// How urgent it is.
    pub priority: Priority,
    /// When it fails, done or not; [`Time::MAX`] for never.
    pub deadline: Time,
    /// Whether a notification follows its bytes.
    pub has_note: bool,
}
