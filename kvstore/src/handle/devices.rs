//! Memory of devices, lent by threads: what is asked of the store with it.

use std::cell::OnceCell;
use std::sync::Arc;

use futures_util::future::join;
use lunette_gpu::EngineStream;
use lunette_kvstore_proto::range::ByteRange;
use lunette_runtime::Pending;
use lunette_runtime::arena::Borrowed;
use lunette_transfer::Staged;
use lunette_transfer::engine::DeviceFault;
use lunette_transfer::engine::{DeviceLendError, DeviceLent, DeviceWay, LentDevices};

use super::cores::Cores;
use super::hosted::Hosted;
use super::lent::{Lent, Place};
use super::objects::Got;
use crate::cluster_client::{
    Among, DeviceClient, DeviceObject, DevicePiece, Landed, Lending, PutOptions, Stored,
};
use crate::error::{StoreError, StoreErrorKind};
use crate::value::Value;

/// Bytes of a core's arena that are on their way between devices and the store for threads, unless one object, or a
/// part of one, alone is longer.
pub const DEVICE_STAGING_BYTES_MAX: usize = 64 << 20;

/// What a core has opened for threads.
#[derive(Default)]
pub(super) struct Devices {
    open: LentDevices,
    client: OnceCell<DeviceClient>,
    /// Copies of what lies in devices' memory, which threads read.
    lending: Lending,
}

/// Bytes of a device's memory, copied to where this thread reads them.
pub(super) struct Copied {
    /// Until this is dropped.
    bytes: Option<Borrowed>,
    cores: Arc<Cores>,
    core: usize,
}

impl Copied {
    pub(super) fn bytes(&self) -> &[u8] {
        let bytes = self.bytes.as_ref().expect("it is not dropped");
        bytes.as_slice()
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        drop(self.bytes.take());
        // Else it is looked at when more is copied.
        let _is_told = self
            .cores
            .tell(self.core, |hosted| hosted.devices.lending.take_back());
    }
}

impl Cores {
    /// Has a core copy what lies in memory of one device to where threads read it. What is not of one device alone is
    /// refused.
    pub(super) fn copy_of_device(
        self: &Arc<Self>,
        core: usize,
        from: Vec<Lent>,
    ) -> Pending<Result<Copied, StoreError>> {
        let cores = Arc::clone(self);
        let refused = |kind| Err(StoreError::local(kind));
        self.ask(core, refused, move |hosted| async move {
            let pieces = hosted.taking(DeviceWay::From).pieces(&from).await?;
            let lending = &hosted.devices.lending;
            let lent = hosted.device_client().lend(lending, &pieces).await?;
            let of_several = StoreError::local(StoreErrorKind::NotOfDevice);
            let bytes = Some(lent.ok_or(of_several)?);
            Ok(Copied { bytes, cores, core })
        })
    }
}

/// Memory as it is used on a core, and the streams that have been waited for already.
struct Taking<'a> {
    hosted: &'a Hosted,
    way: DeviceWay,
    waited: Vec<(usize, EngineStream)>,
}

/// Whether any of it is a device's.
pub(super) fn are_of_device(pieces: &[Lent]) -> bool {
    pieces.iter().any(Lent::is_of_device)
}

/// Items some of which are of devices, and are answered by themselves.
pub(super) struct Apart<I> {
    are_of_device: Vec<bool>,
    of_host: Vec<I>,
    of_devices: Vec<I>,
}

impl<I> Apart<I> {
    pub(super) fn new(items: Vec<I>, is_of_device: impl Fn(&I) -> bool) -> Self {
        let are_of_device: Vec<bool> = items.iter().map(is_of_device).collect();
        let mut of_devices = Vec::new();
        let mut of_host = items;
        if are_of_device.contains(&true) {
            let items = std::mem::take(&mut of_host).into_iter();
            for (item, is_of_device) in items.zip(&are_of_device) {
                let part = if *is_of_device {
                    &mut of_devices
                } else {
                    &mut of_host
                };
                part.push(item);
            }
        }
        Self {
            are_of_device,
            of_host,
            of_devices,
        }
    }

    /// The answers to all, in their order: both parts are asked for at the same time.
    pub(super) async fn answered<T>(
        self,
        of_host: impl AsyncFnOnce(Vec<I>) -> Vec<T>,
        of_devices: impl AsyncFnOnce(Vec<I>) -> Vec<T>,
    ) -> Vec<T> {
        if self.of_devices.is_empty() {
            return of_host(self.of_host).await;
        }
        let both = join(of_host(self.of_host), of_devices(self.of_devices));
        let (host, devices) = Box::pin(both).await;
        let (mut host, mut devices) = (host.into_iter(), devices.into_iter());
        let answers = self.are_of_device.into_iter().map(|is_of_device| {
            let answer = if is_of_device {
                devices.next()
            } else {
                host.next()
            };
            answer.expect("one for each that was asked")
        });
        answers.collect()
    }
}

impl Taking<'_> {
    async fn pieces(&mut self, lent: &[Lent]) -> Result<Vec<DevicePiece>, StoreError> {
        let mut pieces = Vec::with_capacity(lent.len());
        for lent in lent {
            match lent.place() {
                Place::Host { .. } => pieces.push(DevicePiece::Host(self.hosted.exposed(lent))),
                Place::Device(lent) => self.import(lent, &mut pieces).await?,
            }
        }
        Ok(pieces)
    }

    /// The memory of each allocation in which the range has something, to be copied after what the program has queued.
    async fn import(
        &mut self,
        lent: &DeviceLent,
        pieces: &mut Vec<DevicePiece>,
    ) -> Result<(), StoreError> {
        let open = &self.hosted.devices.open;
        let segments = open.import(lent).await.map_err(of_lent)?;
        for engine in lent.after.iter().copied() {
            if !self.waited.contains(&(lent.device, engine)) {
                self.waited.push((lent.device, engine));
                let waits = open.after(lent, self.way, engine);
                waits.await.map_err(of_lent)?;
            }
        }
        pieces.extend(segments.into_iter().map(DevicePiece::Device));
        Ok(())
    }
}

impl Hosted {
    fn device_client(&self) -> &DeviceClient {
        let client = || DeviceClient::new(self.client.clone(), DEVICE_STAGING_BYTES_MAX);
        self.devices.client.get_or_init(client)
    }

    fn taking(&self, way: DeviceWay) -> Taking<'_> {
        Taking {
            hosted: self,
            way,
            waited: Vec::new(),
        }
    }

    /// Takes what is lent for each object, and asks for those for which that succeeds.
    async fn of_objects<T>(
        &self,
        way: DeviceWay,
        objects: Vec<(Vec<u8>, Vec<Lent>, Among)>,
        ask: impl AsyncFn(&[DeviceObject]) -> Vec<Result<T, StoreError>>,
    ) -> Vec<Result<T, StoreError>> {
        let mut taking = self.taking(way);
        let mut taken = Vec::with_capacity(objects.len());
        let mut failed = Vec::with_capacity(objects.len());
        for (key, lent, among) in objects {
            match taking.pieces(&lent).await {
                Ok(pieces) => {
                    taken.push(DeviceObject { key, pieces, among });
                    failed.push(None);
                }
                Err(error) => failed.push(Some(error)),
            }
        }
        let mut answers = ask(&taken).await.into_iter();
        let answers = failed.into_iter().map(|failed| match failed {
            Some(error) => Err(error),
            None => answers.next().expect("one for each that was asked"),
        });
        answers.collect()
    }

    /// Puts objects some of whose bytes are devices': key, memory, and what they are to each other.
    pub(super) async fn put_of_devices(
        &self,
        objects: Vec<(Vec<u8>, Vec<Lent>, Among)>,
        options: PutOptions,
    ) -> Vec<Result<Stored, StoreError>> {
        let put = async |objects: &[DeviceObject]| {
            let stored = self.device_client().put_each(objects, options).await;
            stored.into_iter().map(|stored| Ok(stored?)).collect()
        };
        self.of_objects(DeviceWay::From, objects, put).await
    }

    /// Gets objects into memory some of which is devices'.
    pub(super) async fn get_to_devices(
        &self,
        wanted: Vec<(Vec<u8>, Vec<Lent>)>,
    ) -> Vec<Result<Got, StoreError>> {
        let wanted = wanted.into_iter();
        let wanted = wanted
            .map(|(key, into)| (key, into, Among::default()))
            .collect();
        let get = async |wanted: &[DeviceObject]| {
            let landed = self.device_client().get_each(wanted).await;
            landed
                .into_iter()
                .map(|landed| Ok(landed?.into()))
                .collect()
        };
        self.of_objects(DeviceWay::To, wanted, get).await
    }

    pub(super) async fn get_ranges_to_devices(
        &self,
        key: &[u8],
        ranges: &[ByteRange],
        into: &[Lent],
    ) -> Result<Got, StoreError> {
        let pieces = self.taking(DeviceWay::To).pieces(into).await?;
        let landed = self.device_client().get_ranges(key, ranges, &pieces).await;
        Ok(landed?.into())
    }

    /// A value of memory some of which is a device's, and what keeps its bytes.
    pub(super) async fn value_of_devices(
        &self,
        from: &[Lent],
    ) -> Result<(Value, Staged), StoreError> {
        let pieces = self.taking(DeviceWay::From).pieces(from).await?;
        Ok(self.device_client().value_of(&pieces).await?)
    }
}

impl From<Landed> for Got {
    fn from(landed: Landed) -> Self {
        match landed {
            Landed::Hit {
                len_bytes,
                object_len_bytes,
                version,
                is_cut_off,
            } => Self::Hit {
                len_bytes,
                object_len_bytes,
                version,
                is_cut_off,
            },
            Landed::Miss { is_known } => Self::Miss { is_known },
        }
    }
}

fn of_lent(error: DeviceLendError) -> StoreError {
    StoreError::local(match error {
        DeviceLendError::Copy(error) => StoreErrorKind::Device(DeviceFault::Copy(error)),
        why => {
            tracing::warn!(%why, "memory of a device cannot be used");
            StoreErrorKind::NotOfDevice
        }
    })
}
