//! Files as segments.
//!
//! Peers read and write a file as they do memory. Its owner's system moves the bytes between the file and
//! staging memory of the owner's arena, and they go over connections; a transfer within one engine goes
//! straight between the file and the memory of the batch. A write is done when the owner's system has it,
//! which makes it visible to every reader and not yet durable: [`FileSegment::sync`] does that.
//!
//! ```text
//!   peer <-- connection --> staging <-- read, write --> file      serving
//!   memory of a batch <--------- read, write ---------> file      own
//! ```
//!
//! What is on its way to a file lands whatever becomes of the connection that it came over, so a fence waits
//! for it, and so does `unregister_file`.
//!
//! | module | subject |
//! |---|---|
//! | `segment` | [`FileSegment`]: a range of a file, around the page cache where that goes |
//! | `serving` | what peers read and write |
//! | `own` | transfers between a file, a device or a namespace and memory of one engine |

mod own;
mod segment;
mod serving;

pub(super) use segment::FilePart;
pub use segment::{FileSegment, FileSegmentError, FileSegmentOptions};
pub(super) use serving::{FileWrite, Piece, read};
