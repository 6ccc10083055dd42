//! Pages of a KV cache from one layout to another: between device and host, and inside a device.
//!
//! The list of pages is one operation, whoever moves them: copy engines by a list of copies, or a
//! kernel, which reads and writes pinned memory of the host where it lies.

use lunette_gpu_proto::kernel::Job;
use lunette_gpu_proto::planner::{Direction, Method};
use lunette_gpu_proto::transfer::{Fragment, PagePair, PageTransfer};
use lunette_runtime::arena;
use lunette_runtime::arena::RegionMut;

use crate::copy::{OneRegion, PIECES_MAX, fits, queue};
use crate::error::{CopyError, SetupError};
use crate::lease::{Holds, HostLease, HostMemory, HostPart, HostRead, HostWrite};
use crate::operation::Operation;
use crate::provider::{Address, Queued, RawCopy, RawStream};
use crate::region::DeviceRegion;
use crate::stream::Stream;

/// Most pairs of pages of one operation.
pub const PAGES_MAX: usize = 1 << 16;
/// Bytes of a pair of pages in a kernel's list.
const PAIR_BYTES: usize = 8;

/// A side of a transfer, of which `len` bytes are there.
#[derive(Clone, Copy, Debug)]
struct Side {
    address: Address,
    len: u64,
    /// By which address a kernel reaches it, if it does.
    kernel: Option<u64>,
}

impl Side {
    fn of(region: &DeviceRegion) -> Self {
        Self {
            address: Address::Device(region.address()),
            len: region.len(),
            kernel: Some(region.address()),
        }
    }
}

/// What is to be queued.
enum Work {
    Copies(Vec<RawCopy>, bool),
    /// The list's copy to the device, the launch, its blocks.
    Kernel(RawCopy, Box<Job>, u32),
}

/// What is to be queued, and what it holds beside its two sides.
struct Prepared {
    work: Work,
    scratch: Option<DeviceRegion>,
    list: Option<RegionMut>,
}

/// What a caller asks for.
struct Request<'a> {
    direction: Direction,
    transfer: &'a PageTransfer,
    pairs: &'a [PagePair],
    by: Option<Method>,
}

impl Stream {
    /// Copies pages of a cache in the device to memory of the host, from byte `at` of that: by the
    /// given method where that can do it, or as the device's planner has it.
    ///
    /// # Errors
    /// Through the future: [`CopyError`].
    pub fn gather_pages<H: HostWrite + OneRegion>(
        &self,
        (transfer, pairs): (&PageTransfer, &[PagePair]),
        from: &DeviceRegion,
        (to, at): (H, usize),
        by: Option<Method>,
    ) -> Operation<H> {
        let request = Request {
            direction: Direction::DeviceToHost,
            transfer,
            pairs,
            by,
        };
        self.host_pages(&request, from, to, at)
    }

    /// Copies pages from memory of the host, from byte `at` of that, into a cache in the device.
    ///
    /// # Errors
    /// Through the future: [`CopyError`].
    pub fn scatter_pages<H: HostRead + OneRegion>(
        &self,
        (transfer, pairs): (&PageTransfer, &[PagePair]),
        (from, at): (H, usize),
        to: &DeviceRegion,
        by: Option<Method>,
    ) -> Operation<H> {
        let request = Request {
            direction: Direction::HostToDevice,
            transfer,
            pairs,
            by,
        };
        self.host_pages(&request, to, from, at)
    }

    /// Copies pages from one cache in the device to another one.
    ///
    /// # Errors
    /// Through the future: [`CopyError`].
    pub fn move_pages(
        &self,
        (transfer, pairs): (&PageTransfer, &[PagePair]),
        from: &DeviceRegion,
        to: &DeviceRegion,
        by: Option<Method>,
    ) -> Operation<()> {
        let request = Request {
            direction: Direction::DeviceToDevice,
            transfer,
            pairs,
            by,
        };
        let prepared = self
            .check_owner(from)
            .and_then(|()| self.check_owner(to))
            .and_then(|()| self.prepare(&request, Side::of(from), Side::of(to)));
        match prepared {
            Ok(prepared) => {
                let (holds, work) = prepared.split(Holds::two(from, to));
                self.submit((), holds, |raw| enqueue(raw, &work))
            }
            Err(error) => Self::refuse((), error),
        }
    }

    fn host_pages<H: HostMemory>(
        &self,
        request: &Request<'_>,
        device: &DeviceRegion,
        host: H,
        at: usize,
    ) -> Operation<H> {
        let mut lease = host.into_lease();
        let prepared = self.prepare_host(request, device, &mut lease, at);
        match prepared {
            Ok(prepared) => {
                let (holds, work) = prepared.split(Holds::one(device));
                self.submit_lease(lease, holds, |raw| enqueue(raw, &work))
            }
            Err(error) => Self::refuse(H::from_lease(lease), error),
        }
    }

    fn prepare_host(
        &self,
        request: &Request<'_>,
        device: &DeviceRegion,
        lease: &mut HostLease,
        at: usize,
    ) -> Result<Prepared, CopyError> {
        self.check_owner(device)?;
        let parts = lease.parts();
        let part = parts.first().expect("one region");
        let host = self.host_side(part, at)?;
        let device = Side::of(device);
        match request.direction {
            Direction::DeviceToHost => self.prepare(request, device, host),
            _ => self.prepare(request, host, device),
        }
    }

    fn host_side(&self, part: &HostPart, at: usize) -> Result<Side, CopyError> {
        let len = part.len.checked_sub(at).ok_or(CopyError::Range)?;
        let address = part.address + at as u64;
        let is_pinned = crate::copy::pin_all(self.inner(), std::slice::from_ref(part));
        let within = part.within.as_ref().filter(|_| is_pinned);
        let kernel = within.and_then(|within| {
            let (start, _len) = within.exposed();
            let base = self.inner().pin(within).ok()?;
            Some(base + (address - start as u64))
        });
        Ok(Side {
            address: Address::Host(address),
            len: len as u64,
            kernel,
        })
    }

    fn prepare(&self, request: &Request<'_>, from: Side, to: Side) -> Result<Prepared, CopyError> {
        let Request {
            direction,
            transfer,
            pairs,
            by,
        } = *request;
        match pairs.len() {
            0 => return Err(CopyError::Range),
            1..=PAGES_MAX => {}
            _ => return Err(CopyError::Pieces),
        }
        let are_inside = transfer.from_len_bytes() <= from.len && transfer.to_len_bytes() <= to.len;
        if !are_inside {
            return Err(CopyError::Range);
        }
        transfer.check(pairs).map_err(CopyError::Pages)?;
        let runs = pairs.len() as u64 * transfer.fragments_per_page();
        let job = self.job(request, from, to);
        let is_usable = |method| match method {
            Method::Dma => runs <= PIECES_MAX as u64,
            Method::BatchedDma => runs <= PIECES_MAX as u64 && self.inner().info().has_batches,
            Method::Kernel => job.is_some(),
        };
        let planned = || {
            let bytes = pairs.len() as u64 * transfer.page_bytes();
            let planner = self.inner().planner();
            planner.choose(direction, runs, bytes, is_usable)
        };
        let method = by
            .filter(|method| is_usable(*method))
            .unwrap_or_else(planned);
        match job {
            // A list that is too long for copies is a kernel's, if it can be.
            Some(job) if method == Method::Kernel || !is_usable(method) => {
                self.by_kernel(pairs, job)
            }
            _ => self.by_copies(request, (from, to), method),
        }
    }

    /// The launch that would do it, with room for its list still to be found.
    fn job(&self, request: &Request<'_>, from: Side, to: Side) -> Option<Job> {
        if self.options().blocks_max == 0 {
            return None;
        }
        let addresses = (from.kernel?, to.kernel?);
        Job::new(request.transfer, addresses, 0, request.pairs.len())
    }

    fn by_kernel(&self, pairs: &[PagePair], job: Job) -> Result<Prepared, CopyError> {
        let bytes = pairs.len() * PAIR_BYTES;
        let full = CopyError::Setup(SetupError::Full);
        let mut list = arena().alloc(bytes).map_err(|_| full)?;
        for (place, pair) in list.as_mut_slice().chunks_exact_mut(PAIR_BYTES).zip(pairs) {
            place[..4].copy_from_slice(&pair.from.to_le_bytes());
            place[4..].copy_from_slice(&pair.to.to_le_bytes());
        }
        let scratch = self
            .inner()
            .scratch(bytes as u64)
            .map_err(CopyError::Setup)?;
        let mut lease = HostLease::Mut(list);
        let part = lease.parts().remove(0);
        crate::copy::pin_all(self.inner(), std::slice::from_ref(&part));
        let HostLease::Mut(list) = lease else {
            unreachable!("it was put there above");
        };
        let copy = RawCopy {
            from: Address::Host(part.address),
            to: Address::Device(scratch.address()),
            len: bytes,
        };
        let blocks = job.blocks(self.options().blocks_max);
        let job = Box::new(job.with_pairs_at(scratch.address()));
        Ok(Prepared {
            work: Work::Kernel(copy, job, blocks),
            scratch: Some(scratch),
            list: Some(list),
        })
    }

    fn by_copies(
        &self,
        request: &Request<'_>,
        (from, to): (Side, Side),
        method: Method,
    ) -> Result<Prepared, CopyError> {
        let fragments = request.transfer.fragments(request.pairs);
        let fragments = fragments.map_err(CopyError::Pages)?;
        let copies: Vec<RawCopy> = fragments
            .take(PIECES_MAX + 1)
            .map(|fragment| copy_of(from, to, &fragment))
            .collect::<Result<_, _>>()?;
        // None at all where every pair is skipped.
        if copies.len() > PIECES_MAX {
            return Err(CopyError::Pieces);
        }
        let is_batch = method == Method::BatchedDma && copies.len() > 1;
        Ok(Prepared {
            work: Work::Copies(copies, is_batch),
            scratch: None,
            list: None,
        })
    }
}

impl Prepared {
    /// What the operation holds, and what is queued.
    fn split(self, mut holds: Holds) -> (Holds, Work) {
        holds.device[2] = self.scratch;
        holds.list = self.list;
        (holds, self.work)
    }
}

fn copy_of(from: Side, to: Side, fragment: &Fragment) -> Result<RawCopy, CopyError> {
    let len = fragment.len_bytes;
    let is_inside =
        fits(fragment.from_bytes, len, from.len) && fits(fragment.to_bytes, len, to.len);
    assert!(is_inside, "a fragment lies inside its layouts");
    let at = |side: Side, offset| match side.address {
        Address::Host(address) => Address::Host(address + offset),
        Address::Device(address) => Address::Device(address + offset),
    };
    Ok(RawCopy {
        from: at(from, fragment.from_bytes),
        to: at(to, fragment.to_bytes),
        len: usize::try_from(len).map_err(|_| CopyError::Range)?,
    })
}

fn enqueue(raw: &RawStream, work: &Work) -> Queued {
    match work {
        Work::Copies(copies, is_batch) => queue(raw, copies, *is_batch),
        Work::Kernel(list, job, blocks) => {
            let listed = queue(raw, std::slice::from_ref(list), false);
            if listed.result.is_err() {
                return listed;
            }
            // SAFETY: the operation owns the host's memory, its list and its scratch, and holds the
            // device's, until its event has been reaped, which the stream records behind this.
            let launched = unsafe { raw.launch(job, *blocks) };
            Queued {
                count: 1,
                result: launched,
            }
        }
    }
}
