//! What the log asks of the drive, what it tells its owner, and how it refuses.

use core::ops::Range;

use thiserror::Error;

use crate::record::{Fingerprint, Record, Version};

/// An operation of the drive. Each ends once, by [`Log::written`](crate::log::Log::written),
/// [`Log::read_done`](crate::log::Log::read_done) or [`Log::flushed`](crate::log::Log::flushed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// Memory that the owner names. It is lent from the append until the append's [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId(pub u64);

/// An append that was accepted. It ends with [`Event::Durable`] or [`Event::Failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppendId(pub u64);

/// A removal that is being written. It ends with [`Event::Removed`] or [`Event::RemovalFailed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemovalId(pub u64);

/// A read that keeps its segment. It ends with [`Log::end_read`](crate::log::Log::end_read).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PinId(pub usize);

/// The drive has not done what was asked: the driver knows why, and says it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the drive failed")]
pub struct DeviceFault;

/// Memory that a write takes bytes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The owner's.
    Owner(MemoryId),
    /// What a read of the log has filled: the driver's, kept until [`Effect::Release`].
    Read(OpId),
}

/// A piece of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WritePiece {
    /// These bytes of [`Write::own`].
    Own(Range<usize>),
    /// Bytes of memory.
    Payload {
        /// Which memory.
        memory: Memory,
        /// Where in it they begin.
        offset_bytes: u32,
        /// How many there are.
        len_bytes: u32,
    },
}

/// A write of whole blocks. Its pieces come one behind the other, and their lengths are any: what the drive does
/// not take from where it lies, the driver gathers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Which operation it is.
    pub op: OpId,
    /// Where it goes.
    pub offset_bytes: u64,
    /// The log's own bytes.
    pub own: Vec<u8>,
    /// What is written.
    pub pieces: Vec<WritePiece>,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write this. Writes may reach the drive in any order.
    Write(Write),
    /// Read whole blocks into memory of the driver, and show them to [`Log::read_done`](crate::log::Log::read_done).
    Read {
        /// Which operation it is.
        op: OpId,
        /// From where.
        offset_bytes: u64,
        /// How much.
        len_bytes: u32,
        /// Whether the memory is kept until [`Effect::Release`], since it will be written from.
        is_kept: bool,
    },
    /// Make durable what has been written.
    Flush {
        /// Which operation it is.
        op: OpId,
    },
    /// The memory that this read has filled is not needed any more.
    Release {
        /// The read.
        op: OpId,
    },
}

/// Why an append has come to nothing.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AppendFailure {
    /// The drive failed. The record may be found after a restart, until it is removed.
    #[error("the drive failed")]
    Device(#[from] DeviceFault),
    /// The owner has removed it meanwhile.
    #[error("it was removed meanwhile")]
    Removed,
    /// Its generation has ended meanwhile.
    #[error("its generation has ended meanwhile")]
    GenerationEnded,
}

/// Why a record is lost.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LossCause {
    /// Its bytes are not what was written.
    #[error("its bytes are damaged")]
    Damaged,
    /// The drive could not read it.
    #[error("the drive could not read it")]
    Unreadable,
}

/// What the owner is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The record stays whatever happens, and is found from now on. Its memory is the owner's again.
    Durable {
        /// The append.
        append: AppendId,
        /// What was appended.
        record: Record,
    },
    /// An append has come to nothing. Its memory is the owner's again.
    Failed {
        /// The append.
        append: AppendId,
        /// Why.
        cause: AppendFailure,
    },
    /// What was removed is not found again, whatever happens.
    Removed {
        /// The removal.
        removal: RemovalId,
    },
    /// What was removed is not found, but may be after a restart: remove it then.
    RemovalFailed {
        /// The removal.
        removal: RemovalId,
    },
    /// The record's segment is being reclaimed: [`Log::keep`](crate::log::Log::keep) it or
    /// [`Log::release`](crate::log::Log::release) it, in whatever time that takes. It is found meanwhile. The same
    /// may be asked again, where the record could not be written elsewhere.
    Judge {
        /// Which record.
        fingerprint: Fingerprint,
        /// Its version.
        version: Version,
        /// Whether there is room for it to stay.
        may_stay: bool,
    },
    /// A record that was kept is in another segment now.
    Moved {
        /// Which record.
        fingerprint: Fingerprint,
        /// Its version.
        version: Version,
    },
    /// A record is gone, and the owner has not asked for that.
    Lost {
        /// Which record.
        fingerprint: Fingerprint,
        /// Its version.
        version: Version,
        /// Why.
        cause: LossCause,
    },
    /// What is of earlier generations is not found again, whatever happens.
    GenerationRaised {
        /// The earliest that is alive.
        generation: u64,
    },
    /// The drive has failed: nothing is written any more. What is there is still read.
    DeviceFailed,
}

/// Why a record is not taken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AppendRefused {
    /// A key has 1 to 1,024 bytes.
    #[error("a key of {len_bytes} bytes is outside its limits")]
    KeyLength {
        /// Its length.
        len_bytes: usize,
    },
    /// It does not fit into a segment.
    #[error("a record of {len_bytes} bytes is above the limit of {max_bytes}")]
    TooLong {
        /// Length of its payload.
        len_bytes: u32,
        /// The longest payload under this key.
        max_bytes: u32,
    },
    /// It is of a generation that has ended.
    #[error("generation {generation} has ended: {earliest} is the earliest that is alive")]
    GenerationEnded {
        /// Its generation.
        generation: u64,
        /// The earliest that is alive.
        earliest: u64,
    },
    /// This very version is here.
    #[error("the record is here")]
    Here,
    /// A record of its key is being written or moved: ask again when that has ended.
    #[error("a record of the key is being written")]
    Busy,
    /// As many wait as may.
    #[error("{queued_records} records of {queued_bytes} bytes wait")]
    QueueFull {
        /// Records that wait or are being written.
        queued_records: usize,
        /// Bytes that wait.
        queued_bytes: u64,
    },
    /// Room is being made by reclaim.
    #[error("{free_segments} segments are free, which reclaim needs")]
    Full {
        /// Segments that are free.
        free_segments: u32,
    },
    /// As many records are here as the index has room for.
    #[error("the index has {records} records, and no room for more")]
    IndexFull {
        /// Records that are here.
        records: usize,
    },
    /// A write takes longer than it should.
    #[error("the drive is slow: a write takes more than {waited_ms} ms")]
    Slow {
        /// How long it has taken until now.
        waited_ms: u64,
    },
    /// The drive has failed.
    #[error(transparent)]
    Device(#[from] DeviceFault),
}

impl AppendRefused {
    /// Whether the same may be taken later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Busy) || self.is_backpressure()
    }

    /// Whether there is too much at this time: append less, or wait for events.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        match self {
            Self::QueueFull { .. }
            | Self::Full { .. }
            | Self::IndexFull { .. }
            | Self::Slow { .. } => true,
            Self::KeyLength { .. }
            | Self::TooLong { .. }
            | Self::GenerationEnded { .. }
            | Self::Here
            | Self::Busy
            | Self::Device(_) => false,
        }
    }
}

/// Why a record is not removed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RemoveRefused {
    /// A later record of its key is on its way, or is not known to be durable since the log was recovered: ask again
    /// when that has ended.
    #[error("a later record of the key is not durable yet")]
    Busy,
    /// As many removals wait as may.
    #[error("{queued} removals wait")]
    QueueFull {
        /// How many.
        queued: usize,
    },
    /// The drive has failed. The record is not found any more, but may be after a restart: remove it then.
    #[error(transparent)]
    Device(#[from] DeviceFault),
}

impl RemoveRefused {
    /// Whether the same may be done later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Busy | Self::QueueFull { .. })
    }
}

/// How a record is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removing {
    /// Nothing of it is on the drive: it is removed.
    Done,
    /// It is not found any more, and will not be after a restart once this removal has ended.
    Written(RemovalId),
}

/// Why a record does not stay.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum KeepRefused {
    /// The owner was not asked, or the record has been removed or replaced since.
    #[error("the record is not judged")]
    NotJudged,
    /// A later record of the key is on its way: release this one. To wait for it may be to wait for the room that
    /// this one takes.
    #[error("a later record of the key is on its way")]
    Busy,
    /// As much of the segment stays as may: release it.
    #[error("there is no room for it to stay")]
    NoRoom,
}

/// Why a record is not read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PinRefused {
    /// It is not here.
    #[error("the record is not here")]
    NotHere,
    /// As many reads are under way as may.
    #[error("{pins} reads are under way")]
    TooMany {
        /// How many.
        pins: usize,
    },
}

/// How to read a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPlan {
    /// Its segment stays until [`Log::end_read`](crate::log::Log::end_read).
    pub pin: PinId,
    /// What is read. Who reads compares the CRC32C of the payload.
    pub record: Record,
    /// Whole blocks from here on.
    pub offset_bytes: u64,
    /// So many bytes.
    pub len_bytes: u32,
    /// Where among them the key begins, which who reads compares with the one that was asked for.
    pub key_at: u32,
    /// Length of the key.
    pub key_len: u16,
    /// Where among them the payload begins.
    pub payload_at: u32,
}

/// How a read has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The bytes are right, or nobody wanted to know.
    Right,
    /// Checksum or key do not match: the record is dropped.
    Damaged,
    /// The drive could not read them: the record is dropped.
    Failed,
}
