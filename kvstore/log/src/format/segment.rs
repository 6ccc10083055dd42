//! The head of a segment: a header, written with its first batch, and a seal, written when it is full.
//!
//! The seal says where the segment ends. Before it is there, the end is where the first batch is that is not
//! whole, and whoever opens the log reads all payloads to find it, and then writes the seal: an end that was
//! found once stays, whatever is found behind it later.

use super::checked::{FormatFault, Part, begun, counted, ended, opened, zeros};
use super::{BLOCK_BYTES, SEGMENT_HEAD_BLOCKS};

/// Bytes of a header, and of a seal, that are used; the rest of its block is zero.
pub const SEGMENT_PART_BYTES: usize = 64;

/// Which segment of which log a part is of. The header, the seal and each batch carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentTag {
    /// The log's: see [`Superblock`](super::superblock::Superblock).
    pub log_id: u64,
    /// The mount in which the segment was begun.
    pub mount: u64,
    /// Its place in the order of segments, from 1. A segment that is used again gets a new one.
    pub sequence: u64,
}

/// Whether a segment holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// It does.
    Used,
    /// Everything in it has moved, or is dead.
    Freed,
}

/// The first block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Which segment it is.
    pub tag: SegmentTag,
    /// Whether it holds something.
    pub state: SegmentState,
    /// The number of its first batch.
    pub first_batch: u64,
    /// The earliest generation that was alive when it was begun.
    pub generation: u64,
    /// Where it is.
    pub segment_index: u32,
}

const HEADER_MAGIC: [u8; 4] = *b"LNSG";

impl SegmentHeader {
    /// Its block.
    #[must_use]
    pub fn encode(&self) -> [u8; BLOCK_BYTES as usize] {
        let mut out: [u8; SEGMENT_PART_BYTES] = begun(HEADER_MAGIC);
        let state: u16 = match self.state {
            SegmentState::Used => 1,
            SegmentState::Freed => 2,
        };
        out[6..8].copy_from_slice(&state.to_le_bytes());
        put_tag(&mut out, self.tag);
        out[32..40].copy_from_slice(&self.first_batch.to_le_bytes());
        out[40..48].copy_from_slice(&self.generation.to_le_bytes());
        out[48..52].copy_from_slice(&self.segment_index.to_le_bytes());
        in_block(out)
    }

    /// The header at the front of `bytes`.
    ///
    /// # Errors
    /// [`FormatFault`] if there is no whole one of this format.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatFault> {
        let part = Part::SegmentHeader;
        let cut = |cut| FormatFault::Truncated { part, cut };
        let mut fields = opened::<SEGMENT_PART_BYTES>(part, HEADER_MAGIC, bytes)?;
        let state = match fields.u16().map_err(cut)? {
            1 => SegmentState::Used,
            2 => SegmentState::Freed,
            _ => {
                return Err(FormatFault::FieldOutOfLimits {
                    part,
                    field: "state",
                });
            }
        };
        let tag = take_tag(part, &mut fields)?;
        let first_batch = counted(part, "first_batch", fields.u64().map_err(cut)?)?;
        let generation = fields.u64().map_err(cut)?;
        let segment_index = fields.u32().map_err(cut)?;
        zeros(part, &fields)?;
        Ok(Self {
            tag,
            state,
            first_batch,
            generation,
            segment_index,
        })
    }
}

/// The second block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Which segment it is of.
    pub tag: SegmentTag,
    /// The number of the batch that would come next.
    pub next_batch: u64,
    /// Blocks of the segment, from its first, up to the end of its last batch.
    pub end_blocks: u32,
    /// Where the segment is.
    pub segment_index: u32,
}

const SEAL_MAGIC: [u8; 4] = *b"LNSE";

impl Seal {
    /// Its block.
    #[must_use]
    pub fn encode(&self) -> [u8; BLOCK_BYTES as usize] {
        let mut out: [u8; SEGMENT_PART_BYTES] = begun(SEAL_MAGIC);
        put_tag(&mut out, self.tag);
        out[32..40].copy_from_slice(&self.next_batch.to_le_bytes());
        out[40..44].copy_from_slice(&self.end_blocks.to_le_bytes());
        out[44..48].copy_from_slice(&self.segment_index.to_le_bytes());
        in_block(out)
    }

    /// The seal at the front of `bytes`.
    ///
    /// # Errors
    /// [`FormatFault`] if there is no whole one of this format.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatFault> {
        let part = Part::Seal;
        let cut = |cut| FormatFault::Truncated { part, cut };
        let out_of_limits = |field| FormatFault::FieldOutOfLimits { part, field };
        let mut fields = opened::<SEGMENT_PART_BYTES>(part, SEAL_MAGIC, bytes)?;
        if fields.u16().map_err(cut)? != 0 {
            return Err(out_of_limits("zero"));
        }
        let tag = take_tag(part, &mut fields)?;
        let next_batch = counted(part, "next_batch", fields.u64().map_err(cut)?)?;
        let (end_blocks, segment_index) = (fields.u32().map_err(cut)?, fields.u32().map_err(cut)?);
        if end_blocks < SEGMENT_HEAD_BLOCKS {
            return Err(out_of_limits("end_blocks"));
        }
        zeros(part, &fields)?;
        Ok(Self {
            tag,
            next_batch,
            end_blocks,
            segment_index,
        })
    }
}

fn put_tag(out: &mut [u8; SEGMENT_PART_BYTES], tag: SegmentTag) {
    out[8..16].copy_from_slice(&tag.sequence.to_le_bytes());
    out[16..24].copy_from_slice(&tag.log_id.to_le_bytes());
    out[24..32].copy_from_slice(&tag.mount.to_le_bytes());
}

fn take_tag(
    part: Part,
    fields: &mut lunette_runtime_core::codec::Reader<'_>,
) -> Result<SegmentTag, FormatFault> {
    let cut = |cut| FormatFault::Truncated { part, cut };
    let sequence = counted(part, "segment sequence", fields.u64().map_err(cut)?)?;
    let log_id = fields.u64().map_err(cut)?;
    let mount = counted(part, "mount", fields.u64().map_err(cut)?)?;
    Ok(SegmentTag {
        log_id,
        mount,
        sequence,
    })
}

fn in_block(part: [u8; SEGMENT_PART_BYTES]) -> [u8; BLOCK_BYTES as usize] {
    let mut block = [0; BLOCK_BYTES as usize];
    block[..SEGMENT_PART_BYTES].copy_from_slice(&ended(part));
    block
}
