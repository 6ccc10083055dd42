//! What homes tell each other: tombstones.

use lunette_cluster_proto::map::Epoch;

use super::losses::{Losses, Recalled};
use super::wire::{Decoder, Encoder, Wire, put_all, take_all, unknown};
use crate::key::Fingerprint;
use crate::message::MessageFault;
use crate::version::{Tombstone, Version};

/// Most tombstones of one page.
pub const PAGE_TOMBSTONES_MAX: usize = 1024;

/// The tombstones of one home that another one is to have, after a key, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TombstonePage {
    /// The wish that it answers.
    pub after: Option<Fingerprint>,
    /// Up to which epoch it may have forgotten tombstones.
    pub horizon: Epoch,
    /// Whether it has been complete before, and in each map since: it knows of earlier epochs what there is to know.
    pub is_informed: bool,
    /// Whether it knows that nobody serves any more who has left the map.
    pub is_quiet: bool,
    /// The tombstones: at most [`PAGE_TOMBSTONES_MAX`].
    pub tombstones: Vec<(Fingerprint, Tombstone)>,
    /// Where to go on; `None` if nothing comes after.
    pub next: Option<Fingerprint>,
    /// Whose knowledge it lacks, if it is informed.
    pub losses: Losses,
    /// What its former life knew, if it has been told.
    pub recalled: Option<Recalled>,
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
    /// Say when you are complete.
    CompleteWanted,
    /// The sender is.
    Complete,
    /// The sender has left in order: it serves nothing any more, and begins nothing. Of any epoch.
    Left,
}

impl Wire for TombstonePage {
    fn put(&self, out: &mut Encoder<'_>) {
        self.after.put(out);
        self.horizon.put(out);
        self.is_informed.put(out);
        self.is_quiet.put(out);
        put_all(&self.tombstones, PAGE_TOMBSTONES_MAX, out);
        self.next.put(out);
        self.losses.put(out);
        self.recalled.put(out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(Self {
            after: Wire::take(reader)?,
            horizon: Wire::take(reader)?,
            is_informed: Wire::take(reader)?,
            is_quiet: Wire::take(reader)?,
            tombstones: take_all(reader, PAGE_TOMBSTONES_MAX)?,
            next: Wire::take(reader)?,
            losses: Wire::take(reader)?,
            recalled: Wire::take(reader)?,
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
            Self::CompleteWanted => out.push(4),
            Self::Complete => out.push(5),
            Self::Left => out.push(6),
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
            4 => Self::CompleteWanted,
            5 => Self::Complete,
            6 => Self::Left,
            code => return unknown("message to a home", code),
        })
    }
}
