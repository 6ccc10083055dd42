//! What the two ends prove, and how (NVMe Base 2.0, "DH-HMAC-CHAP_Reply Message" and
//! "DH-HMAC-CHAP_Success1 Message").

use zeroize::Zeroizing;

use super::hash::Hash;
use super::secret::Secret;
use crate::nqn::Nqn;

/// Who proves something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prover {
    Host,
    Controller,
}

/// What a proof is made of, beside a secret.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statement<'a> {
    pub(super) prover: Prover,
    pub(super) hash: Hash,
    pub(super) host: &'a Nqn,
    pub(super) subsystem: &'a Nqn,
    pub(super) transaction: u16,
    pub(super) sequence: u32,
    pub(super) challenge: &'a [u8],
    /// What both ends know by their Diffie-Hellman group.
    pub(super) shared: Option<&'a [u8]>,
}

impl Statement<'_> {
    /// The proof.
    pub(super) fn prove(&self, secret: &Secret) -> Vec<u8> {
        let key = secret.key_of(self.name());
        self.with_parts(|parts| self.hash.mac(&key, parts).to_vec())
    }

    /// Whether `proof` is it.
    pub(super) fn holds(&self, secret: &Secret, proof: &[u8]) -> bool {
        let key = secret.key_of(self.name());
        self.with_parts(|parts| self.hash.verifies(&key, parts, proof))
    }

    const fn name(&self) -> &Nqn {
        match self.prover {
            Prover::Host => self.host,
            Prover::Controller => self.subsystem,
        }
    }

    fn with_parts<T>(&self, made: impl FnOnce(&[&[u8]]) -> T) -> T {
        let (role, first, second) = match self.prover {
            Prover::Host => (&b"HostHost"[..], self.host, self.subsystem),
            Prover::Controller => (&b"Controller"[..], self.subsystem, self.host),
        };
        let challenge = self.augmented();
        made(&[
            &challenge,
            &self.sequence.to_le_bytes(),
            &self.transaction.to_le_bytes(),
            // No secure channel is asked for.
            &[0],
            role,
            first.as_str().as_bytes(),
            &[0],
            second.as_str().as_bytes(),
        ])
    }

    /// With a group, the challenge as only the two ends know it.
    fn augmented(&self) -> Zeroizing<Vec<u8>> {
        match self.shared {
            None => Zeroizing::new(self.challenge.to_vec()),
            Some(shared) => self.hash.mac(&self.hash.digest(shared), &[self.challenge]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_all_that_it_states() {
        let name = |text| Nqn::new(text).expect("a name");
        let (host, subsystem, other) = (name("nqn.host"), name("nqn.subsystem"), name("nqn.other"));
        let secret = Secret::new(&[1; 32], Some(Hash::Sha256)).expect("a secret");
        let statement = Statement {
            prover: Prover::Host,
            hash: Hash::Sha256,
            host: &host,
            subsystem: &subsystem,
            transaction: 7,
            sequence: 9,
            challenge: &[3; 32],
            shared: None,
        };
        let proof = statement.prove(&secret);
        assert!(statement.holds(&secret, &proof));
        let others = [
            Statement {
                prover: Prover::Controller,
                ..statement
            },
            Statement {
                hash: Hash::Sha384,
                ..statement
            },
            Statement {
                host: &other,
                ..statement
            },
            Statement {
                subsystem: &other,
                ..statement
            },
            Statement {
                transaction: 8,
                ..statement
            },
            Statement {
                sequence: 8,
                ..statement
            },
            Statement {
                challenge: &[4; 32],
                ..statement
            },
            Statement {
                shared: Some(&[5; 256]),
                ..statement
            },
        ];
        for other in others {
            assert!(!other.holds(&secret, &proof), "{other:?}");
        }
        let wrong = Secret::new(&[2; 32], Some(Hash::Sha256)).expect("a secret");
        assert!(!statement.holds(&wrong, &proof));
    }
}
