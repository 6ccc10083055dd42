//! The SSD tier's append-only log: what is on a drive, the machine that writes it, and recovery, sans-IO.
//!
//! One [`log::Log`] is one drive, or one preallocated file: a failure domain of its own. It is given records by its
//! owner, which are in memory that the owner names, packs them into batches, and tells when they are durable; it
//! says where a record is to be read, and makes room by reclaiming segments. [`recovery::Recovery`] makes a log of
//! what a drive has. Both ask for reads and writes and are told how these ended; everything is deterministic.
//!
//! It leaves out files and drives, memory, clocks and threads, which belong to its driver; and which objects are
//! worth a write or a place, which is for the owner to say.
//!
//! | module | subject |
//! |---|---|
//! | [`format`](mod@format) | what is on the drive, byte by byte (`FORMAT.md` draws it) |
//! | [`record`] | what the log knows of an object |
//! | [`options`] | how a log works, and its limits |
//! | [`effect`] | what it asks of the drive, tells its owner, and refuses |
//! | [`log`] | the machine of one drive: appends, removals, reads, reclaim |
//! | [`recovery`] | a drive that has a log, or has not |
//! | [`claim`] | how one of several who could write to a drive comes to be the only one who does |
//! | `index` | where each record is |
//! | `segments` | what state each segment is in, and what is alive in it |
#![forbid(unsafe_code)]

pub mod claim;
pub mod effect;
pub mod format;
mod index;
pub mod log;
pub mod options;
pub mod record;
pub mod recovery;
mod segments;

pub use index::INDEX_ENTRY_BYTES;
