//! Our host against the kernel's target, and the kernel's host against our server: `cargo xtask
//! test --lane vm` runs this in a machine that has both.
//!
//! | module | subject |
//! |---|---|
//! | `target` | our host, the kernel's target |
//! | `host` | the kernel's host, our server |
//! | `rig` | bringing either of the kernel's ends up |
#![forbid(unsafe_code)]

mod host;
mod rig;
mod target;
