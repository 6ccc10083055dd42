//! The driver without us: what a plain program gets.

use std::ffi::c_void;
use std::ptr;
use std::time::Instant;

use cudarc::driver::sys::{CUdeviceptr, CUstream};

/// Bytes of host and device memory.
const BYTES: usize = 1 << 30;
/// As our own driver is found, so that it is the same one.
const LIBRARY: &str = "libcuda.so.1";

type Code = u32;

/// The functions that a plain program needs.
#[derive(Debug)]
struct Functions {
    stream: unsafe extern "C" fn(*mut CUstream, u32) -> Code,
    end_stream: unsafe extern "C" fn(CUstream) -> Code,
    synchronize: unsafe extern "C" fn(CUstream) -> Code,
    host_alloc: unsafe extern "C" fn(*mut *mut c_void, usize, u32) -> Code,
    host_free: unsafe extern "C" fn(*mut c_void) -> Code,
    alloc: unsafe extern "C" fn(*mut CUdeviceptr, usize) -> Code,
    free: unsafe extern "C" fn(CUdeviceptr) -> Code,
    copy: unsafe extern "C" fn(CUdeviceptr, CUdeviceptr, usize, CUstream) -> Code,
}

impl Functions {
    fn load() -> Option<Self> {
        // SAFETY: the driver is loaded already; it is never closed, for it is forgotten below.
        let library = unsafe { libloading::Library::new(LIBRARY) }.ok()?;
        let functions = Self {
            stream: symbol(&library, b"cuStreamCreate")?,
            end_stream: symbol(&library, b"cuStreamDestroy_v2")?,
            synchronize: symbol(&library, b"cuStreamSynchronize")?,
            host_alloc: symbol(&library, b"cuMemHostAlloc")?,
            host_free: symbol(&library, b"cuMemFreeHost")?,
            alloc: symbol(&library, b"cuMemAlloc_v2")?,
            free: symbol(&library, b"cuMemFree_v2")?,
            copy: symbol(&library, b"cuMemcpyAsync")?,
        };
        std::mem::forget(library);
        Some(functions)
    }
}

fn symbol<F: Copy>(library: &libloading::Library, name: &[u8]) -> Option<F> {
    // SAFETY: the fields above have the types of the driver's header.
    unsafe { library.get::<F>(name) }.ok().map(|found| *found)
}

/// A stream, pinned memory of the host, memory of the device. The device that we opened is current on
/// this thread.
#[derive(Debug)]
pub(crate) struct Plain {
    functions: Functions,
    stream: CUstream,
    host: *mut c_void,
    device: CUdeviceptr,
    other: CUdeviceptr,
}

/// From where to where.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

impl Plain {
    pub(crate) fn new() -> Option<Self> {
        let mut plain = Self {
            functions: Functions::load()?,
            stream: ptr::null_mut(),
            host: ptr::null_mut(),
            device: 0,
            other: 0,
        };
        let Functions {
            stream,
            host_alloc,
            alloc,
            ..
        } = plain.functions;
        // SAFETY: the results are ours to write; a context is current.
        let has_stream = unsafe { stream(&raw mut plain.stream, 1) } == 0;
        // SAFETY: as above.
        let has_host = unsafe { host_alloc(&raw mut plain.host, BYTES, 1) } == 0;
        // SAFETY: as above.
        let has_device = unsafe { alloc(&raw mut plain.device, BYTES) } == 0;
        // SAFETY: as above.
        let has_other = unsafe { alloc(&raw mut plain.other, BYTES) } == 0;
        (has_stream && has_host && has_device && has_other).then_some(plain)
    }

    /// Seconds for `count` copies of `len` bytes, one behind the other, `gap` bytes apart.
    pub(crate) fn seconds(&self, way: Way, count: usize, len: usize, gap: usize) -> Option<f64> {
        let began = Instant::now();
        for index in 0..count {
            let at = (index * (len + gap)) % (BYTES - len + 1);
            let (host, device) = (self.host.addr() as u64 + at as u64, self.device + at as u64);
            let (to, from) = match way {
                Way::HostToDevice => (device, host),
                Way::DeviceToHost => (host, device),
                Way::DeviceToDevice => (self.other + at as u64, device),
            };
            // SAFETY: both ranges lie inside memory of BYTES bytes, kept until the stream has been
            // synchronised below.
            if unsafe { (self.functions.copy)(to, from, len, self.stream) } != 0 {
                return None;
            }
        }
        // SAFETY: the stream is live.
        let done = unsafe { (self.functions.synchronize)(self.stream) } == 0;
        done.then(|| began.elapsed().as_secs_f64())
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let Functions {
            end_stream,
            host_free,
            free,
            ..
        } = self.functions;
        // SAFETY: made once and ended once; nothing is in flight. What was never made is refused.
        let _ended = unsafe { end_stream(self.stream) };
        // SAFETY: as above.
        let _freed = unsafe { host_free(self.host) };
        // SAFETY: as above.
        let _freed = unsafe { free(self.device) };
        // SAFETY: as above.
        let _freed = unsafe { free(self.other) };
    }
}
