//! What requests move: pieces, a few bytes, parts of a device's memory.
//!
//! Traits, so that each kind has its own way from call to adapter, in which nothing asks which kind
//! it is. Requests of a list are of one type, and asked.

use super::INLINE_BYTES_MAX;
use super::entries::{Entries, Held};
use super::list::Moved;
use crate::device_memory::DeviceMemory;
use crate::error::RequestError;
use crate::lent::Lent;
use crate::memory::Piece;

/// Memory as a work request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) address: u64,
    pub(super) len_bytes: u32,
    pub(super) lkey: u32,
    pub(super) is_inline: bool,
}

/// Memory that a request can move.
pub(super) trait Nameable {
    /// Whether a request can move it, with so many inline bytes at most.
    fn fits(&self, inline_bytes_max: u32) -> Result<(), RequestError>;

    /// How the request names it. Inline bytes are copied to `room`, of which they are named.
    fn name(&self, room: &mut [u8; INLINE_BYTES_MAX]) -> Named;
}

/// What a request moves that is over by itself.
pub(super) trait Payload: Nameable {
    /// Hands it over to the entry of its request, whose place is the answer.
    fn hold(self, entries: &mut Entries) -> u32;

    /// The piece of a request that is not made, if it has one.
    fn into_piece(self) -> Option<Piece>;
}

/// Refuses what is too long.
fn length(fits: bool) -> Result<(), RequestError> {
    if fits {
        return Ok(());
    }
    Err(RequestError::Length)
}

/// The first bytes of a piece.
pub(super) struct OfPiece(pub(super) Piece, pub(super) usize);

impl Nameable for OfPiece {
    fn fits(&self, _inline_bytes_max: u32) -> Result<(), RequestError> {
        length(self.1 <= self.0.len())
    }

    fn name(&self, _room: &mut [u8; INLINE_BYTES_MAX]) -> Named {
        let Self(piece, len) = self;
        Named {
            address: piece.address(),
            len_bytes: u32::try_from(*len).expect("pieces are bounded by a chunk"),
            lkey: piece.lkey(),
            is_inline: false,
        }
    }
}

impl Payload for OfPiece {
    fn hold(self, entries: &mut Entries) -> u32 {
        entries.insert(Some(self.0))
    }

    fn into_piece(self) -> Option<Piece> {
        Some(self.0)
    }
}

/// A few bytes, borrowed until the request is staged.
pub(super) struct Inline<'a>(pub(super) &'a [u8]);

impl Nameable for Inline<'_> {
    fn fits(&self, inline_bytes_max: u32) -> Result<(), RequestError> {
        length(self.0.len() <= inline_bytes_max as usize)
    }

    fn name(&self, room: &mut [u8; INLINE_BYTES_MAX]) -> Named {
        let len = self.0.len();
        room[..len].copy_from_slice(self.0);
        named_inline(room, len)
    }
}

impl Payload for Inline<'_> {
    fn hold(self, entries: &mut Entries) -> u32 {
        entries.insert(None)
    }

    fn into_piece(self) -> Option<Piece> {
        None
    }
}

/// A part of a device's memory, which was checked to be one.
pub(super) struct OfDevice {
    pub(super) memory: DeviceMemory,
    pub(super) address: u64,
    pub(super) len_bytes: u32,
}

impl Nameable for OfDevice {
    fn fits(&self, _inline_bytes_max: u32) -> Result<(), RequestError> {
        Ok(())
    }

    fn name(&self, _room: &mut [u8; INLINE_BYTES_MAX]) -> Named {
        Named {
            address: self.address,
            len_bytes: self.len_bytes,
            lkey: self.memory.lkey(),
            is_inline: false,
        }
    }
}

impl Payload for OfDevice {
    fn hold(self, entries: &mut Entries) -> u32 {
        let key = entries.insert(None);
        entries.hold(key, Held::Device(self.memory));
        key
    }

    fn into_piece(self) -> Option<Piece> {
        None
    }
}

/// Memory of the program's, registered with its extent.
pub(super) struct OfLent(pub(super) Lent);

impl Nameable for OfLent {
    fn fits(&self, _inline_bytes_max: u32) -> Result<(), RequestError> {
        Ok(())
    }

    #[inline]
    fn name(&self, _room: &mut [u8; INLINE_BYTES_MAX]) -> Named {
        named_lent(&self.0)
    }
}

impl Payload for OfLent {
    fn hold(self, entries: &mut Entries) -> u32 {
        let key = entries.insert(None);
        entries.hold(key, Held::Lent(self.0));
        key
    }

    fn into_piece(self) -> Option<Piece> {
        None
    }
}

impl Nameable for Moved {
    #[inline]
    fn fits(&self, inline_bytes_max: u32) -> Result<(), RequestError> {
        match self {
            Self::From(_) => Ok(()),
            Self::Into(lent) if lent.is_writable() => Ok(()),
            Self::Into(_) => Err(RequestError::Refused),
            Self::Few(memory) => length(memory.range().1 <= inline_bytes_max as usize),
        }
    }

    #[inline]
    fn name(&self, room: &mut [u8; INLINE_BYTES_MAX]) -> Named {
        match self {
            Self::Into(lent) | Self::From(lent) => named_lent(lent),
            Self::Few(memory) => {
                let len = memory.copy_to(room);
                named_inline(room, len)
            }
        }
    }
}

#[inline]
fn named_lent(lent: &Lent) -> Named {
    let (address, len_bytes) = lent.range();
    Named {
        address,
        len_bytes,
        lkey: lent.lkey(),
        is_inline: false,
    }
}

/// The first bytes of a ring's place.
fn named_inline(room: &[u8; INLINE_BYTES_MAX], len: usize) -> Named {
    Named {
        address: room.as_ptr().expose_provenance() as u64,
        len_bytes: u32::try_from(len).expect("checked against the inline limit"),
        lkey: 0,
        is_inline: len > 0,
    }
}
