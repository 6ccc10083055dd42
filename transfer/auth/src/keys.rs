//! The keys of a session, all derived from one handshake (HKDF with SHA-256, RFC 5869).

use ring::{aead, hkdf, hmac};
use zeroize::Zeroizing;

use crate::session::SessionId;

/// Names of what is derived. Each key has one use.
const SESSION_ID: &[u8] = b"lunette session id";
const CONFIRM: &[u8] = b"lunette confirm";
const RECORDS_OF_INITIATOR: &[u8] = b"lunette records of the initiator";
const RECORDS_OF_RESPONDER: &[u8] = b"lunette records of the responder";
const NEXT_RECORDS: &[u8] = b"lunette next records";

/// What both sides share after the handshake.
pub(crate) struct Keys {
    pub(crate) binding: [u8; 32],
    root: hkdf::Prk,
}

/// Which side of the handshake sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Initiator,
    Responder,
}

/// An output of 16 or 32 bytes.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand(root: &hkdf::Prk, label: &[u8], out: &mut [u8]) {
    let info = [label];
    let expanded = root
        .expand(&info, Length(out.len()))
        .and_then(|okm| okm.fill(out));
    expanded.expect("the output is far below HKDF's bound");
}

impl Keys {
    pub(crate) fn derive(binding: [u8; 32], material: &[u8; 64]) -> Self {
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, &binding).extract(material);
        Self { binding, root }
    }

    pub(crate) fn session_id(&self) -> SessionId {
        let mut id = [0; 16];
        expand(&self.root, SESSION_ID, &mut id);
        SessionId(id)
    }

    fn confirm_key(&self) -> hmac::Key {
        let mut key = Zeroizing::new([0; 32]);
        expand(&self.root, CONFIRM, &mut *key);
        hmac::Key::new(hmac::HMAC_SHA256, &*key)
    }

    /// The initiator's proof that it took part in this very handshake.
    pub(crate) fn confirmation(&self) -> [u8; 32] {
        let tag = hmac::sign(&self.confirm_key(), &self.binding);
        tag.as_ref().try_into().expect("the tag has 32 bytes")
    }

    /// Whether `proof` is that proof, in a time that does not depend on where it differs.
    pub(crate) fn confirms(&self, proof: &[u8]) -> bool {
        hmac::verify(&self.confirm_key(), &self.binding, proof).is_ok()
    }

    /// The first key of the records that this side sends.
    pub(crate) fn records(&self, sender: Sender) -> RecordKey {
        let label = match sender {
            Sender::Initiator => RECORDS_OF_INITIATOR,
            Sender::Responder => RECORDS_OF_RESPONDER,
        };
        let mut key = Zeroizing::new([0; 32]);
        expand(&self.root, label, &mut *key);
        RecordKey::new(key)
    }
}

/// A key of records, and what the next one is derived from.
pub(crate) struct RecordKey {
    pub(crate) cipher: aead::LessSafeKey,
    bytes: Zeroizing<[u8; 32]>,
}

impl RecordKey {
    pub(crate) fn new(bytes: Zeroizing<[u8; 32]>) -> Self {
        let key = aead::UnboundKey::new(&aead::AES_256_GCM, &*bytes);
        let key = key.expect("the key has the cipher's 32 bytes");
        let cipher = aead::LessSafeKey::new(key);
        Self { cipher, bytes }
    }

    /// The key after this one, from which this one cannot be computed.
    pub(crate) fn next(&self) -> Self {
        let root = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &*self.bytes);
        let mut next = Zeroizing::new([0; 32]);
        expand(&root, NEXT_RECORDS, &mut *next);
        Self::new(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_has_a_key_of_its_own() {
        let keys = Keys::derive([1; 32], &[2; 64]);
        let mut seen = vec![
            *keys.records(Sender::Initiator).bytes,
            *keys.records(Sender::Responder).bytes,
            *keys.records(Sender::Initiator).next().bytes,
            keys.confirmation(),
        ];
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 4);
        assert!(keys.confirms(&keys.confirmation()));
        assert!(!keys.confirms(&keys.confirmation()[..31]) && !keys.confirms(&[0; 32]));
    }

    #[test]
    fn another_handshake_has_other_keys() {
        let keys = Keys::derive([1; 32], &[2; 64]);
        for other in [
            Keys::derive([3; 32], &[2; 64]),
            Keys::derive([1; 32], &[3; 64]),
        ] {
            assert_ne!(keys.session_id(), other.session_id());
            assert!(!other.confirms(&keys.confirmation()));
        }
    }
}
