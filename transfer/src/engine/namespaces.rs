//! Namespaces of NVMe controllers as segments.
//!
//! Their bytes go straight between the connection to the controller and the memory of a batch, or, for peers,
//! the owner's staging memory. They are reached in whole blocks: there is no page cache that would read the rest
//! of a block, and two writers of one block who did so would undo each other's writes.

use std::rc::Rc;
use std::time::Duration;

use lunette_nvmeof::proto::completion::Status;
use lunette_nvmeof::proto::host::{Fate, fate_of};
use lunette_nvmeof::{CommandError, ConnectError, NamespaceOptions, RemoteNamespace};
use lunette_runtime::arena::Exposed;
use lunette_transfer_proto::engine::slices::CUT_ALIGN_BYTES;
use thiserror::Error;

use super::Refusal;
use crate::source::WriteSource;

/// Which namespace is to be a segment, and how long its commands may take.
#[derive(Clone, Debug)]
pub struct NamespaceSegmentOptions {
    /// Where it is, and who asks.
    pub namespace: NamespaceOptions,
    /// Longest that one command may take, of peers' requests too, whose deadlines are not known here. Commands
    /// of this engine's own transfers end at their transfer's deadline if that is earlier.
    pub timeout: Duration,
}

impl NamespaceSegmentOptions {
    /// That namespace, with 30 s for a command.
    #[must_use]
    pub const fn new(namespace: NamespaceOptions) -> Self {
        Self {
            namespace,
            timeout: Duration::from_secs(30),
        }
    }
}

/// Why a namespace is no segment.
#[derive(Debug, Error)]
pub enum NamespaceSegmentError {
    /// It was not connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Its blocks are longer than what requests are cut at.
    #[error("blocks of {block_bytes} bytes: a segment has blocks of at most {CUT_ALIGN_BYTES}")]
    BlockLength {
        /// Length of a block.
        block_bytes: u64,
    },
}

impl NamespaceSegmentError {
    /// Whether trying again later may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_retryable(),
            Self::BlockLength { .. } => false,
        }
    }
}

/// A namespace that can be registered as a segment. Clones are handles to the same one; it belongs to the core
/// that has connected it, and its connections end with the last of them.
#[derive(Clone, Debug)]
pub struct NamespaceSegment {
    namespace: Rc<RemoteNamespace>,
    timeout: Duration,
    len_bytes: u64,
    block_bytes_log2: u8,
}

/// A part of a namespace: whole blocks.
#[derive(Clone, Debug)]
pub(in crate::engine) struct NamespacePart {
    segment: NamespaceSegment,
    first: u64,
    len: usize,
}

impl NamespaceSegment {
    /// Connects a namespace. A connection that is lost later is made again in the background.
    ///
    /// # Errors
    /// [`NamespaceSegmentError`].
    ///
    /// # Panics
    /// As [`RemoteNamespace::connect`].
    pub async fn connect(options: NamespaceSegmentOptions) -> Result<Self, NamespaceSegmentError> {
        let namespace = RemoteNamespace::connect(options.namespace).await?;
        let identity = namespace.identity();
        let block_bytes_log2 = identity.block_bytes_log2;
        let block_bytes = 1_u64 << block_bytes_log2;
        if block_bytes > CUT_ALIGN_BYTES {
            return Err(NamespaceSegmentError::BlockLength { block_bytes });
        }
        let len_bytes = identity.blocks.saturating_mul(block_bytes);
        Ok(Self {
            namespace: Rc::new(namespace),
            timeout: options.timeout,
            len_bytes,
            block_bytes_log2,
        })
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Length of a block in bytes: places and lengths of requests are multiples of it.
    #[must_use]
    pub const fn block_bytes(&self) -> u64 {
        1 << self.block_bytes_log2
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &RemoteNamespace {
        &self.namespace
    }

    /// Waits until what has been written, by whomever, is on the medium.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn sync(&self) -> Result<(), CommandError> {
        let flushed = self.namespace.flush(self.timeout).await;
        flushed.map_err(|failure| failure.error)
    }

    /// # Errors
    /// [`Refusal::Unaligned`].
    ///
    /// # Panics
    /// If the part does not lie inside.
    pub(in crate::engine) fn part(
        &self,
        offset_bytes: u64,
        len: usize,
    ) -> Result<NamespacePart, Refusal> {
        let end = offset_bytes.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.len_bytes), "inside");
        let block_bytes = self.block_bytes();
        if !offset_bytes.is_multiple_of(block_bytes) || !(len as u64).is_multiple_of(block_bytes) {
            return Err(Refusal::Unaligned);
        }
        Ok(NamespacePart {
            segment: self.clone(),
            first: offset_bytes >> self.block_bytes_log2,
            len,
        })
    }
}

impl NamespacePart {
    pub(in crate::engine) const fn len(&self) -> usize {
        self.len
    }

    /// Reads it over all of `to`, which is as long. Nothing lands there any more when it has ended.
    pub(in crate::engine) async fn read(
        &self,
        to: Exposed,
        limit: Duration,
    ) -> Result<(), CommandError> {
        let timeout = self.segment.timeout.min(limit);
        for (first, start, len) in self.commands() {
            let piece = to.slice(start, len);
            let read = self.segment.namespace.read_exposed(first, piece, timeout);
            read.await.map_err(|failure| failure.error)?;
        }
        Ok(())
    }

    /// Writes all of `from`, which is as long, over it.
    pub(in crate::engine) async fn write(
        &self,
        from: WriteSource,
        limit: Duration,
    ) -> Result<(), CommandError> {
        let timeout = self.segment.timeout.min(limit);
        let namespace = &self.segment.namespace;
        for (first, start, len) in self.commands() {
            let written = match from.slice(start, len) {
                WriteSource::Exposed(piece) => {
                    namespace.write_exposed(first, piece, false, timeout).await
                }
                WriteSource::Region(piece) => namespace.write(first, piece, false, timeout).await,
            };
            written.map_err(|failure| failure.error)?;
        }
        Ok(())
    }

    /// Its commands: the first block of each, and which of its bytes those are.
    fn commands(&self) -> impl Iterator<Item = (u64, usize, usize)> + use<> {
        let step = self.segment.namespace.transfer_bytes_max() as usize;
        let (first, len, log2) = (self.first, self.len, self.segment.block_bytes_log2);
        (0..len)
            .step_by(step)
            .map(move |start| (first + (start as u64 >> log2), start, step.min(len - start)))
    }
}

/// What whoever asked is told of a command that failed.
pub(in crate::engine) fn refusal_of(error: &CommandError) -> Refusal {
    match error {
        CommandError::Status(status) => refusal_of_status(*status),
        CommandError::Disconnected(_)
        | CommandError::NotSent(_)
        | CommandError::DeadlineExceeded => Refusal::Detached,
        CommandError::NoPath(reason) if reason.is_retryable() => Refusal::Detached,
        CommandError::Memory(_) => Refusal::Busy,
        CommandError::NoPath(_) | CommandError::Short { .. } => Refusal::Storage,
    }
}

fn refusal_of_status(status: Status) -> Refusal {
    const NOT_READY: u16 = Status::NAMESPACE_NOT_READY.code();
    const ABORTED: u16 = Status::ABORT_REQUESTED.code();
    const ABORTED_WITH_QUEUE: u16 = Status::ABORTED_WITH_QUEUE.code();
    if fate_of(status) != Fate::Answered {
        return Refusal::Detached;
    }
    match status.code() {
        NOT_READY => Refusal::Busy,
        // What was under way at the drive may have been carried out.
        ABORTED | ABORTED_WITH_QUEUE => Refusal::Detached,
        // The others may be sent again, as NVMe has it, and would most likely end as before.
        _ => Refusal::Storage,
    }
}

/// Whether a write that failed so may still be carried out.
pub(in crate::engine) fn may_still_land(error: &CommandError) -> bool {
    let was_not_carried_out = match error {
        CommandError::Status(status) => fate_of(*status) == Fate::NotDone,
        error => matches!(error, CommandError::NotSent(_) | CommandError::NoPath(_)),
    };
    !was_not_carried_out && refusal_of(error) == Refusal::Detached
}

#[cfg(test)]
mod tests {
    use lunette_nvmeof::CloseReason;
    use lunette_nvmeof::proto::host::NoPath;

    use super::*;

    #[test]
    fn what_a_failed_command_says() {
        let gone = CloseReason::Peer;
        let short = CommandError::Short {
            moved_bytes: 1,
            len_bytes: 512,
        };
        for (error, refusal, may_land) in [
            (CommandError::Disconnected(gone), Refusal::Detached, true),
            (CommandError::NotSent(gone), Refusal::Detached, false),
            (CommandError::DeadlineExceeded, Refusal::Detached, true),
            (
                CommandError::NoPath(NoPath::Inaccessible),
                Refusal::Detached,
                false,
            ),
            (CommandError::NoPath(NoPath::Lost), Refusal::Storage, false),
            (short, Refusal::Storage, false),
            (
                CommandError::Status(Status::LBA_OUT_OF_RANGE),
                Refusal::Storage,
                false,
            ),
            (
                CommandError::Status(Status::UNRECOVERED_READ),
                Refusal::Storage,
                false,
            ),
            (
                CommandError::Status(Status::NAMESPACE_NOT_READY),
                Refusal::Busy,
                false,
            ),
            (
                CommandError::Status(Status::ABORTED_WITH_QUEUE),
                Refusal::Detached,
                true,
            ),
            (
                CommandError::Status(Status::ANA_TRANSITION),
                Refusal::Detached,
                false,
            ),
            (
                CommandError::Status(Status::TRANSIENT_TRANSPORT_ERROR),
                Refusal::Detached,
                true,
            ),
        ] {
            assert_eq!(refusal_of(&error), refusal, "{error}");
            assert_eq!(may_still_land(&error), may_land, "{error}");
            if may_land {
                assert!(error.is_retryable() && refusal.is_retryable(), "{error}");
            }
        }
    }
}
