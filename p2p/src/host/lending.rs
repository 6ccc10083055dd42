//! Memory of threads: of the host, or of devices, and what stands for it on the core.

use std::sync::Arc;

use lunette_runtime::arena::SharedMemory;
use lunette_transfer::engine::DeviceSegment;
use lunette_transfer::engine::{DeviceLent, LentDevices};

use super::handle::HandleError;
use crate::buffers::Buffers;

/// Buffers that a thread lends for an object or an update: all of the host's, or all of devices'.
#[derive(Debug)]
pub enum LentBuffers {
    /// Memory of the host.
    Host(Vec<SharedMemory>),
    /// Memory of devices, each of one allocation; `None` is a buffer without a byte. Copies come after what the streams that
    /// are lent with it have to do when the core takes it.
    Devices(Vec<Option<DeviceLent>>),
}

impl From<Vec<SharedMemory>> for LentBuffers {
    fn from(buffers: Vec<SharedMemory>) -> Self {
        Self::Host(buffers)
    }
}

impl LentBuffers {
    /// The same, for this core.
    ///
    /// # Errors
    /// [`HandleError::Device`]: a device does not take what is its.
    pub(super) async fn here(self, devices: &LentDevices) -> Result<Buffers, HandleError> {
        match self {
            Self::Host(buffers) => {
                let keeps = Arc::new(());
                let here = |buffer: &SharedMemory| buffer.here(Arc::clone(&keeps) as _);
                Ok(Buffers::Host(buffers.iter().map(here).collect()))
            }
            Self::Devices(lent) => taken(&lent, devices).await,
        }
    }
}

async fn taken(lent: &[Option<DeviceLent>], devices: &LentDevices) -> Result<Buffers, HandleError> {
    let mut taken: Vec<Option<DeviceSegment>> = Vec::with_capacity(lent.len());
    for lent in lent {
        taken.push(match lent {
            Some(lent) => Some(devices.import_one(lent).await?),
            None => None,
        });
    }
    // What has no byte is anywhere.
    let nothing = taken.iter().flatten().next();
    let Some(nothing) = nothing.map(|segment| segment.slice(0..0)) else {
        let nowhere = lent.iter().map(|_| SharedMemory::owned(Vec::new()));
        let here = nowhere.map(|memory| memory.here(Arc::new(())));
        return Ok(Buffers::Host(here.collect()));
    };
    let segments = taken.into_iter();
    let segments = segments.map(|segment| segment.unwrap_or_else(|| nothing.clone()));
    Ok(Buffers::Devices(segments.collect()))
}
