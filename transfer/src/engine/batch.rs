//! What is asked of an engine.

use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::arena::Exposed;
use lunette_transfer_proto::engine::scheduler::Priority;
use lunette_transfer_proto::engine::segment::{Kind, SegmentId, Way};
use lunette_transfer_proto::engine::slices::{REQUESTS_MAX, Request};

use super::error::BatchError;
use super::peer::RemoteSegment;
use crate::source::WriteSource;

/// Why bytes are moved. It decides how urgent they are, and is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Intent {
    /// A request's first token waits for them.
    #[default]
    Get,
    /// They may be wanted soon.
    Prefetch,
    /// They move house.
    Migration,
    /// They are kept for later.
    Checkpoint,
    /// A model's weights.
    Weights,
}

impl Intent {
    /// Every intent, in the order of its index.
    pub const ALL: [Self; 5] = [
        Self::Get,
        Self::Prefetch,
        Self::Migration,
        Self::Checkpoint,
        Self::Weights,
    ];

    pub(super) const fn index(self) -> usize {
        match self {
            Self::Get => 0,
            Self::Prefetch => 1,
            Self::Migration => 2,
            Self::Checkpoint => 3,
            Self::Weights => 4,
        }
    }

    /// How urgent it is unless somebody says otherwise.
    #[must_use]
    pub const fn priority(self) -> Priority {
        match self {
            Self::Get | Self::Weights => Priority::Foreground,
            Self::Prefetch | Self::Migration | Self::Checkpoint => Priority::Background,
        }
    }
}

/// How a batch is posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostOptions {
    /// When what is not done fails.
    pub timeout: Duration,
    /// Why the bytes are moved.
    pub intent: Intent,
    /// How urgent they are; by default as the intent says.
    pub priority: Option<Priority>,
    /// Delivered to the peer once, after all bytes have been moved, unless something failed.
    pub notification: Option<Vec<u8>>,
}

impl Default for PostOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            intent: Intent::Get,
            priority: None,
            notification: None,
        }
    }
}

/// Where one request's bytes lie here.
#[derive(Clone, Debug)]
pub(super) enum Local {
    /// What is read goes there.
    Into(Exposed),
    /// What is written comes from there.
    From(WriteSource),
}

impl Local {
    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Into(memory) => memory.len(),
            Self::From(source) => source.len(),
        }
    }

    /// Where it begins, as a number.
    pub(super) fn start(&self) -> usize {
        match self {
            Self::Into(memory) => memory.start(),
            Self::From(source) => source.start(),
        }
    }

    /// A part of it.
    pub(super) fn slice(&self, start: usize, len: usize) -> Self {
        match self {
            Self::Into(memory) => Self::Into(memory.slice(start, len)),
            Self::From(source) => Self::From(source.slice(start, len)),
        }
    }
}

/// Where one request's bytes lie, here and there.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) local: Local,
    pub(super) segment: SegmentId,
    pub(super) offset_bytes: u64,
    /// Whether the segment is reached over connections alone: by capability, or because it is a file.
    pub(super) is_remote: bool,
    /// Whether it is memory of a device: adapters may reach it, and peers of the same host do not.
    pub(super) is_device: bool,
}

impl Span {
    pub(super) const fn way(&self) -> Way {
        match self.local {
            Local::Into(_) => Way::Read,
            Local::From(_) => Way::Write,
        }
    }
}

/// Reads and writes between local memory and one peer's segments, in no order among them. A batch is
/// prepared once and posted as often as one likes; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    spans: Rc<Vec<Span>>,
    /// The session epoch of the peer.
    peer: Option<u64>,
}

impl Batch {
    /// A batch of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many requests it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Bytes that it moves.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        let len = |span: &Span| span.local.len() as u64;
        self.spans.iter().map(len).sum()
    }

    /// Adds a read of as many bytes as `local` has, from `offset_bytes` of `remote`.
    ///
    /// # Errors
    /// [`BatchError`]; the batch is as before.
    pub fn read(
        &mut self,
        local: Exposed,
        remote: &RemoteSegment,
        offset_bytes: u64,
    ) -> Result<(), BatchError> {
        self.add(Local::Into(local), remote, offset_bytes)
    }

    /// Adds a write of all of `local`, exposed memory or a shared region, to `offset_bytes` of `remote`.
    ///
    /// # Errors
    /// [`BatchError`]; the batch is as before.
    pub fn write(
        &mut self,
        local: impl Into<WriteSource>,
        remote: &RemoteSegment,
        offset_bytes: u64,
    ) -> Result<(), BatchError> {
        self.add(Local::From(local.into()), remote, offset_bytes)
    }

    fn add(
        &mut self,
        local: Local,
        remote: &RemoteSegment,
        offset_bytes: u64,
    ) -> Result<(), BatchError> {
        if self.spans.len() >= REQUESTS_MAX {
            return Err(BatchError::Full);
        }
        if self.peer.is_some_and(|peer| peer != remote.peer()) {
            return Err(BatchError::OtherPeer);
        }
        let span = Span {
            local,
            segment: remote.id(),
            offset_bytes,
            is_remote: remote.is_granted() || matches!(remote.kind(), Kind::File | Kind::Namespace),
            is_device: remote.kind() == Kind::Device,
        };
        if !remote.access().allows(span.way()) {
            return Err(BatchError::Forbidden);
        }
        let (len_bytes, segment_bytes) = (span.local.len() as u64, remote.len_bytes());
        let end = offset_bytes.checked_add(len_bytes);
        if end.is_none_or(|end| end > segment_bytes) {
            return Err(BatchError::OutOfRange {
                offset_bytes,
                len_bytes,
                segment_bytes,
            });
        }
        self.peer = Some(remote.peer());
        Rc::make_mut(&mut self.spans).push(span);
        Ok(())
    }

    pub(super) const fn peer(&self) -> Option<u64> {
        self.peer
    }

    pub(super) fn span(&self, request: u32) -> &Span {
        &self.spans[request as usize]
    }

    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = Request> {
        self.spans.iter().map(|span| Request {
            way: span.way(),
            len_bytes: span.local.len() as u64,
        })
    }
}
