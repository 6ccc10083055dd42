//! Memory of devices that adapters are given by address.

use std::fmt;
use std::os::fd::OwnedFd;

/// Memory of another device, a GPU say, which the kernel tells by its address from memory of this process, so that an
/// adapter can be given it as if it were some (nvidia-peermem). Who lends it and who registers it are packages that do not
/// know each other; this is what one promises to the other. Whoever registers it holds it for as long.
///
/// # Safety
/// Until it is dropped, all of its addresses are of one device, or of nothing: no safe code has borrowed what lies there,
/// or will, and whatever an adapter reads or writes there is between it, its peers and the device.
pub unsafe trait PeerMemory: fmt::Debug + 'static {
    /// The first byte.
    fn address(&self) -> u64;

    /// Length in bytes.
    fn len_bytes(&self) -> u64;

    /// Of a device that is imitated: a file of the same bytes, and where in it they begin. Adapters that are imitated too
    /// reach it so, since nothing lies at its address.
    fn imitation(&self) -> Option<(OwnedFd, u64)>;
}
