//! Exposed memory and shared regions, as requests move them and as peers reach them.
//!
//! A [`Slab`](crate::Slab) owns what it registers. Here the memory is the program's: anybody may read and
//! write exposed memory at any time, an adapter as well, and regions are only read from. What is registered
//! for own requests is the whole [`Extent`] (chunk, mapping, foreign memory) in which memory lies, once; what
//! peers reach is registered by itself ([`ExposedWindow`]), so that a peer's key reaches no further.
//!
//! ```text
//!   Extent ──register──▶ RegisteredExtent ──lend(memory)──▶ Lent ──▶ a request, which owns it
//!   Exposed ──register──▶ ExposedWindow  (peers, until it is dropped)
//!   Extent ──register──▶ ReadableExtent  (peers read it, until it is dropped)
//! ```

use std::fmt;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use lunette_runtime::arena::{Exposed, Extent, ExtentGuard, Region};
use rustix::io::Errno;

use crate::context::Context;
use crate::error::SetupError;
use crate::provider::{Access, Keys, RawDevice, RawMemory, RemoteMemory};

/// A registered extent, for own requests alone. It does not keep the memory: an adapter reaches it only in
/// requests, and each owns a handle. Clones share the registration, which ends with the last of them and the
/// last request.
#[derive(Clone)]
pub struct RegisteredExtent {
    inner: Rc<ExtentInner>,
}

struct ExtentInner {
    // Goes before the device.
    _memory: RawMemory,
    keys: Keys,
    extent: Extent,
    _device: Rc<RawDevice>,
}

impl RegisteredExtent {
    /// Registers all of an extent, on the control thread where that takes long. Best left to run to its end:
    /// what is dropped while that thread is at work stays registered, and mapped, for ever.
    ///
    /// # Errors
    /// [`SetupError::Refused`] as the system has it, with `ENOMEM` often for the limit of locked memory;
    /// [`SetupError::Unsupported`] over iWARP, whose reads need rights that this memory does not give;
    /// [`SetupError::Size`] of memory that is gone.
    pub async fn register(context: &Context, extent: Extent) -> Result<Self, SetupError> {
        Self::register_for(context, extent, Access::default()).await
    }

    async fn register_for(
        context: &Context,
        extent: Extent,
        access: Access,
    ) -> Result<Self, SetupError> {
        if context.is_iwarp()? {
            return Err(SetupError::Unsupported);
        }
        let guard = extent.guard().ok_or(SetupError::Size)?;
        let (memory, keys) = register(context, &extent, access, guard).await?;
        let inner = ExtentInner {
            _memory: memory,
            keys,
            extent,
            _device: Rc::clone(context.device()),
        };
        Ok(Self {
            inner: Rc::new(inner),
        })
    }

    /// What it covers.
    #[must_use]
    pub fn extent(&self) -> &Extent {
        &self.inner.extent
    }

    /// Memory that lies in it, for one request. `None` if it does not, or if what was registered is gone.
    #[must_use]
    pub fn lend(&self, memory: impl Into<Lender>) -> Option<Lent> {
        self.try_lend(memory.into()).ok()
    }

    /// As [`lend`](Self::lend).
    ///
    /// # Errors
    /// The memory, if it lies elsewhere.
    #[inline]
    pub fn try_lend(&self, memory: Lender) -> Result<Lent, Lender> {
        let (start, len) = memory.range();
        let extent = &self.inner.extent;
        let lies_there = extent.is_alive() && extent.covers(start, len);
        if !lies_there || u32::try_from(len).is_err() {
            return Err(memory);
        }
        Ok(Lent {
            memory,
            registration: self.clone(),
        })
    }
}

/// A registered extent that peers read as well, whatever lies there, until this is dropped, which keeps it. They get
/// a mixture of what is written meanwhile, and of nothing else is anybody's use of the memory concerned. Clones share
/// the registration.
#[derive(Clone, Debug)]
pub struct ReadableExtent {
    // Goes before what it covers.
    registered: RegisteredExtent,
    _kept: ExtentGuard,
}

impl ReadableExtent {
    /// As [`RegisteredExtent::register`].
    ///
    /// # Errors
    /// As there.
    pub async fn register(context: &Context, extent: Extent) -> Result<Self, SetupError> {
        let kept = extent.guard().ok_or(SetupError::Size)?;
        let access = Access {
            remote_read: true,
            ..Access::default()
        };
        let registered = RegisteredExtent::register_for(context, extent, access).await?;
        Ok(Self {
            registered,
            _kept: kept,
        })
    }

    /// See [`RegisteredExtent::lend`].
    #[must_use]
    pub fn lend(&self, memory: impl Into<Lender>) -> Option<Lent> {
        self.registered.lend(memory)
    }

    /// What a peer names a byte by that lies there; `None` if it does not.
    #[must_use]
    pub fn remote(&self, start: usize) -> Option<RemoteMemory> {
        let inner = &self.registered.inner;
        inner.extent.covers(start, 1).then(|| RemoteMemory {
            address: start as u64,
            rkey: inner.keys.rkey,
        })
    }
}

/// Registers an extent, or a part of one, where it blocks nobody.
async fn register(
    context: &Context,
    extent: &Extent,
    access: Access,
    guard: ExtentGuard,
) -> Result<(RawMemory, Keys), SetupError> {
    let start = extent.start();
    // Requests name it by its address.
    start.as_ptr().expose_provenance();
    let under_way = UnderWay::new(context.device(), guard);
    // SAFETY: the guard keeps the extent mapped until the registration has been made. Afterwards the adapter
    // reaches it only in requests that own a handle to a part of it (`Lent`), or, with rights for peers, as
    // long as the `ExposedWindow` or the `ReadableExtent` that keeps the memory has the registration.
    // Whoever has exposed memory agreed to others that write it, and of regions only reads are made: by a
    // `ReadableExtent` also while somebody else has them borrowed, as by another process that maps them.
    let registered = unsafe {
        let device = context.device();
        device
            .register_elsewhere(start.as_ptr(), extent.len_bytes(), access)
            .await
    };
    under_way.end();
    registered.map_err(SetupError::Refused)
}

/// What a registration that is being made needs. If nobody waits for its end any more, that cannot be
/// known, so it is kept for ever.
struct UnderWay {
    kept: ManuallyDrop<(Rc<RawDevice>, ExtentGuard)>,
}

impl UnderWay {
    fn new(device: &Rc<RawDevice>, guard: ExtentGuard) -> Self {
        Self {
            kept: ManuallyDrop::new((Rc::clone(device), guard)),
        }
    }

    fn end(self) {
        drop(ManuallyDrop::into_inner(self.kept));
    }
}

impl fmt::Debug for RegisteredExtent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredExtent({:?})", self.inner.extent)
    }
}

/// Memory of which a request may be made.
#[derive(Clone, Debug)]
pub enum Lender {
    /// It may be read and written.
    Exposed(Exposed),
    /// It may be read.
    Region(Region),
}

impl Lender {
    /// The address of its first byte, and how many it has.
    #[must_use]
    #[inline]
    pub fn range(&self) -> (usize, usize) {
        match self {
            Self::Exposed(memory) => (memory.start(), memory.len()),
            Self::Region(region) => (region.as_slice().as_ptr().addr(), region.len()),
        }
    }
}

impl Lender {
    /// Copies its bytes to the beginning of `room`. How many there are.
    ///
    /// # Panics
    /// If there is not so much room.
    pub(crate) fn copy_to(&self, room: &mut [u8]) -> usize {
        let (_, len) = self.range();
        let room = &mut room[..len];
        match self {
            Self::Exposed(memory) => memory.copy_out(0, room),
            Self::Region(region) => room.copy_from_slice(region.as_slice()),
        }
        len
    }
}

impl From<Exposed> for Lender {
    fn from(memory: Exposed) -> Self {
        Self::Exposed(memory)
    }
}

impl From<Region> for Lender {
    fn from(region: Region) -> Self {
        Self::Region(region)
    }
}

/// Registered memory for one request, which keeps it until it is over.
#[derive(Clone, Debug)]
pub struct Lent {
    /// Not longer than a request may be.
    memory: Lender,
    registration: RegisteredExtent,
}

impl Lent {
    /// Whether a request may write it.
    pub(crate) const fn is_writable(&self) -> bool {
        matches!(self.memory, Lender::Exposed(_))
    }

    /// Its address, and its length in bytes.
    #[inline]
    pub(crate) fn range(&self) -> (u64, u32) {
        let (start, len) = self.memory.range();
        let len_bytes = u32::try_from(len).expect("as it was lent");
        (start as u64, len_bytes)
    }

    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        self.registration.inner.keys.lkey
    }
}

/// Exposed memory that peers reach, as its access says, until this is dropped.
#[derive(Debug)]
pub struct ExposedWindow {
    // Goes before what it covers.
    _registration: RawMemory,
    keys: Keys,
    memory: Exposed,
    _device: Rc<RawDevice>,
}

impl ExposedWindow {
    /// Registers memory, and nothing beside it, on the control thread where that takes long: see
    /// [`RegisteredExtent::register`]. Nothing of it is changed.
    ///
    /// # Errors
    /// As there; [`SetupError::Size`] of no bytes.
    pub async fn register(
        context: &Context,
        memory: Exposed,
        access: Access,
    ) -> Result<Self, SetupError> {
        if memory.is_empty() {
            return Err(SetupError::Size);
        }
        if context.is_iwarp()? {
            return Err(SetupError::Unsupported);
        }
        let part = memory.extent().part(memory.start(), memory.len());
        let part = part.ok_or(SetupError::Size)?;
        let guard = part.guard().ok_or(SetupError::Size)?;
        let (registration, keys) = register(context, &part, access, guard).await?;
        Ok(Self {
            _registration: registration,
            keys,
            memory,
            _device: Rc::clone(context.device()),
        })
    }

    /// What a peer names its first byte by.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            address: self.memory.start() as u64,
            rkey: self.keys.rkey,
        }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.memory.len()
    }

    /// Never: it has at least one byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }
}

impl RawDevice {
    /// As [`RawDevice::register`], on the control thread where that takes long.
    ///
    /// # Safety
    /// As there; and the device stays until the call has ended, also if the future is dropped.
    async unsafe fn register_elsewhere(
        &self,
        address: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<(RawMemory, Keys), Errno> {
        match self {
            Self::Real(device) => {
                // SAFETY: passed on from the caller.
                let (memory, keys) =
                    unsafe { device.register_elsewhere(address, len, access) }.await?;
                Ok((RawMemory::Real(memory), keys))
            }
            // SAFETY: passed on from the caller.
            Self::Sim(_) | Self::Null(_) => unsafe { self.register(address, len, access) },
        }
    }
}
