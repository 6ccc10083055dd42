//! Whole messages: who says it to whom, under which map, and in which version of these formats.
//!
//! ```text
//!  between seats:  version u8 | epoch u64 | from seat | to seat | kind u8 | content
//!  of an asker:    version u8 | epoch u64 | asker u64 | over u64 | to seat | questions
//!  to an asker:    version u8 | (request u64 | answer) ...
//!  a seat:         node u64 | incarnation u64 | core u16
//! ```

use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::ids::RequestId;

use super::wire::{Decoder, Encoder, Wire, put_all, take_all, unknown, variants};
#[cfg(feature = "next-version")]
use super::wire::{put_since, take_since};
use super::{Answer, Ask, AskerId, CopyPage, ToHome, ToOwner, ToPeer};
use crate::credit::CreditNews;
use crate::groups::GroupNews;
use crate::message::{FormatVersion, MessageFault};
use crate::placement::Seat;

/// Most items of one message.
pub const ITEMS_MAX: usize = 256;

/// What one seat has for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// From an owner to a home: at most [`ITEMS_MAX`].
    ToHome(Vec<ToHome>),
    /// From a home to an owner: at most [`ITEMS_MAX`].
    ToOwner(Vec<ToOwner>),
    /// A part of an owner's report to a home.
    Page(CopyPage),
    /// From home to home.
    ToPeer(ToPeer),
    /// From an owner to the home that forwarded a lookup to it: the home's node passes it on, since
    /// the asker is connected there.
    Relay {
        /// Who asked.
        asker: AskerId,
        /// What it asked.
        request: RequestId,
        /// What it is told.
        answer: Answer,
    },
    /// Between owners and homes of groups: at most [`ITEMS_MAX`].
    Groups(Vec<GroupNews>),
    /// Between owners and homes of tenants: at most [`ITEMS_MAX`].
    Credit(Vec<CreditNews>),
}

/// A message between seats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatMessage {
    /// The sender's epoch.
    pub epoch: Epoch,
    /// Who says it. A receiver compares it with the connection's other end.
    pub from: Seat,
    /// To whom: one life of it only.
    pub to: Seat,
    /// What.
    pub content: Content,
    /// What the next version adds.
    #[cfg(feature = "next-version")]
    pub next: crate::message::Next,
}

/// A message of an asker to a home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskMessage {
    /// The asker's epoch.
    pub epoch: Epoch,
    /// Who asks.
    pub asker: AskerId,
    /// All of its requests below this one are over.
    pub over_below: RequestId,
    /// To whom: one life of it only.
    pub to: Seat,
    /// What: at most [`ITEMS_MAX`] questions.
    pub asks: Vec<Ask>,
}

/// A message to an asker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerMessage {
    /// What was asked, with its answer: at most [`ITEMS_MAX`].
    pub answers: Vec<(RequestId, Answer)>,
}

variants!(GroupNews {
    0 => Joined { group },
    1 => Left { group },
    2 => Broken { group },
    3 => Part { group },
});
variants!(CreditNews {
    0 => Use { tenant, number, have_bytes, want_bytes, need_bytes },
    1 => Lent { tenant, number, max_bytes, is_last },
    2 => Wanted { tenant },
});

impl Wire for Content {
    fn put(&self, out: &mut Encoder<'_>) {
        match self {
            Self::ToHome(items) => {
                out.push(0);
                put_all(items, ITEMS_MAX, out);
            }
            Self::ToOwner(items) => {
                out.push(1);
                put_all(items, ITEMS_MAX, out);
            }
            Self::Page(page) => {
                out.push(2);
                page.put(out);
            }
            Self::ToPeer(item) => {
                out.push(3);
                item.put(out);
            }
            Self::Relay {
                asker,
                request,
                answer,
            } => {
                out.push(4);
                asker.put(out);
                request.put(out);
                answer.put(out);
            }
            Self::Groups(items) => {
                out.push(5);
                put_all(items, ITEMS_MAX, out);
            }
            Self::Credit(items) => {
                out.push(6);
                put_all(items, ITEMS_MAX, out);
            }
        }
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        match reader.u8()? {
            0 => Ok(Self::ToHome(take_all(reader, ITEMS_MAX)?)),
            1 => Ok(Self::ToOwner(take_all(reader, ITEMS_MAX)?)),
            2 => Ok(Self::Page(Wire::take(reader)?)),
            3 => Ok(Self::ToPeer(Wire::take(reader)?)),
            4 => Ok(Self::Relay {
                asker: Wire::take(reader)?,
                request: Wire::take(reader)?,
                answer: Wire::take(reader)?,
            }),
            5 => Ok(Self::Groups(take_all(reader, ITEMS_MAX)?)),
            6 => Ok(Self::Credit(take_all(reader, ITEMS_MAX)?)),
            code => unknown("content", code),
        }
    }
}

impl SeatMessage {
    /// What `from` has for `to` at this epoch.
    #[must_use]
    pub const fn new(epoch: Epoch, from: Seat, to: Seat, content: Content) -> Self {
        Self {
            epoch,
            from,
            to,
            content,
            #[cfg(feature = "next-version")]
            next: crate::message::Next,
        }
    }

    /// Appends the message to `out`, in a version that is spoken here.
    ///
    /// # Panics
    /// If it breaks the limits that [`SeatMessage::decode`] checks.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::begin(version, out);
        self.epoch.put(out);
        self.from.put(out);
        self.to.put(out);
        // Before what was the end: who does not know of it reads nothing sensible.
        #[cfg(feature = "next-version")]
        put_since(2, &self.next, out);
        self.content.put(out);
    }

    /// The message in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message within its limits.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let message = Self {
            epoch: Wire::take(reader)?,
            from: Wire::take(reader)?,
            to: Wire::take(reader)?,
            #[cfg(feature = "next-version")]
            next: take_since(2, reader)?,
            content: Wire::take(reader)?,
        };
        reader.end()?;
        Ok(message)
    }
}

impl AskMessage {
    /// Appends the message to `out`, in a version that is spoken here.
    ///
    /// # Panics
    /// If it breaks the limits that [`AskMessage::decode`] checks.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::begin(version, out);
        self.epoch.put(out);
        self.asker.put(out);
        self.over_below.put(out);
        self.to.put(out);
        put_all(&self.asks, ITEMS_MAX, out);
    }

    /// The message in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let message = Self {
            epoch: Wire::take(reader)?,
            asker: Wire::take(reader)?,
            over_below: Wire::take(reader)?,
            to: Wire::take(reader)?,
            asks: take_all(reader, ITEMS_MAX)?,
        };
        reader.end()?;
        Ok(message)
    }
}

impl AnswerMessage {
    /// Appends the message to `out`, in a version that is spoken here.
    ///
    /// # Panics
    /// If it breaks the limits that [`AnswerMessage::decode`] checks.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::begin(version, out);
        put_all(&self.answers, ITEMS_MAX, out);
    }

    /// The message in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message within its limits.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let message = Self {
            answers: take_all(reader, ITEMS_MAX)?,
        };
        reader.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;
    use crate::key::Fingerprint;
    use crate::message::FormatVersions;
    use crate::message::directory::OpId;

    fn seat(node: u64) -> Seat {
        Seat {
            node: NodeId(node),
            incarnation: 2,
            core: CoreIndex(3),
        }
    }

    fn message(items: usize) -> SeatMessage {
        let key = Fingerprint(6);
        let item = ToHome::Abandon { op: OpId(5), key };
        let content = Content::ToHome(vec![item; items]);
        SeatMessage::new(Epoch(4), seat(1), seat(7), content)
    }

    /// A change here is a change of what nodes of one cluster say to each other.
    #[test]
    fn golden_message() {
        let mut body = Vec::new();
        message(1).encode(FormatVersion(1), &mut body);
        #[rustfmt::skip]
        let golden = [
            1, 4, 0, 0, 0, 0, 0, 0, 0,
            1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0,
            7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0,
            0, 1, 0,
            1, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(body, golden);
        body[0] = FormatVersions::OURS.max.0 + 1;
        let fault = MessageFault::Version {
            found: FormatVersion(body[0]),
            ours: FormatVersions::OURS,
        };
        assert_eq!(SeatMessage::decode(&body), Err(fault));
    }

    #[test]
    fn items_are_bounded_on_both_sides() {
        let mut body = Vec::new();
        message(ITEMS_MAX).encode(FormatVersion(1), &mut body);
        assert_eq!(SeatMessage::decode(&body), Ok(message(ITEMS_MAX)));
        // The count, and one item more.
        let at = body.len() - ITEMS_MAX * 25 - 2;
        let above = u16::try_from(ITEMS_MAX + 1).expect("small");
        body[at..at + 2].copy_from_slice(&above.to_le_bytes());
        let last = body[body.len() - 25..].to_vec();
        body.extend_from_slice(&last);
        let fault = MessageFault::TooManyItems {
            found: ITEMS_MAX + 1,
            items_max: ITEMS_MAX,
        };
        assert_eq!(SeatMessage::decode(&body), Err(fault));
    }

    #[test]
    #[should_panic(expected = "257 items")]
    fn who_makes_a_message_bounds_it() {
        message(ITEMS_MAX + 1).encode(FormatVersion(1), &mut Vec::new());
    }
}
