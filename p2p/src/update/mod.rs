//! Weights that ranks take in buckets: an update needs staging memory for a few of them, and not for all.
//!
//! Who has the weights offers them ([`Store::offer`](crate::Store::offer)): each bucket is an object of its own over the
//! memory that they lie in. Each rank follows ([`Store::follow`](crate::Store::follow)): one bucket is fetched while the
//! one before is copied, and what was copied last is served on to other ranks. Ranks feed each other, and know nothing of
//! each other else: one that fails, or is slow, stops nobody.
//!
//! | module | subject |
//! |---|---|
//! | `offering` | [`Offer`] |
//! | `telling` | what is told of an update |
//! | `following` | [`Update`]: a rank's pipeline, driven |
//! | `fetching` | one bucket, from the catalogue to its slot |

mod fetching;
mod following;
mod offering;
mod telling;

use lunette_p2p_proto::layout::LayoutFault;
use lunette_p2p_proto::object::{NameFault, ShapeFault};
use lunette_p2p_proto::update::{ManifestFault, PackFault};
use thiserror::Error;

pub use self::fetching::Parts;
pub use self::following::{FollowOptions, LentBucket, Update};
pub use self::offering::{Offer, OfferOptions};
use crate::error::{CatalogueError, HoldError, HoldFault, Incomplete};

/// Why weights are not offered, or not taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum UpdateFault {
    /// The buffers make no object.
    #[error(transparent)]
    Shape(#[from] ShapeFault),
    /// The tensors do not lie in the buffers.
    #[error(transparent)]
    Layout(#[from] LayoutFault),
    /// The tensors make no buckets.
    #[error(transparent)]
    Pack(#[from] PackFault),
    /// The name is too long: those of buckets begin with it.
    #[error("the name is too long for an update: {0}")]
    Name(#[from] NameFault),
    /// What lies under the name is no update.
    #[error(transparent)]
    Manifest(#[from] ManifestFault),
    /// There are too few slots of staging memory, or too many, or one is too short.
    #[error(
        "{slots} slots, the shortest of {slot_bytes} bytes: 2 to 16 are needed, of {wanted_bytes}"
    )]
    Slots {
        /// How many there are.
        slots: usize,
        /// How long the shortest is.
        slot_bytes: u64,
        /// How long each is to be.
        wanted_bytes: u64,
    },
    /// A bucket, or the update itself, is not held.
    #[error(transparent)]
    Hold(#[from] HoldFault),
    /// The catalogue was not read.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// It did not come in time.
    #[error(transparent)]
    Incomplete(#[from] Incomplete),
    /// It was stopped.
    #[error("the update was stopped")]
    Stopped,
}

impl UpdateFault {
    /// Whether trying again later may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Hold(fault) => fault.is_retryable(),
            Self::Catalogue(error) => error.is_retryable(),
            Self::Incomplete(_) => true,
            Self::Shape(_)
            | Self::Layout(_)
            | Self::Pack(_)
            | Self::Name(_)
            | Self::Manifest(_)
            | Self::Slots { .. }
            | Self::Stopped => false,
        }
    }
}

impl From<HoldError> for UpdateFault {
    fn from(error: HoldError) -> Self {
        Self::Hold(error.fault)
    }
}
