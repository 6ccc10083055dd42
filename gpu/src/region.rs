//! Memory of a device.
//!
//! A [`DeviceRegion`] is a counted handle, never borrowed: operations move what is in it, and what
//! is in it when is between them. An operation that names a region holds it, so the memory is given
//! back after the last handle *and* the last operation. Where it came from makes no difference:
//!
//! ```text
//!   DeviceRegion ── Piece (name, generation) ── allocation of its own
//!                                           ├── part of a DevicePool
//!                                           ├── shareable allocation, or one of another process
//!                                           └── somebody else's, with whatever keeps it
//! ```

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use lunette_runtime_core::carve::{Carved, Carver, GRANULE_BYTES};
use lunette_runtime_core::limits::CHUNK_BYTES_MAX;

use crate::device::{Device, Inner};
use crate::error::SetupError;
use crate::listing::{Place, RegionName};
use crate::provider::{RawContext, RawMemory};

/// Longest region in bytes.
pub const REGION_BYTES_MAX: u64 = 1 << 42;
/// Longest pool in bytes.
pub const POOL_BYTES_MAX: u64 = CHUNK_BYTES_MAX as u64;

/// What was allocated, carved or imported at once.
#[derive(Debug)]
pub(crate) struct Piece {
    // The place goes before the memory, so that a name never leads to memory that is gone.
    place: Place,
    origin: Origin,
    base: u64,
    len: u64,
    context: Rc<RawContext>,
}

/// What gives the memory back.
pub(crate) enum Origin {
    /// Memory of the driver.
    Memory(RawMemory),
    /// A part of a pool.
    Carved(Rc<PoolMemory>, Carved),
    /// Whatever keeps the memory of somebody else.
    Foreign(#[expect(dead_code, reason = "it is there to be dropped")] Box<dyn Any>),
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(memory) => memory.fmt(f),
            Self::Carved(_pool, carved) => carved.fmt(f),
            Self::Foreign(_) => f.write_str("foreign"),
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Origin::Carved(pool, carved) = &self.origin {
            let mut carver = pool.carver.borrow_mut();
            let freed = carver.free(carved.slot_index, carved.generation);
            assert!(freed.is_ok(), "a piece is freed once");
        }
    }
}

/// A part of a device's memory. Clones share it; operations in flight hold it.
#[derive(Clone)]
pub struct DeviceRegion {
    piece: Rc<Piece>,
    // Inside the piece, as was checked when it was made.
    offset: u64,
    len: u64,
}

impl DeviceRegion {
    /// An allocation of its own, whose bytes are anything.
    ///
    /// # Errors
    /// [`SetupError::Refused`] as the driver has it; [`SetupError::Size`] of nothing, or of more
    /// than [`REGION_BYTES_MAX`].
    pub fn alloc(device: &Device, len_bytes: u64) -> Result<Self, SetupError> {
        check_len(len_bytes, REGION_BYTES_MAX)?;
        let memory = device.inner().context().alloc(len_bytes)?;
        Self::of(device.inner(), Origin::Memory(memory), None, len_bytes)
    }

    /// Memory that other processes can be given ([`DeviceRegion::export`]).
    ///
    /// # Errors
    /// As [`DeviceRegion::alloc`].
    pub fn alloc_shareable(device: &Device, len_bytes: u64) -> Result<Self, SetupError> {
        check_len(len_bytes, REGION_BYTES_MAX)?;
        let memory = device.inner().context().alloc_shareable(len_bytes)?;
        Self::of(device.inner(), Origin::Memory(memory), None, len_bytes)
    }

    /// The region of an origin, which begins at `base` where it does not know that itself.
    pub(crate) fn of(
        inner: &Inner,
        origin: Origin,
        base: Option<u64>,
        len: u64,
    ) -> Result<Self, SetupError> {
        let base = match (&origin, base) {
            (_, Some(base)) => base,
            (Origin::Memory(memory), None) => {
                assert!(memory.len() >= len, "never less than asked");
                memory.address()
            }
            (Origin::Carved(pool, carved), None) => {
                assert!(u64::from(carved.len_bytes) >= len, "never less than asked");
                pool.region.base() + u64::from(carved.offset_bytes)
            }
            (Origin::Foreign(_), None) => unreachable!("its address was given"),
        };
        let context = Rc::clone(inner.context());
        let piece = inner.listing().list(|place| Piece {
            place,
            origin,
            base,
            len,
            context,
        });
        Ok(Self {
            piece: piece.ok_or(SetupError::TooMany)?,
            offset: 0,
            len,
        })
    }

    pub(crate) fn named(inner: &Inner, name: RegionName) -> Option<Self> {
        let piece = inner.listing().find(name.index, name.generation)?;
        let end = name.offset_bytes.checked_add(name.len_bytes)?;
        (end <= piece.len).then_some(Self {
            piece,
            offset: name.offset_bytes,
            len: name.len_bytes,
        })
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is an empty part of a region.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its first byte as kernels and adapters of this process name it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.piece.base + self.offset
    }

    /// A part of it, which holds the whole.
    ///
    /// # Panics
    /// If the part does not lie inside.
    #[must_use]
    pub fn slice(&self, range: Range<u64>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of a region of {} bytes",
            self.len
        );
        Self {
            piece: Rc::clone(&self.piece),
            offset: self.offset + range.start,
            len: range.end - range.start,
        }
    }

    /// Its name, for [`Device::region`].
    #[must_use]
    pub fn name(&self) -> RegionName {
        RegionName {
            index: self.piece.place.index,
            generation: self.piece.place.generation,
            offset_bytes: self.offset,
            len_bytes: self.len,
        }
    }

    /// First byte of the piece in which it lies.
    pub(crate) fn base(&self) -> u64 {
        self.piece.base
    }

    pub(crate) fn context(&self) -> &Rc<RawContext> {
        &self.piece.context
    }

    /// The driver's own memory, if it is that as a whole.
    pub(crate) fn memory(&self) -> Option<&RawMemory> {
        match &self.piece.origin {
            Origin::Memory(memory) => Some(memory),
            Origin::Carved(pool, _) => pool.region.memory(),
            Origin::Foreign(_) => None,
        }
    }
}

impl fmt::Debug for DeviceRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DeviceRegion({:?}, {:?})",
            self.name(),
            self.piece.origin
        )
    }
}

fn check_len(len: u64, most: u64) -> Result<(), SetupError> {
    (1..=most)
        .contains(&len)
        .then_some(())
        .ok_or(SetupError::Size)
}

/// What the parts of a pool share.
#[derive(Debug)]
pub(crate) struct PoolMemory {
    region: DeviceRegion,
    carver: RefCell<Carver>,
}

impl PoolMemory {
    /// Over as much of a region as can be carved.
    pub(crate) fn new(region: DeviceRegion) -> Result<Rc<Self>, SetupError> {
        let granules = region.len() / u64::from(GRANULE_BYTES);
        check_len(granules, POOL_BYTES_MAX / u64::from(GRANULE_BYTES))?;
        let len = u32::try_from(granules).expect("bounded by POOL_BYTES_MAX") * GRANULE_BYTES;
        let carver = RefCell::new(Carver::new(len));
        Ok(Rc::new(Self { region, carver }))
    }

    pub(crate) fn carve(
        self: &Rc<Self>,
        device: &Inner,
        len: u64,
    ) -> Result<DeviceRegion, SetupError> {
        let asked = u32::try_from(len).map_err(|_| SetupError::Full)?;
        if asked == 0 {
            return Err(SetupError::Size);
        }
        let carved = self.carver.borrow_mut().alloc(asked);
        let carved = carved.ok_or(SetupError::Full)?;
        let origin = Origin::Carved(Rc::clone(self), carved);
        DeviceRegion::of(device, origin, None, len)
    }
}

/// Device memory that is handed out in parts, without a call to the driver. Clones share it.
#[derive(Clone, Debug)]
pub struct DevicePool {
    device: Rc<Inner>,
    memory: Rc<PoolMemory>,
}

impl DevicePool {
    /// A pool of so many bytes, a multiple of 512, allocated at once.
    ///
    /// # Errors
    /// As [`DeviceRegion::alloc`]; most are [`POOL_BYTES_MAX`].
    pub fn new(device: &Device, len_bytes: u64) -> Result<Self, SetupError> {
        check_len(len_bytes, POOL_BYTES_MAX)?;
        let region = DeviceRegion::alloc(device, len_bytes)?;
        Ok(Self {
            device: Rc::clone(device.inner()),
            memory: PoolMemory::new(region)?,
        })
    }

    /// A part of so many bytes, which are anything. It begins at a multiple of 512 from the pool's
    /// start, and goes back when its last handle and its last operation are gone.
    ///
    /// # Errors
    /// [`SetupError::Full`], which is back-pressure; [`SetupError::Size`] of nothing.
    pub fn alloc(&self, len_bytes: u64) -> Result<DeviceRegion, SetupError> {
        self.memory.carve(&self.device, len_bytes)
    }

    /// Bytes in use, after rounding.
    #[must_use]
    pub fn used_bytes(&self) -> u32 {
        self.memory.carver.borrow().used_bytes()
    }
}
