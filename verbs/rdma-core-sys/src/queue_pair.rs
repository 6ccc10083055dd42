//! Queue pairs, shared receive queues, work requests, the builder interface.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::{offset_of, size_of};

use crate::completion::ibv_cq;
use crate::device::{ibv_context, ibv_gid};
use crate::memory::{ibv_pd, ibv_sge};

/// Values of [`ibv_qp::state`].
pub mod qp_state {
    /// Fresh.
    pub const RESET: u32 = 0;
    /// Receives may be posted.
    pub const INIT: u32 = 1;
    /// Ready to receive.
    pub const RTR: u32 = 2;
    /// Ready to send.
    pub const RTS: u32 = 3;
    /// The send queue drains.
    pub const SQD: u32 = 4;
    /// The send queue failed.
    pub const SQE: u32 = 5;
    /// Both queues flush.
    pub const ERR: u32 = 6;
}

/// Bits that name members of [`ibv_qp_attr`].
pub mod qp_attr_mask {
    /// `qp_state`.
    pub const STATE: u32 = 1;
    /// `qp_access_flags`.
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    /// `pkey_index`.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// `port_num`.
    pub const PORT: u32 = 1 << 5;
    /// `ah_attr`.
    pub const AV: u32 = 1 << 7;
    /// `path_mtu`.
    pub const PATH_MTU: u32 = 1 << 8;
    /// `timeout`.
    pub const TIMEOUT: u32 = 1 << 9;
    /// `retry_cnt`.
    pub const RETRY_CNT: u32 = 1 << 10;
    /// `rnr_retry`.
    pub const RNR_RETRY: u32 = 1 << 11;
    /// `rq_psn`.
    pub const RQ_PSN: u32 = 1 << 12;
    /// `max_rd_atomic`.
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    /// `min_rnr_timer`.
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    /// `sq_psn`.
    pub const SQ_PSN: u32 = 1 << 16;
    /// `max_dest_rd_atomic`.
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    /// `dest_qp_num`.
    pub const DEST_QPN: u32 = 1 << 20;
}

/// A queue pair.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_qp {
    /// The device.
    pub context: *mut ibv_context,
    /// The owner's.
    pub qp_context: *mut c_void,
    /// The domain.
    pub pd: *mut ibv_pd,
    /// Where sends complete.
    pub send_cq: *mut ibv_cq,
    /// Where receives complete.
    pub recv_cq: *mut ibv_cq,
    /// Where receives come from, or null.
    pub srq: *mut ibv_srq,
    /// The kernel's name for it.
    pub handle: u32,
    /// Its number, 24 bits.
    pub qp_num: u32,
    /// Of [`qp_state`], as last set by this side.
    pub state: u32,
    /// Its kind.
    pub qp_type: u32,
    /// Belongs to libibverbs.
    pub mutex: libc::pthread_mutex_t,
    /// Belongs to libibverbs.
    pub cond: libc::pthread_cond_t,
    /// Belongs to libibverbs.
    pub events_completed: u32,
}

/// Reliable connected.
pub const IBV_QPT_RC: u32 = 2;

/// Sizes of a queue pair. What creation grants is written back.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_qp_cap {
    /// Depth of the send queue.
    pub max_send_wr: u32,
    /// Depth of the receive queue.
    pub max_recv_wr: u32,
    /// Pieces of a send.
    pub max_send_sge: u32,
    /// Pieces of a receive.
    pub max_recv_sge: u32,
    /// Bytes that may be sent inline.
    pub max_inline_data: u32,
}

/// What a queue pair is to be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_init_attr {
    /// The owner's.
    pub qp_context: *mut c_void,
    /// Where sends complete.
    pub send_cq: *mut ibv_cq,
    /// Where receives complete.
    pub recv_cq: *mut ibv_cq,
    /// Where receives come from, or null.
    pub srq: *mut ibv_srq,
    /// Sizes.
    pub cap: ibv_qp_cap,
    /// Kind.
    pub qp_type: u32,
    /// Whether every send is signalled.
    pub sq_sig_all: c_int,
}

/// [`ibv_qp_init_attr_ex::comp_mask`]: `pd` is valid.
pub const IBV_QP_INIT_ATTR_PD: u32 = 1;
/// [`ibv_qp_init_attr_ex::comp_mask`]: `send_ops_flags` is valid.
pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

/// [`ibv_qp_init_attr_ex::send_ops_flags`]: `wr_rdma_write` will be called.
pub const IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1;
/// [`ibv_qp_init_attr_ex::send_ops_flags`]: `wr_rdma_write_imm` will be called.
pub const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
/// [`ibv_qp_init_attr_ex::send_ops_flags`]: `wr_send` will be called.
pub const IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
/// [`ibv_qp_init_attr_ex::send_ops_flags`]: `wr_rdma_read` will be called.
pub const IBV_QP_EX_WITH_RDMA_READ: u64 = 1 << 4;
/// [`ibv_qp_init_attr_ex::send_ops_flags`]: `wr_atomic_cmp_swp` will be called.
pub const IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
/// [`ibv_qp_init_attr_ex::send_ops_flags`]: `wr_atomic_fetch_add` will be called.
pub const IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;

/// As [`ibv_qp_init_attr`], with what came later.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_init_attr_ex {
    /// The owner's.
    pub qp_context: *mut c_void,
    /// Where sends complete.
    pub send_cq: *mut ibv_cq,
    /// Where receives complete.
    pub recv_cq: *mut ibv_cq,
    /// Where receives come from, or null.
    pub srq: *mut ibv_srq,
    /// Sizes.
    pub cap: ibv_qp_cap,
    /// Kind.
    pub qp_type: u32,
    /// Whether every send is signalled.
    pub sq_sig_all: c_int,
    /// Which members behind are valid.
    pub comp_mask: u32,
    /// The domain.
    pub pd: *mut ibv_pd,
    /// An extended-connection domain, or null.
    pub xrcd: *mut c_void,
    /// Bits of creation.
    pub create_flags: u32,
    /// Of segmentation offload.
    pub max_tso_header: u16,
    /// Of receive-side scaling.
    pub rwq_ind_tbl: *mut c_void,
    /// Of receive-side scaling.
    pub rx_hash_conf: [u64; 3],
    /// Of underlay queue pairs.
    pub source_qpn: u32,
    /// Which builders of [`ibv_qp_ex`] will be called.
    pub send_ops_flags: u64,
}

/// How to reach a port beyond the own subnet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_global_route {
    /// The peer's identifier.
    pub dgid: ibv_gid,
    /// Flow label.
    pub flow_label: u32,
    /// Index of the own identifier.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// How to reach a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_ah_attr {
    /// The route, if `is_global`.
    pub grh: ibv_global_route,
    /// The peer's address on an InfiniBand subnet.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Path bits of the source.
    pub src_path_bits: u8,
    /// Limit of the rate.
    pub static_rate: u8,
    /// Whether `grh` counts; always, with Ethernet.
    pub is_global: u8,
    /// The own port.
    pub port_num: u8,
}

/// What a queue pair is changed to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "named as in every manual of verbs")]
pub struct ibv_qp_attr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// Values of [`ibv_send_wr::opcode`].
pub mod wr_opcode {
    /// RDMA write.
    pub const RDMA_WRITE: u32 = 0;
    /// RDMA write that consumes a receive of the peer.
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    /// Send.
    pub const SEND: u32 = 2;
    /// Send with immediate data.
    pub const SEND_WITH_IMM: u32 = 3;
    /// RDMA read.
    pub const RDMA_READ: u32 = 4;
    /// Compare-and-swap of 8 bytes.
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    /// Fetch-and-add of 8 bytes.
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
}

/// Waits for earlier reads and atomics of the queue.
pub const IBV_SEND_FENCE: u32 = 1;
/// Yields a completion.
pub const IBV_SEND_SIGNALED: u32 = 1 << 1;
/// Raises a solicited event at the peer.
pub const IBV_SEND_SOLICITED: u32 = 1 << 2;
/// The bytes are copied when it is posted; no key is needed.
pub const IBV_SEND_INLINE: u32 = 1 << 3;

/// Remote side of an atomic.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_wr_atomic {
    /// Address, a multiple of 8.
    pub remote_addr: u64,
    /// What is compared with, or added.
    pub compare_add: u64,
    /// What is swapped in.
    pub swap: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// Remote side of a read or write.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_wr_rdma {
    /// Address.
    pub remote_addr: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// Remote side of a send.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(
    missing_debug_implementations,
    reason = "which member is valid is known outside"
)]
pub union ibv_wr_remote {
    /// Of a read or write.
    pub rdma: ibv_wr_rdma,
    /// Of an atomic.
    pub atomic: ibv_wr_atomic,
}

/// A work request for a send queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The next one of the list, or null.
    pub next: *mut Self,
    /// The local pieces.
    pub sg_list: *mut ibv_sge,
    /// How many.
    pub num_sge: c_int,
    /// Of [`wr_opcode`].
    pub opcode: u32,
    /// Bits above.
    pub send_flags: u32,
    /// Immediate data in network byte order.
    pub imm_data: u32,
    /// Remote side.
    pub wr: ibv_wr_remote,
    /// Of extended connections.
    pub remote_srqn: u32,
    /// Memory windows and segmentation offload.
    pub others: [u64; 6],
}

impl fmt::Debug for ibv_send_wr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ibv_send_wr")
            .field("wr_id", &self.wr_id)
            .field("opcode", &self.opcode)
            .field("send_flags", &self.send_flags)
            .finish_non_exhaustive()
    }
}

/// A work request for a receive queue.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_recv_wr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The next one of the list, or null.
    pub next: *mut Self,
    /// The local pieces.
    pub sg_list: *mut ibv_sge,
    /// How many.
    pub num_sge: c_int,
}

/// A shared receive queue.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_srq {
    /// The device.
    pub context: *mut ibv_context,
    /// The owner's.
    pub srq_context: *mut c_void,
    /// The domain.
    pub pd: *mut ibv_pd,
    /// The kernel's name for it.
    pub handle: u32,
    /// Belongs to libibverbs.
    pub mutex: libc::pthread_mutex_t,
    /// Belongs to libibverbs.
    pub cond: libc::pthread_cond_t,
    /// Belongs to libibverbs.
    pub events_completed: u32,
}

/// Sizes of a shared receive queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_srq_attr {
    /// Depth.
    pub max_wr: u32,
    /// Pieces of a receive.
    pub max_sge: u32,
    /// An event is raised when fewer receives than this are left.
    pub srq_limit: u32,
}

/// What a shared receive queue is to be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_srq_init_attr {
    /// The owner's.
    pub srq_context: *mut c_void,
    /// Sizes.
    pub attr: ibv_srq_attr,
}

/// A queue pair as a builder of work requests: `wr_start`, then for each its id and flags, its
/// operation and its pieces, then `wr_complete`, which rings the doorbell once.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_qp_ex {
    /// The same queue pair as a plain one.
    pub base: ibv_qp,
    /// Which members behind are valid.
    pub comp_mask: u64,
    /// Id of the next request.
    pub wr_id: u64,
    /// Flags of the next request.
    pub wr_flags: u32,
    /// Compare-and-swap: key, address, compared, swapped in.
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut Self, u32, u64, u64, u64)>,
    /// Fetch-and-add: key, address, added.
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut Self, u32, u64, u64)>,
    /// Memory windows.
    pub wr_windows: [*const c_void; 2],
    /// Read: key, address.
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut Self, u32, u64)>,
    /// Write: key, address.
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut Self, u32, u64)>,
    /// Write with immediate data: key, address, data.
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut Self, u32, u64, u32)>,
    /// Send.
    pub wr_send: Option<unsafe extern "C" fn(*mut Self)>,
    /// Send with immediate data.
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut Self, u32)>,
    /// Builders that nothing here uses.
    pub wr_others: [*const c_void; 4],
    /// Sends bytes inline: address, length.
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut Self, *mut c_void, usize)>,
    /// Sends pieces inline.
    pub wr_set_inline_data_list: *const c_void,
    /// One piece: key, address, length.
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut Self, u32, u64, u32)>,
    /// Pieces.
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut Self, usize, *const ibv_sge)>,
    /// Begins a batch.
    pub wr_start: Option<unsafe extern "C" fn(*mut Self)>,
    /// Posts the batch, all or nothing: 0 or an errno.
    pub wr_complete: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
    /// Drops the batch.
    pub wr_abort: Option<unsafe extern "C" fn(*mut Self)>,
    /// A write of 8 bytes as one.
    pub wr_atomic_write: *const c_void,
}

#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<ibv_qp>() == 160);
const _: () = assert!(offset_of!(ibv_qp, qp_num) == 52);
const _: () = assert!(offset_of!(ibv_qp, state) == 56);
const _: () = assert!(size_of::<ibv_qp_init_attr>() == 64);
const _: () = assert!(size_of::<ibv_qp_init_attr_ex>() == 136);
const _: () = assert!(size_of::<ibv_ah_attr>() == 32);
const _: () = assert!(size_of::<ibv_qp_attr>() == 144);
const _: () = assert!(offset_of!(ibv_qp_attr, ah_attr) == 56);
const _: () = assert!(offset_of!(ibv_qp_attr, timeout) == 130);
const _: () = assert!(size_of::<ibv_send_wr>() == 128);
const _: () = assert!(offset_of!(ibv_send_wr, opcode) == 28);
const _: () = assert!(offset_of!(ibv_send_wr, send_flags) == 32);
const _: () = assert!(offset_of!(ibv_send_wr, wr) == 40);
const _: () = assert!(offset_of!(ibv_send_wr, remote_srqn) == 72);
const _: () = assert!(size_of::<ibv_recv_wr>() == 32);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<ibv_qp_ex>() == 352);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(offset_of!(ibv_qp_ex, wr_id) == 168);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(offset_of!(ibv_qp_ex, wr_rdma_write) == 224);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(offset_of!(ibv_qp_ex, wr_start) == 320);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(offset_of!(ibv_qp_ex, wr_complete) == 328);
