//! The program as its users run it: command lines in, output and exit codes out.
//!
//! | module | subject |
//! |---|---|
//! | `process` | starting the program, waiting for it, finding what it left behind |
//! | `serving` | `serve` |
//! | `objects` | `put`, `get`, `rm`, `stat` |
//! | `replaying` | `replay` |
//! | `simulating` | `simulate` |
//! | `transferring`, `rails` | `transfer`, over one network and over two |
//! | `membership` | `cluster`, and nodes that are members of one |
//! | `machine` | `doctor`, `topo` |

mod machine;
mod membership;
mod objects;
mod process;
mod rails;
mod replaying;
mod serving;
mod simulating;
mod transferring;
