//! What is asked of an engine.

use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::arena::Exposed;
use lunette_transfer_proto::engine::scheduler::Priority;
use lunette_transfer_proto::engine::segment::{Kind, SegmentId, Way};
use lunette_transfer_proto::engine::slices::{REQUESTS_MAX, Request};

use super::devices::{DevicePart, DeviceSegment};
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

/// Where one request's bytes lie here, in memory of this machine.
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

/// This side of a request.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// Memory of this machine.
    Host(Local),
    /// Memory of a device, into which or out of which bytes go. Its requests are carried out in pieces, whose this
    /// side is memory of this machine (`super::devices`), so no way of bytes but that one meets it.
    Device(Way, DevicePart),
}

/// Where one request's bytes lie, here and there.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) end: End,
    pub(super) segment: SegmentId,
    pub(super) offset_bytes: u64,
    /// Whether the segment is reached over connections alone: by capability, or because it is a file.
    pub(super) is_remote: bool,
    /// Whether it is memory of a device: adapters may reach it, and peers of the same host do not.
    pub(super) is_device: bool,
}

impl Span {
    pub(super) const fn way(&self) -> Way {
        match self.end {
            End::Host(Local::Into(_)) => Way::Read,
            End::Host(Local::From(_)) => Way::Write,
            End::Device(way, _) => way,
        }
    }

    pub(super) const fn len(&self) -> usize {
        match &self.end {
            End::Host(local) => local.len(),
            End::Device(_, part) => part.len(),
        }
    }

    /// Its memory of this machine.
    ///
    /// # Panics
    /// If it is a device's.
    pub(super) fn local(&self) -> &Local {
        match &self.end {
            End::Host(local) => local,
            End::Device(..) => unreachable!("a device's requests are carried out in pieces"),
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
    /// Whether memory of a device is among what lies here.
    has_devices: bool,
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
        let len = |span: &Span| span.len() as u64;
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
        let len_bytes = local.len() as u64;
        self.check(Way::Read, len_bytes, remote, offset_bytes)?;
        self.put(End::Host(Local::Into(local)), remote, offset_bytes);
        Ok(())
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
        let source = local.into();
        let len_bytes = source.len() as u64;
        self.check(Way::Write, len_bytes, remote, offset_bytes)?;
        self.put(End::Host(Local::From(source)), remote, offset_bytes);
        Ok(())
    }

    /// Adds a read into memory of a device: as many bytes as `local` has, from `offset_bytes` of `remote`.
    ///
    /// They come by way of memory of this machine, a few pieces at a time, unless the segment is this engine's own and
    /// the device reaches it. The device's memory is held by whatever is under way to it.
    ///
    /// # Errors
    /// [`BatchError`]; the batch is as before.
    pub fn read_device(
        &mut self,
        local: &DeviceSegment,
        remote: &RemoteSegment,
        offset_bytes: u64,
    ) -> Result<(), BatchError> {
        self.add_device(Way::Read, local, remote, offset_bytes)
    }

    /// Adds a write of all of `local`, memory of a device, to `offset_bytes` of `remote`, as
    /// [`read_device`](Self::read_device) the other way.
    ///
    /// # Errors
    /// [`BatchError`]; the batch is as before.
    pub fn write_device(
        &mut self,
        local: &DeviceSegment,
        remote: &RemoteSegment,
        offset_bytes: u64,
    ) -> Result<(), BatchError> {
        self.add_device(Way::Write, local, remote, offset_bytes)
    }

    fn add_device(
        &mut self,
        way: Way,
        local: &DeviceSegment,
        remote: &RemoteSegment,
        offset_bytes: u64,
    ) -> Result<(), BatchError> {
        let len_bytes = local.len_bytes();
        let len = usize::try_from(len_bytes).map_err(|_| BatchError::OutOfRange {
            offset_bytes,
            len_bytes,
            segment_bytes: remote.len_bytes(),
        })?;
        self.check(way, len_bytes, remote, offset_bytes)?;
        self.put(End::Device(way, local.part(0, len)), remote, offset_bytes);
        self.has_devices = true;
        Ok(())
    }

    /// Whether a request may be added.
    fn check(
        &self,
        way: Way,
        len_bytes: u64,
        remote: &RemoteSegment,
        offset_bytes: u64,
    ) -> Result<(), BatchError> {
        if self.spans.len() >= REQUESTS_MAX {
            return Err(BatchError::Full);
        }
        if self.peer.is_some_and(|peer| peer != remote.peer()) {
            return Err(BatchError::OtherPeer);
        }
        if !remote.access().allows(way) {
            return Err(BatchError::Forbidden);
        }
        let segment_bytes = remote.len_bytes();
        let end = offset_bytes.checked_add(len_bytes);
        if end.is_none_or(|end| end > segment_bytes) {
            return Err(BatchError::OutOfRange {
                offset_bytes,
                len_bytes,
                segment_bytes,
            });
        }
        Ok(())
    }

    /// Adds what was checked.
    #[inline]
    fn put(&mut self, end: End, remote: &RemoteSegment, offset_bytes: u64) {
        self.peer = Some(remote.peer());
        Rc::make_mut(&mut self.spans).push(Span {
            end,
            segment: remote.id(),
            offset_bytes,
            is_remote: remote.is_granted() || matches!(remote.kind(), Kind::File | Kind::Namespace),
            is_device: remote.kind() == Kind::Device,
        });
    }

    pub(super) const fn peer(&self) -> Option<u64> {
        self.peer
    }

    pub(super) const fn has_devices(&self) -> bool {
        self.has_devices
    }

    /// Parts of another batch's requests, whose memory here is some of this machine.
    pub(super) fn of_parts(peer: Option<u64>, spans: Vec<Span>) -> Self {
        Self {
            spans: Rc::new(spans),
            peer,
            has_devices: false,
        }
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
            len_bytes: span.len() as u64,
        })
    }
}
