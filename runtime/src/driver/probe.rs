//! What this kernel offers, and what is missing.

use rustix::io::Errno;
use thiserror::Error;

/// Features of the io_uring of this kernel that the driver uses when present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact about the kernel of its own"
)]
pub struct Features {
    /// The kernel's worker threads of a ring are bounded, and kept off a pinned core's CPU (Linux
    /// 5.15).
    pub bounded_workers: bool,
    /// The kernel polls network devices while the core waits, as asked by
    /// [`DriverOptions::busy_poll`](crate::DriverOptions::busy_poll) (Linux 6.9).
    pub busy_poll: bool,
    /// One thread submits, completions are run when it asks (Linux 6.1).
    pub defer_taskrun: bool,
    /// NVMe devices take commands, around the block layer (Linux 5.19).
    pub device_commands: bool,
    /// Buffers of a pool are filled piece by piece (Linux 6.12).
    pub incremental_pools: bool,
    /// Rings can wake each other (Linux 5.18).
    pub message_ring: bool,
    /// The kernel picks buffers of pools (Linux 5.19).
    pub pools: bool,
    /// Memory is known by index (Linux 5.13).
    pub registered_buffers: bool,
    /// Files are known by index (Linux 5.19).
    pub registered_files: bool,
    /// Connections are known by index, too (Linux 6.13). Before, a ring lets go of a file only when
    /// every operation that it had begun earlier on any other has ended, so that a connection which
    /// is closed would stay open, its peer untold, as long as some other one is silent.
    pub registered_connections: bool,
    /// The ring's own descriptor is registered, which saves a lookup per call (Linux 5.18).
    pub registered_ring: bool,
    /// Gather lists are sent without copies (Linux 6.1).
    pub zero_copy_send: bool,
}

/// One of the [`Features`], for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// What it is called.
    pub name: &'static str,
    /// Whether it is there.
    pub is_there: bool,
    /// The first Linux that has it.
    pub since: &'static str,
}

impl Features {
    /// All of them.
    #[must_use]
    pub fn list(self) -> Vec<Feature> {
        // Taken apart by name, so that none is left out.
        let Self {
            bounded_workers,
            busy_poll,
            defer_taskrun,
            device_commands,
            incremental_pools,
            message_ring,
            pools,
            registered_buffers,
            registered_connections,
            registered_files,
            registered_ring,
            zero_copy_send,
        } = self;
        [
            ("deferred work", defer_taskrun, "6.1"),
            ("registered ring", registered_ring, "5.18"),
            ("registered files", registered_files, "5.19"),
            ("registered connections", registered_connections, "6.13"),
            ("registered memory", registered_buffers, "5.13"),
            ("messages", message_ring, "5.18"),
            ("pools of buffers", pools, "5.19"),
            ("pools filled piece by piece", incremental_pools, "6.12"),
            ("sends without copies", zero_copy_send, "6.1"),
            ("commands to NVMe devices", device_commands, "5.19"),
            ("bounded workers", bounded_workers, "5.15"),
            ("busy polling of network devices", busy_poll, "6.9"),
        ]
        .into_iter()
        .map(|(name, is_there, since)| Feature {
            name,
            is_there,
            since,
        })
        .collect()
    }
}

/// Why no driver could be opened.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ProbeError {
    /// The system forbids io_uring: a seccomp filter (Docker's default one, for example) or
    /// `kernel.io_uring_disabled`.
    #[error(
        "io_uring is forbidden here ({0}): allow io_uring_setup, io_uring_enter and \
         io_uring_register in the seccomp profile, or set kernel.io_uring_disabled=0"
    )]
    Forbidden(Errno),
    /// The kernel is older than the oldest supported one, 6.1.
    #[error("this kernel lacks {0}: Linux 6.1 or later is needed")]
    TooOld(&'static str),
    /// The ring's memory was refused: kernels count it against the memlock limit.
    #[error("no memory for the ring ({0}): raise the memlock limit (ulimit -l)")]
    NoMemory(Errno),
    /// Even epoll was refused.
    #[error("epoll_create failed: {0}")]
    Epoll(Errno),
    /// Anything else that the system said.
    #[error("io_uring_setup failed: {0}")]
    Setup(Errno),
}

impl ProbeError {
    pub(crate) fn from_io(error: &std::io::Error) -> Self {
        Self::from_setup(Errno::from_io_error(error).unwrap_or(Errno::IO))
    }

    /// Whether the system has no io_uring for this process, as against an error of this moment.
    pub(super) const fn asks_for_epoll(&self) -> bool {
        matches!(self, Self::Forbidden(_) | Self::TooOld(_))
    }

    pub(crate) fn from_setup(errno: Errno) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => Self::Forbidden(errno),
            Errno::NOSYS => Self::TooOld("io_uring"),
            Errno::NOMEM => Self::NoMemory(errno),
            _ => Self::Setup(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setup_errors_name_their_remedy() {
        let cases = [
            (Errno::PERM, "seccomp"),
            (Errno::NOSYS, "6.1"),
            (Errno::NOMEM, "memlock"),
            (Errno::MFILE, "io_uring_setup"),
        ];
        for (errno, remedy) in cases {
            let text = ProbeError::from_setup(errno).to_string();
            assert!(text.contains(remedy), "{text}");
        }
    }
}
