//! Registered memory: slabs for own requests, windows for those of peers.
//!
//! Memory of a [`Slab`] is written by the adapter only as part of requests that own it, so a
//! [`Piece`] of it is plain bytes while no request has it. Memory of a [`Window`] is written by
//! peers whenever they like, so it is never borrowed: bytes are copied out of it and into it.
//!
//! Slabs share the registration of the chunk in which they lie, one per chunk and context: what lies
//! in the same chunk beside them cannot be reached, since no request names it and peers have no
//! rights. A window is registered by itself, so that a peer's rights end where it does. Where a
//! whole chunk cannot be locked, a slab is registered by itself too. What is registered stays so
//! until everything in it is gone.

use std::cell::RefCell;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use lunette_runtime::arena::{ChunkHandle, RegionMut};
use lunette_runtime_core::carve::{Carver, GRANULE_BYTES};
use rustix::io::Errno;
use thiserror::Error;

use crate::context::Context;
use crate::error::SetupError;
use crate::provider::{Access, Keys, RawDevice, RawMemory, RemoteMemory};

/// The slab has no room of this length: drop a piece, then try again.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("no room for {len_bytes} bytes in the slab")]
pub struct SlabFull {
    /// Length asked for.
    pub len_bytes: usize,
}

/// The name of a window: a value that pins nothing and goes stale when the window is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryName {
    /// Its place.
    pub index: u32,
    /// Which of the windows that had this place.
    pub generation: u32,
}

/// The registration of a whole chunk, for own requests alone.
pub(crate) struct RegisteredChunk {
    // Declared, and so dropped, before what it covers.
    memory: RawMemory,
    keys: Keys,
    chunk: ChunkHandle,
    _device: Rc<RawDevice>,
}

impl RegisteredChunk {
    pub(crate) fn new(device: &Rc<RawDevice>, chunk: ChunkHandle) -> Result<Self, Errno> {
        let (start, len) = (chunk.start(), chunk.len_bytes());
        // Requests name it by its address.
        start.as_ptr().expose_provenance();
        // SAFETY: the handle in the result keeps the chunk mapped for longer than it is registered.
        // Peers have no rights to it, and own requests name pieces of slabs alone, whose regions
        // nobody borrows.
        let registered = unsafe { device.register(start.as_ptr(), len, Access::default()) };
        let (memory, keys) = registered?;
        Ok(Self {
            memory,
            keys,
            chunk,
            _device: Rc::clone(device),
        })
    }

    pub(crate) const fn chunk(&self) -> &ChunkHandle {
        &self.chunk
    }
}

/// What makes a region known to the adapter.
enum Registration {
    /// That of the whole chunk.
    Chunk(Rc<RegisteredChunk>),
    /// Its own.
    Own(RawMemory, Rc<RawDevice>),
}

/// A region and its registration.
struct Registered {
    // Declared, and so dropped, before what it covers.
    registration: Registration,
    base: NonNull<u8>,
    len: usize,
    keys: Keys,
    _region: RegionMut,
}

impl Registered {
    /// Registers a region by itself.
    fn new(context: &Context, mut region: RegionMut, access: Access) -> Result<Self, SetupError> {
        let bytes = region.as_mut_slice();
        let len = bytes.len();
        let base = NonNull::new(bytes.as_mut_ptr()).expect("a region is not at null");
        // Requests name it by its address.
        base.as_ptr().expose_provenance();
        let device = Rc::clone(context.device());
        // SAFETY: the region is owned by the result, longer than the registration is, and nobody
        // borrows it any more: its bytes are reached through `base` alone, by the rules of `Slab`
        // and `Window`.
        let registered = unsafe { device.register(base.as_ptr(), len, access) };
        let (memory, keys) = registered.map_err(SetupError::Refused)?;
        Ok(Self {
            registration: Registration::Own(memory, device),
            base,
            len,
            keys,
            _region: region,
        })
    }

    /// Uses the registration of the region's chunk, for own requests alone.
    fn in_chunk(context: &Context, mut region: RegionMut) -> Result<Self, SetupError> {
        let chunk = match context.register_chunk(&region.chunk()) {
            Ok(chunk) => chunk,
            Err(errno) => {
                tracing::debug!(%errno, "a chunk is not registered as a whole");
                return Self::new(context, region, Access::default());
            }
        };
        let bytes = region.as_mut_slice();
        let len = bytes.len();
        let base = NonNull::new(bytes.as_mut_ptr()).expect("a region is not at null");
        base.as_ptr().expose_provenance();
        Ok(Self {
            keys: chunk.keys,
            registration: Registration::Chunk(chunk),
            base,
            len,
            _region: region,
        })
    }

    /// The first byte of a part.
    fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        let end = offset.checked_add(len).expect("an end fits");
        assert!(end <= self.len, "{offset}..{end} of {} bytes", self.len);
        // SAFETY: the assert keeps it inside the region that `self` owns.
        unsafe { self.base.add(offset) }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, registration) = (self.len, &self.registration);
        match registration {
            Registration::Chunk(chunk) => write!(f, "{len} bytes of {:?}", chunk.memory),
            Registration::Own(memory, _device) => write!(f, "{len} bytes, {memory:?}"),
        }
    }
}

/// Registered memory that own requests read and write. Clones share it.
#[derive(Clone, Debug)]
pub struct Slab {
    inner: Rc<SlabInner>,
}

#[derive(Debug)]
struct SlabInner {
    registered: Registered,
    carver: RefCell<Carver>,
}

impl Slab {
    /// Registers a region, which belongs to the slab until its last piece is gone. The first slab of
    /// a chunk locks the whole chunk, if that is allowed, and those after it cost nothing.
    ///
    /// # Errors
    /// [`SetupError::Refused`] as the system has it; the region is dropped then.
    pub fn register(context: &Context, region: RegionMut) -> Result<Self, SetupError> {
        let granules = region.len() / GRANULE_BYTES as usize;
        let len = u32::try_from(granules * GRANULE_BYTES as usize).map_err(|_| SetupError::Size)?;
        if len == 0 {
            return Err(SetupError::Size);
        }
        let registered = if context.is_iwarp()? {
            // Reads of iWARP arrive as if the peer wrote, so it must be allowed to: here alone.
            let access = Access {
                remote_write: true,
                ..Access::default()
            };
            Registered::new(context, region, access)?
        } else {
            Registered::in_chunk(context, region)?
        };
        let inner = SlabInner {
            registered,
            carver: RefCell::new(Carver::new(len)),
        };
        Ok(Self {
            inner: Rc::new(inner),
        })
    }

    /// A piece of `len` bytes. Its bytes are initialised, with unspecified values.
    ///
    /// # Errors
    /// [`SlabFull`], which is back-pressure; also for no bytes and for more than the slab has.
    pub fn alloc(&self, len: usize) -> Result<Piece, SlabFull> {
        let full = SlabFull { len_bytes: len };
        let asked = u32::try_from(len).ok().filter(|len| *len > 0).ok_or(full)?;
        let carved = self.inner.carver.borrow_mut().alloc(asked).ok_or(full)?;
        assert!(carved.len_bytes >= asked, "never less than asked");
        let end = carved.offset_bytes as usize + len;
        assert!(end <= self.inner.registered.len, "inside the slab");
        Ok(Piece {
            slab: Rc::clone(&self.inner),
            slot_index: carved.slot_index,
            generation: carved.generation,
            offset_bytes: carved.offset_bytes,
            len_bytes: asked,
        })
    }

    /// Bytes in use, after rounding.
    #[must_use]
    pub fn used_bytes(&self) -> u32 {
        self.inner.carver.borrow().used_bytes()
    }
}

/// A piece of a slab with one owner: the program, or a request in flight.
pub struct Piece {
    slab: Rc<SlabInner>,
    /// Its name at the carver.
    slot_index: u32,
    generation: u32,
    // Inside the slab, as was checked when it was carved.
    offset_bytes: u32,
    len_bytes: u32,
}

impl Piece {
    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len_bytes as usize
    }

    /// Never: a piece has at least one byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the piece is `self`'s alone, its bytes are initialised, and no request has it,
        // since requests own their pieces. Ends with the borrow.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len()) }
    }

    /// The bytes, to be written.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len()) }
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: a piece lies inside the region that its slab owns.
        unsafe { self.slab.registered.base.add(self.offset_bytes as usize) }
    }

    /// As work requests name it.
    pub(crate) fn address(&self) -> u64 {
        self.start().as_ptr().addr() as u64
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.slab.registered.keys.lkey
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut carver = self.slab.carver.borrow_mut();
        let freed = carver.free(self.slot_index, self.generation);
        assert!(freed.is_ok(), "a piece is freed once");
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (offset, len) = (self.offset_bytes, self.len_bytes);
        write!(f, "Piece({len} bytes at {offset})")
    }
}

/// Registered memory that peers reach, as its access says. Clones share it.
#[derive(Clone)]
pub struct Window {
    inner: Rc<WindowInner>,
}

pub(crate) struct WindowInner {
    registered: Registered,
    name: std::cell::Cell<Option<MemoryName>>,
}

impl Window {
    /// Registers a region, zeroed, which belongs to the window until its last handle is gone.
    ///
    /// # Errors
    /// [`SetupError::Refused`] as the system has it; [`SetupError::Size`] with too many windows.
    pub fn register(
        context: &Context,
        mut region: RegionMut,
        access: Access,
    ) -> Result<Self, SetupError> {
        // Peers must not see what was there before.
        region.as_mut_slice().fill(0);
        let inner = Rc::new(WindowInner {
            registered: Registered::new(context, region, access)?,
            name: std::cell::Cell::new(None),
        });
        let name = context.list(&inner).ok_or(SetupError::Size)?;
        inner.name.set(Some(name));
        Ok(Self { inner })
    }

    pub(crate) const fn of(inner: Rc<WindowInner>) -> Self {
        Self { inner }
    }

    /// Its name, for [`Context::window`].
    ///
    /// # Panics
    /// Never: every window is listed.
    #[must_use]
    pub fn name(&self) -> MemoryName {
        self.inner.name.get().expect("every window is listed")
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.registered.len
    }

    /// Never: a window has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.registered.len == 0
    }

    /// What a peer names it by. The peer's rights end when the window does.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        let registered = &self.inner.registered;
        RemoteMemory {
            address: registered.base.as_ptr().addr() as u64,
            rkey: registered.keys.rkey,
        }
    }

    /// Copies bytes out. While a peer writes them, they are a mixture.
    ///
    /// # Panics
    /// If they do not lie inside the window.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.inner.registered.at(offset, into.len());
        // SAFETY: `from` is inside the registered region, which nobody borrows; what the adapter
        // writes meanwhile is bytes of any value. Ends with the call.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    /// Copies bytes in. While a peer reads them, it sees a mixture.
    ///
    /// # Panics
    /// If they do not lie inside the window.
    pub fn write(&self, offset: usize, from: &[u8]) {
        let to = self.inner.registered.at(offset, from.len());
        // SAFETY: as in `read`, the other way.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
    }

    /// A word that a peer may be writing, for flags and sequence numbers.
    ///
    /// # Panics
    /// If it does not lie inside the window, at a multiple of 8.
    #[must_use]
    pub fn load(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8), "words are aligned");
        let word = self.inner.registered.at(offset, 8);
        // SAFETY: inside the region and aligned (regions start at multiples of 8), and reached by
        // atomic loads, copies and the adapter alone. Ends with the call.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Window({:?}, {:?})",
            self.inner.registered, self.inner.name
        )
    }
}
