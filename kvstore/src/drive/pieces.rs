//! An object comes back piece by piece: who sends it on need not wait for the last of it.

use std::fmt;
use std::rc::Rc;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use lunette_kvstore_log::effect::{ReadOutcome, ReadPlan};
use lunette_kvstore_log::format::BLOCK_BYTES;
use lunette_kvstore_log::record::{Fingerprint, Record};
use lunette_runtime::arena::{Arena, Region, RegionMut};
use lunette_runtime_core::checksum::Crc32c;

use super::Drive;
use super::device::ReadFault;
use super::driving::Shared;
use super::ended::Ended;
use super::reading::{BRISK, OnDrive, ReadError};

/// What is read at a time. Objects of 8 MiB, got one at a time from a virtual disk over TCP, came at 2.03 GB/s when they were
/// read whole before they were sent, in pieces of 256 KiB at 2.22, of 512 KiB at 2.29, of 1 MiB at 2.33; but those of 1 MiB
/// at 1.98 whole, and at 1.76 in pieces, since the disk has all of them at about the same time.
pub const PIECE_BYTES: usize = 1 << 20;
/// Reads that are under way at a time.
const AHEAD_MAX: usize = 4;

const _: () = assert!(PIECE_BYTES.is_multiple_of(BLOCK_BYTES as usize));
/// The longest key, in its record, lies in the first piece.
const _: () = assert!(PIECE_BYTES > u16::MAX as usize + 2 * BLOCK_BYTES as usize);

/// An object that is being read. Dropped, that goes on to its end for nothing.
pub struct InPieces {
    /// What is known of it.
    pub record: Record,
    pieces: UnboundedReceiver<Region>,
    ended: Rc<Ended<Result<OnDrive, ReadError>>>,
}

impl fmt::Debug for InPieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InPieces")
            .field("record", &self.record)
            .finish_non_exhaustive()
    }
}

impl InPieces {
    /// The next bytes of the payload, which nobody has compared with its checksum yet; `None` if there are no more,
    /// or they cannot be read.
    pub async fn next(&mut self) -> Option<Region> {
        self.pieces.next().await
    }

    /// All of it, when it has been read and compared with its checksum.
    ///
    /// # Errors
    /// [`ReadError`]: what was read of it is not to be used.
    pub async fn whole(self) -> Result<OnDrive, ReadError> {
        self.ended.wait().await
    }
}

/// What is told of an object while it is read.
struct Teller {
    pieces: UnboundedSender<Region>,
    ended: Rc<Ended<Result<OnDrive, ReadError>>>,
}

impl Drive {
    /// Whether [`read_in_pieces`](Self::read_in_pieces) may be asked: of a namespace over NVMe/TCP an object is read by
    /// commands that are under way together anyway.
    #[must_use]
    pub fn reads_in_pieces(&self) -> bool {
        self.shared.device.is_file()
    }

    /// As [`read`](Self::read), but what has been read is told piece by piece.
    ///
    /// # Errors
    /// [`ReadError::Busy`] and [`ReadError::Memory`]; what else may be wrong is told by [`InPieces::whole`].
    pub fn read_in_pieces(
        &self,
        fingerprint: Fingerprint,
        key: &[u8],
        arena: &Arena,
    ) -> Result<Option<InPieces>, ReadError> {
        let Some(plan) = self.pin(fingerprint)? else {
            return Ok(None);
        };
        let room = self.room(&plan, plan.len_bytes, arena)?;
        let (shared, ended) = (Rc::clone(&self.shared), Ended::new());
        let (pieces, told) = unbounded();
        let teller = Teller {
            pieces,
            ended: Rc::clone(&ended),
        };
        self.begin(&plan, read(shared, plan, room, Box::from(key), teller))?;
        Ok(Some(InPieces {
            record: plan.record,
            pieces: told,
            ended,
        }))
    }
}

/// A task of its own, since the segment is kept until the drive has done with it.
async fn read(shared: Rc<Shared>, plan: ReadPlan, room: RegionMut, key: Box<[u8]>, teller: Teller) {
    let Teller { pieces, ended } = teller;
    let mut reading = Reading::new(plan);
    let mut running = FuturesOrdered::new();
    let (mut offset_bytes, mut rest) = (plan.offset_bytes, Some(room));
    loop {
        while reading.fault.is_none()
            && running.len() < AHEAD_MAX
            && let Some(mut piece) = rest.take()
        {
            if piece.len() > PIECE_BYTES {
                rest = Some(piece.split_off(PIECE_BYTES));
            }
            let len = piece.len();
            running.push_back(shared.device.read(piece, len, offset_bytes, BRISK));
            offset_bytes += len as u64;
        }
        let Some((result, piece)) = running.next().await else {
            break;
        };
        if let Some(bytes) = reading.take(result, piece.freeze(), &key)
            && pieces.unbounded_send(bytes).is_err()
        {
            tracing::trace!("nobody waits for what is read");
        }
    }
    let (outcome, for_log) = reading.end();
    shared.end_read(&plan, for_log);
    ended.end(outcome);
}

/// What has been read so far.
struct Reading {
    plan: ReadPlan,
    window: Option<Region>,
    checksum: Crc32c,
    fault: Option<ReadError>,
}

impl Reading {
    fn new(plan: ReadPlan) -> Self {
        Self {
            plan,
            window: None,
            checksum: Crc32c::new(),
            fault: None,
        }
    }

    /// The next piece is there, or is not. What of the payload lies in it.
    fn take(&mut self, result: Result<(), ReadFault>, piece: Region, key: &[u8]) -> Option<Region> {
        if result.is_err() {
            self.fault = self.fault.or(Some(ReadError::Unreadable));
        }
        if self.fault.is_some() {
            return None;
        }
        let start = self.window.as_ref().map_or(0, Region::len);
        let plan = &self.plan;
        if start == 0 {
            let key_there = &piece.as_slice()[plan.key_at as usize..][..plan.key_len.into()];
            if key_there != key {
                self.fault = Some(ReadError::Damaged);
                return None;
            }
        }
        let payload_at = plan.payload_at as usize;
        let payload_end = payload_at + plan.record.len_bytes as usize;
        let from = payload_at.clamp(start, start + piece.len());
        let end = payload_end.clamp(from, start + piece.len());
        let bytes = piece.slice(from - start, end - from);
        self.checksum.fold(bytes.as_slice());
        self.window = Some(match self.window.take() {
            None => piece,
            Some(window) => window.join(piece).expect("it was split from it"),
        });
        (!bytes.is_empty()).then_some(bytes)
    }

    /// The object, and what its log is to know.
    fn end(self) -> (Result<OnDrive, ReadError>, ReadOutcome) {
        let plan = self.plan;
        match (self.fault, self.window) {
            (None, Some(window)) if self.checksum.value() == plan.record.crc32c => {
                let found = OnDrive {
                    record: plan.record,
                    window,
                    key_at: plan.key_at,
                    key_len: plan.key_len,
                    payload_at: plan.payload_at,
                };
                (Ok(found), ReadOutcome::Right)
            }
            (Some(ReadError::Unreadable), _) => (Err(ReadError::Unreadable), ReadOutcome::Failed),
            _ => (Err(ReadError::Damaged), ReadOutcome::Damaged),
        }
    }
}
