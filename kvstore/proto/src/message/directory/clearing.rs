//! "Remove all", as a client asks a member for it.
//!
//! ```text
//!  clear:    version u8 | to seat
//!  cleared:  epoch u64 | generation u64
//! ```
//!
//! Asked twice, it removes twice: what was written in between is dead as well.

use lunette_cluster_proto::map::Epoch;

use super::wire::{Decoder, Encoder, Wire, body, fields};
use crate::message::{FormatVersion, MessageFault};
use crate::placement::Seat;
use crate::version::Generation;

/// To make everything dead that was written before, on every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClearMessage {
    /// A core of any member: one life of it only.
    pub to: Seat,
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

impl ClearMessage {
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
        ClearMessage { to }.encode(version, &mut body);
        let golden = [1, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0];
        assert_eq!(body, golden);
        assert_eq!(ClearMessage::decode(&body), Ok(ClearMessage { to }));
        for len in 0..body.len() {
            assert!(ClearMessage::decode(&body[..len]).is_err(), "cut at {len}");
        }
        body.push(0);
        assert_eq!(ClearMessage::decode(&body), Err(MessageFault::Trailing(1)));
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
