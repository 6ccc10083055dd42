//! What is said over the local channel.
//!
//! ```text
//!   join       1, ticket u128                                        asker, first
//!   welcome    2, proof u128            + board, commands            owner, first
//!   map        3, segment u64                                        asker
//!   memory     4, segment u64, offset u64, len u64   + a memfd       owner (mapped), asker (lent)
//!   refused    5, segment u64                                        owner: it hands that out to nobody
//!   accepted   6, segment u64                                        owner: what was lent is mapped
//!   declined   7, segment u64                                        owner: it is not
//!   take back  8, segment u64                                        asker: it is not lent any more
//!   wake       9                                                     both: look at the words
//!   window    10, len u64               + a memfd                     asker, once; owner: accepted or
//!                                                                     declined, segment 0
//!   trust     11, address u64, value u128, reads u8                   asker, then owner: that value lies
//!                                                                     there; whether the other's was read
//!   trusted   12                                                      asker: the owner's was read
//!   at        13, segment u64, address u64, len u64                   as memory, in place of a file
//!   handle    14, segment u64, access u8, handle 80 bytes             owner: a device's memory, to be opened
//!   closed    15, segment u64                                         asker: it is not open any more
//! ```

use lunette_runtime_core::codec::{Reader, Writer};

use super::super::message::{BodyFault, finish};
use super::super::segment::{Access, SegmentId};

/// Longest packet, in bytes.
pub const PACKET_BYTES_MAX: usize = 1 + 8 + 1 + HANDLE_BYTES;
/// What another process opens memory of a device by: the driver's handle, and which part of what that names.
pub const HANDLE_BYTES: usize = 80;

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Who asks has this ticket.
    Join {
        /// As it came over the authenticated connection.
        ticket: u128,
    },
    /// It may stay. With it: the board, and the commands.
    Welcome {
        /// As it went over the authenticated connection.
        proof: u128,
    },
    /// The owner is to hand this segment out, to be read.
    Map {
        /// The owner's.
        segment: SegmentId,
    },
    /// Here is a segment's memory, to be read. With it: its file.
    Memory {
        /// Whose memory: the sender's.
        segment: SegmentId,
        /// Where in the file it begins.
        offset_bytes: u64,
        /// How long it is.
        len_bytes: u64,
    },
    /// The segment is not handed out.
    Refused {
        /// The owner's.
        segment: SegmentId,
    },
    /// What was lent has been mapped.
    Accepted {
        /// The asker's.
        segment: SegmentId,
    },
    /// What was lent has not been mapped, and no command can name it.
    Declined {
        /// The asker's.
        segment: SegmentId,
    },
    /// No command will name this segment any more.
    TakeBack {
        /// The asker's.
        segment: SegmentId,
    },
    /// Whoever gets it was asleep.
    Wake,
    /// Memory that both write, for what cannot be mapped. With it: its file. It is accepted or declined
    /// by the name [`WINDOW`](super::commands::WINDOW).
    Window {
        /// How long it is.
        len_bytes: u64,
    },
    /// The sender lets the other read its process's memory, and this is how that is tried: only its
    /// process has that value there.
    Trust {
        /// Where.
        address: u64,
        /// What lies there: 16 bytes, the lowest first.
        value: u128,
        /// Whether the sender has read the other's value. The asker, who comes first, has not.
        reads: bool,
    },
    /// The asker has read the owner's value, so it may be told addresses.
    Trusted,
    /// Here is a segment's memory, to be read by its address in the sender's process.
    At {
        /// Whose memory: the sender's.
        segment: SegmentId,
        /// Where it begins.
        address: u64,
        /// How long it is.
        len_bytes: u64,
    },
    /// Here is a segment's memory, which is a device's: who opens it reaches all of the allocation in which it lies.
    Handle {
        /// The owner's.
        segment: SegmentId,
        /// What may be done there.
        access: Access,
        /// As the device's driver has it.
        handle: [u8; HANDLE_BYTES],
    },
    /// That was closed, or was never opened: the owner may use it for something else.
    Closed {
        /// The owner's.
        segment: SegmentId,
    },
}

impl Packet {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PACKET_BYTES_MAX);
        let mut writer = Writer::new(&mut bytes);
        match *self {
            Self::Join { ticket } => writer.u8(1).u128(ticket),
            Self::Welcome { proof } => writer.u8(2).u128(proof),
            Self::Map { segment } => writer.u8(3).u64(segment.to_wire()),
            Self::Memory {
                segment,
                offset_bytes,
                len_bytes,
            } => writer
                .u8(4)
                .u64(segment.to_wire())
                .u64(offset_bytes)
                .u64(len_bytes),
            Self::Refused { segment } => writer.u8(5).u64(segment.to_wire()),
            Self::Accepted { segment } => writer.u8(6).u64(segment.to_wire()),
            Self::Declined { segment } => writer.u8(7).u64(segment.to_wire()),
            Self::TakeBack { segment } => writer.u8(8).u64(segment.to_wire()),
            Self::Wake => writer.u8(9),
            Self::Window { len_bytes } => writer.u8(10).u64(len_bytes),
            Self::Trust {
                address,
                value,
                reads,
            } => writer.u8(11).u64(address).u128(value).u8(u8::from(reads)),
            Self::Trusted => writer.u8(12),
            Self::At {
                segment,
                address,
                len_bytes,
            } => writer
                .u8(13)
                .u64(segment.to_wire())
                .u64(address)
                .u64(len_bytes),
            Self::Handle {
                segment,
                access,
                handle,
            } => writer
                .u8(14)
                .u64(segment.to_wire())
                .u8(access.to_wire())
                .bytes(&handle),
            Self::Closed { segment } => writer.u8(15).u64(segment.to_wire()),
        };
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`BodyFault`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyFault> {
        let mut reader = Reader::new(bytes);
        let kind = reader.u8()?;
        let packet = match kind {
            1 => Self::Join {
                ticket: reader.u128()?,
            },
            2 => Self::Welcome {
                proof: reader.u128()?,
            },
            3..=8 => {
                let segment = SegmentId::from_wire(reader.u64()?);
                match kind {
                    3 => Self::Map { segment },
                    4 => Self::Memory {
                        segment,
                        offset_bytes: reader.u64()?,
                        len_bytes: reader.u64()?,
                    },
                    5 => Self::Refused { segment },
                    6 => Self::Accepted { segment },
                    7 => Self::Declined { segment },
                    _ => Self::TakeBack { segment },
                }
            }
            9 => Self::Wake,
            10 => Self::Window {
                len_bytes: reader.u64()?,
            },
            11 => Self::Trust {
                address: reader.u64()?,
                value: reader.u128()?,
                reads: match reader.u8()? {
                    0 => false,
                    1 => true,
                    _ => return Err(BodyFault::OutOfRange),
                },
            },
            12 => Self::Trusted,
            13 => Self::At {
                segment: SegmentId::from_wire(reader.u64()?),
                address: reader.u64()?,
                len_bytes: reader.u64()?,
            },
            14 => Self::Handle {
                segment: SegmentId::from_wire(reader.u64()?),
                access: Access::from_wire(reader.u8()?).ok_or(BodyFault::OutOfRange)?,
                handle: reader.array()?,
            },
            15 => Self::Closed {
                segment: SegmentId::from_wire(reader.u64()?),
            },
            _ => return Err(BodyFault::OutOfRange),
        };
        finish(&reader)?;
        Ok(packet)
    }

    /// How many files travel with it.
    #[must_use]
    pub const fn files(&self) -> usize {
        match self {
            Self::Welcome { .. } => 2,
            Self::Memory { .. } | Self::Window { .. } => 1,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [Packet; 15] {
        let segment = SegmentId::from_wire(0x0102_0304_0506_0708);
        [
            Packet::Join { ticket: 1 << 100 },
            Packet::Welcome { proof: 7 },
            Packet::Map { segment },
            Packet::Memory {
                segment,
                offset_bytes: 4096,
                len_bytes: u64::MAX,
            },
            Packet::Refused { segment },
            Packet::Accepted { segment },
            Packet::Declined { segment },
            Packet::TakeBack { segment },
            Packet::Wake,
            Packet::Window { len_bytes: 1 << 20 },
            Packet::Trust {
                address: 1 << 40,
                value: 1 << 120,
                reads: true,
            },
            Packet::Trusted,
            Packet::At {
                segment,
                address: 1 << 40,
                len_bytes: 3,
            },
            Packet::Handle {
                segment,
                access: Access::Read,
                handle: std::array::from_fn(|index| u8::try_from(index).expect("below 80")),
            },
            Packet::Closed { segment },
        ]
    }

    #[test]
    fn packets_come_back_and_parts_of_them_do_not() {
        for (kind, packet) in (1..).zip(all()) {
            let mut bytes = packet.encode();
            assert_eq!(bytes[0], kind);
            assert!(bytes.len() <= PACKET_BYTES_MAX);
            assert_eq!(Packet::decode(&bytes), Ok(packet));
            for len in 0..bytes.len() {
                let cut = Packet::decode(&bytes[..len]);
                assert!(matches!(cut, Err(BodyFault::Truncated(_))), "{cut:?}");
            }
            bytes.push(0);
            assert_eq!(Packet::decode(&bytes), Err(BodyFault::Trailing(1)));
        }
        let mut neither = all()[10].encode();
        *neither.last_mut().expect("not empty") = 2;
        assert_eq!(Packet::decode(&neither), Err(BodyFault::OutOfRange));
        let mut no_access = all()[13].encode();
        no_access[9] = 0;
        assert_eq!(Packet::decode(&no_access), Err(BodyFault::OutOfRange));
        for kind in [0, 16, u8::MAX] {
            assert_eq!(Packet::decode(&[kind]), Err(BodyFault::OutOfRange));
        }
    }

    #[test]
    fn golden_memory() {
        let bytes = all()[3].encode();
        #[rustfmt::skip]
        let golden = [
            4, 8, 7, 6, 5, 4, 3, 2, 1, 0, 16, 0, 0, 0, 0, 0, 0,
            255, 255, 255, 255, 255, 255, 255, 255,
        ];
        assert_eq!(bytes, golden);
        assert_eq!(
            all().map(|packet| packet.files()),
            [0, 2, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
        );
    }
}
