//! The driver without us: what a plain program gets.
//!
//! It calls `cudarc`'s functions, which may only be done where the driver has been probed.

use std::ffi::c_void;
use std::ptr;
use std::time::Instant;

use cudarc::driver::sys::{
    CUdeviceptr, CUresult, CUstream, cuMemAlloc_v2, cuMemFree_v2, cuMemFreeHost, cuMemHostAlloc,
    cuMemcpyAsync, cuStreamCreate, cuStreamDestroy_v2, cuStreamSynchronize,
};

/// Bytes of host and device memory.
const BYTES: usize = 1 << 30;

/// A stream, pinned memory of the host, memory of the device. The device that we opened is current on
/// this thread.
#[derive(Debug)]
pub(crate) struct Plain {
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

fn is_ok(result: CUresult) -> bool {
    result == CUresult::CUDA_SUCCESS
}

impl Plain {
    pub(crate) fn new() -> Option<Self> {
        let mut plain = Self {
            stream: ptr::null_mut(),
            host: ptr::null_mut(),
            device: 0,
            other: 0,
        };
        // SAFETY: the results are ours to write; a context is current.
        let has_stream = is_ok(unsafe { cuStreamCreate(&raw mut plain.stream, 1) });
        // SAFETY: as above.
        let has_host = is_ok(unsafe { cuMemHostAlloc(&raw mut plain.host, BYTES, 1) });
        // SAFETY: as above.
        let has_device = is_ok(unsafe { cuMemAlloc_v2(&raw mut plain.device, BYTES) });
        // SAFETY: as above.
        let has_other = is_ok(unsafe { cuMemAlloc_v2(&raw mut plain.other, BYTES) });
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
            if !is_ok(unsafe { cuMemcpyAsync(to, from, len, self.stream) }) {
                return None;
            }
        }
        // SAFETY: the stream is live.
        let done = is_ok(unsafe { cuStreamSynchronize(self.stream) });
        done.then(|| began.elapsed().as_secs_f64())
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: made once and ended once; nothing is in flight.
        let _ended = unsafe { cuStreamDestroy_v2(self.stream) };
        // SAFETY: as above.
        let _freed = unsafe { cuMemFreeHost(self.host) };
        // SAFETY: as above.
        let _freed = unsafe { cuMemFree_v2(self.device) };
        // SAFETY: as above.
        let _freed = unsafe { cuMemFree_v2(self.other) };
    }
}
