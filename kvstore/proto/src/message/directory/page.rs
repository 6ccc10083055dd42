//! A piece of what an owner reports to a home.

use lunette_cluster_proto::map::Epoch;

use super::wire::{Decoder, Encoder, Wire, put_all, take_all};
use crate::key::Fingerprint;
use crate::message::MessageFault;
use crate::version::{CopyInfo, Version};

/// Most copies of one page.
pub const PAGE_COPIES_MAX: usize = 512;

/// Names one copy of an owner, and a place in the order of its report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyPlace {
    /// The key.
    pub key: Fingerprint,
    /// The version.
    pub version: Version,
}

/// When an owner was no member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away {
    /// The last epoch of which it was one before.
    pub since: Epoch,
    /// The first of which it knows to have been one in each since.
    pub back: Epoch,
}

impl Away {
    /// Whether it may have missed that such a copy of it was removed: not of what was written when it was back.
    #[must_use]
    pub fn may_have_missed(&self, version: Version) -> bool {
        version.epoch < self.back
    }
}

impl Wire for Away {
    fn put(&self, out: &mut Encoder<'_>) {
        self.since.put(out);
        self.back.put(out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(Self {
            since: Wire::take(reader)?,
            back: Wire::take(reader)?,
        })
    }
}

/// The copies of one owner that come after a place, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyPage {
    /// The wish that it answers: after which place. A page that was not wished for is ignored, or
    /// one that was overtaken would bring back what has been dropped since.
    pub after: Option<CopyPlace>,
    /// Whether the report names everything that the owner holds of the shard. What the home knew of
    /// it before is void then.
    pub is_full: bool,
    /// If the owner was no member in between: its copies may have been removed meanwhile.
    pub away: Option<Away>,
    /// The copies: at most [`PAGE_COPIES_MAX`].
    pub copies: Vec<(Fingerprint, CopyInfo)>,
    /// "Complete for e": nothing comes after these.
    pub is_last: bool,
}

impl Wire for CopyPage {
    fn put(&self, out: &mut Encoder<'_>) {
        self.after.put(out);
        self.is_full.put(out);
        self.away.put(out);
        put_all(&self.copies, PAGE_COPIES_MAX, out);
        self.is_last.put(out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(Self {
            after: Wire::take(reader)?,
            is_full: Wire::take(reader)?,
            away: Wire::take(reader)?,
            copies: take_all(reader, PAGE_COPIES_MAX)?,
            is_last: Wire::take(reader)?,
        })
    }
}
