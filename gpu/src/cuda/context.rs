//! A device and its context.

use std::cell::OnceCell;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUevent, CUfunction, CUipcMemHandle, CUmodule, CUstream,
};
use lunette_gpu_proto::fault::Fault;
use lunette_gpu_proto::kernel::Width;
use lunette_gpu_proto::sums;

use super::Driver;
use super::library::{
    Library, MEMORY_TYPE_DEVICE, POINTER_DEVICE_ORDINAL, POINTER_IS_MANAGED, POINTER_MEMORY_TYPE,
    POINTER_SYNC_MEMOPS, check, have,
};
use super::memory::{self, Memory};
use super::pin::{Pin, Pinner, Registration};
use super::stream::{Event, Stream};
use crate::provider::{DeviceInfo, IPC_HANDLE_BYTES, PointerInfo};

/// `CU_DEVICE_ATTRIBUTE_*`.
const MULTIPROCESSORS: c_uint = 16;
const CAPABILITY_MAJOR: c_uint = 75;
const CAPABILITY_MINOR: c_uint = 76;
const HANDLE_TYPE_POSIX_FD: c_uint = 103;
const DMA_BUF: c_uint = 124;
/// `CU_STREAM_NON_BLOCKING`.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const IPC_LAZY_PEER_ACCESS: c_uint = 1;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const RANGE_HANDLE_DMA_BUF: c_uint = 1;
/// The kernel module by which adapters reach device memory by its address.
const PEER_MEMORY_MODULE: &str = "/sys/module/nvidia_peermem";

/// A device's primary context.
#[derive(Debug)]
pub(crate) struct Context {
    inner: Rc<Inner>,
    info: DeviceInfo,
}

/// A hold of a device's primary context, by which it stays what it is.
#[derive(Debug)]
pub(super) struct Hold {
    library: &'static Library,
    device: CUdevice,
    context: CUcontext,
}

// SAFETY: a context may be used by any thread that has made it current, which each use does first.
unsafe impl Send for Hold {}

// SAFETY: as above; several threads may do so at the same time, as the driver's manual has it.
unsafe impl Sync for Hold {}

impl Hold {
    fn retain(library: &'static Library, device: CUdevice) -> Result<Self, Fault> {
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: the device is one of this driver; the result is ours to write.
        check(unsafe { (library.cuDevicePrimaryCtxRetain)(&raw mut context, device) })?;
        Ok(Self {
            library,
            device,
            context,
        })
    }

    /// Makes the context the calling thread's.
    pub(super) fn enter(&self) -> Result<&'static Library, Fault> {
        // SAFETY: the context is retained by `self`.
        check(unsafe { (self.library.cuCtxSetCurrent)(self.context) })?;
        Ok(self.library)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // SAFETY: retained once by `retain`. What others have of it stays theirs.
        let _released = unsafe { (self.library.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// What everything of a context holds.
#[derive(Debug)]
pub(super) struct Inner {
    hold: Hold,
    /// By program, compiled when they are first needed.
    kernels: [OnceCell<Result<Kernel, Fault>>; Program::COUNT],
}

/// What is compiled for a device.
#[derive(Clone, Copy, Debug)]
pub(super) enum Program {
    /// Pages from one layout to another.
    Pages(Width),
    /// Copies that are summed.
    Sums,
}

impl Program {
    const COUNT: usize = Width::ALL.len() + 1;

    const fn index(self) -> usize {
        match self {
            Self::Pages(width) => width as usize,
            Self::Sums => Width::ALL.len(),
        }
    }

    fn text(self) -> String {
        match self {
            Self::Pages(width) => width.ptx(),
            Self::Sums => sums::ptx(),
        }
    }

    const fn entry(self) -> &'static str {
        match self {
            Self::Pages(width) => width.entry(),
            Self::Sums => sums::ENTRY,
        }
    }
}

/// A compiled kernel.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    module: CUmodule,
    function: CUfunction,
}

// SAFETY: both are names of what belongs to a context, which any thread may use that has made it current.
unsafe impl Send for Kernel {}

/// What was compiled for a device when that was [prepared](super::Driver::prepare), for all its cores. It is never
/// unloaded: the context that it belongs to is kept as long.
static PREPARED: Mutex<Vec<Prepared>> = Mutex::new(Vec::new());

/// Kernels of a device, by program.
#[derive(Debug)]
struct Prepared {
    /// Which driver's it is.
    library: &'static Library,
    device: CUdevice,
    kernels: [Option<Kernel>; Program::COUNT],
}

fn prepared<T>(read: impl FnOnce(&mut Vec<Prepared>) -> T) -> T {
    read(&mut PREPARED.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Inner {
    /// Makes the context the calling thread's.
    pub(super) fn enter(&self) -> Result<&'static Library, Fault> {
        self.hold.enter()
    }

    pub(super) const fn library(&self) -> &'static Library {
        self.hold.library
    }

    pub(super) const fn device(&self) -> CUdevice {
        self.hold.device
    }

    pub(super) fn kernel(&self, program: Program) -> Result<CUfunction, Fault> {
        if let Some(kernel) = self.prepared(program) {
            return Ok(kernel.function);
        }
        let kernel = self.kernels[program.index()].get_or_init(|| self.compile(program));
        kernel
            .as_ref()
            .map(|kernel| kernel.function)
            .map_err(|fault| *fault)
    }

    fn prepared(&self, program: Program) -> Option<Kernel> {
        let (library, device) = (self.library(), self.device());
        prepared(|all| {
            let is_its = |it: &&Prepared| ptr::eq(it.library, library) && it.device == device;
            all.iter().find(is_its)?.kernels[program.index()]
        })
    }

    /// Compiles what copies sum by, which takes some ten milliseconds. What cannot be compiled is tried again by whoever
    /// needs it, and told to them.
    ///
    /// The context must never be given back.
    fn prepare(&self) {
        let program = Program::Sums;
        if self.prepared(program).is_some() {
            return;
        }
        let Ok(kernel) = self.compile(program) else {
            return;
        };
        let (library, device) = (self.library(), self.device());
        let mut kernels = [None; Program::COUNT];
        kernels[program.index()] = Some(kernel);
        prepared(|all| {
            all.push(Prepared {
                library,
                device,
                kernels,
            });
        });
    }

    fn compile(&self, program: Program) -> Result<Kernel, Fault> {
        let library = self.enter()?;
        let text = CString::new(program.text()).expect("PTX holds no zero byte");
        let name = CString::new(program.entry()).expect("a name holds no zero byte");
        let mut module: CUmodule = ptr::null_mut();
        // SAFETY: the text is ended by a zero byte and lives through the call; the result is ours
        // to write.
        let code = unsafe { (library.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()) };
        check(code)?;
        let mut function: CUfunction = ptr::null_mut();
        // SAFETY: the module is loaded, the name ended by a zero byte.
        let code =
            unsafe { (library.cuModuleGetFunction)(&raw mut function, module, name.as_ptr()) };
        if let Err(fault) = check(code) {
            // SAFETY: the module is loaded, and nothing of it is used.
            let _unloaded = unsafe { (library.cuModuleUnload)(module) };
            return Err(fault);
        }
        Ok(Kernel { module, function })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Ok(library) = self.enter() else {
            return;
        };
        let compiled = self.kernels.iter().filter_map(|kernel| kernel.get());
        for kernel in compiled.flatten() {
            // SAFETY: loaded by `compile`; streams, which launch it, hold `self` and are gone.
            let _unloaded = unsafe { (library.cuModuleUnload)(kernel.module) };
        }
    }
}

impl Context {
    pub(crate) fn open(driver: Driver, index: usize) -> Result<Self, Fault> {
        let library = driver.library;
        let ordinal = c_int::try_from(index).map_err(|_| Fault::Code(1))?;
        let mut device = 0;
        // SAFETY: the result is ours to write.
        check(unsafe { (library.cuDeviceGet)(&raw mut device, ordinal) })?;
        let inner = Rc::new(Inner {
            hold: Hold::retain(library, device)?,
            kernels: Default::default(),
        });
        inner.enter()?;
        let info = info(library, device, index)?;
        Ok(Self { inner, info })
    }

    pub(crate) const fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Keeps the context for the rest of the process, with what takes long to make of it.
    pub(super) fn keep(self) {
        self.inner.prepare();
        std::mem::forget(self);
    }

    pub(crate) fn alloc(&self, len: u64) -> Result<Memory, Fault> {
        Memory::alloc(&self.inner, len)
    }

    pub(crate) fn alloc_shareable(&self, len: u64) -> Result<Memory, Fault> {
        memory::alloc_shareable(&self.inner, len)
    }

    pub(crate) fn import(&self, memory: BorrowedFd<'_>, len: u64) -> Result<Memory, Fault> {
        memory::import(&self.inner, memory, len)
    }

    pub(crate) fn open_ipc(&self, handle: [u8; IPC_HANDLE_BYTES]) -> Result<Memory, Fault> {
        let library = self.inner.enter()?;
        let open = have(library.cuIpcOpenMemHandle_v2)?;
        let handle = CUipcMemHandle {
            reserved: handle.map(|byte| c_char::from_ne_bytes([byte])),
        };
        let mut address = 0;
        // SAFETY: the handle is plain bytes, which the driver checks; the result is ours to write.
        check(unsafe { open(&raw mut address, handle, IPC_LAZY_PEER_ACCESS) })?;
        let memory = Memory::of_ipc(&self.inner, address);
        let len = self.range_of(address)?.1;
        Ok(memory.with_len(len))
    }

    pub(crate) fn ipc_handle(&self, base: u64) -> Result<[u8; IPC_HANDLE_BYTES], Fault> {
        let library = self.inner.enter()?;
        let get = have(library.cuIpcGetMemHandle)?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the result is ours to write.
        check(unsafe { get(&raw mut handle, base) })?;
        Ok(handle.reserved.map(|byte| byte.to_ne_bytes()[0]))
    }

    pub(crate) fn dma_buf(&self, address: u64, len: u64) -> Result<OwnedFd, Fault> {
        let library = self.inner.enter()?;
        let export = have(library.cuMemGetHandleForAddressRange)?;
        let mut fd: c_int = -1;
        let place = (&raw mut fd).cast::<c_void>();
        let len = usize::try_from(len).map_err(|_| Fault::Code(1))?;
        // SAFETY: for this type the result is one descriptor, which is ours to write.
        check(unsafe { export(place, address, len, RANGE_HANDLE_DMA_BUF, 0) })?;
        assert!(fd >= 0, "success brings a descriptor");
        // SAFETY: the driver made the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub(crate) fn order_memory_operations(&self, base: u64) -> Result<(), Fault> {
        let library = self.inner.enter()?;
        let set = have(library.cuPointerSetAttribute)?;
        let is_on: c_uint = 1;
        // SAFETY: the attribute is a number of 32 bits, which lives through the call.
        check(unsafe { set((&raw const is_on).cast(), POINTER_SYNC_MEMOPS, base) })
    }

    fn range_of(&self, address: u64) -> Result<(u64, u64), Fault> {
        let library = self.inner.enter()?;
        let (mut base, mut len) = (0, 0);
        // SAFETY: the results are ours to write.
        let code =
            unsafe { (library.cuMemGetAddressRange_v2)(&raw mut base, &raw mut len, address) };
        check(code)?;
        Ok((base, len as u64))
    }

    pub(crate) fn pointer(&self, address: u64) -> Result<PointerInfo, Fault> {
        let library = self.inner.enter()?;
        let attribute = |which| {
            let mut value: c_uint = 0;
            // SAFETY: each attribute that is asked for here is at most 32 bits wide, which are
            // ours to write.
            let code =
                unsafe { (library.cuPointerGetAttribute)((&raw mut value).cast(), which, address) };
            check(code).map(|()| value)
        };
        let stranger = PointerInfo {
            is_own: false,
            base: 0,
            len: 0,
        };
        // An address that the driver does not know is an invalid value.
        let kind = match attribute(POINTER_MEMORY_TYPE) {
            Err(Fault::Code(1)) => return Ok(stranger),
            kind => kind?,
        };
        let is_managed = attribute(POINTER_IS_MANAGED)? != 0;
        let ordinal = attribute(POINTER_DEVICE_ORDINAL)? as usize;
        if kind != MEMORY_TYPE_DEVICE || is_managed || ordinal != self.info.index {
            return Ok(stranger);
        }
        let (base, len) = self.range_of(address)?;
        Ok(PointerInfo {
            is_own: true,
            base,
            len,
        })
    }

    pub(crate) fn pinner(&self) -> Result<Pinner, Fault> {
        let Hold {
            library, device, ..
        } = self.inner.hold;
        Hold::retain(library, device).map(Pinner::new)
    }

    /// Takes what a pinner has pinned.
    pub(crate) fn adopt(&self, registration: Arc<Registration>) -> Result<Pin, Fault> {
        Pin::of(registration, &self.inner)
    }

    /// What is pinned at this address already, by any device of this process.
    pub(crate) fn find_pin(&self, start: usize) -> Option<Result<Pin, Fault>> {
        let found = Registration::find(start)?;
        Some(Pin::of(found, &self.inner))
    }

    pub(crate) fn stream(&self, is_urgent: bool) -> Result<Stream, Fault> {
        let library = self.inner.enter()?;
        let mut stream: CUstream = ptr::null_mut();
        let urgent = library
            .cuStreamCreateWithPriority
            .zip(library.cuCtxGetStreamPriorityRange)
            .filter(|_| is_urgent);
        let Some((create, range)) = urgent else {
            // SAFETY: the result is ours to write.
            check(unsafe { (library.cuStreamCreate)(&raw mut stream, STREAM_NON_BLOCKING) })?;
            return Ok(Stream::of(&self.inner, stream));
        };
        let (mut last, mut first) = (0, 0);
        // SAFETY: the results are ours to write.
        check(unsafe { range(&raw mut last, &raw mut first) })?;
        // SAFETY: as above.
        check(unsafe { create(&raw mut stream, STREAM_NON_BLOCKING, first) })?;
        Ok(Stream::of(&self.inner, stream))
    }

    pub(crate) fn event(&self) -> Result<Event, Fault> {
        let library = self.inner.enter()?;
        let mut event: CUevent = ptr::null_mut();
        // SAFETY: the result is ours to write.
        check(unsafe { (library.cuEventCreate)(&raw mut event, EVENT_DISABLE_TIMING) })?;
        Ok(Event::of(&self.inner, event))
    }
}

fn info(library: &Library, device: CUdevice, index: usize) -> Result<DeviceInfo, Fault> {
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: the result is ours to write.
        let code = unsafe { (library.cuDeviceGetAttribute)(&raw mut value, which, device) };
        check(code).map(|()| u32::try_from(value).unwrap_or(0))
    };
    let mut name: [c_char; 128] = [0; 128];
    // SAFETY: the room is ours to write, and as long as is said.
    check(unsafe { (library.cuDeviceGetName)(name.as_mut_ptr(), 127, device) })?;
    let letters = name.iter().take_while(|letter| **letter != 0);
    let letters: Vec<u8> = letters.map(|letter| letter.to_ne_bytes()[0]).collect();
    let mut memory_bytes = 0;
    // SAFETY: the result is ours to write.
    check(unsafe { (library.cuDeviceTotalMem_v2)(&raw mut memory_bytes, device) })?;
    let mut version = 0;
    // SAFETY: the result is ours to write.
    check(unsafe { (library.cuDriverGetVersion)(&raw mut version) })?;
    // Drivers that are older than an attribute do not know it.
    let has = |which| attribute(which).is_ok_and(|value| value == 1);
    Ok(DeviceInfo {
        name: String::from_utf8_lossy(&letters).into_owned(),
        index,
        memory_bytes: memory_bytes as u64,
        multiprocessors: attribute(MULTIPROCESSORS)?,
        capability: attribute(CAPABILITY_MAJOR)? * 10 + attribute(CAPABILITY_MINOR)?,
        driver_version: u32::try_from(version).unwrap_or(0),
        has_batches: library.cuMemcpyBatchAsync.is_some()
            || library.cuMemcpyBatchAsync_v2.is_some(),
        has_dma_buf: has(DMA_BUF) && library.cuMemGetHandleForAddressRange.is_some(),
        has_peer_memory: Path::new(PEER_MEMORY_MODULE).exists(),
        has_shareable: has(HANDLE_TYPE_POSIX_FD) && library.cuMemCreate.is_some(),
    })
}

/// A descriptor as the driver takes it.
pub(super) fn raw_fd(fd: BorrowedFd<'_>) -> *mut c_void {
    let number = usize::try_from(fd.as_raw_fd()).expect("a descriptor is not negative");
    ptr::without_provenance_mut(number)
}
