//! What requests move: pieces, a few bytes, parts of a device's memory.
//!
//! A trait, so that each kind has its own way from call to adapter, in which nothing asks which kind
//! it is.

use super::INLINE_BYTES_MAX;
use super::entries::{Entries, Held};
use crate::device_memory::DeviceMemory;
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

pub(super) trait Payload {
    /// Whether a request can move it, with so many inline bytes at most.
    fn fits(&self, inline_bytes_max: u32) -> bool;

    /// How the request names it. Inline bytes are copied to `room`, of which they are named.
    fn name(&self, room: &mut [u8; INLINE_BYTES_MAX]) -> Named;

    /// Hands it over to the entry of its request, whose place is the answer.
    fn hold(self, entries: &mut Entries) -> u32;

    /// The piece of a request that is not made, if it has one.
    fn into_piece(self) -> Option<Piece>;
}

/// The first bytes of a piece.
pub(super) struct OfPiece(pub(super) Piece, pub(super) usize);

impl Payload for OfPiece {
    fn fits(&self, _inline_bytes_max: u32) -> bool {
        self.1 <= self.0.len()
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

    fn hold(self, entries: &mut Entries) -> u32 {
        entries.insert(Some(self.0))
    }

    fn into_piece(self) -> Option<Piece> {
        Some(self.0)
    }
}

/// A few bytes, borrowed until the request is staged.
pub(super) struct Inline<'a>(pub(super) &'a [u8]);

impl Payload for Inline<'_> {
    fn fits(&self, inline_bytes_max: u32) -> bool {
        self.0.len() <= inline_bytes_max as usize
    }

    fn name(&self, room: &mut [u8; INLINE_BYTES_MAX]) -> Named {
        let len = self.0.len();
        room[..len].copy_from_slice(self.0);
        Named {
            address: room.as_ptr().expose_provenance() as u64,
            len_bytes: u32::try_from(len).expect("checked against the inline limit"),
            lkey: 0,
            is_inline: len > 0,
        }
    }

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

impl Payload for OfDevice {
    fn fits(&self, _inline_bytes_max: u32) -> bool {
        true
    }

    fn name(&self, _room: &mut [u8; INLINE_BYTES_MAX]) -> Named {
        Named {
            address: self.address,
            len_bytes: self.len_bytes,
            lkey: self.memory.lkey(),
            is_inline: false,
        }
    }

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

impl Payload for OfLent {
    fn fits(&self, _inline_bytes_max: u32) -> bool {
        true
    }

    fn name(&self, _room: &mut [u8; INLINE_BYTES_MAX]) -> Named {
        Named {
            address: self.0.address(),
            len_bytes: self.0.len_bytes(),
            lkey: self.0.lkey(),
            is_inline: false,
        }
    }

    fn hold(self, entries: &mut Entries) -> u32 {
        let key = entries.insert(None);
        entries.hold(key, Held::Lent(self.0));
        key
    }

    fn into_piece(self) -> Option<Piece> {
        None
    }
}
