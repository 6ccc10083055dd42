//! Memory of a device, a GPU say: as a segment, and as this side of requests.
//!
//! Adapters reach a segment of it by a dma-buf, where device, library and kernel can; peers read and write it then as
//! they do memory. Else its bytes go by way of memory of this machine that the device knows, and so do those of
//! requests whose this side is a device's:
//!
//! ```text
//!   peer <-- connection --> staging <-- device's copies --> device        a segment (`files::serving`)
//!   device <-- copies --> pieces of an arena <-- transfer --> peer        this side of a request (`carrying`)
//!   device <-- copies --> memory, device                                  within one engine, where it is reached
//!   device <-- copies --> device of a peer                                of this host, where both trust each other
//! ```
//!
//! | module | subject |
//! |---|---|
//! | `carrying` | transfers whose this side is a device's: pieces, several of them on their way at a time |
//! | `lent` | [`DeviceLent`]: memory of devices that threads lend to a core |
//! | `near` | what of these a device reaches by itself: in this engine, and in one of this host that hands it out |
//! | `pieces` | which bytes of which requests travel together |
//! | `together` | copies of pieces of several segments, as one operation |

mod carrying;
mod lent;
mod near;
mod pieces;
mod together;

pub use lent::{ALLOCATIONS_MAX, DeviceLendError, DeviceLent, DeviceWay, LentDevices};

use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;

use futures_util::future::join_all;
use lunette_gpu::lease::HostMemory;
use lunette_gpu::share::AdapterWay;
use lunette_gpu::{CopyError, Device, DeviceRegion, Operation, Stream};
use lunette_runtime::arena::{Exposed, RegionMut};
use lunette_runtime::{arena, time};
use lunette_transfer_proto::engine::scheduler::Cause;
use lunette_verbs::{Access as Rights, Context, DeviceMemory, SetupError};
use thiserror::Error;

use super::Refusal;
use crate::source::WriteSource;

/// Longest piece that is copied to or from a device at once.
const PIECE_BYTES_MAX: usize = 1024 * 1024;
/// Pause before a copy is queued again for which the stream had no room.
const FULL_PAUSE: Duration = Duration::from_micros(100);

/// Memory of a device, to be registered as a segment or to be this side of requests, and the streams by which it is
/// copied. Clones are handles to the same; it belongs to the core on which the device was opened.
#[derive(Clone, Debug)]
pub struct DeviceSegment {
    region: DeviceRegion,
    streams: Streams,
}

/// Streams of one opening of a device: of copies from it, and of copies to it and within it.
#[derive(Clone, Debug)]
struct Streams {
    from: Stream,
    to: Stream,
}

/// A part of a device's segment.
#[derive(Clone, Debug)]
pub(in crate::engine) struct DevicePart {
    region: DeviceRegion,
    streams: Streams,
    len: usize,
}

/// Why bytes were not copied to or from a device. What was to be filled may hold anything.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DeviceFault {
    /// The device.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The core's arena.
    #[error("no memory to stage in: {0}")]
    NoRoom(arena::AllocError),
}

impl DeviceSegment {
    /// Memory of a device, and a stream of the same opening of that device.
    #[must_use]
    pub fn new(region: DeviceRegion, stream: Stream) -> Self {
        Self::with_streams(region, stream.clone(), stream)
    }

    /// Memory of a device, and two streams of the same opening of that device: one for what is copied from it, and one for
    /// what is copied to it, so that neither waits for the other.
    #[must_use]
    pub const fn with_streams(region: DeviceRegion, from: Stream, to: Stream) -> Self {
        let streams = Streams { from, to };
        Self { region, streams }
    }

    /// The memory.
    #[must_use]
    pub const fn region(&self) -> &DeviceRegion {
        &self.region
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.region.len()
    }

    /// A part of it, by the same streams.
    ///
    /// # Panics
    /// If the part does not lie inside.
    #[must_use]
    pub fn slice(&self, range: Range<u64>) -> Self {
        Self {
            region: self.region.slice(range),
            streams: self.streams.clone(),
        }
    }

    /// Copies it over `to`, which is as long: at once what is a piece of an arena, other memory by way of some.
    ///
    /// A copy that is under way goes on if the future is dropped, and keeps the memory of both sides.
    ///
    /// # Errors
    /// [`DeviceFault`].
    ///
    /// # Panics
    /// If `to` is not as long.
    pub async fn download(&self, to: Exposed) -> Result<(), DeviceFault> {
        self.part(0, self.as_long_as(to.len())).read(to).await
    }

    /// Copies `from`, which is as long, over it; as [`download`](Self::download) the other way.
    ///
    /// # Errors
    /// [`DeviceFault`].
    ///
    /// # Panics
    /// If `from` is not as long.
    pub async fn upload(&self, from: impl Into<WriteSource>) -> Result<(), DeviceFault> {
        let from = from.into();
        self.part(0, self.as_long_as(from.len())).write(from).await
    }

    fn as_long_as(&self, len: usize) -> usize {
        assert_eq!(self.region.len(), len as u64, "as long as the other side");
        len
    }

    /// # Panics
    /// If the part does not lie inside.
    pub(in crate::engine) fn part(&self, offset_bytes: u64, len: usize) -> DevicePart {
        DevicePart {
            region: self.region.slice(offset_bytes..offset_bytes + len as u64),
            streams: self.streams.clone(),
            len,
        }
    }

    /// Registers it with an adapter, for peers and for own requests: by its dma-buf, or where that is not to be had, by its
    /// address (nvidia-peermem). Peers lose their rights with the last
    /// handle to what is returned; that this memory stays until then is the caller's to see to.
    ///
    /// # Errors
    /// [`SetupError::Unsupported`] where device, library or kernel has no way to it; else what the adapter
    /// says of the last way.
    pub async fn register(
        &self,
        adapter: &Context,
        rights: Rights,
    ) -> Result<DeviceMemory, SetupError> {
        let mut refused = SetupError::Unsupported;
        for way in self.region.adapter_ways() {
            let registered = match way {
                AdapterWay::DmaBuf {
                    dma_buf,
                    offset_bytes,
                } => {
                    let range = offset_bytes..offset_bytes + self.region.len();
                    DeviceMemory::register(adapter, dma_buf, range, rights).await
                }
                AdapterWay::PeerMemory(memory) => {
                    DeviceMemory::register_peer(adapter, memory, rights).await
                }
                AdapterWay::Staging => break,
            };
            match registered {
                Ok(memory) => return Ok(memory),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }
}

impl DeviceFault {
    /// Whether the same may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Copy(error) => error.is_retryable(),
            Self::NoRoom(error) => error.is_backpressure(),
        }
    }

    /// Whether waiting, or freeing something, can help.
    #[must_use]
    pub fn is_backpressure(&self) -> bool {
        match self {
            Self::Copy(error) => error.is_backpressure(),
            Self::NoRoom(error) => error.is_backpressure(),
        }
    }

    /// What a peer is told of a device of this side.
    pub(in crate::engine) const fn refusal(&self) -> Refusal {
        match self.cause() {
            Cause::OwnRoom => Refusal::Busy,
            Cause::OwnDevice => Refusal::Device,
            Cause::OwnDeviceLost => Refusal::DeviceLost,
            _ => Refusal::Storage,
        }
    }

    /// What this side's program is told.
    pub(in crate::engine) const fn cause(&self) -> Cause {
        match self {
            Self::NoRoom(_) => Cause::OwnRoom,
            Self::Copy(CopyError::Poisoned(_)) => Cause::OwnDeviceLost,
            Self::Copy(CopyError::Foreign) => Cause::OwnDeviceForeign,
            // Memory that is not made known to the device is copied all the same, and ranges are checked before.
            Self::Copy(_) => Cause::OwnDevice,
        }
    }
}

impl DevicePart {
    /// The device by whose streams it is copied.
    pub(in crate::engine) const fn device(&self) -> &Device {
        self.streams.to.device()
    }

    /// Other memory that the same device reaches, by the same streams.
    pub(in crate::engine) fn beside(&self, region: DeviceRegion) -> Self {
        Self {
            len: usize::try_from(region.len()).expect("as long as what lies in memory"),
            region,
            streams: self.streams.clone(),
        }
    }

    pub(in crate::engine) const fn len(&self) -> usize {
        self.len
    }

    /// A part of it.
    ///
    /// # Panics
    /// If the part does not lie inside.
    pub(in crate::engine) fn slice(&self, start: usize, len: usize) -> Self {
        Self {
            region: self.region.slice(start as u64..(start + len) as u64),
            streams: self.streams.clone(),
            len,
        }
    }

    /// Reads it over `to`, which is as long. What is a piece of an arena the device reaches; other memory is filled
    /// by way of some.
    pub(in crate::engine) async fn read(&self, to: Exposed) -> Result<(), DeviceFault> {
        if self.len == 0 {
            return Ok(());
        }
        if to.chunk().is_some() {
            let region = &self.region;
            copied(to, |to| self.streams.from.download(region, to, 0)).await?;
            return Ok(());
        }
        self.by_rooms(async |room, at, part| {
            let len = usize::try_from(part.len()).expect("a piece is short");
            let room = copied(room, |room| self.streams.from.download(&part, room, 0)).await?;
            to.copy_in(at, &room.as_slice()[..len]);
            Ok(room)
        })
        .await
    }

    /// Writes `from`, which is as long, over it.
    pub(in crate::engine) async fn write(&self, from: WriteSource) -> Result<(), DeviceFault> {
        if self.len == 0 {
            return Ok(());
        }
        let region = &self.region;
        let from = match from {
            WriteSource::Exposed(memory) if memory.chunk().is_some() => {
                copied(memory, |from| self.streams.to.upload(from, 0, region)).await?;
                return Ok(());
            }
            WriteSource::Region(lent) => {
                copied(lent, |from| self.streams.to.upload(from, 0, region)).await?;
                return Ok(());
            }
            WriteSource::Exposed(memory) => memory,
        };
        self.by_rooms(async |mut room, at, part| {
            let len = usize::try_from(part.len()).expect("a piece is short");
            from.copy_out(at, &mut room.as_mut_slice()[..len]);
            copied(room, |room| self.streams.to.upload(room, 0, &part)).await
        })
        .await
    }

    /// Fills it with another part, which is as long, inside one device.
    ///
    /// # Errors
    /// [`CopyError::Foreign`] if they are not of one opening of a device: nothing was done.
    pub(in crate::engine) async fn copy_from(&self, from: &Self) -> Result<(), DeviceFault> {
        assert_eq!(self.len, from.len, "as long");
        if self.len > 0 {
            copied((), |()| self.streams.to.copy(&from.region, &self.region)).await?;
        }
        Ok(())
    }

    /// Does `step` for all of its pieces, by two rooms in turn: while one is being copied by the device, this core
    /// copies the other.
    async fn by_rooms(
        &self,
        step: impl AsyncFn(RegionMut, usize, DeviceRegion) -> Result<RegionMut, DeviceFault>,
    ) -> Result<(), DeviceFault> {
        let pieces = RefCell::new(self.pieces());
        let next = || pieces.borrow_mut().next();
        let walk = async || {
            let mut room = None;
            while let Some((at, part)) = next() {
                let lent = match room.take() {
                    Some(room) => room,
                    None => self.room()?,
                };
                room = Some(step(lent, at, part).await?);
            }
            Ok(())
        };
        let ended = join_all([walk(), walk()]).await;
        ended.into_iter().collect()
    }

    fn room(&self) -> Result<RegionMut, DeviceFault> {
        let room = arena().alloc(self.len.clamp(1, PIECE_BYTES_MAX));
        room.map_err(DeviceFault::NoRoom)
    }

    /// Its pieces, and where each begins.
    fn pieces(&self) -> impl Iterator<Item = (usize, DeviceRegion)> + use<'_> {
        (0..self.len).step_by(PIECE_BYTES_MAX).map(|at| {
            let end = self.len.min(at + PIECE_BYTES_MAX);
            (at, self.region.slice(at as u64..end as u64))
        })
    }
}

/// Has the device copy what is lent, as soon as the stream has a place for it, and gives that back.
async fn copied<H: HostMemory>(
    mut lent: H,
    copy: impl Fn(H) -> Operation<H>,
) -> Result<H, DeviceFault> {
    loop {
        let (copied, back) = copy(lent).await;
        lent = back;
        match copied {
            Ok(()) => return Ok(lent),
            Err(CopyError::Full) => time::sleep(FULL_PAUSE).await,
            Err(error) => return Err(error.into()),
        }
    }
}
