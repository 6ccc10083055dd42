//! NVMe/TCP in user space: a host that reads and writes remote namespaces, and a controller that
//! serves memory and files as some.
//!
//! A [`Server`] serves disks to any host, the Linux kernel's among them. A [`RemoteController`]
//! brings a controller up and keeps it alive; [`Queue`]s of it, one per core, carry commands, many
//! in flight, each with a deadline; a [`RemoteNamespace`] reads and writes by the best of its paths,
//! and connects again when a connection was lost.
//!
//! ```text
//!   RemoteNamespace -- RemoteController -- Queue ~~~~ TCP ~~~~ Server -- Disk
//!     blocks, replay     bring-up,           PDUs                 commands   memory, file
//!                        keep-alive
//! ```
//!
//! The protocol itself is `lunette-nvmeof-proto`. Data are received straight into the region that
//! the caller lent, and sent from where they lie. In TLS (feature `tls`) they are copied. It leaves out
//! other transports.
//!
//! | module | subject |
//! |---|---|
//! | `host` | [`RemoteController`], [`Queue`], [`RemoteNamespace`], [`discover`] |
//! | `target` | [`Server`] and what it exports |
//! | `disk` | [`Disk`]: memory, files |
//! | `wire` | bytes as they are, or in TLS |
//! | `error` | [`CloseReason`], [`CommandError`], [`ConnectError`] |
#![forbid(unsafe_code)]

mod disk;
mod error;
mod host;
mod target;
mod wire;

pub use disk::{
    Disk, FileDisk, FileDiskError, GRANULE_BYTES, MemoryDisk, SharedDisk, SharedDiskHere,
};
pub use error::{CloseReason, CommandError, CommandFailure, ConnectError, TlsFault};
pub use host::{
    ControllerEvent, Data, Done, HostConfig, NamespaceOptions, PathState, Queue, QueueSeat,
    RemoteController, RemoteNamespace, discover,
};
pub use lunette_nvmeof_proto as proto;
pub use target::{Export, ExportedDisk, Seat, Server, ServerError, ServerOptions};
