//! Hashes, and message authentication codes made with them (RFC 2104, FIPS 180-4).

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

/// Length of the longest hash, in bytes.
pub(super) const HASH_BYTES_MAX: usize = 64;

/// A hash that proofs are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

macro_rules! with {
    ($hash:expr, $name:ident => $use:expr) => {
        match $hash {
            Hash::Sha256 => {
                type $name = Sha256;
                $use
            }
            Hash::Sha384 => {
                type $name = Sha384;
                $use
            }
            Hash::Sha512 => {
                type $name = Sha512;
                $use
            }
        }
    };
}

impl Hash {
    /// Every hash, in the order of their numbers (NVMe Base 2.0, "DH-HMAC-CHAP Hash Function
    /// Identifiers").
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// Its number on the wire.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8 + 1
    }

    /// The hash with this number.
    #[must_use]
    pub fn of(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Length of its values in bytes.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    pub(super) fn digest(self, bytes: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(with!(self, H => H::digest(bytes).to_vec()))
    }

    pub(super) fn mac(self, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(
            with!(self, H => mac::<Hmac<H>>(key, parts).finalize().into_bytes().to_vec()),
        )
    }

    /// Whether `expected` is the code of `parts`, in a time that does not depend on it.
    pub(super) fn verifies(self, key: &[u8], parts: &[&[u8]], expected: &[u8]) -> bool {
        with!(self, H => mac::<Hmac<H>>(key, parts).verify_slice(expected).is_ok())
    }
}

fn mac<M: Mac + hmac::digest::KeyInit>(key: &[u8], parts: &[&[u8]]) -> M {
    let mut mac = <M as Mac>::new_from_slice(key).expect("keys of any length will do");
    for part in parts {
        mac.update(part);
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_have_their_numbers_and_lengths() {
        for (id, hash) in (1..).zip(Hash::ALL) {
            assert_eq!((hash.id(), Hash::of(id)), (id, Some(hash)));
            assert_eq!(hash.digest(b"").len(), hash.len_bytes());
            assert!(hash.len_bytes() <= HASH_BYTES_MAX);
        }
        assert_eq!((Hash::of(0), Hash::of(4)), (None, None));
    }

    #[test]
    fn codes_are_those_of_the_rfc() {
        // RFC 4231, test case 2, in two parts.
        let parts: [&[u8]; 2] = [b"what do ya want ", b"for nothing?"];
        let starts = [
            [0x5b, 0xdc, 0xc1, 0x46],
            [0xaf, 0x45, 0xd2, 0xe3],
            [0x16, 0x4b, 0x7a, 0x7b],
        ];
        for (hash, start) in Hash::ALL.into_iter().zip(starts) {
            let code = hash.mac(b"Jefe", &parts);
            assert_eq!(code[..4], start, "{hash:?}");
            assert!(hash.verifies(b"Jefe", &parts, &code));
            assert!(!hash.verifies(b"Jefe", &parts[..1], &code));
            assert!(!hash.verifies(b"jefe", &parts, &code));
            assert!(!hash.verifies(b"Jefe", &parts, &code[1..]));
        }
    }
}
