//! What an operation owns while it is in flight.
//!
//! Memory that a queued operation names belongs to the device until the operation's event has been
//! reaped. So the stream, not the future, holds it; it comes back with the outcome, and where the
//! future is gone it is freed then.

use std::sync::Arc;

use lunette_runtime::arena::{Exposed, Region, RegionMut, View};

use crate::pins::Pinnable;
use crate::region::DeviceRegion;

/// Host memory that an operation owns.
#[derive(Debug)]
pub enum HostLease {
    /// None.
    Nothing,
    /// Memory that the device may write.
    Mut(RegionMut),
    /// Memory that the device may read.
    Shared(Region),
    /// Memory that others may read and write meanwhile, as the device may.
    Exposed(Exposed),
    /// Several that the device may write.
    Muts(Vec<RegionMut>),
    /// Several that the device may read.
    Shareds(Vec<Region>),
    /// Several of other processes, or mapped like theirs, that the device may read. Their owners may write them meanwhile.
    Views(Vec<Arc<View>>),
    /// Any of these, and where a kernel tells what it has summed.
    Summed(Box<Self>, Sums),
}

/// Where a kernel reads its list of stripes, and tells their remainders.
#[derive(Debug)]
pub struct Sums {
    /// Both, one behind the other.
    pub(crate) region: RegionMut,
    /// Where the remainders begin.
    pub(crate) told_at: usize,
    /// The length of each piece in bytes.
    pub(crate) lens: Vec<usize>,
}

/// A part of a lease, by address.
#[derive(Clone, Debug)]
pub(crate) struct HostPart {
    /// Its provenance is exposed.
    pub(crate) address: u64,
    pub(crate) len: usize,
    /// What is pinned for it. None of memory that is no arena's: it is not pinned.
    pub(crate) within: Option<Pinnable>,
}

impl HostLease {
    /// Its parts, in order. The device reaches them from here on.
    pub(crate) fn parts(&mut self) -> Vec<HostPart> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Mut(region) => vec![written(region)],
            Self::Shared(region) => vec![read(region)],
            Self::Exposed(memory) => vec![exposed(memory)],
            Self::Muts(regions) => regions.iter_mut().map(written).collect(),
            Self::Shareds(regions) => regions.iter().map(read).collect(),
            Self::Views(views) => views.iter().map(viewed).collect(),
            Self::Summed(host, _sums) => host.parts(),
        }
    }
}

fn written(region: &mut RegionMut) -> HostPart {
    let bytes = region.as_mut_slice();
    let (address, len) = (bytes.as_mut_ptr().expose_provenance() as u64, bytes.len());
    HostPart {
        address,
        len,
        within: Some(Pinnable::Chunk(region.chunk())),
    }
}

fn read(region: &Region) -> HostPart {
    let bytes = region.as_slice();
    HostPart {
        address: bytes.as_ptr().expose_provenance() as u64,
        len: bytes.len(),
        within: Some(Pinnable::Chunk(region.chunk())),
    }
}

fn exposed(memory: &Exposed) -> HostPart {
    // It has the provenance of all of which it is a part.
    memory.extent().start().as_ptr().expose_provenance();
    HostPart {
        address: memory.start() as u64,
        len: memory.len(),
        within: memory.chunk().map(Pinnable::Chunk),
    }
}

fn viewed(view: &Arc<View>) -> HostPart {
    HostPart {
        address: view.start().as_ptr().expose_provenance() as u64,
        len: view.len(),
        within: Some(Pinnable::View(Arc::clone(view))),
    }
}

/// Host memory that can be lent to an operation and comes back with its outcome.
///
/// Closed: implemented for `()`, [`RegionMut`], [`Region`], lists of them, [`Exposed`], which is pinned where it
/// is a piece of an arena, and lists of [`View`]s, which are pinned once they [have been](crate::Device::pin_view).
pub trait HostMemory: sealed::Sealed + Sized + 'static {
    #[doc(hidden)]
    fn into_lease(self) -> HostLease;
    #[doc(hidden)]
    fn from_lease(lease: HostLease) -> Self;
}

/// Host memory that the device may read.
pub trait HostRead: HostMemory {}

/// Host memory that the device may write.
pub trait HostWrite: HostMemory {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! lend {
    ($type:ty, $variant:ident) => {
        impl sealed::Sealed for $type {}
        impl HostMemory for $type {
            fn into_lease(self) -> HostLease {
                HostLease::$variant(self)
            }
            fn from_lease(lease: HostLease) -> Self {
                match lease {
                    HostLease::$variant(value) => value,
                    _ => unreachable!("an operation returns the lease that it was given"),
                }
            }
        }
    };
}

lend!(RegionMut, Mut);
lend!(Region, Shared);
lend!(Exposed, Exposed);
lend!(Vec<RegionMut>, Muts);
lend!(Vec<Region>, Shareds);
lend!(Vec<Arc<View>>, Views);

/// Host memory whose bytes, or those for it, were summed on the way.
#[derive(Debug)]
pub struct Summed<H> {
    /// What was lent.
    pub host: H,
    pub(crate) sums: Sums,
}

impl<H> sealed::Sealed for Summed<H> {}

impl<H: HostMemory> HostMemory for Summed<H> {
    fn into_lease(self) -> HostLease {
        HostLease::Summed(Box::new(self.host.into_lease()), self.sums)
    }

    fn from_lease(lease: HostLease) -> Self {
        match lease {
            HostLease::Summed(host, sums) => Self {
                host: H::from_lease(*host),
                sums,
            },
            _ => unreachable!("an operation returns the lease that it was given"),
        }
    }
}

impl sealed::Sealed for () {}

impl HostMemory for () {
    fn into_lease(self) -> HostLease {
        HostLease::Nothing
    }

    fn from_lease(lease: HostLease) -> Self {
        assert!(
            matches!(lease, HostLease::Nothing),
            "an operation returns the lease that it was given"
        );
    }
}

impl HostRead for RegionMut {}
impl HostRead for Region {}
impl HostRead for Exposed {}
impl HostRead for Vec<RegionMut> {}
impl HostRead for Vec<Region> {}
impl HostRead for Vec<Arc<View>> {}
impl HostWrite for RegionMut {}
impl HostWrite for Exposed {}
impl HostWrite for Vec<RegionMut> {}

/// What an operation holds beside what was lent to it.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// Source, destination, scratch.
    pub(crate) device: [Option<DeviceRegion>; 3],
    /// Further sources or destinations.
    pub(crate) _more: Vec<DeviceRegion>,
    /// A list that the device reads.
    pub(crate) list: Option<RegionMut>,
}

impl Holds {
    pub(crate) fn one(region: &DeviceRegion) -> Self {
        Self {
            device: [Some(region.clone()), None, None],
            ..Self::default()
        }
    }

    pub(crate) fn all(regions: Vec<DeviceRegion>) -> Self {
        Self {
            _more: regions,
            ..Self::default()
        }
    }

    pub(crate) fn two(from: &DeviceRegion, to: &DeviceRegion) -> Self {
        Self {
            device: [Some(from.clone()), Some(to.clone()), None],
            ..Self::default()
        }
    }
}
