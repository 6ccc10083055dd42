//! The core that a command runs on.

use lunette::runtime::arena::ArenaOptions;
use lunette::runtime::{CoreOptions, StartError, block_on};

use super::failure::Outcome;
use crate::program::arguments::IdleChoice;
use crate::program::failure::Failure;

/// Memory that a server needs beside that of its disk: what is under way.
const WORKING_BYTES: u64 = 256 << 20;

/// Cores of one command.
pub(super) const CORES_MAX: u16 = 64;

/// Options of a core whose arena holds a disk of `disk_bytes` as well.
pub(super) fn core(idle: IdleChoice, disk_bytes: u64) -> CoreOptions {
    // A quarter more, since pieces are rounded up.
    let bytes_max = disk_bytes + disk_bytes / 4 + WORKING_BYTES;
    CoreOptions {
        idle: idle.policy(),
        arena: ArenaOptions {
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            ..ArenaOptions::default()
        },
        ..CoreOptions::default()
    }
}

/// Runs `work` on a core of its own.
pub(super) fn run<T: 'static>(
    options: CoreOptions,
    work: impl AsyncFnOnce() -> Outcome<T> + 'static,
) -> Result<T, Failure> {
    let ran: Result<Outcome<T>, StartError> =
        block_on(None, options, move || async move { work().await });
    Ok(ran??)
}

/// The same, on a core without a disk.
pub(super) fn on_core<T: 'static>(
    work: impl AsyncFnOnce() -> Outcome<T> + 'static,
) -> Result<T, Failure> {
    run(core(IdleChoice::Adaptive, 0), work)
}
