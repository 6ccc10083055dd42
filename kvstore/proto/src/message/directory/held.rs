//! Where copies lie that are held: who has looked objects up asks their owner once, and its adapter then reads them
//! without asking anybody, for as long as is said.
//!
//! ```text
//!  reach all: version u8 | to seat | connection u64 | namespace u8 | hold | count u16 | (version | key), count of them
//!  reached:   for each copy in their order: 0 cannot be read so
//!                                         | 1 bytes reply | reach
//! ```
//!
//! A key is its bytes behind their 16-bit length. `held` of a reach is how long the place is good, in milliseconds from
//! when the question was *sent*: the copy is kept from eviction for that long, and the owner's lease holds for longer.
//! Within that time what the word says is enough: a removal and an upsert are acknowledged when the copies that they
//! make obsolete have been dropped, and with a copy its word goes. Beyond it the owner may have lost its lease, and
//! others may have gone on without it.

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_runtime_core::codec::Writer;
use lunette_runtime_core::limits::{BODY_BYTES_MAX, KEY_BYTES_MAX};

use super::HoldWish;
use super::adapters::Reached;
use super::wire::{Decoder, Encoder, Wire, fields, variants};
use crate::key::Key;
use crate::message::{FormatVersion, MessageFault};
use crate::placement::Seat;
use crate::version::Version;

/// Most copies of one message.
pub const REACHED_MAX: usize = 128;

/// What a copy takes beside its key's bytes.
const COPY_BYTES: usize = 2 * size_of::<u64>() + size_of::<u16>();
const HEAD_BYTES_MAX: usize = 64;
const _: () =
    assert!(HEAD_BYTES_MAX + REACHED_MAX * (COPY_BYTES + KEY_BYTES_MAX) <= BODY_BYTES_MAX);

/// To hold copies, and to be told where an adapter reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReachMessage<'a> {
    /// The owner: one life of it only.
    pub to: Seat,
    /// Over which queue pair they are read.
    pub connection: u64,
    /// What the keys' namespace wants of nodes that are cut off.
    pub namespace: NamespaceKind,
    /// For whom they are held, and for how long.
    pub hold: HoldWish,
    /// The copies, at most [`REACHED_MAX`].
    pub copies: Vec<(Version, Key<'a>)>,
}

/// Where an adapter reads a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Nowhere: it is to be asked for.
    Not {},
    /// Here, for as long as its reach says.
    At {
        /// What goes with its bytes, and where they are.
        reached: Reached,
    },
}

variants!(Held {
    0 => Not {},
    1 => At { reached },
});

/// What a message begins with.
struct Head {
    to: Seat,
    connection: u64,
    namespace: NamespaceKind,
    hold: HoldWish,
}

fields!(Head {
    to,
    connection,
    namespace,
    hold
});

impl<'a> ReachMessage<'a> {
    /// Appends the message to `out`, in a version that is spoken here.
    ///
    /// # Panics
    /// If it asks for more than one message may.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        assert!(self.copies.len() <= REACHED_MAX, "copies are bounded");
        let out = &mut Encoder::begin(version, out);
        let head = Head {
            to: self.to,
            connection: self.connection,
            namespace: self.namespace,
            hold: self.hold,
        };
        head.put(out);
        let count = u16::try_from(self.copies.len()).expect("copies are bounded");
        Writer::new(out).u16(count);
        for (copy, key) in &self.copies {
            copy.put(out);
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
        if count > REACHED_MAX {
            return Err(MessageFault::TooManyKeys(count));
        }
        let mut copies = Vec::with_capacity(count);
        for _ in 0..count {
            let copy = Wire::take(reader)?;
            copies.push((copy, Key::new(reader.short_bytes()?)?));
        }
        reader.end()?;
        Ok(Self {
            to: head.to,
            connection: head.connection,
            namespace: head.namespace,
            hold: head.hold,
            copies,
        })
    }
}

impl Held {
    /// Appends where copies are read to `out`, in the version of the question.
    pub fn encode(held: &[Self], version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::within(version, out);
        held.iter().for_each(|held| held.put(out));
    }

    /// What is in `body`, the answer to a question in that version for so many copies.
    ///
    /// # Errors
    /// [`MessageFault`] if it does not answer for exactly as many.
    pub fn decode(
        version: FormatVersion,
        body: &[u8],
        count: usize,
    ) -> Result<Vec<Self>, MessageFault> {
        let reader = &mut Decoder::within(version, body);
        let held = (0..count).map(|_| Self::take(reader));
        let held = held.collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use lunette_cluster_proto::map::Epoch;
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;
    use crate::message::directory::{BytesReply, Reach};

    const V1: FormatVersion = FormatVersion(1);

    fn version(sequence: u64) -> Version {
        Version {
            epoch: Epoch(5),
            sequence,
        }
    }

    fn message(keys: &[Vec<u8>]) -> ReachMessage<'_> {
        let keys = keys.iter().map(|key| Key::new(key).expect("short"));
        ReachMessage {
            to: Seat {
                node: NodeId(7),
                incarnation: 2,
                core: CoreIndex(3),
            },
            connection: 9,
            namespace: NamespaceKind::Strict,
            hold: HoldWish {
                holder: 11,
                ttl_ms: 400,
            },
            copies: (1..).map(version).zip(keys).collect(),
        }
    }

    fn encoded(message: &ReachMessage<'_>) -> Vec<u8> {
        let mut body = Vec::new();
        message.encode(V1, &mut body);
        body
    }

    #[test]
    fn golden_question_which_is_read_whole_or_not_at_all() {
        let keys = [b"a".to_vec(), b"bc".to_vec()];
        let message = message(&keys);
        let body = encoded(&message);
        let mut golden = vec![1, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0];
        golden.extend([
            9, 0, 0, 0, 0, 0, 0, 0, 1, 11, 0, 0, 0, 0, 0, 0, 0, 144, 1, 0, 0, 2, 0,
        ]);
        golden.extend([5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, b'a']);
        golden.extend([
            5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, b'b', b'c',
        ]);
        assert_eq!(body, golden);
        assert_eq!(ReachMessage::decode(&body), Ok(message));
        for len in 0..body.len() {
            assert!(ReachMessage::decode(&body[..len]).is_err(), "cut at {len}");
        }
        let longer = [&body[..], &[0]].concat();
        assert_eq!(
            ReachMessage::decode(&longer),
            Err(MessageFault::Trailing(1))
        );
    }

    #[test]
    fn no_more_copies_than_one_message_may_have() {
        let keys: Vec<Vec<u8>> = (0..REACHED_MAX).map(|_| vec![7; KEY_BYTES_MAX]).collect();
        let mut body = encoded(&message(&keys));
        assert!(body.len() <= BODY_BYTES_MAX);
        assert!(ReachMessage::decode(&body).is_ok(), "at the bound");
        body[40] = 129;
        let fault = MessageFault::TooManyKeys(REACHED_MAX + 1);
        assert_eq!(ReachMessage::decode(&body), Err(fault));
    }

    #[test]
    fn an_answer_is_for_as_many_copies_as_were_asked_for() {
        let reached = Reached {
            bytes: BytesReply::new(version(6), false, 100),
            reach: Reach {
                address: 1,
                key: 2,
                word_address: 3,
                word_key: 4,
                number: 5,
                len_bytes: 100,
                crc32c: 6,
                held_ms: 7,
            },
        };
        let held = [Held::Not {}, Held::At { reached }, Held::Not {}];
        let mut body = Vec::new();
        Held::encode(&held, V1, &mut body);
        assert_eq!((body[0], body[1], body[body.len() - 1]), (0, 1, 0));
        assert_eq!(Held::decode(V1, &body, 3), Ok(held.to_vec()));
        assert_eq!(Held::decode(V1, &body, 2), Err(MessageFault::Trailing(1)));
        assert!(Held::decode(V1, &body, 4).is_err());
        body[0] = 2;
        assert!(Held::decode(V1, &body, 3).is_err(), "neither");
    }
}
