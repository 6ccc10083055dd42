//! Everything above the seam against adapters that are stricter than any, and fail in every way.
#![forbid(unsafe_code)]

mod adapters;
mod events;
mod fabric;
mod lent;
mod limits;
mod lists;
mod posting_rules;
#[path = "../rig/mod.rs"]
mod rig;
mod timing;
mod worlds;
