//! Order with the streams of a serving engine, without a wait on the host.
//!
//! Pages may be read when the engine's kernels have written them, and used by its kernels when they
//! have arrived. Both are told to the device: the host only queues an event and a wait.

use std::ffi::c_void;

use lunette_gpu_proto::fault::Fault;

use crate::error::CopyError;
use crate::lease::Holds;
use crate::operation::Operation;
use crate::provider::{Queued, RawEvent, RawStream};
use crate::stream::Stream;

/// `CU_STREAM_LEGACY`.
const DEFAULT_STREAM: usize = 1;

/// A stream of an engine, as threads name it to cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineStream(usize);

impl EngineStream {
    /// The default stream of whichever device is asked: it waits for all streams of the device that were not made to be
    /// beside it.
    pub const DEFAULT: Self = Self(DEFAULT_STREAM);

    /// A stream by its handle, a `CUstream`, as torch's `stream.cuda_stream` has it.
    ///
    /// # Safety
    /// The stream lives until what is to wait for it has ended. Of another device than the one that waits it is
    /// refused.
    #[must_use]
    pub const unsafe fn from_raw(handle: usize) -> Self {
        // What is none is the default one.
        Self(if handle == 0 { DEFAULT_STREAM } else { handle })
    }

    /// Its handle.
    #[must_use]
    pub const fn handle(self) -> usize {
        self.0
    }
}

impl Stream {
    /// As [`Stream::after_engine`].
    ///
    /// # Errors
    /// As there.
    pub fn after_stream(&self, engine: EngineStream) -> Operation<()> {
        // SAFETY: the default stream lives as long as the context; others as was promised when they were named.
        unsafe { self.after_engine(std::ptr::with_exposed_provenance_mut(engine.0)) }
    }

    /// Lets everything that is queued here later wait for everything that is queued in the engine's
    /// stream now. Ready when that has come to pass.
    ///
    /// # Errors
    /// Through the future: [`CopyError`]; `Unsupported` on a fake device, which has no engine.
    ///
    /// # Safety
    /// `engine` is a live `CUstream` of this device, as torch's `stream.cuda_stream` has it.
    pub unsafe fn after_engine(&self, engine: *mut c_void) -> Operation<()> {
        let recorded = self.inner().context().event().and_then(|event| {
            // SAFETY: passed on from the caller.
            unsafe { event.record_in_engine(engine) }.map(|()| event)
        });
        self.wait_for(recorded)
    }

    /// Lets everything that is queued in the engine's stream later wait for everything that is queued
    /// here now. Ready when what is queued here now is done; the engine's kernels may be launched at
    /// once.
    ///
    /// # Errors
    /// As [`Stream::after_engine`].
    ///
    /// # Safety
    /// As [`Stream::after_engine`].
    pub unsafe fn before_engine(&self, engine: *mut c_void) -> Operation<()> {
        let enqueue = |raw: &RawStream| {
            let event = self.inner().context().event();
            let told = event.and_then(|event| {
                raw.record(&event)?;
                // The driver keeps what a stream waits for when the event is ended.
                // SAFETY: passed on from the caller.
                unsafe { event.hold_engine(engine) }
            });
            told.map_or_else(Queued::none, |()| Queued::all(1))
        };
        self.submit((), Holds::default(), enqueue)
    }

    /// Waits for an event of another stream, which is kept until that is over.
    pub(crate) fn wait_for(&self, recorded: Result<RawEvent, Fault>) -> Operation<()> {
        let event = match recorded {
            Ok(event) => event,
            Err(fault) => return Self::refuse((), CopyError::of(fault)),
        };
        let enqueue = |raw: &RawStream| {
            let waits = raw.wait(&event);
            waits.map_or_else(Queued::none, |()| Queued::all(1))
        };
        let operation = self.submit((), Holds::default(), enqueue);
        if !operation.is_over() {
            self.keep_with_last(event);
        }
        operation
    }
}
