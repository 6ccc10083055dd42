//! Engines on one host: what is copied between them is what was registered, nobody reaches what it may not,
//! and whatever cannot go that way goes over the rails.
//!
//! | module | subject |
//! |---|---|
//! | `mapped` | memory that peers map, and write by command |
//! | `window` | what goes through memory that both write |
//! | `trust` | peers that read each other's process |
//! | `bounds` | how much is shared, and what happens beyond |
//! | `sluggish` | a peer whose core stands still now and then |
//! | `guest` | a peer that keeps to the form of what is said and to nothing else |
mod bounds;
pub(crate) mod guest;
mod mapped;
mod sluggish;
mod trust;
mod window;
