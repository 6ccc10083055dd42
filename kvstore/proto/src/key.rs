//! Keys and their fingerprints.

use lunette_runtime_core::limits::KEY_BYTES_MAX;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_128;

use crate::tenant::TENANT_PREFIX;

const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize);

/// XXH3-128 of a key: what placement and the index of a shard work with.
///
/// It is no cryptographic hash: who may choose keys can make two of them collide. So whoever
/// answers with an object first compares the key that the extent itself carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

impl Fingerprint {
    /// Its low half.
    #[must_use]
    pub const fn low(self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0.to_be_bytes();
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// Its high half, which tells keys apart well enough in messages for people.
    #[must_use]
    pub const fn high(self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0.to_be_bytes();
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// What the cluster's map places keys by: both halves, combined.
    #[must_use]
    pub const fn placement(self) -> u64 {
        let [a, b, c, d, e, f, g, h, low @ ..] = self.0.to_be_bytes();
        u64::from_be_bytes([a, b, c, d, e, f, g, h]) ^ u64::from_be_bytes(low)
    }
}

/// Why bytes are no key. The request is at fault; repeating it cannot help.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum KeyFault {
    /// A key has at least one byte.
    #[error("the key is empty")]
    Empty,
    /// A key has at most [`KEY_BYTES_MAX`] bytes.
    #[error("a key of {len_bytes} bytes is above the limit of {KEY_BYTES_MAX}")]
    TooLong {
        /// Length of what was offered.
        len_bytes: usize,
    },
    /// It is of the form of the store's own keys.
    #[error(
        "keys that begin with {:?} or {:?} are the store's own",
        RESERVED_PREFIX.escape_ascii().to_string(),
        TENANT_PREFIX.escape_ascii().to_string()
    )]
    Reserved,
}

/// How keys begin that only the store itself makes, such as those of the parts of an object.
pub const RESERVED_PREFIX: &[u8; 8] = b"\xfflunette";

/// A valid key: 1 to [`KEY_BYTES_MAX`] bytes, any bytes. It borrows them from the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key<'a>(&'a [u8]);

impl<'a> Key<'a> {
    /// The key of these bytes.
    ///
    /// # Errors
    /// [`KeyFault`] if there are none, or too many.
    pub const fn new(bytes: &'a [u8]) -> Result<Self, KeyFault> {
        match bytes.len() {
            0 => Err(KeyFault::Empty),
            len_bytes if len_bytes > KEY_BYTES_MAX => Err(KeyFault::TooLong { len_bytes }),
            _ => Ok(Self(bytes)),
        }
    }

    /// The key of these bytes, which a caller has chosen.
    ///
    /// # Errors
    /// [`KeyFault`]: as [`new`](Self::new), and `Reserved` if they begin with [`RESERVED_PREFIX`] or
    /// [`TENANT_PREFIX`].
    pub fn of_caller(bytes: &'a [u8]) -> Result<Self, KeyFault> {
        let key = Self::new(bytes)?;
        if key.is_of_part() || bytes.starts_with(TENANT_PREFIX) {
            return Err(KeyFault::Reserved);
        }
        Ok(key)
    }

    /// Whether it is the store's own: that of a [part](crate::striped) of an object.
    #[must_use]
    pub fn is_of_part(self) -> bool {
        self.0.starts_with(RESERVED_PREFIX)
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Its length in bytes, as formats carry it.
    #[must_use]
    pub fn len_bytes(self) -> u16 {
        u16::try_from(self.0.len()).expect("KEY_BYTES_MAX fits 16 bits")
    }

    /// Its fingerprint.
    #[must_use]
    pub fn fingerprint(self) -> Fingerprint {
        Fingerprint(xxh3_128(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_hold_on_both_sides() {
        let bytes = [7; KEY_BYTES_MAX + 1];
        assert_eq!(Key::new(&[]), Err(KeyFault::Empty));
        assert!(Key::new(&bytes[..1]).is_ok());
        let longest = Key::new(&bytes[..KEY_BYTES_MAX]).expect("within the limit");
        assert_eq!(usize::from(longest.len_bytes()), KEY_BYTES_MAX);
        let fault = KeyFault::TooLong {
            len_bytes: KEY_BYTES_MAX + 1,
        };
        assert_eq!(Key::new(&bytes), Err(fault));
    }

    #[test]
    fn callers_choose_no_key_of_the_store() {
        let ours = [RESERVED_PREFIX.as_slice(), b"/part"].concat();
        assert!(Key::new(&ours).is_ok());
        assert_eq!(Key::of_caller(&ours), Err(KeyFault::Reserved));
        for prefix in [RESERVED_PREFIX.as_slice(), TENANT_PREFIX] {
            assert_eq!(Key::of_caller(prefix), Err(KeyFault::Reserved));
        }
        assert!(Key::of_caller(&RESERVED_PREFIX[..7]).is_ok());
        assert_eq!(Key::of_caller(&[]), Err(KeyFault::Empty));
        let text =
            "keys that begin with \"\\\\xfflunette\" or \"\\\\xfftenant\" are the store's own";
        assert_eq!(KeyFault::Reserved.to_string(), text);
    }

    /// Fingerprints decide where keys live, so they may never change. The values are the
    /// reference implementation's, with seed 0.
    #[test]
    fn fingerprints_are_xxh3_128() {
        assert_eq!(xxh3_128(b""), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
        let key = Key::new(b"lunette").expect("a key");
        assert_eq!(
            key.fingerprint(),
            Fingerprint(0x139f_9c9a_210a_5578_f526_0bf1_4544_d9a7)
        );
    }
}
