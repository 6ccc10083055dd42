//! Completion queues of libibverbs and their channels: polled as arrays of completions, or, extended,
//! where the completions lie.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use rdma_core_sys as sys;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::super::{Calls, Completion, POLL_COMPLETIONS_MAX};
use super::{Shared, ended, made, set_nonblocking};

/// A completion queue and its channel, as queue pairs hold them.
#[derive(Debug)]
pub(super) struct Queue {
    shared: Rc<Shared>,
    pub(super) queue: NonNull<sys::ibv_cq>,
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
    way: Way,
    unacknowledged: u32,
}

/// How it is polled.
#[derive(Debug)]
enum Way {
    /// `ibv_poll_cq`, and room for what it finds.
    Array(Box<[sys::ibv_wc]>),
    /// The same queue as an extended one.
    InPlace(Extended),
}

/// An extended queue with the functions that read it; they never change.
#[derive(Debug)]
struct Extended {
    queue: NonNull<sys::ibv_cq_ex>,
    start: unsafe extern "C" fn(*mut sys::ibv_cq_ex, *mut sys::ibv_poll_cq_attr) -> c_int,
    end: unsafe extern "C" fn(*mut sys::ibv_cq_ex),
    len_bytes: Property,
    flags: Property,
    immediate: Property,
    pair: Property,
}

type Property = unsafe extern "C" fn(*mut sys::ibv_cq_ex) -> u32;

/// Events are acknowledged in batches, since that takes a lock.
const EVENTS_PER_ACK: u32 = 16;

impl Completions {
    pub(super) fn create(shared: &Rc<Shared>, calls: Calls, entries: u32) -> Result<Self, Errno> {
        let (library, context) = (shared.library, shared.context.as_ptr());
        // SAFETY: the context is live. The channel ends in `Queue::drop`, or below.
        let channel = made(unsafe { (library.ibv_create_comp_channel)(context) })?;
        let queue = make(shared, channel, calls, entries).inspect_err(|_| {
            // SAFETY: nothing uses the channel.
            let closed = unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            debug_assert_eq!(closed, 0, "an unused channel closes");
        });
        let (queue, way) = queue?;
        let completions = Self {
            inner: Rc::new(Queue {
                shared: Rc::clone(shared),
                queue,
                channel,
            }),
            way,
            unacknowledged: 0,
        };
        set_nonblocking(completions.event_fd())?;
        Ok(completions)
    }

    pub(super) const fn queue(&self) -> &Rc<Queue> {
        &self.inner
    }

    /// The queue's address, by which events name it.
    pub(crate) fn token(&self) -> u64 {
        self.inner.queue.as_ptr().addr() as u64
    }

    /// Whether completions are read where they lie.
    pub(crate) const fn is_extended(&self) -> bool {
        matches!(self.way, Way::InPlace(_))
    }

    pub(crate) fn poll(&mut self, out: &mut [Completion]) -> Result<usize, Errno> {
        let scratch = match &mut self.way {
            Way::InPlace(extended) => return extended.poll(out),
            Way::Array(scratch) => scratch,
        };
        let wanted = out.len().min(POLL_COMPLETIONS_MAX);
        let entries = c_int::try_from(wanted).expect("few");
        let queue = self.inner.queue.as_ptr();
        // SAFETY: the queue is live and owned by this core; the scratch has room for `entries`.
        let count = unsafe { sys::inline::ibv_poll_cq(queue, entries, scratch.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| Errno::IO)?;
        for (place, found) in out.iter_mut().zip(&scratch[..count]) {
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

/// A queue: extended, if that is asked for and to be had, else plain.
fn make(
    shared: &Shared,
    channel: NonNull<sys::ibv_comp_channel>,
    calls: Calls,
    entries: u32,
) -> Result<(NonNull<sys::ibv_cq>, Way), Errno> {
    if calls == Calls::Extended
        && let Some(extended) = Extended::create(shared, channel, entries)
    {
        return Ok((extended.queue.cast(), Way::InPlace(extended)));
    }
    let entries = c_int::try_from(entries).map_err(|_| Errno::INVAL)?;
    let (create, context) = (shared.library.ibv_create_cq, shared.context.as_ptr());
    // SAFETY: context and channel are live; the vector 0 always exists.
    let queue = unsafe { create(context, entries, ptr::null_mut(), channel.as_ptr(), 0) };
    let scratch = vec![sys::ibv_wc::default(); POLL_COMPLETIONS_MAX];
    Ok((made(queue)?, Way::Array(scratch.into())))
}

impl Extended {
    /// A queue that one thread polls, without locks where the provider knows how to.
    fn create(
        shared: &Shared,
        channel: NonNull<sys::ibv_comp_channel>,
        entries: u32,
    ) -> Option<Self> {
        let mut attr = sys::ibv_cq_init_attr_ex {
            cqe: entries,
            cq_context: ptr::null_mut(),
            channel: channel.as_ptr(),
            comp_vector: 0,
            wc_flags: sys::IBV_WC_EX_WITH_BYTE_LEN
                | sys::IBV_WC_EX_WITH_IMM
                | sys::IBV_WC_EX_WITH_QP_NUM,
            comp_mask: sys::IBV_CQ_INIT_ATTR_MASK_FLAGS,
            flags: sys::IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
            parent_domain: ptr::null_mut(),
        };
        let context = shared.context.as_ptr();
        // SAFETY: context and channel are live; the attributes are ours.
        let mut queue = unsafe { sys::inline::ibv_create_cq_ex(context, &mut attr) };
        if queue.is_null() {
            (attr.comp_mask, attr.flags) = (0, 0);
            // SAFETY: as above.
            queue = unsafe { sys::inline::ibv_create_cq_ex(context, &mut attr) };
        }
        let queue = NonNull::new(queue)?;
        // SAFETY: the queue is live.
        let extended = Self::of(queue, unsafe { queue.as_ref() });
        if extended.is_none() {
            // SAFETY: the queue was made above, nothing completes to it, and its first member is
            // the plain queue.
            let gone = unsafe { (shared.library.ibv_destroy_cq)(queue.cast().as_ptr()) };
            debug_assert_eq!(gone, 0, "an unused queue ends");
        }
        extended
    }

    const fn of(queue: NonNull<sys::ibv_cq_ex>, functions: &sys::ibv_cq_ex) -> Option<Self> {
        let sys::ibv_cq_ex {
            start_poll: Some(start),
            end_poll: Some(end),
            read_byte_len: Some(len_bytes),
            read_wc_flags: Some(flags),
            read_imm_data: Some(immediate),
            read_qp_num: Some(pair),
            ..
        } = *functions
        else {
            return None;
        };
        Some(Self {
            queue,
            start,
            end,
            len_bytes,
            flags,
            immediate,
            pair,
        })
    }

    /// Each completion is begun and ended by itself: providers differ in what going on to the next
    /// one leaves behind where there is none (that of Soft-RoCE, 44.0, skips a completion then).
    fn poll(&self, out: &mut [Completion]) -> Result<usize, Errno> {
        let queue = self.queue.as_ptr();
        let mut attr = sys::ibv_poll_cq_attr::default();
        for (count, place) in out.iter_mut().enumerate() {
            // SAFETY: the queue is live and owned by this core; begins what `end` ends.
            let code = unsafe { (self.start)(queue, &raw mut attr) };
            match code {
                0 => *place = self.current(),
                // A failure comes again when what was found before it has been taken.
                libc::ENOENT => return Ok(count),
                _ if count > 0 => return Ok(count),
                _ => return Err(Errno::IO),
            }
            // SAFETY: ends what was begun above.
            unsafe { (self.end)(queue) };
        }
        Ok(out.len())
    }

    /// The completion that the queue is at.
    fn current(&self) -> Completion {
        let queue = self.queue.as_ptr();
        // SAFETY: the queue is live and at a completion, between start and end.
        let found = unsafe { self.queue.as_ref() };
        let (id, status) = (found.wr_id, found.status);
        // SAFETY: as above, of a property that was asked for.
        let read = |property: Property| unsafe { property(queue) };
        if status != sys::wc_status::SUCCESS {
            return Completion {
                id,
                status,
                pair: read(self.pair),
                ..Completion::default()
            };
        }
        let has_immediate = read(self.flags) & sys::IBV_WC_WITH_IMM != 0;
        Completion {
            id,
            status,
            len_bytes: read(self.len_bytes),
            immediate: has_immediate.then(|| u32::from_be(read(self.immediate))),
            pair: read(self.pair),
        }
    }
}
