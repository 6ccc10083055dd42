//! The SSD tier's append-only log.
#![forbid(unsafe_code)]

pub mod format;
pub mod record;
