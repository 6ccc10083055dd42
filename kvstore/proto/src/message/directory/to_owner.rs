//! What a home tells an owner.

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_runtime_core::ids::{NodeId, RequestId};

use super::ask::{AskerId, HoldWish};
use super::page::CopyPlace;
use super::to_home::OpId;
use super::wire::{Decoder, Encoder, Wire, put_all, take_all, variants};
use crate::key::Fingerprint;
use crate::message::MessageFault;
use crate::version::{Generation, Version};

/// Most nodes that may have a copy of one key.
pub const HOLDERS_MAX: usize = 32;

/// Why a claim was not granted. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// What was before in line, or the map, took too long. Try again.
    Busy,
    /// A table of the home is full. Try again later.
    Full,
    /// The home is cut off. Try again when it is back, or another is the home.
    Fenced,
}

/// A message from a home to an owner. Many travel in one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToOwner {
    /// The key is the claimant's to write, for as long as the epoch and the claim's time last.
    Granted {
        /// The write.
        op: OpId,
        /// The key.
        key: Fingerprint,
        /// The version that the copy is to carry.
        version: Version,
        /// The generation that the copy is to carry.
        generation: Generation,
    },
    /// A put found the key taken, by this version, and has succeeded.
    Exists {
        /// The write.
        op: OpId,
        /// The key.
        key: Fingerprint,
        /// What is there.
        version: Version,
    },
    /// The claim was not granted.
    Refused {
        /// The write.
        op: OpId,
        /// The key.
        key: Fingerprint,
        /// Why.
        refusal: Refusal,
    },
    /// The copy is recorded: its write has succeeded.
    Recorded {
        /// The write, or the arrival of a replica.
        op: OpId,
        /// The key.
        key: Fingerprint,
        /// The version.
        version: Version,
        /// The home was cut off, in a cache namespace: others may not learn of the copy before it is
        /// back, and may then know better.
        is_cut_off: bool,
        /// The last order that this home had given then: a drop of this order or an earlier one is of a
        /// copy that was here before.
        order: u64,
    },
    /// The copy is recorded, and its write has not succeeded yet: what it replaces has to leave first, and may be gone already. From
    /// now on it is a copy like others, whatever becomes of its writer.
    Replacing {
        /// The write.
        op: OpId,
        /// The key.
        key: Fingerprint,
        /// The version.
        version: Version,
    },
    /// The copy is not recorded, and will not be: its claim is over.
    Lost {
        /// The write, or the arrival of a replica.
        op: OpId,
        /// The key.
        key: Fingerprint,
        /// The version.
        version: Version,
    },
    /// Drop this copy and say so.
    Drop {
        /// The key.
        key: Fingerprint,
        /// The version.
        version: Version,
        /// The order, for the answer.
        order: u64,
        /// It was recorded: a write that waits to hear so has succeeded, whatever came after it.
        was_recorded: bool,
    },
    /// Everything that was reported has been judged, and what lost was dropped.
    Settled,
    /// Report what you hold of this shard.
    CopiesWanted {
        /// Everything, or what this home was not the home of one epoch before.
        is_full: bool,
        /// After which place.
        after: Option<CopyPlace>,
    },
    /// Answer this lookup, and hold the object.
    Serve {
        /// Who asked.
        asker: AskerId,
        /// Its request.
        request: RequestId,
        /// The key.
        key: Fingerprint,
        /// The version.
        version: Version,
        /// What the key's namespace wants of nodes that are cut off.
        namespace: NamespaceKind,
        /// The hold.
        hold: HoldWish,
    },
    /// Copies are missing: make them on nodes that have none.
    Replicate {
        /// The key.
        key: Fingerprint,
        /// The version.
        version: Version,
        /// How many.
        missing: u8,
        /// The nodes that have one: at most [`HOLDERS_MAX`].
        holders: Vec<NodeId>,
    },
    /// A key that this owner let go of has been written at another one, and so was used.
    CameBack {
        /// The key.
        key: Fingerprint,
    },
    /// A key that was recorded for this owner had left another one.
    WasUsed {
        /// The key.
        key: Fingerprint,
        /// How often it was used there after the first time.
        reuses: u8,
    },
}

impl ToOwner {
    /// The key that it is about, if it is about one.
    #[must_use]
    pub const fn key(&self) -> Option<Fingerprint> {
        match self {
            Self::Granted { key, .. }
            | Self::Exists { key, .. }
            | Self::Refused { key, .. }
            | Self::Recorded { key, .. }
            | Self::Replacing { key, .. }
            | Self::Lost { key, .. }
            | Self::Drop { key, .. }
            | Self::Serve { key, .. }
            | Self::Replicate { key, .. }
            | Self::CameBack { key }
            | Self::WasUsed { key, .. } => Some(*key),
            Self::Settled | Self::CopiesWanted { .. } => None,
        }
    }
}

impl Wire for Vec<NodeId> {
    fn put(&self, out: &mut Encoder<'_>) {
        put_all(self, HOLDERS_MAX, out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        take_all(reader, HOLDERS_MAX)
    }
}

variants!(Refusal { 0 => Busy {}, 1 => Full {}, 2 => Fenced {} });
variants!(ToOwner {
    0 => Granted { op, key, version, generation },
    1 => Exists { op, key, version },
    2 => Refused { op, key, refusal },
    3 => Recorded { op, key, version, is_cut_off, order },
    4 => Lost { op, key, version },
    5 => Drop { key, version, order, was_recorded },
    6 => Settled {},
    7 => CopiesWanted { is_full, after },
    8 => Serve { asker, request, key, version, namespace, hold },
    9 => Replicate { key, version, missing, holders },
    10 => CameBack { key },
    11 => WasUsed { key, reuses },
    12 => Replacing { op, key, version },
});
