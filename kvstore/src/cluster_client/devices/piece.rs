//! Where the bytes of an object are, or are to be: memory of devices and of this host, one piece after the other.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

use futures_util::future::join_all;
use lunette_gpu::lease::HostMemory;
use lunette_gpu::{CopyError, HostPiece, Operation, Summed};
use lunette_runtime::arena::Exposed;
use lunette_runtime_core::checksum::joined_crc32c;
use lunette_transfer::engine::{DeviceFault, DeviceSegment};

/// One piece.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Device(DeviceSegment),
    Host(Exposed),
}

/// A copy between a piece and memory of an arena.
type Copying = Pin<Box<dyn Future<Output = Result<(), DeviceFault>>>>;

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Device(memory) => usize::try_from(memory.len_bytes()).unwrap_or(usize::MAX),
            Self::Host(memory) => memory.len(),
        }
    }

    fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::Device(memory) => {
                Self::Device(memory.slice(range.start as u64..range.end as u64))
            }
            Self::Host(memory) => Self::Host(memory.slice(range.start, range.len())),
        }
    }
}

/// Memory of a device.
pub(super) const fn of_device(piece: &Piece) -> Option<&DeviceSegment> {
    match piece {
        Piece::Device(memory) => Some(memory),
        Piece::Host(_) => None,
    }
}

/// The first of the pieces, if all are of devices, and copied by the same streams.
pub(super) fn of_one_device(pieces: &[Piece]) -> Option<&DeviceSegment> {
    let first = of_device(pieces.first()?)?;
    let mut segments = pieces.iter().map(of_device);
    let is_with =
        |segment: Option<&DeviceSegment>| segment.is_some_and(|it| first.is_copied_with(it));
    segments.all(is_with).then_some(first)
}

/// The pieces, all of devices, as far as so many bytes of the host's go, which begin there in the memory of this index.
pub(super) fn beside(
    pieces: &[Piece],
    (index, start, len_bytes): (usize, usize, usize),
) -> Vec<(HostPiece, DeviceSegment)> {
    let (mut beside, mut done) = (Vec::with_capacity(pieces.len()), 0);
    for segment in pieces.iter().filter_map(of_device) {
        let room = usize::try_from(segment.len_bytes()).unwrap_or(usize::MAX);
        let count = room.min(len_bytes - done);
        if count > 0 {
            let piece = HostPiece {
                index,
                host_bytes: start + done,
                device_bytes: 0,
                len_bytes: count,
            };
            beside.push((piece, segment.clone()));
            done += count;
        }
    }
    beside
}

/// A copy of several objects that is under way, and sums them if it is a kernel's.
pub(super) enum Together<H> {
    Summed(Operation<Summed<H>>),
    Plain(Operation<H>),
}

/// What has been copied, and the CRC32C of each piece if it was summed.
pub(super) struct Copied<H> {
    pub(super) host: H,
    crc32c: Option<Vec<u32>>,
}

impl<H: HostMemory> Together<H> {
    /// Waits for it, of so many pieces.
    pub(super) async fn end(self, pieces: usize) -> Result<Copied<H>, CopyError> {
        let (host, crc32c) = match self {
            Self::Summed(copying) => {
                let (copied, summed) = copying.await;
                copied?;
                let crc32c = (0..pieces).map(|piece| summed.crc32c(piece)).collect();
                (summed.host, Some(crc32c))
            }
            Self::Plain(copying) => {
                let (copied, host) = copying.await;
                copied?;
                (host, None)
            }
        };
        Ok(Copied { host, crc32c })
    }

    /// Whether it sums what it copies.
    pub(super) const fn is_summed(&self) -> bool {
        matches!(self, Self::Summed(_))
    }
}

impl<H> Copied<H> {
    /// Whether it was summed on the way.
    pub(super) const fn is_summed(&self) -> bool {
        self.crc32c.is_some()
    }

    /// The CRC32C of an object that is these pieces, of these lengths, if they were summed.
    pub(super) fn crc32c(&self, pieces: Range<usize>, lens: &[usize]) -> Option<u32> {
        let summed = &self.crc32c.as_ref()?[pieces.clone()];
        let parts = summed.iter().zip(&lens[pieces]);
        Some(parts.fold(0, |sum, (then, len)| joined_crc32c(sum, *then, *len as u64)))
    }
}

/// How many bytes there are in the pieces.
pub(super) fn len(pieces: &[Piece]) -> usize {
    pieces.iter().map(Piece::len).fold(0, usize::saturating_add)
}

/// The pieces of a part of what is in these pieces, which reach as far at least.
pub(super) fn part(pieces: &[Piece], range: Range<usize>) -> Vec<Piece> {
    let (mut parts, mut begins_at) = (Vec::new(), 0);
    for piece in pieces {
        let ends_at = begins_at + piece.len();
        let (from, to) = (range.start.max(begins_at), range.end.min(ends_at));
        if from < to {
            parts.push(piece.slice(from - begins_at..to - begins_at));
        }
        begins_at = ends_at;
    }
    debug_assert_eq!(len(&parts), range.len(), "they reach as far");
    parts
}

/// Copies what is in the pieces over the front of the room, as much as it has.
pub(super) fn download(pieces: &[Piece], room: &Exposed) -> Copies {
    copies(pieces, room, |piece, room| match piece {
        Piece::Device(memory) => Box::pin(async move { memory.download(room).await }),
        Piece::Host(memory) => {
            room.copy_from(0, &memory);
            Box::pin(async { Ok(()) })
        }
    })
}

/// Copies the front of the room over what is in the pieces, as much as the room has.
pub(super) fn upload(pieces: &[Piece], room: &Exposed) -> Copies {
    copies(pieces, room, |piece, room| match piece {
        Piece::Device(memory) => Box::pin(async move { memory.upload(room).await }),
        Piece::Host(memory) => {
            memory.copy_from(0, &room);
            Box::pin(async { Ok(()) })
        }
    })
}

/// Copies that are under way at the same time.
pub(super) struct Copies(Vec<Copying>);

impl Copies {
    /// Waits for all of them; the first fault.
    pub(super) async fn end(self) -> Result<(), DeviceFault> {
        join_all(self.0).await.into_iter().collect()
    }
}

fn copies(pieces: &[Piece], room: &Exposed, each: impl Fn(Piece, Exposed) -> Copying) -> Copies {
    let (mut begun, mut start) = (Vec::new(), 0);
    for piece in pieces {
        let here = piece.len().min(room.len() - start);
        if here > 0 {
            begun.push(each(piece.slice(0..here), room.slice(start, here)));
            start += here;
        }
    }
    Copies(begun)
}
