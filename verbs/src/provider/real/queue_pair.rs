//! Queue pairs of libibverbs.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use lunette_verbs_proto::negotiate::{Agreement, mtu_code};
use lunette_verbs_proto::qp_state::{QpState, required};
use rdma_core_sys as sys;
use rustix::io::Errno;

use super::super::{
    Calls, DOORBELL_REQUESTS_MAX, Operation, Patience, QueueSizes, ReceiveRequest, RemoteMemory,
    Route, SendRequest, Step,
};
use super::builder::{self, Builder};
use super::connection::Id;
use super::{PORT, Queue, Shared, SharedReceives, access_bits, ended, made, send_flags};

/// Code of the time that a peer waits when there is no receive: 0.64 ms.
const RECEIVER_NOT_READY_TIMER: u8 = 12;
/// Routers that a packet may pass.
const HOP_LIMIT: u8 = 64;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    shared: Rc<Shared>,
    /// Held, so that they outlive the queue pair.
    _completions: Rc<Queue>,
    _receives: Option<SharedReceives>,
    pair: NonNull<sys::ibv_qp>,
    /// The same queue pair, if it is posted to that way.
    builder: Option<Builder>,
    state: QpState,
    /// Lists that are filled for each doorbell and keep their links.
    sends: Box<[sys::ibv_send_wr]>,
    receives: Box<[sys::ibv_recv_wr]>,
    pieces: Box<[sys::ibv_sge]>,
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the queue pair is live and ends once. Afterwards the adapter reaches no memory
        // through it any more.
        let gone = unsafe { (self.shared.library.ibv_destroy_qp)(self.pair.as_ptr()) };
        debug_assert_eq!(gone, 0, "a queue pair ends");
    }
}

impl QueuePair {
    pub(super) fn create(
        shared: &Rc<Shared>,
        calls: Calls,
        completions: &Rc<Queue>,
        receives: Option<&SharedReceives>,
        sizes: QueueSizes,
    ) -> Result<Self, Errno> {
        let mut attr = sys::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: completions.queue.as_ptr(),
            recv_cq: completions.queue.as_ptr(),
            srq: receives.map_or(ptr::null_mut(), SharedReceives::as_ptr),
            cap: sys::ibv_qp_cap {
                max_send_wr: sizes.sends,
                max_recv_wr: sizes.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: sizes.inline_bytes,
            },
            qp_type: sys::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let built = match calls {
            Calls::Extended => builder::create(shared, &attr),
            Calls::Lists => None,
        };
        let (pair, builder) = if let Some((pair, builder)) = built {
            (pair, Some(builder))
        } else {
            let create = shared.library.ibv_create_qp;
            // SAFETY: domain and completion queue are live; the attributes are ours.
            let pair = unsafe { create(shared.domain.as_ptr(), &raw mut attr) };
            (made(pair)?, None)
        };
        let empty_send = sys::ibv_send_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
            opcode: 0,
            send_flags: 0,
            imm_data: 0,
            wr: sys::ibv_wr_remote {
                atomic: sys::ibv_wr_atomic::default(),
            },
            remote_srqn: 0,
            others: [0; 6],
        };
        let empty_receive = sys::ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        let mut pieces = vec![sys::ibv_sge::default(); DOORBELL_REQUESTS_MAX].into_boxed_slice();
        Ok(Self {
            shared: Rc::clone(shared),
            _completions: Rc::clone(completions),
            _receives: receives.cloned(),
            pair,
            builder,
            state: QpState::Reset,
            sends: linked(vec![empty_send; DOORBELL_REQUESTS_MAX], &mut pieces),
            receives: vec![empty_receive; DOORBELL_REQUESTS_MAX].into(),
            pieces,
        })
    }

    /// The queue pair's address, by which events name it.
    pub(crate) fn token(&self) -> u64 {
        self.pair.as_ptr().addr() as u64
    }

    /// Whether it is posted to without lists.
    pub(crate) const fn is_built(&self) -> bool {
        self.builder.is_some()
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is live and its number never changes.
        unsafe { self.pair.as_ref() }.qp_num
    }

    pub(crate) fn step(&mut self, step: &Step) -> Result<(), Errno> {
        let (to, mut attr) = match step {
            Step::Init(access) => (
                QpState::Init,
                sys::ibv_qp_attr {
                    port_num: PORT,
                    qp_access_flags: access_bits(*access) & !sys::IBV_ACCESS_OPTIONAL_RANGE,
                    ..sys::ibv_qp_attr::default()
                },
            ),
            Step::Rtr(route) => (QpState::Rtr, ready_to_receive(route)),
            Step::Rts(route) => (QpState::Rts, ready_to_send(route)),
            Step::Error => (QpState::Error, sys::ibv_qp_attr::default()),
        };
        let mask = required(self.state, to).ok_or(Errno::INVAL)?.bits();
        let mask = c_int::try_from(mask).expect("low bits");
        attr.qp_state = to.code();
        let modify = self.shared.library.ibv_modify_qp;
        // SAFETY: the queue pair is live; the attributes that the mask names are set.
        ended(unsafe { modify(self.pair.as_ptr(), &raw mut attr, mask) })?;
        self.state = to;
        Ok(())
    }

    /// To a state, as the connection manager says. Queue pairs of iWARP are moved by the kernel.
    pub(crate) fn move_on(
        &mut self,
        id: &Id,
        to: QpState,
        agreement: Agreement,
        patience: Patience,
    ) -> Result<(), Errno> {
        if !self.shared.is_iwarp() {
            let (mut attr, mask) = id.attributes(to.code())?;
            attr.max_dest_rd_atomic = agreement.reads_in;
            attr.max_rd_atomic = agreement.reads_out;
            attr.min_rnr_timer = RECEIVER_NOT_READY_TIMER;
            attr.timeout = patience.timeout_exponent;
            attr.retry_cnt = patience.retries;
            attr.rnr_retry = patience.receiver_not_ready_retries;
            let mask = c_int::try_from(mask).map_err(|_| Errno::PROTO)?;
            let modify = self.shared.library.ibv_modify_qp;
            // SAFETY: the queue pair is live; the attributes that the mask names are set.
            ended(unsafe { modify(self.pair.as_ptr(), &raw mut attr, mask) })?;
        }
        self.state = to;
        Ok(())
    }

    /// # Safety
    /// As [`RawQueuePair::post_sends`](super::super::RawQueuePair::post_sends).
    pub(crate) unsafe fn post_sends(&mut self, requests: &[SendRequest]) -> (usize, Option<Errno>) {
        assert!((1..=DOORBELL_REQUESTS_MAX).contains(&requests.len()));
        if let Some(builder) = &self.builder {
            // SAFETY: the queue pair is live and owned by this core; the rest is the caller's promise.
            return match unsafe { builder.post(requests) } {
                Ok(()) => (requests.len(), None),
                Err(errno) => (0, Some(errno)),
            };
        }
        let len = requests.len();
        let pieces = &mut self.pieces[..len];
        for ((request, entry), piece) in requests.iter().zip(&mut self.sends[..len]).zip(pieces) {
            *piece = sys::ibv_sge {
                addr: request.address,
                length: request.len_bytes,
                lkey: request.lkey,
            };
            fill(entry, request);
        }
        // What the last one was linked to is linked again below.
        let next = std::mem::replace(&mut self.sends[len - 1].next, ptr::null_mut());
        let (first, mut bad) = (self.sends.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the list is well-formed: requests are linked in order up to the last, and each has
        // at most one piece, its own of `pieces`. Its memory is the caller's promise.
        let code = unsafe { sys::inline::ibv_post_send(self.pair.as_ptr(), first, &raw mut bad) };
        self.sends[len - 1].next = next;
        match ended(code) {
            Ok(()) => (len, None),
            Err(errno) => (index_of(bad, first, len), Some(errno)),
        }
    }

    /// # Safety
    /// As [`RawQueuePair::post_receives`](super::super::RawQueuePair::post_receives).
    pub(crate) unsafe fn post_receives(
        &mut self,
        requests: &[ReceiveRequest],
    ) -> (usize, Option<Errno>) {
        assert!((1..=DOORBELL_REQUESTS_MAX).contains(&requests.len()));
        for (index, request) in requests.iter().enumerate() {
            self.pieces[index] = piece(request.address, request.len_bytes, request.lkey);
        }
        let (first, pieces) = (self.receives.as_mut_ptr(), self.pieces.as_mut_ptr());
        for (index, request) in requests.iter().enumerate() {
            let is_last = index + 1 == requests.len();
            self.receives[index] = sys::ibv_recv_wr {
                wr_id: request.id,
                next: if is_last {
                    ptr::null_mut()
                } else {
                    first.wrapping_add(index + 1)
                },
                sg_list: pieces.wrapping_add(index),
                num_sge: c_int::from(request.len_bytes > 0),
            };
        }
        let (first, mut bad) = (self.receives.as_mut_ptr(), ptr::null_mut());
        // SAFETY: as in `post_sends`.
        let code = unsafe { sys::inline::ibv_post_recv(self.pair.as_ptr(), first, &raw mut bad) };
        match ended(code) {
            Ok(()) => (requests.len(), None),
            Err(errno) => (index_of(bad, first, requests.len()), Some(errno)),
        }
    }
}

/// A list in which each entry is linked to the next and has the piece of its own place.
fn linked(entries: Vec<sys::ibv_send_wr>, pieces: &mut [sys::ibv_sge]) -> Box<[sys::ibv_send_wr]> {
    let mut entries = entries.into_boxed_slice();
    let (first, pieces) = (entries.as_mut_ptr(), pieces.as_mut_ptr());
    for (index, entry) in entries.iter_mut().enumerate() {
        entry.next = first.wrapping_add(index + 1);
        entry.sg_list = pieces.wrapping_add(index);
    }
    entries
}

/// Which entry of a list the first refused one is. One that is not of the list: none was taken.
fn index_of<T>(bad: *mut T, first: *mut T, len: usize) -> usize {
    let offset = bad.addr().wrapping_sub(first.addr());
    if offset.is_multiple_of(size_of::<T>()) && offset / size_of::<T>() < len {
        offset / size_of::<T>()
    } else {
        0
    }
}

const fn piece(addr: u64, length: u32, lkey: u32) -> sys::ibv_sge {
    sys::ibv_sge { addr, length, lkey }
}

/// Fills an entry, which keeps its link and the place of its piece.
fn fill(entry: &mut sys::ibv_send_wr, request: &SendRequest) {
    use sys::wr_opcode as opcode;
    let rdma = |remote: RemoteMemory| sys::ibv_wr_remote {
        rdma: sys::ibv_wr_rdma {
            remote_addr: remote.address,
            rkey: remote.rkey,
        },
    };
    let atomic = |remote: RemoteMemory, compare_add, swap| sys::ibv_wr_remote {
        atomic: sys::ibv_wr_atomic {
            remote_addr: remote.address,
            compare_add,
            swap,
            rkey: remote.rkey,
        },
    };
    entry.wr_id = request.id;
    entry.num_sge = c_int::from(request.len_bytes > 0);
    entry.send_flags = send_flags(request);
    match request.operation {
        Operation::Write(remote) => {
            (entry.opcode, entry.wr) = (opcode::RDMA_WRITE, rdma(remote));
        }
        Operation::WriteImmediate(remote, immediate) => {
            (entry.opcode, entry.wr) = (opcode::RDMA_WRITE_WITH_IMM, rdma(remote));
            entry.imm_data = immediate.to_be();
        }
        Operation::Send => entry.opcode = opcode::SEND,
        Operation::Read(remote) => {
            (entry.opcode, entry.wr) = (opcode::RDMA_READ, rdma(remote));
        }
        Operation::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            let wr = atomic(remote, compare, swap);
            (entry.opcode, entry.wr) = (opcode::ATOMIC_CMP_AND_SWP, wr);
        }
        Operation::FetchAdd { remote, add } => {
            (entry.opcode, entry.wr) = (opcode::ATOMIC_FETCH_AND_ADD, atomic(remote, add, 0));
        }
    }
}

fn ready_to_receive(route: &Route) -> sys::ibv_qp_attr {
    sys::ibv_qp_attr {
        path_mtu: mtu_code(route.agreement.mtu_bytes),
        dest_qp_num: route.peer_qp,
        rq_psn: route.peer_psn,
        max_dest_rd_atomic: route.agreement.reads_in,
        min_rnr_timer: RECEIVER_NOT_READY_TIMER,
        ah_attr: sys::ibv_ah_attr {
            grh: sys::ibv_global_route {
                dgid: sys::ibv_gid {
                    raw: route.peer_gid,
                },
                flow_label: 0,
                sgid_index: route.own_gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: 0,
            },
            dlid: route.peer_lid,
            is_global: u8::from(route.is_global),
            port_num: PORT,
            ..sys::ibv_ah_attr::default()
        },
        ..sys::ibv_qp_attr::default()
    }
}

fn ready_to_send(route: &Route) -> sys::ibv_qp_attr {
    sys::ibv_qp_attr {
        sq_psn: route.own_psn,
        timeout: route.patience.timeout_exponent,
        retry_cnt: route.patience.retries,
        rnr_retry: route.patience.receiver_not_ready_retries,
        max_rd_atomic: route.agreement.reads_out,
        ..sys::ibv_qp_attr::default()
    }
}
