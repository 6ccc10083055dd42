//! A host and a server in simulated worlds: connections are lost at every byte, and a model disk
//! says what may be read then.
//!
//! Somebody between the two passes bytes on, and after so many ends both connections. The host comes
//! back by itself, so that one world has every place of a session to lose it at, one after the other.
//!
//! | module | subject |
//! |---|---|
//! | `one_path` | one path, lost at every byte |
//! | `paths` | several paths, lost, forgotten and closed |
//! | `hedged` | reads that are sent a second way when the first one is slow |
//! | `shares` | hosts that ask for much beside others that ask for little |
//! | `middle` | who loses connections |
//! | `model` | what may be read of a disk |
//! | `ends` | a host and a server |
#![forbid(unsafe_code)]

mod ends;
mod hedged;
mod middle;
mod model;
mod one_path;
mod paths;
mod shares;
