//! What happens outside of completions: to devices, and to the queues that they name.

use std::fmt;

/// Something that happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The port's link came back.
    PortActive,
    /// The port's link went away.
    PortDown,
    /// The port's addresses changed.
    AddressesChanged,
    /// The device is lost, and everything that was made of it is broken.
    DeviceLost,
    /// Any other, by its code.
    Other(u32),
}

/// Why a device declared a queue pair broken, other than by a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The device failed at it.
    Fatal,
    /// The peer broke the rules of the transport.
    InvalidRequest,
    /// The peer reached for memory that it may not reach.
    Access,
    /// Its completion queue overflowed or broke.
    CompletionQueue,
    /// The receives that it shares broke.
    SharedReceives,
    /// The device is lost.
    DeviceLost,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fatal => "the device failed at the queue pair",
            Self::InvalidRequest => "the peer broke the rules of the transport",
            Self::Access => "the peer reached for memory that it may not reach",
            Self::CompletionQueue => "its completion queue broke",
            Self::SharedReceives => "the receives that it shares broke",
            Self::DeviceLost => "the device is lost",
        })
    }
}

/// Something that happened to one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairEvent {
    /// The device failed at it: no completion may follow.
    Fatal,
    /// The peer broke the rules of the transport, and so the queue pair.
    InvalidRequest,
    /// The peer reached for memory that it may not reach, which broke the queue pair.
    Access,
    /// The first packet came before the queue pair was ready to send.
    Established,
    /// The send queue drained, as it was asked to.
    SendQueueDrained,
    /// Packets take the other path from now on.
    PathMigrated,
    /// There is no other path to take.
    PathMigrationFailed,
    /// The queue pair is broken, and takes no receive from its shared ones any more.
    LastReceiveTaken,
}

impl PairEvent {
    /// Why the queue pair is broken, if this says so.
    #[must_use]
    pub const fn cause(self) -> Option<Cause> {
        match self {
            Self::Fatal => Some(Cause::Fatal),
            Self::InvalidRequest => Some(Cause::InvalidRequest),
            Self::Access => Some(Cause::Access),
            _ => None,
        }
    }
}

/// An event as the provider has it. Queues are named by the tokens that their objects have here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RawEvent {
    Device(DeviceEvent),
    Pair(u64, PairEvent),
    /// A completion queue broke.
    CompletionQueue(u64),
    /// A shared receive queue broke.
    SharedReceives(u64),
}
