//! The state machine of the handshake.

use core::fmt;

use lunette_runtime_core::time::Time;

use super::{AuthFault, Established, FRAME_BYTES_MAX, Progress, append_refusal, refusal};
use crate::keys::{Keys, Sender};
use crate::message::{
    self, BODY_BYTES_MAX, CONFIRM_BYTES, HEADER_BYTES, Header, Kind, Malformed, NOISE_BYTES,
    VERSION,
};
use crate::noise::Noise;
use crate::record::{Opener, Sealer};
use crate::secret::Secrets;
use crate::session::{Entropy, Party, Session};

/// Where the machine is. The large parts are boxed, so that a half-open connection stays small.
enum State {
    Start(Box<Noise>),
    AwaitReply(Box<Noise>),
    AwaitHello(Box<(Secrets, Entropy)>),
    AwaitConfirm(Box<(Keys, Session)>),
    Done,
    Failed(AuthFault),
}

impl State {
    const fn name(&self) -> &'static str {
        match self {
            Self::Start(_) => "Start",
            Self::AwaitReply(_) => "AwaitReply",
            Self::AwaitHello(_) => "AwaitHello",
            Self::AwaitConfirm(_) => "AwaitConfirm",
            Self::Done => "Done",
            Self::Failed(_) => "Failed",
        }
    }
}

/// One side of the authentication of one connection.
pub struct Handshake {
    ours: Party,
    deadline: Time,
    state: State,
    /// The frame that is arriving.
    frame: [u8; FRAME_BYTES_MAX],
    frame_len: usize,
}

impl Handshake {
    /// The side that connected. It uses the first of its secrets. Call [`start`](Self::start) next.
    #[must_use]
    pub fn initiator(secrets: &Secrets, ours: Party, entropy: Entropy, deadline: Time) -> Self {
        let secret = secrets.keys().next().expect("there is at least one");
        let noise = Noise::initiator(secret, &entropy);
        Self::new(ours, deadline, State::Start(Box::new(noise)))
    }

    /// The side that was connected to. It accepts each of its secrets.
    #[must_use]
    pub fn responder(secrets: &Secrets, ours: Party, entropy: Entropy, deadline: Time) -> Self {
        let state = State::AwaitHello(Box::new((secrets.clone(), entropy)));
        Self::new(ours, deadline, state)
    }

    const fn new(ours: Party, deadline: Time, state: State) -> Self {
        Self {
            ours,
            deadline,
            state,
            frame: [0; FRAME_BYTES_MAX],
            frame_len: 0,
        }
    }

    /// Appends the initiator's hello to outgoing bytes.
    ///
    /// # Panics
    /// If this is the responder's side, or the hello has been said before.
    pub fn start(&mut self, out: &mut Vec<u8>) {
        let state = core::mem::replace(&mut self.state, State::Done);
        let State::Start(mut noise) = state else {
            unreachable!("an initiator says hello once, not in {}", state.name());
        };
        let hello = noise.write(&self.ours.encode());
        message::append(out, Kind::Hello, 0, &hello);
        self.state = State::AwaitReply(noise);
    }

    /// Takes bytes from the front of `input`; what is to be sent is appended to `out`.
    ///
    /// Bytes behind the handshake are left in `input`: they belong to what comes next. Total: a
    /// machine that has failed stays so with the same fault and takes nothing.
    ///
    /// # Panics
    /// If the initiator was not started, or the handshake is done.
    pub fn handle(&mut self, input: &mut &[u8], out: &mut Vec<u8>) -> Progress {
        assert!(
            !matches!(self.state, State::Start(_) | State::Done),
            "bytes are handed in between the start and the end, not in {}",
            self.state.name()
        );
        loop {
            if let State::Failed(fault) = self.state {
                return Progress::Failed(fault);
            }
            let stepped = match self.take_frame(input) {
                Ok(None) => return Progress::NeedMore,
                Ok(Some((kind, code, len))) => self.on_frame(kind, code, len, out),
                Err(fault) => Err(fault),
            };
            match stepped {
                Ok(None) => {}
                Ok(Some(established)) => {
                    self.state = State::Done;
                    return Progress::Done(Box::new(established));
                }
                Err(fault) => {
                    if self.is_responder() {
                        append_refusal(out, fault);
                    }
                    self.state = State::Failed(fault);
                }
            }
        }
    }

    /// When to call [`on_timeout`](Self::on_timeout), if the peer is being waited for.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let waits = self.is_responder() || matches!(self.state, State::AwaitReply(_));
        waits.then_some(self.deadline)
    }

    /// Fails the handshake if it waits and `now` has reached the deadline. Early, late and repeated
    /// calls change nothing.
    pub fn on_timeout(&mut self, now: Time) -> Option<AuthFault> {
        if self.poll_timeout().is_none_or(|deadline| now < deadline) {
            return None;
        }
        self.state = State::Failed(AuthFault::TimedOut);
        Some(AuthFault::TimedOut)
    }

    /// Whether this is the side that still owes an answer.
    const fn is_responder(&self) -> bool {
        matches!(self.state, State::AwaitHello(_) | State::AwaitConfirm(_))
    }

    /// Moves bytes into the frame; its kind, code and the length of its body when it is whole.
    fn take_frame(&mut self, input: &mut &[u8]) -> Result<Option<(Kind, u8, usize)>, AuthFault> {
        if !self.fill(HEADER_BYTES, input) {
            return if message::may_begin(&self.frame[..self.frame_len]) {
                Ok(None)
            } else {
                Err(Malformed::NotAHandshake.into())
            };
        }
        if !message::may_begin(&self.frame) {
            return Err(Malformed::NotAHandshake.into());
        }
        let header = self.frame.first_chunk().expect("it is longer");
        let Header {
            version,
            kind,
            code,
            body_len,
        } = Header::decode(header);
        // A refusal is read whatever its version: it may be about that.
        let refuses = kind == 4;
        if version != VERSION && !refuses {
            return Err(AuthFault::Version {
                min: version,
                max: version,
            });
        }
        let kind = Kind::of_byte(kind)?;
        let len_bytes = usize::from(body_len);
        let fits = match kind {
            Kind::Hello | Kind::Reply => len_bytes == NOISE_BYTES,
            Kind::Confirm => len_bytes == CONFIRM_BYTES,
            Kind::Refusal => len_bytes <= BODY_BYTES_MAX,
        };
        if !fits {
            return Err(Malformed::BodyLength { kind, len_bytes }.into());
        }
        if !self.fill(HEADER_BYTES + len_bytes, input) {
            return Ok(None);
        }
        self.frame_len = 0;
        Ok(Some((kind, code, len_bytes)))
    }

    /// Moves bytes until the frame has `len`; whether it has.
    fn fill(&mut self, len: usize, input: &mut &[u8]) -> bool {
        assert!(len <= FRAME_BYTES_MAX);
        let count = len.saturating_sub(self.frame_len).min(input.len());
        let (taken, rest) = input.split_at(count);
        self.frame[self.frame_len..self.frame_len + count].copy_from_slice(taken);
        self.frame_len += count;
        *input = rest;
        self.frame_len >= len
    }

    fn on_frame(
        &mut self,
        kind: Kind,
        code: u8,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Established>, AuthFault> {
        let body = &self.frame[HEADER_BYTES..HEADER_BYTES + len];
        match (&mut self.state, kind) {
            (State::AwaitReply(_), Kind::Refusal) => Err(refusal(code, body)),
            (State::AwaitReply(noise), Kind::Reply) => {
                let theirs = noise.read(body).map_err(|_| AuthFault::WrongSecret)?;
                let theirs = Party::decode(&theirs)?;
                let State::AwaitReply(noise) = core::mem::replace(&mut self.state, State::Done)
                else {
                    unreachable!("it was matched above");
                };
                let keys = noise.finish();
                message::append(out, Kind::Confirm, 0, &keys.confirmation());
                let session = session_of(&keys, self.ours, theirs, 0);
                Ok(Some(establish(&keys, session, Sender::Initiator)))
            }
            (State::AwaitHello(parts), Kind::Hello) => {
                let (noise, theirs, secret_index) = accept(&parts.0, &parts.1, body)?;
                let theirs = Party::decode(&theirs)?;
                let mut noise = noise;
                message::append(out, Kind::Reply, 0, &noise.write(&self.ours.encode()));
                let keys = noise.finish();
                let session = session_of(&keys, self.ours, theirs, secret_index);
                self.state = State::AwaitConfirm(Box::new((keys, session)));
                Ok(None)
            }
            (State::AwaitConfirm(parts), Kind::Confirm) => {
                let (keys, session) = &**parts;
                if !keys.confirms(body) {
                    return Err(AuthFault::Replayed);
                }
                Ok(Some(establish(keys, *session, Sender::Responder)))
            }
            _ => Err(Malformed::Unexpected { kind }.into()),
        }
    }
}

/// Opens a hello under the first secret that fits.
fn accept(
    secrets: &Secrets,
    entropy: &Entropy,
    hello: &[u8],
) -> Result<(Noise, [u8; 16], usize), AuthFault> {
    for (index, secret) in secrets.keys().enumerate() {
        // A machine that could not open a message is not used again. The next one has the same
        // entropy: none was used yet, since a responder draws when it writes.
        let mut noise = Noise::responder(secret, entropy);
        if let Ok(payload) = noise.read(hello) {
            return Ok((noise, payload, index));
        }
    }
    Err(AuthFault::WrongSecret)
}

fn session_of(keys: &Keys, ours: Party, theirs: Party, secret_index: usize) -> Session {
    Session {
        id: keys.session_id(),
        binding: keys.binding,
        ours,
        theirs,
        secret_index,
    }
}

fn establish(keys: &Keys, session: Session, side: Sender) -> Established {
    let other = match side {
        Sender::Initiator => Sender::Responder,
        Sender::Responder => Sender::Initiator,
    };
    let ciphers = || {
        (
            Sealer::new(keys.records(side)),
            Opener::new(keys.records(other)),
        )
    };
    Established {
        session,
        records: session.is_encrypted().then(ciphers),
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake")
            .field("state", &self.state.name())
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
