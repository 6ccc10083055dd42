//! Streams in which producers of this process put what is to come before a copy.
//!
//! A producer of a tensor is told a stream, and lets it wait for what it has still to do with the memory (DLPack's
//! `__dlpack__(stream=...)`, the specification for Python). In the default stream that would be everything that a model has
//! queued there, so there are streams for nothing else.

use std::sync::{Mutex, PoisonError};
use std::thread;

use super::{Context, Driver, is_in_use};
use crate::engine::EngineStream;

/// How many there are of each device, used in turn: whoever is given the same one waits for the other, too.
pub const MEETINGS: usize = 16;

/// Those of a device.
#[derive(Debug)]
struct Meetings {
    device: usize,
    handles: Vec<usize>,
    next: usize,
}

static MADE: Mutex<Vec<Meetings>> = Mutex::new(Vec::new());

/// A stream for what is to come before a copy, of a device of the driver that this process uses: one of [`MEETINGS`], in
/// turn. It lives as long as the process. Where there is no such device, and where none can be made, it is the default one.
///
/// The first call for a device makes them, which takes some milliseconds. The calling thread's current context stays what it
/// is.
#[must_use]
pub fn meeting_stream(device: usize) -> EngineStream {
    if !is_in_use() {
        return EngineStream::DEFAULT;
    }
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = made.iter_mut().find(|known| known.device == device);
    let meetings = match known {
        Some(meetings) => meetings,
        None => {
            let handles = thread::spawn(move || streams(device));
            let handles = handles.join().unwrap_or_default();
            made.push(Meetings {
                device,
                handles,
                next: 0,
            });
            made.last_mut().expect("just pushed")
        }
    };
    meetings.next += 1;
    let count = meetings.handles.len().max(1);
    let handle = meetings.handles.get(meetings.next % count);
    handle.map_or(EngineStream::DEFAULT, |handle| {
        // SAFETY: it is a stream of that device, and never ended.
        unsafe { EngineStream::from_raw(*handle) }
    })
}

/// Streams that live as long as the process, as the context does then; none where they cannot be made.
fn streams(device: usize) -> Vec<usize> {
    let Ok(driver) = Driver::probe() else {
        return Vec::new();
    };
    let Ok(context) = Context::open(driver, device) else {
        return Vec::new();
    };
    let made: Result<Vec<_>, _> = (0..MEETINGS).map(|_| context.stream(false)).collect();
    let streams = made.unwrap_or_default();
    std::mem::forget(context);
    streams.into_iter().map(super::Stream::keep).collect()
}
