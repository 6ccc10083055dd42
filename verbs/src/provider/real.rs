//! libibverbs behind the seam.
//!
//! Objects hold those that they are made of by count, so that they end in the order that libibverbs
//! asks for: queue pairs, then completion queues, then registrations, then the device.

mod builder;
mod completions;
pub(crate) mod connection;
mod events;
mod interface;
mod queue_pair;
mod shared_receives;

use std::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;

use lunette_runtime::control;
use lunette_verbs_proto::gid::{GidEntry, GidKind};
use lunette_verbs_proto::negotiate;
use rdma_core_sys as sys;
use rdma_core_sys::{Library, Unavailable};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::{Access, Calls, DeviceInfo, Keys, SendRequest};
pub(crate) use completions::Completions;
use completions::Queue;
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

impl Shared {
    fn is_iwarp(&self) -> bool {
        // SAFETY: the context is live.
        let device = unsafe { self.context.as_ref() }.device;
        // SAFETY: a context keeps its device, whose kind never changes.
        unsafe { (*device).transport_type == sys::IBV_TRANSPORT_IWARP }
    }
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
    calls: Calls,
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
    pub(crate) fn open(
        name: &str,
        calls: Calls,
    ) -> Result<Option<Result<Self, Errno>>, Unavailable> {
        let library = Library::open()?;
        let devices = library.devices()?;
        let device = (0..devices.len())
            .map(|index| devices.device(index))
            .find(|device| name_of(library, *device) == name);
        Ok(device.map(|device| Self::open_found(library, device, name, calls)))
    }

    fn open_found(
        library: &'static Library,
        device: *mut sys::ibv_device,
        name: &str,
        calls: Calls,
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
            calls,
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
            is_iwarp: self.shared.is_iwarp(),
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
        let job = Job::new(&self.shared, address, len, access);
        // SAFETY: `self` keeps the domain; the rest is the caller's promise.
        let made = unsafe { job.run() }?;
        Ok(self.registered(made.0))
    }

    /// The same on the control thread: pages are locked and written down one by one.
    ///
    /// # Safety
    /// As [`RawDevice::register`](super::RawDevice::register), and the device stays until the call has
    /// ended, also if the future is dropped.
    pub(crate) async unsafe fn register_elsewhere(
        &self,
        address: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<(Memory, Keys), Errno> {
        let job = Job::new(&self.shared, address, len, access);
        // SAFETY: passed on from the caller.
        unsafe { self.elsewhere(job) }.await
    }

    /// A part of a dma-buf, whose first byte is named by `offset`, so that both lie at the same
    /// place of their page; on the control thread too.
    ///
    /// # Safety
    /// The device stays until the call has ended, also if the future is dropped.
    pub(crate) async unsafe fn register_dma_buf(
        &self,
        dma_buf: OwnedFd,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<(Memory, Keys), Errno> {
        let job = Job {
            dma_buf: Some((dma_buf, offset)),
            ..Job::new(&self.shared, std::ptr::null_mut(), len, access)
        };
        // SAFETY: passed on from the caller; nothing of this machine's memory is named.
        unsafe { self.elsewhere(job) }.await
    }

    /// # Safety
    /// As [`Self::register_elsewhere`].
    async unsafe fn elsewhere(&self, job: Job) -> Result<(Memory, Keys), Errno> {
        // SAFETY: the caller keeps the device, and so the domain, and what is registered.
        let made = control(move || unsafe { job.run() }).await;
        match made {
            Ok(made) => Ok(self.registered(made?.0)),
            Err(error) if error.is_backpressure() => Err(Errno::AGAIN),
            Err(_) => Err(Errno::IO),
        }
    }

    fn registered(&self, region: NonNull<sys::ibv_mr>) -> (Memory, Keys) {
        // SAFETY: the registration is live and its keys never change.
        let known = unsafe { region.as_ref() };
        let keys = Keys {
            lkey: known.lkey,
            rkey: known.rkey,
        };
        let shared = Rc::clone(&self.shared);
        (Memory { shared, region }, keys)
    }

    pub(crate) fn completions(&self, entries: u32) -> Result<Completions, Errno> {
        Completions::create(&self.shared, self.calls, entries)
    }

    pub(crate) fn queue_pair(
        &self,
        completions: &Completions,
        receives: Option<&SharedReceives>,
        sizes: super::QueueSizes,
    ) -> Result<QueuePair, Errno> {
        QueuePair::create(
            &self.shared,
            self.calls,
            completions.queue(),
            receives,
            sizes,
        )
    }

    pub(crate) fn shared_receives(&self, depth: u32) -> Result<SharedReceives, Errno> {
        SharedReceives::create(&self.shared, depth)
    }
}

/// A registration to be made on any thread, as libibverbs allows.
struct Job {
    library: &'static Library,
    domain: NonNull<sys::ibv_pd>,
    address: *mut u8,
    /// Of a dma-buf instead: where in it.
    dma_buf: Option<(OwnedFd, u64)>,
    len: usize,
    bits: u32,
}

// SAFETY: libibverbs takes calls for one domain from any thread, and memory is named by its address. Holds
// until the call has been made.
unsafe impl Send for Job {}

/// A registration that was made.
struct Made(NonNull<sys::ibv_mr>);

// SAFETY: as above; it is handed over once, to the core that asked.
unsafe impl Send for Made {}

impl Job {
    fn new(shared: &Shared, address: *mut u8, len: usize, access: Access) -> Self {
        Self {
            library: shared.library,
            domain: shared.domain,
            address,
            dma_buf: None,
            len,
            bits: access_bits(access),
        }
    }

    /// # Safety
    /// The domain is live; for the rest see [`RawDevice::register`](super::RawDevice::register).
    unsafe fn run(self) -> Result<Made, Errno> {
        let Self {
            library,
            domain,
            address,
            dma_buf,
            len,
            bits,
        } = self;
        let (domain, start) = (domain.as_ptr(), address.cast());
        if let Some((dma_buf, offset)) = dma_buf {
            let register = library.ibv_reg_dmabuf_mr.ok_or(Errno::NOSYS)?;
            let bits = c_int::try_from(bits).expect("low bits");
            // SAFETY: the domain is live. What a dma-buf names is memory of its exporter, which the
            // kernel keeps for the registration; nothing of it is borrowed by safe code.
            let region =
                unsafe { register(domain, offset, len, offset, dma_buf.as_raw_fd(), bits) };
            return made(region).map(Made);
        }
        let optional = bits & sys::IBV_ACCESS_OPTIONAL_RANGE != 0;
        let region = match library.ibv_reg_mr_iova2 {
            // Bits that a kernel may not know go this way alone.
            Some(register) if optional => {
                // SAFETY: the domain is live; the range is the caller's promise.
                unsafe { register(domain, start, len, address.addr() as u64, bits) }
            }
            _ => {
                let required = bits & !sys::IBV_ACCESS_OPTIONAL_RANGE;
                let required = c_int::try_from(required).expect("low bits");
                // SAFETY: as above.
                unsafe { (library.ibv_reg_mr)(domain, start, len, required) }
            }
        };
        made(region).map(Made)
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

/// The flags of a work request.
const fn send_flags(request: &SendRequest) -> u32 {
    let signalled = if request.is_signalled {
        sys::IBV_SEND_SIGNALED
    } else {
        0
    };
    let inline = if request.is_inline {
        sys::IBV_SEND_INLINE
    } else {
        0
    };
    signalled | inline
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
