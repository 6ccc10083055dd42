//! The keys of a batched lookup or removal.

use lunette_runtime_core::codec::{Reader, Writer};
use lunette_runtime_core::limits::{BATCH_KEYS_MAX, BODY_BYTES_MAX};
use thiserror::Error;

use super::{MessageFault, end_of};
use crate::key::Key;

const _: () = assert!(BATCH_KEYS_MAX <= u16::MAX as usize);

/// The body of an exists or a remove: a 16-bit count, then that many keys, each behind its 16-bit
/// length. It borrows the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBatch<'a> {
    count: usize,
    /// The keys, which [`KeyBatch::decode`] has checked.
    keys: &'a [u8],
}

impl<'a> KeyBatch<'a> {
    /// The batch in `body`. Every key is checked here, so that the iteration cannot fail.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than the keys that it announces, all valid and at
    /// most [`BATCH_KEYS_MAX`].
    pub fn decode(body: &'a [u8]) -> Result<Self, MessageFault> {
        let mut reader = Reader::new(body);
        let count = usize::from(reader.u16()?);
        if count > BATCH_KEYS_MAX {
            return Err(MessageFault::TooManyKeys(count));
        }
        let keys = reader.rest();
        for _ in 0..count {
            Key::new(reader.short_bytes()?)?;
        }
        end_of(&reader)?;
        Ok(Self { count, keys })
    }

    /// The number of its keys.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether it has no keys.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Its keys, in the order in which they were sent.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = Key<'a>> + use<'a> {
        let mut reader = Reader::new(self.keys);
        (0..self.count).map(move |_| {
            let bytes = reader.short_bytes().expect("decode has read this key");
            Key::new(bytes).expect("decode has checked this key")
        })
    }
}

/// The batch has no room for the key: send it, and begin another.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the batch is full with {keys} keys in {body_bytes} bytes")]
pub struct BatchFull {
    /// Keys in the batch.
    pub keys: usize,
    /// Length of its body in bytes.
    pub body_bytes: usize,
}

/// Writes a [`KeyBatch`] key by key. Dropped at any point, it leaves a whole body behind.
#[derive(Debug)]
pub struct KeyBatchWriter<'a> {
    out: &'a mut Vec<u8>,
    begins_at: usize,
    count: u16,
}

impl<'a> KeyBatchWriter<'a> {
    /// Appends the body of an empty batch to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        let begins_at = out.len();
        Writer::new(out).u16(0);
        Self {
            out,
            begins_at,
            count: 0,
        }
    }

    /// Adds a key.
    ///
    /// # Errors
    /// [`BatchFull`] if the batch has [`BATCH_KEYS_MAX`] keys, or its body would exceed
    /// [`BODY_BYTES_MAX`]; the batch stays as it was.
    pub fn push(&mut self, key: Key<'_>) -> Result<(), BatchFull> {
        let body_bytes = self.out.len() - self.begins_at;
        let keys = usize::from(self.count);
        if keys == BATCH_KEYS_MAX || body_bytes + 2 + key.bytes().len() > BODY_BYTES_MAX {
            return Err(BatchFull { keys, body_bytes });
        }
        self.count += 1;
        Writer::new(self.out).short_bytes(key.bytes());
        self.out[self.begins_at..self.begins_at + 2].copy_from_slice(&self.count.to_le_bytes());
        Ok(())
    }

    /// The number of keys written.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether no key was written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::limits::KEY_BYTES_MAX;

    use super::*;

    #[test]
    fn golden_batch() {
        let mut body = b"before".to_vec();
        let mut writer = KeyBatchWriter::new(&mut body);
        assert!(writer.is_empty());
        for key in [&b"a"[..], b"bc"] {
            writer.push(Key::new(key).expect("a key")).expect("room");
        }
        assert_eq!(writer.len(), 2);
        assert_eq!(body, *b"before\x02\0\x01\0a\x02\0bc");
    }

    #[test]
    fn the_count_is_bounded_on_both_sides() {
        let mut body = Vec::new();
        let mut writer = KeyBatchWriter::new(&mut body);
        let key = Key::new(b"k").expect("a key");
        for _ in 0..BATCH_KEYS_MAX {
            writer.push(key).expect("room");
        }
        let full = BatchFull {
            keys: BATCH_KEYS_MAX,
            body_bytes: 2 + 3 * BATCH_KEYS_MAX,
        };
        assert_eq!(writer.push(key), Err(full));
        assert_eq!(
            KeyBatch::decode(&body).expect("whole").len(),
            BATCH_KEYS_MAX
        );
        let above = u16::try_from(BATCH_KEYS_MAX).expect("fits") + 1;
        body[..2].copy_from_slice(&above.to_le_bytes());
        body.extend_from_slice(b"\x01\0k");
        let fault = MessageFault::TooManyKeys(BATCH_KEYS_MAX + 1);
        assert_eq!(KeyBatch::decode(&body), Err(fault));
    }

    #[test]
    fn the_body_is_bounded() {
        let mut body = Vec::new();
        let mut writer = KeyBatchWriter::new(&mut body);
        let bytes = [7; KEY_BYTES_MAX];
        let longest = Key::new(&bytes).expect("a key");
        let full = loop {
            if let Err(full) = writer.push(longest) {
                break full;
            }
        };
        assert_eq!(full.keys, (BODY_BYTES_MAX - 2) / (KEY_BYTES_MAX + 2));
        let left = BODY_BYTES_MAX - full.body_bytes - 2;
        let above = Key::new(&bytes[..left + 1]).expect("a key");
        assert_eq!(writer.push(above), Err(full));
        assert_eq!(
            writer.push(Key::new(&bytes[..left]).expect("a key")),
            Ok(())
        );
        assert_eq!(body.len(), BODY_BYTES_MAX);
        assert_eq!(KeyBatch::decode(&body).expect("whole").len(), full.keys + 1);
    }

    #[test]
    fn one_bad_key_spoils_the_batch() {
        assert!(
            KeyBatch::decode(b"\0\0")
                .expect("an empty batch")
                .is_empty()
        );
        assert!(matches!(
            KeyBatch::decode(b"\x02\0\x01\0a\0\0"),
            Err(MessageFault::Key(_))
        ));
        assert!(matches!(
            KeyBatch::decode(b"\x02\0\x01\0a"),
            Err(MessageFault::Truncated(_))
        ));
        assert_eq!(
            KeyBatch::decode(b"\x01\0\x01\0ab"),
            Err(MessageFault::Trailing(1))
        );
    }
}
