//! Lookups in batches: what a home knows of keys at once.
//!
//! ```text
//!  peek:    version u8 | to seat | epoch u64 | namespace u8 | fingerprint u128, up to 4,096 of them
//!  peeked:  two bits for each key in their order, from the lowest of the first byte: 0 absent, 1 present, 2 unsure
//! ```
//!
//! A key whose answer is "unsure" is asked for with an [`Ask`](super::Ask), which may wait. So what is here is
//! a hint that keeps no state, may be lost, and costs a few bytes for each key.

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::codec::Writer;
use lunette_runtime_core::limits::BATCH_KEYS_MAX;

use super::wire::{Decoder, Encoder, Wire, unknown};
use crate::key::Fingerprint;
use crate::message::{FormatVersion, MessageFault};
use crate::placement::Seat;

/// Most keys of one message.
pub const PEEKS_MAX: usize = BATCH_KEYS_MAX;
/// Length of a key's fingerprint in bytes.
const KEY_BYTES: usize = size_of::<u128>();
/// Answers in a byte.
const ANSWERS: usize = 4;

/// What a home knows of a key without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// There is an object.
    Present,
    /// There is none.
    Absent,
    /// Ask, and wait.
    Unsure,
}

/// What a home knows of these keys without waiting. It borrows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeekMessage<'a> {
    /// The home that is asked.
    pub to: Seat,
    /// The asker's map: a home with another one is unsure of all.
    pub epoch: Epoch,
    /// What the keys' namespace wants of nodes that are cut off.
    pub namespace: NamespaceKind,
    /// At most [`PEEKS_MAX`] fingerprints, as they are on the wire.
    keys: &'a [[u8; KEY_BYTES]],
}

impl<'a> PeekMessage<'a> {
    /// Appends the message for `keys` to `out`, in a version that is spoken here.
    ///
    /// # Panics
    /// If there are more keys than [`PEEKS_MAX`].
    pub fn encode(
        (to, epoch, namespace): (Seat, Epoch, NamespaceKind),
        keys: impl ExactSizeIterator<Item = Fingerprint>,
        version: FormatVersion,
        out: &mut Vec<u8>,
    ) {
        assert!(keys.len() <= PEEKS_MAX, "more than one message's keys");
        let out = &mut Encoder::begin(version, out);
        to.put(out);
        epoch.put(out);
        namespace.put(out);
        out.reserve(keys.len() * KEY_BYTES);
        for Fingerprint(key) in keys {
            Writer::new(out).u128(key);
        }
    }

    /// The message in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &'a [u8]) -> Result<Self, MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let (to, epoch) = (Wire::take(reader)?, Wire::take(reader)?);
        let namespace = Wire::take(reader)?;
        let (keys, rest) = reader.rest().as_chunks();
        if !rest.is_empty() {
            return Err(MessageFault::Trailing(rest.len()));
        }
        if keys.len() > PEEKS_MAX {
            return Err(MessageFault::TooManyKeys(keys.len()));
        }
        Ok(Self {
            to,
            epoch,
            namespace,
            keys,
        })
    }

    /// The keys, in the order in which they were sent.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = Fingerprint> + use<'a> {
        let keys = self.keys.iter();
        keys.map(|key| Fingerprint(u128::from_le_bytes(*key)))
    }
}

/// What a home knows of the keys of a [`PeekMessage`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeekReply {
    count: usize,
    bits: Vec<u8>,
}

impl PeekReply {
    /// Of the next key.
    ///
    /// # Panics
    /// If [`PEEKS_MAX`] keys are answered for already.
    pub fn push(&mut self, peek: Peek) {
        assert!(self.count < PEEKS_MAX, "more than one message's keys");
        let code = match peek {
            Peek::Absent => 0,
            Peek::Present => 1,
            Peek::Unsure => 2,
        };
        match self.count % ANSWERS {
            0 => self.bits.push(code),
            place => *self.bits.last_mut().expect("not the first") |= code << (2 * place),
        }
        self.count += 1;
    }

    /// The body of the answer.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        self.bits
    }

    /// Tells the answers in `body` to a question for `count` keys, in their order.
    ///
    /// # Errors
    /// [`MessageFault`] if it does not answer for exactly as many keys; nothing was told.
    pub fn decode(
        body: &[u8],
        count: usize,
        mut tell: impl FnMut(Peek),
    ) -> Result<(), MessageFault> {
        if body.len() != count.div_ceil(ANSWERS) {
            return Err(MessageFault::KeyCountMismatch {
                found: body.len() * ANSWERS,
                expected: count,
            });
        }
        let code = |at: usize| body[at / ANSWERS] >> (2 * (at % ANSWERS)) & 3;
        if let Some(at) = (0..count).find(|&at| code(at) == 3) {
            return unknown("peek", code(at));
        }
        if (count..body.len() * ANSWERS).any(|at| code(at) != 0) {
            return Err(MessageFault::StrayBits);
        }
        for at in 0..count {
            tell(match code(at) {
                0 => Peek::Absent,
                1 => Peek::Present,
                _ => Peek::Unsure,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::ids::{CoreIndex, NodeId};
    use proptest::prelude::*;

    use super::*;

    const ALL: [Peek; 3] = [Peek::Absent, Peek::Present, Peek::Unsure];

    const TO: Seat = Seat {
        node: NodeId(7),
        incarnation: 2,
        core: CoreIndex(3),
    };

    fn message(keys: impl ExactSizeIterator<Item = Fingerprint>) -> Vec<u8> {
        let mut body = Vec::new();
        let head = (TO, Epoch(5), NamespaceKind::Strict);
        PeekMessage::encode(head, keys, FormatVersion(1), &mut body);
        body
    }

    fn reply(peeks: &[Peek]) -> Vec<u8> {
        let mut reply = PeekReply::default();
        peeks.iter().for_each(|peek| reply.push(*peek));
        reply.encode()
    }

    fn told(body: &[u8], count: usize) -> Result<Vec<Peek>, MessageFault> {
        let mut told = Vec::new();
        PeekReply::decode(body, count, |peek| told.push(peek)).map(|()| told)
    }

    #[test]
    fn golden_peek_and_its_answer() {
        let body = message([Fingerprint(0x0102), Fingerprint(3)].into_iter());
        let mut golden = vec![1, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0];
        golden.extend([5, 0, 0, 0, 0, 0, 0, 0, 1, 2, 1]);
        golden.extend([0; 14]);
        golden.push(3);
        golden.extend([0; 15]);
        assert_eq!(body, golden);
        let answer = [
            Peek::Absent,
            Peek::Present,
            Peek::Unsure,
            Peek::Absent,
            Peek::Present,
        ];
        assert_eq!(reply(&answer), [0b10_01_00, 0b01]);
    }

    #[test]
    fn a_message_is_whole_keys_and_no_more_than_one_may_have() {
        let body = message((0..PEEKS_MAX).map(|n| Fingerprint(n as u128)));
        let decoded = PeekMessage::decode(&body).expect("at the bound");
        assert_eq!((decoded.to, decoded.epoch), (TO, Epoch(5)));
        assert!(
            decoded
                .keys()
                .eq((0..PEEKS_MAX).map(|n| Fingerprint(n as u128)))
        );
        let mut above = body.clone();
        above.push(0);
        let fault = MessageFault::Trailing(1);
        assert_eq!(PeekMessage::decode(&above), Err(fault));
        above.extend([0; KEY_BYTES - 1]);
        let fault = MessageFault::TooManyKeys(PEEKS_MAX + 1);
        assert_eq!(PeekMessage::decode(&above), Err(fault));
        let head = message([].into_iter());
        for len in 0..head.len() {
            assert!(PeekMessage::decode(&head[..len]).is_err(), "cut at {len}");
        }
        assert_eq!(PeekMessage::decode(&head).expect("no keys").keys().len(), 0);
    }

    #[test]
    fn an_answer_is_for_as_many_keys_as_were_asked_for() {
        assert_eq!(told(&[], 0), Ok(Vec::new()));
        let mismatch = |found| Err(MessageFault::KeyCountMismatch { found, expected: 5 });
        assert_eq!(told(&[0], 5), mismatch(4));
        assert_eq!(told(&[0; 3], 5), mismatch(12));
        assert_eq!(told(&[0, 0b01_00], 5), Err(MessageFault::StrayBits));
        let unknown = MessageFault::UnknownCode {
            what: "peek",
            code: 3,
        };
        assert_eq!(told(&[0b11_00, 0], 5), Err(unknown));
    }

    proptest! {
        #[test]
        fn answers_come_back_in_their_order(codes in prop::collection::vec(0..3_usize, 0..40)) {
            let peeks: Vec<_> = codes.into_iter().map(|code| ALL[code]).collect();
            prop_assert_eq!(told(&reply(&peeks), peeks.len()), Ok(peeks));
        }

        #[test]
        fn what_is_read_is_what_would_be_written(body: Vec<u8>, count in 0..20_usize) {
            if let Ok(peeks) = told(&body, count) {
                prop_assert_eq!(reply(&peeks), body);
            }
        }
    }
}
