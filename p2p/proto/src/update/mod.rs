//! Weights that ranks take in buckets: a few at a time, so that an update needs memory for those and not for all.
//!
//! Whoever has the weights packs its tensors into buckets ([`pack`]), each an object of its own, and tells of them in a
//! [`Manifest`]. Each rank takes all of them, or its parts of them, in their order through a [`Pipeline`]: one bucket is
//! fetched while the one before is copied to where it belongs, and those that were copied last are served on.
//!
//! | module | subject |
//! |---|---|
//! | `packing` | [`pack`]: which tensors are in which bucket |
//! | `manifest` | [`Manifest`]: which buckets there are, as they are told of |
//! | `pipeline` | [`Pipeline`]: one rank's way through them |

mod manifest;
mod packing;
mod pipeline;

pub use self::manifest::{BucketRecord, Manifest, ManifestFault};
pub use self::packing::{BUCKETS_MAX, Bucket, PackFault, Run, pack, staged};
pub use self::pipeline::{
    Action, Outcome, Pipeline, PipelineOptions, SLOTS_MAX, SLOTS_MIN, TRIES_MAX_DEFAULT,
};
