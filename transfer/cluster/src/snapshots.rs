//! What the embedded coordinator keeps on a drive: its newest snapshot, and the one before.
//!
//! ```text
//!  slot 0 at 0, slot 1 at SLOT_BYTES, used in turn
//!  a slot:  0        8            12                            16      512
//!           | number | len_bytes  | CRC32C of both and of the next | 0 ... | snapshot, its CRC32C
//! ```
//!
//! A write that is cut off leaves the other slot as it was, which holds everything that was
//! acknowledged until then. Of two whole slots the one of the higher number counts. The header's checksum
//! ties it to its snapshot: a drive that loses its power may keep the head of one snapshot and the
//! rest of an older one. Both slots are written before anything is acknowledged, the one at the file's
//! beginning last: where that has never been begun, nothing was acknowledged, and where no slot is
//! whole otherwise, something is lost.
//!
//! What is read may be in the system's cache alone: whoever wrote it may have ended before it was
//! synced, or the sync may have failed. So it is written again and synced before it counts, into its own
//! slot, while the other one still holds what is surely durable.

use std::path::Path;

use lunette_cluster_proto::coordinator::{Coordinator, SNAPSHOT_BYTES_MAX, SnapshotFault};
use lunette_runtime::OpError;
use lunette_runtime::fs::{File, FileError, OpenOptions};
use lunette_runtime_core::checksum::{Crc32c, crc32c};
use lunette_runtime_core::codec::Reader;
use lunette_runtime_core::mutant::{self, Mutant};
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
    /// A slot is whole, and holds what no coordinator of this version wrote.
    #[error("the snapshot file: {0}")]
    Snapshot(#[from] SnapshotFault),
}

impl SnapshotError {
    /// Whether what was kept is lost, so that trying again helps nobody.
    pub(crate) const fn is_corruption(&self) -> bool {
        match self {
            Self::File(_) | Self::Io(_) => false,
            Self::Damaged | Self::Snapshot(_) => true,
        }
    }
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
    crc: u32,
}

impl Header {
    /// The header of a snapshot, and the snapshot.
    fn encode(number: u64, snapshot: &[u8]) -> Vec<u8> {
        let len = u32::try_from(snapshot.len()).expect("snapshots are bounded");
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&checksum(number, len, snapshot).to_le_bytes());
        bytes.resize(SLOT_HEADER_BYTES, 0);
        bytes.extend_from_slice(snapshot);
        bytes
    }

    /// A header that may be one of the slot at `parity`.
    fn decode(bytes: &[u8], parity: u64) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let header = Self {
            number: reader.u64().ok()?,
            len: reader.u32().ok()? as usize,
            crc: reader.u32().ok()?,
        };
        let is_own = header.number > 0 && header.number % 2 == parity;
        (is_own && header.len <= SNAPSHOT_BYTES_MAX).then_some(header)
    }

    /// Whether this is what was written after it, all of it.
    fn is_of(&self, snapshot: &[u8]) -> bool {
        let len = u32::try_from(snapshot.len()).expect("it was bounded");
        let Some((content, own)) = snapshot.split_last_chunk::<4>() else {
            return false;
        };
        let is_whole = crc32c(content) == u32::from_le_bytes(*own);
        let is_tied = checksum(self.number, len, snapshot) == self.crc
            || mutant::is_on(Mutant::SnapshotUntied);
        snapshot.len() == self.len && is_whole && is_tied
    }
}

/// Of a snapshot only the checksum that it ends with goes in: behind it a checksum of everything would
/// be the same for every content.
fn checksum(number: u64, len: u32, snapshot: &[u8]) -> u32 {
    let own: &[u8; 4] = snapshot
        .last_chunk()
        .expect("snapshots end with a checksum");
    let mut crc = Crc32c::new();
    crc.fold(&number.to_le_bytes());
    crc.fold(&len.to_le_bytes());
    crc.fold(own);
    crc.value()
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
        let mut newest: Option<(u64, Vec<u8>, Coordinator)> = None;
        let mut is_begun = false;
        for parity in [0, 1] {
            let offset = slot_offset(parity);
            if len <= offset {
                continue;
            }
            let header = read(&file, offset, SLOT_HEADER_BYTES, len).await?;
            is_begun |= parity == 0 && header.iter().any(|&byte| byte != 0);
            let Some(header) = Header::decode(&header, parity) else {
                continue;
            };
            let start = offset + SLOT_HEADER_BYTES as u64;
            let bytes = read(&file, start, header.len, len).await?;
            if !header.is_of(&bytes) {
                tracing::warn!(header.number, "a snapshot that was not finished");
                continue;
            }
            let coordinator = Coordinator::restore(now, &bytes)?;
            let is_newer = |(newest, ..): &(u64, _, _)| *newest < header.number;
            if newest.as_ref().is_none_or(is_newer) {
                newest = Some((header.number, bytes, coordinator));
            }
        }
        let mut snapshots = Self { file, number: 0 };
        match newest {
            Some((number, bytes, coordinator)) => {
                snapshots.number = number - 1;
                snapshots.write(&bytes).await?;
                Ok((snapshots, coordinator))
            }
            None if !is_begun => {
                let coordinator = Coordinator::default();
                for _ in 0..2 {
                    snapshots.write(&coordinator.snapshot()).await?;
                }
                Ok((snapshots, coordinator))
            }
            None => Err(SnapshotError::Damaged),
        }
    }

    /// Keeps `snapshot`: after this it outlives the process and its host.
    pub(crate) async fn write(&mut self, snapshot: &[u8]) -> Result<(), SnapshotError> {
        let number = self.number + 1;
        let offset = slot_offset(number);
        let bytes = Header::encode(number, snapshot);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(fill: u8) -> Vec<u8> {
        let mut bytes = vec![fill; 100];
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        bytes
    }

    #[test]
    fn a_header_fits_its_own_snapshot_alone() {
        let (old, new) = (snapshot(1), snapshot(2));
        let slot = Header::encode(7, &new);
        let header = Header::decode(&slot, 1).expect("of an odd slot");
        assert!(header.is_of(&new) && slot[SLOT_HEADER_BYTES..] == new[..]);
        assert!(!header.is_of(&old), "of the same length");
        assert!(!header.is_of(&new[..new.len() - 1]) && !header.is_of(&[]));
        for at in 0..new.len() {
            let mut damaged = new.clone();
            damaged[at] ^= 1;
            assert!(!header.is_of(&damaged), "byte {at}");
        }
        for at in 0..16 {
            let mut damaged = slot.clone();
            damaged[at] ^= 2;
            let header = Header::decode(&damaged, 1);
            assert!(
                !header.is_some_and(|header| header.is_of(&new)),
                "byte {at}"
            );
        }
        assert!(Header::decode(&slot, 0).is_none(), "written elsewhere");
        assert!(Header::decode(&[0; SLOT_HEADER_BYTES], 0).is_none());
    }
}
