//! Between files and device memory, through the host.
//!
//! Where nothing leads from a drive to a device directly, bytes are staged in pinned memory of the
//! host, piece by piece. Each of a few pieces goes its own way, so that one is on the bus while
//! another is at the drive:
//!
//! ```text
//!   piece 0   read ▶ upload ▶ read ▶ upload ...
//!   piece 1          read ▶ upload ▶ read ...
//! ```

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;

use lunette_runtime::arena::RegionMut;
use lunette_runtime::fs::File;
use lunette_runtime::{OpError, arena};
use thiserror::Error;

use crate::error::{CopyError, SetupError};
use crate::region::DeviceRegion;
use crate::stream::Stream;

/// Most pieces under way at a time.
pub const STAGED_PIECES_MAX: usize = 16;

/// How bytes are staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingOptions {
    /// Bytes of a piece. For direct files a multiple of their alignment.
    pub piece_bytes: usize,
    /// Pieces under way at a time: 2 is double-buffered. At most [`STAGED_PIECES_MAX`].
    pub pieces: usize,
}

impl Default for StagingOptions {
    fn default() -> Self {
        Self {
            piece_bytes: 1 << 20,
            pieces: 4,
        }
    }
}

/// Why not all bytes were moved. Nothing is in flight any more; what the destination holds is not known.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StagingError {
    /// The options are out of range, or the arena has no room for a single piece.
    #[error("no room for staging: {0}")]
    Room(SetupError),
    /// The device's side failed.
    #[error("{0}")]
    Copy(#[from] CopyError),
    /// The file's side failed: `NODATA` at its end.
    #[error("{0}")]
    File(#[from] OpError),
}

impl StagingError {
    /// Whether the same may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Room(error) => error.is_backpressure(),
            Self::Copy(error) => error.is_retryable(),
            Self::File(error) => error.is_retryable(),
        }
    }

    /// Whether waiting can help.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        match self {
            Self::Room(error) => error.is_backpressure(),
            Self::Copy(error) => error.is_backpressure(),
            Self::File(error) => error.is_backpressure(),
        }
    }
}

/// A step of one piece, which gives its memory back.
type Step = (Result<(), StagingError>, RegionMut);

impl Stream {
    /// Fills a region of the device with bytes of a file, from `offset` of that.
    ///
    /// Dropping the future leaves what is in flight with file and device, as with each of them.
    ///
    /// # Errors
    /// [`StagingError`], after everything that was in flight has ended.
    pub async fn read_file(
        &self,
        (file, offset): (&File, u64),
        to: &DeviceRegion,
        options: StagingOptions,
    ) -> Result<(), StagingError> {
        let step = async |room: RegionMut, part: Range<u64>| -> Step {
            let len = length(&part);
            let at = offset.saturating_add(part.start);
            let (read, room) = file.read_exact_at(room, 0, len, at).await;
            if let Err(error) = read {
                return (Err(error.into()), room);
            }
            let (result, room) = self.upload(room, 0, &to.slice(part)).await;
            (result.map_err(StagingError::from), room)
        };
        staged(to.len(), options, step).await
    }

    /// Writes a region of the device to a file, from `offset` of that.
    ///
    /// # Errors
    /// As [`Stream::read_file`].
    pub async fn write_file(
        &self,
        from: &DeviceRegion,
        (file, offset): (&File, u64),
        options: StagingOptions,
    ) -> Result<(), StagingError> {
        let step = async |room: RegionMut, part: Range<u64>| -> Step {
            let len = length(&part);
            let at = offset.saturating_add(part.start);
            let (result, room) = self.download(&from.slice(part), room, 0).await;
            if let Err(error) = result {
                return (Err(error.into()), room);
            }
            let (written, room) = file.write_all_at(room, 0, len, at).await;
            (written.map_err(StagingError::from), room)
        };
        staged(from.len(), options, step).await
    }
}

fn length(part: &Range<u64>) -> usize {
    usize::try_from(part.end - part.start).expect("a piece is a region of the host")
}

/// What all pieces of one staging share.
struct Work {
    next: Cell<u64>,
    len: u64,
    piece_bytes: u64,
    /// The first failure, after which no piece begins.
    failed: Cell<Option<StagingError>>,
}

impl Work {
    fn take(&self) -> Option<Range<u64>> {
        let start = self.next.get();
        if self.failed.get().is_some() || start == self.len {
            return None;
        }
        let end = self.len.min(start.saturating_add(self.piece_bytes));
        self.next.set(end);
        Some(start..end)
    }
}

/// Does `step` for each part of `len` bytes, some of them at a time, and waits for all.
async fn staged(
    len: u64,
    options: StagingOptions,
    step: impl AsyncFn(RegionMut, Range<u64>) -> Step,
) -> Result<(), StagingError> {
    let StagingOptions {
        piece_bytes,
        pieces,
    } = options;
    if piece_bytes == 0 || !(1..=STAGED_PIECES_MAX).contains(&pieces) {
        return Err(StagingError::Room(SetupError::Size));
    }
    let work = Work {
        next: Cell::new(0),
        len,
        piece_bytes: piece_bytes as u64,
        failed: Cell::new(None),
    };
    let one = async |mut room: RegionMut| {
        while let Some(part) = work.take() {
            let (result, back) = step(room, part).await;
            room = back;
            if let Err(error) = result {
                work.failed.set(work.failed.get().or(Some(error)));
            }
        }
    };
    let rooms: Vec<RegionMut> = (0..pieces)
        .map_while(|_| arena().alloc(piece_bytes).ok())
        .collect();
    if rooms.is_empty() {
        return Err(StagingError::Room(SetupError::Full));
    }
    all(rooms.into_iter().map(|room| Box::pin(one(room))).collect()).await;
    work.failed.get().map_or(Ok(()), Err)
}

/// Waits for all of them.
async fn all<F: Future<Output = ()>>(mut futures: Vec<Pin<Box<F>>>) {
    poll_fn(|cx| {
        futures.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if futures.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
