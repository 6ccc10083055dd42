//! Bodies of the engine's operations.
//!
//! ```text
//!   open      name                                     -> descriptor
//!   find      start u64, len u64                       -> descriptor of the segment, offset u64
//!   read      places                                   -> the bytes, as payload
//!   write     note, places; the bytes, as payload      -> nothing
//!   notify    note                                     -> nothing
//!   fence     connection u64                           -> nothing, once that connection has ended
//!   introduce boot id u128, proof u128                 -> ticket u128, name u128
//!   redeem    token, 88 bytes                          -> descriptor of what it grants
//!   siblings  nothing                                  -> ports of this listener, by core
//!   adapters, pair, windows: see `one_sided`
//!
//!   places      count u16, then per place: segment u64, offset u64, len u32
//!   note        id u64 (0: none), len u16, bytes
//!   descriptor  segment u64, len u64, start u64 (0: none), access u8
//!   refusal     index of the place u16
//! ```
//!
//! All fields are little-endian. A write with a note is applied before its note is delivered.

use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use thiserror::Error;

use super::segment::{Access, AccessRefusal, Kind, SEGMENT_NAME_BYTES_MAX, SegmentId};
use super::slices::SLICE_PARTS_MAX;

/// Longest notification, in bytes.
pub const NOTE_BYTES_MAX: usize = 4096;
/// Length of the token that [`Operation::Redeem`] carries, in bytes. What it says is between the owner
/// and itself.
pub const TOKEN_BYTES: usize = 88;
/// Length of one place, in bytes.
const PLACE_BYTES: usize = 20;

/// What is asked of a peer's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Describe the segment of a name.
    Open,
    /// Describe the segment that holds these addresses.
    Find,
    /// Send bytes.
    Read,
    /// Take bytes.
    Write,
    /// Deliver a notification.
    Notify,
    /// End another connection of this session, and answer when nothing of it can land any more.
    Fence,
    /// Say under which name an engine of the same host is reached, and with which ticket.
    Introduce,
    /// Verify a capability, let this session do what it grants, and describe that.
    Redeem,
    /// Say on which ports the engine's other cores listen ([`siblings`](super::siblings)).
    Siblings,
    /// Say how many adapters there are to be reached ([`one_sided`](super::one_sided)).
    Adapters,
    /// Connect a queue pair of an adapter, one step of its handshake at a time.
    Pair,
    /// Say where adapters reach a segment.
    Windows,
    /// The same as [`Pair`](Self::Pair), and what comes over the queue pair as a message is heard.
    PairTelling,
}

impl Operation {
    /// Every operation, in the order of its code.
    pub const ALL: [Self; 13] = [
        Self::Open,
        Self::Find,
        Self::Read,
        Self::Write,
        Self::Notify,
        Self::Fence,
        Self::Introduce,
        Self::Redeem,
        Self::Siblings,
        Self::Adapters,
        Self::Pair,
        Self::Windows,
        Self::PairTelling,
    ];

    /// Its code in a request's header.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Open => 0x0101,
            Self::Find => 0x0102,
            Self::Read => 0x0103,
            Self::Write => 0x0104,
            Self::Notify => 0x0105,
            Self::Fence => 0x0106,
            Self::Introduce => 0x0107,
            Self::Redeem => 0x0108,
            Self::Siblings => 0x0109,
            Self::Adapters => 0x010a,
            Self::Pair => 0x010b,
            Self::Windows => 0x010c,
            Self::PairTelling => 0x010d,
        }
    }

    /// The operation of a code.
    #[must_use]
    pub fn from_wire(found: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.to_wire() == found)
    }
}

/// What a peer's engine answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The request makes no sense to the peer.
    #[error("the peer does not understand the request")]
    Malformed,
    /// See [`AccessRefusal::Stale`].
    #[error("no such segment: it was unregistered, or never was")]
    Stale,
    /// See [`AccessRefusal::Forbidden`].
    #[error("the segment does not allow it")]
    Forbidden,
    /// See [`AccessRefusal::OutOfRange`].
    #[error("the range does not lie in the segment")]
    OutOfRange,
    /// The bytes of a write were damaged underway. Where they were to go is damaged too.
    #[error("the bytes were damaged underway")]
    Corrupt,
    /// The peer's queue of notifications is full, or it remembers as many capabilities of one session
    /// as it does.
    #[error("the peer is busy")]
    Busy,
    /// The peer's session is another one than was opened.
    #[error("the peer does not know the session")]
    Session,
    /// The peer is on another host, or shares no memory.
    #[error("the peer is on another host, or shares no memory")]
    Elsewhere,
    /// So many later notifications were delivered that the peer cannot say whether this one was.
    #[error("the peer does not know any more whether the notification was delivered")]
    Forgotten,
    /// The segment is reached by capability, and the session holds none for it: redeem one.
    #[error("the segment is reached by capability, and none was redeemed for it")]
    NoCapability,
    /// The capability is forged, or was granted to another engine.
    #[error("the capability is forged, or another engine's")]
    BadCapability,
    /// The capability is revoked: ask the owner for another.
    #[error("the capability is revoked")]
    Revoked,
    /// The system at the peer could not read or write the file, or a device has nothing to do with the memory that
    /// was registered. Where a write was to go may be damaged.
    #[error("the peer's file or device could not be read or written")]
    Storage,
    /// The segment is a disk's, and is reached in whole blocks: the request's place or its length is not a
    /// multiple of one. Nothing was read or written.
    #[error("the segment is reached in whole blocks, and the range is none")]
    Unaligned,
    /// The disk behind the segment cannot be reached now, or did not answer in time. What was to be written may
    /// be written, also later.
    #[error("the disk behind the segment cannot be reached now")]
    Detached,
    /// The device behind the segment did not copy the bytes, and may copy others. Where a write was to go may be
    /// damaged.
    #[error("the peer's device did not copy the bytes")]
    Device,
    /// The device behind the segment is lost, and what was in its memory.
    #[error("the peer's device is lost")]
    DeviceLost,
    /// A status of a later version.
    #[error("the peer refuses with status {0}")]
    Other(u16),
}

impl Refusal {
    /// Whether the same request may fare better later.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Corrupt | Self::Busy | Self::Detached | Self::Device
        )
    }

    /// Whether a limit was met at the peer.
    #[must_use]
    pub const fn is_backpressure(self) -> bool {
        matches!(self, Self::Busy)
    }

    /// Whether bytes were damaged.
    #[must_use]
    pub const fn is_corruption(self) -> bool {
        matches!(self, Self::Corrupt)
    }

    /// As a response's status. 0 is success.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Malformed => 1,
            Self::Stale => 2,
            Self::Forbidden => 3,
            Self::OutOfRange => 4,
            Self::Corrupt => 5,
            Self::Busy => 6,
            Self::Session => 7,
            Self::Elsewhere => 8,
            Self::Forgotten => 9,
            Self::NoCapability => 10,
            Self::BadCapability => 11,
            Self::Revoked => 12,
            Self::Storage => 13,
            Self::Unaligned => 14,
            Self::Detached => 15,
            Self::Device => 16,
            Self::DeviceLost => 17,
            Self::Other(status) => status,
        }
    }

    /// What a status says; `None` for success.
    #[must_use]
    pub const fn from_wire(status: u16) -> Option<Self> {
        Some(match status {
            0 => return None,
            1 => Self::Malformed,
            2 => Self::Stale,
            3 => Self::Forbidden,
            4 => Self::OutOfRange,
            5 => Self::Corrupt,
            6 => Self::Busy,
            7 => Self::Session,
            8 => Self::Elsewhere,
            9 => Self::Forgotten,
            10 => Self::NoCapability,
            11 => Self::BadCapability,
            12 => Self::Revoked,
            13 => Self::Storage,
            14 => Self::Unaligned,
            15 => Self::Detached,
            16 => Self::Device,
            17 => Self::DeviceLost,
            other => Self::Other(other),
        })
    }
}

impl From<AccessRefusal> for Refusal {
    fn from(refusal: AccessRefusal) -> Self {
        match refusal {
            AccessRefusal::Stale => Self::Stale,
            AccessRefusal::Forbidden => Self::Forbidden,
            AccessRefusal::OutOfRange => Self::OutOfRange,
        }
    }
}

/// Why a body made no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BodyFault {
    /// It ends too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// It goes on.
    #[error("{0} bytes too many")]
    Trailing(usize),
    /// No places, or too many.
    #[error("{0} places")]
    Places(usize),
    /// A notification or name that is too long, or an access that is none.
    #[error("a field is outside its range")]
    OutOfRange,
}

/// A place in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where.
    pub segment: SegmentId,
    /// Its first byte.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u32,
}

/// Appends places.
///
/// # Panics
/// If there are none, or more than [`SLICE_PARTS_MAX`].
pub fn write_places(out: &mut Vec<u8>, places: impl ExactSizeIterator<Item = Place>) {
    let count = places.len();
    assert!((1..=SLICE_PARTS_MAX).contains(&count), "{count} places");
    let mut writer = Writer::new(out);
    writer.u16(u16::try_from(count).expect("places are bounded"));
    for place in places {
        writer.u64(place.segment.to_wire());
        writer.u64(place.offset_bytes);
        writer.u32(place.len_bytes);
    }
}

/// Reads the places at the end of a body. The iterator has at most [`SLICE_PARTS_MAX`].
///
/// # Errors
/// [`BodyFault`].
pub fn read_places<'a>(
    reader: &mut Reader<'a>,
) -> Result<impl ExactSizeIterator<Item = Place> + use<'a>, BodyFault> {
    let count = usize::from(reader.u16()?);
    if !(1..=SLICE_PARTS_MAX).contains(&count) {
        return Err(BodyFault::Places(count));
    }
    let places = reader.bytes(count * PLACE_BYTES)?;
    finish(reader)?;
    let (places, _) = places.as_chunks::<PLACE_BYTES>();
    Ok(places.iter().map(|bytes| {
        let mut reader = Reader::new(bytes);
        let read = |reader: &mut Reader<'_>| {
            Ok::<_, Truncated>(Place {
                segment: SegmentId::from_wire(reader.u64()?),
                offset_bytes: reader.u64()?,
                len_bytes: reader.u32()?,
            })
        };
        read(&mut reader).expect("a place has its length")
    }))
}

/// A notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note<'a> {
    /// Its number in the session; a number that was delivered before is not delivered again.
    pub id: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// Appends a notification, or that there is none.
///
/// # Panics
/// If it is longer than [`NOTE_BYTES_MAX`] or its number is 0.
pub fn write_note(out: &mut Vec<u8>, note: Option<Note<'_>>) {
    let mut writer = Writer::new(out);
    let Some(Note { id, bytes }) = note else {
        writer.u64(0);
        return;
    };
    assert!(
        id > 0 && bytes.len() <= NOTE_BYTES_MAX,
        "a notification is numbered and bounded"
    );
    writer.u64(id);
    writer.short_bytes(bytes);
}

/// Reads what [`write_note`] wrote.
///
/// # Errors
/// [`BodyFault`].
pub fn read_note<'a>(reader: &mut Reader<'a>) -> Result<Option<Note<'a>>, BodyFault> {
    let id = reader.u64()?;
    if id == 0 {
        return Ok(None);
    }
    let bytes = reader.short_bytes()?;
    if bytes.len() > NOTE_BYTES_MAX {
        return Err(BodyFault::OutOfRange);
    }
    Ok(Some(Note { id, bytes }))
}

/// What a peer says of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Its id.
    pub segment: SegmentId,
    /// Its length.
    pub len_bytes: u64,
    /// The address by which it is known; 0 for none.
    pub start: u64,
    /// What we may do.
    pub access: Access,
    /// What it is made of.
    pub kind: Kind,
}

impl Descriptor {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u64(self.segment.to_wire());
        writer.u64(self.len_bytes);
        writer.u64(self.start);
        writer.u8(self.access.to_wire());
        writer.u8(self.kind.to_wire());
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`BodyFault`].
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, BodyFault> {
        Ok(Self {
            segment: SegmentId::from_wire(reader.u64()?),
            len_bytes: reader.u64()?,
            start: reader.u64()?,
            access: Access::from_wire(reader.u8()?).ok_or(BodyFault::OutOfRange)?,
            kind: Kind::from_wire(reader.u8()?).ok_or(BodyFault::OutOfRange)?,
        })
    }
}

/// What an asker says of itself with [`Operation::Introduce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Which start of which kernel it runs on.
    pub boot_id: u128,
    /// What the owner is to say on the local channel, to show that it is the owner.
    pub proof: u128,
}

impl Introduction {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer::new(out).u128(self.boot_id).u128(self.proof);
    }

    /// Reads a whole body.
    ///
    /// # Errors
    /// [`BodyFault`].
    pub fn decode(body: &[u8]) -> Result<Self, BodyFault> {
        let mut reader = Reader::new(body);
        let (boot_id, proof) = (reader.u128()?, reader.u128()?);
        finish(&reader)?;
        Ok(Self { boot_id, proof })
    }
}

/// Where an owner is reached on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// What the asker is to say first on the local channel. Good once, and for a few seconds.
    pub ticket: u128,
    /// The name of the local channel.
    pub name: u128,
}

impl Whereabouts {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer::new(out).u128(self.ticket).u128(self.name);
    }

    /// Reads a whole body.
    ///
    /// # Errors
    /// [`BodyFault`].
    pub fn decode(body: &[u8]) -> Result<Self, BodyFault> {
        let mut reader = Reader::new(body);
        let (ticket, name) = (reader.u128()?, reader.u128()?);
        finish(&reader)?;
        Ok(Self { ticket, name })
    }
}

/// The name that [`Operation::Open`] asks for.
///
/// # Errors
/// [`BodyFault`].
pub fn read_name(body: &[u8]) -> Result<&[u8], BodyFault> {
    if (1..=SEGMENT_NAME_BYTES_MAX).contains(&body.len()) {
        Ok(body)
    } else {
        Err(BodyFault::OutOfRange)
    }
}

/// The token that [`Operation::Redeem`] presents: the whole body.
///
/// # Errors
/// [`BodyFault`].
pub fn read_token(body: &[u8]) -> Result<&[u8; TOKEN_BYTES], BodyFault> {
    let mut reader = Reader::new(body);
    let token = reader.bytes(TOKEN_BYTES)?;
    finish(&reader)?;
    Ok(token.try_into().expect("it has its length"))
}

/// Checks that a body has been read to its end.
///
/// # Errors
/// [`BodyFault::Trailing`].
pub fn finish(reader: &Reader<'_>) -> Result<(), BodyFault> {
    if reader.is_empty() {
        Ok(())
    } else {
        Err(BodyFault::Trailing(reader.rest().len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(at: u64) -> Place {
        Place {
            segment: SegmentId::from_wire(at | 7 << 32),
            offset_bytes: at * 3,
            len_bytes: 9,
        }
    }

    #[test]
    fn golden_write() {
        let mut body = Vec::new();
        write_note(
            &mut body,
            Some(Note {
                id: 0x0102,
                bytes: b"hi",
            }),
        );
        write_places(&mut body, [place(1)].into_iter());
        #[rustfmt::skip]
        let golden = [
            2, 1, 0, 0, 0, 0, 0, 0, 2, 0, b'h', b'i',
            1, 0, 1, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0,
        ];
        assert_eq!(body, golden);
        let mut reader = Reader::new(&body);
        let note = read_note(&mut reader).expect("a note").expect("one");
        assert_eq!((note.id, note.bytes), (0x0102, &b"hi"[..]));
        let places: Vec<Place> = read_places(&mut reader).expect("places").collect();
        assert_eq!(places, [place(1)]);
        for len in 0..golden.len() {
            let mut reader = Reader::new(&golden[..len]);
            let read = read_note(&mut reader).and_then(|_| read_places(&mut reader).map(drop));
            assert!(
                matches!(read, Err(BodyFault::Truncated(_))),
                "{len}: {read:?}"
            );
        }
    }

    #[test]
    fn places_are_bounded_on_both_sides() {
        let count = |count: u16| {
            let mut body = count.to_le_bytes().to_vec();
            body.resize(2 + usize::from(count) * PLACE_BYTES, 0);
            read_places(&mut Reader::new(&body)).map(|places| places.len())
        };
        let max = u16::try_from(SLICE_PARTS_MAX).expect("it fits");
        assert_eq!((count(1), count(max)), (Ok(1), Ok(SLICE_PARTS_MAX)));
        assert_eq!(count(0), Err(BodyFault::Places(0)));
        assert_eq!(count(max + 1), Err(BodyFault::Places(SLICE_PARTS_MAX + 1)));
        let mut body = Vec::new();
        write_places(&mut body, [place(1)].into_iter());
        body.push(0);
        let read = read_places(&mut Reader::new(&body)).map(drop);
        assert_eq!(read, Err(BodyFault::Trailing(1)));
    }

    #[test]
    fn notes_are_bounded_and_may_be_absent() {
        let mut body = Vec::new();
        write_note(&mut body, None);
        assert_eq!(read_note(&mut Reader::new(&body)), Ok(None));
        body.clear();
        let mut writer = Writer::new(&mut body);
        writer.u64(1);
        writer.short_bytes(&[0; NOTE_BYTES_MAX + 1]);
        assert_eq!(
            read_note(&mut Reader::new(&body)),
            Err(BodyFault::OutOfRange)
        );
    }

    #[test]
    fn introductions_come_back_whole_or_not_at_all() {
        let introduction = Introduction {
            boot_id: 1 << 127,
            proof: 3,
        };
        let whereabouts = Whereabouts {
            ticket: 5,
            name: 1 << 99,
        };
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        introduction.encode(&mut asked);
        whereabouts.encode(&mut answered);
        assert_eq!(Introduction::decode(&asked), Ok(introduction));
        assert_eq!(Whereabouts::decode(&answered), Ok(whereabouts));
        for len in 0..asked.len() {
            assert!(Introduction::decode(&asked[..len]).is_err());
            assert!(Whereabouts::decode(&answered[..len]).is_err());
        }
        asked.push(0);
        assert_eq!(Introduction::decode(&asked), Err(BodyFault::Trailing(1)));
        assert_eq!(Whereabouts::decode(&asked), Err(BodyFault::Trailing(1)));
    }

    #[test]
    fn tokens_are_whole_bodies() {
        let body: Vec<u8> = (0..=100).collect();
        let token = read_token(&body[..TOKEN_BYTES]);
        assert_eq!(token.map(|token| &token[..]), Ok(&body[..TOKEN_BYTES]));
        for len in 0..TOKEN_BYTES {
            let read = read_token(&body[..len]);
            assert!(matches!(read, Err(BodyFault::Truncated(_))), "{len}");
        }
        let longer = read_token(&body[..=TOKEN_BYTES]);
        assert_eq!(longer, Err(BodyFault::Trailing(1)));
    }

    #[test]
    fn descriptors_and_codes_come_back() {
        let mut body = Vec::new();
        for kind in [Kind::Memory, Kind::File, Kind::Device, Kind::Namespace] {
            let descriptor = Descriptor {
                segment: SegmentId::from_wire(u64::MAX),
                len_bytes: 5,
                start: 6,
                access: Access::Write,
                kind,
            };
            body.clear();
            descriptor.encode(&mut body);
            assert_eq!(body.len(), 26);
            assert_eq!(Descriptor::decode(&mut Reader::new(&body)), Ok(descriptor));
        }
        for (at, wrong) in [(24, 9), (25, 4)] {
            let mut body = body.clone();
            body[at] = wrong;
            let decoded = Descriptor::decode(&mut Reader::new(&body));
            assert_eq!(decoded, Err(BodyFault::OutOfRange));
        }
        for op in Operation::ALL {
            assert_eq!(Operation::from_wire(op.to_wire()), Some(op));
        }
        assert_eq!(Operation::from_wire(0x010E), None);
        for status in 0..20 {
            let back = Refusal::from_wire(status).map_or(0, Refusal::to_wire);
            assert_eq!(back, status);
        }
        for refusal in [
            Refusal::NoCapability,
            Refusal::BadCapability,
            Refusal::Revoked,
        ] {
            assert!(!refusal.is_retryable(), "the same would be refused again");
        }
        assert!(read_name(b"").is_err() && read_name(b"n").is_ok());
        assert!(read_name(&[0; SEGMENT_NAME_BYTES_MAX + 1]).is_err());
    }
}
