//! Memory of devices that threads lend to a core: what stands for it there.
//!
//! A core opens a device when memory of it is first lent, on the control thread as far as that takes time, and keeps it
//! open. Memory is imported for each use, and held until the device has let go of it.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lunette_gpu::{
    CopyError, Device, DeviceRegion, Driver, EngineStream, ImportError, OpenError, SetupError,
    Stream, StreamOptions,
};
use lunette_runtime::{control, time};
use thiserror::Error;

use super::DeviceSegment;

/// Most allocations side by side of which one lent range has something: engines' allocators make long ranges of many.
pub const ALLOCATIONS_MAX: usize = 4096;
/// Pause before a stream is asked again that has no place.
const FULL_PAUSE: Duration = Duration::from_micros(100);

/// Memory of a device, lent by a thread. It is of a program's, which vouches that it stays until `keeper` is dropped: on a
/// core, when whoever it is lent to and the device have let go of it.
#[derive(Clone)]
pub struct DeviceLent {
    /// The driver of the device.
    pub driver: Driver,
    /// The device's number.
    pub device: usize,
    /// First byte, as the driver names it.
    pub address: u64,
    /// Length in bytes.
    pub len_bytes: usize,
    /// Streams of the program, of the same device: copies are made after what has been queued there when the memory is
    /// taken.
    pub after: Arc<[EngineStream]>,
    /// Whatever keeps the memory.
    pub keeper: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for DeviceLent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceLent")
            .field("device", &self.device)
            .field("address", &self.address)
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

/// Why memory of a device was not taken. Nothing was done with it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DeviceLendError {
    /// Some of the range is none of the device's, or it has more than [`ALLOCATIONS_MAX`] allocations.
    #[error("not all of the range is memory of the device")]
    NotOfDevice,
    /// It is of several allocations, where one is wanted: lend that of each by itself.
    #[error("the range is of several allocations of the device")]
    SeveralAllocations,
    /// The device was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It has no stream.
    #[error("no stream of the device: {0}")]
    Stream(SetupError),
    /// The driver knows the memory otherwise.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// What is to come before was not waited for.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceWay {
    /// From the device: what is queued by a program may still write them.
    From,
    /// To it, or within it: what is queued by a program may still read or write what is there.
    To,
}

/// What a core has opened for threads. Each device has a stream for each way, so that neither waits for the other.
#[derive(Debug, Default)]
pub struct LentDevices(RefCell<Vec<Rc<Opened>>>);

#[derive(Debug)]
struct Opened {
    driver: Driver,
    index: usize,
    device: Device,
    from: Stream,
    to: Stream,
}

impl LentDevices {
    /// The memory of each allocation in which the range has something, in their order.
    ///
    /// # Errors
    /// [`DeviceLendError`].
    pub async fn import(&self, lent: &DeviceLent) -> Result<Vec<DeviceSegment>, DeviceLendError> {
        let opened = self.opened(lent).await?;
        let mut segments = Vec::new();
        let (mut address, mut left) = (lent.address, lent.len_bytes as u64);
        while left > 0 {
            let found = lent.driver.locate(address);
            let found = found.filter(|_| segments.len() < ALLOCATIONS_MAX);
            let found = found.ok_or(DeviceLendError::NotOfDevice)?;
            let here = left.min(found.base + found.len_bytes - address);
            let keeper = Arc::clone(&lent.keeper);
            let region = DeviceRegion::import(&opened.device, address, here, keeper)?;
            let (from, to) = (opened.from.clone(), opened.to.clone());
            segments.push(DeviceSegment::with_streams(region, from, to));
            address += here;
            left -= here;
        }
        Ok(segments)
    }

    /// As [`import`](Self::import), of memory that is of one allocation; copies either way come after what the streams that
    /// are lent with it have to do now.
    ///
    /// # Errors
    /// [`DeviceLendError`].
    pub async fn import_one(&self, lent: &DeviceLent) -> Result<DeviceSegment, DeviceLendError> {
        let mut segments = self.import(lent).await?;
        let segment = match (segments.pop(), segments.is_empty()) {
            (Some(segment), true) => segment,
            (None, _) => return Err(DeviceLendError::NotOfDevice),
            (Some(_), false) => return Err(DeviceLendError::SeveralAllocations),
        };
        for engine in lent.after.iter().copied() {
            for way in [DeviceWay::From, DeviceWay::To] {
                self.after(lent, way, engine).await?;
            }
        }
        Ok(segment)
    }

    /// Lets copies of that way, which begin later, wait for what a stream of the program has to do now. They do so on the
    /// device: what is queued may go on by itself.
    ///
    /// # Errors
    /// [`DeviceLendError`]; a stream of another device is refused.
    pub async fn after(
        &self,
        lent: &DeviceLent,
        way: DeviceWay,
        engine: EngineStream,
    ) -> Result<(), DeviceLendError> {
        let opened = self.opened(lent).await?;
        let stream = match way {
            DeviceWay::From => &opened.from,
            DeviceWay::To => &opened.to,
        };
        loop {
            let waits = stream.after_stream(engine);
            if !waits.is_over() {
                return Ok(());
            }
            match waits.await.0 {
                Ok(()) => return Ok(()),
                Err(CopyError::Full) => time::sleep(FULL_PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn known(&self, lent: &DeviceLent) -> Option<Rc<Opened>> {
        let opened = self.0.borrow();
        let is_it = |it: &&Rc<Opened>| it.index == lent.device && it.driver == lent.driver;
        opened.iter().find(is_it).map(Rc::clone)
    }

    /// The device, opened if it is not.
    async fn opened(&self, lent: &DeviceLent) -> Result<Rc<Opened>, DeviceLendError> {
        if let Some(opened) = self.known(lent) {
            return Ok(opened);
        }
        let (driver, index) = (lent.driver, lent.device);
        // Where there is no control thread, this one does it.
        if let Ok(prepared) = control(move || driver.prepare(index)).await {
            prepared?;
        }
        // Others may have been faster.
        if let Some(opened) = self.known(lent) {
            return Ok(opened);
        }
        let device = Device::open_with(driver, index)?;
        // Somebody waits for what threads ask.
        let options = StreamOptions {
            is_urgent: true,
            ..StreamOptions::default()
        };
        let stream = || Stream::new(&device, options);
        let from = stream().map_err(DeviceLendError::Stream)?;
        let to = stream().map_err(DeviceLendError::Stream)?;
        let opened = Rc::new(Opened {
            driver,
            index,
            device,
            from,
            to,
        });
        self.0.borrow_mut().push(Rc::clone(&opened));
        Ok(opened)
    }
}

impl DeviceLendError {
    /// Whether waiting, or freeing something, can help.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        match self {
            Self::Open(OpenError::TooManySources) => true,
            Self::Stream(error) => error.is_backpressure(),
            Self::Copy(error) => error.is_backpressure(),
            _ => false,
        }
    }
}
