//! Memory of a device, and pinned memory of the host.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::rc::Rc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};
use lunette_gpu_proto::fault::Fault;

use super::context::{Inner, raw_fd};
use super::library::{check, have};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const HANDLE_POSIX_FD: c_uint = 1;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
const GRANULARITY_MINIMUM: c_uint = 0;
/// An argument that the driver would not take either: `CUDA_ERROR_INVALID_VALUE`.
const INVALID: Fault = Fault::Code(1);

/// Memory of a device.
#[derive(Debug)]
pub(crate) struct Memory {
    context: Rc<Inner>,
    address: CUdeviceptr,
    len: u64,
    kind: Kind,
}

/// How it came, and so how it goes.
#[derive(Debug)]
enum Kind {
    Allocated,
    OpenedByHandle,
    /// Physical memory, mapped at addresses of our own.
    Mapped(CUmemGenericAllocationHandle),
}

impl Memory {
    pub(super) fn alloc(context: &Rc<Inner>, len: u64) -> Result<Self, Fault> {
        let library = context.enter()?;
        let bytes = usize::try_from(len).map_err(|_| INVALID)?;
        let mut address = 0;
        // SAFETY: the result is ours to write.
        check(unsafe { (library.cuMemAlloc_v2)(&raw mut address, bytes) })?;
        Ok(Self {
            context: Rc::clone(context),
            address,
            len,
            kind: Kind::Allocated,
        })
    }

    pub(super) fn of_ipc(context: &Rc<Inner>, address: CUdeviceptr) -> Self {
        Self {
            context: Rc::clone(context),
            address,
            len: 0,
            kind: Kind::OpenedByHandle,
        }
    }

    pub(super) const fn with_len(mut self, len: u64) -> Self {
        self.len = len;
        self
    }

    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn export(&self) -> Result<OwnedFd, Fault> {
        let Kind::Mapped(handle) = self.kind else {
            return Err(Fault::Unsupported(801));
        };
        let library = self.context.enter()?;
        let export = have(library.cuMemExportToShareableHandle)?;
        let mut fd: c_int = -1;
        let place = (&raw mut fd).cast::<c_void>();
        // SAFETY: for this type the result is one descriptor, which is ours to write.
        check(unsafe { export(place, handle, HANDLE_POSIX_FD, 0) })?;
        assert!(fd >= 0, "success brings a descriptor");
        // SAFETY: the driver made the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // After an end of the context there is nothing left to give back.
        let Ok(library) = self.context.enter() else {
            return;
        };
        match self.kind {
            Kind::Allocated => {
                // SAFETY: allocated by `alloc` and freed once; operations that use it hold it.
                let _freed = unsafe { (library.cuMemFree_v2)(self.address) };
            }
            Kind::OpenedByHandle => {
                let close = library.cuIpcCloseMemHandle;
                // SAFETY: opened once and closed once; operations that use it hold it.
                let _closed = close.map(|close| unsafe { close(self.address) });
            }
            Kind::Mapped(handle) => {
                unmap(&self.context, self.address, self.len);
                release(&self.context, handle);
            }
        }
    }
}

/// What shareable memory of a context's device is.
fn properties(context: &Inner) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: location(context),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 1,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(context: &Inner) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: context.device(),
    }
}

pub(super) fn alloc_shareable(context: &Rc<Inner>, len: u64) -> Result<Memory, Fault> {
    let library = context.enter()?;
    let properties = properties(context);
    let granularity = have(library.cuMemGetAllocationGranularity)?;
    let create = have(library.cuMemCreate)?;
    let mut unit = 0;
    // SAFETY: the properties live through the call; the result is ours to write.
    let code = unsafe { granularity(&raw mut unit, &raw const properties, GRANULARITY_MINIMUM) };
    check(code)?;
    let len = len.checked_next_multiple_of(unit as u64).ok_or(INVALID)?;
    let bytes = usize::try_from(len).map_err(|_| INVALID)?;
    let mut handle = 0;
    // SAFETY: as above.
    check(unsafe { create(&raw mut handle, bytes, &raw const properties, 0) })?;
    map(context, handle, len)
}

pub(super) fn import(
    context: &Rc<Inner>,
    memory: BorrowedFd<'_>,
    len: u64,
) -> Result<Memory, Fault> {
    let library = context.enter()?;
    let import = have(library.cuMemImportFromShareableHandle)?;
    // To drivers the descriptor 0 is no handle.
    let other = (memory.as_raw_fd() == 0).then(|| rustix::io::fcntl_dupfd_cloexec(memory, 1));
    let other = other.transpose().map_err(|_| INVALID)?;
    let memory = other.as_ref().map_or(memory, AsFd::as_fd);
    let mut handle = 0;
    // SAFETY: for this type the handle is the descriptor itself, which the driver duplicates.
    check(unsafe { import(&raw mut handle, raw_fd(memory), HANDLE_POSIX_FD) })?;
    map(context, handle, len)
}

/// Maps physical memory, which is given back if that fails.
fn map(
    context: &Rc<Inner>,
    handle: CUmemGenericAllocationHandle,
    len: u64,
) -> Result<Memory, Fault> {
    let mapped = map_at(context, handle, len);
    let address = mapped.inspect_err(|_| release(context, handle))?;
    Ok(Memory {
        context: Rc::clone(context),
        address,
        len,
        kind: Kind::Mapped(handle),
    })
}

fn map_at(
    context: &Rc<Inner>,
    handle: CUmemGenericAllocationHandle,
    len: u64,
) -> Result<CUdeviceptr, Fault> {
    let library = context.enter()?;
    let bytes = usize::try_from(len).map_err(|_| INVALID)?;
    let reserve = have(library.cuMemAddressReserve)?;
    let place = have(library.cuMemMap)?;
    let allow = have(library.cuMemSetAccess)?;
    let free = have(library.cuMemAddressFree)?;
    let mut address = 0;
    // SAFETY: the result is ours to write.
    check(unsafe { reserve(&raw mut address, bytes, 0, 0, 0) })?;
    // SAFETY: the addresses have just been reserved, the handle is live.
    let code = unsafe { place(address, bytes, 0, handle, 0) };
    if let Err(fault) = check(code) {
        // SAFETY: reserved above, nothing is mapped there.
        let _freed = unsafe { free(address, bytes) };
        return Err(fault);
    }
    let access = CUmemAccessDesc {
        location: location(context),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: mapped above; the description lives through the call.
    let code = unsafe { allow(address, bytes, &raw const access, 1) };
    check(code).inspect_err(|_| unmap(context, address, len))?;
    Ok(address)
}

/// Ends a mapping and gives its addresses back.
fn unmap(context: &Inner, address: CUdeviceptr, len: u64) {
    let library = context.library();
    let Ok(bytes) = usize::try_from(len) else {
        return;
    };
    // SAFETY: mapped by `map_at`; operations that use it hold it.
    let _unmapped = library
        .cuMemUnmap
        .map(|unmap| unsafe { unmap(address, bytes) });
    // SAFETY: reserved by `map_at`, nothing is mapped there any more.
    let _freed = library
        .cuMemAddressFree
        .map(|free| unsafe { free(address, bytes) });
}

fn release(context: &Inner, handle: CUmemGenericAllocationHandle) {
    // SAFETY: created or imported once and released once.
    let _released = context
        .library()
        .cuMemRelease
        .map(|release| unsafe { release(handle) });
}
