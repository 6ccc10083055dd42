//! Sealed records: what both sides send each other, encrypted and in order.
//!
//! ```text
//!  0           4                 12
//!  | len_bytes | sequence        | len_bytes of AES-256-GCM ciphertext | tag (16 bytes) |
//! ```
//!
//! The header is authenticated with the bytes. The sequence number, from 0, is the nonce, so no
//! nonce is used twice under a key; keys are per direction. After [`RECORDS_PER_KEY`] records both
//! sides go on with a key derived from the last one, without a word about it: what was sent under
//! a key that has been dropped cannot be read by who takes the next one.
//!
//! The sequence number is on the wire so that what goes wrong has a name: a record that comes again,
//! one that is missing before another, and bytes that were changed are different faults, and all end
//! the connection.

use core::fmt;

use ring::aead::{Aad, Nonce};
use thiserror::Error;

use crate::keys::RecordKey;

/// Length of a record's header, in bytes.
pub const RECORD_HEADER_BYTES: usize = 12;
/// Length of a record's tag, in bytes.
pub const RECORD_TAG_BYTES: usize = 16;
/// Most bytes of a record, without header and tag. A receiver holds one record until it is whole,
/// since none of it may be used before.
pub const RECORD_BYTES_MAX: usize = 64 * 1024;
/// Records sealed under one key: 64 GiB at most, far below the cipher's own bound.
pub const RECORDS_PER_KEY: u64 = 1 << 20;

/// Why a record was not sealed or opened. The connection is of no further use.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RecordFault {
    /// More bytes than a record may hold; on the sealing side, the caller's fault.
    #[error("a record of {len_bytes} bytes is above the limit of {RECORD_BYTES_MAX}")]
    TooLong {
        /// How many.
        len_bytes: usize,
    },
    /// A record that was there before: sent again by someone underway.
    #[error("record {sequence} came again, record {expected} was due")]
    Replayed {
        /// Its number.
        sequence: u64,
        /// The number that was due.
        expected: u64,
    },
    /// A record that is not the next: others before it were dropped or overtaken.
    #[error("record {sequence} came, record {expected} was due")]
    Reordered {
        /// Its number.
        sequence: u64,
        /// The number that was due.
        expected: u64,
    },
    /// The bytes are not those that the peer sealed.
    #[error("record {sequence} was changed on its way")]
    Tampered {
        /// Its number.
        sequence: u64,
    },
    /// Every sequence number has been used. Open a new connection.
    #[error("the connection has sent as many records as it can")]
    Exhausted,
}

impl RecordFault {
    /// Whether a new connection helps.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        !matches!(self, Self::TooLong { .. })
    }

    /// Whether bytes were damaged or changed underway.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        matches!(
            self,
            Self::Replayed { .. } | Self::Reordered { .. } | Self::Tampered { .. }
        )
    }
}

/// One direction's keys and the number of its next record.
struct Stream {
    key: RecordKey,
    sequence: u64,
}

impl Stream {
    const fn new(key: RecordKey) -> Self {
        Self { key, sequence: 0 }
    }

    /// The nonce of the record that is due.
    fn nonce(&self) -> Result<Nonce, RecordFault> {
        if self.sequence == u64::MAX {
            return Err(RecordFault::Exhausted);
        }
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.sequence.to_be_bytes());
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// On to the next record, under the next key if this one has done its share.
    fn advance(&mut self) {
        assert!(self.sequence < u64::MAX, "the last number is never used");
        self.sequence += 1;
        if self.sequence.is_multiple_of(RECORDS_PER_KEY) {
            self.key = self.key.next();
        }
    }
}

fn header(len: u32, sequence: u64) -> [u8; RECORD_HEADER_BYTES] {
    let mut header = [0; RECORD_HEADER_BYTES];
    header[..4].copy_from_slice(&len.to_le_bytes());
    header[4..].copy_from_slice(&sequence.to_le_bytes());
    header
}

/// Seals what this side sends.
pub struct Sealer(Stream);

impl Sealer {
    pub(crate) const fn new(key: RecordKey) -> Self {
        Self(Stream::new(key))
    }

    /// Encrypts `bytes` where they lie; what goes before and behind them is returned. Records are
    /// to be sent in the order in which they were sealed.
    ///
    /// # Errors
    /// [`RecordFault::TooLong`] and [`RecordFault::Exhausted`]; the bytes are as they were.
    pub fn seal_in_place(
        &mut self,
        bytes: &mut [u8],
    ) -> Result<([u8; RECORD_HEADER_BYTES], [u8; RECORD_TAG_BYTES]), RecordFault> {
        let len_bytes = bytes.len();
        if len_bytes > RECORD_BYTES_MAX {
            return Err(RecordFault::TooLong { len_bytes });
        }
        let nonce = self.0.nonce()?;
        let len = u32::try_from(len_bytes).expect("it is bounded");
        let header = header(len, self.0.sequence);
        let sealed =
            (self.0.key.cipher).seal_in_place_separate_tag(nonce, Aad::from(header), bytes);
        let tag = sealed.expect("a record is far below the cipher's bound");
        self.0.advance();
        let tag = tag.as_ref().try_into().expect("the tag has 16 bytes");
        Ok((header, tag))
    }

    /// Appends `bytes`, sealed, to outgoing bytes: in as many records as they need, one if there are
    /// none.
    ///
    /// # Errors
    /// [`RecordFault::Exhausted`]; what was appended before is not to be sent.
    pub fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), RecordFault> {
        let mut rest = bytes;
        loop {
            let (piece, behind) = rest.split_at(rest.len().min(RECORD_BYTES_MAX));
            let start = out.len();
            out.extend_from_slice(&[0; RECORD_HEADER_BYTES]);
            out.extend_from_slice(piece);
            let sealed = self.seal_in_place(&mut out[start + RECORD_HEADER_BYTES..]);
            let (header, tag) = sealed?;
            out[start..start + RECORD_HEADER_BYTES].copy_from_slice(&header);
            out.extend_from_slice(&tag);
            rest = behind;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Opens what this side receives.
pub struct Opener {
    stream: Stream,
    /// Nothing is opened behind what could not be.
    fault: Option<RecordFault>,
}

impl Opener {
    pub(crate) const fn new(key: RecordKey) -> Self {
        Self {
            stream: Stream::new(key),
            fault: None,
        }
    }

    /// How many bytes follow this header: those of the record, and its tag. They are at most
    /// [`RECORD_BYTES_MAX`] + [`RECORD_TAG_BYTES`].
    ///
    /// # Errors
    /// [`RecordFault`], unless it is the header of the record that is due. It stays.
    pub fn body_len(&mut self, header: &[u8; RECORD_HEADER_BYTES]) -> Result<usize, RecordFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let checked = self.check(header);
        self.fault = checked.err();
        checked.map(|len| len + RECORD_TAG_BYTES)
    }

    fn check(&self, header: &[u8; RECORD_HEADER_BYTES]) -> Result<usize, RecordFault> {
        let [l0, l1, l2, l3, sequence @ ..] = *header;
        let len_bytes = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let (sequence, expected) = (u64::from_le_bytes(sequence), self.stream.sequence);
        if expected == u64::MAX {
            return Err(RecordFault::Exhausted);
        }
        if len_bytes > RECORD_BYTES_MAX {
            return Err(RecordFault::TooLong { len_bytes });
        }
        match sequence.cmp(&expected) {
            core::cmp::Ordering::Less => Err(RecordFault::Replayed { sequence, expected }),
            core::cmp::Ordering::Greater => Err(RecordFault::Reordered { sequence, expected }),
            core::cmp::Ordering::Equal => Ok(len_bytes),
        }
    }

    /// Decrypts a record where it lies. `body` is what follows the header, tag included; the
    /// plain bytes, without the tag, are returned.
    ///
    /// # Errors
    /// [`RecordFault`]; the bytes are unspecified then, and the fault stays.
    pub fn open_in_place<'a>(
        &mut self,
        header: &[u8; RECORD_HEADER_BYTES],
        body: &'a mut [u8],
    ) -> Result<&'a mut [u8], RecordFault> {
        let len = self.body_len(header)?;
        let tampered = RecordFault::Tampered {
            sequence: self.stream.sequence,
        };
        if body.len() != len {
            self.fault = Some(tampered);
            return Err(tampered);
        }
        let nonce = self.stream.nonce()?;
        let opened = (self.stream.key.cipher).open_in_place(nonce, Aad::from(*header), body);
        let Ok(plain) = opened else {
            self.fault = Some(tampered);
            return Err(tampered);
        };
        self.stream.advance();
        Ok(plain)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer(record {})", self.0.sequence)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener(record {})", self.stream.sequence)
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;

    fn pair(sequence: u64) -> (Sealer, Opener) {
        let key = || RecordKey::new(Zeroizing::new([6; 32]));
        let (mut sealer, mut opener) = (Sealer::new(key()), Opener::new(key()));
        sealer.0.sequence = sequence;
        opener.stream.sequence = sequence;
        (sealer, opener)
    }

    fn sealed(sealer: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        sealer.seal(bytes, &mut out).unwrap();
        out
    }

    fn open(opener: &mut Opener, record: &[u8]) -> Result<Vec<u8>, RecordFault> {
        let (header, body) = record.split_first_chunk().unwrap();
        let mut body = body.to_vec();
        let plain = opener.open_in_place(header, &mut body)?;
        Ok(plain.to_vec())
    }

    /// A change here is a change of the wire.
    #[test]
    fn golden_record() {
        let (mut sealer, mut opener) = pair(0);
        let record = sealed(&mut sealer, b"kv");
        assert_eq!(record[..12], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let tail: String = record[12..]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(tail, "b560bff1e2d0a0352bccf267824bb53459f4");
        assert_eq!(open(&mut opener, &record).unwrap(), b"kv");
    }

    #[test]
    fn records_hold_up_to_their_limit() {
        let (mut sealer, mut opener) = pair(0);
        let mut longest = vec![7; RECORD_BYTES_MAX];
        let (header, tag) = sealer.seal_in_place(&mut longest).unwrap();
        longest.extend_from_slice(&tag);
        let plain = opener.open_in_place(&header, &mut longest).unwrap();
        assert_eq!(plain, vec![7; RECORD_BYTES_MAX]);
        let len_bytes = RECORD_BYTES_MAX + 1;
        let refused = sealer.seal_in_place(&mut vec![7; len_bytes]);
        assert_eq!(refused, Err(RecordFault::TooLong { len_bytes }));
        let mut forged = header;
        forged[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        let len_bytes = u32::MAX as usize;
        assert_eq!(
            opener.body_len(&forged),
            Err(RecordFault::TooLong { len_bytes })
        );
    }

    #[test]
    fn long_bytes_go_in_several_records_and_none_in_one() {
        let (mut sealer, mut opener) = pair(0);
        let bytes = vec![1; RECORD_BYTES_MAX + 1];
        let out = sealed(&mut sealer, &bytes);
        let extra = RECORD_HEADER_BYTES + RECORD_TAG_BYTES;
        assert_eq!(out.len(), bytes.len() + 2 * extra);
        let (first, second) = out.split_at(RECORD_BYTES_MAX + extra);
        assert_eq!(open(&mut opener, first).unwrap().len(), RECORD_BYTES_MAX);
        assert_eq!(open(&mut opener, second).unwrap(), [1]);
        let empty = sealed(&mut sealer, &[]);
        assert_eq!(open(&mut opener, &empty).unwrap(), []);
    }

    #[test]
    fn what_comes_again_or_early_or_changed_is_refused_for_good() {
        type Change = fn([Vec<u8>; 3]) -> Vec<u8>;
        let cases: [(Change, RecordFault); 5] = [
            (
                |[a, _, _]| a,
                RecordFault::Replayed {
                    sequence: 0,
                    expected: 1,
                },
            ),
            (
                |[_, _, c]| c,
                RecordFault::Reordered {
                    sequence: 2,
                    expected: 1,
                },
            ),
            (
                |[_, mut b, _]| {
                    b[12] ^= 1;
                    b
                },
                RecordFault::Tampered { sequence: 1 },
            ),
            (
                |[_, mut b, _]| {
                    b.pop();
                    b
                },
                RecordFault::Tampered { sequence: 1 },
            ),
            // A later record under the number that is due.
            (
                |[_, b, mut c]| {
                    c[4..12].copy_from_slice(&b[4..12]);
                    c
                },
                RecordFault::Tampered { sequence: 1 },
            ),
        ];
        for (change, fault) in cases {
            let (mut sealer, mut opener) = pair(0);
            let records = [b"one", b"two", b"six"].map(|bytes| sealed(&mut sealer, bytes));
            assert_eq!(open(&mut opener, &records[0]).unwrap(), b"one");
            let good = records[1].clone();
            assert_eq!(open(&mut opener, &change(records)), Err(fault));
            assert_eq!(open(&mut opener, &good), Err(fault), "it stays");
            assert!(fault.is_corruption() && fault.is_retryable());
        }
    }

    #[test]
    fn keys_change_by_count_and_the_old_one_opens_nothing_then() {
        let (mut sealer, mut opener) = pair(RECORDS_PER_KEY - 1);
        let stale = |sequence| {
            let (mut sealer, _) = pair(sequence);
            sealed(&mut sealer, b"x")
        };
        let last = sealed(&mut sealer, b"x");
        assert_eq!(last, stale(RECORDS_PER_KEY - 1));
        assert_eq!(open(&mut opener, &last).unwrap(), b"x");
        let first = sealed(&mut sealer, b"x");
        assert_ne!(first, stale(RECORDS_PER_KEY), "under another key");
        assert_eq!(open(&mut opener, &first).unwrap(), b"x");
        let sequence = RECORDS_PER_KEY + 1;
        let refused = open(&mut opener, &stale(sequence));
        assert_eq!(refused, Err(RecordFault::Tampered { sequence }));
    }

    #[test]
    fn numbers_run_out_before_a_nonce_is_used_twice() {
        let (mut sealer, mut opener) = pair(u64::MAX - 1);
        let last = sealed(&mut sealer, b"end");
        assert_eq!(open(&mut opener, &last).unwrap(), b"end");
        let mut bytes = *b"more";
        let refused = sealer.seal_in_place(&mut bytes);
        assert_eq!((refused, &bytes), (Err(RecordFault::Exhausted), b"more"));
        let forged = header(1, u64::MAX);
        assert_eq!(opener.body_len(&forged), Err(RecordFault::Exhausted));
    }
}
