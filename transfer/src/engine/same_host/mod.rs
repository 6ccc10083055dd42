//! Peers on the same host: memory that is mapped, not sent.
//!
//! A read of a segment that the peer hands out is a copy from a mapping of it, by who asks, between two
//! looks at the peer's board. A write from memory that is registered here is a command to the peer, which
//! copies from a mapping of that. What cannot go this way, because memory is not a whole mapping or not
//! registered, goes through the session's window: one side copies in, the other out. What is reached by
//! capability goes over the rails, and so does everything when the peer's channel ends.
//!
//! ```text
//!   Link (asker)                                   Owner
//!     views of the peer's segments  <-- memory --    accepts channels, checks tickets
//!     Commanding: the Lane's pieces -- commands -->  Seat: carries commands out, one per channel
//!                                   <-- window -->
//! ```
//!
//! | module | subject |
//! |---|---|
//! | `board` | which segments may be read |
//! | `owner` | who is let in, what is handed out |
//! | `seat` | the owner's end of one channel: commands |
//! | `link` | the asker's end: what it maps and lends |
//! | `handles` | memory of the peer's devices, opened by the asker |
//! | `trust` | reading the other process, where both sides let each other |
//! | `commanding` | the asker's commands, and its side of the window |

mod board;
mod commanding;
mod handles;
mod link;
mod owner;
mod seat;
mod trust;

use std::io;
use std::os::fd::OwnedFd;

use lunette_runtime::entropy;
use lunette_runtime::net::Packet as Received;
use lunette_transfer_proto::engine::same_host::packet::Packet;

pub(super) use board::Board;
pub(super) use commanding::Under;
pub(super) use handles::Used;
pub(super) use link::{Link, ReadFault};
pub(super) use owner::{Owner, accept};

/// A number that nobody can guess.
fn draw() -> u128 {
    u128::from(entropy()) << 64 | u128::from(entropy())
}

/// A packet that makes sense and came with the files that belong to it.
fn understand(received: Received) -> Option<(Packet, Vec<OwnedFd>)> {
    let packet = Packet::decode(&received.bytes).ok()?;
    (packet.files() == received.descriptors.len()).then_some((packet, received.descriptors))
}

/// What a peer does that keeps no rules.
fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}
