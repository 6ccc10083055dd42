//! What an operation owns while it is in flight.
//!
//! Memory that a queued operation names belongs to the device until the operation's event has been
//! reaped. So the stream, not the future, holds it; it comes back with the outcome, and where the
//! future is gone it is freed then.

use lunette_runtime::arena::{ChunkHandle, Exposed, Region, RegionMut};

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
}

/// A part of a lease, by address.
#[derive(Clone, Debug)]
pub(crate) struct HostPart {
    /// Its provenance is exposed.
    pub(crate) address: u64,
    pub(crate) len: usize,
    /// None of an arena's: it is not pinned.
    pub(crate) chunk: Option<ChunkHandle>,
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
        }
    }
}

fn written(region: &mut RegionMut) -> HostPart {
    let bytes = region.as_mut_slice();
    let (address, len) = (bytes.as_mut_ptr().expose_provenance() as u64, bytes.len());
    HostPart {
        address,
        len,
        chunk: Some(region.chunk()),
    }
}

fn read(region: &Region) -> HostPart {
    let bytes = region.as_slice();
    HostPart {
        address: bytes.as_ptr().expose_provenance() as u64,
        len: bytes.len(),
        chunk: Some(region.chunk()),
    }
}

fn exposed(memory: &Exposed) -> HostPart {
    // It has the provenance of all of which it is a part.
    memory.extent().start().as_ptr().expose_provenance();
    HostPart {
        address: memory.start() as u64,
        len: memory.len(),
        chunk: memory.chunk(),
    }
}

/// Host memory that can be lent to an operation and comes back with its outcome.
///
/// Closed: implemented for `()`, [`RegionMut`], [`Region`], lists of them, and [`Exposed`], which is pinned where it
/// is a piece of an arena.
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
impl HostWrite for RegionMut {}
impl HostWrite for Exposed {}
impl HostWrite for Vec<RegionMut> {}

/// What an operation holds beside what was lent to it.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// Source, destination, scratch.
    pub(crate) device: [Option<DeviceRegion>; 3],
    /// A list that the device reads.
    pub(crate) list: Option<RegionMut>,
}

impl Holds {
    pub(crate) fn one(region: &DeviceRegion) -> Self {
        Self {
            device: [Some(region.clone()), None, None],
            list: None,
        }
    }

    pub(crate) fn two(from: &DeviceRegion, to: &DeviceRegion) -> Self {
        Self {
            device: [Some(from.clone()), Some(to.clone()), None],
            list: None,
        }
    }
}
