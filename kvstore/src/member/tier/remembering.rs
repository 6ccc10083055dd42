//! What the home beside a drive knew of removals: the drive keeps it from one life of the node to the next.
//!
//! It lies in records of its own, which are no copies: none is wanted of them, and no key has their fingerprints.

use std::time::Duration;

use lunette_kvstore_log::record::{Fingerprint, Record};
use lunette_kvstore_proto::home::{HomeMemory, MEMORY_PIECES_MAX};
use lunette_kvstore_proto::key::Key;
use lunette_runtime::arena::{Arena, ArenaOptions, CHUNK_BYTES_MIN, HugePages, Region};
use lunette_runtime::time;
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;
use thiserror::Error;

use super::Tier;
use super::notes;
use crate::drive::ReadError;

/// How long a drive that has enough to write is left alone.
const PAUSE: Duration = Duration::from_millis(1);

/// Why what a home knew is not kept.
#[derive(Clone, Copy, Debug, Error)]
pub(in crate::member) enum NotKept {
    #[error("the drive has not taken it in time, or has failed")]
    Drive,
    #[error("there is no memory for it")]
    Memory,
    #[error("it is too long")]
    Long,
}

/// What a piece is appended under.
fn name_of(piece: usize) -> String {
    format!("lunette: what a home knew, {piece}")
}

/// No key's.
fn fingerprint_of(piece: usize) -> Fingerprint {
    let key = Key::new(name_of(piece).as_bytes()).map(|key| key.fingerprint().0);
    Fingerprint(!key.expect("a short key"))
}

impl Tier {
    /// Has the drive keep what the home knew when it left, until then.
    pub(in crate::member) async fn remember(
        &self,
        node: NodeId,
        memory: &HomeMemory,
        until: Time,
    ) -> Result<(), NotKept> {
        self.keeping.remember();
        let cluster = self.cluster.get().ok_or(NotKept::Drive)?;
        let pieces = memory.encode(node).ok_or(NotKept::Long)?;
        for (at, piece) in pieces.iter().enumerate() {
            let len_bytes = u32::try_from(piece.len()).expect("a piece is bounded");
            let record = Record {
                fingerprint: fingerprint_of(at),
                len_bytes,
                crc32c: crc32c(piece),
                ..notes::memory_record(cluster, memory.known.epoch)
            };
            let bytes = lent(piece).ok_or(NotKept::Memory)?;
            self.write_piece(&name_of(at), record, &bytes, until)
                .await?;
        }
        Ok(())
    }

    async fn write_piece(
        &self,
        name: &str,
        record: Record,
        bytes: &Region,
        until: Time,
    ) -> Result<(), NotKept> {
        loop {
            match self.drive.append(name.as_bytes(), record, bytes.clone()) {
                Ok(durable) => {
                    let left = until.since(time::now());
                    let written = time::timeout(left, durable).await;
                    return match written {
                        Ok(Ok(_)) => Ok(()),
                        Ok(Err(_)) | Err(_) => Err(NotKept::Drive),
                    };
                }
                Err(refused) if refused.is_retryable() && time::now() < until => {
                    time::sleep(PAUSE).await;
                }
                Err(refused) => {
                    tracing::debug!(%refused, "what a home knew of removals");
                    return Err(NotKept::Drive);
                }
            }
        }
    }

    /// What the home knew when its node left the last time, if the drive has that, of this cluster and node.
    pub(super) async fn recall(
        &self,
        (cluster, node): (u64, NodeId),
        records: &[Record],
    ) -> Option<HomeMemory> {
        let known = records.iter().filter(|it| notes::is_memory(cluster, it));
        let latest = known.clone().map(|record| record.version.epoch).max()?;
        // An earlier one that was longer has left some.
        let known = known.filter(|record| record.version.epoch == latest);
        let mut pieces = Vec::new();
        for record in known.take(MEMORY_PIECES_MAX) {
            match self.read_piece(record.fingerprint).await {
                Ok(Some(piece)) => pieces.push(piece),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "what a home knew of removals"),
            }
        }
        let memory = HomeMemory::decode(node, pieces.iter().map(Region::as_slice));
        match memory {
            Ok(memory) => Some(memory),
            Err(fault) => {
                tracing::warn!(%fault, "what a home knew of removals");
                None
            }
        }
    }

    async fn read_piece(&self, fingerprint: Fingerprint) -> Result<Option<Region>, ReadError> {
        loop {
            match self.drive.read(fingerprint, None, &self.memory).await {
                Ok(found) => return Ok(found.map(|found| found.bytes())),
                Err(error) if error.is_retryable() => time::sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Memory of its own for a piece: what the core has may be full.
fn lent(piece: &[u8]) -> Option<Region> {
    let arena = Arena::new(ArenaOptions {
        bytes_max: CHUNK_BYTES_MIN,
        chunk_bytes: CHUNK_BYTES_MIN,
        huge_pages: HugePages::Never,
        lock: false,
    });
    let mut room = arena.alloc(piece.len()).ok()?;
    room.as_mut_slice().copy_from_slice(piece);
    Some(room.freeze())
}
