//! Everything against real libibverbs and the kernel's devices in software, on two ports linked to
//! each other: `cargo xtask test --lane vm` runs this in a machine that has them.
#![forbid(unsafe_code)]

mod iwarp;
mod managed;
#[path = "../rig/mod.rs"]
mod rig;
mod roce;
