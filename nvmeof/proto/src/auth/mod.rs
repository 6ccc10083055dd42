//! DH-HMAC-CHAP: host and controller prove to each other that they know a secret, which neither
//! sends (NVMe Base 2.0, "NVMe In-band Authentication").
//!
//! ```text
//!   HostAuth                                       ControllerAuth
//!     |  Send: Negotiate (hashes, groups) ------->  |
//!     |  Receive: Challenge (c1, g^y) <-----------  |
//!     |  Send: Reply (proof of c1, c2, g^x) ----->  |
//!     |  Receive: Success1 (proof of c2) <--------  |
//!     |  Send: Success2, if c2 was sent --------->  |
//! ```
//!
//! Either end may end it instead, and says why. With a group, a challenge is mixed with what only
//! these two ends know, so that who has listened cannot try secrets at leisure.
//!
//! It leaves out random numbers, which the caller brings as [`Entropy`], and an encrypted connection
//! on top of what was agreed on. Computing in a group takes milliseconds: callers on a core's loop
//! ask [`Credentials::is_costly`] first.
//!
//! | module | subject |
//! |---|---|
//! | `secret` | [`Secret`] |
//! | `psk` | [`TlsPsk`]: keys of TLS, from which nothing is proved here |
//! | `form` | either, as people pass it on |
//! | `message` | [`Message`]: the bytes |
//! | `hash`, `group`, `proof` | hashes, Diffie-Hellman, what is proved |
//! | `host`, `controller` | [`HostAuth`], [`ControllerAuth`] |

mod controller;
mod form;
mod group;
mod hash;
mod host;
mod message;
mod proof;
mod psk;
mod secret;
#[cfg(test)]
mod tests;

use core::fmt;

use thiserror::Error;
use zeroize::{Zeroize as _, Zeroizing};

pub use controller::ControllerAuth;
pub use group::Group;
pub use hash::Hash;
pub use host::{AuthNext, HostAuth};
pub use message::{Challenge, MESSAGE_BYTES_MAX, Message, Reason, Reply};
pub use psk::{IDENTITY_BYTES_MAX, PskFault, TlsPsk};
pub use secret::{Secret, SecretFault};

use crate::command::{Command, fabrics};
use crate::completion::Status;
use group::EXPONENT_BYTES;
use hash::HASH_BYTES_MAX;

/// The security protocol in an Authentication Send or Receive: NVMe's, DH-HMAC-CHAP (NVMe Base 2.0,
/// "Authentication Send Command").
const PROTOCOL: u32 = 0xe901_0100;

/// What one end knows, and how it wants to prove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// What hosts prove to know.
    pub host: Secret,
    /// What the controller proves to know. A host that has it insists on that proof.
    pub controller: Option<Secret>,
    /// Hashes that may be used, the best one first.
    pub hashes: Vec<Hash>,
    /// Groups that may be used, the best one first.
    pub groups: Vec<Group>,
}

impl Credentials {
    /// With every hash and every group: hosts offer them all, and controllers choose by this order.
    #[must_use]
    pub fn new(host: Secret, controller: Option<Secret>) -> Self {
        Self {
            host,
            controller,
            hashes: Hash::ALL.to_vec(),
            // As strong as the first hash, then more, then less.
            groups: vec![
                Group::Ffdhe3072,
                Group::Ffdhe4096,
                Group::Ffdhe6144,
                Group::Ffdhe8192,
                Group::Ffdhe2048,
                Group::Null,
            ],
        }
    }

    /// Whether proofs may take milliseconds to compute.
    #[must_use]
    pub fn is_costly(&self) -> bool {
        self.groups.iter().any(|group| *group != Group::Null)
    }
}

/// Random numbers for one authentication, which nobody is to guess.
#[derive(Clone)]
pub struct Entropy {
    challenge: [u8; HASH_BYTES_MAX],
    exponent: Zeroizing<[u8; EXPONENT_BYTES]>,
    sequence: u32,
    transaction: u16,
}

impl Entropy {
    /// From a source of random numbers.
    #[must_use]
    pub fn draw(mut source: impl FnMut() -> u64) -> Self {
        let mut fill = |bytes: &mut [u8]| {
            for word in bytes.chunks_mut(8) {
                word.copy_from_slice(&source().to_le_bytes()[..word.len()]);
            }
        };
        let mut challenge = [0; HASH_BYTES_MAX];
        fill(&mut challenge);
        let mut exponent = Zeroizing::new([0; EXPONENT_BYTES]);
        fill(exponent.as_mut_slice());
        let [a, b, c, d, e, f, ..] = source().to_le_bytes();
        Self {
            challenge,
            exponent,
            // 0 says that there is no challenge.
            sequence: u32::from_le_bytes([a, b, c, d]).max(1),
            transaction: u16::from_le_bytes([e, f]),
        }
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entropy({})", self.transaction)
    }
}

impl Drop for Entropy {
    fn drop(&mut self) {
        self.challenge.zeroize();
    }
}

/// Why a host is not authenticated, or will not talk to the controller.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AuthFault {
    /// A command of it failed.
    #[error("authentication: {0}")]
    Refused(Status),
    /// The controller ended it.
    #[error("authentication: the controller says: {0}")]
    Rejected(Reason),
    /// The controller did not prove that it knows its secret.
    #[error("authentication: the controller does not know its secret")]
    Unproved,
    /// What the controller said was not what it may say.
    #[error("authentication: the controller errs: {0}")]
    Objected(Reason),
}

impl AuthFault {
    /// Whether trying again later may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_retryable())
    }
}

/// The command that brings the controller a message, without its data.
fn send_command(len_bytes: u32) -> Command {
    Command::fabrics(fabrics::AUTH_SEND, [PROTOCOL, len_bytes, 0, 0, 0, 0])
}

/// The command that fetches one.
fn receive_command(len_bytes: u32) -> Command {
    Command::fabrics(fabrics::AUTH_RECEIVE, [PROTOCOL, len_bytes, 0, 0, 0, 0])
}

/// Whether a command is of this protocol, and says the length that its data have.
pub(crate) fn is_of_protocol(command: &Command) -> bool {
    command.cdw10[0] & 0xffff_ff00 == PROTOCOL && command.cdw10[1] == command.sgl.len_bytes()
}
