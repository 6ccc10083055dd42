//! Context and its table of operations, attributes of device and port, GIDs.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use crate::completion::{ibv_cq, ibv_wc};
use crate::queue_pair::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq};

/// [`ibv_device::transport_type`]: InfiniBand, also over Ethernet (`RoCE`).
pub const IBV_TRANSPORT_IB: c_int = 0;
/// [`ibv_device::transport_type`]: iWARP, which is RDMA over TCP.
pub const IBV_TRANSPORT_IWARP: c_int = 1;

/// A device that may be opened. Members behind these belong to libibverbs.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_device {
    /// Historical entries.
    pub compat: [Unused; 2],
    /// What kind of node it is.
    pub node_type: c_int,
    /// What its packets are, or a kind that is not known here.
    pub transport_type: c_int,
}

/// A function of the table that nothing calls through it any more.
pub type Unused = *const c_void;

/// What the inline functions jump through.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_context_ops {
    /// Historical entries.
    pub compat_first: [Unused; 7],
    /// Memory windows, which nothing here uses.
    pub memory_windows: [Unused; 3],
    /// Historical entry.
    pub compat_create_cq: Unused,
    /// Takes completions.
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    /// Asks for an event at the next completion.
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    /// Historical entries.
    pub compat_middle: [Unused; 7],
    /// Posts receives to a shared queue.
    pub post_srq_recv: Option<
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    >,
    /// Historical entries.
    pub compat_qp: [Unused; 4],
    /// Posts sends.
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    /// Posts receives.
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    /// Historical entries.
    pub compat_last: [Unused; 5],
}

/// An opened device.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_context {
    /// The device.
    pub device: *mut ibv_device,
    /// What the inline functions jump through.
    pub ops: ibv_context_ops,
    /// Descriptor of commands.
    pub cmd_fd: c_int,
    /// Becomes readable with an asynchronous event.
    pub async_fd: c_int,
    /// Completion vectors (interrupts) of the device.
    pub num_comp_vectors: c_int,
    /// Belongs to libibverbs.
    pub mutex: libc::pthread_mutex_t,
    /// All ones if a `verbs_context` lies around this context.
    pub abi_compat: *mut c_void,
}

/// [`ibv_device_attr::atomic_cap`]: no atomics.
pub const IBV_ATOMIC_NONE: u32 = 0;
/// [`ibv_device_attr::atomic_cap`]: atomic among queue pairs of this device.
pub const IBV_ATOMIC_HCA: u32 = 1;
/// [`ibv_device_attr::atomic_cap`]: atomic also with the CPU.
pub const IBV_ATOMIC_GLOB: u32 = 2;

/// What a device can do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "named as in every manual of verbs")]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: u32,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: u32,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// [`ibv_port_attr::state`]: no link.
pub const IBV_PORT_DOWN: u32 = 1;
/// [`ibv_port_attr::state`]: ready.
pub const IBV_PORT_ACTIVE: u32 = 4;
/// [`ibv_port_attr::link_layer`]: Ethernet, so RDMA is RoCE or iWARP.
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;
/// [`ibv_port_attr::link_layer`]: InfiniBand.
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;

/// MTUs are coded: 1 is 256 bytes, and each one more doubles.
pub const IBV_MTU_256: u32 = 1;
/// The largest MTU, 4096 bytes.
pub const IBV_MTU_4096: u32 = 5;

/// State and limits of a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "named as in every manual of verbs")]
pub struct ibv_port_attr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// A global identifier: an IPv6 address, or an IPv4 one mapped into it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_gid {
    /// Its bytes, as on the wire.
    pub raw: [u8; 16],
}

/// [`ibv_gid_entry::gid_type`]: InfiniBand.
pub const IBV_GID_TYPE_IB: u32 = 0;
/// [`ibv_gid_entry::gid_type`]: `RoCE` within one Ethernet segment.
pub const IBV_GID_TYPE_ROCE_V1: u32 = 1;
/// [`ibv_gid_entry::gid_type`]: `RoCE` over UDP, routable.
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;

/// An entry of a port's table of GIDs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_gid_entry {
    /// The identifier.
    pub gid: ibv_gid,
    /// Its index, for address vectors.
    pub gid_index: u32,
    /// Its port.
    pub port_num: u32,
    /// How packets with it look.
    pub gid_type: u32,
    /// Its network interface, 0 if none.
    pub ndev_ifindex: u32,
}

/// Where members of the structure around an [`ibv_context`] lie before it, in bytes. That structure
/// grows at its front, so distances never change.
pub mod before_context {
    /// `size_t`: the size of the structure around the context, itself included.
    pub const SZ: usize = 8;
    /// `create_qp_ex`.
    pub const CREATE_QP_EX: usize = 56;
    /// `create_cq_ex`.
    pub const CREATE_CQ_EX: usize = 120;
    /// `query_port`.
    pub const QUERY_PORT: usize = 320;
}

const _: () = assert!(offset_of!(ibv_device, transport_type) == 20);
const _: () = assert!(size_of::<ibv_context_ops>() == 256);
const _: () = assert!(offset_of!(ibv_context_ops, poll_cq) == 88);
const _: () = assert!(offset_of!(ibv_context_ops, req_notify_cq) == 96);
const _: () = assert!(offset_of!(ibv_context_ops, post_srq_recv) == 160);
const _: () = assert!(offset_of!(ibv_context_ops, post_send) == 200);
const _: () = assert!(offset_of!(ibv_context_ops, post_recv) == 208);
const _: () = assert!(offset_of!(ibv_context, ops) == 8);
const _: () = assert!(offset_of!(ibv_context, cmd_fd) == 264);
const _: () = assert!(offset_of!(ibv_context, async_fd) == 268);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(offset_of!(ibv_context, abi_compat) == 320);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<ibv_context>() == 328);
const _: () = assert!(size_of::<ibv_device_attr>() == 232);
const _: () = assert!(size_of::<ibv_port_attr>() == 52);
const _: () = assert!(offset_of!(ibv_port_attr, link_layer) == 46);
const _: () = assert!(size_of::<ibv_gid_entry>() == 32);
const _: () = assert!(offset_of!(ibv_gid_entry, gid_type) == 24);
