//! Values and what they cost.

use std::cell::OnceCell;
use std::rc::Rc;

use lunette_kvstore_proto::extent::ExtentLayout;
use lunette_runtime::arena::{Exposed, Region};
use lunette_runtime::net::MESSAGE_PARTS_MAX;
use lunette_runtime::time;
use lunette_runtime_core::carve::GRANULE_BYTES;
use lunette_runtime_core::checksum::{Crc32c, crc32c, joined_crc32c};
use lunette_runtime_core::limits::{KEY_BYTES_MAX, PAYLOAD_BYTES_MAX};
use lunette_transfer::{Payload, Room, WriteSource};

use crate::error::StoreErrorKind;

/// Most pieces of one value, or of one part of it: what one message to a peer can hold besides its head.
pub const VALUE_PIECES_MAX: usize = MESSAGE_PARTS_MAX - 4;

/// Bytes that are summed before others on this core have their turn.
const TURN_BYTES: usize = 1024 * 1024;

/// Bytes to be put, and their checksum. Clones share the bytes, which stay until the last operation on
/// them has been reaped.
///
/// The CRC32C is computed once, when it is first needed: beside the copy where the bytes stay on this core.
/// If somebody writes to exposed memory between that and the sending, the node finds that it does not fit,
/// and the put ends as `TimedOut`.
#[derive(Clone, Debug)]
pub struct Value {
    pieces: Pieces,
    len_bytes: usize,
    crc32c: OnceCell<u32>,
}

#[derive(Clone, Debug)]
enum Pieces {
    None,
    One(Region),
    Many(Rc<[WriteSource]>),
}

impl Value {
    /// A value of the region's bytes.
    #[must_use]
    pub fn new(region: Region) -> Self {
        let len_bytes = region.len();
        let pieces = if region.is_empty() {
            Pieces::None
        } else {
            Pieces::One(region)
        };
        Self {
            pieces,
            len_bytes,
            crc32c: OnceCell::new(),
        }
    }

    /// A value of the pieces' bytes, one after the other, which are sent from where they lie: at most
    /// [`VALUE_PIECES_MAX`] of them, or as many in each part of an object in parts. Empty ones are allowed.
    #[must_use]
    pub fn gathered(mut pieces: Vec<WriteSource>) -> Self {
        pieces.retain(|piece| !piece.is_empty());
        let len_bytes = pieces.iter().map(WriteSource::len).sum();
        let pieces = match pieces.len() {
            0 => Pieces::None,
            _ => Pieces::Many(pieces.into()),
        };
        Self {
            pieces,
            len_bytes,
            crc32c: OnceCell::new(),
        }
    }

    /// A value of no bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self::gathered(Vec::new())
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len_bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// A part of it, without its checksum.
    ///
    /// # Panics
    /// If it does not lie inside.
    pub(crate) fn slice(&self, start: usize, len: usize) -> Self {
        let end = start.checked_add(len).expect("inside a value");
        assert!(end <= self.len_bytes, "a part of a value");
        let pieces = match &self.pieces {
            Pieces::None => return Self::empty(),
            Pieces::One(region) => return Self::new(region.slice(start, len)),
            Pieces::Many(pieces) => pieces,
        };
        let (mut parts, mut begins_at) = (Vec::new(), 0);
        for piece in pieces.iter() {
            let ends_at = begins_at + piece.len();
            let (from, to) = (start.max(begins_at), end.min(ends_at));
            if from < to {
                parts.push(piece.slice(from - begins_at, to - from));
            }
            begins_at = ends_at;
        }
        Self::gathered(parts)
    }

    /// Why it cannot be an object's, if it cannot.
    pub(crate) fn check(&self) -> Result<(), StoreErrorKind> {
        let len_bytes = self.len_bytes;
        if len_bytes > PAYLOAD_BYTES_MAX {
            let len_max_bytes = PAYLOAD_BYTES_MAX as u64;
            return Err(StoreErrorKind::ValueTooLong {
                len_bytes,
                len_max_bytes,
            });
        }
        match &self.pieces {
            Pieces::Many(pieces) if pieces.len() > VALUE_PIECES_MAX => {
                let pieces = pieces.len();
                Err(StoreErrorKind::TooManyPieces { pieces })
            }
            _ => Ok(()),
        }
    }

    /// The CRC32C of its bytes.
    pub(crate) fn crc32c(&self) -> u32 {
        *self.crc32c.get_or_init(|| match &self.pieces {
            Pieces::None => crc32c(&[]),
            Pieces::One(region) => crc32c(region.as_slice()),
            Pieces::Many(pieces) => {
                let mut checksum = Crc32c::new();
                for piece in pieces.iter() {
                    piece.fold(&mut checksum);
                }
                checksum.value()
            }
        })
    }

    /// Its pieces, if all of it is in exposed memory; `None` if it is not, or is empty.
    pub(crate) fn exposed(&self) -> Option<Vec<&Exposed>> {
        let Pieces::Many(pieces) = &self.pieces else {
            return None;
        };
        let exposed = pieces.iter().map(|piece| match piece {
            WriteSource::Exposed(memory) => Some(memory),
            WriteSource::Region(_) => None,
        });
        exposed.collect()
    }

    /// Appends its pieces to `to`: what goes behind a request of several values.
    pub(crate) fn append_to(&self, to: &mut Vec<WriteSource>) {
        match &self.pieces {
            Pieces::None => {}
            Pieces::One(region) => to.push(WriteSource::Region(region.clone())),
            Pieces::Many(pieces) => to.extend_from_slice(pieces),
        }
    }

    /// In how many pieces it is.
    pub(crate) fn pieces(&self) -> usize {
        match &self.pieces {
            Pieces::None => 0,
            Pieces::One(_) => 1,
            Pieces::Many(pieces) => pieces.len(),
        }
    }

    /// What goes behind a request.
    pub(crate) fn payload(&self) -> Option<Payload> {
        let crc32c = self.crc32c();
        match &self.pieces {
            Pieces::None => None,
            Pieces::One(region) => Some(Payload::region(region.clone(), crc32c)),
            Pieces::Many(pieces) => Some(Payload::pieces(pieces.to_vec(), crc32c)),
        }
    }

    /// Copies the bytes, which fill `to`; the CRC32C of the copy.
    pub(crate) fn copy_summed(&self, to: &mut [u8]) -> u32 {
        match &self.pieces {
            Pieces::None => crc32c(&[]),
            Pieces::One(region) => region.copy_out_summed(to),
            Pieces::Many(pieces) => {
                let (mut sum, mut rest) = (None, to);
                for piece in pieces.iter() {
                    let (now, later) = rest.split_at_mut(piece.len());
                    let then = piece.copy_out_summed(now);
                    let len_bytes = piece.len() as u64;
                    sum = Some(sum.map_or(then, |sum| joined_crc32c(sum, then, len_bytes)));
                    rest = later;
                }
                debug_assert!(rest.is_empty(), "room for the value and no more");
                sum.expect("a value in pieces has some")
            }
        }
    }
}

/// CRC32C of the first bytes of a room, which others on this core have turns beside.
pub(crate) async fn sum_of(room: &Room, len: usize) -> u32 {
    let mut checksum = Crc32c::new();
    for start in (0..len).step_by(TURN_BYTES) {
        if start > 0 {
            time::yield_now().await;
        }
        room.fold(start, TURN_BYTES.min(len - start), &mut checksum);
    }
    checksum.value()
}

/// What an object costs against a node's memory, in bytes: header, key and value, rounded to the
/// allocator's granule.
///
/// # Panics
/// If a length is beyond [`KEY_BYTES_MAX`] or [`PAYLOAD_BYTES_MAX`].
#[must_use]
pub fn extent_bytes(key_len: usize, value_len: usize) -> u64 {
    assert!(key_len <= KEY_BYTES_MAX, "a key of {key_len} bytes");
    assert!(
        value_len <= PAYLOAD_BYTES_MAX,
        "a value of {value_len} bytes"
    );
    let key_len = u16::try_from(key_len).expect("just checked");
    let value_len = u32::try_from(value_len).expect("just checked");
    u64::from(carved_bytes(ExtentLayout::for_object(key_len, value_len)))
}

/// Bytes that the arena takes for an extent.
pub(crate) const fn carved_bytes(layout: ExtentLayout) -> u32 {
    layout.total_bytes.next_multiple_of(GRANULE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_value_is_its_bytes() {
        use lunette_runtime::arena::{Arena, ArenaOptions};
        let arena = Arena::new(ArenaOptions::default());
        let region = |bytes: &[u8]| {
            let mut region = arena.alloc(bytes.len()).expect("room");
            region.as_mut_slice().copy_from_slice(bytes);
            region
        };
        let pieces = vec![
            region(b"abc").freeze().into(),
            region(b"d").expose().into(),
            region(b"efgh").freeze().into(),
        ];
        let whole = b"abcdefgh";
        let values = [Value::new(region(whole).freeze()), Value::gathered(pieces)];
        for value in values {
            for start in 0..=whole.len() {
                for end in start..=whole.len() {
                    let part = value.slice(start, end - start);
                    let mut bytes = vec![0; end - start];
                    assert_eq!(part.copy_summed(&mut bytes), crc32c(&whole[start..end]));
                    assert_eq!(bytes, whole[start..end]);
                    assert_eq!(part.crc32c(), crc32c(&bytes));
                }
            }
        }
        assert!(Value::empty().slice(0, 0).is_empty());
    }

    #[test]
    fn the_cost_of_an_object_is_what_the_arena_takes() {
        use lunette_runtime::arena::{Arena, ArenaOptions};
        for (key_len, value_len) in [(1, 0), (16, 512), (64, 65_536), (1024, 1 << 20)] {
            let arena = Arena::new(ArenaOptions::default());
            let cost = extent_bytes(key_len, value_len);
            let _extent = arena
                .alloc(usize::try_from(cost).expect("small"))
                .expect("room");
            assert_eq!(arena.used_bytes() as u64, cost);
        }
    }
}
