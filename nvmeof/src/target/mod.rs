//! The controller's side: a server of disks.
//!
//! | module | subject |
//! |---|---|
//! | `server` | [`Server`]: subsystems, listeners, who is connected, keep-alive |
//! | `connection` | one connection: from bytes to commands |
//! | `desk` | whose command a disk carries out next |
//! | `link` | what answers a command, whoever does |
//! | `work` | carrying out commands |

mod connection;
mod desk;
mod link;
mod server;
mod work;

pub use server::{Export, ExportedDisk, Server, ServerError, ServerOptions};
