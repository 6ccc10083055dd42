//! What an owner tells a home.

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_runtime_core::ids::RequestId;

use super::ask::{AskerId, HoldWish};
use super::wire::variants;
use crate::key::Fingerprint;
use crate::version::{CopyInfo, Version, WriteKind};

/// A write of one owner, by a number that it never uses again in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// A message from an owner to a home. Many travel in one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToHome {
    /// A write is to begin.
    Claim {
        /// The write.
        op: OpId,
        /// The key.
        key: Fingerprint,
        /// What it does where the key is taken.
        kind: WriteKind,
        /// What the key's namespace wants of nodes that are cut off.
        namespace: NamespaceKind,
        /// How long the writer waits, in milliseconds.
        wait_ms: u32,
    },
    /// The write of a claim was given up.
    Abandon {
        /// The write.
        op: OpId,
        /// The key.
        key: Fingerprint,
    },
    /// The copy is whole.
    Publish {
        /// The write, or the arrival of a replica.
        op: OpId,
        /// The key.
        key: Fingerprint,
        /// What the copy is.
        info: CopyInfo,
        /// What the key's namespace wants of nodes that are cut off.
        namespace: NamespaceKind,
    },
    /// The owner wants to give a copy up, and keeps it until it is ordered to.
    Retract {
        /// The key.
        key: Fingerprint,
        /// The version.
        version: Version,
        /// How often it was used after the first time, as far as is known: for who has the key next.
        reuses: u8,
    },
    /// What was ordered is done: there is no such copy any more.
    Dropped {
        /// The key.
        key: Fingerprint,
        /// The version.
        version: Version,
        /// The order. A copy may come back after it was dropped; what was said of the one before
        /// means nothing then.
        order: u64,
    },
    /// The owner knows that this replica is recorded, and keeps it.
    Kept {
        /// Its arrival.
        op: OpId,
        /// The key.
        key: Fingerprint,
        /// The version.
        version: Version,
    },
    /// A forwarded lookup met no such copy. The home tells the asker something else.
    Gone {
        /// Who asked.
        asker: AskerId,
        /// Its request.
        request: RequestId,
        /// The key.
        key: Fingerprint,
        /// The version that the home thought was there.
        version: Version,
        /// What the key's namespace wants of nodes that are cut off.
        namespace: NamespaceKind,
        /// The hold that was wished for.
        hold: HoldWish,
    },
    /// The owner was away: it asks whether everything that it reported has been judged.
    Settle,
}

variants!(ToHome {
    0 => Claim { op, key, kind, namespace, wait_ms },
    1 => Abandon { op, key },
    2 => Publish { op, key, info, namespace },
    3 => Retract { key, version, reuses },
    4 => Dropped { key, version, order },
    5 => Gone { asker, request, key, version, namespace, hold },
    6 => Settle {},
    7 => Kept { op, key, version },
});
