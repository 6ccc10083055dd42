//! Streams and events.

use std::ffi::c_void;
use std::ptr;
use std::rc::Rc;

use cudarc::driver::sys::{
    CUdeviceptr, CUevent, CUfunction, CUmemLocation, CUmemLocationType, CUmemcpyAttributes,
    CUmemcpySrcAccessOrder, CUstream,
};
use lunette_gpu_proto::fault::Fault;
use lunette_gpu_proto::kernel::{BLOCK_THREADS, Job};
use lunette_gpu_proto::sums::SumJob;
use lunette_runtime::CoreWaker;

use super::context::{Inner, Program};
use super::library::{check, have};
use crate::provider::{Queued, RawCopy};

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: u32 = 600;

/// A stream of its own, which no other one waits for.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Rc<Inner>,
    stream: CUstream,
}

/// An event without a time.
#[derive(Debug)]
pub(crate) struct Event {
    context: Rc<Inner>,
    event: CUevent,
}

impl Stream {
    pub(super) fn of(context: &Rc<Inner>, stream: CUstream) -> Self {
        Self {
            context: Rc::clone(context),
            stream,
        }
    }

    /// # Safety
    /// As [`RawStream::copy`](crate::provider::RawStream::copy).
    pub(crate) unsafe fn copy(&self, copies: &[RawCopy], is_batch: bool) -> Queued {
        let library = match self.context.enter() {
            Ok(library) => library,
            Err(fault) => return Queued::none(fault),
        };
        if is_batch {
            // SAFETY: passed on from the caller.
            return unsafe { self.copy_batch(copies) };
        }
        for (index, copy) in copies.iter().enumerate() {
            let (to, from) = (copy.to.bits(), copy.from.bits());
            // SAFETY: the caller keeps both ranges until the stream has come past this.
            let code = unsafe { (library.cuMemcpyAsync)(to, from, copy.len, self.stream) };
            if let Err(fault) = check(code) {
                return Queued {
                    count: index,
                    result: Err(fault),
                };
            }
        }
        Queued::all(copies.len())
    }

    /// # Safety
    /// As above.
    unsafe fn copy_batch(&self, copies: &[RawCopy]) -> Queued {
        let library = self.context.library();
        let mut to: Vec<CUdeviceptr> = copies.iter().map(|copy| copy.to.bits()).collect();
        let mut from: Vec<CUdeviceptr> = copies.iter().map(|copy| copy.from.bits()).collect();
        let mut lens: Vec<usize> = copies.iter().map(|copy| copy.len).collect();
        let nowhere = CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID,
            id: 0,
        };
        let mut attributes = CUmemcpyAttributes {
            srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: 0,
        };
        let (mut first, mut failed) = (0, usize::MAX);
        let (to, from, lens) = (to.as_mut_ptr(), from.as_mut_ptr(), lens.as_mut_ptr());
        let (count, attributes) = (copies.len(), &raw mut attributes);
        let first = &raw mut first;
        let code = if let Some(batch) = library.cuMemcpyBatchAsync_v2 {
            // SAFETY: the lists have `count` entries and live through the call; the caller keeps
            // what they name.
            unsafe { batch(to, from, lens, count, attributes, first, 1, self.stream) }
        } else {
            let batch = match have(library.cuMemcpyBatchAsync) {
                Ok(batch) => batch,
                Err(fault) => return Queued::none(fault),
            };
            let failed = &raw mut failed;
            // SAFETY: as above.
            unsafe {
                batch(
                    to,
                    from,
                    lens,
                    count,
                    attributes,
                    first,
                    1,
                    failed,
                    self.stream,
                )
            }
        };
        match check(code) {
            Ok(()) => Queued::all(count),
            Err(fault @ Fault::Unsupported(_)) => Queued::none(fault),
            // Which of them are under way is not known, so one is taken to be.
            Err(fault) => Queued {
                count: 1,
                result: Err(fault),
            },
        }
    }

    /// # Safety
    /// As [`RawStream::launch`](crate::provider::RawStream::launch).
    pub(crate) unsafe fn launch(&self, job: &Job, blocks: u32) -> Result<(), Fault> {
        let function = self.context.kernel(Program::Pages(job.width()))?;
        // SAFETY: the parameter is that kernel's; the rest is passed on from the caller.
        unsafe { self.start(function, blocks, &mut job.to_bytes()) }
    }

    /// # Safety
    /// As [`RawStream::launch_sums`](crate::provider::RawStream::launch_sums).
    pub(crate) unsafe fn launch_sums(&self, job: &SumJob, blocks: u32) -> Result<(), Fault> {
        let function = self.context.kernel(Program::Sums)?;
        // SAFETY: as above.
        unsafe { self.start(function, blocks, &mut job.to_bytes()) }
    }

    /// # Safety
    /// The kernel has one parameter, of as many bytes, and the caller keeps what that names until an event that is
    /// recorded behind it has come.
    unsafe fn start(
        &self,
        function: CUfunction,
        blocks: u32,
        parameter: &mut [u8],
    ) -> Result<(), Fault> {
        let library = self.context.enter()?;
        let mut parameters = [parameter.as_mut_ptr().cast::<c_void>()];
        let (list, extra) = (parameters.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the driver copies the parameter during the call; the rest is the caller's.
        let code = unsafe {
            (library.cuLaunchKernel)(
                function,
                blocks,
                1,
                1,
                BLOCK_THREADS,
                1,
                1,
                0,
                self.stream,
                list,
                extra,
            )
        };
        check(code)
    }

    pub(crate) fn record(&self, event: &Event) -> Result<(), Fault> {
        let library = self.context.enter()?;
        // SAFETY: both are live, and of one context.
        check(unsafe { (library.cuEventRecord)(event.event, self.stream) })
    }

    pub(crate) fn wait(&self, event: &Event) -> Result<(), Fault> {
        let library = self.context.enter()?;
        // SAFETY: both are live, and of one context.
        check(unsafe { (library.cuStreamWaitEvent)(self.stream, event.event, 0) })
    }

    pub(crate) fn notify(&self, waker: CoreWaker) -> Result<(), Fault> {
        let library = self.context.enter()?;
        let waker = Box::into_raw(Box::new(waker));
        // SAFETY: the function takes the box, once. After an error of the context the driver does
        // not call it, and the box is lost with the context.
        let code = unsafe { (library.cuLaunchHostFunc)(self.stream, wake, waker.cast()) };
        check(code).inspect_err(|_| {
            // SAFETY: the driver has refused it, so it is still ours.
            drop(unsafe { Box::from_raw(waker) });
        })
    }

    /// Its handle. It is never ended then.
    pub(super) fn keep(self) -> usize {
        let handle = self.stream.expose_provenance();
        std::mem::forget(self);
        handle
    }

    pub(crate) fn synchronize(&self) -> Result<(), Fault> {
        let library = self.context.enter()?;
        // SAFETY: the stream is live.
        check(unsafe { (library.cuStreamSynchronize)(self.stream) })
    }
}

/// Wakes the core of a boxed waker, on a thread of the driver. It makes no call to the driver, which
/// is forbidden here.
unsafe extern "C" fn wake(waker: *mut c_void) {
    // SAFETY: made of a box by `notify`, and called once.
    let waker = unsafe { Box::from_raw(waker.cast::<CoreWaker>()) };
    waker.wake();
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(library) = self.context.enter() else {
            return;
        };
        // SAFETY: made once and ended once.
        let _ended = unsafe { (library.cuStreamDestroy_v2)(self.stream) };
    }
}

impl Event {
    pub(super) fn of(context: &Rc<Inner>, event: CUevent) -> Self {
        Self {
            context: Rc::clone(context),
            event,
        }
    }

    /// # Safety
    /// `stream` is a live stream of this device.
    pub(crate) unsafe fn record_in(&self, stream: *mut c_void) -> Result<(), Fault> {
        let library = self.context.enter()?;
        // SAFETY: both are live.
        check(unsafe { (library.cuEventRecord)(self.event, stream.cast()) })
    }

    /// # Safety
    /// `stream` is a live stream of this device.
    pub(crate) unsafe fn hold(&self, stream: *mut c_void) -> Result<(), Fault> {
        let library = self.context.enter()?;
        // SAFETY: both are live.
        check(unsafe { (library.cuStreamWaitEvent)(stream.cast(), self.event, 0) })
    }

    pub(crate) fn has_come(&self) -> Result<bool, Fault> {
        let library = self.context.enter()?;
        // SAFETY: the event is live.
        let code = unsafe { (library.cuEventQuery)(self.event) };
        match code {
            NOT_READY => Ok(false),
            code => check(code).map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(library) = self.context.enter() else {
            return;
        };
        // SAFETY: made once and ended once; nothing waits for it any more.
        let _ended = unsafe { (library.cuEventDestroy_v2)(self.event) };
    }
}
