//! Copies between host and device that are summed on the way, by a kernel.
//!
//! The processor has no part in it: the kernel copies, and tells the CRC32C of what it has copied. It takes whole vectors
//! of 16 bytes and memory that is pinned; what it does not take is handed back, to be copied otherwise.

use lunette_gpu_proto::planner::Direction;
use lunette_gpu_proto::sums::{
    ENTRY_BYTES, STRIPES_MAX, SUM_BYTES, Stripe, SumJob, crc32c, stripe_count, stripes,
};
use lunette_runtime::arena;

use crate::copy::{HostPiece, fits, queue};
use crate::device::Inner;
use crate::lease::{Holds, HostLease, HostMemory, HostPart, HostRead, HostWrite, Summed, Sums};
use crate::operation::Operation;
use crate::pins::Pinnable;
use crate::provider::{Address, Queued, RawCopy, RawStream};
use crate::region::DeviceRegion;
use crate::stream::Stream;

/// Remainders begin at a multiple of this.
const TOLD_ALIGN_BYTES: usize = 256;

/// A copy that is summed and under way, or what was to be lent to it.
pub type Begun<H> = Result<Operation<Summed<H>>, H>;

/// What is to be queued: the list's copy to the device, and the launch.
struct Launch {
    list: RawCopy,
    job: SumJob,
    blocks: u32,
}

impl<H> Summed<H> {
    /// The CRC32C of a piece, by its place in the list, once the operation has ended well.
    ///
    /// # Panics
    /// If there was no such piece.
    #[must_use]
    pub fn crc32c(&self, piece: usize) -> u32 {
        let Sums {
            region,
            told_at,
            lens,
        } = &self.sums;
        let before: usize = lens[..piece].iter().copied().map(stripe_count).sum();
        let start = told_at + before * SUM_BYTES;
        let end = start + stripe_count(lens[piece]) * SUM_BYTES;
        let told = region.as_slice()[start..end].chunks_exact(SUM_BYTES);
        let told = told.map(|sum| u32::from_le_bytes(sum.try_into().expect("four bytes")));
        crc32c(lens[piece], told)
    }
}

impl Stream {
    /// As [`upload_each`](Self::upload_each), by the kernel that sums.
    ///
    /// # Errors
    /// Through the future, `CopyError`. The memory comes back at once if these pieces are not for the kernel, or do not
    /// lie inside, or there is no room for its list.
    pub fn upload_summed<H: HostRead>(
        &self,
        from: H,
        pieces: &[(HostPiece, DeviceRegion)],
    ) -> Begun<H> {
        self.copy_summed(Direction::HostToDevice, from, pieces)
    }

    /// As [`download_each`](Self::download_each), by the kernel that sums.
    ///
    /// # Errors
    /// As [`upload_summed`](Self::upload_summed).
    pub fn download_summed<H: HostWrite>(
        &self,
        pieces: &[(HostPiece, DeviceRegion)],
        to: H,
    ) -> Begun<H> {
        self.copy_summed(Direction::DeviceToHost, to, pieces)
    }

    fn copy_summed<H: HostMemory>(
        &self,
        direction: Direction,
        host: H,
        pieces: &[(HostPiece, DeviceRegion)],
    ) -> Begun<H> {
        let mut lease = host.into_lease();
        let parts = lease.parts();
        let Some((sums, holds, launch)) = self.prepare_sums(direction, &parts, pieces) else {
            return Err(H::from_lease(lease));
        };
        let lease = HostLease::Summed(Box::new(lease), sums);
        Ok(self.submit_lease(lease, holds, |raw| launch.enqueue(raw)))
    }

    fn prepare_sums(
        &self,
        direction: Direction,
        parts: &[HostPart],
        pieces: &[(HostPiece, DeviceRegion)],
    ) -> Option<(Sums, Holds, Launch)> {
        let mut all: Vec<Stripe> = Vec::new();
        for (piece, device) in pieces {
            self.check_owner(device).ok()?;
            let host = self.reached(parts.get(piece.index)?, piece)?;
            if !fits(piece.device_bytes, piece.len_bytes as u64, device.len()) {
                return None;
            }
            let device = device.address() + piece.device_bytes;
            let (from, to) = match direction {
                Direction::DeviceToHost => (device, host),
                _ => (host, device),
            };
            all.extend(stripes(from, to, piece.len_bytes)?);
        }
        let is_many = !(1..=STRIPES_MAX).contains(&all.len());
        if is_many || self.options().blocks_max == 0 {
            return None;
        }
        let list_bytes = all.len() * ENTRY_BYTES;
        let told_at = list_bytes.next_multiple_of(TOLD_ALIGN_BYTES);
        let mut region = arena().alloc(told_at + all.len() * SUM_BYTES).ok()?;
        for (place, stripe) in region
            .as_mut_slice()
            .chunks_exact_mut(ENTRY_BYTES)
            .zip(&all)
        {
            place.copy_from_slice(&stripe.to_bytes());
        }
        let scratch = self.inner().scratch(list_bytes as u64).ok()?;
        let within = Pinnable::Chunk(region.chunk());
        let address = region.as_mut_slice().as_mut_ptr().expose_provenance();
        let list = RawCopy {
            from: Address::Host(address as u64),
            to: Address::Device(scratch.address()),
            len: list_bytes,
        };
        let launch = Launch {
            list,
            job: SumJob {
                list_at: scratch.address(),
                sums_at: reached(self.inner(), &within, address + told_at)?,
                stripes: u32::try_from(all.len()).expect("bounded"),
            },
            blocks: u32::try_from(all.len())
                .expect("bounded")
                .min(self.options().blocks_max),
        };
        let regions = pieces.iter().map(|(_, device)| device.clone());
        let holds = Holds::all(regions.chain([scratch]).collect());
        let lens = pieces.iter().map(|(piece, _)| piece.len_bytes).collect();
        let sums = Sums {
            region,
            told_at,
            lens,
        };
        Some((sums, holds, launch))
    }

    /// By which address a kernel reaches a piece of the host's, if it does.
    fn reached(&self, part: &HostPart, piece: &HostPiece) -> Option<u64> {
        let is_inside = fits(
            piece.host_bytes as u64,
            piece.len_bytes as u64,
            part.len as u64,
        );
        let address = usize::try_from(part.address).ok()? + piece.host_bytes;
        is_inside.then(|| reached(self.inner(), part.within.as_ref()?, address))?
    }
}

/// By which address a device reaches memory of the host, if that is pinned.
fn reached(device: &Inner, within: &Pinnable, address: usize) -> Option<u64> {
    if !device.try_pin(within) {
        return None;
    }
    let base = device.pins().borrow().find(within)?;
    let (start, _len) = within.exposed();
    Some(base + (address - start) as u64)
}

impl Launch {
    fn enqueue(&self, raw: &RawStream) -> Queued {
        let listed = queue(raw, std::slice::from_ref(&self.list), false);
        if listed.result.is_err() {
            return listed;
        }
        // SAFETY: the operation owns the host's memory, the list and the sums, and holds the scratch and the device's, until
        // its event has been reaped, which the stream records behind this.
        let launched = unsafe { raw.launch_sums(&self.job, self.blocks) };
        Queued {
            count: 1,
            result: launched,
        }
    }
}
