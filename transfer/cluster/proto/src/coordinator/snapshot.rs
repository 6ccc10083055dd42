//! What a coordinator keeps on a drive.
//!
//! ```text
//!  0      4         8          16       20       24
//!  | LNCO | version | revision | leases | keys   | leases, keys ... | CRC32C of all before |
//!  a lease:  id (8), ttl_s (4)
//!  a key:    created (8), modified (8), lease or 0 (8), key length (2), value length (4), both
//! ```

use core::time::Duration;

use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use lunette_runtime_core::time::Time;
use thiserror::Error;

use super::{Coordinator, Entry, KEYS_MAX, LEASES_MAX, Lease, STORE_BYTES_MAX};
use crate::coordination::{KEY_BYTES_MAX, LeaseId, Revision, VALUE_BYTES_MAX};

const MAGIC: [u8; 4] = *b"LNCO";
const VERSION: u32 = 1;
/// Bytes of a key besides itself and its value.
const KEY_OVERHEAD_BYTES: usize = 30;
/// Longest snapshot, in bytes.
pub const SNAPSHOT_BYTES_MAX: usize =
    28 + LEASES_MAX * 12 + KEYS_MAX * KEY_OVERHEAD_BYTES + STORE_BYTES_MAX;

/// Why bytes are no snapshot. An older one may be.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SnapshotFault {
    /// It ends too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// It is of something else, or of a later version.
    #[error("not a snapshot of version {VERSION}")]
    Unknown,
    /// Its bytes are damaged.
    #[error("the snapshot is damaged")]
    Damaged,
    /// Its checksum fits, and what it says breaks a limit or contradicts itself.
    #[error("the snapshot makes no sense: {what}")]
    Senseless {
        /// What does not.
        what: &'static str,
    },
}

impl Coordinator {
    /// Everything that was acknowledged.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let count = |len: usize| u32::try_from(len).expect("both are bounded");
        let mut out = Vec::with_capacity(28 + self.bytes + self.keys.len() * KEY_OVERHEAD_BYTES);
        let mut writer = Writer::new(&mut out);
        writer
            .bytes(&MAGIC)
            .u32(VERSION)
            .u64(self.revision.0)
            .u32(count(self.leases.len()))
            .u32(count(self.keys.len()));
        for (id, lease) in &self.leases {
            writer.u64(id.as_u64()).u32(lease.ttl_s);
        }
        for (key, entry) in &self.keys {
            writer
                .u64(entry.created.0)
                .u64(entry.modified.0)
                .u64(entry.lease.map_or(0, LeaseId::as_u64))
                .short_bytes(key)
                .u32(count(entry.value.len()))
                .bytes(&entry.value);
        }
        let crc = crc32c(&out);
        Writer::new(&mut out).u32(crc);
        assert!(out.len() <= SNAPSHOT_BYTES_MAX);
        out
    }

    /// A coordinator that goes on from a snapshot. Its leases begin at `now`; earlier changes are
    /// forgotten.
    ///
    /// # Errors
    /// [`SnapshotFault`].
    pub fn restore(now: Time, bytes: &[u8]) -> Result<Self, SnapshotFault> {
        let Some((content, crc)) = bytes.split_last_chunk::<4>() else {
            return Err(Truncated {
                needed_bytes: 4,
                left_bytes: bytes.len(),
            }
            .into());
        };
        let mut reader = Reader::new(content);
        if reader.array()? != MAGIC || reader.u32()? != VERSION {
            return Err(SnapshotFault::Unknown);
        }
        if crc32c(content) != u32::from_le_bytes(*crc) {
            return Err(SnapshotFault::Damaged);
        }
        let mut restored = Self {
            revision: Revision(reader.u64()?),
            ..Self::default()
        };
        restored.forgotten = restored.revision;
        let (leases, keys) = (reader.u32()? as usize, reader.u32()? as usize);
        let senseless = |what| Err(SnapshotFault::Senseless { what });
        if leases > LEASES_MAX || keys > KEYS_MAX {
            return senseless("the number of leases or keys");
        }
        for _ in 0..leases {
            let (id, ttl_s) = (LeaseId::new(reader.u64()?), reader.u32()?);
            let deadline = now + Duration::from_secs(u64::from(ttl_s));
            restored.leases.insert(id, Lease { ttl_s, deadline });
        }
        for _ in 0..keys {
            restored.restore_key(&mut reader)?;
        }
        if !reader.is_empty() || restored.keys.len() != keys || restored.leases.len() != leases {
            return senseless("the number of leases or keys");
        }
        if restored.bytes > STORE_BYTES_MAX {
            return senseless("the length of all keys and values");
        }
        Ok(restored)
    }

    fn restore_key(&mut self, reader: &mut Reader<'_>) -> Result<(), SnapshotFault> {
        let (created, modified) = (Revision(reader.u64()?), Revision(reader.u64()?));
        let lease = Some(reader.u64()?)
            .filter(|&lease| lease > 0)
            .map(LeaseId::new);
        let key = reader.short_bytes()?;
        let len = reader.u32()? as usize;
        if key.is_empty() || key.len() > KEY_BYTES_MAX || len > VALUE_BYTES_MAX {
            return Err(SnapshotFault::Senseless {
                what: "the length of a key or value",
            });
        }
        let value = reader.bytes(len)?.to_vec();
        if created > modified || modified > self.revision {
            return Err(SnapshotFault::Senseless {
                what: "the revision of a key",
            });
        }
        if lease.is_some_and(|lease| !self.leases.contains_key(&lease)) {
            return Err(SnapshotFault::Senseless {
                what: "the lease of a key",
            });
        }
        self.bytes += key.len() + value.len();
        let entry = Entry {
            value,
            created,
            modified,
            lease,
        };
        self.keys.insert(key.to_vec(), entry);
        Ok(())
    }
}
