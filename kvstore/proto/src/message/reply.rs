//! The bodies of answers.

use lunette_runtime_core::codec::{Reader, Writer};
use lunette_runtime_core::limits::BATCH_KEYS_MAX;

use super::{MessageFault, end_of};
use crate::shard::RemoveOutcome;

/// The body of the answer to a get or a put: the version of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionReply {
    /// The version that the key's home issued when the object was put.
    pub version: u64,
}

impl VersionReply {
    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer::new(out).u64(self.version);
    }

    /// The answer in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than a version.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let mut reader = Reader::new(body);
        let version = reader.u64()?;
        end_of(&reader)?;
        Ok(Self { version })
    }
}

/// The body of the answer to an exists: a 16-bit count of keys, then one bit per key in their
/// order, from the lowest bit of the first byte. It borrows the bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresenceReply<'a> {
    count: usize,
    bits: &'a [u8],
}

impl<'a> PresenceReply<'a> {
    /// The answer in `body` to a request of `expected` keys.
    ///
    /// # Errors
    /// [`MessageFault`] if it does not answer for exactly as many keys.
    pub fn decode(body: &'a [u8], expected: usize) -> Result<Self, MessageFault> {
        let mut reader = Reader::new(body);
        let count = count_of(&mut reader, expected)?;
        let bits = reader.bytes(count.div_ceil(8))?;
        end_of(&reader)?;
        let unused = bits.len() * 8 - count;
        if bits
            .last()
            .is_some_and(|last| u32::from(*last) << unused > u32::from(u8::MAX))
        {
            return Err(MessageFault::StrayBits);
        }
        Ok(Self { count, bits })
    }

    /// Whether each key of the request is resident, in their order.
    pub fn present(&self) -> impl ExactSizeIterator<Item = bool> + use<'a> {
        let bits = self.bits;
        (0..self.count).map(move |index| bits[index / 8] >> (index % 8) & 1 == 1)
    }
}

/// Appends the body of a [`PresenceReply`] to `out`.
///
/// # Panics
/// If it is for more than [`BATCH_KEYS_MAX`] keys, which no request has.
pub fn encode_presence(present: impl ExactSizeIterator<Item = bool>, out: &mut Vec<u8>) {
    let count = present.len();
    encode_count(count, out);
    let begins_at = out.len();
    out.resize(begins_at + count.div_ceil(8), 0);
    for (index, is_present) in present.enumerate() {
        out[begins_at + index / 8] |= u8::from(is_present) << (index % 8);
    }
}

/// The body of the answer to a remove: a 16-bit count of keys, then one byte per key in their
/// order: 0 removed, 1 not found, 2 busy. It borrows the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoveReply<'a> {
    outcomes: &'a [u8],
}

impl<'a> RemoveReply<'a> {
    /// The answer in `body` to a request of `expected` keys.
    ///
    /// # Errors
    /// [`MessageFault`] if it does not answer for exactly as many keys, or holds an unknown
    /// outcome.
    pub fn decode(body: &'a [u8], expected: usize) -> Result<Self, MessageFault> {
        let mut reader = Reader::new(body);
        let count = count_of(&mut reader, expected)?;
        let outcomes = reader.bytes(count)?;
        end_of(&reader)?;
        match outcomes.iter().find(|code| outcome_of(**code).is_none()) {
            Some(&unknown) => Err(MessageFault::UnknownOutcome(unknown)),
            None => Ok(Self { outcomes }),
        }
    }

    /// What became of each key of the request, in their order.
    pub fn outcomes(&self) -> impl ExactSizeIterator<Item = RemoveOutcome> + use<'a> {
        self.outcomes
            .iter()
            .map(|&code| outcome_of(code).expect("decode has checked this byte"))
    }
}

/// Appends the body of a [`RemoveReply`] to `out`.
///
/// # Panics
/// If it is for more than [`BATCH_KEYS_MAX`] keys, which no request has.
pub fn encode_removals(outcomes: impl ExactSizeIterator<Item = RemoveOutcome>, out: &mut Vec<u8>) {
    encode_count(outcomes.len(), out);
    out.extend(outcomes.map(code_of));
}

const fn code_of(outcome: RemoveOutcome) -> u8 {
    match outcome {
        RemoveOutcome::Removed => 0,
        RemoveOutcome::NotFound => 1,
        RemoveOutcome::Busy => 2,
    }
}

const fn outcome_of(code: u8) -> Option<RemoveOutcome> {
    match code {
        0 => Some(RemoveOutcome::Removed),
        1 => Some(RemoveOutcome::NotFound),
        2 => Some(RemoveOutcome::Busy),
        _ => None,
    }
}

fn encode_count(count: usize, out: &mut Vec<u8>) {
    assert!(count <= BATCH_KEYS_MAX, "an answer for {count} keys");
    Writer::new(out).u16(u16::try_from(count).expect("BATCH_KEYS_MAX fits 16 bits"));
}

fn count_of(reader: &mut Reader<'_>, expected: usize) -> Result<usize, MessageFault> {
    let found = usize::from(reader.u16()?);
    if found != expected {
        return Err(MessageFault::KeyCountMismatch { found, expected });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(present: &[bool]) -> Vec<u8> {
        let mut body = Vec::new();
        encode_presence(present.iter().copied(), &mut body);
        body
    }

    #[test]
    fn golden_bodies() {
        let mut body = Vec::new();
        VersionReply { version: 0x0102 }.encode(&mut body);
        assert_eq!(body, [2, 1, 0, 0, 0, 0, 0, 0]);
        let nine = [true, false, true, true, false, false, false, false, true];
        assert_eq!(presence(&nine), [9, 0, 0b1101, 1]);
        body.clear();
        let all = [
            RemoveOutcome::Removed,
            RemoveOutcome::NotFound,
            RemoveOutcome::Busy,
        ];
        encode_removals(all.into_iter(), &mut body);
        assert_eq!(body, [3, 0, 0, 1, 2]);
    }

    #[test]
    fn a_version_is_eight_bytes() {
        assert_eq!(
            VersionReply::decode(&[1, 0, 0, 0, 0, 0, 0, 0]),
            Ok(VersionReply { version: 1 })
        );
        assert!(matches!(
            VersionReply::decode(&[0; 7]),
            Err(MessageFault::Truncated(_))
        ));
        assert_eq!(
            VersionReply::decode(&[0; 9]),
            Err(MessageFault::Trailing(1))
        );
    }

    #[test]
    fn stray_bits_are_refused() {
        for count in 1..=16_u8 {
            let present = vec![true; usize::from(count)];
            let mut body = presence(&present);
            let reply = PresenceReply::decode(&body, present.len()).expect("whole");
            assert!(reply.present().eq(present.iter().copied()));
            let last = body.len() - 1;
            if count % 8 != 0 {
                body[last] |= 1 << (count % 8);
                let refused = PresenceReply::decode(&body, present.len());
                assert_eq!(refused, Err(MessageFault::StrayBits), "{count} keys");
            }
        }
    }

    #[test]
    fn an_answer_covers_the_keys_of_its_request() {
        let mismatch = MessageFault::KeyCountMismatch {
            found: 2,
            expected: 3,
        };
        assert_eq!(PresenceReply::decode(&[2, 0, 3], 3), Err(mismatch));
        assert_eq!(RemoveReply::decode(&[2, 0, 0, 0], 3), Err(mismatch));
        assert_eq!(
            PresenceReply::decode(&[2, 0, 3, 0], 2),
            Err(MessageFault::Trailing(1))
        );
        assert_eq!(
            RemoveReply::decode(&[2, 0, 0, 0, 0], 2),
            Err(MessageFault::Trailing(1))
        );
        assert_eq!(
            RemoveReply::decode(&[1, 0, 3], 1),
            Err(MessageFault::UnknownOutcome(3))
        );
        assert!(RemoveReply::decode(&[1, 0, 2], 1).is_ok());
        assert_eq!(
            PresenceReply::decode(&[0, 0], 0)
                .expect("empty")
                .present()
                .len(),
            0
        );
    }

    #[test]
    #[should_panic(expected = "an answer for 4097 keys")]
    fn an_answer_is_bounded() {
        presence(&[false; BATCH_KEYS_MAX + 1]);
    }
}
