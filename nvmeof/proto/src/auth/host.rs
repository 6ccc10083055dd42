//! The host's part.
//!
//! ```text
//!   Negotiating -> AwaitingChallenge -> Replying -> AwaitingSuccess -> Confirming -> Done
//!                         |                               |  +---(no c2 was sent)---->^
//!                         +--------> Rejecting <----------+
//!                                       v
//!                      any failure -> Failed
//! ```

use std::sync::Arc;

use super::group::Exponent;
use super::message::{Challenge, MESSAGE_BYTES_MAX, Message, Reason, Reply};
use super::proof::{Prover, Statement};
use super::{AuthFault, Credentials, Entropy, receive_command, send_command};
use crate::command::Sgl;
use crate::completion::Status;
use crate::host::{Request, RequestData};
use crate::nqn::Nqn;

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthNext {
    /// Send this, and hand its completion to [`HostAuth::on_completion`].
    Send(Request),
    /// The queue may be used.
    Done,
    /// It may not.
    Failed(AuthFault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Negotiating,
    AwaitingChallenge,
    Replying,
    AwaitingSuccess,
    Confirming,
    Rejecting,
    Done,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A message has been sent.
    Sent,
    /// A challenge came that can be answered.
    Challenged,
    /// The controller believes this host, and has nothing to prove.
    Believed,
    /// The controller believes this host, and has proved itself.
    BothProved,
    /// What came may not be said.
    Objected,
    /// The other end gave up, or a command failed.
    Ended,
}

impl Stage {
    /// The stage after `event`; `None` if it cannot happen.
    pub(super) const fn after(self, event: Event) -> Option<Self> {
        match (self, event) {
            (Self::Negotiating, Event::Sent) => Some(Self::AwaitingChallenge),
            (Self::AwaitingChallenge, Event::Challenged) => Some(Self::Replying),
            (Self::Replying, Event::Sent) => Some(Self::AwaitingSuccess),
            (Self::AwaitingSuccess, Event::BothProved) => Some(Self::Confirming),
            (Self::AwaitingSuccess, Event::Believed) | (Self::Confirming, Event::Sent) => {
                Some(Self::Done)
            }
            (Self::AwaitingChallenge | Self::AwaitingSuccess, Event::Objected) => {
                Some(Self::Rejecting)
            }
            (Self::Rejecting, Event::Sent) => Some(Self::Failed),
            (Self::Done | Self::Failed, _) => None,
            (_, Event::Ended) => Some(Self::Failed),
            _ => None,
        }
    }
}

/// The authentication of one queue's connection.
#[derive(Debug)]
pub struct HostAuth {
    credentials: Arc<Credentials>,
    host: Nqn,
    subsystem: Nqn,
    entropy: Entropy,
    stage: Stage,
    is_waiting: bool,
    /// What is to be sent next.
    message: Vec<u8>,
    /// The controller's proof has to be this one.
    expected: Option<Vec<u8>>,
    fault: Option<AuthFault>,
}

impl HostAuth {
    /// For a queue that has been connected, of `host` to `subsystem`.
    #[must_use]
    pub fn new(credentials: Arc<Credentials>, host: Nqn, subsystem: Nqn, entropy: Entropy) -> Self {
        let negotiate = Message::Negotiate {
            wants_secure_channel: false,
            has_protocol: true,
            hashes: credentials.hashes.clone(),
            groups: credentials.groups.clone(),
        };
        Self {
            message: negotiate.encode(entropy.transaction, 0),
            credentials,
            host,
            subsystem,
            entropy,
            stage: Stage::Negotiating,
            is_waiting: false,
            expected: None,
            fault: None,
        }
    }

    /// Whether the next completion may take milliseconds to look into.
    #[must_use]
    pub fn is_costly(&self) -> bool {
        self.stage == Stage::AwaitingChallenge && self.credentials.is_costly()
    }

    /// Why it will fail, if that is known: the controller may close before it has been told.
    #[must_use]
    pub const fn fault(&self) -> Option<AuthFault> {
        self.fault
    }

    /// What to do next. One command is in flight at a time.
    ///
    /// # Panics
    /// If a command is in flight.
    pub fn next_request(&mut self) -> AuthNext {
        assert!(!self.is_waiting, "one command at a time");
        let request = match self.stage {
            Stage::Done => return AuthNext::Done,
            Stage::Failed => return AuthNext::Failed(self.fault.expect("a failure has a fault")),
            Stage::AwaitingChallenge | Stage::AwaitingSuccess => {
                let len_bytes = u32::try_from(MESSAGE_BYTES_MAX).expect("messages are short");
                let mut command = receive_command(len_bytes);
                command.sgl = Sgl::Transport { len_bytes };
                Request {
                    command,
                    data: RequestData::In(len_bytes),
                }
            }
            Stage::Negotiating | Stage::Replying | Stage::Confirming | Stage::Rejecting => {
                let message = core::mem::take(&mut self.message);
                let len_bytes = u32::try_from(message.len()).expect("messages are short");
                let mut command = send_command(len_bytes);
                command.sgl = Sgl::Transport { len_bytes };
                Request {
                    command,
                    data: RequestData::Out(message),
                }
            }
        };
        self.is_waiting = true;
        AuthNext::Send(request)
    }

    /// The command in flight has ended. Where a challenge came, the proof is computed here.
    ///
    /// # Panics
    /// If none was.
    pub fn on_completion(&mut self, status: Status, data: &[u8]) {
        assert!(self.is_waiting, "a command was in flight");
        self.is_waiting = false;
        let event = if status.is_success() {
            match self.stage {
                Stage::AwaitingChallenge | Stage::AwaitingSuccess => self.on_message(data),
                _ => Event::Sent,
            }
        } else {
            self.fault.get_or_insert(AuthFault::Refused(status));
            Event::Ended
        };
        let after = self.stage.after(event);
        self.stage = after.expect("every answer is one that may come");
    }

    fn on_message(&mut self, data: &[u8]) -> Event {
        let transaction = self.entropy.transaction;
        let answered = match Message::decode(data) {
            Ok((of, _)) if of != transaction => Err(AuthFault::Objected(Reason::Payload)),
            Ok((_, Message::Failure1(reason))) => {
                self.fault = Some(AuthFault::Rejected(reason));
                return Event::Ended;
            }
            Ok((_, Message::Challenge(challenge))) if self.stage == Stage::AwaitingChallenge => {
                self.reply(&challenge).map(|()| Event::Challenged)
            }
            Ok((_, Message::Success1(proof))) if self.stage == Stage::AwaitingSuccess => {
                self.judge(proof.as_deref())
            }
            Ok(_) => Err(AuthFault::Objected(Reason::Message)),
            Err(reason) => Err(AuthFault::Objected(reason)),
        };
        answered.unwrap_or_else(|fault| {
            let reason = match fault {
                AuthFault::Objected(reason) => reason,
                _ => Reason::Failed,
            };
            self.fault = Some(fault);
            self.message = Message::Failure2(reason).encode(transaction, 0);
            Event::Objected
        })
    }

    /// Computes the answer to a challenge.
    fn reply(&mut self, challenge: &Challenge) -> Result<(), AuthFault> {
        if !self.credentials.hashes.contains(&challenge.hash) {
            return Err(AuthFault::Objected(Reason::Hash));
        }
        if !self.credentials.groups.contains(&challenge.group) {
            return Err(AuthFault::Objected(Reason::Group));
        }
        let exponent = Exponent::new(challenge.group, &self.entropy.exponent);
        let shared = exponent
            .as_ref()
            .map(|exponent| exponent.shared(&challenge.public));
        let shared = match shared {
            Some(None) => return Err(AuthFault::Objected(Reason::Payload)),
            Some(shared) => shared,
            None => None,
        };
        let transaction = self.entropy.transaction;
        let statement = Statement {
            prover: Prover::Host,
            hash: challenge.hash,
            host: &self.host,
            subsystem: &self.subsystem,
            transaction,
            sequence: challenge.sequence,
            challenge: &challenge.value,
            shared: shared.as_ref().map(|shared| shared.as_slice()),
        };
        let back = self.credentials.controller.as_ref().map(|secret| {
            let value = self.entropy.challenge[..challenge.hash.len_bytes()].to_vec();
            let expected = Statement {
                prover: Prover::Controller,
                sequence: self.entropy.sequence,
                challenge: &value,
                ..statement
            };
            (expected.prove(secret), value)
        });
        let (expected, back) = back.unzip();
        let reply = Message::Reply(Reply {
            proof: statement.prove(&self.credentials.host),
            sequence: if back.is_some() {
                self.entropy.sequence
            } else {
                0
            },
            challenge: back,
            public: exponent.map_or_else(Vec::new, |exponent| exponent.public()),
        });
        self.message = reply.encode(transaction, challenge.hash.len_bytes());
        self.expected = expected;
        Ok(())
    }

    fn judge(&mut self, proof: Option<&[u8]>) -> Result<Event, AuthFault> {
        let Some(expected) = &self.expected else {
            return Ok(Event::Believed);
        };
        if !proof.is_some_and(|proof| is_same(proof, expected)) {
            return Err(AuthFault::Unproved);
        }
        self.message = Message::Success2.encode(self.entropy.transaction, 0);
        Ok(Event::BothProved)
    }
}

/// In a time that does not depend on where they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differs = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differs == 0
}
