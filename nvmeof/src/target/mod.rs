//! The controller's side: a server of disks.
//!
//! | module | subject |
//! |---|---|
//! | `server` | [`Server`]: subsystems, listeners, who is connected, keep-alive |
//! | `hub` | what the cores of one server share |
//! | `connection` | one connection: from bytes to commands |
//! | `arrivals` | commands whose data are coming |
//! | `desk` | whose command a disk carries out next |
//! | `link` | what answers a command, whoever does |
//! | `work` | carrying out commands |

mod arrivals;
mod connection;
mod desk;
mod hub;
mod link;
mod server;
mod work;

pub use server::{Export, ExportedDisk, Seat, Server, ServerError, ServerOptions};
