//! Noise as this package uses it: `NNpsk0` with Curve25519, ChaCha20-Poly1305 and SHA-256.
//!
//! Neither side has a key of its own; the secret that both share is mixed in before the first byte,
//! so that the first message already fails under another secret. The ephemeral keys give each
//! session keys that cannot be computed later from the secret.

use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver, FallbackResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};
use zeroize::Zeroizing;

use crate::keys::Keys;
use crate::message::{NOISE_BYTES, PARTY_BYTES};
use crate::session::Entropy;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// Both sides mix it in: what else uses the same secret cannot be mistaken for this.
const PROLOGUE: &[u8] = b"lunette auth 1";

/// A party to one handshake.
pub(crate) struct Noise {
    state: HandshakeState,
}

/// A message did not open: the secret is another, or bytes were changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unopened;

impl Noise {
    pub(crate) fn initiator(secret: &[u8; 32], entropy: &Entropy) -> Self {
        let state = builder(secret, entropy).build_initiator();
        Self {
            state: state.expect("the pattern and what it needs are fixed"),
        }
    }

    pub(crate) fn responder(secret: &[u8; 32], entropy: &Entropy) -> Self {
        let state = builder(secret, entropy).build_responder();
        Self {
            state: state.expect("the pattern and what it needs are fixed"),
        }
    }

    pub(crate) fn write(&mut self, payload: &[u8; PARTY_BYTES]) -> [u8; NOISE_BYTES] {
        let mut message = [0; NOISE_BYTES];
        let written = self.state.write_message(payload, &mut message);
        assert_eq!(
            written,
            Ok(NOISE_BYTES),
            "each side writes once, in its turn"
        );
        message
    }

    pub(crate) fn read(&mut self, message: &[u8]) -> Result<[u8; PARTY_BYTES], Unopened> {
        // As long as the message, as Noise asks of its callers.
        let mut payload = [0; NOISE_BYTES];
        match self.state.read_message(message, &mut payload) {
            Ok(PARTY_BYTES) => Ok(*payload.first_chunk().expect("it is longer")),
            Ok(_) | Err(_) => Err(Unopened),
        }
    }

    /// Keys of the finished handshake.
    pub(crate) fn finish(mut self) -> Keys {
        assert!(self.state.is_handshake_finished());
        let (initiator, responder) = self.state.dangerously_get_raw_split();
        let mut material = Zeroizing::new([0; 64]);
        material[..32].copy_from_slice(&initiator);
        material[32..].copy_from_slice(&responder);
        let binding = self.state.get_handshake_hash();
        let binding = binding.try_into().expect("SHA-256 has 32 bytes");
        Keys::derive(binding, &material)
    }
}

fn builder<'a>(secret: &'a [u8; 32], entropy: &Entropy) -> Builder<'a> {
    let params: NoiseParams = PATTERN.parse().expect("the pattern is one of Noise's");
    let given = Given(*entropy.0);
    let resolver = FallbackResolver::new(Box::new(given), Box::new(DefaultResolver));
    Builder::with_resolver(params, Box::new(resolver))
        .psk(0, secret)
        .and_then(|builder| builder.prologue(PROLOGUE))
        .expect("both are set once")
}

/// Answers for randomness alone, so that the fallback is never asked for it.
struct Given([u8; 32]);

impl CryptoResolver for Given {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(Zeroizing::new(self.0)))))
    }

    fn resolve_dh(&self, _choice: &DHChoice) -> Option<Box<dyn Dh>> {
        None
    }

    fn resolve_hash(&self, _choice: &HashChoice) -> Option<Box<dyn Hash>> {
        None
    }

    fn resolve_cipher(&self, _choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        None
    }
}

/// The one draw that a side makes: its ephemeral key.
struct Once(Option<Zeroizing<[u8; 32]>>);

impl Random for Once {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Error> {
        match self.0.take() {
            Some(bytes) if bytes.len() == out.len() => {
                out.copy_from_slice(&*bytes);
                Ok(())
            }
            _ => Err(Error::Rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entropy(byte: u8) -> Entropy {
        Entropy::new([byte; 32])
    }

    #[test]
    fn both_sides_come_to_the_same_keys_and_each_handshake_to_others() {
        let mut bindings = Vec::new();
        for byte in [1, 2] {
            let mut initiator = Noise::initiator(&[9; 32], &entropy(byte));
            let mut responder = Noise::responder(&[9; 32], &entropy(7));
            let hello = initiator.write(&[3; 16]);
            assert_eq!(responder.read(&hello), Ok([3; 16]));
            let reply = responder.write(&[4; 16]);
            assert_eq!(initiator.read(&reply), Ok([4; 16]));
            let (ours, theirs) = (initiator.finish(), responder.finish());
            assert_eq!(ours.binding, theirs.binding);
            assert_eq!(ours.session_id(), theirs.session_id());
            assert!(theirs.confirms(&ours.confirmation()));
            bindings.push(ours.binding);
        }
        assert_ne!(bindings[0], bindings[1]);
    }

    #[test]
    fn entropy_is_used_once() {
        let mut once = Once(Some(Zeroizing::new([5; 32])));
        let mut out = [0; 32];
        assert!(once.try_fill_bytes(&mut out).is_ok());
        assert_eq!(out, [5; 32]);
        assert!(once.try_fill_bytes(&mut out).is_err());
        let mut short = Once(Some(Zeroizing::new([5; 32])));
        assert!(short.try_fill_bytes(&mut [0; 31]).is_err());
    }
}
