//! The authentication of a connection, both sides.
//!
//! ```text
//!   initiator                                  responder
//!   Start --start--> AwaitReply -- hello -->   AwaitHello
//!                        |      <- reply ---      | the secret fits
//!                        |      - confirm ->   AwaitConfirm
//!                        +--> Done                +--> Done
//!                        +--> Failed (refused, wrong secret, malformed, timeout) on both sides
//! ```
//!
//! A responder that has answered still does not know whether the hello was fresh: whoever recorded
//! one can send it again. Only the confirmation, which needs the initiator's ephemeral key, makes it
//! believe. Until then it keeps one machine of fixed size and reads at most two frames.

mod machine;

use thiserror::Error;

use crate::message::{self, BODY_BYTES_MAX, HEADER_BYTES, Kind, VERSION};
pub use crate::message::{Kind as FrameKind, Malformed};
use crate::record::{Opener, Sealer};
use crate::session::Session;

pub use machine::Handshake;

/// Longest frame of the handshake, in bytes: what a peer can make this side hold before it is
/// known.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + BODY_BYTES_MAX;
/// Time that both sides usually give a handshake, in milliseconds. It is for the deadline.
pub const HANDSHAKE_MS_MAX: u64 = 5_000;

const CODE_WRONG_SECRET: u8 = 1;
const CODE_VERSION: u8 = 2;
const CODE_BUSY: u8 = 3;
const CODE_MALFORMED: u8 = 4;
const CODE_REPLAYED: u8 = 5;

/// Why a connection was not authenticated. Send what is outgoing, then close it.
///
/// What a refusal says comes from a peer that is not authenticated: it explains, and proves nothing.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AuthFault {
    /// The two sides share no secret, or bytes were changed on their way.
    #[error("the peer does not know this cluster's secret")]
    WrongSecret,
    /// The hello was opened, but who sent it did not make it: it was recorded and sent again.
    #[error("the peer sent a hello again that is not its own")]
    Replayed,
    /// The peer's bytes make no sense.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The two sides share no version.
    #[error("no common version of the handshake: ours {VERSION}, theirs {min} to {max}")]
    Version {
        /// The oldest that the peer speaks.
        min: u8,
        /// The newest that the peer speaks.
        max: u8,
    },
    /// The deadline passed. The peer is slow, or a half-open connection.
    #[error("the peer was not authenticated in time")]
    TimedOut,
    /// The responder has as many connections as it takes. Try later, or another node.
    #[error("the responder takes no more connections now")]
    Busy,
    /// A reason that only a newer responder knows.
    #[error("refused with the unknown code {code}")]
    Refused {
        /// The reason as it came.
        code: u8,
    },
}

impl AuthFault {
    /// Whether a new connection may fare better without anything being changed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::TimedOut | Self::Busy)
    }

    /// Whether a limit was met.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Busy)
    }
}

/// An authenticated connection, and its ciphers if a side wanted them.
#[derive(Debug)]
pub struct Established {
    /// What both sides know.
    pub session: Session,
    /// For what this side sends and receives from here on, if records are encrypted.
    pub records: Option<(Sealer, Opener)>,
}

/// What came of bytes.
#[derive(Debug)]
pub enum Progress {
    /// All were taken, and more are needed.
    NeedMore,
    /// The peer is authenticated. Bytes behind the handshake were not taken.
    Done(Box<Established>),
    /// It is not. The fault stays.
    Failed(AuthFault),
}

/// Refuses a connection for which there is no room, before anything of it was read: appends the
/// refusal to outgoing bytes. Send it, then close.
pub fn append_busy(out: &mut Vec<u8>) {
    message::append(out, Kind::Refusal, CODE_BUSY, &[]);
}

/// Appends what tells the peer of `fault`, if the peer can do something about it.
fn append_refusal(out: &mut Vec<u8>, fault: AuthFault) {
    let code = match fault {
        AuthFault::WrongSecret => CODE_WRONG_SECRET,
        AuthFault::Replayed => CODE_REPLAYED,
        AuthFault::Version { .. } => {
            message::append(out, Kind::Refusal, CODE_VERSION, &[VERSION, VERSION]);
            return;
        }
        // What does not speak this handshake would not understand.
        AuthFault::Malformed(Malformed::NotAHandshake)
        | AuthFault::TimedOut
        | AuthFault::Busy
        | AuthFault::Refused { .. } => return,
        AuthFault::Malformed(_) => CODE_MALFORMED,
    };
    message::append(out, Kind::Refusal, code, &[]);
}

/// The fault that a refusal tells.
fn refusal(code: u8, body: &[u8]) -> AuthFault {
    match (code, body) {
        (CODE_WRONG_SECRET, _) => AuthFault::WrongSecret,
        (CODE_REPLAYED, _) => AuthFault::Replayed,
        (CODE_VERSION, &[min, max]) => AuthFault::Version { min, max },
        (CODE_BUSY, _) => AuthFault::Busy,
        (code, _) => AuthFault::Refused { code },
    }
}
