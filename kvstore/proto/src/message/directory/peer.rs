//! What homes tell each other: tombstones.

use lunette_cluster_proto::map::Epoch;

use super::wire::{Decoder, Encoder, Wire, put_all, take_all, unknown};
use crate::key::Fingerprint;
use crate::message::MessageFault;
use crate::version::{Tombstone, Version};

/// Most tombstones of one page.
pub const PAGE_TOMBSTONES_MAX: usize = 1024;

/// The tombstones of one home that another one is to have, after a key, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TombstonePage {
    /// The wish that it answers.
    pub after: Option<Fingerprint>,
    /// Up to which epoch tombstones may have been forgotten; `None` if the home knows nothing of
    /// earlier epochs, because it has just begun.
    pub horizon: Option<Epoch>,
    /// The tombstones: at most [`PAGE_TOMBSTONES_MAX`].
    pub tombstones: Vec<(Fingerprint, Tombstone)>,
    /// Where to go on; `None` if nothing comes after.
    pub next: Option<Fingerprint>,
    /// What its former life knew, if it has just begun and that one left in order.
    pub recalled: Option<Recalled>,
}

/// How much of what was removed a home knew that has left in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recalled {
    /// The last map under which it knew all; it has done nothing since.
    pub epoch: Epoch,
    /// How many members were homes then.
    pub homes: u32,
    /// How many cores its node had then. Each knew its own part.
    pub cores: u16,
    /// Up to which epoch tombstones may have been forgotten.
    pub horizon: Epoch,
}

/// A message from home to home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToPeer {
    /// Keep this tombstone: you would be the home if the sender were gone.
    Bury {
        /// The key.
        key: Fingerprint,
        /// The tombstone.
        tombstone: Tombstone,
    },
    /// It is kept.
    Buried {
        /// The key.
        key: Fingerprint,
        /// The tombstone's version.
        version: Version,
    },
    /// Report the tombstones that concern the sender.
    TombstonesWanted {
        /// After which key.
        after: Option<Fingerprint>,
    },
    /// A part of that report.
    Tombstones(TombstonePage),
}

impl Wire for TombstonePage {
    fn put(&self, out: &mut Encoder<'_>) {
        self.after.put(out);
        self.horizon.put(out);
        put_all(&self.tombstones, PAGE_TOMBSTONES_MAX, out);
        self.next.put(out);
        self.recalled.put(out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(Self {
            after: Wire::take(reader)?,
            horizon: Wire::take(reader)?,
            tombstones: take_all(reader, PAGE_TOMBSTONES_MAX)?,
            next: Wire::take(reader)?,
            recalled: Wire::take(reader)?,
        })
    }
}

impl Wire for Recalled {
    fn put(&self, out: &mut Encoder<'_>) {
        self.epoch.put(out);
        self.homes.put(out);
        self.cores.put(out);
        self.horizon.put(out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(Self {
            epoch: Wire::take(reader)?,
            homes: Wire::take(reader)?,
            cores: Wire::take(reader)?,
            horizon: Wire::take(reader)?,
        })
    }
}

impl Wire for ToPeer {
    fn put(&self, out: &mut Encoder<'_>) {
        match self {
            Self::Bury { key, tombstone } => {
                out.push(0);
                key.put(out);
                tombstone.put(out);
            }
            Self::Buried { key, version } => {
                out.push(1);
                key.put(out);
                version.put(out);
            }
            Self::TombstonesWanted { after } => {
                out.push(2);
                after.put(out);
            }
            Self::Tombstones(page) => {
                out.push(3);
                page.put(out);
            }
        }
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(match reader.u8()? {
            0 => Self::Bury {
                key: Wire::take(reader)?,
                tombstone: Wire::take(reader)?,
            },
            1 => Self::Buried {
                key: Wire::take(reader)?,
                version: Wire::take(reader)?,
            },
            2 => Self::TombstonesWanted {
                after: Wire::take(reader)?,
            },
            3 => Self::Tombstones(Wire::take(reader)?),
            code => return unknown("message to a home", code),
        })
    }
}
