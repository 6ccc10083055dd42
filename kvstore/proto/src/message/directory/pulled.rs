//! Writes whose bytes an owner's adapter reads where they lie, in memory of the asker's.
//!
//! ```text
//!  pull:     version u8 | connection u64 | length u32 | crc32c u32 | count u16 | places | a write
//! ```
//!
//! The places are in the asker's memory, as those that are written to are ([`PushPlace`]), and hold the value, one after
//! the other. Nothing is said of them once the write is answered: whatever is read there later is of no use to anybody,
//! since it does not match its checksum.

use lunette_runtime_core::codec::Writer;
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;

#[cfg(doc)]
use super::adapters::PLACES_MAX;
use super::adapters::{PushPlace, put_places, take_places};
use super::wire::{Decoder, Encoder};
use crate::message::{FormatVersion, MessageFault};

/// That the bytes of a write are to be read, rather than that they follow. A [`WriteMessage`](super::WriteMessage)
/// follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullWish {
    /// Over which queue pair.
    pub connection: u64,
    /// CRC32C of the value.
    pub crc32c: u32,
    /// Where the value lies: one to [`PLACES_MAX`] places, one after the other, of at least a byte each.
    pub places: Vec<PushPlace>,
}

impl PullWish {
    /// How long the value is.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        let lens = self.places.iter().map(|place| place.len_bytes);
        lens.fold(0, u32::saturating_add)
    }

    /// Appends the wish to `out`, in a version that is spoken here: what it is about follows.
    ///
    /// # Panics
    /// If there are more places than [`PLACES_MAX`].
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::begin(version, out);
        Writer::new(out).u64(self.connection).u32(self.crc32c);
        put_places(&self.places, out);
    }

    /// The wish at the front of `body`, and what follows it.
    ///
    /// # Errors
    /// [`MessageFault`] if there is none; also of no place, of too many, and of more bytes than a value may have.
    pub fn split(body: &[u8]) -> Result<(Self, &[u8]), MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let (connection, crc32c) = (reader.u64()?, reader.u32()?);
        let wish = Self {
            connection,
            crc32c,
            places: take_places(reader)?,
        };
        if wish.len_bytes() as usize > PAYLOAD_BYTES_MAX {
            return Err(MessageFault::Descriptor);
        }
        Ok((wish, reader.rest()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::directory::PLACES_MAX;

    const V1: FormatVersion = FormatVersion(1);

    fn wish(lens: &[u32]) -> PullWish {
        let places = (1..).zip(lens).map(|(n, len)| PushPlace {
            address: n << 20,
            key: 0x0102_0304,
            len_bytes: *len,
        });
        PullWish {
            connection: 7,
            crc32c: 9,
            places: places.collect(),
        }
    }

    fn encoded(wish: &PullWish) -> Vec<u8> {
        let mut body = Vec::new();
        wish.encode(V1, &mut body);
        body
    }

    #[test]
    fn a_wish_is_read_whole_or_not_at_all_and_leaves_what_follows() {
        let wish = wish(&[100, 1]);
        let mut body = encoded(&wish);
        let golden = [
            1, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 4, 3, 2, 1, 100,
            0, 0, 0,
        ];
        assert_eq!(body[..golden.len()], golden);
        for len in 0..body.len() {
            assert!(PullWish::split(&body[..len]).is_err(), "{len}");
        }
        body.extend_from_slice(b"rest");
        assert_eq!(PullWish::split(&body), Ok((wish.clone(), &b"rest"[..])));
        assert_eq!(wish.len_bytes(), 101);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        assert!(PullWish::split(&encoded(&wish(&[1; PLACES_MAX]))).is_ok());
        let mut many = encoded(&wish(&[1; PLACES_MAX]));
        many[13] = 17;
        let (found, items_max) = (17, PLACES_MAX);
        let refused = MessageFault::TooManyItems { found, items_max };
        assert_eq!(PullWish::split(&many), Err(refused));
        let invalid = Err(MessageFault::Descriptor);
        let whole = u32::try_from(PAYLOAD_BYTES_MAX).expect("bounded");
        assert!(PullWish::split(&encoded(&wish(&[whole]))).is_ok());
        for lens in [&[][..], &[1, 0], &[whole, 1], &[u32::MAX, u32::MAX]] {
            assert_eq!(PullWish::split(&encoded(&wish(lens))), invalid);
        }
        let mut beyond = wish(&[2]);
        beyond.places[0].address = u64::MAX - 1;
        assert_eq!(PullWish::split(&encoded(&beyond)), invalid);
    }
}
