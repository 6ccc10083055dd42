//! Secrets, in the form that people pass on.

use core::fmt;

use thiserror::Error;
use zeroize::Zeroizing;

use super::form::{self, Written};
use super::hash::Hash;
use crate::nqn::Nqn;

const PREFIX: &str = "DHHC-1:";
/// What a secret is mixed with beside a name (NVMe Base 2.0, "Transformed Key").
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";

/// Why something is no secret.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SecretFault {
    /// It has not the form `DHHC-1:NN:BASE64:`.
    #[error("a secret has the form DHHC-1:NN:BASE64:")]
    Form,
    /// The hash of its transformation is none of 00 to 03.
    #[error("a secret's transformation is one of 00 to 03")]
    Transformation,
    /// It is not 32, 48 or 64 bytes long.
    #[error("a secret has 32, 48 or 64 bytes")]
    Length,
    /// Its checksum is not that of its bytes: it was mistyped.
    #[error("the secret's checksum does not fit: it was mistyped")]
    Checksum,
}

/// What a host, or a controller, proves to know. It is overwritten when dropped, and never printed.
#[derive(Clone)]
pub struct Secret {
    bytes: Zeroizing<Vec<u8>>,
    transformation: Option<Hash>,
}

impl Secret {
    /// From random bytes. `transformation` says how it is bound to the name of who has it.
    ///
    /// # Errors
    /// [`SecretFault::Length`].
    pub fn new(bytes: &[u8], transformation: Option<Hash>) -> Result<Self, SecretFault> {
        if !matches!(bytes.len(), 32 | 48 | 64) {
            return Err(SecretFault::Length);
        }
        Ok(Self {
            bytes: Zeroizing::new(bytes.to_vec()),
            transformation,
        })
    }

    /// Reads one (NVMe Base 2.0, "Secret Representation"). Blanks around it do not matter.
    ///
    /// # Errors
    /// [`SecretFault`].
    pub fn parse(text: &str) -> Result<Self, SecretFault> {
        let written = Written::new(text, PREFIX).ok_or(SecretFault::Form)?;
        let transformation = match written.hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretFault::Transformation),
        };
        let decoded = written.decode().ok_or(SecretFault::Form)?;
        let (bytes, is_intact) = decoded.checked().ok_or(SecretFault::Length)?;
        let secret = Self::new(bytes, transformation)?;
        if !is_intact {
            return Err(SecretFault::Checksum);
        }
        Ok(secret)
    }

    /// The form that [`Secret::parse`] reads, to be kept where nobody else reads it.
    #[must_use]
    pub fn reveal(&self) -> Zeroizing<String> {
        let transformation = self.transformation.map_or(0, Hash::id);
        form::write(PREFIX, transformation, &self.bytes)
    }

    /// The key of whoever is called `name`.
    pub(super) fn key_of(&self, name: &Nqn) -> Zeroizing<Vec<u8>> {
        match self.transformation {
            None => self.bytes.clone(),
            Some(hash) => hash.mac(&self.bytes, &[name.as_str().as_bytes(), PURPOSE]),
        }
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        let differs = |(one, other): (&u8, &u8)| one ^ other;
        let pairs = self.bytes.iter().zip(other.bytes.iter());
        self.transformation == other.transformation
            && self.bytes.len() == other.bytes.len()
            && pairs.map(differs).fold(0, |all, one| all | one) == 0
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification (NVMe Base 2.0, "Secret Representation").
    const EXAMPLE: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

    #[test]
    fn secrets_keep_their_form() {
        let secret = Secret::parse(EXAMPLE).expect("a secret");
        assert_eq!(*secret.reveal(), EXAMPLE);
        for (len, hash) in [(32, Hash::Sha256), (48, Hash::Sha384), (64, Hash::Sha512)] {
            let bytes: Vec<u8> = (0..len).collect();
            let secret = Secret::new(&bytes, Some(hash)).expect("a secret");
            let text = secret.reveal();
            assert!(text.starts_with(&format!("DHHC-1:{:02}:", hash.id())));
            assert_eq!(Secret::parse(&format!(" {}\n", &*text)), Ok(secret));
        }
    }

    #[test]
    fn what_is_no_secret_is_named() {
        let faults = [
            ("", SecretFault::Form),
            ("DHHC-2:00:ia6z:", SecretFault::Form),
            ("DHHC-1:00:ia6zGodO", SecretFault::Form),
            ("DHHC-1:00:ia6z!odO:", SecretFault::Form),
            ("DHHC-1:04:ia6zGodO:", SecretFault::Transformation),
            ("DHHC-1:00::", SecretFault::Length),
            ("DHHC-1:00:ia6zGodO:", SecretFault::Length),
        ];
        for (text, fault) in faults {
            assert_eq!(Secret::parse(text), Err(fault), "{text}");
        }
        let mistyped = EXAMPLE.replace("zGod", "zGOd");
        assert_eq!(Secret::parse(&mistyped), Err(SecretFault::Checksum));
        assert_eq!(Secret::new(&[0; 33], None), Err(SecretFault::Length));
    }

    #[test]
    fn nothing_of_a_secret_is_printed() {
        let secret = Secret::new(&[0xab; 32], None).expect("a secret");
        assert_eq!(format!("{secret:?}"), "Secret(32 bytes)");
    }

    #[test]
    fn a_transformed_key_belongs_to_a_name() {
        let name = |text| Nqn::new(text).expect("a name");
        let plain = Secret::new(&[1; 32], None).expect("a secret");
        assert_eq!(plain.key_of(&name("nqn.a")), plain.key_of(&name("nqn.b")));
        let bound = Secret::new(&[1; 32], Some(Hash::Sha256)).expect("a secret");
        assert_ne!(bound.key_of(&name("nqn.a")), bound.key_of(&name("nqn.b")));
        assert_ne!(plain, bound);
    }
}
