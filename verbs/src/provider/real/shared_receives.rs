//! Shared receive queues of libibverbs.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use rdma_core_sys as sys;
use rustix::io::Errno;

use super::super::ReceiveRequest;
use super::{Shared, ended, made};

/// A shared receive queue. Clones are handles to the same one; queue pairs hold one.
#[derive(Clone, Debug)]
pub(crate) struct SharedReceives {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Rc<Shared>,
    queue: NonNull<sys::ibv_srq>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the queue is live; its queue pairs held it by count and are gone.
        let gone = unsafe { (self.shared.library.ibv_destroy_srq)(self.queue.as_ptr()) };
        debug_assert_eq!(gone, 0, "an unused shared queue ends");
    }
}

impl SharedReceives {
    pub(super) fn create(shared: &Rc<Shared>, depth: u32) -> Result<Self, Errno> {
        let mut attr = sys::ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: sys::ibv_srq_attr {
                max_wr: depth,
                max_sge: 1,
                srq_limit: 0,
            },
        };
        let create = shared.library.ibv_create_srq;
        // SAFETY: the domain is live; the attributes are ours. It ends in `Inner::drop`.
        let queue = made(unsafe { create(shared.domain.as_ptr(), &raw mut attr) })?;
        let shared = Rc::clone(shared);
        Ok(Self {
            inner: Rc::new(Inner { shared, queue }),
        })
    }

    /// The queue's address, by which events name it.
    pub(crate) fn token(&self) -> u64 {
        self.as_ptr().addr() as u64
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_srq {
        self.inner.queue.as_ptr()
    }

    /// # Safety
    /// As [`RawShared::post`](super::super::RawShared::post).
    pub(crate) unsafe fn post(&self, request: &ReceiveRequest) -> Result<(), Errno> {
        let mut piece = sys::ibv_sge {
            addr: request.address,
            length: request.len_bytes,
            lkey: request.lkey,
        };
        let mut receive = sys::ibv_recv_wr {
            wr_id: request.id,
            next: ptr::null_mut(),
            sg_list: &raw mut piece,
            num_sge: c_int::from(request.len_bytes > 0),
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is live and the list is of one. Its memory is the caller's promise.
        ended(unsafe {
            sys::inline::ibv_post_srq_recv(self.as_ptr(), &raw mut receive, &raw mut bad)
        })
    }
}
