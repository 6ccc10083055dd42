//! What both sides of an authenticated connection know, and what each says of itself.

use core::fmt;

use zeroize::Zeroizing;

/// 32 bytes that nobody can guess and that are used once. Real ones come from the system's
/// generator, those of a simulated world from its seed.
pub struct Entropy(pub(crate) Zeroizing<[u8; 32]>);

impl Entropy {
    /// Takes the bytes. Give them to nothing else.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy")
    }
}

/// Whether records are encrypted. One side's wish is enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// Not asked for. Bytes behind the handshake go as they are: whoever can change them on their
    /// way is not kept from it.
    #[default]
    Optional,
    /// Each record is sealed.
    Required,
}

/// What one side says of itself in the handshake, under the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// Changes whenever its process starts anew: what was granted in an earlier epoch is void.
    pub epoch: u64,
    /// Whether it wants records sealed.
    pub encryption: Encryption,
}

/// The name of one authenticated connection. Not a secret; no two handshakes have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {:032x}", u128::from_be_bytes(self.0))
    }
}

/// An authenticated connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its name, the same on both sides.
    pub id: SessionId,
    /// The hash of the whole handshake, the same on both sides: what is signed or granted under it
    /// holds on this connection alone.
    pub binding: [u8; 32],
    /// What this side said of itself.
    pub ours: Party,
    /// What the other side said of itself.
    pub theirs: Party,
    /// Which of the secrets both know, from 0, in this side's order. When no connection uses the
    /// second any more, a rotation is over.
    pub secret_index: usize,
}

impl Session {
    /// Whether records are sealed.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        [self.ours, self.theirs]
            .iter()
            .any(|party| party.encryption == Encryption::Required)
    }
}
