//! Gets in batches: small objects of many keys, which their home sends one behind the other in one answer.
//!
//! ```text
//!  gather:    version u8 | to seat | epoch u64 | namespace u8 | count u16 | (room u32 | key), count of them
//!  gathered:  for each key in their order: 0 absent
//!                                        | 1 to be asked for
//!                                        | 2 here: version, cut off u8, length u32
//! ```
//!
//! A key is its bytes behind their 16-bit length. The payload is the objects that are here, in the keys' order; no
//! object is longer than the room that its key came with, so that the asker's memory is never too small. What the
//! home does not have, or has in another form or length, is asked for one by one, with a
//! [`GetMessage`](super::GetMessage), which may wait. So this keeps no state and may be lost.

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::codec::Writer;
use lunette_runtime_core::limits::{BODY_BYTES_MAX, KEY_BYTES_MAX};

use super::wire::{Decoder, Encoder, Wire, fields, variants};
use crate::key::Key;
use crate::message::{FormatVersion, MessageFault};
use crate::placement::Seat;
use crate::version::Version;

/// Most keys of one message.
pub const GATHERED_MAX: usize = 128;
/// Most bytes of one answer's objects.
pub const GATHERED_BYTES_MAX: u32 = 1 << 20;

/// What a key takes beside its bytes.
const WANTED_BYTES: usize = size_of::<u32>() + size_of::<u16>();
const HEAD_BYTES_MAX: usize = 64;
const _: () =
    assert!(HEAD_BYTES_MAX + GATHERED_MAX * (WANTED_BYTES + KEY_BYTES_MAX) <= BODY_BYTES_MAX);

/// To send the objects of many keys in one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherMessage<'a> {
    /// The home that is asked: one life of it only.
    pub to: Seat,
    /// The asker's map: a home with another one is sure of no miss.
    pub epoch: Epoch,
    /// What the keys' namespace wants of nodes that are cut off.
    pub namespace: NamespaceKind,
    /// The keys, and for each how many bytes its object may have: at most [`GATHERED_MAX`] keys, and
    /// [`GATHERED_BYTES_MAX`] in all.
    pub wanted: Vec<(u32, Key<'a>)>,
}

/// What a home has of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// There is no object.
    Absent {},
    /// Ask for it.
    Unsure {},
    /// The object is in the payload.
    Here {
        /// Its version.
        version: Version,
        /// The home is cut off, in a cache namespace: the object may have been removed meanwhile.
        is_cut_off: bool,
        /// Its length in bytes.
        len_bytes: u32,
    },
}

variants!(Gathered {
    0 => Absent {},
    1 => Unsure {},
    2 => Here { version, is_cut_off, len_bytes },
});

/// What a message begins with.
#[derive(Clone, Copy)]
struct Head {
    to: Seat,
    epoch: Epoch,
    namespace: NamespaceKind,
}

fields!(Head {
    to,
    epoch,
    namespace
});

impl<'a> GatherMessage<'a> {
    /// Appends the message to `out`, in a version that is spoken here.
    ///
    /// # Panics
    /// If it asks for more than one message may.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        assert!(check(&self.wanted).is_ok(), "more than one message's keys");
        let out = &mut Encoder::begin(version, out);
        let head = Head {
            to: self.to,
            epoch: self.epoch,
            namespace: self.namespace,
        };
        head.put(out);
        let count = u16::try_from(self.wanted.len()).expect("checked");
        Writer::new(out).u16(count);
        for (room_bytes, key) in &self.wanted {
            room_bytes.put(out);
            Writer::new(out).short_bytes(key.bytes());
        }
    }

    /// The message in `body`, whose keys it borrows.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &'a [u8]) -> Result<Self, MessageFault> {
        let mut decoder = Decoder::begin(body)?;
        let reader = &mut decoder;
        let head = Head::take(reader)?;
        let count = usize::from(reader.u16()?);
        if count > GATHERED_MAX {
            return Err(MessageFault::TooManyKeys(count));
        }
        let mut wanted = Vec::with_capacity(count);
        for _ in 0..count {
            let room_bytes = Wire::take(reader)?;
            wanted.push((room_bytes, Key::new(reader.short_bytes()?)?));
        }
        reader.end()?;
        check(&wanted)?;
        Ok(Self {
            to: head.to,
            epoch: head.epoch,
            namespace: head.namespace,
            wanted,
        })
    }
}

/// That one answer has room for what is wanted.
fn check(wanted: &[(u32, Key<'_>)]) -> Result<(), MessageFault> {
    if wanted.len() > GATHERED_MAX {
        return Err(MessageFault::TooManyKeys(wanted.len()));
    }
    let rooms = wanted.iter().map(|(room_bytes, _)| u64::from(*room_bytes));
    let room_bytes = rooms.sum();
    if room_bytes > GATHERED_BYTES_MAX.into() {
        return Err(MessageFault::TooMuchRoom(room_bytes));
    }
    Ok(())
}

impl Gathered {
    /// Appends what a home has of keys to `out`, in the version of the question.
    pub fn encode(gathered: &[Self], version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::within(version, out);
        gathered.iter().for_each(|gathered| gathered.put(out));
    }

    /// What is in `body`, the answer to a question in that version that had these rooms, in bytes.
    ///
    /// # Errors
    /// [`MessageFault`] if it does not answer for exactly as many keys, or an object does not fit its room.
    pub fn decode(
        version: FormatVersion,
        body: &[u8],
        rooms: &[usize],
    ) -> Result<Vec<Self>, MessageFault> {
        let reader = &mut Decoder::within(version, body);
        let mut gathered = Vec::with_capacity(rooms.len());
        for room_bytes in rooms {
            let one = Self::take(reader)?;
            if one.len_bytes() > *room_bytes {
                return Err(MessageFault::TooMuchRoom(one.len_bytes() as u64));
            }
            gathered.push(one);
        }
        reader.end()?;
        Ok(gathered)
    }

    /// How much of the payload it is, in bytes.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Here { len_bytes, .. } => len_bytes as usize,
            Self::Absent {} | Self::Unsure {} => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::ids::{CoreIndex, NodeId};
    use proptest::prelude::*;

    use super::*;

    const VERSION: FormatVersion = FormatVersion(1);

    fn message<'a>(wanted: Vec<(u32, Key<'a>)>) -> GatherMessage<'a> {
        GatherMessage {
            to: Seat {
                node: NodeId(7),
                incarnation: 2,
                core: CoreIndex(3),
            },
            epoch: Epoch(5),
            namespace: NamespaceKind::Strict,
            wanted,
        }
    }

    fn encoded(message: &GatherMessage<'_>) -> Vec<u8> {
        let mut body = Vec::new();
        message.encode(VERSION, &mut body);
        body
    }

    fn key(bytes: &[u8]) -> Key<'_> {
        Key::new(bytes).expect("a key")
    }

    fn here(len_bytes: u32) -> Gathered {
        Gathered::Here {
            version: Version {
                epoch: Epoch(2),
                sequence: 3,
            },
            is_cut_off: true,
            len_bytes,
        }
    }

    #[test]
    fn golden_question_and_answer() {
        let body = encoded(&message(vec![(4096, key(b"ab")), (0, key(b"c"))]));
        let mut golden = vec![1, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0];
        golden.extend([5, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0]);
        golden.extend([0, 16, 0, 0, 2, 0, b'a', b'b', 0, 0, 0, 0, 1, 0, b'c']);
        assert_eq!(body, golden);
        let mut answer = Vec::new();
        let all = [Gathered::Absent {}, here(9), Gathered::Unsure {}];
        Gathered::encode(&all, VERSION, &mut answer);
        let mut golden = vec![0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1];
        golden.extend([9, 0, 0, 0, 1]);
        assert_eq!(answer, golden);
        assert_eq!(
            Gathered::decode(VERSION, &answer, &[0, 9, 0]),
            Ok(all.to_vec())
        );
    }

    #[test]
    fn a_message_asks_for_no_more_than_one_may() {
        let longest = [b'x'; KEY_BYTES_MAX];
        let share = GATHERED_BYTES_MAX / u32::try_from(GATHERED_MAX).expect("few");
        let most = message(vec![(share, key(&longest)); GATHERED_MAX]);
        let body = encoded(&most);
        assert!(body.len() <= BODY_BYTES_MAX);
        assert_eq!(GatherMessage::decode(&body), Ok(most));
        for len in 0..200 {
            assert!(GatherMessage::decode(&body[..len]).is_err(), "cut at {len}");
        }
        let count = 28..30;
        let mut more = body.clone();
        more[count.clone()].copy_from_slice(&129_u16.to_le_bytes());
        assert_eq!(
            GatherMessage::decode(&more),
            Err(MessageFault::TooManyKeys(129))
        );
        let mut roomier = body.clone();
        roomier[count.end] += 1;
        let fault = MessageFault::TooMuchRoom(u64::from(GATHERED_BYTES_MAX) + 1);
        assert_eq!(GatherMessage::decode(&roomier), Err(fault));
        let mut longer = body;
        longer.push(0);
        assert_eq!(
            GatherMessage::decode(&longer),
            Err(MessageFault::Trailing(1))
        );
    }

    #[test]
    fn an_answer_fits_what_was_asked() {
        let mut answer = Vec::new();
        Gathered::encode(&[here(9), Gathered::Absent {}], VERSION, &mut answer);
        let told = |rooms: &[usize]| Gathered::decode(VERSION, &answer, rooms);
        assert!(told(&[9, 0]).is_ok());
        assert_eq!(told(&[8, 0]), Err(MessageFault::TooMuchRoom(9)));
        assert_eq!(told(&[9]), Err(MessageFault::Trailing(1)));
        assert!(matches!(told(&[9, 0, 0]), Err(MessageFault::Truncated(_))));
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_would_be_written(body: Vec<u8>, rooms in prop::collection::vec(0..300_usize, 0..4)) {
            if let Ok(message) = GatherMessage::decode(&body) {
                let mut again = Vec::new();
                message.encode(FormatVersion(body[0]), &mut again);
                prop_assert_eq!(&again, &body);
            }
            if let Ok(gathered) = Gathered::decode(VERSION, &body, &rooms) {
                let mut again = Vec::new();
                Gathered::encode(&gathered, VERSION, &mut again);
                prop_assert_eq!(&again, &body);
            }
        }
    }
}
