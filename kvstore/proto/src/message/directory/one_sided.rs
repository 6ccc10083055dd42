//! Reads in which the owner has no part: an asker on the owner's host that maps its memory is told where
//! the bytes lie, and copies them itself.
//!
//! ```text
//!  meet:       version u8 | to seat | boot id u128 | proof u128
//!  met:        ticket u128 | name u128 | words u32
//!  wish:       version u8 | from u32 | again u8 | hold | a get or a read
//!  described:  bytes reply | descriptor
//!  descriptor: slot u32 | number u64 | chunk u32 | offset u64 | length u32 | crc32c u32 | held u32
//! ```
//!
//! Whether the bytes are still those of the object says a word that the owner shows to everybody who maps
//! its memory: word `slot` is `number` for as long as the memory is the object's. So a copy that ends under
//! that word is of the object, whatever was written there before and later.

use lunette_runtime_core::limits::{CHUNK_BYTES_MAX, PAYLOAD_BYTES_MAX};

use super::HoldWish;
use super::object::BytesReply;
use super::wire::{Decoder, Encoder, Wire, body, fields};
use crate::message::{FormatVersion, MessageFault};
use crate::placement::Seat;
use crate::range::ByteRange;

/// To meet on the host that both may be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeetMessage {
    /// The owner: one life of it only.
    pub to: Seat,
    /// Which start of which kernel the asker runs on.
    pub boot_id: u128,
    /// What the owner is to say on the local channel, to show that it is the owner.
    pub proof: u128,
}

/// Where the owner is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeetReply {
    /// What the asker is to say first on the local channel. Good once, and for a few seconds.
    pub ticket: u128,
    /// The name of the local channel.
    pub name: u128,
    /// How many words the owner shows.
    pub words: u32,
}

/// That a descriptor is wanted rather than the bytes. A [`GetMessage`](super::GetMessage) or a
/// [`ReadMessage`](super::ReadMessage) follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearWish {
    /// If at least so many bytes are asked for; fewer are sent.
    pub from_bytes: u32,
    /// The asker had a descriptor, and what it has copied was not the object.
    pub is_again: bool,
    /// For whom a copy is held that is described, and for how long.
    pub hold: HoldWish,
}

/// Where the bytes of an object lie. All of them are its owner's words, and the asker's to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Which word says whether they still do.
    pub slot: u32,
    /// What it says as long as they do; never 0.
    pub number: u64,
    /// Which chunk of the owner's memory.
    pub chunk: u32,
    /// Where in the chunk.
    pub offset_bytes: u64,
    /// Length of the object in bytes.
    pub len_bytes: u32,
    /// CRC32C of all of it.
    pub crc32c: u32,
    /// For how long it is kept from eviction, in milliseconds; 0 if it is not.
    pub held_ms: u32,
}

/// The answer in place of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// What would have gone with them.
    pub bytes: BytesReply,
    /// Where they are.
    pub descriptor: Descriptor,
}

fields!(MeetReply {
    ticket,
    name,
    words
});
body!(MeetReply);

fields!(NearWish {
    from_bytes,
    is_again,
    hold
});

impl Wire for Descriptor {
    fn put(&self, out: &mut Encoder<'_>) {
        self.slot.put(out);
        self.number.put(out);
        self.chunk.put(out);
        self.offset_bytes.put(out);
        self.len_bytes.put(out);
        self.crc32c.put(out);
        self.held_ms.put(out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        let descriptor = Self {
            slot: Wire::take(reader)?,
            number: Wire::take(reader)?,
            chunk: Wire::take(reader)?,
            offset_bytes: Wire::take(reader)?,
            len_bytes: Wire::take(reader)?,
            crc32c: Wire::take(reader)?,
            held_ms: Wire::take(reader)?,
        };
        if descriptor.is_valid() {
            Ok(descriptor)
        } else {
            Err(MessageFault::Descriptor)
        }
    }
}

fields!(Described { bytes, descriptor });
body!(Described);

impl Descriptor {
    /// Whether there can be such a place.
    const fn is_valid(&self) -> bool {
        let len_bytes = self.len_bytes as u64;
        self.number != 0
            && len_bytes <= PAYLOAD_BYTES_MAX as u64
            && self.offset_bytes <= CHUNK_BYTES_MAX as u64 - len_bytes
    }

    /// Where in the chunk a range of the object begins; `None` if it does not lie inside the object.
    #[must_use]
    pub fn start_of(&self, range: ByteRange) -> Option<u64> {
        let start = self.offset_bytes.checked_add(range.offset_bytes);
        start.filter(|_| range.is_within(self.len_bytes.into()))
    }
}

impl MeetMessage {
    /// Appends the message to `out`, in a version that is spoken here.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::begin(version, out);
        self.to.put(out);
        self.boot_id.put(out);
        self.proof.put(out);
    }

    /// The message in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let (to, boot_id, proof) = (
            Wire::take(reader)?,
            Wire::take(reader)?,
            Wire::take(reader)?,
        );
        reader.end()?;
        Ok(Self { to, boot_id, proof })
    }
}

impl NearWish {
    /// Appends the wish to `out`, in a version that is spoken here: what it is about follows.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        self.put(&mut Encoder::begin(version, out));
    }

    /// The wish at the front of `body`, and what follows it.
    ///
    /// # Errors
    /// [`MessageFault`] if there is none.
    pub fn split(body: &[u8]) -> Result<(Self, &[u8]), MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let wish = Self::take(reader)?;
        Ok((wish, reader.rest()))
    }
}

#[cfg(test)]
mod tests {
    use lunette_cluster_proto::map::Epoch;
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;
    use crate::version::Version;

    const V1: FormatVersion = FormatVersion(1);

    const DESCRIPTOR: Descriptor = Descriptor {
        slot: 1,
        number: 2,
        chunk: 3,
        offset_bytes: 4096,
        len_bytes: 100,
        crc32c: 0x0102_0304,
        held_ms: 50,
    };

    fn described(descriptor: Descriptor) -> Described {
        Described {
            bytes: BytesReply::new(
                Version {
                    epoch: Epoch(5),
                    sequence: 6,
                },
                false,
                100,
            ),
            descriptor,
        }
    }

    fn encoded(descriptor: Descriptor) -> Vec<u8> {
        let mut body = Vec::new();
        described(descriptor).encode(V1, &mut body);
        body
    }

    #[test]
    fn golden_descriptor_which_is_read_whole_or_not_at_all() {
        let body = encoded(DESCRIPTOR);
        let golden = [
            1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0,
            4, 3, 2, 1, 50, 0, 0, 0,
        ];
        assert_eq!(body[body.len() - golden.len()..], golden);
        assert_eq!(Described::decode(V1, &body), Ok(described(DESCRIPTOR)));
        for len in 0..body.len() {
            assert!(Described::decode(V1, &body[..len]).is_err(), "cut at {len}");
        }
        let longer = [&body[..], &[0]].concat();
        assert_eq!(
            Described::decode(V1, &longer),
            Err(MessageFault::Trailing(1))
        );
    }

    #[test]
    fn a_place_that_no_memory_has_is_no_descriptor() {
        let last = CHUNK_BYTES_MAX as u64;
        let longest = u32::try_from(PAYLOAD_BYTES_MAX).expect("bounded");
        for (offset_bytes, len_bytes, number, is_good) in [
            (0, 0, 1, true),
            (last, 0, 1, true),
            (last, 1, 1, false),
            (last + 1, 0, 1, false),
            (u64::MAX, 0, 1, false),
            (u64::MAX, u32::MAX, 1, false),
            (0, longest, 1, true),
            (0, longest + 1, 1, false),
            (last - u64::from(longest), longest, u64::MAX, true),
            (last - u64::from(longest) + 1, longest, 1, false),
            (0, 0, 0, false),
        ] {
            let body = encoded(Descriptor {
                offset_bytes,
                len_bytes,
                number,
                ..DESCRIPTOR
            });
            let decoded = Described::decode(V1, &body);
            assert_eq!(decoded.is_ok(), is_good, "{offset_bytes}+{len_bytes}");
            assert!(is_good || decoded == Err(MessageFault::Descriptor));
        }
    }

    #[test]
    fn ranges_lie_inside_the_object() {
        let start = |offset_bytes, len_bytes| {
            DESCRIPTOR.start_of(ByteRange {
                offset_bytes,
                len_bytes,
            })
        };
        assert_eq!(start(0, 100), Some(4096));
        assert_eq!(start(100, 0), Some(4196));
        assert_eq!(start(99, 2), None);
        assert_eq!(start(u64::from(u32::MAX), u32::MAX), None);
    }

    #[test]
    fn a_wish_stands_before_what_it_is_about() {
        let wish = NearWish {
            from_bytes: 65_536,
            is_again: true,
            hold: HoldWish {
                holder: 7,
                ttl_ms: 100,
            },
        };
        let mut body = Vec::new();
        wish.encode(V1, &mut body);
        let golden = [1, 0, 0, 1, 0, 1, 7, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0];
        assert_eq!(body, golden);
        for len in 0..body.len() {
            assert!(NearWish::split(&body[..len]).is_err(), "cut at {len}");
        }
        body.extend_from_slice(b"rest");
        assert_eq!(NearWish::split(&body), Ok((wish, &b"rest"[..])));
        body[5] = 2;
        assert!(NearWish::split(&body).is_err(), "neither yes nor no");
        body[0] = 9;
        assert!(matches!(
            NearWish::split(&body),
            Err(MessageFault::Version { .. })
        ));
    }

    #[test]
    fn golden_meeting() {
        let message = MeetMessage {
            to: Seat {
                node: NodeId(7),
                incarnation: 2,
                core: CoreIndex(3),
            },
            boot_id: 4,
            proof: 5,
        };
        let mut body = Vec::new();
        message.encode(V1, &mut body);
        assert_eq!(body.len(), 1 + 18 + 32);
        assert_eq!((body[0], body[1], body[19], body[35]), (1, 7, 4, 5));
        assert_eq!(MeetMessage::decode(&body), Ok(message));
        for len in 0..body.len() {
            assert!(MeetMessage::decode(&body[..len]).is_err(), "cut at {len}");
        }
        body.push(0);
        assert_eq!(MeetMessage::decode(&body), Err(MessageFault::Trailing(1)));
        let reply = MeetReply {
            ticket: 1,
            name: 2,
            words: 3,
        };
        let mut body = Vec::new();
        reply.encode(V1, &mut body);
        assert_eq!((body.len(), body[0], body[16], body[32]), (36, 1, 2, 3));
        assert_eq!(MeetReply::decode(V1, &body), Ok(reply));
        assert!(MeetReply::decode(V1, &body[..35]).is_err());
    }
}
