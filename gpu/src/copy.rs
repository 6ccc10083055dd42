//! Copies between host and device, and inside a device.

use lunette_gpu_proto::fault::Fault;
use lunette_gpu_proto::planner::{Direction, Method};
use lunette_gpu_proto::transfer::Fragment;
use lunette_runtime::arena::{Exposed, Region, RegionMut};

use crate::device::Inner;
use crate::error::CopyError;
use crate::lease::{Holds, HostLease, HostMemory, HostPart, HostRead, HostWrite};
use crate::operation::Operation;
use crate::provider::{Address, Queued, RawCopy, RawStream};
use crate::region::DeviceRegion;
use crate::stream::Stream;

/// Most pieces of one operation.
pub const PIECES_MAX: usize = 1 << 16;

/// A piece of a copy between memory of the host and of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPiece {
    /// Which region of a list; 0 where there is one.
    pub index: usize,
    /// First byte in that region.
    pub host_bytes: usize,
    /// First byte in the device's region.
    pub device_bytes: u64,
    /// Length.
    pub len_bytes: usize,
}

/// One region of the host.
pub trait OneRegion: HostMemory {
    #[doc(hidden)]
    fn len_bytes(&self) -> usize;
}

impl OneRegion for RegionMut {
    fn len_bytes(&self) -> usize {
        self.len()
    }
}

impl OneRegion for Region {
    fn len_bytes(&self) -> usize {
        self.len()
    }
}

impl OneRegion for Exposed {
    fn len_bytes(&self) -> usize {
        self.len()
    }
}

impl Stream {
    /// Fills a region of the device with bytes of the host, from byte `at` of theirs.
    ///
    /// # Errors
    /// Through the future: [`CopyError`].
    pub fn upload<H: HostRead + OneRegion>(
        &self,
        from: H,
        at: usize,
        to: &DeviceRegion,
    ) -> Operation<H> {
        let piece = whole(to, at);
        self.host_copy(Direction::HostToDevice, from, &[piece], to, None)
    }

    /// Copies a region of the device to memory of the host, from byte `at` of that.
    ///
    /// # Errors
    /// Through the future: [`CopyError`].
    pub fn download<H: HostWrite + OneRegion>(
        &self,
        from: &DeviceRegion,
        to: H,
        at: usize,
    ) -> Operation<H> {
        let piece = whole(from, at);
        self.host_copy(Direction::DeviceToHost, to, &[piece], from, None)
    }

    /// Fills a region of the device with another one, of the same length.
    ///
    /// # Errors
    /// Through the future: [`CopyError`].
    pub fn copy(&self, from: &DeviceRegion, to: &DeviceRegion) -> Operation<()> {
        if from.len() != to.len() {
            return Self::refuse((), CopyError::Range);
        }
        let fragment = Fragment {
            from_bytes: 0,
            to_bytes: 0,
            len_bytes: from.len(),
        };
        self.copy_pieces(from, &[fragment], to, None)
    }

    /// Copies pieces of the host's regions into a region of the device, as one operation: by the
    /// given method, or as the device's planner has it. No kernel does it.
    ///
    /// # Errors
    /// Through the future: [`CopyError`].
    pub fn upload_pieces<H: HostRead>(
        &self,
        from: H,
        pieces: &[HostPiece],
        to: &DeviceRegion,
        by: Option<Method>,
    ) -> Operation<H> {
        self.host_copy(Direction::HostToDevice, from, pieces, to, by)
    }

    /// Copies pieces of a region of the device into regions of the host, as one operation.
    ///
    /// # Errors
    /// Through the future: [`CopyError`].
    pub fn download_pieces<H: HostWrite>(
        &self,
        from: &DeviceRegion,
        pieces: &[HostPiece],
        to: H,
        by: Option<Method>,
    ) -> Operation<H> {
        self.host_copy(Direction::DeviceToHost, to, pieces, from, by)
    }

    /// Copies pieces inside the device, as one operation. Where pieces overlap, what is there
    /// afterwards is anything.
    ///
    /// # Errors
    /// Through the future: [`CopyError`].
    pub fn copy_pieces(
        &self,
        from: &DeviceRegion,
        pieces: &[Fragment],
        to: &DeviceRegion,
        by: Option<Method>,
    ) -> Operation<()> {
        let copies = self
            .check_pieces(pieces.len())
            .and_then(|()| self.check_owner(from))
            .and_then(|()| self.check_owner(to))
            .and_then(|()| pieces.iter().map(|piece| inside(from, to, piece)).collect());
        let copies: Vec<RawCopy> = match copies {
            Ok(copies) => copies,
            Err(error) => return Self::refuse((), error),
        };
        let is_batch = self.is_batch(Direction::DeviceToDevice, &copies, by);
        let enqueue = |raw: &RawStream| queue(raw, &copies, is_batch);
        self.submit((), Holds::two(from, to), enqueue)
    }

    /// Copies pieces of the host's regions into regions of the device, each of which is named beside its piece, as one
    /// operation.
    ///
    /// # Errors
    /// Through the future: [`CopyError`].
    pub fn upload_each<H: HostRead>(
        &self,
        from: H,
        pieces: &[(HostPiece, DeviceRegion)],
        by: Option<Method>,
    ) -> Operation<H> {
        self.copy_each(Direction::HostToDevice, from, pieces, by)
    }

    /// Copies pieces of regions of the device, each of which is named beside its piece, into regions of the host, as one
    /// operation.
    ///
    /// # Errors
    /// Through the future: [`CopyError`].
    pub fn download_each<H: HostWrite>(
        &self,
        pieces: &[(HostPiece, DeviceRegion)],
        to: H,
        by: Option<Method>,
    ) -> Operation<H> {
        self.copy_each(Direction::DeviceToHost, to, pieces, by)
    }

    fn copy_each<H: HostMemory>(
        &self,
        direction: Direction,
        host: H,
        pieces: &[(HostPiece, DeviceRegion)],
        by: Option<Method>,
    ) -> Operation<H> {
        let mut lease = host.into_lease();
        let parts = lease.parts();
        let copy_of = |(piece, device): &(HostPiece, DeviceRegion)| {
            self.check_owner(device)?;
            let part = parts.get(piece.index).ok_or(CopyError::Range)?;
            across(direction, part, piece, device)
        };
        let copies = self
            .check_pieces(pieces.len())
            .and_then(|()| pieces.iter().map(copy_of).collect());
        let copies: Vec<RawCopy> = match copies {
            Ok(copies) => copies,
            Err(error) => return Self::refuse(H::from_lease(lease), error),
        };
        pin_all(self.inner(), &parts);
        let is_batch = self.is_batch(direction, &copies, by);
        let enqueue = |raw: &RawStream| queue(raw, &copies, is_batch);
        let regions = pieces.iter().map(|(_, device)| device.clone());
        let holds = Holds::all(regions.collect());
        self.submit_lease(lease, holds, enqueue)
    }

    fn host_copy<H: HostMemory>(
        &self,
        direction: Direction,
        host: H,
        pieces: &[HostPiece],
        device: &DeviceRegion,
        by: Option<Method>,
    ) -> Operation<H> {
        let mut lease = host.into_lease();
        let copies = self.host_copies(direction, &mut lease, pieces, device);
        let copies = match copies {
            Ok(copies) => copies,
            Err(error) => return Self::refuse(H::from_lease(lease), error),
        };
        let is_batch = self.is_batch(direction, &copies, by);
        let enqueue = |raw: &RawStream| queue(raw, &copies, is_batch);
        self.submit_lease(lease, Holds::one(device), enqueue)
    }

    fn host_copies(
        &self,
        direction: Direction,
        lease: &mut HostLease,
        pieces: &[HostPiece],
        device: &DeviceRegion,
    ) -> Result<Vec<RawCopy>, CopyError> {
        self.check_pieces(pieces.len())?;
        self.check_owner(device)?;
        let parts = lease.parts();
        let copy_of = |piece: &HostPiece| {
            let part = parts.get(piece.index).ok_or(CopyError::Range)?;
            across(direction, part, piece, device)
        };
        let copies = pieces.iter().map(copy_of).collect::<Result<_, _>>()?;
        pin_all(self.inner(), &parts);
        Ok(copies)
    }

    pub(crate) fn check_pieces(&self, pieces: usize) -> Result<(), CopyError> {
        match pieces {
            0 => Err(CopyError::Range),
            1..=PIECES_MAX => Ok(()),
            _ => Err(CopyError::Pieces),
        }
    }

    /// Whether memory is of this stream's opening of the device.
    pub(crate) fn check_owner(&self, region: &DeviceRegion) -> Result<(), CopyError> {
        let own = self.inner().context();
        std::rc::Rc::ptr_eq(own, region.context())
            .then_some(())
            .ok_or(CopyError::Foreign)
    }

    fn is_batch(&self, direction: Direction, copies: &[RawCopy], by: Option<Method>) -> bool {
        let has_batches = self.inner().info().has_batches;
        if copies.len() == 1 || !has_batches {
            return false;
        }
        let is_usable = |method| method != Method::Kernel;
        let method = by.unwrap_or_else(|| {
            let bytes = copies.iter().map(|copy| copy.len as u64).sum();
            let planner = self.inner().planner();
            planner.choose(direction, copies.len() as u64, bytes, is_usable)
        });
        method == Method::BatchedDma
    }
}

/// Makes the chunks of what is lent known to the device, and counts operations for which that is
/// refused.
pub(crate) fn pin_all(device: &Inner, parts: &[HostPart]) -> bool {
    let is_pinned = |part: &HostPart| {
        let within = part.within.as_ref();
        within.is_some_and(|within| device.try_pin(within))
    };
    let is_pinned = parts.iter().all(is_pinned);
    if !is_pinned {
        let mut counts = device.counts.get();
        counts.unpinned += 1;
        device.counts.set(counts);
    }
    is_pinned
}

fn whole(device: &DeviceRegion, at: usize) -> HostPiece {
    HostPiece {
        index: 0,
        host_bytes: at,
        device_bytes: 0,
        // Longer than any region of the host, and so refused, if it does not fit.
        len_bytes: usize::try_from(device.len()).unwrap_or(usize::MAX),
    }
}

/// A piece between host and device, if it lies inside both.
fn across(
    direction: Direction,
    part: &HostPart,
    piece: &HostPiece,
    device: &DeviceRegion,
) -> Result<RawCopy, CopyError> {
    let len = piece.len_bytes;
    let is_inside = fits(piece.host_bytes as u64, len as u64, part.len as u64)
        && fits(piece.device_bytes, len as u64, device.len());
    if !is_inside {
        return Err(CopyError::Range);
    }
    let host = Address::Host(part.address + piece.host_bytes as u64);
    let device = Address::Device(device.address() + piece.device_bytes);
    Ok(match direction {
        Direction::DeviceToHost => RawCopy {
            from: device,
            to: host,
            len,
        },
        _ => RawCopy {
            from: host,
            to: device,
            len,
        },
    })
}

/// A piece inside the device, if it lies inside both regions.
fn inside(from: &DeviceRegion, to: &DeviceRegion, piece: &Fragment) -> Result<RawCopy, CopyError> {
    let is_inside = fits(piece.from_bytes, piece.len_bytes, from.len())
        && fits(piece.to_bytes, piece.len_bytes, to.len());
    let len = usize::try_from(piece.len_bytes).map_err(|_| CopyError::Range)?;
    if !is_inside {
        return Err(CopyError::Range);
    }
    Ok(RawCopy {
        from: Address::Device(from.address() + piece.from_bytes),
        to: Address::Device(to.address() + piece.to_bytes),
        len,
    })
}

/// Whether so many bytes, at least one, lie inside.
pub(crate) fn fits(start: u64, len: u64, size: u64) -> bool {
    len > 0 && start <= size && len <= size - start
}

/// Queues copies, one by one where the device does not take them at once after all.
pub(crate) fn queue(raw: &RawStream, copies: &[RawCopy], is_batch: bool) -> Queued {
    // SAFETY: the operation owns the host's memory and holds the device's until its event has been
    // reaped, which the stream records behind these copies.
    let queued = unsafe { raw.copy(copies, is_batch) };
    match queued {
        Queued {
            count: 0,
            result: Err(Fault::Unsupported(_)),
        } if is_batch => {
            // SAFETY: as above.
            unsafe { raw.copy(copies, false) }
        }
        queued => queued,
    }
}
