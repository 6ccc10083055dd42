//! The controller's part.
//!
//! ```text
//!   Idle -(Negotiate)-> Challenging -(told)-> AwaitingReply -(Reply)-> Proved -(told)-> Done
//!    |                                             |                      |              ^ |
//!    |                                             |       (c2 was sent)  v              | |
//!    |                                             |              AwaitingSuccess2 ------+ |
//!    |                                             v                      |                |
//!    +----------------------------------------> Failing <-----------------+                |
//!    ^                                             v (told)                                |
//!    +---(a host may prove itself again)        Failed <- Failure2                         |
//!    +-------------------------------------------------------------------------------------+
//! ```

use std::sync::Arc;

use zeroize::Zeroizing;

use super::group::{Exponent, Group};
use super::hash::Hash;
use super::message::{Challenge, Message, Reason, Reply};
use super::proof::{Prover, Statement};
use super::{Credentials, Entropy};
use crate::completion::Status;
use crate::nqn::Nqn;

/// Most that a host may ask for at once, in bytes.
const RECEIVE_BYTES_MAX: u32 = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    Challenging,
    AwaitingReply,
    Proved,
    AwaitingSuccess2,
    Done,
    Failing,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A negotiation that something came of.
    Negotiated,
    /// A Reply with the right proof.
    Replied,
    /// The host believes the controller.
    Confirmed,
    /// The host has fetched what was to be told, and is to answer.
    Told,
    /// The host has fetched what was to be told, which was the last word.
    ToldLast,
    /// What the host said may not be said, or proves nothing.
    Objected,
    /// The host gave up.
    Ended,
}

impl Stage {
    /// The stage after `event`; `None` if it cannot happen there.
    pub(super) const fn after(self, event: Event) -> Option<Self> {
        match (self, event) {
            (Self::Idle | Self::Done, Event::Negotiated) => Some(Self::Challenging),
            (Self::Challenging, Event::Told) => Some(Self::AwaitingReply),
            (Self::AwaitingReply, Event::Replied) => Some(Self::Proved),
            (Self::Proved, Event::Told) => Some(Self::AwaitingSuccess2),
            (Self::Proved, Event::ToldLast) | (Self::AwaitingSuccess2, Event::Confirmed) => {
                Some(Self::Done)
            }
            (Self::Failing, Event::ToldLast) => Some(Self::Failed),
            (Self::Failed, _) => None,
            (_, Event::Objected) => Some(Self::Failing),
            (_, Event::Ended) => Some(Self::Failed),
            _ => None,
        }
    }
}

/// What was agreed on.
#[derive(Debug)]
struct Agreed {
    transaction: u16,
    hash: Hash,
    sequence: u32,
    challenge: Vec<u8>,
    exponent: Option<Exponent>,
}

/// The authentication of one queue's connection.
#[derive(Debug)]
pub struct ControllerAuth {
    credentials: Arc<Credentials>,
    host: Nqn,
    subsystem: Nqn,
    stage: Stage,
    is_authenticated: bool,
    agreed: Option<Agreed>,
    /// What the host is to be told.
    message: Vec<u8>,
    needs_success2: bool,
}

impl ControllerAuth {
    /// For a queue of `subsystem` that `host` has connected.
    #[must_use]
    pub const fn new(credentials: Arc<Credentials>, host: Nqn, subsystem: Nqn) -> Self {
        Self {
            credentials,
            host,
            subsystem,
            stage: Stage::Idle,
            is_authenticated: false,
            agreed: None,
            message: Vec::new(),
            needs_success2: false,
        }
    }

    /// Whether the host has proved itself. Doing so again takes that back only if it fails.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated && !matches!(self.stage, Stage::Failing | Stage::Failed)
    }

    /// Whether it has failed, and the connection is to be closed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Failed
    }

    /// Whether [`ControllerAuth::on_send`] may take milliseconds.
    #[must_use]
    pub fn is_costly(&self) -> bool {
        self.credentials.is_costly()
    }

    /// A message of the host. What is wrong with it the host is told when it asks.
    pub fn on_send(&mut self, bytes: &[u8], entropy: &Entropy) {
        let (transaction, event) = match Message::decode(bytes) {
            Ok((transaction, message)) => {
                (transaction, self.on_message(transaction, message, entropy))
            }
            Err(reason) => (self.transaction(), Err(reason)),
        };
        if self.stage == Stage::Failed {
            return;
        }
        let next = event.and_then(|event| self.stage.after(event).ok_or(Reason::Message));
        let next = next.unwrap_or_else(|reason| {
            self.message = Message::Failure1(reason).encode(transaction, 0);
            self.agreed = None;
            let objected = self.stage.after(Event::Objected);
            objected.expect("whatever is said may be wrong")
        });
        self.stage = next;
        self.is_authenticated |= next == Stage::Done;
    }

    /// What the host is told, in as many bytes as it asks for.
    ///
    /// # Errors
    /// The status to complete its command with.
    pub fn on_receive(&mut self, len_bytes: u32) -> Result<Vec<u8>, Status> {
        let event = match self.stage {
            Stage::Proved if !self.needs_success2 => Event::ToldLast,
            Stage::Challenging | Stage::Proved => Event::Told,
            Stage::Failing => Event::ToldLast,
            _ => return Err(Status::COMMAND_SEQUENCE_ERROR.do_not_retry()),
        };
        let len = len_bytes as usize;
        if len_bytes > RECEIVE_BYTES_MAX || len < self.message.len() {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        self.stage = self.stage.after(event).expect("just seen");
        self.is_authenticated |= self.stage == Stage::Done;
        let mut message = core::mem::take(&mut self.message);
        message.resize(len, 0);
        Ok(message)
    }

    fn transaction(&self) -> u16 {
        self.agreed.as_ref().map_or(0, |agreed| agreed.transaction)
    }

    fn on_message(
        &mut self,
        transaction: u16,
        message: Message,
        entropy: &Entropy,
    ) -> Result<Event, Reason> {
        let is_first = matches!(message, Message::Negotiate { .. });
        if !is_first && self.agreed.is_some() && transaction != self.transaction() {
            return Err(Reason::Payload);
        }
        match (message, self.stage) {
            (
                Message::Negotiate {
                    wants_secure_channel,
                    has_protocol,
                    hashes,
                    groups,
                },
                Stage::Idle | Stage::Done,
            ) => {
                if wants_secure_channel {
                    return Err(Reason::Concatenation);
                }
                if !has_protocol {
                    return Err(Reason::Protocol);
                }
                let hash = choice(&self.credentials.hashes, &hashes).ok_or(Reason::Hash)?;
                let group = choice(&self.credentials.groups, &groups).ok_or(Reason::Group)?;
                self.challenge(transaction, hash, group, entropy);
                Ok(Event::Negotiated)
            }
            (Message::Reply(reply), Stage::AwaitingReply) => self.judge(reply),
            (Message::Success2, Stage::AwaitingSuccess2) => Ok(Event::Confirmed),
            (Message::Failure2(_), _) => Ok(Event::Ended),
            _ => Err(Reason::Message),
        }
    }

    fn challenge(&mut self, transaction: u16, hash: Hash, group: Group, entropy: &Entropy) {
        let exponent = Exponent::new(group, &entropy.exponent);
        let challenge = Challenge {
            hash,
            group,
            sequence: entropy.sequence,
            value: entropy.challenge[..hash.len_bytes()].to_vec(),
            public: exponent.as_ref().map_or_else(Vec::new, Exponent::public),
        };
        self.agreed = Some(Agreed {
            transaction,
            hash,
            sequence: challenge.sequence,
            challenge: challenge.value.clone(),
            exponent,
        });
        self.message = Message::Challenge(challenge).encode(transaction, hash.len_bytes());
    }

    /// Whether a reply proves what it has to.
    fn judge(&mut self, reply: Reply) -> Result<Event, Reason> {
        let agreed = self.agreed.take().ok_or(Reason::Message)?;
        let hash_bytes = agreed.hash.len_bytes();
        if reply.proof.len() != hash_bytes {
            return Err(Reason::Payload);
        }
        let shared: Option<Zeroizing<Vec<u8>>> = match &agreed.exponent {
            Some(exponent) => Some(exponent.shared(&reply.public).ok_or(Reason::Payload)?),
            None if !reply.public.is_empty() => return Err(Reason::Payload),
            None => None,
        };
        let statement = Statement {
            prover: Prover::Host,
            hash: agreed.hash,
            host: &self.host,
            subsystem: &self.subsystem,
            transaction: agreed.transaction,
            sequence: agreed.sequence,
            challenge: &agreed.challenge,
            shared: shared.as_ref().map(|shared| shared.as_slice()),
        };
        if !statement.holds(&self.credentials.host, &reply.proof) {
            return Err(Reason::Failed);
        }
        self.needs_success2 = reply.challenge.is_some();
        let proof = match (&reply.challenge, &self.credentials.controller) {
            (None, _) => None,
            // It is asked to prove what it does not know.
            (Some(_), None) => return Err(Reason::Failed),
            (Some(challenge), Some(secret)) => {
                let statement = Statement {
                    prover: Prover::Controller,
                    sequence: reply.sequence,
                    challenge,
                    ..statement
                };
                Some(statement.prove(secret))
            }
        };
        self.message = Message::Success1(proof).encode(agreed.transaction, hash_bytes);
        self.agreed = Some(agreed);
        Ok(Event::Replied)
    }
}

/// The best of those that both know.
fn choice<T: Copy + PartialEq>(ours: &[T], theirs: &[T]) -> Option<T> {
    ours.iter().copied().find(|known| theirs.contains(known))
}
