//! Two engines on one host: they map each other's registered memory for reading, and copy.
//!
//! ```text
//!   asking engine                                     owning engine
//!      | Introduce(boot id, proof)  -- TCP, authenticated --> |
//!      | <-- name and ticket                                  |
//!      |                                                      |
//!      | Join(ticket)          -- local channel of that name --> |
//!      | <-- Welcome(proof) + the board, the commands            |
//!      | Map(segment) -->             <-- Mapped + its memory    |   read: the asker copies, between two
//!      | Lend(segment) + its memory -->             <-- Lent     |         looks at the board
//!      | command: copy from my segment to yours -->              |   write: the owner copies
//!      | Window + its memory -->                <-- Accepted     |
//!      | command: copy from the window to your segment, or       |   what is no mapping, here or there:
//!      |          from your segment to the window -->            |   the owner copies, and so does the asker
//! ```
//!
//! Memory of devices is opened by handles of their driver, by sides that trust each other, and copied by the asker, both
//! ways:
//!
//! ```text
//!      | Map(segment) -->             <-- Handle(access, handle) |
//!      |                              <-- (hidden on the board)  |   unregistered: the owner waits
//!      | Closed(segment) -->                                     |
//! ```
//!
//! That two engines share a host is decided by the boot id, and proved: the ticket goes over the
//! authenticated connection, and who presents it, and who answers with the proof, is who was on it. No
//! address says anything.
//!
//! Nobody writes another's memory, but for the window, which is the session's and holds nothing else, and what was
//! handed out by handle, whose owner waits until it is closed. The
//! board is the owner's: a word per segment, its generation while it
//! may be read and 0 from the moment on in which it is unregistered, so a reader that finds the same word
//! before and after its copy has copied what was registered.
//!
//! | module | subject |
//! |---|---|
//! | [`packet`] | what is said over the local channel |
//! | [`commands`] | the words in which copies are commanded and answered |
//! | [`lane`] | [`lane::Lane`], which pieces of which transfers are with the owner |

pub mod commands;
pub mod lane;
pub mod packet;
