//! Copies of pieces of several segments, as one operation of their device.

use std::sync::Arc;

use lunette_gpu::proto::planner::Method;
use lunette_gpu::summed::Begun;
use lunette_gpu::{Device, DeviceRegion, HostPiece, Operation};
use lunette_runtime::arena::{RegionMut, View};

use super::DeviceSegment;

impl DeviceSegment {
    /// The device.
    #[must_use]
    pub const fn device(&self) -> &Device {
        self.streams.to.device()
    }

    /// Whether both are copied by the same streams, so that pieces of them may be in one operation.
    #[must_use]
    pub fn is_copied_with(&self, other: &Self) -> bool {
        let (one, other) = (&self.streams, &other.streams);
        one.from.is_same(&other.from) && one.to.is_same(&other.to)
    }

    /// Has the device copy pieces of what is seen, of another process or as if it were, over segments that are
    /// [copied together](Self::is_copied_with): beside each piece, its segment. It is queued when this is called, and
    /// quick where the views [are pinned](Device::pin_view).
    ///
    /// # Errors
    /// Through the future; `CopyError::Full` if the stream has no place, and nothing was done.
    ///
    /// # Panics
    /// Without a piece.
    pub fn begin_upload(
        from: Vec<Arc<View>>,
        pieces: &[(HostPiece, Self)],
    ) -> Operation<Vec<Arc<View>>> {
        let (_, first) = pieces.first().expect("a piece");
        let method = Some(Method::BatchedDma);
        (first.streams.to).upload_each(from, &regions(pieces), method)
    }

    /// Has the device copy segments that are [copied together](Self::is_copied_with) to pieces of an arena: as
    /// [`begin_upload`](Self::begin_upload) the other way.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// Without a piece.
    pub fn begin_download(
        pieces: &[(HostPiece, Self)],
        to: Vec<RegionMut>,
    ) -> Operation<Vec<RegionMut>> {
        let (_, first) = pieces.first().expect("a piece");
        let method = Some(Method::BatchedDma);
        (first.streams.from).download_each(&regions(pieces), to, method)
    }

    /// As [`begin_upload`](Self::begin_upload), by a kernel that sums what it copies.
    ///
    /// # Errors
    /// As there. The views come back at once if the pieces are not for the kernel.
    ///
    /// # Panics
    /// As there.
    pub fn begin_upload_summed(
        from: Vec<Arc<View>>,
        pieces: &[(HostPiece, Self)],
    ) -> Begun<Vec<Arc<View>>> {
        let (_, first) = pieces.first().expect("a piece");
        first.streams.to.upload_summed(from, &regions(pieces))
    }

    /// As [`begin_download`](Self::begin_download), by a kernel that sums what it copies.
    ///
    /// # Errors
    /// As [`begin_upload_summed`](Self::begin_upload_summed).
    ///
    /// # Panics
    /// As there.
    pub fn begin_download_summed(
        pieces: &[(HostPiece, Self)],
        to: Vec<RegionMut>,
    ) -> Begun<Vec<RegionMut>> {
        let (_, first) = pieces.first().expect("a piece");
        first.streams.from.download_summed(&regions(pieces), to)
    }
}

fn regions(pieces: &[(HostPiece, DeviceSegment)]) -> Vec<(HostPiece, DeviceRegion)> {
    let region = |(piece, segment): &(HostPiece, DeviceSegment)| (*piece, segment.region.clone());
    pieces.iter().map(region).collect()
}
