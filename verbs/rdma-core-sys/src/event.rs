//! Asynchronous events.

use std::mem::size_of;

/// Something that happened to a device, a port or a queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_async_event {
    /// A pointer to the queue, or the number of the port, as the kind says.
    pub element: u64,
    /// Of [`event_type`], or one that is not known here.
    pub event_type: u32,
}

/// Values of [`ibv_async_event::event_type`].
pub mod event_type {
    /// A completion queue overflowed or broke.
    pub const CQ_ERR: u32 = 0;
    /// A queue pair broke.
    pub const QP_FATAL: u32 = 1;
    /// The transport detected a violation by the peer.
    pub const QP_REQ_ERR: u32 = 2;
    /// The peer reached for memory that it may not reach.
    pub const QP_ACCESS_ERR: u32 = 3;
    /// A packet came before the queue pair was ready to send.
    pub const COMM_EST: u32 = 4;
    /// The send queue drained.
    pub const SQ_DRAINED: u32 = 5;
    /// Packets take the other path from now on.
    pub const PATH_MIG: u32 = 6;
    /// There is no other path to take.
    pub const PATH_MIG_ERR: u32 = 7;
    /// The device is lost.
    pub const DEVICE_FATAL: u32 = 8;
    /// The link came back.
    pub const PORT_ACTIVE: u32 = 9;
    /// The link went away.
    pub const PORT_ERR: u32 = 10;
    /// The address on an InfiniBand subnet changed.
    pub const LID_CHANGE: u32 = 11;
    /// A shared receive queue broke.
    pub const SRQ_ERR: u32 = 14;
    /// A shared receive queue runs low.
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    /// A queue pair in error took its last receive from a shared queue.
    pub const QP_LAST_WQE_REACHED: u32 = 16;
    /// The table of GIDs changed.
    pub const GID_CHANGE: u32 = 18;
}

const _: () = assert!(size_of::<ibv_async_event>() == 16);
