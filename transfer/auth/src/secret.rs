//! The cluster's secrets, as their file holds them.
//!
//! One secret a line, empty lines and lines that begin with `#` aside. The first is used to connect;
//! either is accepted, so that a secret is changed in three steps without a pause: add the new one
//! as the second everywhere, swap them everywhere, remove the old one everywhere.

use core::fmt;

use ring::hmac;
use thiserror::Error;
use zeroize::Zeroizing;

/// Most secrets that are valid at once: the one in use, and the one before or after it.
pub const SECRETS_MAX: usize = 2;
/// Shortest secret, in bytes. The first message lets who overhears it try secrets at leisure, so a
/// secret has to be drawn, not thought up: 32 digits of hexadecimal are 128 bits.
pub const SECRET_BYTES_MIN: usize = 32;
/// Longest secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 1024;
/// Longest secret file, in bytes.
pub const SECRET_FILE_BYTES_MAX: usize = 16 * 1024;

/// Permission bits that nobody but the file's owner may have.
const OTHERS_MODE: u32 = 0o077;
/// Separates keys of this use from any other use of the same secret.
const LABEL: &[u8] = b"lunette cluster secret 1";

/// One or two secrets, ready for use. They are wiped from memory when the last clone is dropped,
/// and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets {
    keys: Vec<Zeroizing<[u8; 32]>>,
}

/// A secret file as it was read: its bytes, and who may read them.
#[derive(Clone, Copy, Debug)]
pub struct SecretFile<'a> {
    /// What it holds.
    pub bytes: &'a [u8],
    /// Its permission bits, as `st_mode` has them.
    pub mode: u32,
    /// Its owner.
    pub owner_uid: u32,
    /// The user that this process runs as.
    pub process_uid: u32,
}

/// Why a secret file is not used. The configuration is at fault; nothing here is retryable.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SecretFault {
    /// Someone other than the owner has rights to it. Take them away (`chmod 600`).
    #[error("the secret file has mode {mode:03o}: only its owner may have rights (chmod 600)")]
    Permissions {
        /// The permission bits found.
        mode: u32,
    },
    /// It belongs to a user that is neither this process's nor root.
    #[error("the secret file belongs to user {owner_uid}, neither to this process's user nor root")]
    Owner {
        /// Whom it belongs to.
        owner_uid: u32,
    },
    /// It is longer than [`SECRET_FILE_BYTES_MAX`]: surely not a secret file.
    #[error("the secret file has {len_bytes} bytes, more than {SECRET_FILE_BYTES_MAX}")]
    FileTooLong {
        /// Its length.
        len_bytes: usize,
    },
    /// No line holds a secret.
    #[error("the secret file holds no secret")]
    Empty,
    /// More than [`SECRETS_MAX`] lines hold one.
    #[error("the secret file holds more than {SECRETS_MAX} secrets")]
    TooMany,
    /// The secret on this line (from 1) is shorter than [`SECRET_BYTES_MIN`].
    #[error("the secret on line {line} has {len_bytes} bytes, fewer than {SECRET_BYTES_MIN}")]
    TooShort {
        /// The line.
        line: usize,
        /// Length of the secret.
        len_bytes: usize,
    },
    /// The secret on this line (from 1) is longer than [`SECRET_BYTES_MAX`].
    #[error("the secret on line {line} has {len_bytes} bytes, more than {SECRET_BYTES_MAX}")]
    TooLong {
        /// The line.
        line: usize,
        /// Length of the secret.
        len_bytes: usize,
    },
    /// Both secrets are the same: a rotation that changes nothing.
    #[error("the secret file holds the same secret twice")]
    Repeated,
}

impl Secrets {
    /// The secrets of a file that only its owner (this process's user, or root) can read.
    ///
    /// # Errors
    /// [`SecretFault`] names the first rule that it breaks.
    pub fn from_file(file: SecretFile<'_>) -> Result<Self, SecretFault> {
        let mode = file.mode & 0o777;
        if mode & OTHERS_MODE != 0 {
            return Err(SecretFault::Permissions { mode });
        }
        if file.owner_uid != file.process_uid && file.owner_uid != 0 {
            let owner_uid = file.owner_uid;
            return Err(SecretFault::Owner { owner_uid });
        }
        Self::parse(file.bytes)
    }

    /// The secrets of a file's text, whoever could read it.
    ///
    /// # Errors
    /// [`SecretFault`] names the first rule that it breaks.
    pub fn parse(bytes: &[u8]) -> Result<Self, SecretFault> {
        if bytes.len() > SECRET_FILE_BYTES_MAX {
            let len_bytes = bytes.len();
            return Err(SecretFault::FileTooLong { len_bytes });
        }
        let mut keys: Vec<Zeroizing<[u8; 32]>> = Vec::with_capacity(SECRETS_MAX);
        for (text, line) in bytes.split(|&byte| byte == b'\n').zip(1..) {
            let secret = text.trim_ascii();
            if secret.is_empty() || secret[0] == b'#' {
                continue;
            }
            if keys.len() == SECRETS_MAX {
                return Err(SecretFault::TooMany);
            }
            let key = key_of(secret, line)?;
            if keys.contains(&key) {
                return Err(SecretFault::Repeated);
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(SecretFault::Empty);
        }
        Ok(Self { keys })
    }

    /// How many are valid: 1 or 2.
    #[must_use]
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    /// The keys made of them, the one to connect with first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8; 32]> {
        self.keys.iter().map(|key| &**key)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.keys.len())
    }
}

fn key_of(secret: &[u8], line: usize) -> Result<Zeroizing<[u8; 32]>, SecretFault> {
    let len_bytes = secret.len();
    if len_bytes < SECRET_BYTES_MIN {
        return Err(SecretFault::TooShort { line, len_bytes });
    }
    if len_bytes > SECRET_BYTES_MAX {
        return Err(SecretFault::TooLong { line, len_bytes });
    }
    let label = hmac::Key::new(hmac::HMAC_SHA256, LABEL);
    let tag = hmac::sign(&label, secret);
    let key = tag.as_ref().try_into().expect("the tag has 32 bytes");
    Ok(Zeroizing::new(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "0123456789abcdef0123456789abcdef";
    const SECOND: &str = "fedcba9876543210fedcba9876543210";

    #[test]
    fn one_or_two_lines_are_secrets() {
        let one = Secrets::parse(format!("{FIRST}\n").as_bytes()).unwrap();
        let text = format!("# in use\n  {FIRST}\t\r\n\n# next\n{SECOND}");
        let two = Secrets::parse(text.as_bytes()).unwrap();
        assert_eq!((one.count(), two.count()), (1, 2));
        assert_eq!(one.keys().next(), two.keys().next());
        assert_eq!(format!("{two:?}"), "Secrets(2)");
    }

    #[test]
    fn each_rule_is_told() {
        let long = "x".repeat(SECRET_BYTES_MAX + 1);
        let file = vec![b'\n'; SECRET_FILE_BYTES_MAX + 1];
        let len_bytes = SECRET_FILE_BYTES_MAX + 1;
        for (text, fault) in [
            (String::new(), SecretFault::Empty),
            ("# none\n\n".into(), SecretFault::Empty),
            (format!("{FIRST}\n{SECOND}\n{FIRST}0"), SecretFault::TooMany),
            (format!("{FIRST}\n{FIRST}"), SecretFault::Repeated),
            (
                FIRST[1..].into(),
                SecretFault::TooShort {
                    line: 1,
                    len_bytes: 31,
                },
            ),
            (
                format!("#\n{long}"),
                SecretFault::TooLong {
                    line: 2,
                    len_bytes: long.len(),
                },
            ),
            (
                String::from_utf8(file).unwrap(),
                SecretFault::FileTooLong { len_bytes },
            ),
        ] {
            assert_eq!(Secrets::parse(text.as_bytes()), Err(fault), "{fault}");
        }
        assert!(Secrets::parse(&long.as_bytes()[1..]).is_ok());
        assert!(Secrets::parse(FIRST.as_bytes()).is_ok());
    }

    #[test]
    fn only_its_owner_may_read_the_file() {
        let file = |mode, owner_uid| SecretFile {
            bytes: FIRST.as_bytes(),
            mode,
            owner_uid,
            process_uid: 1000,
        };
        for (mode, owner) in [(0o100_600, 1000), (0o100_400, 0), (0o100_700, 1000)] {
            assert!(Secrets::from_file(file(mode, owner)).is_ok(), "{mode:o}");
        }
        for mode in [0o640, 0o604, 0o610, 0o601, 0o602, 0o620] {
            let refused = Secrets::from_file(file(0o100_000 | mode, 1000));
            assert_eq!(refused, Err(SecretFault::Permissions { mode }));
        }
        let refused = Secrets::from_file(file(0o600, 1001));
        assert_eq!(refused, Err(SecretFault::Owner { owner_uid: 1001 }));
    }
}
