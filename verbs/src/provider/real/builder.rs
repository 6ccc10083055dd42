//! Posting by the builder interface (`ibv_wr_*`): requests are written where the adapter reads them,
//! without a list in between.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one argument covers a batch: the queue pair is live and nobody else builds on it"
)]

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::rc::Rc;

use rdma_core_sys as sys;
use rdma_core_sys::{Library, ibv_qp_ex};
use rustix::io::Errno;

use super::super::{Operation, SendRequest};
use super::{Shared, ended, send_flags};

/// What is called of a builder.
const OPERATIONS: u64 = sys::IBV_QP_EX_WITH_RDMA_WRITE
    | sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | sys::IBV_QP_EX_WITH_SEND
    | sys::IBV_QP_EX_WITH_RDMA_READ
    | sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

/// The functions of a builder; they never change. `Pair` is the queue pair that they are of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Builder {
    pair: NonNull<ibv_qp_ex>,
    start: unsafe extern "C" fn(*mut ibv_qp_ex),
    complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
    write: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
    write_immediate: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    read: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
    send: unsafe extern "C" fn(*mut ibv_qp_ex),
    compare_swap: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64),
    fetch_add: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64),
    set_piece: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    set_inline: unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize),
}

/// A queue pair that is also a builder, if the provider makes one that does everything. The queue
/// pair is the caller's to end.
pub(super) fn create(
    shared: &Rc<Shared>,
    attr: &sys::ibv_qp_init_attr,
) -> Option<(NonNull<sys::ibv_qp>, Builder)> {
    let mut attr = sys::ibv_qp_init_attr_ex {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        pd: shared.domain.as_ptr(),
        xrcd: std::ptr::null_mut(),
        create_flags: 0,
        max_tso_header: 0,
        rwq_ind_tbl: std::ptr::null_mut(),
        rx_hash_conf: [0; 3],
        source_qpn: 0,
        send_ops_flags: OPERATIONS,
    };
    // SAFETY: context, domain and completion queues are live; the attributes are ours.
    let pair = unsafe { sys::inline::ibv_create_qp_ex(shared.context.as_ptr(), &mut attr) };
    let pair = NonNull::new(pair)?;
    let builder = of(shared.library, pair);
    if builder.is_none() {
        // SAFETY: the queue pair was made above and nobody uses it.
        let gone = unsafe { (shared.library.ibv_destroy_qp)(pair.as_ptr()) };
        debug_assert_eq!(gone, 0, "an unused queue pair ends");
    }
    Some((pair, builder?))
}

fn of(library: &Library, pair: NonNull<sys::ibv_qp>) -> Option<Builder> {
    let to_builder = library.ibv_qp_to_qp_ex?;
    // SAFETY: the queue pair is live, and a builder is the same object, live as long.
    let (pair, functions) = unsafe {
        let pair = NonNull::new(to_builder(pair.as_ptr()))?;
        (pair, pair.as_ref())
    };
    Some(Builder {
        pair,
        start: functions.wr_start?,
        complete: functions.wr_complete?,
        write: functions.wr_rdma_write?,
        write_immediate: functions.wr_rdma_write_imm?,
        read: functions.wr_rdma_read?,
        send: functions.wr_send?,
        compare_swap: functions.wr_atomic_cmp_swp?,
        fetch_add: functions.wr_atomic_fetch_add?,
        set_piece: functions.wr_set_sge?,
        set_inline: functions.wr_set_inline_data?,
    })
}

impl Builder {
    /// Posts all of them, or none.
    ///
    /// # Safety
    /// The queue pair is live, nobody else posts to it, and what the requests name is as for
    /// [`RawQueuePair::post_sends`](super::super::RawQueuePair::post_sends).
    pub(super) unsafe fn post(&self, requests: &[SendRequest]) -> Result<(), Errno> {
        // SAFETY: the queue pair is live, says the caller.
        unsafe { (self.start)(self.pair.as_ptr()) };
        for request in requests {
            // SAFETY: a batch was begun above; the memory is the caller's promise.
            unsafe { self.build(request) };
        }
        // SAFETY: ends the batch that was begun above.
        ended(unsafe { (self.complete)(self.pair.as_ptr()) })
    }

    /// # Safety
    /// As [`Builder::post`], within a batch.
    unsafe fn build(&self, request: &SendRequest) {
        let pair = self.pair.as_ptr();
        let (address, len) = (request.address, request.len_bytes);
        // SAFETY: the queue pair is live and within a batch; each request sets id and flags, one
        // operation that was asked for at its creation, and one piece.
        unsafe {
            (*pair).wr_id = request.id;
            // The flag of inline requests is for Soft-RoCE (44.0), which forgets it by itself.
            (*pair).wr_flags = send_flags(request);
            match request.operation {
                Operation::Write(to) => (self.write)(pair, to.rkey, to.address),
                Operation::WriteImmediate(to, data) => {
                    (self.write_immediate)(pair, to.rkey, to.address, data.to_be());
                }
                Operation::Send => (self.send)(pair),
                Operation::Read(from) => (self.read)(pair, from.rkey, from.address),
                Operation::CompareSwap {
                    remote,
                    compare,
                    swap,
                } => (self.compare_swap)(pair, remote.rkey, remote.address, compare, swap),
                Operation::FetchAdd { remote, add } => {
                    (self.fetch_add)(pair, remote.rkey, remote.address, add);
                }
            }
            if request.is_inline {
                let start = usize::try_from(address).expect("an address of this process");
                let start = std::ptr::with_exposed_provenance_mut(start);
                (self.set_inline)(pair, start, len as usize);
            } else {
                (self.set_piece)(pair, request.lkey, address, len);
            }
        }
    }
}
