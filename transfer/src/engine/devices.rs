//! Memory of a device, a GPU say, as a segment.
//!
//! Adapters reach it by a dma-buf, where device, library and kernel can; peers read and write it then as they
//! do memory. Else its bytes go over connections, by way of memory of this machine: piece by piece through
//! memory that the device knows, a copy more than files need.

use std::time::Duration;

use lunette_gpu::share::AdapterWay;
use lunette_gpu::{CopyError, DeviceRegion, Operation, Stream};
use lunette_runtime::arena::{Exposed, RegionMut};
use lunette_runtime::{arena, time};
use lunette_verbs::{Access as Rights, Context, DeviceMemory, SetupError};
use thiserror::Error;

use crate::source::WriteSource;

/// Longest piece that is copied to or from a device at once.
const PIECE_BYTES_MAX: usize = 1024 * 1024;
/// Pause before a copy is queued again for which the stream had no room.
const FULL_PAUSE: Duration = Duration::from_micros(100);

/// Memory of a device that can be registered as a segment, and the stream by which its owner copies. Clones are
/// handles to the same; it belongs to the core on which the device was opened.
#[derive(Clone, Debug)]
pub struct DeviceSegment {
    region: DeviceRegion,
    stream: Stream,
}

/// A part of a device's segment.
#[derive(Clone, Debug)]
pub(in crate::engine) struct DevicePart {
    region: DeviceRegion,
    stream: Stream,
    len: usize,
}

/// Why bytes were not copied to or from a device.
#[derive(Debug, Error)]
pub(in crate::engine) enum DeviceFault {
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
    pub const fn new(region: DeviceRegion, stream: Stream) -> Self {
        Self { region, stream }
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

    /// # Panics
    /// If the part does not lie inside.
    pub(in crate::engine) fn part(&self, offset_bytes: u64, len: usize) -> DevicePart {
        DevicePart {
            region: self.region.slice(offset_bytes..offset_bytes + len as u64),
            stream: self.stream.clone(),
            len,
        }
    }

    /// Registers it with an adapter, for peers.
    ///
    /// # Errors
    /// [`SetupError::Unsupported`] where device, library or kernel has no dma-buf for it; else what the adapter
    /// says.
    pub(in crate::engine) async fn register(
        &self,
        adapter: &Context,
        rights: Rights,
    ) -> Result<DeviceMemory, SetupError> {
        for way in self.region.adapter_ways() {
            if let AdapterWay::DmaBuf {
                dma_buf,
                offset_bytes,
            } = way
            {
                let range = offset_bytes..offset_bytes + self.region.len();
                return DeviceMemory::register(adapter, dma_buf, range, rights).await;
            }
        }
        Err(SetupError::Unsupported)
    }
}

impl DevicePart {
    pub(in crate::engine) const fn len(&self) -> usize {
        self.len
    }

    /// Reads it over `to`, which is as long.
    pub(in crate::engine) async fn read(&self, to: Exposed) -> Result<(), DeviceFault> {
        let mut room = self.room()?;
        for (at, part) in self.pieces() {
            let len = usize::try_from(part.len()).expect("a piece is short");
            room = copied(room, |room| self.stream.download(&part, room, 0)).await?;
            to.copy_in(at, &room.as_slice()[..len]);
        }
        Ok(())
    }

    /// Writes `from`, which is as long, over it.
    pub(in crate::engine) async fn write(&self, from: WriteSource) -> Result<(), DeviceFault> {
        let mut room = self.room()?;
        for (at, part) in self.pieces() {
            let len = usize::try_from(part.len()).expect("a piece is short");
            from.copy_out(at, &mut room.as_mut_slice()[..len]);
            room = copied(room, |room| self.stream.upload(room, 0, &part)).await?;
        }
        Ok(())
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

/// Copies to or from `room`, as soon as the stream has a place for it, and gives that back.
async fn copied(
    mut room: RegionMut,
    copy: impl Fn(RegionMut) -> Operation<RegionMut>,
) -> Result<RegionMut, DeviceFault> {
    loop {
        let (copied, back) = copy(room).await;
        room = back;
        match copied {
            Ok(()) => return Ok(room),
            Err(CopyError::Full) => time::sleep(FULL_PAUSE).await,
            Err(error) => return Err(error.into()),
        }
    }
}
