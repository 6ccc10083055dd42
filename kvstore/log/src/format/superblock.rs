//! The superblock: whose log it is, how it is cut, and how often it was opened.

use super::checked::{FormatFault, Part, begun, counted, ended, opened, zeros};
use super::{BLOCK_BYTES, Geometry};

/// Bytes of a superblock that are used; the rest of its block is zero.
pub const SUPERBLOCK_BYTES: usize = 128;

const MAGIC: [u8; 4] = *b"LNSB";
const PART: Part = Part::Superblock;

/// Whose log it is. Both are the caller's: hashes of names, or drawn once and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's.
    pub cluster: u128,
    /// The drive's, or the directory's, within the cluster.
    pub device: u128,
}

/// What the superblock says. Two copies are written one after the other, and the later one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// How often the log was opened for writing. It rises before anything is written, so that what two lives
    /// of the program have written is told apart.
    pub mount: u64,
    /// Whose it is.
    pub identity: Identity,
    /// Drawn when the drive is formatted, so that what was there before is never taken for its own.
    pub log_id: u64,
    /// Records of earlier generations are dead.
    pub generation: u64,
    /// How it is cut.
    pub geometry: Geometry,
}

impl Superblock {
    /// Its block.
    #[must_use]
    pub fn encode(&self) -> [u8; BLOCK_BYTES as usize] {
        let mut out: [u8; SUPERBLOCK_BYTES] = begun(MAGIC);
        out[8..16].copy_from_slice(&self.mount.to_le_bytes());
        out[16..32].copy_from_slice(&self.identity.cluster.to_le_bytes());
        out[32..48].copy_from_slice(&self.identity.device.to_le_bytes());
        out[48..56].copy_from_slice(&self.log_id.to_le_bytes());
        out[56..64].copy_from_slice(&self.generation.to_le_bytes());
        out[64..72].copy_from_slice(&self.geometry.capacity_bytes.to_le_bytes());
        out[72..76].copy_from_slice(&self.geometry.segment_bytes.to_le_bytes());
        out[76..80].copy_from_slice(&BLOCK_BYTES.to_le_bytes());
        let mut block = [0; BLOCK_BYTES as usize];
        block[..SUPERBLOCK_BYTES].copy_from_slice(&ended(out));
        block
    }

    /// The superblock at the front of `bytes`.
    ///
    /// # Errors
    /// [`FormatFault`] if there is no whole one of this format.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatFault> {
        let mut fields = opened::<SUPERBLOCK_BYTES>(PART, MAGIC, bytes)?;
        let cut = |cut| FormatFault::Truncated { part: PART, cut };
        let out_of_limits = |field| FormatFault::FieldOutOfLimits { part: PART, field };
        if fields.u16().map_err(cut)? != 0 {
            return Err(out_of_limits("zero"));
        }
        let mount = counted(PART, "mount", fields.u64().map_err(cut)?)?;
        let identity = Identity {
            cluster: fields.u128().map_err(cut)?,
            device: fields.u128().map_err(cut)?,
        };
        let (log_id, generation) = (fields.u64().map_err(cut)?, fields.u64().map_err(cut)?);
        let geometry = Geometry {
            capacity_bytes: fields.u64().map_err(cut)?,
            segment_bytes: fields.u32().map_err(cut)?,
        };
        if fields.u32().map_err(cut)? != BLOCK_BYTES {
            return Err(out_of_limits("block_bytes"));
        }
        if !geometry.is_valid() {
            return Err(out_of_limits("geometry"));
        }
        zeros(PART, &fields)?;
        Ok(Self {
            mount,
            identity,
            log_id,
            generation,
            geometry,
        })
    }
}
