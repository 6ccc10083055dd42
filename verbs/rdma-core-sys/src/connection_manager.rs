//! librdmacm: connections by IP address, for peers and transports that know no other way.
//!
//! Its functions are opened apart from those of libibverbs: a machine may well have only the latter.
//! The queue pair stays the program's own: it is named to the manager by number, and moved through
//! its states with what [`CmLibrary::rdma_init_qp_attr`] says.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::OnceLock;

use crate::device::ibv_context;
use crate::library::{Unavailable, functions, open_for_good};
use crate::queue_pair::ibv_qp_attr;

/// The name under which every distribution has the library.
const LIBRARY_NAME: &str = "librdmacm.so.1";

/// The port space of reliable connections.
pub const RDMA_PS_TCP: c_int = 0x0106;

/// Values of [`rdma_cm_event::event`].
pub mod cm_event_type {
    /// The peer's address is known, and the device that reaches it.
    pub const ADDR_RESOLVED: u32 = 0;
    /// It is not to be known.
    pub const ADDR_ERROR: u32 = 1;
    /// The way to the peer is known.
    pub const ROUTE_RESOLVED: u32 = 2;
    /// There is none.
    pub const ROUTE_ERROR: u32 = 3;
    /// A peer asks: the event's id is a new one.
    pub const CONNECT_REQUEST: u32 = 4;
    /// The peer accepted; the queue pair is the program's to move on.
    pub const CONNECT_RESPONSE: u32 = 5;
    /// Connecting failed.
    pub const CONNECT_ERROR: u32 = 6;
    /// The peer does not answer.
    pub const UNREACHABLE: u32 = 7;
    /// The peer said no.
    pub const REJECTED: u32 = 8;
    /// Connected.
    pub const ESTABLISHED: u32 = 9;
    /// The peer, or this side, ended the connection.
    pub const DISCONNECTED: u32 = 10;
    /// The device is gone.
    pub const DEVICE_REMOVAL: u32 = 11;
    /// The number of an ended connection may be used again.
    pub const TIMEWAIT_EXIT: u32 = 15;
}

/// Where events of connections arrive.
#[repr(C)]
#[derive(Debug)]
pub struct rdma_event_channel {
    /// Becomes readable with an event.
    pub fd: c_int,
}

/// A connection, or a listener. Members behind these belong to the library.
#[repr(C)]
#[derive(Debug)]
pub struct rdma_cm_id {
    /// The library's own context of the device that it is bound to, or null.
    pub verbs: *mut ibv_context,
    /// Where its events arrive.
    pub channel: *mut rdma_event_channel,
    /// The owner's.
    pub context: *mut c_void,
}

/// What a side asks of a connection.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_conn_param {
    /// Bytes for the peer, or of the peer.
    pub private_data: *const c_void,
    /// Their number.
    pub private_data_len: u8,
    /// Reads and atomics of the peer that this side serves at a time.
    pub responder_resources: u8,
    /// Reads and atomics that this side has in flight.
    pub initiator_depth: u8,
    /// Whether the hardware controls the flow.
    pub flow_control: u8,
    /// How often a packet is sent again; of the side that connects.
    pub retry_count: u8,
    /// How often a message is sent again that met no receive.
    pub rnr_retry_count: u8,
    /// Whether the queue pair has shared receives.
    pub srq: u8,
    /// The queue pair.
    pub qp_num: u32,
}

/// Something that happened to a connection.
#[repr(C)]
#[derive(Debug)]
pub struct rdma_cm_event {
    /// Of which one.
    pub id: *mut rdma_cm_id,
    /// The listener that a new one came by.
    pub listen_id: *mut rdma_cm_id,
    /// Of [`cm_event_type`], or one that is not known here.
    pub event: u32,
    /// An errno, negative, or a reason of the transport.
    pub status: c_int,
    /// What the peer asks, of requests and responses.
    pub conn: rdma_conn_param,
}

functions! {
    /// The functions of librdmacm. Each is `unsafe` to call, with the rules of its manual page.
    CmLibrary
    required {
        /// Makes a channel, or null with `errno`.
        rdma_create_event_channel: fn() -> *mut rdma_event_channel;
        /// Ends a channel, whose ids are gone.
        rdma_destroy_event_channel: fn(*mut rdma_event_channel);
        /// Makes an id: channel, place, the owner's word, port space.
        rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int) -> c_int;
        /// Ends an id. Waits for its events to be acknowledged.
        rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
        /// Binds an id to a local address.
        rdma_bind_addr: fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        /// Finds the device that reaches an address: source or null, destination, milliseconds.
        rdma_resolve_addr: fn(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        /// Finds the way to the peer: milliseconds.
        rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
        /// Asks the peer.
        rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        /// Tells the peer that this side is ready.
        rdma_establish: fn(*mut rdma_cm_id) -> c_int;
        /// Lets peers ask: how many may wait.
        rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
        /// Answers yes.
        rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        /// Answers no: bytes for the peer.
        rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        /// Ends a connection.
        rdma_disconnect: fn(*mut rdma_cm_id) -> c_int;
        /// Takes an event.
        rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        /// Gives an event back.
        rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
        /// What a queue pair needs for the state that the attributes name, and which of them.
        rdma_init_qp_attr: fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
        /// Moves an id to another channel. Waits for its events to be acknowledged.
        rdma_migrate_id: fn(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        /// The local port in network byte order.
        rdma_get_src_port: fn(*mut rdma_cm_id) -> u16;
    }
    optional {}
}

impl CmLibrary {
    /// The library of this process, opened at the first call and never closed.
    ///
    /// # Errors
    /// [`Unavailable`], the same at every call.
    pub fn open() -> Result<&'static Self, Unavailable> {
        static LIBRARY: OnceLock<Result<CmLibrary, Unavailable>> = OnceLock::new();
        LIBRARY
            .get_or_init(|| open_for_good(LIBRARY_NAME, Self::of))
            .as_ref()
            .map_err(Clone::clone)
    }
}

const _: () = assert!(size_of::<rdma_conn_param>() == 24);
const _: () = assert!(offset_of!(rdma_conn_param, qp_num) == 16);
const _: () = assert!(offset_of!(rdma_cm_event, event) == 16);
const _: () = assert!(offset_of!(rdma_cm_event, conn) == 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_a_value() {
        if let Err(absent) = CmLibrary::open() {
            assert!(matches!(absent, Unavailable::NoLibrary { .. }), "{absent}");
        }
        let other = open_for_good("libc.so.6", CmLibrary::of).err();
        let name = "rdma_create_event_channel";
        assert_eq!(other, Some(Unavailable::SymbolMissing { name }));
    }
}
