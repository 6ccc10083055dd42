//! What a cache of blocks lets go next, and what a drive is spared.
//!
//! The default policy, [`Learned`], estimates how likely each block is used next by what it saw come back. It
//! serves a live owner of memory or of a drive, slot by slot, and the replays that judge it against the
//! optimum of Belady (1966) and other policies.
//!
//! It leaves out bytes, clocks, threads and randomness: time is the count of uses, blocks are slots
//! that the caller numbers, and their keys are hashes. Nothing depends on the order of a hash table, and
//! floating point is used in sums, products and quotients only, so that machines agree.
//!
//! | module | subject |
//! |---|---|
//! | `policy` | [`Policy`]: what a cache tells, and asks |
//! | [`class`] | what is known of a block when it is used |
//! | `age` | ages, and the buckets they are counted in |
//! | `hazard` | the chance of a next use, learnt |
//! | `tracks` | the blocks that are known, in lists |
//! | `learned` | [`Learned`]: the default policy |
//! | [`baseline`] | policies to compare with |
//! | [`optimum`] | what no policy can beat |
//! | [`replay`] | traces, and caches that serve them: one, or several shards |
//! | [`tiers`] | memory and a drive behind it |
#![forbid(unsafe_code)]

mod age;
pub mod baseline;
pub mod class;
mod hash;
mod hazard;
mod learned;
pub mod optimum;
mod policy;
pub mod replay;
pub mod tiers;
mod tracks;

pub use hash::MixBuild;
pub use learned::{
    GHOST_BYTES, GHOSTS_FEW, GHOSTS_MIN, GHOSTS_PER_BLOCK_MAX, GHOSTS_PER_SLOT, Learned,
    ghosts_beside,
};
pub use policy::Policy;
pub use tracks::TRACK_BYTES;
