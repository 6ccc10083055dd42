//! Keys that two ends of TLS 1.3 share (NVMe/TCP 1.0, "TLS PSK and PSK Identity Derivation").
//!
//! ```text
//!   configured key --(bound to the host's name)--> retained key --(bound to its identity)--> TLS's key
//!   NVMeTLSkey-1:01:BASE64:                        NVMe0R01 HOST SUBSYSTEM
//! ```

use core::fmt;

use thiserror::Error;
use zeroize::Zeroizing;

use super::form::{self, Written};
use super::hash::Hash;
use crate::nqn::Nqn;

const PREFIX: &str = "NVMeTLSkey-1:";
/// Longest identity: what a key is bound to has one byte for its length (RFC 8446, 7.1).
pub const IDENTITY_BYTES_MAX: usize = 255;
/// Identities of this version, of retained keys.
const IDENTITY: &str = "NVMe0R";
/// Every label of TLS 1.3 begins so (RFC 8446, 7.1).
const LABEL_PREFIX: &[u8] = b"tls13 ";
const LABEL_HOST: &[u8] = b"HostNQN";
const LABEL_TLS: &[u8] = b"nvme-tls-psk";

/// Why something is no key.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PskFault {
    /// It has not the form `NVMeTLSkey-1:NN:BASE64:`.
    #[error("a key has the form NVMeTLSkey-1:NN:BASE64:")]
    Form,
    /// The hash by which it is bound to a host is none of 00 to 02.
    #[error("a key's hash is one of 00 to 02")]
    Hash,
    /// It is not as long as its hash's values: 32 or 48 bytes.
    #[error("a key is as long as its hash's values: 32 or 48 bytes")]
    Length,
    /// Its checksum is not that of its bytes: it was mistyped.
    #[error("the key's checksum does not fit: it was mistyped")]
    Checksum,
}

/// A key that was configured at both ends. It is overwritten when dropped, and never printed.
#[derive(Clone)]
pub struct TlsPsk {
    bytes: Zeroizing<Vec<u8>>,
    is_bound: bool,
}

impl TlsPsk {
    /// From 32 or 48 random bytes; `is_bound` says that what is derived from them depends on the host.
    ///
    /// # Errors
    /// [`PskFault::Length`].
    pub fn new(bytes: &[u8], is_bound: bool) -> Result<Self, PskFault> {
        if !matches!(bytes.len(), 32 | 48) {
            return Err(PskFault::Length);
        }
        Ok(Self {
            bytes: Zeroizing::new(bytes.to_vec()),
            is_bound,
        })
    }

    /// Reads one (NVMe/TCP 1.0, "PSK Interchange Format"). Blanks around it do not matter.
    ///
    /// # Errors
    /// [`PskFault`].
    pub fn parse(text: &str) -> Result<Self, PskFault> {
        let written = Written::new(text, PREFIX).ok_or(PskFault::Form)?;
        let hash = match written.hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            _ => return Err(PskFault::Hash),
        };
        let decoded = written.decode().ok_or(PskFault::Form)?;
        let (bytes, is_intact) = decoded.checked().ok_or(PskFault::Length)?;
        let psk = Self::new(bytes, hash.is_some())?;
        if hash.is_some_and(|hash| hash != psk.hash()) {
            return Err(PskFault::Length);
        }
        if !is_intact {
            return Err(PskFault::Checksum);
        }
        Ok(psk)
    }

    /// The form that [`TlsPsk::parse`] reads, to be kept where nobody else reads it.
    #[must_use]
    pub fn reveal(&self) -> Zeroizing<String> {
        let hash = if self.is_bound { self.hash().id() } else { 0 };
        form::write(PREFIX, hash, &self.bytes)
    }

    /// The hash of all that is derived from it, and of the cipher suite: SHA-256 of a key of 32 bytes,
    /// SHA-384 of one of 48.
    #[must_use]
    pub fn hash(&self) -> Hash {
        if self.bytes.len() == 32 {
            Hash::Sha256
        } else {
            Hash::Sha384
        }
    }

    /// How a host names the key that it has for a subsystem.
    #[must_use]
    pub fn identity(&self, host: &Nqn, subsystem: &Nqn) -> String {
        let hash = self.hash().id();
        format!("{IDENTITY}{hash:02} {host} {subsystem}")
    }

    /// TLS's key of a host for a subsystem; `None` if the identity has more than [`IDENTITY_BYTES_MAX`].
    #[must_use]
    pub fn key(&self, host: &Nqn, subsystem: &Nqn) -> Option<Zeroizing<Vec<u8>>> {
        let hash = self.hash();
        let retained = if self.is_bound {
            derived(hash, &self.bytes, LABEL_HOST, host.as_str().as_bytes())
        } else {
            self.bytes.clone()
        };
        let identity = self.identity(host, subsystem);
        (identity.len() <= IDENTITY_BYTES_MAX)
            .then(|| derived(hash, &retained, LABEL_TLS, identity.as_bytes()))
    }

    /// The names in an identity of this key: of a host and of a subsystem.
    #[must_use]
    pub fn names(&self, identity: &[u8]) -> Option<(Nqn, Nqn)> {
        let identity = core::str::from_utf8(identity).ok()?;
        let (kind, names) = identity.split_once(' ')?;
        if kind != format!("{IDENTITY}{:02}", self.hash().id()) {
            return None;
        }
        let (host, subsystem) = names.split_once(' ')?;
        Some((Nqn::new(host).ok()?, Nqn::new(subsystem).ok()?))
    }
}

impl PartialEq for TlsPsk {
    fn eq(&self, other: &Self) -> bool {
        let differs = |(one, other): (&u8, &u8)| one ^ other;
        let pairs = self.bytes.iter().zip(other.bytes.iter());
        self.is_bound == other.is_bound
            && self.bytes.len() == other.bytes.len()
            && pairs.map(differs).fold(0, |all, one| all | one) == 0
    }
}

impl Eq for TlsPsk {}

impl fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsPsk({} bytes)", self.bytes.len())
    }
}

/// HKDF-Extract without salt, and HKDF-Expand-Label of as many bytes as the hash has, which is the first
/// block alone (RFC 5869, 2.2 and 2.3; RFC 8446, 7.1).
fn derived(hash: Hash, key: &[u8], label: &[u8], context: &[u8]) -> Zeroizing<Vec<u8>> {
    let extracted = hash.mac(&vec![0; hash.len_bytes()], &[key]);
    expanded(hash, &extracted, label, context)
}

fn expanded(hash: Hash, key: &[u8], label: &[u8], context: &[u8]) -> Zeroizing<Vec<u8>> {
    let byte = |len: usize| [u8::try_from(len).expect("labels and contexts are short")];
    let len = [[0], byte(hash.len_bytes())].concat();
    let label_len = byte(LABEL_PREFIX.len() + label.len());
    let context_len = byte(context.len());
    let parts: [&[u8]; 7] = [
        &len,
        &label_len,
        LABEL_PREFIX,
        label,
        &context_len,
        context,
        &[1],
    ];
    hash.mac(key, &parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by nvme-cli 2.3, `nvme gen-tls-key`.
    const KEYS: [(&str, Hash); 2] = [
        (
            "NVMeTLSkey-1:01:tRmvkT0rrD+7ZGrqHHMEI+uwgNgaMnCf/RXgXg5hRQwfl5Yb:",
            Hash::Sha256,
        ),
        (
            "NVMeTLSkey-1:02:gIyNrxqVjUycH6KZkEMy8SZbOSAL8rjIQXNH/XuhdVpmTPryCABPhvpwF3/M3s4l0Ri5PA==:",
            Hash::Sha384,
        ),
    ];

    fn name(text: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-01.example:{text}")).expect("a name")
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn labels_are_those_of_tls() {
        // RFC 8448, section 3: the early secret without a key, and what is derived from it for an empty
        // transcript.
        let early = Hash::Sha256.mac(&[0; 32], &[&[0; 32]]);
        assert_eq!(
            hex(&early),
            "33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a"
        );
        let empty = Hash::Sha256.digest(b"");
        assert_eq!(
            hex(&expanded(Hash::Sha256, &early, b"derived", &empty)),
            "6f2615a108c702c5678f54fc9dbab69716c076189c48250cebeac3576c3611ba"
        );
    }

    #[test]
    fn keys_keep_their_form() {
        for (text, hash) in KEYS {
            let psk = TlsPsk::parse(text).expect("a key");
            assert_eq!((psk.hash(), &**psk.reveal()), (hash, text));
            assert!(!format!("{psk:?}").contains(&text[16..24]));
        }
        let plain = TlsPsk::new(&[7; 32], false).expect("a key");
        assert_eq!(TlsPsk::parse(&plain.reveal()), Ok(plain));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let (key, _) = KEYS[0];
        for (wrong, fault) in [
            ("", PskFault::Form),
            ("DHHC-1:01:AAAA:", PskFault::Form),
            (&key[..key.len() - 1], PskFault::Form),
            (&key.replace(":01:", ":03:"), PskFault::Hash),
            (&key.replace(":01:", ":02:"), PskFault::Length),
            ("NVMeTLSkey-1:01:AAAA:", PskFault::Length),
            (&key.replace("tRmv", "tRmw"), PskFault::Checksum),
        ] {
            assert_eq!(TlsPsk::parse(wrong), Err(fault), "{wrong}");
        }
    }

    #[test]
    fn identities_say_whose_key_it_is_and_keys_depend_on_it() {
        let (host, other, subsystem) = (name("host"), name("other"), name("s"));
        let psk = TlsPsk::parse(KEYS[0].0).expect("a key");
        let identity = psk.identity(&host, &subsystem);
        assert_eq!(
            identity,
            "NVMe0R01 nqn.2026-01.example:host nqn.2026-01.example:s"
        );
        let names = Some((host.clone(), subsystem.clone()));
        assert_eq!(psk.names(identity.as_bytes()), names);
        for wrong in [
            "",
            "NVMe0R01",
            "NVMe0R01 nqn.a",
            "NVMe0R02 nqn.a nqn.b",
            "NVMe0R01 nqn.a b",
            "NVMe0R01 nqn.a nqn.b c",
        ] {
            assert_eq!(psk.names(wrong.as_bytes()), None, "{wrong}");
        }
        let unbound = TlsPsk::new(&psk.bytes, false).expect("a key");
        let keys = [
            psk.key(&host, &subsystem),
            psk.key(&other, &subsystem),
            psk.key(&host, &other),
            unbound.key(&host, &subsystem),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert_eq!(key.as_ref().map(|key| key.len()), Some(32));
            assert!(!keys[..index].contains(key));
        }
        let long = |len: usize| name(&"x".repeat(len));
        let fits = IDENTITY_BYTES_MAX - psk.identity(&host, &name("")).len();
        assert!(psk.key(&host, &long(fits)).is_some());
        assert!(psk.key(&host, &long(fits + 1)).is_none());
    }
}
