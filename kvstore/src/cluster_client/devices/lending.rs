//! Bytes of a device that threads carry on: a core has the device copy them to its arena, and lends them.

use std::cell::RefCell;

use lunette_runtime::arena::{Borrowed, Lender};
use lunette_transfer::StagedRoom;
use lunette_transfer::engine::{DeviceFault, DeviceSegment};

use super::piece::{Piece, beside, len, of_one_device};
use super::{DeviceClient, DeviceStoreError};

/// What is lent, until nobody reads it any more.
#[derive(Debug, Default)]
pub(crate) struct Lending(RefCell<Vec<(Lender, StagedRoom)>>);

impl Lending {
    /// Frees what nobody reads any more.
    pub(crate) fn take_back(&self) {
        self.0
            .borrow_mut()
            .retain_mut(|(lender, _)| !lender.is_over());
    }
}

impl DeviceClient {
    /// A copy of what lies in pieces of one device, for a thread to read; `None` if they are not of one. It takes its part of
    /// the bound on what is on its way until it is [taken back](Lending::take_back).
    pub(crate) async fn lend(
        &self,
        lending: &Lending,
        from: &[Piece],
    ) -> Result<Option<Borrowed>, DeviceStoreError> {
        let Some(device) = of_one_device(from).map(DeviceSegment::device).cloned() else {
            return Ok(None);
        };
        let len_bytes = len(from);
        // What is over makes room.
        lending.take_back();
        let room = self.staging.take_region(len_bytes).await;
        let (region, room) = room.ok_or(DeviceStoreError::NoRoom { len_bytes })?;
        // What cannot be pinned is copied all the same.
        let _pinned = device.pin(&region.chunk()).await;
        let pieces = beside(from, (0, 0, len_bytes));
        let (copied, mut regions) = DeviceSegment::begin_download(&pieces, vec![region]).await;
        copied.map_err(|error| DeviceStoreError::Device(DeviceFault::Copy(error)))?;
        let region = regions.pop().expect("it comes back").freeze();
        let (bytes, lender) = region.lend();
        lending.0.borrow_mut().push((lender, room));
        Ok(Some(bytes))
    }
}
