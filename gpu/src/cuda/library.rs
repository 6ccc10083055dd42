//! The functions of the CUDA driver, opened when the program runs.
//!
//! Types and constants are those of `cudarc::driver::sys`. Its functions are not called: they end
//! the process where the library or one symbol is missing, and they answer with an enum of the
//! codes that were known when it was generated, while a newer driver may answer with others. So
//! each function is looked up here, once, and answers with a number.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::Path;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUipcMemHandle, CUmemAccessDesc,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemcpyAttributes, CUmodule, CUstream,
};
use lunette_gpu_proto::fault::Fault;

use crate::error::Unavailable;

/// The names under which drivers are found, the one with its interface's version first.
const LIBRARY_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: u32 = 100;
/// What a function that this driver does not have would answer: `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: u32 = 801;

/// `CU_POINTER_ATTRIBUTE_*`.
pub(super) const POINTER_MEMORY_TYPE: c_uint = 2;
pub(super) const POINTER_SYNC_MEMOPS: c_uint = 6;
pub(super) const POINTER_IS_MANAGED: c_uint = 8;
pub(super) const POINTER_DEVICE_ORDINAL: c_uint = 9;
const POINTER_RANGE_START: c_uint = 11;
const POINTER_RANGE_SIZE: c_uint = 12;
const POINTER_ACCESS_FLAGS: c_uint = 16;
const POINTER_MAPPING_SIZE: c_uint = 18;
const POINTER_MAPPING_START: c_uint = 19;
/// `CU_MEMORYTYPE_DEVICE`.
pub(super) const MEMORY_TYPE_DEVICE: c_uint = 2;

/// A result code. Zero is success.
pub(super) type Code = c_uint;
/// What the driver calls when a stream comes to it.
pub(super) type HostFunction = unsafe extern "C" fn(*mut c_void);

macro_rules! functions {
    (
        required { $( $(#[$doc:meta])* $name:ident: fn($($argument:ty),* $(,)?); )* }
        optional { $( $(#[$odoc:meta])* $oname:ident: fn($($oargument:ty),* $(,)?); )* }
    ) => {
        /// The functions of the driver. Each is `unsafe` to call, with the rules of its manual:
        /// pointers and handles are live, and the context is current.
        #[derive(Debug)]
        #[expect(non_snake_case, reason = "the driver's own names")]
        pub(super) struct Library {
            $( $(#[$doc])* pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code, )*
            $( $(#[$odoc])* pub(super) $oname: Option<unsafe extern "C" fn($($oargument),*) -> Code>, )*
        }

        impl Library {
            fn of(library: &libloading::Library) -> Result<Self, Unavailable> {
                Ok(Self {
                    $( $name: symbol(library, stringify!($name)).ok_or(
                        Unavailable::SymbolMissing { name: stringify!($name) },
                    )?, )*
                    $( $oname: symbol(library, stringify!($oname)), )*
                })
            }
        }
    };
}

functions! {
    required {
        /// Starts the driver; flags are 0.
        cuInit: fn(c_uint);
        /// Which interface it has: 1000 times major plus 10 times minor.
        cuDriverGetVersion: fn(*mut c_int);
        /// How many devices there are.
        cuDeviceGetCount: fn(*mut c_int);
        /// The device of a number.
        cuDeviceGet: fn(*mut CUdevice, c_int);
        /// A device's name: room, its length.
        cuDeviceGetName: fn(*mut c_char, c_int, CUdevice);
        /// A device's memory in bytes.
        cuDeviceTotalMem_v2: fn(*mut usize, CUdevice);
        /// An attribute of a device, by number.
        cuDeviceGetAttribute: fn(*mut c_int, c_uint, CUdevice);
        /// The context that all users of a device in a process share.
        cuDevicePrimaryCtxRetain: fn(*mut CUcontext, CUdevice);
        /// Gives a hold of it back.
        cuDevicePrimaryCtxRelease_v2: fn(CUdevice);
        /// Makes a context the calling thread's.
        cuCtxSetCurrent: fn(CUcontext);
        /// Memory of the device.
        cuMemAlloc_v2: fn(*mut CUdeviceptr, usize);
        /// Gives it back; waits for what uses it.
        cuMemFree_v2: fn(CUdeviceptr);
        /// Pins memory of the host: address, length, flags.
        cuMemHostRegister_v2: fn(*mut c_void, usize, c_uint);
        /// Ends that.
        cuMemHostUnregister: fn(*mut c_void);
        /// By which address the device reaches pinned memory of the host; flags are 0.
        cuMemHostGetDevicePointer_v2: fn(*mut CUdeviceptr, *mut c_void, c_uint);
        /// A copy between any two places: destination, source, length.
        cuMemcpyAsync: fn(CUdeviceptr, CUdeviceptr, usize, CUstream);
        /// Makes a stream, with flags.
        cuStreamCreate: fn(*mut CUstream, c_uint);
        /// Ends a stream, when what is queued in it is done.
        cuStreamDestroy_v2: fn(CUstream);
        /// Waits until a stream has done everything.
        cuStreamSynchronize: fn(CUstream);
        /// Lets a stream wait for an event; flags are 0.
        cuStreamWaitEvent: fn(CUstream, CUevent, c_uint);
        /// Makes an event, with flags.
        cuEventCreate: fn(*mut CUevent, c_uint);
        /// Puts an event into a stream.
        cuEventRecord: fn(CUevent, CUstream);
        /// Whether a stream has come to the event.
        cuEventQuery: fn(CUevent);
        /// Ends an event.
        cuEventDestroy_v2: fn(CUevent);
        /// Calls a function of the host when a stream comes to it, not after an error.
        cuLaunchHostFunc: fn(CUstream, HostFunction, *mut c_void);
        /// Compiles PTX, ended by a zero byte.
        cuModuleLoadData: fn(*mut CUmodule, *const c_void);
        /// Gives a module back.
        cuModuleUnload: fn(CUmodule);
        /// A kernel of a module by its name, ended by a zero byte.
        cuModuleGetFunction: fn(*mut CUfunction, CUmodule, *const c_char);
        /// Starts a kernel: blocks and threads in three dimensions, shared memory, stream,
        /// parameters, extra.
        cuLaunchKernel: fn(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
            *mut *mut c_void, *mut *mut c_void,
        );
        /// An attribute of the memory at an address, by number.
        cuPointerGetAttribute: fn(*mut c_void, c_uint, CUdeviceptr);
        /// Attributes of the memory at an address: how many, which, where each goes. What it does not know
        /// is nothing of everything.
        cuPointerGetAttributes: fn(c_uint, *mut c_uint, *mut *mut c_void, CUdeviceptr);
        /// The allocation in which an address lies: its start, its length.
        cuMemGetAddressRange_v2: fn(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    }
    optional {
        /// Copies in one call: destinations, sources, lengths, their number, attributes, which
        /// copies have which, their number, the one that failed, stream. Since 12.8.
        cuMemcpyBatchAsync: fn(
            *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut CUmemcpyAttributes,
            *mut usize, usize, *mut usize, CUstream,
        );
        /// The same without the one that failed. Since 13.0.
        cuMemcpyBatchAsync_v2: fn(
            *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut CUmemcpyAttributes,
            *mut usize, usize, CUstream,
        );
        /// Makes a stream, with flags and a place in the order of streams.
        cuStreamCreateWithPriority: fn(*mut CUstream, c_uint, c_int);
        /// The last place in the order of streams, and the first.
        cuCtxGetStreamPriorityRange: fn(*mut c_int, *mut c_int);
        /// Sets an attribute of memory, by number.
        cuPointerSetAttribute: fn(*const c_void, c_uint, CUdeviceptr);
        /// What another process opens an allocation by.
        cuIpcGetMemHandle: fn(*mut CUipcMemHandle, CUdeviceptr);
        /// Opens another process's allocation, with flags.
        cuIpcOpenMemHandle_v2: fn(*mut CUdeviceptr, CUipcMemHandle, c_uint);
        /// Ends that.
        cuIpcCloseMemHandle: fn(CUdeviceptr);
        /// A descriptor for a range of addresses: its place, address, length, type, flags.
        cuMemGetHandleForAddressRange: fn(*mut c_void, CUdeviceptr, usize, c_uint, c_ulonglong);
        /// The unit of physical allocations: result, properties, which.
        cuMemGetAllocationGranularity: fn(*mut usize, *const CUmemAllocationProp, c_uint);
        /// Physical memory.
        cuMemCreate: fn(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
        /// Gives it back, when it is mapped nowhere.
        cuMemRelease: fn(CUmemGenericAllocationHandle);
        /// Addresses: result, length, alignment, wish, flags.
        cuMemAddressReserve: fn(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        /// Gives addresses back.
        cuMemAddressFree: fn(CUdeviceptr, usize);
        /// Maps memory at addresses: address, length, offset, memory, flags.
        cuMemMap: fn(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        /// Ends that.
        cuMemUnmap: fn(CUdeviceptr, usize);
        /// Who may use it: address, length, descriptions, their number.
        cuMemSetAccess: fn(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        /// A descriptor of physical memory: its place, memory, type, flags.
        cuMemExportToShareableHandle: fn(*mut c_void, CUmemGenericAllocationHandle, c_uint, c_ulonglong);
        /// Physical memory of a descriptor: result, descriptor, type.
        cuMemImportFromShareableHandle: fn(*mut CUmemGenericAllocationHandle, *mut c_void, c_uint);
    }
}

impl Library {
    /// The driver that the loader finds, started.
    pub(super) fn open() -> Result<Self, Unavailable> {
        Self::load().and_then(Self::start)
    }

    /// The driver of this file, started.
    pub(super) fn open_at(path: &Path) -> Result<Self, Unavailable> {
        Self::load_at(path).and_then(Self::start)
    }

    /// The driver that the loader finds, which is started if somebody else in this process has done so.
    pub(super) fn load() -> Result<Self, Unavailable> {
        let mut reason = None;
        for name in LIBRARY_NAMES {
            match Self::load_at(Path::new(name)) {
                Err(Unavailable::NoDriver { reason: first }) => {
                    reason.get_or_insert(first);
                }
                loaded => return loaded,
            }
        }
        let reason = reason.unwrap_or_default();
        Err(Unavailable::NoDriver { reason })
    }

    fn load_at(path: &Path) -> Result<Self, Unavailable> {
        // SAFETY: initialisers of drivers do nothing that this process forbids; it is forgotten
        // below, so its functions stay valid for the rest of the process.
        let library = unsafe { libloading::Library::new(path) };
        let library = library.map_err(|error| Unavailable::NoDriver {
            reason: error.to_string(),
        })?;
        let functions = Self::of(&library);
        std::mem::forget(library);
        functions
    }

    fn start(self) -> Result<Self, Unavailable> {
        // SAFETY: the driver takes no pointer here.
        let code = unsafe { (self.cuInit)(0) };
        match code {
            0 => Ok(self),
            NO_DEVICE => Err(Unavailable::NoDevice),
            code => Err(Unavailable::Driver { code }),
        }
    }

    /// Whether somebody in this process has started it.
    pub(super) fn is_started(&self) -> bool {
        let mut count = 0;
        // SAFETY: the count is ours to write.
        unsafe { (self.cuDeviceGetCount)(&raw mut count) == 0 }
    }

    /// The memory of a device in which an address of this process lies: the device's number, and the start and length
    /// of the allocation. `None` of all other memory, and as long as nobody has started the driver.
    ///
    /// Of addresses that a program has reserved, the range is all of these, the mapping what lies there; of small
    /// allocations the mapping has several. The allocation is what both have. (So an H200 answers, driver 580.)
    pub(super) fn place_of(&self, address: u64) -> Option<(usize, u64, u64)> {
        let mut asked = Asked::default();
        let place = if self.ask::<8>(&mut asked, address) {
            asked.mapping()
        } else {
            // Drivers from before mappings had attributes refuse the whole question.
            self.ask::<5>(&mut asked, address).then(|| asked.range())
        };
        let (start, end) = place?;
        let is_device = asked.kind == MEMORY_TYPE_DEVICE && asked.is_managed == 0;
        let device = usize::try_from(asked.ordinal).ok()?;
        (is_device && start <= address && address < end).then_some((device, start, end - start))
    }

    /// Asks for the first `N` of the attributes of an address, all at once. Whether the driver knows them all.
    fn ask<const N: usize>(&self, asked: &mut Asked, address: u64) -> bool {
        let mut which = [
            POINTER_MEMORY_TYPE,
            POINTER_IS_MANAGED,
            POINTER_DEVICE_ORDINAL,
            POINTER_RANGE_START,
            POINTER_RANGE_SIZE,
            POINTER_ACCESS_FLAGS,
            POINTER_MAPPING_SIZE,
            POINTER_MAPPING_START,
        ];
        let mut values: [*mut c_void; 8] = [
            (&raw mut asked.kind).cast(),
            (&raw mut asked.is_managed).cast(),
            (&raw mut asked.ordinal).cast(),
            (&raw mut asked.range_start).cast(),
            (&raw mut asked.range_len).cast(),
            (&raw mut asked.access).cast(),
            (&raw mut asked.mapping_len).cast(),
            (&raw mut asked.mapping_start).cast(),
        ];
        let count = c_uint::try_from(N.min(which.len())).expect("eight at most");
        // SAFETY: as many attributes as values at least, each of which is as wide as its attribute, or wider, and ours
        // to write; none is used after the call.
        let code = unsafe {
            (self.cuPointerGetAttributes)(count, which.as_mut_ptr(), values.as_mut_ptr(), address)
        };
        code == 0
    }
}

/// What a driver says of an address.
#[derive(Debug, Default)]
struct Asked {
    kind: c_uint,
    is_managed: c_uint,
    ordinal: c_int,
    range_start: CUdeviceptr,
    range_len: usize,
    access: c_uint,
    mapping_len: usize,
    mapping_start: CUdeviceptr,
}

impl Asked {
    /// First byte and end of the allocation.
    const fn range(&self) -> (u64, u64) {
        let end = self.range_start.saturating_add(self.range_len as u64);
        (self.range_start, end)
    }

    /// The part of it that is mapped, if anybody may use that.
    fn mapping(&self) -> Option<(u64, u64)> {
        let (start, end) = self.range();
        let mapping_end = self.mapping_start.saturating_add(self.mapping_len as u64);
        let place = (start.max(self.mapping_start), end.min(mapping_end));
        (self.access != 0).then_some(place)
    }
}

/// A function of the library, if it has it.
fn symbol<F: Copy>(library: &libloading::Library, name: &'static str) -> Option<F> {
    assert_eq!(
        size_of::<F>(),
        size_of::<*const c_void>(),
        "a function pointer"
    );
    // SAFETY: `F` is the type that the driver's header gives this name. The library is never
    // closed.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.ok().map(|found| *found)
}

/// What a code says.
pub(super) fn check(code: Code) -> Result<(), Fault> {
    match code {
        0 => Ok(()),
        code => Err(Fault::from_code(code)),
    }
}

/// A function that older drivers do not have.
pub(super) fn have<F: Copy>(function: Option<F>) -> Result<F, Fault> {
    function.ok_or(Fault::Unsupported(NOT_SUPPORTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_not_there_is_a_value() {
        let absent = Library::open_at(Path::new("liblunette-no-such.so.1")).unwrap_err();
        assert!(matches!(&absent, Unavailable::NoDriver { .. }), "{absent}");
        assert!(absent.to_string().contains("liblunette-no-such"));
    }

    #[test]
    fn another_library_is_no_driver_and_the_first_function_is_named() {
        let other = Library::open_at(Path::new("libc.so.6")).unwrap_err();
        assert_eq!(other, Unavailable::SymbolMissing { name: "cuInit" });
    }

    #[test]
    fn what_old_drivers_lack_is_not_supported() {
        assert_eq!(have::<u32>(None), Err(Fault::Unsupported(801)));
        assert_eq!(check(0), Ok(()));
        assert_eq!(check(700), Err(Fault::Poisoned(700)));
    }
}
