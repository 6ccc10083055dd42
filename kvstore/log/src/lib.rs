//! The SSD tier's append-only log.
#![forbid(unsafe_code)]

pub mod effect;
pub mod format;
mod index;
pub mod log;
pub mod options;
pub mod record;
pub mod recovery;
mod segments;

pub use index::INDEX_ENTRY_BYTES;
