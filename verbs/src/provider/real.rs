//! libibverbs behind the seam.
//!
//! Objects hold those that they are made of by count, so that they end in the order that libibverbs
//! asks for: queue pairs, then completion queues, then registrations, then the device.

mod interface;
mod queue_pair;
mod shared_receives;

use std::ffi::{CStr, c_int};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use lunette_verbs_proto::gid::{GidEntry, GidKind};
use lunette_verbs_proto::negotiate;
use rdma_core_sys as sys;
use rdma_core_sys::{Library, Unavailable};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::{Access, Completion, DeviceEvent, DeviceInfo, Keys, POLL_COMPLETIONS_MAX};
pub(crate) use queue_pair::QueuePair;
pub(crate) use shared_receives::SharedReceives;

/// The port that is used; adapters of today have one per device.
const PORT: u8 = 1;
/// Most entries of a port's table of addresses that are looked at.
const GIDS_MAX: usize = 256;

/// What every object of a device holds.
#[derive(Debug)]
struct Shared {
    library: &'static Library,
    context: NonNull<sys::ibv_context>,
    domain: NonNull<sys::ibv_pd>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the domain is live, and everything made in it held this by count and is gone.
        let ended = unsafe { (self.library.ibv_dealloc_pd)(self.domain.as_ptr()) };
        debug_assert_eq!(ended, 0, "nothing is left in the domain");
        // SAFETY: as above, of the context.
        let ended = unsafe { (self.library.ibv_close_device)(self.context.as_ptr()) };
        debug_assert_eq!(ended, 0, "nothing is left of the context");
    }
}

/// An opened device.
#[derive(Debug)]
pub(crate) struct Device {
    shared: Rc<Shared>,
    name: String,
}

/// The names of the devices of this machine.
pub(crate) fn names() -> Result<Vec<String>, Unavailable> {
    let library = Library::open()?;
    let devices = library.devices()?;
    Ok((0..devices.len())
        .map(|index| name_of(library, devices.device(index)))
        .collect())
}

fn name_of(library: &Library, device: *mut sys::ibv_device) -> String {
    // SAFETY: the device is of a live list; the name lives as long. Ends with the call.
    let name = unsafe { (library.ibv_get_device_name)(device) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: a name is a C string, live as long as the device.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_string_lossy().into_owned()
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error()
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}

/// An object that a function made, or why not.
fn made<T>(object: *mut T) -> Result<NonNull<T>, Errno> {
    NonNull::new(object).ok_or_else(last_errno)
}

/// The end of a function that answers with an errno.
fn ended(code: c_int) -> Result<(), Errno> {
    match code {
        0 => Ok(()),
        // Some functions answer -1 and set errno, most answer the errno itself.
        -1 => Err(last_errno()),
        code => Err(Errno::from_raw_os_error(code.abs())),
    }
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)
}

impl Device {
    /// Opens the device of this name. `None`: there is no such device.
    pub(crate) fn open(name: &str) -> Result<Option<Result<Self, Errno>>, Unavailable> {
        let library = Library::open()?;
        let devices = library.devices()?;
        let device = (0..devices.len())
            .map(|index| devices.device(index))
            .find(|device| name_of(library, *device) == name);
        Ok(device.map(|device| Self::open_found(library, device, name)))
    }

    fn open_found(
        library: &'static Library,
        device: *mut sys::ibv_device,
        name: &str,
    ) -> Result<Self, Errno> {
        // SAFETY: the device is of a live list. The context ends in `Shared::drop`, or below.
        let context = made(unsafe { (library.ibv_open_device)(device) })?;
        // SAFETY: the context is live. The domain ends in `Shared::drop`.
        let domain = made(unsafe { (library.ibv_alloc_pd)(context.as_ptr()) });
        let domain = domain.inspect_err(|_| {
            // SAFETY: nothing was made of the context.
            let closed = unsafe { (library.ibv_close_device)(context.as_ptr()) };
            debug_assert_eq!(closed, 0, "an unused context closes");
        })?;
        let device = Self {
            shared: Rc::new(Shared {
                library,
                context,
                domain,
            }),
            name: name.to_owned(),
        };
        set_nonblocking(device.event_fd())?;
        Ok(device)
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is live.
        let fd = unsafe { self.shared.context.as_ref() }.async_fd;
        // SAFETY: the descriptor is open as long as the context is, which `self` holds.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// A duplicate of the descriptor that can be read when there is an event.
    pub(crate) fn events(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(self.event_fd(), 0)
    }

    pub(crate) fn info(&self) -> Result<DeviceInfo, Errno> {
        let (library, context) = (self.shared.library, self.shared.context.as_ptr());
        let mut attr = std::mem::MaybeUninit::<sys::ibv_device_attr>::zeroed();
        // SAFETY: the context is live and the structure is written up to its size.
        ended(unsafe { (library.ibv_query_device)(context, attr.as_mut_ptr()) })?;
        // SAFETY: zeroed, and all its members are integers.
        let attr = unsafe { attr.assume_init() };
        let mut port = sys::ibv_port_attr::default();
        // SAFETY: the context is live and of this library.
        ended(unsafe { sys::inline::ibv_query_port(library, context, PORT, &mut port) })?;
        let small = |number: c_int| u8::try_from(number.clamp(0, 255)).expect("clamped");
        let wide = |number: c_int| u32::try_from(number).unwrap_or(0);
        Ok(DeviceInfo {
            name: self.name.clone(),
            is_active: port.state == sys::IBV_PORT_ACTIVE,
            is_ethernet: port.link_layer == sys::IBV_LINK_LAYER_ETHERNET,
            lid: port.lid,
            mtu_bytes: negotiate::mtu_from_code(port.active_mtu).ok_or(Errno::PROTO)?,
            gids: self.gids(),
            queue_depth_max: wide(attr.max_qp_wr),
            completions_max: wide(attr.max_cqe),
            reads_out_max: small(attr.max_qp_init_rd_atom),
            reads_in_max: small(attr.max_qp_rd_atom),
            has_atomics: attr.atomic_cap != sys::IBV_ATOMIC_NONE,
        })
    }

    /// The port's addresses; none where the library is too old to tell their kinds.
    fn gids(&self) -> Vec<GidEntry> {
        let Some(query) = self.shared.library.ibv_query_gid_table else {
            return Vec::new();
        };
        let mut entries = vec![sys::ibv_gid_entry::default(); GIDS_MAX];
        let size = size_of::<sys::ibv_gid_entry>();
        let context = self.shared.context.as_ptr();
        // SAFETY: the context is live; at most GIDS_MAX entries of this size are written.
        let count = unsafe { query(context, entries.as_mut_ptr(), GIDS_MAX, 0, size) };
        entries.truncate(usize::try_from(count).unwrap_or(0));
        let of_port = entries
            .iter()
            .filter(|entry| entry.port_num == u32::from(PORT));
        of_port.filter_map(gid_entry).collect()
    }

    /// # Safety
    /// As [`RawDevice::register`](super::RawDevice::register).
    pub(crate) unsafe fn register(
        &self,
        address: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<(Memory, Keys), Errno> {
        let shared = &self.shared;
        let (domain, bits) = (shared.domain.as_ptr(), access_bits(access));
        let start = address.cast();
        let optional = bits & sys::IBV_ACCESS_OPTIONAL_RANGE != 0;
        let region = match shared.library.ibv_reg_mr_iova2 {
            // Bits that a kernel may not know go this way alone.
            Some(register) if optional => {
                // SAFETY: the domain is live; the range is the caller's promise.
                unsafe { register(domain, start, len, address.addr() as u64, bits) }
            }
            _ => {
                let required = bits & !sys::IBV_ACCESS_OPTIONAL_RANGE;
                let required = c_int::try_from(required).expect("low bits");
                // SAFETY: as above.
                unsafe { (shared.library.ibv_reg_mr)(domain, start, len, required) }
            }
        };
        let region = made(region)?;
        // SAFETY: the registration is live and its keys never change.
        let known = unsafe { region.as_ref() };
        let keys = Keys {
            lkey: known.lkey,
            rkey: known.rkey,
        };
        let memory = Memory {
            shared: Rc::clone(shared),
            region,
        };
        Ok((memory, keys))
    }

    pub(crate) fn completions(&self, entries: u32) -> Result<Completions, Errno> {
        let (library, context) = (self.shared.library, self.shared.context.as_ptr());
        let entries = c_int::try_from(entries).map_err(|_| Errno::INVAL)?;
        // SAFETY: the context is live. The channel ends in `Completions::drop`, or below.
        let channel = made(unsafe { (library.ibv_create_comp_channel)(context) })?;
        // SAFETY: context and channel are live; the vector 0 always exists.
        let queue = made(unsafe {
            (library.ibv_create_cq)(context, entries, ptr::null_mut(), channel.as_ptr(), 0)
        });
        let queue = queue.inspect_err(|_| {
            // SAFETY: nothing uses the channel.
            let closed = unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            debug_assert_eq!(closed, 0, "an unused channel closes");
        })?;
        let inner = Rc::new(Queue {
            shared: Rc::clone(&self.shared),
            queue,
            channel,
        });
        let completions = Completions {
            inner,
            scratch: vec![sys::ibv_wc::default(); POLL_COMPLETIONS_MAX].into(),
            unacknowledged: 0,
        };
        set_nonblocking(completions.event_fd())?;
        Ok(completions)
    }

    pub(crate) fn queue_pair(
        &self,
        completions: &Completions,
        receives: Option<&SharedReceives>,
        sizes: super::QueueSizes,
    ) -> Result<QueuePair, Errno> {
        QueuePair::create(&self.shared, &completions.inner, receives, sizes)
    }

    pub(crate) fn shared_receives(&self, depth: u32) -> Result<SharedReceives, Errno> {
        SharedReceives::create(&self.shared, depth)
    }

    pub(crate) fn next_event(&self) -> Option<DeviceEvent> {
        let (library, context) = (self.shared.library, self.shared.context.as_ptr());
        let mut event = sys::ibv_async_event::default();
        // SAFETY: the context is live, its descriptor does not block, and the event is ours.
        let got = unsafe { (library.ibv_get_async_event)(context, &raw mut event) };
        if got != 0 {
            return None;
        }
        // SAFETY: the event came from this library and is acknowledged once.
        unsafe { (library.ibv_ack_async_event)(&raw mut event) };
        Some(match event.event_type {
            sys::event_type::PORT_ACTIVE => DeviceEvent::PortActive,
            sys::event_type::PORT_ERR => DeviceEvent::PortDown,
            sys::event_type::GID_CHANGE | sys::event_type::LID_CHANGE => {
                DeviceEvent::AddressesChanged
            }
            sys::event_type::CQ_ERR => DeviceEvent::CompletionQueueBroken,
            sys::event_type::QP_FATAL => DeviceEvent::QueuePairBroken,
            sys::event_type::DEVICE_FATAL => DeviceEvent::DeviceLost,
            other => DeviceEvent::Other(other),
        })
    }
}

fn gid_entry(entry: &sys::ibv_gid_entry) -> Option<GidEntry> {
    let kind = match entry.gid_type {
        sys::IBV_GID_TYPE_IB => GidKind::InfiniBand,
        sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        sys::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        _ => return None,
    };
    Some(GidEntry {
        index: u8::try_from(entry.gid_index).ok()?,
        gid: entry.gid.raw,
        kind,
        is_up: interface::is_up(entry.ndev_ifindex),
    })
}

fn access_bits(access: Access) -> u32 {
    let when = |condition: bool, bit: u32| if condition { bit } else { 0 };
    sys::IBV_ACCESS_LOCAL_WRITE
        | when(access.remote_read, sys::IBV_ACCESS_REMOTE_READ)
        | when(access.remote_write, sys::IBV_ACCESS_REMOTE_WRITE)
        | when(access.remote_atomic, sys::IBV_ACCESS_REMOTE_ATOMIC)
        | when(access.relaxed_ordering, sys::IBV_ACCESS_RELAXED_ORDERING)
}

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Memory {
    shared: Rc<Shared>,
    region: NonNull<sys::ibv_mr>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the registration is live and ends once.
        let gone = unsafe { (self.shared.library.ibv_dereg_mr)(self.region.as_ptr()) };
        debug_assert_eq!(gone, 0, "a registration ends");
    }
}

/// A completion queue and its channel, as queue pairs hold them.
#[derive(Debug)]
struct Queue {
    shared: Rc<Shared>,
    queue: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        let library = self.shared.library;
        // SAFETY: the queue is live, its queue pairs held it by count and are gone, and its events
        // are acknowledged as they are taken, so this does not wait.
        let gone = unsafe { (library.ibv_destroy_cq)(self.queue.as_ptr()) };
        debug_assert_eq!(gone, 0, "an unused queue ends");
        // SAFETY: the only queue of the channel is gone.
        let gone = unsafe { (library.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        debug_assert_eq!(gone, 0, "an unused channel ends");
    }
}

/// A completion queue, as its owner polls it.
#[derive(Debug)]
pub(crate) struct Completions {
    inner: Rc<Queue>,
    scratch: Box<[sys::ibv_wc]>,
    unacknowledged: u32,
}

/// Events are acknowledged in batches, since that takes a lock.
const EVENTS_PER_ACK: u32 = 16;

impl Completions {
    pub(crate) fn poll(&mut self, out: &mut [Completion]) -> Result<usize, Errno> {
        let wanted = out.len().min(POLL_COMPLETIONS_MAX);
        let entries = c_int::try_from(wanted).expect("few");
        let (queue, scratch) = (self.inner.queue.as_ptr(), self.scratch.as_mut_ptr());
        // SAFETY: the queue is live and owned by this core; the scratch has room for `entries`.
        let count = unsafe { sys::inline::ibv_poll_cq(queue, entries, scratch) };
        let count = usize::try_from(count).map_err(|_| Errno::IO)?;
        for (place, found) in out.iter_mut().zip(&self.scratch[..count]) {
            let has_immediate = found.wc_flags & sys::IBV_WC_WITH_IMM != 0;
            *place = Completion {
                id: found.wr_id,
                status: found.status,
                len_bytes: found.byte_len,
                immediate: has_immediate.then(|| u32::from_be(found.imm_data)),
                pair: found.qp_num,
            };
        }
        Ok(count)
    }

    pub(crate) fn arm(&self) -> Result<(), Errno> {
        // SAFETY: the queue is live and has a channel.
        ended(unsafe { sys::inline::ibv_req_notify_cq(self.inner.queue.as_ptr(), 0) })
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live.
        let fd = unsafe { self.inner.channel.as_ref() }.fd;
        // SAFETY: the descriptor is open as long as the channel is, which `self` holds.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// A duplicate of the channel's descriptor.
    pub(crate) fn channel(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(self.event_fd(), 0)
    }

    pub(crate) fn take_events(&mut self) -> usize {
        let library = self.inner.shared.library;
        let mut taken = 0;
        while self.has_event() {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            let channel = self.inner.channel.as_ptr();
            // SAFETY: the channel is live and does not block; both places are ours.
            let got =
                unsafe { (library.ibv_get_cq_event)(channel, &raw mut queue, &raw mut context) };
            if got != 0 {
                break;
            }
            taken += 1;
            self.unacknowledged += 1;
            if self.unacknowledged >= EVENTS_PER_ACK {
                self.acknowledge();
            }
        }
        taken
    }

    /// Looks before it reads: the library complains aloud about a read that would block.
    fn has_event(&self) -> bool {
        let fd = self.event_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&rustix::time::Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn acknowledge(&mut self) {
        let count = std::mem::take(&mut self.unacknowledged);
        if count > 0 {
            let queue = self.inner.queue.as_ptr();
            // SAFETY: the queue is live; so many of its events were taken and not acknowledged.
            unsafe { (self.inner.shared.library.ibv_ack_cq_events)(queue, count) };
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // Its end waits for this.
        self.acknowledge();
    }
}
