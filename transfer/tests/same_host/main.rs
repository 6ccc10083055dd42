//! Engines on one host: what is copied between them is what was registered, nobody reaches what it may not,
//! and whatever cannot go that way goes over the rails.
//!
//! | module | subject |
//! |---|---|
//! | `mapped` | memory that peers map, and write by command |
//! | `window` | what goes through memory that both write |
//! | `trust` | peers that read each other's process |
//! | `bounds` | how much is shared, and what happens beyond |
//! | `guest` | a peer that keeps to the form of what is said and to nothing else |
//! | `neighbours` | engines, memory, reads and writes |
#![forbid(unsafe_code)]

mod bounds;
mod guest;
mod mapped;
mod neighbours;
#[path = "../../../runtime/tests/on_each_driver/mod.rs"]
mod on_each_driver;
mod trust;
mod window;
