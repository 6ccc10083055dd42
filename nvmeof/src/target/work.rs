//! Carrying out commands of queues for I/O.

use std::rc::Rc;

use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::io::{Blocks, Geometry, IoRequest, RANGE_BYTES, decode_ranges};
use lunette_runtime::arena::{Region, RegionMut};

use super::desk::Desk;
use super::link::Link;
use crate::disk::{Disk, Found};

/// A command that is ready to be carried out.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) slot: u16,
    pub(super) request: IoRequest,
    pub(super) geometry: Geometry,
    /// The data of a command that has some.
    pub(super) data: Option<RegionMut>,
}

impl Work {
    /// Carries it out and answers it.
    pub(super) async fn run(self, link: Rc<Link>, desk: Rc<Desk>) {
        let slot = self.slot;
        match self.carry_out(&desk.disk).await {
            Ok(None) => link.complete(slot, Status::SUCCESS, 0),
            Ok(Some(found)) => link.send_found(slot, found),
            Err(status) => link.complete(slot, status, 0),
        }
    }

    async fn carry_out(self, disk: &Disk) -> Result<Option<Found>, Status> {
        let Self {
            request,
            geometry,
            data,
            ..
        } = self;
        match request {
            IoRequest::Flush => disk.flush().await?,
            IoRequest::Read(blocks) => {
                let (offset, len) = range(&geometry, blocks);
                return Ok(Some(disk.read(offset, len).await?));
            }
            IoRequest::Write { blocks, must_last } => {
                let (offset, len) = range(&geometry, blocks);
                let data = data.expect("a write has its data");
                assert_eq!(data.len(), len, "all of its data");
                disk.write(offset, data).await?;
                if must_last {
                    disk.flush().await?;
                }
            }
            IoRequest::Compare(blocks) => {
                let (offset, len) = range(&geometry, blocks);
                let found = disk.read(offset, len).await?;
                let data = data.expect("a compare has its data");
                if !is_same(found.regions(), data.as_slice()) {
                    return Err(Status::COMPARE_FAILURE);
                }
            }
            IoRequest::WriteZeroes { blocks, .. } => {
                let (offset, len) = geometry.bytes(blocks);
                disk.write_zeroes(offset, len).await?;
            }
            IoRequest::Manage {
                ranges,
                deallocates,
            } => {
                let data = data.expect("ranges are data");
                let bytes = &data.as_slice()[..usize::from(ranges) * RANGE_BYTES];
                let ranges = decode_ranges(bytes, &geometry)?;
                for blocks in ranges.into_iter().filter(|_| deallocates) {
                    let (offset, len) = geometry.bytes(blocks);
                    disk.deallocate(offset, len);
                }
            }
        }
        Ok(None)
    }
}

/// Where the data of a command lie on the disk.
pub(super) fn range(geometry: &Geometry, blocks: Blocks) -> (u64, usize) {
    let (offset, len) = geometry.bytes(blocks);
    (
        offset,
        usize::try_from(len).expect("a command's data are bounded"),
    )
}

fn is_same(found: &[Region], expected: &[u8]) -> bool {
    let mut rest = expected;
    found.iter().all(|region| {
        let (front, behind) = rest.split_at(region.len());
        rest = behind;
        front == region.as_slice()
    })
}
