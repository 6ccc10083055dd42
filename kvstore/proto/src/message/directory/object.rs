//! Requests that an object's bytes go with, or come back with. They carry the key itself, which an
//! owner compares with the one that the bytes are under: fingerprints can collide.
//!
//! ```text
//!  write:    version u8 | asker u64 | request u64 | over u64 | to seat | kind | form |
//!            namespace | wanted u8 | wait u32 | retention | key
//!  get:      version u8 | epoch u64 | asker u64 | request u64 | to seat | namespace | ranges | key
//!  read:     version u8 | to seat | version | namespace | ranges | key
//!  replica:  version u8 | to seat | copy | namespace | repair | pin | key
//! ```
//!
//! A key is its bytes behind their 16-bit length, ranges are pairs of `offset u64 | length u32` behind
//! their 16-bit number; none means all of the object. Length and CRC32C of the bytes are in the frame.

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::codec::Writer;
use lunette_runtime_core::ids::RequestId;

use super::AskerId;
use super::wire::{Decoder, Encoder, Wire, body, fields, keyed, put_all, take_all, variants};
use crate::key::Key;
use crate::message::MessageFault;
use crate::owner::{WriteAnswer, WriteAsk};
use crate::placement::Seat;
use crate::range::{ByteRange, RANGES_MAX};
use crate::retention::{GroupKind, Pin, Retention};
use crate::striped::{MANIFEST_BYTES, Manifest};
use crate::version::{CopyInfo, Form, Version, WriteKind};

/// To write an object at an owner; its bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteMessage<'a> {
    /// Who writes.
    pub asker: AskerId,
    /// The write, which is done once however often it is asked for.
    pub request: RequestId,
    /// All of the asker's requests below this one are over.
    pub over_below: RequestId,
    /// The owner: one life of it only.
    pub to: Seat,
    /// What becomes of what is there.
    pub kind: WriteKind,
    /// What its bytes are.
    pub form: Form,
    /// What the key's namespace wants of nodes that are cut off.
    pub namespace: NamespaceKind,
    /// How many copies there are to be.
    pub wanted: u8,
    /// How long the writer waits, in milliseconds.
    pub wait_ms: u32,
    /// How it is to be kept in memory.
    pub retention: Retention,
    /// What the next version adds.
    #[cfg(feature = "next-version")]
    pub next: crate::message::Next,
    /// The key.
    pub key: Key<'a>,
}

/// To get an object by way of its home, which sends the bytes if it has them and else says who has.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Which of its bytes, one range after the other; none for all.
    pub ranges: Vec<ByteRange>,
    /// The key.
    pub key: Key<'a>,
}

/// To read a copy at its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadMessage<'a> {
    /// The owner: one life of it only.
    pub to: Seat,
    /// The version that the home named.
    pub version: Version,
    /// What the key's namespace wants of nodes that are cut off.
    pub namespace: NamespaceKind,
    /// Which of its bytes, one range after the other; none for all.
    pub ranges: Vec<ByteRange>,
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
    /// It is made in place of one that was lost, and not behind its write.
    pub is_repair: bool,
    /// How the copy that it is made of is pinned from now on.
    pub pin: Pin,
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
    /// Length of the whole object in bytes.
    pub object_len_bytes: u32,
    /// What the next version adds.
    #[cfg(feature = "next-version")]
    pub next: crate::message::Next,
}

/// What is told of an object in parts instead of its bytes, with [`Status::Striped`](crate::message::Status).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripedReply {
    /// The version of the manifest.
    pub version: Version,
    /// The owner is cut off, in a cache namespace: the object may have been removed meanwhile.
    pub is_cut_off: bool,
    /// The manifest.
    pub manifest: Manifest,
}

keyed!(WriteMessage {
    asker,
    request,
    over_below,
    to,
    kind,
    form,
    namespace,
    wanted,
    wait_ms,
    retention;
    #[cfg(feature = "next-version")]
    2 => next
});
keyed!(GetMessage {
    epoch,
    asker,
    request,
    to,
    namespace,
    ranges
});
keyed!(ReadMessage {
    to,
    version,
    namespace,
    ranges
});
keyed!(ReplicaMessage {
    to,
    info,
    namespace,
    is_repair,
    pin
});

impl<'a> WriteMessage<'a> {
    /// To put a whole object of a cache, of which one copy is enough, without waiting for room. Fields that
    /// differ are named before it.
    #[must_use]
    pub fn new(
        (asker, request): (AskerId, RequestId),
        over_below: RequestId,
        to: Seat,
        key: Key<'a>,
    ) -> Self {
        Self {
            asker,
            request,
            over_below,
            to,
            kind: WriteKind::Put,
            form: Form::Whole,
            namespace: NamespaceKind::Cache,
            wanted: 1,
            wait_ms: 0,
            retention: Retention::default(),
            #[cfg(feature = "next-version")]
            next: crate::message::Next,
            key,
        }
    }

    /// What the owner is asked.
    #[must_use]
    pub fn ask(&self) -> WriteAsk {
        WriteAsk {
            key: self.key.fingerprint(),
            kind: self.kind,
            form: self.form,
            namespace: self.namespace,
            wanted: self.wanted,
            wait_ms: self.wait_ms,
            retention: self.retention,
        }
    }
}

fields!(Retention {
    is_last,
    pin,
    group,
    behind
});
variants!(GroupKind {
    0 => Fellows {},
    1 => Behind {},
});
variants!(Pin {
    0 => None {},
    1 => Soft { ttl_ms },
    2 => Hard {},
});

fields!(ByteRange {
    offset_bytes,
    len_bytes
});

impl Wire for Vec<ByteRange> {
    fn put(&self, out: &mut Encoder<'_>) {
        put_all(self, RANGES_MAX, out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        take_all(reader, RANGES_MAX)
    }
}

impl BytesReply {
    /// Of an object of so many bytes in all.
    #[must_use]
    pub const fn new(version: Version, is_cut_off: bool, object_len_bytes: u32) -> Self {
        Self {
            version,
            is_cut_off,
            object_len_bytes,
            #[cfg(feature = "next-version")]
            next: crate::message::Next,
        }
    }
}

fields!(BytesReply {
    version,
    is_cut_off,
    object_len_bytes;
    #[cfg(feature = "next-version")]
    2 => next
});
body!(BytesReply);

fields!(StripedReply {
    version,
    is_cut_off,
    manifest
});
body!(StripedReply);

impl Wire for Manifest {
    fn put(&self, out: &mut Encoder<'_>) {
        Writer::new(out).bytes(&self.encode());
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(Self::decode(reader.bytes(MANIFEST_BYTES)?)?)
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
body!(WriteAnswer);
