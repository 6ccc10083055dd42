//! The lunette program and the facade crate.
#![forbid(unsafe_code)]

pub mod trace;
