//! Requests that an object's bytes go with, or come back with. They carry the key itself, which an
//! owner compares with the one that the bytes are under: fingerprints can collide.
//!
//! ```text
//!  write:    version u8 | asker u64 | request u64 | to seat | kind | namespace | wanted u8 | wait u32 | key
//!  get:      version u8 | epoch u64 | asker u64 | request u64 | to seat | namespace | key
//!  read:     version u8 | to seat | version | namespace | key
//!  replica:  version u8 | to seat | copy | namespace | key
//! ```
//!
//! A key is its bytes behind their 16-bit length. Length and CRC32C of the bytes are in the frame.

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::codec::{Reader, Writer};
use lunette_runtime_core::ids::RequestId;

use super::AskerId;
use super::envelope::{DIRECTORY_VERSION, check_version};
use super::wire::{Wire, variants};
use crate::key::Key;
use crate::message::{MessageFault, end_of};
use crate::owner::{WriteAnswer, WriteAsk};
use crate::placement::Seat;
use crate::version::{CopyInfo, Version, WriteKind};

/// To write an object at an owner; its bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteMessage<'a> {
    /// Who writes.
    pub asker: AskerId,
    /// The write, which is done once however often it is asked for.
    pub request: RequestId,
    /// The owner: one life of it only.
    pub to: Seat,
    /// What becomes of what is there.
    pub kind: WriteKind,
    /// What the key's namespace wants of nodes that are cut off.
    pub namespace: NamespaceKind,
    /// How many copies there are to be.
    pub wanted: u8,
    /// How long the writer waits, in milliseconds.
    pub wait_ms: u32,
    /// The key.
    pub key: Key<'a>,
}

/// To get an object by way of its home, which sends the bytes if it has them and else says who has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetMessage<'a> {
    /// The asker's epoch.
    pub epoch: Epoch,
    /// Who asks.
    pub asker: AskerId,
    /// What is answered if there are no bytes.
    pub request: RequestId,
    /// The home: one life of it only.
    pub to: Seat,
    /// What the key's namespace wants of nodes that are cut off.
    pub namespace: NamespaceKind,
    /// The key.
    pub key: Key<'a>,
}

/// To read a copy at its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMessage<'a> {
    /// The owner: one life of it only.
    pub to: Seat,
    /// The version that the home named.
    pub version: Version,
    /// What the key's namespace wants of nodes that are cut off.
    pub namespace: NamespaceKind,
    /// The key.
    pub key: Key<'a>,
}

/// To keep a replica of a copy that is recorded; its bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaMessage<'a> {
    /// Who is to keep it: one life of it only.
    pub to: Seat,
    /// What the copy is.
    pub info: CopyInfo,
    /// What the key's namespace wants of nodes that are cut off.
    pub namespace: NamespaceKind,
    /// The key.
    pub key: Key<'a>,
}

/// What goes with an object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesReply {
    /// The version that they are of.
    pub version: Version,
    /// The owner is cut off, in a cache namespace: the object may have been removed meanwhile.
    pub is_cut_off: bool,
}

fn put_key(key: Key<'_>, out: &mut Vec<u8>) {
    Writer::new(out).short_bytes(key.bytes());
}

fn take_key<'a>(reader: &mut Reader<'a>) -> Result<Key<'a>, MessageFault> {
    Ok(Key::new(reader.short_bytes()?)?)
}

/// The reader of a message of this version, and the key at its end.
fn whole<'a, T>(
    body: &'a [u8],
    take: impl FnOnce(&mut Reader<'a>) -> Result<T, MessageFault>,
) -> Result<T, MessageFault> {
    let mut reader = Reader::new(body);
    check_version(&mut reader)?;
    let message = take(&mut reader)?;
    end_of(&reader)?;
    Ok(message)
}

impl<'a> WriteMessage<'a> {
    /// What the owner is asked.
    #[must_use]
    pub fn ask(&self) -> WriteAsk {
        WriteAsk {
            key: self.key.fingerprint(),
            kind: self.kind,
            namespace: self.namespace,
            wanted: self.wanted,
            wait_ms: self.wait_ms,
        }
    }

    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(DIRECTORY_VERSION);
        self.asker.put(out);
        self.request.put(out);
        self.to.put(out);
        self.kind.put(out);
        self.namespace.put(out);
        out.push(self.wanted);
        self.wait_ms.put(out);
        put_key(self.key, out);
    }

    /// The message in `body`, whose key it borrows.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &'a [u8]) -> Result<Self, MessageFault> {
        whole(body, |reader| {
            Ok(Self {
                asker: Wire::take(reader)?,
                request: Wire::take(reader)?,
                to: Wire::take(reader)?,
                kind: Wire::take(reader)?,
                namespace: Wire::take(reader)?,
                wanted: reader.u8()?,
                wait_ms: Wire::take(reader)?,
                key: take_key(reader)?,
            })
        })
    }
}

impl<'a> GetMessage<'a> {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(DIRECTORY_VERSION);
        self.epoch.put(out);
        self.asker.put(out);
        self.request.put(out);
        self.to.put(out);
        self.namespace.put(out);
        put_key(self.key, out);
    }

    /// The message in `body`, whose key it borrows.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &'a [u8]) -> Result<Self, MessageFault> {
        whole(body, |reader| {
            Ok(Self {
                epoch: Wire::take(reader)?,
                asker: Wire::take(reader)?,
                request: Wire::take(reader)?,
                to: Wire::take(reader)?,
                namespace: Wire::take(reader)?,
                key: take_key(reader)?,
            })
        })
    }
}

impl<'a> ReadMessage<'a> {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(DIRECTORY_VERSION);
        self.to.put(out);
        self.version.put(out);
        self.namespace.put(out);
        put_key(self.key, out);
    }

    /// The message in `body`, whose key it borrows.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &'a [u8]) -> Result<Self, MessageFault> {
        whole(body, |reader| {
            Ok(Self {
                to: Wire::take(reader)?,
                version: Wire::take(reader)?,
                namespace: Wire::take(reader)?,
                key: take_key(reader)?,
            })
        })
    }
}

impl<'a> ReplicaMessage<'a> {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(DIRECTORY_VERSION);
        self.to.put(out);
        self.info.put(out);
        self.namespace.put(out);
        put_key(self.key, out);
    }

    /// The message in `body`, whose key it borrows.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &'a [u8]) -> Result<Self, MessageFault> {
        whole(body, |reader| {
            Ok(Self {
                to: Wire::take(reader)?,
                info: Wire::take(reader)?,
                namespace: Wire::take(reader)?,
                key: take_key(reader)?,
            })
        })
    }
}

impl BytesReply {
    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.version.put(out);
        self.is_cut_off.put(out);
    }

    /// The answer in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let mut reader = Reader::new(body);
        let reply = Self {
            version: Wire::take(&mut reader)?,
            is_cut_off: Wire::take(&mut reader)?,
        };
        end_of(&reader)?;
        Ok(reply)
    }
}

variants!(WriteAnswer {
    0 => Written { version, is_cut_off },
    1 => Exists { version },
    2 => Busy {},
    3 => Full {},
    4 => Unavailable {},
    5 => Aborted {},
    6 => Interrupted {},
});

impl WriteAnswer {
    /// Appends the body of the answer to a write to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.put(out);
    }

    /// The answer in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let mut reader = Reader::new(body);
        let answer = Self::take(&mut reader)?;
        end_of(&reader)?;
        Ok(answer)
    }
}
