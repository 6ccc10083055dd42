//! Protection domains, memory regions, scatter-gather entries.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};

use crate::device::ibv_context;

/// A protection domain: queue pairs reach the memory regions of their own domain alone.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_pd {
    /// The device.
    pub context: *mut ibv_context,
    /// The kernel's name for it.
    pub handle: u32,
}

/// A registered range of memory.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_mr {
    /// The device.
    pub context: *mut ibv_context,
    /// The domain.
    pub pd: *mut ibv_pd,
    /// First byte.
    pub addr: *mut c_void,
    /// Length in bytes.
    pub length: usize,
    /// The kernel's name for it.
    pub handle: u32,
    /// What local work requests name it by.
    pub lkey: u32,
    /// What remote work requests name it by.
    pub rkey: u32,
}

/// A piece of registered memory, in a work request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// [`ibv_mr::lkey`] of the registration.
    pub lkey: u32,
}

/// The device may write.
pub const IBV_ACCESS_LOCAL_WRITE: u32 = 1;
/// Peers may write.
pub const IBV_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
/// Peers may read.
pub const IBV_ACCESS_REMOTE_READ: u32 = 1 << 2;
/// Peers may do atomics.
pub const IBV_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
/// Memory windows may be bound to it.
pub const IBV_ACCESS_MW_BIND: u32 = 1 << 4;
/// Pages are brought in when they are touched.
pub const IBV_ACCESS_ON_DEMAND: u32 = 1 << 6;
/// First of the bits that a provider may ignore. A kernel that does not know one refuses it, unless
/// the registration goes through `ibv_reg_mr_iova2`.
pub const IBV_ACCESS_OPTIONAL_FIRST: u32 = 1 << 20;
/// All bits that a provider may ignore.
pub const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;
/// Writes over PCI may pass one another.
pub const IBV_ACCESS_RELAXED_ORDERING: u32 = IBV_ACCESS_OPTIONAL_FIRST;

const _: () = assert!(size_of::<ibv_pd>() == 16);
const _: () = assert!(size_of::<ibv_mr>() == 48);
const _: () = assert!(offset_of!(ibv_mr, lkey) == 36);
const _: () = assert!(offset_of!(ibv_mr, rkey) == 40);
const _: () = assert!(size_of::<ibv_sge>() == 16);
