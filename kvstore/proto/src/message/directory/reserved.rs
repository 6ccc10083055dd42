//! Objects whose bytes come in ranges: room is reserved, filled, and then committed as one write, or
//! given back.
//!
//! ```text
//!  reserve:  version u8 | asker u64 | reservation u64 | to seat | kind | namespace | wanted u8 | len u32 | keep u32 | retention | key
//!  fill:     version u8 | asker u64 | reservation u64 | to seat | offset u32 | key
//!  commit:   version u8 | asker u64 | reservation u64 | to seat | request u64 | over u64 | wait u32 | hold u32 | key
//!  revoke:   version u8 | asker u64 | reservation u64 | to seat | key
//! ```
//!
//! A reservation claims nothing: until it is committed, others may write the key, and a put that finds it
//! taken then has succeeded as any put does. It is room at one core and no more, so a writer that is
//! gone keeps nobody waiting; its room is given back when nothing has come for as long as it asked for.
//! Each of these may be sent twice.

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_runtime_core::ids::RequestId;

use super::AskerId;
use super::wire::{body, keyed, variants};
use crate::key::Key;
use crate::placement::Seat;
use crate::retention::Retention;
use crate::version::{Version, WriteKind};

/// Longest that a reservation is kept while nothing comes for it, in milliseconds.
pub const KEEP_MS_MAX: u32 = 600_000;

/// A reservation of one asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(pub u64);

/// To reserve room for an object at an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveMessage<'a> {
    /// Who writes.
    pub asker: AskerId,
    /// What it will call it.
    pub reservation: ReservationId,
    /// The owner: one life of it only.
    pub to: Seat,
    /// What will become of what is there.
    pub kind: WriteKind,
    /// What the key's namespace wants of nodes that are cut off.
    pub namespace: NamespaceKind,
    /// How many copies there are to be.
    pub wanted: u8,
    /// Length of the object in bytes.
    pub len_bytes: u32,
    /// How long to keep the room while nothing comes, in milliseconds; at most [`KEEP_MS_MAX`] count.
    pub keep_ms: u32,
    /// How it is to be kept in memory.
    pub retention: Retention,
    /// The key.
    pub key: Key<'a>,
}

/// To write a range of a reserved object; its bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillMessage<'a> {
    /// Who writes.
    pub asker: AskerId,
    /// The reservation.
    pub reservation: ReservationId,
    /// The owner: one life of it only.
    pub to: Seat,
    /// Where the range begins in the object, in bytes.
    pub offset_bytes: u32,
    /// The key.
    pub key: Key<'a>,
}

/// To make a reserved object, all of whose bytes are there, the key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitMessage<'a> {
    /// Who writes.
    pub asker: AskerId,
    /// The reservation.
    pub reservation: ReservationId,
    /// The owner: one life of it only.
    pub to: Seat,
    /// The write, which is done once however often it is asked for.
    pub request: RequestId,
    /// All of the asker's requests below this one are over.
    pub over_below: RequestId,
    /// How long the writer waits, in milliseconds.
    pub wait_ms: u32,
    /// How long the object is held for the asker from then on, as if it were [looked up](super::HoldWish), in milliseconds; 0: not at all.
    pub hold_ms: u32,
    /// The key.
    pub key: Key<'a>,
}

/// To give the room of a reservation back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevokeMessage<'a> {
    /// Who writes.
    pub asker: AskerId,
    /// The reservation.
    pub reservation: ReservationId,
    /// The owner: one life of it only.
    pub to: Seat,
    /// The key.
    pub key: Key<'a>,
}

/// What came of a wish to reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveReply {
    /// There is room.
    Reserved,
    /// A put would find the key taken: nothing is reserved.
    Exists {
        /// What is there.
        version: Version,
    },
}

keyed!(ReserveMessage {
    asker,
    reservation,
    to,
    kind,
    namespace,
    wanted,
    len_bytes,
    keep_ms,
    retention
});
keyed!(FillMessage {
    asker,
    reservation,
    to,
    offset_bytes
});
keyed!(CommitMessage {
    asker,
    reservation,
    to,
    request,
    over_below,
    wait_ms,
    hold_ms
});
keyed!(RevokeMessage {
    asker,
    reservation,
    to
});

variants!(ReserveReply {
    0 => Reserved {},
    1 => Exists { version },
});
body!(ReserveReply);
