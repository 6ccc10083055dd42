//! A batch: what is written at once.
//!
//! ```text
//!   +--------+-----------------------+-----+---------+-----+---------+---------+
//!   | header | table, 64 B an entry  | key | payload | key | payload | zeros   |
//!   +--------+-----------------------+-----+---------+-----+---------+---------+
//!   0        64                      64 (1 + n)                 to a whole block
//! ```
//!
//! Keys and payloads begin at multiples of 64 bytes, so that small objects share blocks. A payload of
//! [`ALIGNED_PAYLOAD_BYTES_MIN`] or more begins at a block, so that it is written from where it lies and read
//! to where it belongs; its key ends where it begins.

use core::ops::Range;

use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::codec::Reader;
use lunette_runtime_core::limits::KEY_BYTES_MAX;
use lunette_runtime_core::mutant::{self, Mutant};

use super::checked::{FormatFault, Part, begun, counted, ended, opened, zeros};
use super::segment::SegmentTag;
use super::{BLOCK_BYTES, SEGMENT_BYTES_MAX, SEGMENT_HEAD_BLOCKS, blocks_for};
use crate::record::{Fingerprint, Record, Version};

/// Length of a batch's header.
pub const BATCH_HEADER_BYTES: usize = 64;
/// Length of an entry of the table.
pub const ENTRY_BYTES: usize = 64;
/// What keys and payloads are aligned to.
pub const ALIGN_BYTES: u32 = 64;
/// From this length on payloads begin at a block.
pub const ALIGNED_PAYLOAD_BYTES_MIN: u32 = 128 * 1024;
/// Most entries of a batch: header and table have 64 KiB then.
pub const ENTRIES_MAX: usize = 1023;
/// Longest header and table.
pub const TABLE_END_BYTES_MAX: usize = BATCH_HEADER_BYTES + ENTRIES_MAX * ENTRY_BYTES;

const MAGIC: [u8; 4] = *b"LNBT";
const _: () =
    assert!(ALIGN_BYTES as usize == ENTRY_BYTES && BLOCK_BYTES.is_multiple_of(ALIGN_BYTES));
const _: () = assert!(TABLE_END_BYTES_MAX == 64 * 1024);

/// The bytes that a key takes in front of its payload.
#[must_use]
pub fn key_room_bytes(key_len: u16) -> u32 {
    u32::from(key_len).next_multiple_of(ALIGN_BYTES)
}

/// What an object counts for in its segment: entry, key and payload, without gaps.
#[must_use]
pub fn footprint_bytes(key_len: u16, len_bytes: u32) -> u64 {
    let payload = u64::from(len_bytes).next_multiple_of(u64::from(ALIGN_BYTES));
    ENTRY_BYTES as u64 + u64::from(key_room_bytes(key_len)) + payload
}

/// The most that an object adds to a batch, gaps included.
#[must_use]
pub fn room_bytes_max(key_len: u16, len_bytes: u32) -> u64 {
    let is_aligned = len_bytes >= ALIGNED_PAYLOAD_BYTES_MIN;
    let gap = if is_aligned {
        BLOCK_BYTES - ALIGN_BYTES
    } else {
        0
    };
    footprint_bytes(key_len, len_bytes) + u64::from(gap)
}

/// An object in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedObject {
    /// What it is.
    pub record: Record,
    /// Length of its key: 1 to [`KEY_BYTES_MAX`].
    pub key_len: u16,
    /// CRC32C of its key.
    pub key_crc32c: u32,
    /// Where its payload begins, in bytes from the batch's first: a multiple of [`ALIGN_BYTES`].
    pub payload_offset_bytes: u32,
}

impl PlacedObject {
    /// [`footprint_bytes`] of it.
    pub(crate) fn footprint_bytes(&self) -> u64 {
        footprint_bytes(self.key_len, self.record.len_bytes)
    }

    /// Whether key and payload in the `batch` are what they were.
    #[must_use]
    pub fn is_whole(&self, batch: &[u8]) -> bool {
        let body = self.body();
        let Some(body) = batch.get(body.start as usize..body.end as usize) else {
            return false;
        };
        let (key, payload) = body.split_at(key_room_bytes(self.key_len) as usize);
        crc32c(&key[..self.key_len.into()]) == self.key_crc32c
            && crc32c(payload) == self.record.crc32c
    }

    /// Where key and payload are, in bytes from the batch's first.
    #[must_use]
    pub fn body(&self) -> Range<u32> {
        let begin = self.payload_offset_bytes - key_room_bytes(self.key_len);
        begin..self.payload_offset_bytes + self.record.len_bytes
    }
}

/// A removal in a batch: what was written of the key up to a batch is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The key's.
    pub fingerprint: Fingerprint,
    /// The version that was removed, for who reads the log by hand.
    pub version: Version,
    /// The last batch that may have an object which this removal is about. A removal that is written again, since
    /// its segment is used for something else, keeps the number.
    pub covers: u64,
}

/// An entry of a batch's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An object is in this batch.
    Object(PlacedObject),
    /// An object is dead.
    Removal(Removal),
}

/// The front of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The segment that it is of.
    pub tag: SegmentTag,
    /// Its number in the order of batches. Nothing else decides which of two objects is the later one.
    pub sequence: u64,
    /// Where it begins, in blocks from its segment's first.
    pub at_block: u32,
    /// Its length in blocks.
    pub len_blocks: u32,
    /// Entries of its table: 1 to [`ENTRIES_MAX`].
    pub entries: u16,
    /// CRC32C of the table.
    pub table_crc32c: u32,
}

impl BatchHeader {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; BATCH_HEADER_BYTES] {
        let mut out: [u8; BATCH_HEADER_BYTES] = begun(MAGIC);
        out[6..8].copy_from_slice(&self.entries.to_le_bytes());
        out[8..16].copy_from_slice(&self.tag.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.tag.log_id.to_le_bytes());
        out[24..32].copy_from_slice(&self.tag.mount.to_le_bytes());
        out[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        out[40..44].copy_from_slice(&self.at_block.to_le_bytes());
        out[44..48].copy_from_slice(&self.len_blocks.to_le_bytes());
        out[48..52].copy_from_slice(&self.table_crc32c.to_le_bytes());
        ended(out)
    }

    /// The header at the front of `bytes`.
    ///
    /// # Errors
    /// [`FormatFault`] if there is no whole one of this format.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatFault> {
        let part = Part::BatchHeader;
        let cut = |cut| FormatFault::Truncated { part, cut };
        let out_of_limits = |field| FormatFault::FieldOutOfLimits { part, field };
        let mut fields = opened::<BATCH_HEADER_BYTES>(part, MAGIC, bytes)?;
        let entries = fields.u16().map_err(cut)?;
        let sequence = fields.u64().map_err(cut)?;
        let (log_id, mount) = (fields.u64().map_err(cut)?, fields.u64().map_err(cut)?);
        let header = Self {
            tag: SegmentTag {
                log_id,
                mount,
                sequence,
            },
            entries,
            sequence: counted(part, "batch sequence", fields.u64().map_err(cut)?)?,
            at_block: fields.u32().map_err(cut)?,
            len_blocks: fields.u32().map_err(cut)?,
            table_crc32c: fields.u32().map_err(cut)?,
        };
        zeros(part, &fields)?;
        if entries == 0 || usize::from(entries) > ENTRIES_MAX {
            return Err(out_of_limits("entries"));
        }
        let blocks_max = SEGMENT_BYTES_MAX / BLOCK_BYTES;
        if header.at_block < SEGMENT_HEAD_BLOCKS || header.at_block >= blocks_max {
            return Err(out_of_limits("at_block"));
        }
        let table_blocks = header.table_end_bytes().div_ceil(BLOCK_BYTES as usize);
        if header.len_blocks > blocks_max || (header.len_blocks as usize) < table_blocks {
            return Err(out_of_limits("len_blocks"));
        }
        Ok(header)
    }

    /// Whether it is of this segment and place, and ends inside of it.
    ///
    /// # Errors
    /// [`FormatFault::Stale`] if it was written for another one.
    pub fn check_place(
        &self,
        tag: SegmentTag,
        at_block: u32,
        end_block: u32,
    ) -> Result<(), FormatFault> {
        let is_same_tag = self.tag == tag || mutant::is_on(Mutant::LogStaleAccepted);
        let is_inside = self.len_blocks <= end_block.saturating_sub(at_block);
        if is_same_tag && self.at_block == at_block && is_inside {
            Ok(())
        } else {
            Err(FormatFault::Stale {
                part: Part::BatchHeader,
            })
        }
    }

    /// Length of header and table.
    #[must_use]
    pub fn table_end_bytes(&self) -> usize {
        BATCH_HEADER_BYTES + usize::from(self.entries) * ENTRY_BYTES
    }

    /// The entries of the table that follows the header in the batch's `bytes`.
    ///
    /// # Errors
    /// [`FormatFault`] if they are cut off, damaged, or out of their limits.
    pub fn table(&self, bytes: &[u8]) -> Result<Vec<Entry>, FormatFault> {
        let part = Part::BatchTable;
        let cut = |cut| FormatFault::Truncated { part, cut };
        let mut reader = Reader::new(bytes);
        let whole = reader.bytes(self.table_end_bytes()).map_err(cut)?;
        let table = &whole[BATCH_HEADER_BYTES..];
        let (found, expected) = (crc32c(table), self.table_crc32c);
        if found != expected && !mutant::is_on(Mutant::LogChecksumIgnored) {
            return Err(FormatFault::Damaged {
                part,
                found,
                expected,
            });
        }
        let entries = table.chunks_exact(ENTRY_BYTES);
        entries.map(|entry| self.entry(entry)).collect()
    }

    fn entry(&self, bytes: &[u8]) -> Result<Entry, FormatFault> {
        let part = Part::BatchTable;
        let cut = |cut| FormatFault::Truncated { part, cut };
        let out_of_limits = |field| FormatFault::FieldOutOfLimits { part, field };
        let mut fields = Reader::new(bytes);
        let fingerprint = Fingerprint(fields.u128().map_err(cut)?);
        let version = Version {
            epoch: fields.u64().map_err(cut)?,
            sequence: fields.u64().map_err(cut)?,
        };
        let generation = fields.u64().map_err(cut)?;
        let mut place = Reader::new(fields.bytes(8).map_err(cut)?);
        let (crc32c, notes) = (fields.u32().map_err(cut)?, fields.u32().map_err(cut)?);
        let (key_len, kind) = (fields.u16().map_err(cut)?, fields.u8().map_err(cut)?);
        let zero = fields.u8().map_err(cut)?;
        let key_crc32c = fields.u32().map_err(cut)?;
        if zero != 0 {
            return Err(out_of_limits("zero"));
        }
        match kind {
            KIND_REMOVAL => {
                let covers = place.u64().map_err(cut)?;
                if (generation, crc32c, notes, key_len, key_crc32c) != (0, 0, 0, 0, 0) {
                    return Err(out_of_limits("zero"));
                }
                let removal = Removal {
                    fingerprint,
                    version,
                    covers,
                };
                Ok(Entry::Removal(removal))
            }
            KIND_OBJECT => {
                let payload_offset_bytes = place.u32().map_err(cut)?;
                let len_bytes = place.u32().map_err(cut)?;
                let record = Record {
                    fingerprint,
                    version,
                    generation,
                    notes,
                    len_bytes,
                    crc32c,
                };
                let object = PlacedObject {
                    record,
                    key_len,
                    key_crc32c,
                    payload_offset_bytes,
                };
                self.check_object(&object)?;
                Ok(Entry::Object(object))
            }
            _ => Err(out_of_limits("kind")),
        }
    }

    fn check_object(&self, object: &PlacedObject) -> Result<(), FormatFault> {
        let part = Part::BatchTable;
        let out_of_limits = |field| FormatFault::FieldOutOfLimits { part, field };
        if object.key_len == 0 || usize::from(object.key_len) > KEY_BYTES_MAX {
            return Err(out_of_limits("key_len"));
        }
        let offset = u64::from(object.payload_offset_bytes);
        let first = self.table_end_bytes() as u64 + u64::from(key_room_bytes(object.key_len));
        if offset < first || !offset.is_multiple_of(u64::from(ALIGN_BYTES)) {
            return Err(out_of_limits("payload_offset"));
        }
        let end = u64::from(self.len_blocks) * u64::from(BLOCK_BYTES);
        if offset + u64::from(object.record.len_bytes) > end {
            return Err(out_of_limits("payload_len"));
        }
        Ok(())
    }
}

const KIND_OBJECT: u8 = 1;
const KIND_REMOVAL: u8 = 2;

fn encode_entry(entry: &Entry) -> [u8; ENTRY_BYTES] {
    let mut out = [0; ENTRY_BYTES];
    let (fingerprint, version, kind) = match entry {
        Entry::Object(object) => {
            let record = &object.record;
            out[32..40].copy_from_slice(&record.generation.to_le_bytes());
            out[40..44].copy_from_slice(&object.payload_offset_bytes.to_le_bytes());
            out[44..48].copy_from_slice(&record.len_bytes.to_le_bytes());
            out[48..52].copy_from_slice(&record.crc32c.to_le_bytes());
            out[52..56].copy_from_slice(&record.notes.to_le_bytes());
            out[56..58].copy_from_slice(&object.key_len.to_le_bytes());
            out[60..64].copy_from_slice(&object.key_crc32c.to_le_bytes());
            (record.fingerprint, record.version, KIND_OBJECT)
        }
        Entry::Removal(removal) => {
            out[40..48].copy_from_slice(&removal.covers.to_le_bytes());
            (removal.fingerprint, removal.version, KIND_REMOVAL)
        }
    };
    out[0..16].copy_from_slice(&fingerprint.0.to_le_bytes());
    out[16..24].copy_from_slice(&version.epoch.to_le_bytes());
    out[24..32].copy_from_slice(&version.sequence.to_le_bytes());
    out[58] = kind;
    out
}

/// What is to be in a batch, in its order.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// An object, with its key.
    Object {
        /// What it is.
        record: Record,
        /// 1 to [`KEY_BYTES_MAX`] bytes.
        key: &'a [u8],
    },
    /// A removal.
    Removal(Removal),
}

/// A piece of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// These bytes of [`Encoded::own`].
    Own(Range<usize>),
    /// The payload of the item of this index.
    Payload(usize),
}

/// A batch, but for its payloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Header, table, keys and zeros.
    pub own: Vec<u8>,
    /// What the batch is made of, in the order of the drive. There is none of no length.
    pub pieces: Vec<Piece>,
    /// Its table: an entry per item.
    pub entries: Vec<Entry>,
    /// Its header.
    pub header: BatchHeader,
}

/// The batch of these items.
///
/// # Panics
/// If there are none or more than [`ENTRIES_MAX`], if a key is outside its limits, or if the batch is longer than
/// [`SEGMENT_BYTES_MAX`]: callers bound what they put together.
#[must_use]
pub fn encode(tag: SegmentTag, sequence: u64, at_block: u32, items: &[Item<'_>]) -> Encoded {
    assert!(
        (1..=ENTRIES_MAX).contains(&items.len()),
        "a batch is bounded"
    );
    let mut cursor =
        u32::try_from(BATCH_HEADER_BYTES + items.len() * ENTRY_BYTES).expect("at most 64 KiB");
    let mut entries = Vec::with_capacity(items.len());
    for item in items {
        entries.push(match *item {
            Item::Removal(removal) => Entry::Removal(removal),
            Item::Object { record, key } => {
                let object = placed(record, key, cursor);
                cursor = object.body().end.next_multiple_of(ALIGN_BYTES);
                Entry::Object(object)
            }
        });
    }
    let len_blocks = blocks_for(cursor);
    assert!(
        len_blocks <= SEGMENT_BYTES_MAX / BLOCK_BYTES,
        "a batch is bounded"
    );
    let table: Vec<u8> = entries.iter().flat_map(encode_entry).collect();
    let header = BatchHeader {
        tag,
        sequence,
        at_block,
        len_blocks,
        entries: u16::try_from(items.len()).expect("at most 1,023"),
        table_crc32c: crc32c(&table),
    };
    let mut own = header.encode().to_vec();
    own.extend_from_slice(&table);
    let pieces = laid_out(&mut own, &entries, items, len_blocks);
    Encoded {
        own,
        pieces,
        entries,
        header,
    }
}

fn placed(record: Record, key: &[u8], cursor: u32) -> PlacedObject {
    assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "a key is bounded");
    let key_len = u16::try_from(key.len()).expect("1,024 fit 16 bits");
    let mut payload_offset_bytes = cursor + key_room_bytes(key_len);
    if record.len_bytes >= ALIGNED_PAYLOAD_BYTES_MIN {
        payload_offset_bytes = payload_offset_bytes.next_multiple_of(BLOCK_BYTES);
    }
    PlacedObject {
        record,
        key_len,
        key_crc32c: crc32c(key),
        payload_offset_bytes,
    }
}

/// The pieces, with keys and zeros appended to the batch's own bytes.
fn laid_out(
    own: &mut Vec<u8>,
    entries: &[Entry],
    items: &[Item<'_>],
    len_blocks: u32,
) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(2 * entries.len() + 1);
    // How much of the batch is laid out, and since where it is the batch's own bytes.
    let (mut at, mut since) = (own.len(), 0);
    for (index, (entry, item)) in entries.iter().zip(items).enumerate() {
        let (Entry::Object(object), Item::Object { key, .. }) = (entry, item) else {
            continue;
        };
        let body = object.body();
        own.resize(own.len() + (body.start as usize - at), 0);
        own.extend_from_slice(key);
        own.resize(
            own.len() + (key_room_bytes(object.key_len) as usize - key.len()),
            0,
        );
        at = body.end as usize;
        if object.record.len_bytes > 0 {
            pieces.push(Piece::Own(since..own.len()));
            pieces.push(Piece::Payload(index));
            since = own.len();
        }
    }
    own.resize(
        own.len() + (len_blocks as usize * BLOCK_BYTES as usize - at),
        0,
    );
    if since < own.len() {
        pieces.push(Piece::Own(since..own.len()));
    }
    pieces
}
