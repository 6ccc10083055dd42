//! What the embedded coordinator keeps on a drive: its newest snapshot, and the one before.
//!
//! ```text
//!  slot 0 at 0, slot 1 at SLOT_BYTES, used in turn
//!  a slot:  0        8            12           16      512
//!           | number | len_bytes  | CRC32C     | 0 ... | snapshot, which has its own checksum
//! ```
//!
//! A write that is cut off leaves the other slot as it was, which holds everything that was
//! acknowledged until then. Of two whole slots the one of the higher number counts. Both are written
//! before anything is acknowledged, the one at the file's beginning last: where that has never been
//! begun, nothing was acknowledged, and where no slot is whole otherwise, something is lost.

use std::path::Path;

use lunette_cluster_proto::coordinator::{Coordinator, SNAPSHOT_BYTES_MAX};
use lunette_runtime::OpError;
use lunette_runtime::fs::{File, FileError, OpenOptions};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::time::Time;
use thiserror::Error;

const SLOT_HEADER_BYTES: usize = 512;
const SLOT_BYTES: u64 = 16 * 1024 * 1024;

const _: () = assert!(SLOT_HEADER_BYTES + SNAPSHOT_BYTES_MAX <= 16 * 1024 * 1024);

/// Why a snapshot was not written or read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The file could not be opened, or its bytes are not safe.
    #[error(transparent)]
    File(#[from] FileError),
    /// It could not be read or written.
    #[error("the snapshot file: {0}")]
    Io(#[from] OpError),
    /// Slots were written, and none can be read: what was acknowledged is lost.
    #[error("the snapshot file is damaged: no slot of it can be read")]
    Damaged,
}

pub(crate) struct Snapshots {
    file: File,
    /// The number of the newest one.
    number: u64,
}

/// What a slot's header says.
struct Header {
    number: u64,
    len: usize,
}

impl Header {
    fn encode(number: u64, len: usize) -> Vec<u8> {
        let mut bytes = number.to_le_bytes().to_vec();
        let len = u32::try_from(len).expect("snapshots are bounded");
        bytes.extend_from_slice(&len.to_le_bytes());
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.resize(SLOT_HEADER_BYTES, 0);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let fields: &[u8; 16] = bytes.first_chunk()?;
        let [n0, n1, n2, n3, n4, n5, n6, n7, l0, l1, l2, l3, crc @ ..] = *fields;
        let number = u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let is_whole = crc32c(&fields[..12]) == u32::from_le_bytes(crc);
        (is_whole && number > 0 && len <= SNAPSHOT_BYTES_MAX).then_some(Self { number, len })
    }
}

const fn slot_offset(number: u64) -> u64 {
    (number % 2) * SLOT_BYTES
}

impl Snapshots {
    /// Opens the file, made if it is not there, and what it holds; a coordinator that begins if it
    /// holds nothing.
    pub(crate) async fn open(path: &Path, now: Time) -> Result<(Self, Coordinator), SnapshotError> {
        let file = File::open(path, OpenOptions::READ_WRITE).await?;
        let len = file.len_bytes().await?;
        let mut newest: Option<(u64, Coordinator)> = None;
        let mut is_begun = false;
        for parity in [0, 1] {
            let offset = slot_offset(parity);
            if len <= offset {
                continue;
            }
            let header = read(&file, offset, SLOT_HEADER_BYTES, len).await?;
            is_begun |= parity == 0 && header.iter().any(|&byte| byte != 0);
            let Some(Header {
                number,
                len: snapshot_len,
            }) = Header::decode(&header)
            else {
                continue;
            };
            let start = offset + SLOT_HEADER_BYTES as u64;
            let bytes = read(&file, start, snapshot_len, len).await?;
            match Coordinator::restore(now, &bytes) {
                Ok(coordinator) if newest.as_ref().is_none_or(|(newest, _)| *newest < number) => {
                    newest = Some((number, coordinator));
                }
                Ok(_) => {}
                Err(fault) => tracing::warn!(%fault, number, "a snapshot that was not finished"),
            }
        }
        match newest {
            Some((number, coordinator)) => Ok((Self { file, number }, coordinator)),
            None if !is_begun => {
                let (mut snapshots, coordinator) =
                    (Self { file, number: 0 }, Coordinator::default());
                snapshots.write(coordinator.snapshot()).await?;
                snapshots.write(coordinator.snapshot()).await?;
                Ok((snapshots, coordinator))
            }
            None => Err(SnapshotError::Damaged),
        }
    }

    /// Keeps `snapshot`: after this it outlives the process and its host.
    pub(crate) async fn write(&mut self, snapshot: Vec<u8>) -> Result<(), SnapshotError> {
        let number = self.number + 1;
        let offset = slot_offset(number);
        let mut bytes = Header::encode(number, snapshot.len());
        bytes.extend_from_slice(&snapshot);
        let len = bytes.len();
        let (written, _bytes) = self.file.write_all_at(bytes, 0, len, offset).await;
        written?;
        self.file.sync_data().await?;
        self.number = number;
        Ok(())
    }
}

/// Up to `len` bytes at `offset` of a file of `file_len`; fewer where it ends.
async fn read(
    file: &File,
    offset: u64,
    len: usize,
    file_len: u64,
) -> Result<Vec<u8>, SnapshotError> {
    let left = usize::try_from(file_len.saturating_sub(offset)).unwrap_or(usize::MAX);
    let len = len.min(left);
    let (result, bytes) = file.read_exact_at(vec![0; len], 0, len, offset).await;
    result?;
    Ok(bytes)
}
