//! The block seam: reads and writes of whole blocks of a log, wherever it lies.

use std::rc::Rc;

use lunette_kvstore_log::effect::DeviceFault;
use lunette_runtime::arena::RegionMut;
use lunette_runtime::fs::File;

use super::holding::Holding;
use super::remote::{Patience, Remote};

/// Why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadFault {
    /// It cannot be reached at this time. What is there may be read later.
    Away,
    /// It cannot read that.
    Failed,
}

/// What the blocks are on.
#[derive(Debug)]
pub(super) enum On {
    /// A file, a block device, or an NVMe namespace's character device.
    File(File),
    /// A namespace over NVMe/TCP.
    Remote(Remote),
}

/// A part of what blocks are on.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) on: Rc<On>,
    /// Where it begins.
    pub(super) begin_bytes: u64,
    /// Whether it may be written, where that is told by a claim.
    pub(super) holding: Option<Holding>,
}

impl Device {
    /// Whether it is the system's: a file, a block device, or a namespace's character device.
    pub(super) fn is_file(&self) -> bool {
        matches!(&*self.on, On::File(_))
    }

    /// Whether a read would only wait for it.
    pub(super) fn is_away(&self) -> bool {
        match &*self.on {
            On::File(_) => false,
            On::Remote(remote) => !remote.is_reachable(),
        }
    }

    /// Reads `len` bytes over the front of `room`, which is lent meanwhile.
    pub(super) async fn read(
        &self,
        room: RegionMut,
        len: usize,
        offset_bytes: u64,
        patience: Patience,
    ) -> (Result<(), ReadFault>, RegionMut) {
        self.on
            .read(room, len, self.begin_bytes + offset_bytes, patience)
            .await
    }

    /// Writes the first `len` bytes of `stage`, which is lent meanwhile. Where the device is claimed, not before it is,
    /// and never again when it is lost.
    pub(super) async fn write(
        &self,
        stage: RegionMut,
        len: usize,
        offset_bytes: u64,
    ) -> (Result<(), DeviceFault>, RegionMut) {
        if let Some(holding) = &self.holding
            && let Err(fault) = holding.ready().await
        {
            return (Err(fault), stage);
        }
        let holding = self.holding.as_ref();
        let at = self.begin_bytes + offset_bytes;
        self.on.write(stage, len, at, holding).await
    }

    /// Has what was written last.
    pub(super) async fn flush(&self) -> Result<(), DeviceFault> {
        if let Some(holding) = &self.holding {
            holding.ready().await?;
        }
        self.on.flush(Patience::Lasting).await
    }
}

impl On {
    pub(super) async fn read(
        &self,
        room: RegionMut,
        len: usize,
        offset_bytes: u64,
        patience: Patience,
    ) -> (Result<(), ReadFault>, RegionMut) {
        match self {
            Self::File(file) => {
                let (result, room) = file.read_exact_at(room, 0, len, offset_bytes).await;
                let result = result.map_err(|error| {
                    tracing::warn!(offset_bytes, len_bytes = len, %error, "a drive cannot read");
                    ReadFault::Failed
                });
                (result, room)
            }
            Self::Remote(remote) => remote.read(room, len, offset_bytes, patience).await,
        }
    }

    pub(super) async fn write(
        &self,
        stage: RegionMut,
        len: usize,
        offset_bytes: u64,
        holding: Option<&Holding>,
    ) -> (Result<(), DeviceFault>, RegionMut) {
        match self {
            Self::File(file) => {
                let (result, stage) = file.write_all_at(stage, 0, len, offset_bytes).await;
                let result = result.map_err(|error| {
                    tracing::warn!(offset_bytes, len_bytes = len, %error, "a drive has not taken a write");
                    DeviceFault
                });
                (result, stage)
            }
            Self::Remote(remote) => remote.write(stage, len, offset_bytes, holding).await,
        }
    }

    pub(super) async fn flush(&self, patience: Patience) -> Result<(), DeviceFault> {
        match self {
            Self::File(file) => file.sync_data().await.map_err(|error| {
                tracing::warn!(%error, "a drive has not made durable what was written");
                DeviceFault
            }),
            Self::Remote(remote) => remote.flush(patience).await,
        }
    }
}
