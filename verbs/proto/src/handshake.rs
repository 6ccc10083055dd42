//! From strangers to a connected pair of queue pairs, over a channel that both sides have.
//!
//! ```text
//!   initiator                                   acceptor
//!     |  Offer   (versions, epoch, card) ------->  |   chooses, connects (RTR, RTS)
//!     |  <------- Accept (version, epochs, card)   |
//!   connects (RTR, RTS)                            |
//!     |  Ready   (both epochs) ----------------->  |   only now may it send
//! ```
//!
//! The acceptor is ready to receive before the initiator learns where to send, and sends nothing
//! before it is told that the initiator is ready to receive: no packet meets a queue pair that is
//! not there yet. Packet numbers begin at random, so that packets of an earlier pair that had the
//! same numbers of queue pairs are recognised as strangers; the epochs do the same for messages.
//!
//! The channel is reliable and in order, and carries whole messages of at most
//! [`MESSAGE_BYTES_MAX`]; who the peer is has been established on it before.

mod machine;

use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use lunette_runtime_core::random::SplitMix64;
use thiserror::Error;

use crate::gid::Gid;
use crate::negotiate::{BadMtu, Capabilities};
pub use machine::{Action, Event, Handshake, HandshakeFault, Peer};

/// Longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 128;
/// The version that this code speaks; there is no older one.
pub const VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"LRDM";
/// Numbers of queue pairs and of packets have 24 bits.
const BITS_24: u32 = 0xff_ffff;

/// A 24-bit packet number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Psn(u32);

impl Psn {
    /// The packet number of these bits; those above 24 are cut off.
    #[must_use]
    pub const fn new(bits: u32) -> Self {
        Self(bits & BITS_24)
    }

    /// A number that nobody who has not seen it can name.
    #[must_use]
    pub fn draw(random: &mut SplitMix64) -> Self {
        Self(random.below(BITS_24 + 1))
    }

    /// Its value.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// What one side tells of itself: how to reach its queue pair, and what it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// The port's address.
    pub gid: Gid,
    /// The port's address on an InfiniBand subnet; 0 elsewhere.
    pub lid: u16,
    /// The queue pair's number, 24 bits.
    pub qp_num: u32,
    /// The first packet number that this side sends.
    pub psn: Psn,
    /// What its adapter can do.
    pub capabilities: Capabilities,
}

/// Why an acceptor refuses.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// No version in common.
    #[error("no version in common")]
    Version,
    /// It has no room for another queue pair: later.
    #[error("no room for another queue pair")]
    Busy,
    /// Its adapter refused the connection.
    #[error("the peer's adapter refused the connection")]
    Adapter,
    /// A reason that is not known here.
    #[error("reason {0}")]
    Other(u16),
}

impl Refusal {
    const fn code(self) -> u16 {
        match self {
            Self::Version => 1,
            Self::Busy => 2,
            Self::Adapter => 3,
            Self::Other(code) => code,
        }
    }

    const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::Version,
            2 => Self::Busy,
            3 => Self::Adapter,
            other => Self::Other(other),
        }
    }

    /// Whether a new attempt may fare better.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Busy)
    }
}

/// A message of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The initiator's first word.
    Offer {
        /// Versions that it speaks.
        versions: (u16, u16),
        /// Names this attempt; never used before by this side.
        epoch: u64,
        /// Its side.
        card: Card,
    },
    /// The acceptor is ready to receive.
    Accept {
        /// The chosen version.
        version: u16,
        /// The initiator's, as it came.
        your_epoch: u64,
        /// The acceptor's own.
        epoch: u64,
        /// Its side.
        card: Card,
    },
    /// The acceptor does not want to.
    Refuse {
        /// The initiator's, as it came.
        your_epoch: u64,
        /// Why.
        reason: Refusal,
    },
    /// The initiator is ready to receive.
    Ready {
        /// The acceptor's, as it came.
        your_epoch: u64,
    },
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Malformed {
    /// They end early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// They begin otherwise.
    #[error("not a handshake message")]
    NoMagic,
    /// A kind that does not exist.
    #[error("no message of kind {0}")]
    Kind(u8),
    /// Bytes behind the end.
    #[error("{0} bytes behind the message")]
    Surplus(usize),
    /// A number of more than 24 bits.
    #[error("{0:#x} has more than 24 bits")]
    Wide(u32),
    /// An MTU that does not exist.
    #[error(transparent)]
    Mtu(#[from] BadMtu),
}

impl Message {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.bytes(&MAGIC);
        match self {
            Self::Offer {
                versions,
                epoch,
                card,
            } => {
                writer.u8(1).u16(versions.0).u16(versions.1).u64(*epoch);
                card.encode(&mut writer);
            }
            Self::Accept {
                version,
                your_epoch,
                epoch,
                card,
            } => {
                writer.u8(2).u16(*version).u64(*your_epoch).u64(*epoch);
                card.encode(&mut writer);
            }
            Self::Refuse { your_epoch, reason } => {
                writer.u8(3).u64(*your_epoch).u16(reason.code());
            }
            Self::Ready { your_epoch } => {
                writer.u8(4).u64(*your_epoch);
            }
        }
    }

    /// Reads one message, which the bytes are to the last.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.array::<4>()? != MAGIC {
            return Err(Malformed::NoMagic);
        }
        let message = match reader.u8()? {
            1 => Self::Offer {
                versions: (reader.u16()?, reader.u16()?),
                epoch: reader.u64()?,
                card: Card::decode(&mut reader)?,
            },
            2 => Self::Accept {
                version: reader.u16()?,
                your_epoch: reader.u64()?,
                epoch: reader.u64()?,
                card: Card::decode(&mut reader)?,
            },
            3 => Self::Refuse {
                your_epoch: reader.u64()?,
                reason: Refusal::from_code(reader.u16()?),
            },
            4 => Self::Ready {
                your_epoch: reader.u64()?,
            },
            kind => return Err(Malformed::Kind(kind)),
        };
        match reader.rest().len() {
            0 => Ok(message),
            surplus => Err(Malformed::Surplus(surplus)),
        }
    }
}

impl Card {
    fn encode(&self, writer: &mut Writer<'_>) {
        let capabilities = &self.capabilities;
        writer
            .bytes(&self.gid)
            .u16(self.lid)
            .u32(self.qp_num)
            .u32(self.psn.value())
            .u16(capabilities.mtu_bytes)
            .u8(capabilities.reads_out_max)
            .u8(capabilities.reads_in_max)
            .u8(u8::from(capabilities.has_atomics));
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let card = Self {
            gid: reader.array()?,
            lid: reader.u16()?,
            qp_num: narrow(reader.u32()?)?,
            psn: Psn(narrow(reader.u32()?)?),
            capabilities: Capabilities {
                mtu_bytes: reader.u16()?,
                reads_out_max: reader.u8()?,
                reads_in_max: reader.u8()?,
                // Bits above the first are for later versions.
                has_atomics: reader.u8()? & 1 == 1,
            },
        };
        card.capabilities.check()?;
        Ok(card)
    }
}

const fn narrow(bits: u32) -> Result<u32, Malformed> {
    if bits <= BITS_24 {
        Ok(bits)
    } else {
        Err(Malformed::Wide(bits))
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) fn card(qp_num: u32) -> Card {
        Card {
            gid: [7; 16],
            lid: 0,
            qp_num,
            psn: Psn::new(qp_num * 3),
            capabilities: Capabilities {
                mtu_bytes: 1024,
                reads_out_max: 16,
                reads_in_max: 16,
                has_atomics: true,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn messages() -> [Message; 4] {
        let card = testing::card(5);
        [
            Message::Offer {
                versions: (1, 3),
                epoch: 9,
                card,
            },
            Message::Accept {
                version: 1,
                your_epoch: 9,
                epoch: 8,
                card,
            },
            Message::Refuse {
                your_epoch: 9,
                reason: Refusal::Other(77),
            },
            Message::Ready { your_epoch: 8 },
        ]
    }

    #[test]
    fn messages_come_back_and_none_is_too_long() {
        for message in messages() {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(Message::decode(&bytes), Ok(message));
            for len in 0..bytes.len() {
                assert!(Message::decode(&bytes[..len]).is_err());
            }
            bytes.push(0);
            assert_eq!(Message::decode(&bytes), Err(Malformed::Surplus(1)));
        }
    }

    #[test]
    fn numbers_of_more_than_24_bits_and_impossible_mtus_are_refused() {
        let offer = |card| {
            let mut bytes = Vec::new();
            Message::Offer {
                versions: (1, 1),
                epoch: 1,
                card,
            }
            .encode(&mut bytes);
            Message::decode(&bytes)
        };
        let mut card = testing::card(BITS_24);
        assert!(offer(card).is_ok());
        card.qp_num = BITS_24 + 1;
        assert_eq!(offer(card), Err(Malformed::Wide(BITS_24 + 1)));
        let mut card = testing::card(1);
        card.capabilities.mtu_bytes = 1500;
        assert!(matches!(offer(card), Err(Malformed::Mtu(_))));
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(mut bytes: Vec<u8>, with_magic: bool, kind in 0..6_u8) {
            if with_magic {
                let mut framed = MAGIC.to_vec();
                framed.push(kind);
                framed.append(&mut bytes);
                bytes = framed;
            }
            if let Ok(message) = Message::decode(&bytes) {
                let mut again = Vec::new();
                message.encode(&mut again);
                prop_assert_eq!(Message::decode(&again), Ok(message));
            }
        }

        #[test]
        fn packet_numbers_have_24_bits(seed: u64) {
            let mut random = SplitMix64::new(seed);
            prop_assert!(Psn::draw(&mut random).value() <= BITS_24);
        }
    }
}
