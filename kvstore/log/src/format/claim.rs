//! The claim: who may write to a drive that nothing else keeps others from.

use core::fmt;
use core::str;

use super::BLOCK_BYTES;
use super::checked::{FormatFault, Part, begun, counted, ended, opened, zeros};

/// Where the claim is: a block that the log itself leaves alone.
pub const CLAIM_OFFSET_BYTES: u64 = 48 * 1024;
/// Bytes of a claim that are used; the rest of its block is zero.
pub const CLAIM_BYTES: usize = 128;
/// Longest name of who holds a drive, in bytes.
pub const HOLDER_NAME_BYTES_MAX: usize = 64;
/// Longest time, in milliseconds, after which a claim that does not change has lapsed.
pub const LAPSE_MS_MAX: u32 = 60_000;

const MAGIC: [u8; 4] = *b"LNCL";
const PART: Part = Part::Claim;

/// How a person knows who holds a drive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HolderName {
    bytes: [u8; HOLDER_NAME_BYTES_MAX],
    len: u8,
}

impl HolderName {
    /// As much of it as there is room for.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut end = name.len().min(HOLDER_NAME_BYTES_MAX);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; HOLDER_NAME_BYTES_MAX];
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        let len = u8::try_from(end).expect("a name is short");
        Self { bytes, len }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len.into()]).unwrap_or_default()
    }
}

impl fmt::Display for HolderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What somebody else has written may be anything.
        self.as_str().escape_default().fmt(f)
    }
}

impl fmt::Debug for HolderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// What the claim says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimRecord {
    /// Drawn by each who claims a drive, so that no two of them are the same.
    pub holder: u128,
    /// How often the drive has been taken.
    pub taken: u64,
    /// Rises with each sign of life of the holder.
    pub beat: u64,
    /// For how long others watch it unchanged before they take the drive, in milliseconds.
    pub lapse_ms: u32,
    /// Whether it is held, and not given up.
    pub is_held: bool,
    /// Who that is.
    pub name: HolderName,
}

impl ClaimRecord {
    /// Its block.
    #[must_use]
    pub fn encode(&self) -> [u8; BLOCK_BYTES as usize] {
        let mut out: [u8; CLAIM_BYTES] = begun(MAGIC);
        out[6..8].copy_from_slice(&u16::from(self.is_held).to_le_bytes());
        out[8..24].copy_from_slice(&self.holder.to_le_bytes());
        out[24..32].copy_from_slice(&self.taken.to_le_bytes());
        out[32..40].copy_from_slice(&self.beat.to_le_bytes());
        out[40..44].copy_from_slice(&self.lapse_ms.to_le_bytes());
        out[44..48].copy_from_slice(&u32::from(self.name.len).to_le_bytes());
        out[48..48 + HOLDER_NAME_BYTES_MAX].copy_from_slice(&self.name.bytes);
        let mut block = [0; BLOCK_BYTES as usize];
        block[..CLAIM_BYTES].copy_from_slice(&ended(out));
        block
    }

    /// The claim at the front of `bytes`.
    ///
    /// # Errors
    /// [`FormatFault`] if there is no whole one of this format.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatFault> {
        let mut fields = opened::<CLAIM_BYTES>(PART, MAGIC, bytes)?;
        let cut = |cut| FormatFault::Truncated { part: PART, cut };
        let out_of_limits = |field| FormatFault::FieldOutOfLimits { part: PART, field };
        let is_held = match fields.u16().map_err(cut)? {
            0 => false,
            1 => true,
            _ => return Err(out_of_limits("held")),
        };
        let holder = fields.u128().map_err(cut)?;
        let taken = counted(PART, "taken", fields.u64().map_err(cut)?)?;
        let beat = counted(PART, "beat", fields.u64().map_err(cut)?)?;
        let lapse_ms = fields.u32().map_err(cut)?;
        if !(1..=LAPSE_MS_MAX).contains(&lapse_ms) {
            return Err(out_of_limits("lapse"));
        }
        let len = u8::try_from(fields.u32().map_err(cut)?).ok();
        let len = len.filter(|&len| usize::from(len) <= HOLDER_NAME_BYTES_MAX);
        let len = len.ok_or_else(|| out_of_limits("name length"))?;
        let bytes = fields.array().map_err(cut)?;
        if str::from_utf8(&bytes[..len.into()]).is_err() {
            return Err(out_of_limits("name"));
        }
        zeros(PART, &fields)?;
        Ok(Self {
            holder,
            taken,
            beat,
            lapse_ms,
            is_held,
            name: HolderName { bytes, len },
        })
    }
}
