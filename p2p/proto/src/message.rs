//! What holders of an object say to each other.
//!
//! ```text
//!  | LP | 1 (1) | kind (1) | version (8) | fields of the kind |
//! ```
//!
//! A message is short enough for a notification of the engine
//! ([`MESSAGE_BYTES_MAX`]), and its order after those that went before it does not matter.

use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use thiserror::Error;

use crate::object::{CHUNKS_MAX, Version};

/// Longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Most chunks that are told of by their numbers in one message.
pub const HAVE_CHUNKS_MAX: usize = 512;
/// Most words of 64 chunks in one message.
pub const HAVE_WORDS_MAX: usize = 384;
/// Most chunks of which one is asked for.
pub const CANDIDATES_MAX: usize = 16;

const MAGIC: [u8; 2] = *b"LP";
const MESSAGE_VERSION: u8 = 1;

const _: () = assert!(12 + 4 + 4 * HAVE_CHUNKS_MAX <= MESSAGE_BYTES_MAX);
const _: () = assert!(12 + 8 + 8 * HAVE_WORDS_MAX <= MESSAGE_BYTES_MAX);

/// Why somebody is no neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has as many as it takes: ask somebody else, or later.
    Full,
    /// It has no such object, or no more.
    Gone,
}

/// What came of a chunk that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The asker has it, and serves it.
    Held,
    /// It did not come, or it was damaged.
    Failed,
    /// It was not wanted any more.
    Unwanted,
}

/// A message of one holder to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Let us be neighbours.
    Hello,
    /// We are.
    Welcome,
    /// We are not.
    Refuse(Refusal),
    /// I have all chunks.
    All {
        /// How many uploads wait here, or are under way.
        load: u16,
    },
    /// I have these chunks, besides those that I have told of.
    Have {
        /// How many uploads wait here, or are under way.
        load: u16,
        /// Chunks, at most [`HAVE_CHUNKS_MAX`]; none in a mere sign of life.
        chunks: Vec<u32>,
    },
    /// The same, in words of 64 chunks.
    Map {
        /// How many uploads wait here, or are under way.
        load: u16,
        /// Which word is the first.
        first: u32,
        /// Words, at most [`HAVE_WORDS_MAX`].
        words: Vec<u64>,
    },
    /// I want one of these chunks.
    Want {
        /// Its number, of the asker's.
        want: u32,
        /// Chunks, 1 to [`CANDIDATES_MAX`].
        candidates: Vec<u32>,
    },
    /// This one may be read now.
    Grant {
        /// The want's number.
        want: u32,
        /// The chunk.
        chunk: u32,
        /// How many uploads wait here, or are under way.
        load: u16,
    },
    /// None of them can be had now.
    Busy {
        /// The want's number.
        want: u32,
        /// How many uploads wait here, or are under way.
        load: u16,
    },
    /// The want is over, for the asker.
    Done {
        /// Its number.
        want: u32,
        /// How it ended.
        ending: Ending,
    },
    /// I serve this object no more.
    Bye,
}

/// What is no message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MessageFault {
    /// It ends too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// It is of somebody else, or of a later version.
    #[error("not a message of version {MESSAGE_VERSION}")]
    Unknown,
    /// A field is out of its bounds, or there is something behind the last.
    #[error("the message makes no sense")]
    Nonsense,
}

impl Message {
    const fn kind(&self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Welcome => 2,
            Self::Refuse(_) => 3,
            Self::All { .. } => 4,
            Self::Have { .. } => 5,
            Self::Map { .. } => 6,
            Self::Want { .. } => 7,
            Self::Grant { .. } => 8,
            Self::Busy { .. } => 9,
            Self::Done { .. } => 10,
            Self::Bye => 11,
        }
    }

    /// Its bytes, about an object's version.
    ///
    /// # Panics
    /// If a list is longer than its limit: who makes a message bounds it.
    #[must_use]
    pub fn encode(&self, version: Version) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut out = Writer::new(&mut bytes);
        out.bytes(&MAGIC).u8(MESSAGE_VERSION).u8(self.kind());
        out.u64(version.0);
        match self {
            Self::Hello | Self::Welcome | Self::Bye => {}
            Self::Refuse(refusal) => drop(out.u8(refusal.to_wire())),
            Self::All { load } => drop(out.u16(*load)),
            Self::Have { load, chunks } => {
                out.u16(*load).u16(len(chunks, HAVE_CHUNKS_MAX));
                write_chunks(&mut out, chunks);
            }
            Self::Map { load, first, words } => {
                out.u16(*load).u32(*first).u16(len(words, HAVE_WORDS_MAX));
                for &word in words {
                    out.u64(word);
                }
            }
            Self::Want { want, candidates } => {
                out.u32(*want).u16(len(candidates, CANDIDATES_MAX));
                write_chunks(&mut out, candidates);
            }
            Self::Grant { want, chunk, load } => drop(out.u32(*want).u32(*chunk).u16(*load)),
            Self::Busy { want, load } => drop(out.u32(*want).u16(*load)),
            Self::Done { want, ending } => drop(out.u32(*want).u8(ending.to_wire())),
        }
        assert!(bytes.len() <= MESSAGE_BYTES_MAX, "lists are bounded");
        bytes
    }

    /// What bytes say, and of which version of which object. Whether the object has the chunks is for the swarm
    /// to see.
    ///
    /// # Errors
    /// [`MessageFault`].
    pub fn decode(bytes: &[u8]) -> Result<(Version, Self), MessageFault> {
        let mut reader = Reader::new(bytes);
        if reader.array()? != MAGIC || reader.u8()? != MESSAGE_VERSION {
            return Err(MessageFault::Unknown);
        }
        let kind = reader.u8()?;
        let version = Version(reader.u64()?);
        let message = Self::read(kind, &mut reader)?;
        if !reader.is_empty() {
            return Err(MessageFault::Nonsense);
        }
        Ok((version, message))
    }

    fn read(kind: u8, reader: &mut Reader<'_>) -> Result<Self, MessageFault> {
        let message = match kind {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Refuse(Refusal::from_wire(reader.u8()?)?),
            4 => Self::All {
                load: reader.u16()?,
            },
            5 => Self::Have {
                load: reader.u16()?,
                chunks: read_chunks(reader, 0..=HAVE_CHUNKS_MAX)?,
            },
            6 => Self::read_map(reader)?,
            7 => Self::Want {
                want: reader.u32()?,
                candidates: read_chunks(reader, 1..=CANDIDATES_MAX)?,
            },
            8 => Self::Grant {
                want: reader.u32()?,
                chunk: reader.u32()?,
                load: reader.u16()?,
            },
            9 => Self::Busy {
                want: reader.u32()?,
                load: reader.u16()?,
            },
            10 => Self::Done {
                want: reader.u32()?,
                ending: Ending::from_wire(reader.u8()?)?,
            },
            11 => Self::Bye,
            _ => return Err(MessageFault::Unknown),
        };
        Ok(message)
    }

    fn read_map(reader: &mut Reader<'_>) -> Result<Self, MessageFault> {
        let (load, first) = (reader.u16()?, reader.u32()?);
        let count = usize::from(reader.u16()?);
        if count > HAVE_WORDS_MAX || first > CHUNKS_MAX / u64::BITS {
            return Err(MessageFault::Nonsense);
        }
        let words = (0..count).map(|_| reader.u64());
        let words = words.collect::<Result<_, _>>()?;
        Ok(Self::Map { load, first, words })
    }
}

fn len<T>(list: &[T], max: usize) -> u16 {
    assert!(list.len() <= max, "lists are bounded");
    u16::try_from(list.len()).expect("lists are bounded")
}

fn write_chunks(out: &mut Writer<'_>, chunks: &[u32]) {
    for &chunk in chunks {
        out.u32(chunk);
    }
}

fn read_chunks(
    reader: &mut Reader<'_>,
    count: core::ops::RangeInclusive<usize>,
) -> Result<Vec<u32>, MessageFault> {
    let len = usize::from(reader.u16()?);
    if !count.contains(&len) {
        return Err(MessageFault::Nonsense);
    }
    let chunks = (0..len).map(|_| reader.u32());
    Ok(chunks.collect::<Result<_, _>>()?)
}

impl Refusal {
    const fn to_wire(self) -> u8 {
        match self {
            Self::Full => 1,
            Self::Gone => 2,
        }
    }

    const fn from_wire(code: u8) -> Result<Self, MessageFault> {
        match code {
            1 => Ok(Self::Full),
            2 => Ok(Self::Gone),
            _ => Err(MessageFault::Nonsense),
        }
    }
}

impl Ending {
    const fn to_wire(self) -> u8 {
        match self {
            Self::Held => 1,
            Self::Failed => 2,
            Self::Unwanted => 3,
        }
    }

    const fn from_wire(code: u8) -> Result<Self, MessageFault> {
        match code {
            1 => Ok(Self::Held),
            2 => Ok(Self::Failed),
            3 => Ok(Self::Unwanted),
            _ => Err(MessageFault::Nonsense),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: Version = Version(0x0102_0304_0506_0708);

    fn each() -> Vec<Message> {
        let (load, want, chunk) = (9, 7, 5);
        vec![
            Message::Hello,
            Message::Welcome,
            Message::Refuse(Refusal::Full),
            Message::Refuse(Refusal::Gone),
            Message::All { load },
            Message::Have {
                load,
                chunks: vec![],
            },
            Message::Have {
                load,
                chunks: vec![3; HAVE_CHUNKS_MAX],
            },
            Message::Map {
                load,
                first: 2,
                words: vec![u64::MAX; HAVE_WORDS_MAX],
            },
            Message::Want {
                want,
                candidates: vec![1; CANDIDATES_MAX],
            },
            Message::Grant { want, chunk, load },
            Message::Busy { want, load },
            Message::Done {
                want,
                ending: Ending::Held,
            },
            Message::Done {
                want,
                ending: Ending::Failed,
            },
            Message::Done {
                want,
                ending: Ending::Unwanted,
            },
            Message::Bye,
        ]
    }

    #[test]
    fn messages_come_back() {
        for message in each() {
            let bytes = message.encode(VERSION);
            assert_eq!(Message::decode(&bytes), Ok((VERSION, message)));
        }
    }

    #[test]
    fn what_is_cut_or_too_long_is_refused() {
        for message in each() {
            let mut bytes = message.encode(VERSION);
            for end in 0..bytes.len() {
                assert!(Message::decode(&bytes[..end]).is_err(), "{message:?}");
            }
            bytes.push(0);
            assert_eq!(Message::decode(&bytes), Err(MessageFault::Nonsense));
        }
    }

    #[test]
    fn lists_have_bounds() {
        let head = |kind: u8| {
            let mut bytes = Vec::new();
            Writer::new(&mut bytes).bytes(b"LP").u8(1).u8(kind).u64(1);
            bytes
        };
        let mut none = head(7);
        Writer::new(&mut none).u32(1).u16(0);
        let mut many = head(7);
        Writer::new(&mut many).u32(1).u16(17).bytes(&[0; 4 * 17]);
        let mut words = head(6);
        Writer::new(&mut words).u16(0).u32(u32::MAX).u16(0);
        for bytes in [none, many, words] {
            assert_eq!(Message::decode(&bytes), Err(MessageFault::Nonsense));
        }
        assert_eq!(Message::decode(&head(0)), Err(MessageFault::Unknown));
        assert_eq!(Message::decode(&head(12)), Err(MessageFault::Unknown));
        assert_eq!(Message::decode(b"XX\x01"), Err(MessageFault::Unknown));
    }
}
