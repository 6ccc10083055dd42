//! The controller's side: a server of disks.
//!
//! | module | subject |
//! |---|---|
//! | `server` | [`Server`]: subsystems, listeners, who is connected, keep-alive |
//! | `connection` | one connection: from bytes to commands |
//! | `link` | what answers a command, whoever does |
//! | `work` | carrying out commands |

mod connection;
mod link;
mod server;
mod work;

pub use server::{Export, ExportedDisk, Server, ServerError, ServerOptions};
