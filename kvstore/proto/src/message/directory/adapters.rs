//! Reads whose bytes RDMA adapters move: an owner writes an object to where its asker wants it, or tells where it
//! lies, and the asker reads it there.
//!
//! ```text
//!  adapters: version u8 | to seat                                           -> count u16
//!  pair:     version u8 | to seat | connection u64 | adapter u16 | message  -> message
//!  push:     version u8 | connection u64 | immediate u32 | answer place | count u16 | places | a get or a read
//!  place:    address u64 | key u32 | length u32
//!  pushed:   bytes reply | length u32 | crc32c u32
//!  far:      version u8 | connection u64 | from u32 | again u8 | hold | a get or a read
//!  reached:  bytes reply | reach
//!  reach:    address u64 | key u32 | word address u64 | word key u32 | number u64 | length u32 | crc32c u32 | held u32
//! ```
//!
//! Messages of the handshake are between the adapters' own machines; an empty one says that nothing more is to be
//! said. The owner writes the object, or its ranges, to the places, one after the other, then the answer ([`PushedReply`]) to its
//! own place, with the immediate, which names the call to the asker: adapters keep that order. Behind that, or in
//! place of it, the request is answered over its connection as any other.
//!
//! What is read far away is judged as what is read on the owner's host ([`Descriptor`](super::Descriptor)): the word
//! says `number` for as long as the memory is the object's.

use lunette_runtime_core::codec::Writer;
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;

use super::NearWish;
use super::object::BytesReply;
use super::wire::{Decoder, Encoder, Wire, body, fields};
use crate::message::{FormatVersion, MessageFault};
use crate::placement::Seat;
use crate::range::ByteRange;

/// Places of one object.
pub const PLACES_MAX: usize = 16;
/// Adapters of one core.
pub const ADAPTERS_MAX: usize = 32;
/// Most bytes of an answer that goes with an immediate.
pub const PUSHED_BYTES_MAX: usize = 64;

/// To be told how many adapters a core can be reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptersMessage {
    /// The core: one life of it only.
    pub to: Seat,
}

/// The answer to [`AdaptersMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptersReply {
    /// How many there are: at most [`ADAPTERS_MAX`].
    pub count: u16,
}

/// A step of the handshake of two adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairMessage<'a> {
    /// The core: one life of it only.
    pub to: Seat,
    /// What the asker calls the queue pair, among those of this connection.
    pub connection: u64,
    /// Which of the core's adapters.
    pub adapter: u16,
    /// What the asker's machine says.
    pub message: &'a [u8],
}

/// Memory of the asker's that one of its adapters lets peers write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushPlace {
    /// What its first byte is named by.
    pub address: u64,
    /// With which key.
    pub key: u32,
    /// Its length in bytes.
    pub len_bytes: u32,
}

/// That the bytes are to be written, rather than sent. A [`GetMessage`](super::GetMessage) or a
/// [`ReadMessage`](super::ReadMessage) follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushWish {
    /// Over which queue pair.
    pub connection: u64,
    /// Names the call to the asker.
    pub immediate: u32,
    /// Where the answer goes.
    pub answer: PushPlace,
    /// Where the object goes, or its ranges: one to [`PLACES_MAX`] places, one after the other.
    pub places: Vec<PushPlace>,
}

/// A write of an owner's: a part of one of the pieces that bytes are in, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushWrite {
    /// Of which piece.
    pub piece: usize,
    /// Where in the piece it begins.
    pub offset_bytes: u32,
    /// Where it goes, and how long it is.
    pub there: PushPlace,
}

/// What is written with the immediate, and answered behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushedReply {
    /// What would have gone with the bytes.
    pub bytes: BytesReply,
    /// How many bytes have been written.
    pub len_bytes: u32,
    /// CRC32C of all of them, of an object's ranges as well.
    pub crc32c: u32,
}

/// That a place to read is wanted rather than the bytes. A [`GetMessage`](super::GetMessage) or a
/// [`ReadMessage`](super::ReadMessage) follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarWish {
    /// Over which queue pair it is read.
    pub connection: u64,
    /// Of what, and for how long it is held.
    pub near: NearWish,
}

/// Where the bytes of an object can be read. All of it is its owner's word, and the asker's to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// What its first byte is named by.
    pub address: u64,
    /// With which key.
    pub key: u32,
    /// What the word is named by that says whether it is the object still.
    pub word_address: u64,
    /// With which key.
    pub word_key: u32,
    /// What the word says as long as it is; never 0.
    pub number: u64,
    /// Length of the object in bytes.
    pub len_bytes: u32,
    /// CRC32C of all of it.
    pub crc32c: u32,
    /// For how long it is kept from eviction, in milliseconds; 0 if it is not.
    pub held_ms: u32,
}

/// The answer in place of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// What would have gone with them.
    pub bytes: BytesReply,
    /// Where they are.
    pub reach: Reach,
}

impl Wire for Reach {
    fn put(&self, out: &mut Encoder<'_>) {
        self.address.put(out);
        self.key.put(out);
        self.word_address.put(out);
        self.word_key.put(out);
        self.number.put(out);
        self.len_bytes.put(out);
        self.crc32c.put(out);
        self.held_ms.put(out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        let reach = Self {
            address: Wire::take(reader)?,
            key: Wire::take(reader)?,
            word_address: Wire::take(reader)?,
            word_key: Wire::take(reader)?,
            number: Wire::take(reader)?,
            len_bytes: Wire::take(reader)?,
            crc32c: Wire::take(reader)?,
            held_ms: Wire::take(reader)?,
        };
        if reach.is_valid() {
            Ok(reach)
        } else {
            Err(MessageFault::Descriptor)
        }
    }
}

fields!(Reached { bytes, reach });
body!(Reached);

impl Reach {
    /// Whether there can be such a place.
    const fn is_valid(&self) -> bool {
        let end = self.address.checked_add(self.len_bytes as u64);
        let word_end = self.word_address.checked_add(8);
        self.number != 0
            && self.len_bytes as usize <= PAYLOAD_BYTES_MAX
            && end.is_some()
            && word_end.is_some()
    }

    /// What the first byte of a range of the object is named by; `None` if it does not lie inside the object.
    #[must_use]
    pub fn start_of(&self, range: ByteRange) -> Option<u64> {
        let start = self.address.checked_add(range.offset_bytes);
        start.filter(|_| range.is_within(self.len_bytes.into()))
    }
}

impl PushPlace {
    const fn has_end(&self) -> bool {
        self.address.checked_add(self.len_bytes as u64).is_some()
    }
}

/// Appends how many places there are, and the places.
///
/// # Panics
/// If there are more than [`PLACES_MAX`].
pub(super) fn put_places(places: &[PushPlace], out: &mut Encoder<'_>) {
    assert!(places.len() <= PLACES_MAX, "places are bounded");
    let count = u16::try_from(places.len()).expect("places are bounded");
    Writer::new(out).u16(count);
    places.iter().for_each(|place| place.put(out));
}

/// As they were written: one at least, each of a byte at least.
pub(super) fn take_places(reader: &mut Decoder<'_>) -> Result<Vec<PushPlace>, MessageFault> {
    let count = usize::from(reader.u16()?);
    if count > PLACES_MAX {
        return Err(MessageFault::TooManyItems {
            found: count,
            items_max: PLACES_MAX,
        });
    }
    let places = (0..count).map(|_| Wire::take(reader));
    let places = places.collect::<Result<Vec<PushPlace>, _>>()?;
    let are_places = |place: &PushPlace| place.len_bytes > 0 && place.has_end();
    if places.is_empty() || !places.iter().all(are_places) {
        return Err(MessageFault::Descriptor);
    }
    Ok(places)
}

impl FarWish {
    /// Appends the wish to `out`, in a version that is spoken here: what it is about follows.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::begin(version, out);
        Writer::new(out).u64(self.connection);
        self.near.put(out);
    }

    /// The wish at the front of `body`, and what follows it.
    ///
    /// # Errors
    /// [`MessageFault`] if there is none.
    pub fn split(body: &[u8]) -> Result<(Self, &[u8]), MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let connection = reader.u64()?;
        let near = Wire::take(reader)?;
        Ok((Self { connection, near }, reader.rest()))
    }
}

fields!(PushPlace {
    address,
    key,
    len_bytes
});

fields!(PushedReply {
    bytes,
    len_bytes,
    crc32c
});
body!(PushedReply);

impl Wire for AdaptersReply {
    fn put(&self, out: &mut Encoder<'_>) {
        Writer::new(out).u16(self.count);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        let count = reader.u16()?;
        if usize::from(count) > ADAPTERS_MAX {
            return Err(MessageFault::TooManyItems {
                found: count.into(),
                items_max: ADAPTERS_MAX,
            });
        }
        Ok(Self { count })
    }
}
body!(AdaptersReply);

impl AdaptersMessage {
    /// Appends the message to `out`, in a version that is spoken here.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        self.to.put(&mut Encoder::begin(version, out));
    }

    /// The message in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let to = Wire::take(reader)?;
        reader.end()?;
        Ok(Self { to })
    }
}

impl<'a> PairMessage<'a> {
    /// Appends the message to `out`, in a version that is spoken here.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::begin(version, out);
        self.to.put(out);
        Writer::new(out).u64(self.connection).u16(self.adapter);
        out.extend_from_slice(self.message);
    }

    /// The message in `body`, which it borrows.
    ///
    /// # Errors
    /// [`MessageFault`] if there is none.
    pub fn decode(body: &'a [u8]) -> Result<Self, MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let to = Wire::take(reader)?;
        let (connection, adapter) = (reader.u64()?, reader.u16()?);
        Ok(Self {
            to,
            connection,
            adapter,
            message: reader.rest(),
        })
    }
}

impl PushWish {
    /// Appends the wish to `out`, in a version that is spoken here: what it is about follows.
    ///
    /// # Panics
    /// If there are more places than [`PLACES_MAX`].
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::begin(version, out);
        Writer::new(out).u64(self.connection).u32(self.immediate);
        self.answer.put(out);
        put_places(&self.places, out);
    }

    /// The wish at the front of `body`, and what follows it.
    ///
    /// # Errors
    /// [`MessageFault`] if there is none; also of no place, of too many, and of an answer that would not fit.
    pub fn split(body: &[u8]) -> Result<(Self, &[u8]), MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let (connection, immediate) = (reader.u64()?, reader.u32()?);
        let answer: PushPlace = Wire::take(reader)?;
        let places = take_places(reader)?;
        let wish = Self {
            connection,
            immediate,
            answer,
            places,
        };
        let has_room = wish.answer.len_bytes as usize >= PUSHED_BYTES_MAX;
        if !has_room || !wish.answer.has_end() {
            return Err(MessageFault::Descriptor);
        }
        Ok((wish, reader.rest()))
    }

    /// Which parts of an object of so many bytes go to which places; `None` if it does not fit, or is empty.
    #[must_use]
    pub fn parts(&self, len_bytes: u32) -> Option<Vec<PushPlace>> {
        let mut left = len_bytes;
        let mut parts = Vec::with_capacity(self.places.len());
        for place in &self.places {
            let part = place.len_bytes.min(left);
            left -= part;
            if part > 0 {
                parts.push(PushPlace {
                    len_bytes: part,
                    ..*place
                });
            }
        }
        (left == 0 && len_bytes > 0 && len_bytes as usize <= PAYLOAD_BYTES_MAX).then_some(parts)
    }

    /// The writes that bring bytes which are in pieces of these lengths, one after the other, to the places; `None` if
    /// they do not fit, or there are none.
    #[must_use]
    pub fn writes(&self, pieces: &[u32]) -> Option<Vec<PushWrite>> {
        let in_all: u64 = pieces.iter().map(|len| u64::from(*len)).sum();
        let mut places = self.parts(u32::try_from(in_all).ok()?)?.into_iter();
        let mut writes = Vec::with_capacity(pieces.len());
        let mut place = places.next()?;
        for (piece, len) in pieces.iter().enumerate() {
            let mut offset_bytes = 0;
            while offset_bytes < *len {
                if place.len_bytes == 0 {
                    place = places.next()?;
                }
                let len_bytes = place.len_bytes.min(len - offset_bytes);
                let there = PushPlace { len_bytes, ..place };
                writes.push(PushWrite {
                    piece,
                    offset_bytes,
                    there,
                });
                offset_bytes += len_bytes;
                place.address += u64::from(len_bytes);
                place.len_bytes -= len_bytes;
            }
        }
        Some(writes)
    }
}

#[cfg(test)]
mod tests {
    use lunette_cluster_proto::map::Epoch;
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;
    use crate::version::Version;

    const V1: FormatVersion = FormatVersion(1);

    fn place(address: u64, len_bytes: u32) -> PushPlace {
        let key = 0x0102_0304;
        PushPlace {
            address,
            key,
            len_bytes,
        }
    }

    fn wish(lens: &[u32]) -> PushWish {
        let places = (1..).zip(lens);
        PushWish {
            connection: 7,
            immediate: 9,
            answer: place(64, 64),
            places: places.map(|(n, len)| place(n << 20, *len)).collect(),
        }
    }

    fn encoded(wish: &PushWish) -> Vec<u8> {
        let mut body = Vec::new();
        wish.encode(V1, &mut body);
        body
    }

    #[test]
    fn a_wish_is_read_whole_or_not_at_all_and_leaves_what_follows() {
        let wish = wish(&[100, 1]);
        let mut body = encoded(&wish);
        let golden = [
            1, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 64, 0, 0,
            0, 2, 0,
        ];
        assert_eq!(body[..golden.len()], golden);
        for len in 0..body.len() {
            assert!(PushWish::split(&body[..len]).is_err(), "{len}");
        }
        body.extend_from_slice(b"rest");
        assert_eq!(PushWish::split(&body), Ok((wish, &b"rest"[..])));
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        assert!(PushWish::split(&encoded(&wish(&[1; PLACES_MAX]))).is_ok());
        let mut many = encoded(&wish(&[1; PLACES_MAX]));
        many[29] = 17;
        let refused = PushWish::split(&many);
        let (found, items_max) = (17, PLACES_MAX);
        assert_eq!(
            refused,
            Err(MessageFault::TooManyItems { found, items_max })
        );
        let invalid = Err(MessageFault::Descriptor);
        assert_eq!(PushWish::split(&encoded(&wish(&[]))), invalid);
        assert_eq!(PushWish::split(&encoded(&wish(&[1, 0]))), invalid);
        let mut beyond = wish(&[2]);
        beyond.places[0].address = u64::MAX - 1;
        assert_eq!(PushWish::split(&encoded(&beyond)), invalid);
        let mut narrow = wish(&[2]);
        narrow.answer.len_bytes = 63;
        assert_eq!(PushWish::split(&encoded(&narrow)), invalid);
    }

    #[test]
    fn objects_fill_places_one_after_the_other_or_do_not_fit() {
        let lens = |len| {
            let parts = wish(&[100, 1, 50]).parts(len)?;
            Some(parts.iter().map(|part| part.len_bytes).collect::<Vec<_>>())
        };
        assert_eq!(lens(0), None);
        assert_eq!(lens(99), Some(vec![99]));
        assert_eq!(lens(100), Some(vec![100]));
        assert_eq!(lens(101), Some(vec![100, 1]));
        assert_eq!(lens(151), Some(vec![100, 1, 50]));
        assert_eq!(lens(152), None);
    }

    #[test]
    fn pieces_are_cut_where_places_end_and_where_they_end() {
        let writes = |pieces: &[u32]| {
            let writes = wish(&[100, 1, 50]).writes(pieces)?;
            let told = writes.iter().map(|write| {
                let PushPlace {
                    address, len_bytes, ..
                } = write.there;
                let place = address >> 20;
                let at = address & 0xf_ffff;
                (write.piece, write.offset_bytes, place, at, len_bytes)
            });
            Some(told.collect::<Vec<_>>())
        };
        assert_eq!(writes(&[]), None);
        assert_eq!(writes(&[0, 0]), None);
        assert_eq!(writes(&[100, 52]), None, "too long");
        assert_eq!(writes(&[u32::MAX, u32::MAX]), None);
        assert_eq!(writes(&[7]), Some(vec![(0, 0, 1, 0, 7)]));
        let cut = [
            (0, 0, 1, 0, 60),
            (2, 0, 1, 60, 40),
            (2, 40, 2, 0, 1),
            (2, 41, 3, 0, 9),
            (3, 0, 3, 9, 41),
        ];
        assert_eq!(writes(&[60, 0, 50, 41]), Some(cut.to_vec()));
    }

    #[test]
    fn an_answer_fits_its_place() {
        let reply = PushedReply {
            bytes: BytesReply::new(
                Version {
                    epoch: Epoch(5),
                    sequence: 6,
                },
                false,
                100,
            ),
            len_bytes: 100,
            crc32c: 1,
        };
        let mut body = Vec::new();
        reply.encode(FormatVersion::NEWEST, &mut body);
        assert!(body.len() <= PUSHED_BYTES_MAX, "{}", body.len());
        let decoded = PushedReply::decode(FormatVersion::NEWEST, &body);
        assert_eq!(decoded, Ok(reply));
    }

    #[test]
    fn steps_of_handshakes_and_counts_are_read_as_they_were_written() {
        let to = Seat {
            node: NodeId(1),
            incarnation: 2,
            core: CoreIndex(3),
        };
        let pair = PairMessage {
            to,
            connection: 1 << 40,
            adapter: 3,
            message: b"offer",
        };
        let mut body = Vec::new();
        pair.encode(V1, &mut body);
        assert_eq!(PairMessage::decode(&body), Ok(pair));
        assert!(PairMessage::decode(&body[..body.len() - 6]).is_err());
        let mut body = Vec::new();
        AdaptersMessage { to }.encode(V1, &mut body);
        assert_eq!(AdaptersMessage::decode(&body), Ok(AdaptersMessage { to }));
        for (count, is_read) in [(0, true), (32, true), (33, false)] {
            let mut body = Vec::new();
            AdaptersReply { count }.encode(V1, &mut body);
            assert_eq!(AdaptersReply::decode(V1, &body).is_ok(), is_read, "{count}");
        }
    }
}
