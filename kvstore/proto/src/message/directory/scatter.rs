//! Puts in batches: small objects of many keys, which their owner is sent one behind the other in one request.
//!
//! ```text
//!  scatter:   version u8 | asker u64 | over below u64 | to seat | kind u8 | namespace u8 | copies u8 | wait u32 ms
//!             | count u16 | (request u64 | length u32 | crc32c u32 | retention | key), count of them
//!  scattered: for each write in their order: 0 done: what a write is answered
//!                                          | 1 refused: status u16
//! ```
//!
//! A key is its bytes behind their 16-bit length. The payload is the objects in the writes' order, and its checksum is
//! what theirs [join](lunette_runtime_core::checksum::joined_crc32c) to. Each write is one by itself, with a request of its
//! own: what becomes of one says nothing of the others, and one of which there is no answer may be asked for again, in
//! another message or alone ([`WriteMessage`](super::WriteMessage)), and is done once.

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_runtime_core::codec::Writer;
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::limits::{BODY_BYTES_MAX, KEY_BYTES_MAX};

use super::AskerId;
use super::wire::{Decoder, Encoder, Wire, fields, variants};
use crate::key::Key;
use crate::message::{FormatVersion, MessageFault, Status};
use crate::owner::{WriteAnswer, WriteAsk};
use crate::placement::Seat;
use crate::retention::Retention;
use crate::version::{Form, WriteKind};

/// Most writes of one message.
pub const SCATTERED_MAX: usize = 128;
/// Most bytes of one message's objects.
pub const SCATTERED_BYTES_MAX: u32 = 1 << 20;

/// What a write takes beside its key's bytes, at most.
const WRITE_BYTES_MAX: usize = 80;
const HEAD_BYTES_MAX: usize = 64;
const _: () =
    assert!(HEAD_BYTES_MAX + SCATTERED_MAX * (WRITE_BYTES_MAX + KEY_BYTES_MAX) <= BODY_BYTES_MAX);

/// To write objects of many keys at one owner; their bytes follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScatterMessage<'a> {
    /// What is the same for all of them.
    pub head: ScatterHead,
    /// The writes: at most [`SCATTERED_MAX`], of at most [`SCATTERED_BYTES_MAX`] in all.
    pub writes: Vec<ScatterWrite<'a>>,
}

/// What many writes have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterHead {
    /// Who writes.
    pub asker: AskerId,
    /// All of the asker's requests below this one are over.
    pub over_below: RequestId,
    /// The owner: one life of it only.
    pub to: Seat,
    /// What becomes of what is there.
    pub kind: WriteKind,
    /// What the keys' namespace wants of nodes that are cut off.
    pub namespace: NamespaceKind,
    /// How many copies of each there are to be.
    pub wanted: u8,
    /// How long the writer waits, in milliseconds.
    pub wait_ms: u32,
}

/// One of many writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterWrite<'a> {
    /// The write, which is done once however often it is asked for.
    pub request: RequestId,
    /// How much of the payload it is, in bytes.
    pub len_bytes: u32,
    /// The checksum of that.
    pub crc32c: u32,
    /// How it is to be kept in memory.
    pub retention: Retention,
    /// The key.
    pub key: Key<'a>,
}

/// What came of one of many writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scattered {
    /// As a write by itself is answered.
    Done {
        /// The answer.
        answer: WriteAnswer,
    },
    /// As a write by itself is refused: nothing was done.
    Refused {
        /// Why.
        status: Status,
    },
}

fields!(ScatterHead {
    asker,
    over_below,
    to,
    kind,
    namespace,
    wanted,
    wait_ms
});
variants!(Scattered {
    0 => Done { answer },
    1 => Refused { status },
});

impl Wire for Status {
    fn put(&self, out: &mut Encoder<'_>) {
        Writer::new(out).u16(self.code());
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(Self::from_code(reader.u16()?))
    }
}

impl ScatterWrite<'_> {
    fn put(&self, out: &mut Encoder<'_>) {
        self.request.put(out);
        self.len_bytes.put(out);
        self.crc32c.put(out);
        self.retention.put(out);
        Writer::new(out).short_bytes(self.key.bytes());
    }

    /// What is to be done.
    #[must_use]
    pub fn ask(&self, head: &ScatterHead) -> WriteAsk {
        WriteAsk {
            key: self.key.fingerprint(),
            kind: head.kind,
            form: Form::Whole,
            namespace: head.namespace,
            wanted: head.wanted,
            wait_ms: head.wait_ms,
            retention: self.retention,
        }
    }
}

impl<'a> ScatterMessage<'a> {
    /// Appends the message to `out`, in a version that is spoken here.
    ///
    /// # Panics
    /// If it has more than one message may.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        assert!(check(&self.writes).is_ok(), "more than one message's");
        let out = &mut Encoder::begin(version, out);
        self.head.put(out);
        let count = u16::try_from(self.writes.len()).expect("checked");
        Writer::new(out).u16(count);
        self.writes.iter().for_each(|write| write.put(out));
    }

    /// The message in `body`, whose keys it borrows.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &'a [u8]) -> Result<Self, MessageFault> {
        let mut decoder = Decoder::begin(body)?;
        let reader = &mut decoder;
        let head = Wire::take(reader)?;
        let count = usize::from(reader.u16()?);
        if count > SCATTERED_MAX {
            return Err(MessageFault::TooManyKeys(count));
        }
        let mut writes = Vec::with_capacity(count);
        for _ in 0..count {
            writes.push(ScatterWrite {
                request: Wire::take(reader)?,
                len_bytes: Wire::take(reader)?,
                crc32c: Wire::take(reader)?,
                retention: Wire::take(reader)?,
                key: Key::new(reader.short_bytes()?)?,
            });
        }
        reader.end()?;
        check(&writes)?;
        Ok(Self { head, writes })
    }
}

/// That they are no more than one message may have.
fn check(writes: &[ScatterWrite<'_>]) -> Result<(), MessageFault> {
    if writes.len() > SCATTERED_MAX {
        return Err(MessageFault::TooManyKeys(writes.len()));
    }
    let bytes = writes.iter().map(|write| u64::from(write.len_bytes)).sum();
    if bytes > SCATTERED_BYTES_MAX.into() {
        return Err(MessageFault::TooMuchRoom(bytes));
    }
    Ok(())
}

impl Scattered {
    /// Appends what came of writes to `out`, in the version of the request.
    pub fn encode(scattered: &[Self], version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::within(version, out);
        scattered.iter().for_each(|scattered| scattered.put(out));
    }

    /// What is in `body`, the answer to a request in that version of so many writes.
    ///
    /// # Errors
    /// [`MessageFault`] if it does not answer for exactly as many.
    pub fn decode(
        version: FormatVersion,
        body: &[u8],
        count: usize,
    ) -> Result<Vec<Self>, MessageFault> {
        let reader = &mut Decoder::within(version, body);
        let scattered = (0..count).map(|_| Self::take(reader)).collect();
        reader.end()?;
        scattered
    }
}

#[cfg(test)]
mod tests {
    use lunette_cluster_proto::map::Epoch;
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;
    use crate::retention::{GroupId, PIN_TTL_MAX, Parent, Pin};
    use crate::version::Version;

    const VERSION: FormatVersion = FormatVersion(1);

    fn message<'a>(writes: Vec<ScatterWrite<'a>>) -> ScatterMessage<'a> {
        let head = ScatterHead {
            asker: AskerId(9),
            over_below: RequestId(4),
            to: Seat {
                node: NodeId(7),
                incarnation: 2,
                core: CoreIndex(3),
            },
            kind: WriteKind::Put,
            namespace: NamespaceKind::Strict,
            wanted: 2,
            wait_ms: 500,
        };
        ScatterMessage { head, writes }
    }

    fn write(request: u64, len_bytes: u32, key: &[u8]) -> ScatterWrite<'_> {
        ScatterWrite {
            request: RequestId(request),
            len_bytes,
            crc32c: 0x0403_0201,
            retention: Retention::default(),
            key: Key::new(key).expect("a key"),
        }
    }

    fn encoded(message: &ScatterMessage<'_>) -> Vec<u8> {
        let mut body = Vec::new();
        message.encode(VERSION, &mut body);
        body
    }

    #[test]
    fn golden_request_and_answer() {
        let body = encoded(&message(vec![write(5, 4096, b"ab")]));
        let mut golden = vec![1, 9, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
        golden.extend([7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0]);
        golden.extend([0, 1, 2, 0xf4, 1, 0, 0, 1, 0]);
        golden.extend([5, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 1, 2, 3, 4]);
        golden.extend([0, 0, 0, 0, 2, 0, b'a', b'b']);
        assert_eq!(body, golden);
        let version = Version {
            epoch: Epoch(2),
            sequence: 3,
        };
        let done = Scattered::Done {
            answer: WriteAnswer::Exists { version },
        };
        let refused = Scattered::Refused {
            status: Status::Full,
        };
        let mut answer = Vec::new();
        Scattered::encode(&[done, refused], VERSION, &mut answer);
        let mut golden = vec![0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1];
        golden.extend(Status::Full.code().to_le_bytes());
        assert_eq!(answer, golden);
        let told = |count| Scattered::decode(VERSION, &answer, count);
        assert_eq!(told(2), Ok(vec![done, refused]));
        assert_eq!(told(1), Err(MessageFault::Trailing(3)));
        assert!(told(3).is_err());
    }

    #[test]
    fn a_message_has_no_more_than_one_may() {
        let longest = [b'x'; KEY_BYTES_MAX];
        let share = SCATTERED_BYTES_MAX / u32::try_from(SCATTERED_MAX).expect("few");
        let longest = ScatterWrite {
            retention: Retention {
                is_last: true,
                pin: Pin::Soft {
                    ttl_ms: u32::try_from(PIN_TTL_MAX.as_millis()).expect("a day"),
                },
                group: Some(GroupId::of(b"g")),
                behind: Some(Parent(Key::new(b"p").expect("a key").fingerprint())),
            },
            ..write(1, share, &longest)
        };
        let one = encoded(&message(vec![longest])).len() - encoded(&message(Vec::new())).len();
        assert!(one <= WRITE_BYTES_MAX + KEY_BYTES_MAX, "{one} bytes");
        let most = message(vec![longest; SCATTERED_MAX]);
        let body = encoded(&most);
        assert!(body.len() <= BODY_BYTES_MAX);
        assert_eq!(ScatterMessage::decode(&body), Ok(most));
        for len in 0..200 {
            assert!(
                ScatterMessage::decode(&body[..len]).is_err(),
                "cut at {len}"
            );
        }
        let count = 42..44;
        let mut more = body.clone();
        more[count.clone()].copy_from_slice(&129_u16.to_le_bytes());
        assert_eq!(
            ScatterMessage::decode(&more),
            Err(MessageFault::TooManyKeys(129))
        );
        let mut longer = body.clone();
        longer[count.end + size_of::<u64>()] += 1;
        let fault = MessageFault::TooMuchRoom(u64::from(SCATTERED_BYTES_MAX) + 1);
        assert_eq!(ScatterMessage::decode(&longer), Err(fault));
        let mut trailing = body;
        trailing.push(0);
        assert_eq!(
            ScatterMessage::decode(&trailing),
            Err(MessageFault::Trailing(1))
        );
    }
}
