//! Everything above the seam against devices that are stricter than any, and fail in every way.
#![forbid(unsafe_code)]

mod crowd;
mod faults;
mod foreign;
mod processes;
#[path = "../rig/mod.rs"]
mod rig;
mod sleep;
mod staging;
mod whatever;
mod worlds;
