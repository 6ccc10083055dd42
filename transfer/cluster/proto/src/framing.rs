//! What frames a record at the coordinator: what it is, which version of that, and a checksum.
//!
//! ```text
//!  | magic (4) | version (2) | content | CRC32C of all before (4) |
//! ```

use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use thiserror::Error;

/// Which records: those of one magic, in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub magic: [u8; 4],
    /// In which version.
    pub version: u16,
}

/// A value that is no record of a kind.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameFault {
    /// It ends too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// It is something else, or of another version.
    #[error("something else, or of another version")]
    Unknown,
    /// Its bytes are damaged.
    #[error("the record is damaged")]
    Damaged,
}

impl Frame {
    /// A record with the content that `write` appends.
    #[must_use]
    pub fn seal(self, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        Writer::new(&mut out).bytes(&self.magic).u16(self.version);
        write(&mut out);
        let crc = crc32c(&out);
        Writer::new(&mut out).u32(crc);
        out
    }

    /// The content of a record.
    ///
    /// # Errors
    /// [`FrameFault`].
    pub fn open(self, bytes: &[u8]) -> Result<Reader<'_>, FrameFault> {
        let Some((content, crc)) = bytes.split_last_chunk::<4>() else {
            return Err(Truncated {
                needed_bytes: 4,
                left_bytes: bytes.len(),
            }
            .into());
        };
        let mut reader = Reader::new(content);
        if reader.array()? != self.magic || reader.u16()? != self.version {
            return Err(FrameFault::Unknown);
        }
        if crc32c(content) != u32::from_le_bytes(*crc) {
            return Err(FrameFault::Damaged);
        }
        Ok(reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_is_opened_and_nothing_else() {
        let frame = Frame {
            magic: *b"TEST",
            version: 3,
        };
        let sealed = frame.seal(|out| out.extend(b"content"));
        let mut reader = frame.open(&sealed).unwrap();
        assert_eq!(reader.bytes(7), Ok(&b"content"[..]));
        assert!(reader.is_empty());
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            let expected = if at < 6 {
                FrameFault::Unknown
            } else {
                FrameFault::Damaged
            };
            assert_eq!(frame.open(&damaged).unwrap_err(), expected, "{at}");
        }
        let later = Frame {
            version: 4,
            ..frame
        };
        assert_eq!(later.open(&sealed).unwrap_err(), FrameFault::Unknown);
        for end in 0..10 {
            let cut = frame.open(&sealed[..end]).unwrap_err();
            assert!(cut != FrameFault::Unknown, "{end}");
        }
    }
}
