//! The transfer engine under attack: what a peer sends, and everything that can happen to rails.
//!
//! | module | subject |
//! |---|---|
//! | [`message`] | bodies of operations, from any bytes |
//! | [`lane`] | what an engine of the same host is to copy, any events in any order |
//! | [`scheduler`] | transfers over rails, any events in any order |
//! | `segments` | the table of segments beside a plain list |
//! | `world` | the peer and the rails that a scheduler sees, and what must hold |

pub mod lane;
pub mod message;
pub mod scheduler;
mod segments;
mod world;
