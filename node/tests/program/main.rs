//! The program as its users run it: command lines in, output and exit codes out.
//!
//! | module | subject |
//! |---|---|
//! | `process` | starting the program, waiting for it, finding what it left behind |
//! | `serving` | `serve` |
//! | `objects` | `put`, `get`, `rm`, `stat` |
//! | `replaying` | `replay` |
//! | `caching` | `cache-sim` |
//! | `simulating` | `simulate` |
//! | `transferring`, `rails` | `transfer`, over one network and over two |
//! | `passing_on`, `swarming` | `p2p`, on one host and on nine with shaped lines |
//! | `updating` | `p2p offer` and `p2p follow` |
//! | `place` | what those are run in |
//! | `namespaces` | network namespaces to run it in |
//! | `membership` | `cluster`, and nodes that are members of one |
//! | `uncoordinated` | members whose coordinator does not answer |
//! | `town` | members of a cluster, and a client of them |
//! | `observing`, `scrape` | `serve --metrics`, and reading it |
//! | `topping` | `top` |
//! | `disks` | `nvme serve`, and reading and writing what it serves |
//! | `inquiring` | `nvme discover`, `nvme identify`, `nvme watch` |
//! | `drives`, `drives_at_fault` | `serve --drive`, and drives that fail or are not what they should be |
//! | `logging` | what processes that stay log |
//! | `machine` | `doctor`, `topo` |

mod caching;
mod disks;
mod drives;
mod drives_at_fault;
mod inquiring;
mod logging;
mod machine;
mod membership;
mod namespaces;
mod objects;
mod observing;
mod one_sided;
mod passing_on;
mod place;
mod process;
mod rails;
mod replaying;
mod scrape;
mod serving;
mod simulating;
mod swarming;
mod topping;
mod town;
mod transferring;
mod uncoordinated;
mod updating;
mod upgrading;
