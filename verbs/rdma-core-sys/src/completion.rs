//! Completion queues, plain and extended, and their channels.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};

use crate::device::ibv_context;

/// Tells that completions came, through a descriptor that can be polled.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_comp_channel {
    /// The device.
    pub context: *mut ibv_context,
    /// Becomes readable with an event.
    pub fd: c_int,
    /// Queues that use it.
    pub refcnt: c_int,
}

/// A completion queue.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_cq {
    /// The device.
    pub context: *mut ibv_context,
    /// Where events go, or null.
    pub channel: *mut ibv_comp_channel,
    /// The owner's.
    pub cq_context: *mut c_void,
    /// The kernel's name for it.
    pub handle: u32,
    /// How many completions it holds.
    pub cqe: c_int,
    /// Belongs to libibverbs.
    pub mutex: libc::pthread_mutex_t,
    /// Belongs to libibverbs.
    pub cond: libc::pthread_cond_t,
    /// Belongs to libibverbs.
    pub comp_events_completed: u32,
    /// Belongs to libibverbs.
    pub async_events_completed: u32,
}

/// Bits of [`ibv_wc::wc_flags`]: [`ibv_wc::imm_data`] is valid.
pub const IBV_WC_WITH_IMM: u32 = 1 << 1;

/// Bit of [`ibv_wc::opcode`] that every kind of receive has.
pub const IBV_WC_RECV: u32 = 1 << 7;
/// A send.
pub const IBV_WC_SEND: u32 = 0;
/// An RDMA write.
pub const IBV_WC_RDMA_WRITE: u32 = 1;
/// An RDMA read.
pub const IBV_WC_RDMA_READ: u32 = 2;
/// A compare-and-swap.
pub const IBV_WC_COMP_SWAP: u32 = 3;
/// A fetch-and-add.
pub const IBV_WC_FETCH_ADD: u32 = 4;
/// A receive that an RDMA write with immediate data consumed.
pub const IBV_WC_RECV_RDMA_WITH_IMM: u32 = IBV_WC_RECV + 1;

/// Values of [`ibv_wc::status`].
pub mod wc_status {
    /// It succeeded.
    pub const SUCCESS: u32 = 0;
    /// A message did not fit its receive, or was too long for the port.
    pub const LOC_LEN_ERR: u32 = 1;
    /// The queue pair is in disorder on this side.
    pub const LOC_QP_OP_ERR: u32 = 2;
    /// A local key does not cover what the request names.
    pub const LOC_PROT_ERR: u32 = 4;
    /// The queue pair was in error before this request's turn.
    pub const WR_FLUSH_ERR: u32 = 5;
    /// A memory window could not be bound.
    pub const MW_BIND_ERR: u32 = 6;
    /// The answer makes no sense.
    pub const BAD_RESP_ERR: u32 = 7;
    /// A write with immediate data met a local protection error.
    pub const LOC_ACCESS_ERR: u32 = 8;
    /// The peer finds the request malformed.
    pub const REM_INV_REQ_ERR: u32 = 9;
    /// The peer's key does not allow it.
    pub const REM_ACCESS_ERR: u32 = 10;
    /// The peer could not do it.
    pub const REM_OP_ERR: u32 = 11;
    /// The peer did not answer.
    pub const RETRY_EXC_ERR: u32 = 12;
    /// The peer had no receive posted.
    pub const RNR_RETRY_EXC_ERR: u32 = 13;
    /// The peer's queue pair gave up.
    pub const REM_ABORT_ERR: u32 = 16;
    /// The device failed.
    pub const FATAL_ERR: u32 = 19;
    /// No answer in time.
    pub const RESP_TIMEOUT_ERR: u32 = 20;
    /// Something else.
    pub const GENERAL_ERR: u32 = 21;
}

/// A work completion.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_wc {
    /// The id that the work request had.
    pub wr_id: u64,
    /// Of [`wc_status`], or one that is not known here.
    pub status: u32,
    /// What it was; valid with success alone.
    pub opcode: u32,
    /// The vendor's code of a failure.
    pub vendor_err: u32,
    /// Bytes received, read or swapped.
    pub byte_len: u32,
    /// Immediate data in network byte order, if [`IBV_WC_WITH_IMM`].
    pub imm_data: u32,
    /// The queue pair on this side.
    pub qp_num: u32,
    /// The queue pair on the other side, of datagrams alone.
    pub src_qp: u32,
    /// What else is valid.
    pub wc_flags: u32,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Source on an InfiniBand subnet.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// Path bits of the destination.
    pub dlid_path_bits: u8,
}

/// A reader of one property of an extended queue's current completion.
pub type CurrentU32 = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>;

/// Argument of [`ibv_cq_ex::start_poll`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_poll_cq_attr {
    /// Zero.
    pub comp_mask: u32,
}

/// An extended completion queue: completions are read one property at a time, where they lie.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_cq_ex {
    /// The same queue as a plain one.
    pub base: ibv_cq,
    /// Which members behind are valid.
    pub comp_mask: u32,
    /// Status of the current completion.
    pub status: u32,
    /// Id of the current completion.
    pub wr_id: u64,
    /// Goes to the first completion: 0, or `ENOENT` if there is none.
    pub start_poll: Option<unsafe extern "C" fn(*mut Self, *mut ibv_poll_cq_attr) -> c_int>,
    /// Goes to the next completion.
    pub next_poll: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
    /// Gives what was read back to the device.
    pub end_poll: Option<unsafe extern "C" fn(*mut Self)>,
    /// What it was.
    pub read_opcode: CurrentU32,
    /// The vendor's code of a failure.
    pub read_vendor_err: CurrentU32,
    /// Bytes.
    pub read_byte_len: CurrentU32,
    /// Immediate data, in network byte order.
    pub read_imm_data: CurrentU32,
    /// The queue pair on this side.
    pub read_qp_num: CurrentU32,
    /// The queue pair on the other side.
    pub read_src_qp: CurrentU32,
    /// What else is valid.
    pub read_wc_flags: CurrentU32,
    /// Readers that nothing here uses.
    pub others: [*const c_void; 8],
}

/// Bits of [`ibv_cq_init_attr_ex::wc_flags`]: [`ibv_cq_ex::read_byte_len`] will be called.
pub const IBV_WC_EX_WITH_BYTE_LEN: u64 = 1;
/// [`ibv_cq_ex::read_imm_data`] will be called.
pub const IBV_WC_EX_WITH_IMM: u64 = 1 << 1;
/// [`ibv_cq_ex::read_qp_num`] will be called.
pub const IBV_WC_EX_WITH_QP_NUM: u64 = 1 << 2;

/// [`ibv_cq_init_attr_ex::comp_mask`]: `flags` is valid.
pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
/// [`ibv_cq_init_attr_ex::flags`]: one thread alone uses the queue.
pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;

/// What an extended queue is to be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_cq_init_attr_ex {
    /// How many completions it holds at least.
    pub cqe: u32,
    /// The owner's.
    pub cq_context: *mut c_void,
    /// Where events go, or null.
    pub channel: *mut ibv_comp_channel,
    /// Which interrupt.
    pub comp_vector: u32,
    /// What will be read.
    pub wc_flags: u64,
    /// Which members behind are valid.
    pub comp_mask: u32,
    /// Bits of creation.
    pub flags: u32,
    /// A parent domain, or null.
    pub parent_domain: *mut crate::memory::ibv_pd,
}

const _: () = assert!(size_of::<ibv_comp_channel>() == 16);
const _: () = assert!(offset_of!(ibv_comp_channel, fd) == 8);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<ibv_cq>() == 128);
const _: () = assert!(offset_of!(ibv_cq, channel) == 8);
const _: () = assert!(size_of::<ibv_wc>() == 48);
const _: () = assert!(offset_of!(ibv_wc, imm_data) == 24);
const _: () = assert!(offset_of!(ibv_wc, qp_num) == 28);
const _: () = assert!(offset_of!(ibv_wc, wc_flags) == 36);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<ibv_cq_ex>() == 288);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(offset_of!(ibv_cq_ex, status) == 132);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(offset_of!(ibv_cq_ex, start_poll) == 144);
const _: () = assert!(size_of::<ibv_cq_init_attr_ex>() == 56);
