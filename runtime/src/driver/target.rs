//! What an operation is done on, and which way it takes.

use std::os::fd::RawFd;

/// What an operation is done on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) fd: RawFd,
    /// The index under which the driver knows the same file, if it does.
    pub(crate) slot: Option<i32>,
    pub(crate) via: Via,
}

impl Target {
    /// The same file, by its descriptor alone.
    pub(super) const fn by_number(self) -> Self {
        Self { slot: None, ..self }
    }
}

/// The way of a file's operations to their device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// The ordinary one.
    System,
    /// The device is polled for completions.
    Polling,
    /// As commands to an NVMe namespace.
    Commands(Namespace),
}

/// An NVMe namespace, as commands name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    pub(crate) id: u32,
    /// A logical block is `1 << block_shift` bytes.
    pub(crate) block_shift: u8,
}
