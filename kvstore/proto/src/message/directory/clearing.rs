//! What a client asks of a member as a whole: "remove all", and to be emptied.
//!
//! ```text
//!  clear, retire:  version u8 | to seat | term
//!  cleared:        epoch u64 | generation u64
//!  retires:        (nothing)
//! ```
//!
//! Asked twice, "remove all" removes twice: what was written in between is dead as well. Who is to be emptied is, however often it is
//! asked.

use lunette_cluster_proto::map::Epoch;

use super::term::Term;
use super::wire::{Decoder, Encoder, Wire, body, fields};
use crate::message::{FormatVersion, MessageFault};
use crate::placement::Seat;
use crate::version::Generation;

/// To say what the clock of a core says ([`Op::Clock`](crate::message::Op::Clock)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberMessage {
    /// A core of a member: one life of it only.
    pub to: Seat,
}

/// To make everything dead that was written before, on every member ([`Op::Clear`](crate::message::Op::Clear)); or to be emptied, so
/// that it is the home of nothing, and can leave ([`Op::Retire`](crate::message::Op::Retire)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeMessage {
    /// A core of a member, of any where everything is to be removed: one life of it only.
    pub to: Seat,
    /// Until when it may be done.
    pub term: Term,
}

/// It is done: whoever knows this map has nothing of an earlier generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClearReply {
    /// The map's epoch.
    pub epoch: Epoch,
    /// The map's generation: what is of earlier ones is dead.
    pub generation: Generation,
}

fields!(ClearReply { epoch, generation });
body!(ClearReply);

impl ChangeMessage {
    /// Appends the message to `out`, in a version that is spoken here.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::begin(version, out);
        self.to.put(out);
        self.term.put(out);
    }

    /// The message in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let message = Self {
            to: Wire::take(reader)?,
            term: Wire::take(reader)?,
        };
        reader.end()?;
        Ok(message)
    }
}

impl MemberMessage {
    /// Appends the message to `out`, in a version that is spoken here.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::begin(version, out);
        self.to.put(out);
    }

    /// The message in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let to = Wire::take(reader)?;
        reader.end()?;
        Ok(Self { to })
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;

    #[test]
    fn golden_clear_and_its_answer() {
        let version = FormatVersion(1);
        let to = Seat {
            node: NodeId(7),
            incarnation: 2,
            core: CoreIndex(3),
        };
        let mut body = Vec::new();
        MemberMessage { to }.encode(version, &mut body);
        let golden = [1, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0];
        assert_eq!(body, golden);
        assert_eq!(MemberMessage::decode(&body), Ok(MemberMessage { to }));
        for len in 0..body.len() {
            assert!(MemberMessage::decode(&body[..len]).is_err(), "cut at {len}");
        }
        body.push(0);
        assert_eq!(MemberMessage::decode(&body), Err(MessageFault::Trailing(1)));
        let term = Term {
            told_ns: 5,
            wait_ms: 0x0102,
        };
        let message = ChangeMessage { to, term };
        body.clear();
        message.encode(version, &mut body);
        let when = [5, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0];
        assert_eq!(body, [&golden[..], &when].concat());
        assert_eq!(ChangeMessage::decode(&body), Ok(message));
        for len in 0..body.len() {
            assert!(ChangeMessage::decode(&body[..len]).is_err(), "cut at {len}");
        }
        body.push(0);
        assert_eq!(ChangeMessage::decode(&body), Err(MessageFault::Trailing(1)));
        let reply = ClearReply {
            epoch: Epoch(5),
            generation: Generation(6),
        };
        let mut body = Vec::new();
        reply.encode(version, &mut body);
        assert_eq!(body, [5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ClearReply::decode(version, &body), Ok(reply));
    }
}
