//! Memory of another device, a GPU say, that the adapter reaches by itself (GPUDirect).
//!
//! Such memory is named by a dma-buf, which its owner exports, or by its address (nvidia-peermem), and is never borrowed
//! here: own requests move it, peers with the rights reach it, and what is in it when is between them and the
//! device. Where adapter, library or kernel cannot do so, that is told, and memory of this machine
//! is the way round.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use lunette_runtime::PeerMemory;
use rustix::io::Errno;

use crate::context::Context;
use crate::error::SetupError;
use crate::provider::{Access, Keys, RawDevice, RawMemory, RemoteMemory};

/// Registered memory of a device. Clones share it; requests in flight hold it.
#[derive(Clone)]
pub struct DeviceMemory {
    inner: Rc<Inner>,
}

struct Inner {
    // Goes before the device.
    memory: RawMemory,
    keys: Keys,
    /// What requests name the first byte by: where it lies in the dma-buf, or its own address.
    address: u64,
    len: usize,
    /// What was given by its address; the kernel keeps what was given by a dma-buf.
    _lent: Option<Box<dyn PeerMemory>>,
    _device: Rc<RawDevice>,
}

impl DeviceMemory {
    /// Registers the bytes of a dma-buf in `range`, for own requests and as `access` says for
    /// peers, on the control thread where that takes long. The descriptor is not needed afterwards. Best left to run
    /// to its end: what is dropped while that thread is at work stays registered for ever.
    ///
    /// # Errors
    /// [`SetupError::Unsupported`] where this cannot be done at all; [`SetupError::Size`] of an
    /// empty range; [`SetupError::Refused`] as the system has it.
    pub async fn register(
        context: &Context,
        dma_buf: OwnedFd,
        range: Range<u64>,
        access: Access,
    ) -> Result<Self, SetupError> {
        let len = range.end.saturating_sub(range.start);
        let len = usize::try_from(len).map_err(|_| SetupError::Size)?;
        if len == 0 {
            return Err(SetupError::Size);
        }
        let device = Rc::clone(context.device());
        // If nobody waits for its end any more, that cannot be known, so the device is kept for ever.
        let kept = ManuallyDrop::new(Rc::clone(&device));
        // SAFETY: `kept` keeps the device until the call has ended, and if the future is dropped.
        let registering = unsafe { device.register_dma_buf(dma_buf, range.start, len, access) };
        let registered = registering.await;
        drop(ManuallyDrop::into_inner(kept));
        let (memory, keys) = registered.map_err(refusal)?;
        let inner = Inner {
            memory,
            keys,
            address: range.start,
            len,
            _lent: None,
            _device: device,
        };
        Ok(Self {
            inner: Rc::new(inner),
        })
    }

    /// Registers memory by its address, and holds it; else as [`register`](Self::register).
    ///
    /// # Errors
    /// [`SetupError::Size`] of nothing; [`SetupError::Refused`] as the system has it: with `EFAULT` where no module of the
    /// kernel knows the address.
    pub async fn register_peer(
        context: &Context,
        memory: impl PeerMemory,
        access: Access,
    ) -> Result<Self, SetupError> {
        let len = usize::try_from(memory.len_bytes()).map_err(|_| SetupError::Size)?;
        if len == 0 {
            return Err(SetupError::Size);
        }
        let device = Rc::clone(context.device());
        let address = memory.address();
        // If nobody waits for its end any more, that cannot be known, so both are kept for ever.
        let kept = ManuallyDrop::new((Rc::clone(&device), Box::new(memory)));
        // SAFETY: `kept` keeps both until the call has ended, and if the future is dropped; `Inner` keeps the memory for
        // longer than it is registered.
        let registering = unsafe { device.register_peer(&*kept.1, len, access) };
        let registered = registering.await;
        let (_, lent) = ManuallyDrop::into_inner(kept);
        let (memory, keys) = registered.map_err(refusal)?;
        let inner = Inner {
            memory,
            keys,
            address,
            len,
            _lent: Some(lent),
            _device: device,
        };
        Ok(Self {
            inner: Rc::new(inner),
        })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Never: it has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.len == 0
    }

    /// What a peer names it by. The peer's rights end when the last handle and the last request
    /// are gone.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            address: self.inner.address,
            rkey: self.inner.keys.rkey,
        }
    }

    /// As work requests name a part, if it is one.
    pub(crate) fn part(&self, range: &Range<usize>) -> Option<(u64, u32)> {
        let is_part = range.start < range.end && range.end <= self.inner.len;
        let len = u32::try_from(range.end.wrapping_sub(range.start)).ok()?;
        is_part.then(|| (self.inner.address + range.start as u64, len))
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.inner.keys.lkey
    }
}

fn refusal(errno: Errno) -> SetupError {
    match errno {
        Errno::OPNOTSUPP | Errno::NOSYS => SetupError::Unsupported,
        errno => SetupError::Refused(errno),
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { memory, len, .. } = &*self.inner;
        write!(f, "DeviceMemory({len} bytes, {memory:?})")
    }
}
