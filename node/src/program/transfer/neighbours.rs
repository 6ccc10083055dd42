//! How peers on the same host are met.

use std::path::PathBuf;

use clap::Args;

/// Flags of both sides.
#[derive(Args, Clone, Debug)]
pub(super) struct Neighbours {
    /// Meet peers of other network namespaces (containers) of this host in this folder, which both see.
    #[arg(long, value_name = "FOLDER")]
    pub(super) same_host_dir: Option<PathBuf>,
    /// Let peers on this host that want it too read this process's memory, all of it.
    #[arg(long)]
    pub(super) same_host_trust: bool,
}
