//! Connections of librdmacm: channels, ids, events.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use rdma_core_sys as sys;
use rdma_core_sys::{CmLibrary, Library, Unavailable, cm_event_type as kind};
use rustix::io::Errno;

use super::{ended, last_errno, made, name_of, set_nonblocking};

/// Connections that wait at a listener.
const BACKLOG: c_int = 64;

/// Where events arrive.
#[derive(Debug)]
struct Channel {
    library: &'static CmLibrary,
    channel: NonNull<sys::rdma_event_channel>,
}

impl Channel {
    fn new(library: &'static CmLibrary) -> Result<Self, Errno> {
        // SAFETY: takes nothing. The channel ends in `drop`.
        let channel = made(unsafe { (library.rdma_create_event_channel)() })?;
        let channel = Self { library, channel };
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live.
        let fd = unsafe { self.channel.as_ref() }.fd;
        // SAFETY: the descriptor is open as long as the channel is, which `self` holds.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its ids held it and are gone; its events are given back as they are taken.
        unsafe { (self.library.rdma_destroy_event_channel)(self.channel.as_ptr()) };
    }
}

/// A connection or a listener, with a channel of its own.
#[derive(Debug)]
pub(crate) struct Id {
    id: NonNull<sys::rdma_cm_id>,
    // After the id, which uses it.
    channel: Rc<Channel>,
}

/// What happened to a connection.
#[derive(Debug)]
pub(crate) enum What {
    /// One step further: address, then route.
    Resolved,
    /// A peer asks.
    Request(Id),
    /// The peer accepted; the queue pair is ours to move on, then [`Id::establish`].
    Response,
    Established,
    Rejected,
    Unreachable,
    Disconnected,
    DeviceGone,
    /// Anything else.
    Other,
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) what: What,
    pub(crate) said: Said,
}

/// What an event says, of the peer or of a failure.
#[derive(Debug)]
pub(crate) struct Said {
    /// An errno, negative, or a reason of the transport.
    pub(crate) status: c_int,
    /// Reads and atomics of the peer that this side is to serve at a time.
    pub(crate) reads_in: u8,
    /// Reads and atomics that this side may have in flight.
    pub(crate) reads_out: u8,
    pub(crate) data: Vec<u8>,
}

/// What this side asks of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asks<'a> {
    pub(crate) reads_in: u8,
    pub(crate) reads_out: u8,
    pub(crate) retries: u8,
    pub(crate) receiver_not_ready_retries: u8,
    pub(crate) has_shared_receives: bool,
    pub(crate) pair: u32,
    pub(crate) data: &'a [u8],
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the id is live and ends once; its events are given back as they are taken, so
        // this does not wait.
        let gone = unsafe { (self.channel.library.rdma_destroy_id)(self.id.as_ptr()) };
        debug_assert_eq!(gone, 0, "an id ends");
    }
}

/// The library, or why it cannot be used.
pub(crate) fn library() -> Result<&'static CmLibrary, Unavailable> {
    // Its devices are those of libibverbs.
    Library::open()?.devices()?;
    CmLibrary::open()
}

impl Id {
    pub(crate) fn new(library: &'static CmLibrary) -> Result<Self, Errno> {
        let channel = Rc::new(Channel::new(library)?);
        let mut id = ptr::null_mut();
        let (place, nothing) = (&raw mut id, ptr::null_mut());
        let create = library.rdma_create_id;
        // SAFETY: the channel is live and the place is ours. The id ends in `drop`.
        ended(unsafe { create(channel.channel.as_ptr(), place, nothing, sys::RDMA_PS_TCP) })?;
        let id = NonNull::new(id).ok_or(Errno::IO)?;
        Ok(Self { id, channel })
    }

    fn library(&self) -> &'static CmLibrary {
        self.channel.library
    }

    /// A duplicate of the descriptor that can be read when there is an event.
    pub(crate) fn events(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(self.channel.fd(), 0)
    }

    /// Lets peers ask at this address.
    pub(crate) fn listen(&self, address: SocketAddr) -> Result<(), Errno> {
        let mut address = RawAddress::from(address);
        // SAFETY: the id is live; the address is ours, of the length that its family says.
        ended(unsafe { (self.library().rdma_bind_addr)(self.id.as_ptr(), address.as_ptr()) })?;
        // SAFETY: the id is live and bound.
        ended(unsafe { (self.library().rdma_listen)(self.id.as_ptr(), BACKLOG) })
    }

    pub(crate) fn port(&self) -> u16 {
        // SAFETY: the id is live.
        u16::from_be(unsafe { (self.library().rdma_get_src_port)(self.id.as_ptr()) })
    }

    /// Looks for the device that reaches `to`, from `from` if that is given.
    pub(crate) fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout_ms: c_int,
    ) -> Result<(), Errno> {
        let (mut from, mut to) = (from.map(RawAddress::from), RawAddress::from(to));
        let from = from.as_mut().map_or(ptr::null_mut(), RawAddress::as_ptr);
        let resolve = self.library().rdma_resolve_addr;
        // SAFETY: the id is live; both addresses are ours, the first null or live.
        ended(unsafe { resolve(self.id.as_ptr(), from, to.as_ptr(), timeout_ms) })
    }

    pub(crate) fn resolve_route(&self, timeout_ms: c_int) -> Result<(), Errno> {
        // SAFETY: the id is live.
        ended(unsafe { (self.library().rdma_resolve_route)(self.id.as_ptr(), timeout_ms) })
    }

    pub(crate) fn connect(&self, asks: &Asks<'_>) -> Result<(), Errno> {
        let mut asked = parameters(asks);
        // SAFETY: the id is live; what the peer is told is copied by the call.
        ended(unsafe { (self.library().rdma_connect)(self.id.as_ptr(), &raw mut asked) })
    }

    pub(crate) fn accept(&self, asks: &Asks<'_>) -> Result<(), Errno> {
        let mut asked = parameters(asks);
        // SAFETY: as in `connect`.
        ended(unsafe { (self.library().rdma_accept)(self.id.as_ptr(), &raw mut asked) })
    }

    pub(crate) fn establish(&self) -> Result<(), Errno> {
        // SAFETY: the id is live.
        ended(unsafe { (self.library().rdma_establish)(self.id.as_ptr()) })
    }

    pub(crate) fn reject(&self, data: &[u8]) -> Result<(), Errno> {
        let len = u8::try_from(data.len()).map_err(|_| Errno::INVAL)?;
        let reject = self.library().rdma_reject;
        // SAFETY: the id is live; the bytes are copied by the call.
        ended(unsafe { reject(self.id.as_ptr(), data.as_ptr().cast(), len) })
    }

    pub(crate) fn disconnect(&self) {
        // SAFETY: the id is live. One that is not connected is refused, which is what was wanted.
        let _refused = unsafe { (self.library().rdma_disconnect)(self.id.as_ptr()) };
    }

    /// The name of its device, once it has one.
    pub(crate) fn device_name(&self) -> Option<String> {
        // SAFETY: the id is live.
        let context = NonNull::new(unsafe { self.id.as_ref() }.verbs)?;
        // SAFETY: the library keeps the contexts of its ids open.
        let device = unsafe { context.as_ref() }.device;
        Some(name_of(Library::open().ok()?, device))
    }

    /// What a queue pair needs for a state, and which of its attributes.
    pub(super) fn attributes(&self, state: u32) -> Result<(sys::ibv_qp_attr, u32), Errno> {
        let mut attr = sys::ibv_qp_attr {
            qp_state: state,
            ..sys::ibv_qp_attr::default()
        };
        let mut mask = 0;
        let init = self.library().rdma_init_qp_attr;
        // SAFETY: the id is live; both places are ours.
        ended(unsafe { init(self.id.as_ptr(), &raw mut attr, &raw mut mask) })?;
        Ok((attr, mask.cast_unsigned()))
    }

    /// The next event, if there is one.
    pub(crate) fn next_event(&self) -> Result<Option<Event>, Errno> {
        let (library, mut event) = (self.library(), ptr::null_mut());
        let (take, channel) = (library.rdma_get_cm_event, self.channel.channel.as_ptr());
        // SAFETY: the channel is live and does not block; the place is ours.
        if unsafe { take(channel, &raw mut event) } != 0 {
            return match last_errno() {
                Errno::AGAIN | Errno::INTR => Ok(None),
                errno => Err(errno),
            };
        }
        let event = NonNull::new(event).ok_or(Errno::IO)?;
        // SAFETY: the event is live until it is given back below.
        let seen = copied(unsafe { event.as_ref() });
        // SAFETY: the event came from this library and is given back once.
        ended(unsafe { (library.rdma_ack_cm_event)(event.as_ptr()) })?;
        // Moved after that: it waits for the event.
        let what = match seen.incoming {
            None => of_kind(seen.kind),
            Some(id) => What::Request(self.moved(id)?),
        };
        let said = seen.said;
        Ok(Some(Event { what, said }))
    }

    /// A connection that came by a listener, on a channel of its own.
    fn moved(&self, id: NonNull<sys::rdma_cm_id>) -> Result<Self, Errno> {
        // Held from here on: it ends with this on failure.
        let mut incoming = Self {
            id,
            channel: Rc::clone(&self.channel),
        };
        let channel = Channel::new(self.library())?;
        let migrate = self.library().rdma_migrate_id;
        // SAFETY: both are live, and the id's events have been given back.
        ended(unsafe { migrate(id.as_ptr(), channel.channel.as_ptr()) })?;
        incoming.channel = Rc::new(channel);
        Ok(incoming)
    }
}

/// What an event says, before it is given back.
struct Seen {
    kind: u32,
    incoming: Option<NonNull<sys::rdma_cm_id>>,
    said: Said,
}

fn copied(event: &sys::rdma_cm_event) -> Seen {
    let is_request = event.event == kind::CONNECT_REQUEST;
    let conn = &event.conn;
    let len = usize::from(conn.private_data_len);
    let data = if len == 0 || conn.private_data.is_null() {
        Vec::new()
    } else {
        // SAFETY: an event's bytes live as long as it does. Ends with the copy.
        unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len) }.to_vec()
    };
    Seen {
        kind: event.event,
        incoming: NonNull::new(event.id).filter(|_| is_request),
        said: Said {
            status: event.status,
            reads_in: conn.responder_resources,
            reads_out: conn.initiator_depth,
            data,
        },
    }
}

const fn of_kind(code: u32) -> What {
    match code {
        kind::ADDR_RESOLVED | kind::ROUTE_RESOLVED => What::Resolved,
        kind::CONNECT_RESPONSE => What::Response,
        kind::ESTABLISHED => What::Established,
        kind::REJECTED => What::Rejected,
        kind::ADDR_ERROR | kind::ROUTE_ERROR | kind::CONNECT_ERROR | kind::UNREACHABLE => {
            What::Unreachable
        }
        kind::DISCONNECTED => What::Disconnected,
        kind::DEVICE_REMOVAL => What::DeviceGone,
        _ => What::Other,
    }
}

fn parameters(asks: &Asks<'_>) -> sys::rdma_conn_param {
    sys::rdma_conn_param {
        private_data: asks.data.as_ptr().cast(),
        private_data_len: u8::try_from(asks.data.len()).expect("bounded by its caller"),
        responder_resources: asks.reads_in,
        initiator_depth: asks.reads_out,
        flow_control: 1,
        retry_count: asks.retries,
        rnr_retry_count: asks.receiver_not_ready_retries,
        srq: u8::from(asks.has_shared_receives),
        qp_num: asks.pair,
    }
}

/// An address as the system has it.
enum RawAddress {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        let family = |family: c_int| libc::sa_family_t::try_from(family).expect("families are few");
        match address {
            SocketAddr::V4(address) => Self::V4(libc::sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(address.ip().octets()),
                },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(address) => Self::V6(libc::sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: address.ip().octets(),
                },
                sin6_scope_id: address.scope_id(),
            }),
        }
    }
}

impl RawAddress {
    const fn as_ptr(&mut self) -> *mut libc::sockaddr {
        match self {
            Self::V4(address) => ptr::from_mut(address).cast(),
            Self::V6(address) => ptr::from_mut(address).cast(),
        }
    }
}
