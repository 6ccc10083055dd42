//! What the headers define inline: jumps through the table in an object's context.
//!
//! An entry that a provider left out answers `EOPNOTSUPP`, where the headers would jump to null.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one argument covers the walk from an object to its context's table and the jump"
)]

use std::ffi::{c_int, c_void};

use crate::completion::{ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_wc};
use crate::device::{before_context, ibv_context, ibv_port_attr};
use crate::library::Library;
use crate::queue_pair::{ibv_qp, ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr, ibv_srq};

/// Takes at most `num_entries` completions: how many, or a negative number.
///
/// # Safety
/// `cq` is a live queue that no other thread uses; `wc` has room for `num_entries`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's queue is live, so its context and the table in it are; the arguments
    // are passed on as the caller promised them. Ends with the call.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(poll_cq) => poll_cq(cq, num_entries, wc),
            None => -libc::EOPNOTSUPP,
        }
    }
}

/// Asks for one event at the next completion, or at the next solicited one: 0 or an errno.
///
/// # Safety
/// `cq` is a live queue with a channel.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as in `ibv_poll_cq`.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(req_notify_cq) => req_notify_cq(cq, solicited_only),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Posts a list of sends: 0 or an errno, and the first one that was not posted.
///
/// # Safety
/// `qp` is live and no other thread posts to it; the list from `wr` on is well-formed, and what its
/// pieces name stays valid until the completion of each (inline pieces: until this returns).
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's queue pair is live, so its context is; the list is as the caller
    // promised. Ends with the call; what the device reads later is the caller's promise.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(post_send) => post_send(qp, wr, bad_wr),
            None => {
                *bad_wr = wr;
                libc::EOPNOTSUPP
            }
        }
    }
}

/// Posts a list of receives: 0 or an errno, and the first one that was not posted.
///
/// # Safety
/// As [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in `ibv_post_send`.
    unsafe {
        match (*(*qp).context).ops.post_recv {
            Some(post_recv) => post_recv(qp, wr, bad_wr),
            None => {
                *bad_wr = wr;
                libc::EOPNOTSUPP
            }
        }
    }
}

/// Posts a list of receives to a shared queue: 0 or an errno, and the first that was not posted.
///
/// # Safety
/// As [`ibv_post_send`], of a live shared queue.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in `ibv_post_send`.
    unsafe {
        match (*(*srq).context).ops.post_srq_recv {
            Some(post_srq_recv) => post_srq_recv(srq, wr, bad_wr),
            None => {
                *bad_wr = wr;
                libc::EOPNOTSUPP
            }
        }
    }
}

/// The member of the structure around `context` that lies `distance` bytes before it, if that
/// structure is there, reaches so far, and the provider filled it in.
///
/// # Safety
/// `context` is live.
unsafe fn extended(context: *mut ibv_context, distance: usize) -> Option<*const c_void> {
    // SAFETY: the context is live, so its members can be read.
    let abi_compat = unsafe { (*context).abi_compat };
    if abi_compat.addr() != usize::MAX {
        return None;
    }
    // SAFETY: all ones in `abi_compat` is libibverbs' promise that its larger structure lies
    // around the context, whose last member before it is its size. Everything read lies within
    // that size. Ends with the call.
    unsafe {
        let before = |bytes: usize| context.cast::<u8>().sub(bytes);
        // The size counts the context too; distances do not.
        let size = before(before_context::SZ).cast::<usize>().read();
        if size.saturating_sub(size_of::<ibv_context>()) < distance {
            return None;
        }
        let member = before(distance).cast::<*const c_void>().read();
        (!member.is_null()).then_some(member)
    }
}

/// Asks for the state of a port, whole: 0 or an errno.
///
/// The exported function of the same name knows an older, shorter structure and is the fallback.
///
/// # Safety
/// `context` is live and of `library`.
pub unsafe fn ibv_query_port(
    library: &Library,
    context: *mut ibv_context,
    port_num: u8,
    attr: &mut ibv_port_attr,
) -> c_int {
    type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int;
    *attr = ibv_port_attr::default();
    // SAFETY: the context is live.
    let Some(member) = (unsafe { extended(context, before_context::QUERY_PORT) }) else {
        // SAFETY: it writes a prefix of the structure, which is zeroed. Ends with the call.
        return unsafe { (library.ibv_query_port)(context, port_num, attr) };
    };
    // SAFETY: the member at this distance has this type, for ever; it writes at most the size
    // that it is told. Ends with the call.
    unsafe {
        let query_port = std::mem::transmute::<*const c_void, QueryPort>(member);
        query_port(context, port_num, attr, size_of::<ibv_port_attr>())
    }
}

/// Makes an extended completion queue: null, with `errno` set, if that is not to be had.
///
/// # Safety
/// `context` is live and what `attr` points to as well.
pub unsafe fn ibv_create_cq_ex(
    context: *mut ibv_context,
    attr: &mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    type CreateCqEx =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
    // SAFETY: the context is live.
    let Some(member) = (unsafe { extended(context, before_context::CREATE_CQ_EX) }) else {
        return refuse();
    };
    // SAFETY: the member at this distance has this type. Ends with the call.
    unsafe { std::mem::transmute::<*const c_void, CreateCqEx>(member)(context, attr) }
}

/// Makes an extended queue pair: null, with `errno` set, if that is not to be had.
///
/// # Safety
/// `context` is live and what `attr` points to as well.
pub unsafe fn ibv_create_qp_ex(
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    type CreateQpEx =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
    // SAFETY: the context is live.
    let Some(member) = (unsafe { extended(context, before_context::CREATE_QP_EX) }) else {
        return refuse();
    };
    // SAFETY: the member at this distance has this type. Ends with the call.
    unsafe { std::mem::transmute::<*const c_void, CreateQpEx>(member)(context, attr) }
}

fn refuse<T>() -> *mut T {
    // SAFETY: the location is this thread's own. Ends with the statement.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
    std::ptr::null_mut()
}
