//! The calls that no safe object makes yet, against real libibverbs: extended completion queues,
//! the builder interface, shared receive queues, dma-bufs. Needs the machine of `cargo xtask vm`.
//!
//! Both queue pairs are of one process and one device, connected to each other.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a step of these interfaces is several calls, which hold together or not at all"
)]

use std::ffi::c_int;
use std::ptr;
use std::time::{Duration, Instant};

use rdma_core_sys::*;

const BYTES: usize = 4096;
/// What the peer may do.
const ACCESS: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

fn library() -> &'static Library {
    Library::open().expect("libibverbs")
}

fn open(index: usize) -> *mut ibv_context {
    let devices = library().devices().expect("devices");
    // SAFETY: the device is of a live list. It stays open to the end of the process.
    let context = unsafe { (library().ibv_open_device)(devices.device(index)) };
    assert!(!context.is_null(), "{}", std::io::Error::last_os_error());
    context
}

fn domain(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the context is live.
    let domain = unsafe { (library().ibv_alloc_pd)(context) };
    assert!(!domain.is_null());
    domain
}

fn register(domain: *mut ibv_pd, bytes: &mut [u8]) -> (u32, u32) {
    let (start, len) = (bytes.as_mut_ptr().cast(), bytes.len());
    let access = c_int::try_from(ACCESS).expect("low bits");
    // SAFETY: the caller's bytes live as long as the test, which ends with the process.
    let region = unsafe { (library().ibv_reg_mr)(domain, start, len, access) };
    assert!(!region.is_null(), "{}", std::io::Error::last_os_error());
    // SAFETY: the registration is live.
    let region = unsafe { &*region };
    (region.lkey, region.rkey)
}

/// The port's IPv4 address, by the table of GIDs and by the single query, which agree.
fn address(context: *mut ibv_context) -> ibv_gid_entry {
    let mut entries = [ibv_gid_entry::default(); 16];
    let query = library().ibv_query_gid_table.expect("since 1.11");
    let size = size_of::<ibv_gid_entry>();
    // SAFETY: the context is live; at most 16 entries of this size are written.
    let count = unsafe { query(context, entries.as_mut_ptr(), entries.len(), 0, size) };
    let found = entries[..usize::try_from(count).expect("a count")]
        .iter()
        .find(|entry| entry.gid.raw[10..12] == [0xff; 2])
        .expect("an IPv4 address");
    assert_eq!(found.gid_type, IBV_GID_TYPE_ROCE_V2);
    let mut alone = ibv_gid_entry::default();
    let query = library().ibv_query_gid_ex.expect("since 1.11");
    // SAFETY: the context is live; one entry of this size is written.
    let code = unsafe { query(context, 1, found.gid_index, &raw mut alone, 0, size) };
    assert_eq!((code, alone), (0, *found));
    alone
}

fn modify(pair: *mut ibv_qp, mut attr: ibv_qp_attr, mask: u32) {
    let mask = c_int::try_from(mask).expect("low bits");
    // SAFETY: the queue pair is live, and the attributes are ours.
    let code = unsafe { (library().ibv_modify_qp)(pair, &raw mut attr, mask) };
    assert_eq!(code, 0, "{}", std::io::Error::from_raw_os_error(code));
}

/// Brings a queue pair to ready-to-send towards another one of the same port.
fn connect(pair: *mut ibv_qp, peer: *mut ibv_qp, own: &ibv_gid_entry) {
    use qp_attr_mask as mask;
    // SAFETY: the peer is live.
    let dest_qp_num = unsafe { (*peer).qp_num };
    let init = ibv_qp_attr {
        qp_state: qp_state::INIT,
        port_num: 1,
        qp_access_flags: ACCESS,
        ..ibv_qp_attr::default()
    };
    modify(
        pair,
        init,
        mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
    );
    let grh = ibv_global_route {
        dgid: own.gid,
        sgid_index: u8::try_from(own.gid_index).expect("few"),
        hop_limit: 1,
        ..ibv_global_route::default()
    };
    let rtr = ibv_qp_attr {
        qp_state: qp_state::RTR,
        path_mtu: IBV_MTU_256,
        dest_qp_num,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        ah_attr: ibv_ah_attr {
            grh,
            is_global: 1,
            port_num: 1,
            ..ibv_ah_attr::default()
        },
        ..ibv_qp_attr::default()
    };
    let of_rtr = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
    modify(
        pair,
        rtr,
        mask::STATE | of_rtr | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER,
    );
    let rts = ibv_qp_attr {
        qp_state: qp_state::RTS,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 6,
        max_rd_atomic: 1,
        ..ibv_qp_attr::default()
    };
    let of_rts = mask::SQ_PSN | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY;
    modify(pair, rts, mask::STATE | of_rts | mask::MAX_QP_RD_ATOMIC);
}

const CAP: ibv_qp_cap = ibv_qp_cap {
    max_send_wr: 8,
    max_recv_wr: 8,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 0,
};

fn extended_queue(context: *mut ibv_context) -> *mut ibv_cq_ex {
    let mut attr = ibv_cq_init_attr_ex {
        cqe: 32,
        cq_context: ptr::null_mut(),
        channel: ptr::null_mut(),
        comp_vector: 0,
        wc_flags: IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM,
        comp_mask: 0,
        flags: 0,
        parent_domain: ptr::null_mut(),
    };
    // SAFETY: the context is live.
    let queue = unsafe { inline::ibv_create_cq_ex(context, &mut attr) };
    assert!(!queue.is_null(), "{}", std::io::Error::last_os_error());
    queue
}

/// A queue pair that is also a builder.
fn builder(context: *mut ibv_context, domain: *mut ibv_pd, queue: *mut ibv_cq) -> *mut ibv_qp_ex {
    let mut attr = ibv_qp_init_attr_ex {
        qp_context: ptr::null_mut(),
        send_cq: queue,
        recv_cq: queue,
        srq: ptr::null_mut(),
        cap: CAP,
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        pd: domain,
        xrcd: ptr::null_mut(),
        create_flags: 0,
        max_tso_header: 0,
        rwq_ind_tbl: ptr::null_mut(),
        rx_hash_conf: [0; 3],
        source_qpn: 0,
        send_ops_flags: IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND,
    };
    // SAFETY: context, domain and queue are live.
    let pair = unsafe { inline::ibv_create_qp_ex(context, &mut attr) };
    assert!(!pair.is_null(), "{}", std::io::Error::last_os_error());
    // SAFETY: the queue pair is live.
    let builder = unsafe { library().ibv_qp_to_qp_ex.expect("since 1.6")(pair) };
    assert!(!builder.is_null());
    builder
}

fn plain(domain: *mut ibv_pd, queue: *mut ibv_cq, srq: *mut ibv_srq) -> *mut ibv_qp {
    let mut attr = ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: queue,
        recv_cq: queue,
        srq,
        cap: CAP,
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: domain and queues are live.
    let pair = unsafe { (library().ibv_create_qp)(domain, &raw mut attr) };
    assert!(!pair.is_null(), "{}", std::io::Error::last_os_error());
    pair
}

/// The next completion of an extended queue: id, status, bytes.
fn next(queue: *mut ibv_cq_ex) -> (u64, u32, u32) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut attr = ibv_poll_cq_attr::default();
    loop {
        // SAFETY: the queue is live, made with these readers, and this test's alone; what is
        // started is ended.
        unsafe {
            if (*queue).start_poll.expect("filled in")(queue, &raw mut attr) == 0 {
                let bytes = (*queue).read_byte_len.expect("asked for")(queue);
                let found = ((*queue).wr_id, (*queue).status, bytes);
                (*queue).end_poll.expect("filled in")(queue);
                return found;
            }
        }
        assert!(Instant::now() < deadline, "a completion comes");
    }
}

#[test]
fn a_batch_is_built_posted_once_and_polled_where_it_lies() {
    let context = open(0);
    let domain = domain(context);
    let mut bytes = vec![0_u8; BYTES];
    let (lkey, rkey) = register(domain, &mut bytes);
    let base = bytes.as_mut_ptr();
    // SAFETY: within the registered bytes, which nobody borrows any more.
    unsafe { base.write_bytes(7, 100) };
    let queue = extended_queue(context);
    let one = builder(context, domain, queue.cast());
    let other = plain(domain, queue.cast(), ptr::null_mut());
    let own = address(context);
    connect(one.cast(), other, &own);
    connect(other, one.cast(), &own);
    // SAFETY: the builder is live and ready to send; what its requests name is registered.
    let code = unsafe {
        (*one).wr_start.expect("filled in")(one);
        for (id, offset) in [(1, 1000), (2, 2000)] {
            (*one).wr_id = id;
            (*one).wr_flags = IBV_SEND_SIGNALED;
            (*one).wr_rdma_write.expect("asked for")(one, rkey, base.addr() as u64 + offset);
            (*one).wr_set_sge.expect("filled in")(one, lkey, base.addr() as u64, 100);
        }
        (*one).wr_complete.expect("filled in")(one)
    };
    assert_eq!(code, 0);
    assert_eq!(next(queue).0, 1);
    assert_eq!(next(queue).0, 2);
    for offset in [1000, 2000] {
        // SAFETY: within the registered bytes; the writes are over.
        let written = unsafe { std::slice::from_raw_parts(base.add(offset), 101) };
        assert_eq!((written[..100] == [7; 100], written[100]), (true, 0));
    }
}

#[test]
fn a_shared_queue_serves_whichever_queue_pair_is_sent_to() {
    let context = open(1);
    let domain = domain(context);
    let mut bytes = vec![0_u8; BYTES];
    let (lkey, _) = register(domain, &mut bytes);
    let base = bytes.as_mut_ptr().addr() as u64;
    let mut attr = ibv_srq_init_attr {
        srq_context: ptr::null_mut(),
        attr: ibv_srq_attr {
            max_wr: 4,
            max_sge: 1,
            srq_limit: 0,
        },
    };
    // SAFETY: the domain is live.
    let shared = unsafe { (library().ibv_create_srq)(domain, &raw mut attr) };
    assert!(!shared.is_null());
    let queue = extended_queue(context);
    let own = address(context);
    for (id, offset) in [(10, 512), (11, 1024)] {
        let mut piece = ibv_sge {
            addr: base + offset,
            length: 64,
            lkey,
        };
        let mut receive = ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: &raw mut piece,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is live, the list is of one, and what it names is registered.
        let code = unsafe { inline::ibv_post_srq_recv(shared, &raw mut receive, &raw mut bad) };
        assert_eq!(code, 0);
    }
    for expected in [10, 11] {
        let sender = plain(domain, queue.cast(), ptr::null_mut());
        let receiver = plain(domain, queue.cast(), shared);
        connect(sender, receiver, &own);
        connect(receiver, sender, &own);
        let mut piece = ibv_sge {
            addr: base,
            length: 33,
            lkey,
        };
        let mut send = ibv_send_wr {
            wr_id: 1,
            next: ptr::null_mut(),
            sg_list: &raw mut piece,
            num_sge: 1,
            opcode: wr_opcode::SEND,
            send_flags: 0,
            imm_data: 0,
            wr: ibv_wr_remote {
                rdma: ibv_wr_rdma::default(),
            },
            remote_srqn: 0,
            others: [0; 6],
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the sender is ready to send, and the list is of one.
        let code = unsafe { inline::ibv_post_send(sender, &raw mut send, &raw mut bad) };
        assert_eq!(code, 0);
        assert_eq!(next(queue), (expected, wc_status::SUCCESS, 33));
    }
}

/// The next event of a device.
fn next_event(context: *mut ibv_context) -> ibv_async_event {
    let mut event = ibv_async_event::default();
    // SAFETY: the context is live, and the event is ours. It waits until there is one.
    let code = unsafe { (library().ibv_get_async_event)(context, &raw mut event) };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    event
}

#[test]
fn a_queue_that_overflows_is_named_by_an_event_and_ends_once_that_is_acknowledged() {
    let context = open(0);
    let domain = domain(context);
    let mut bytes = vec![0_u8; BYTES];
    let (lkey, rkey) = register(domain, &mut bytes);
    let base = bytes.as_mut_ptr().addr() as u64;
    // SAFETY: the context is live; the queue has no channel.
    let small = unsafe {
        let create = library().ibv_create_cq;
        create(context, 1, ptr::null_mut(), ptr::null_mut(), 0)
    };
    assert!(!small.is_null());
    let queue = extended_queue(context);
    let one = plain(domain, small, ptr::null_mut());
    let other = plain(domain, queue.cast(), ptr::null_mut());
    let own = address(context);
    connect(one, other, &own);
    connect(other, one, &own);
    for id in 0..4 {
        let mut piece = ibv_sge {
            addr: base,
            length: 8,
            lkey,
        };
        let mut write = ibv_send_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: &raw mut piece,
            num_sge: 1,
            opcode: wr_opcode::RDMA_WRITE,
            send_flags: IBV_SEND_SIGNALED,
            imm_data: 0,
            wr: ibv_wr_remote {
                rdma: ibv_wr_rdma {
                    remote_addr: base + 512,
                    rkey,
                },
            },
            remote_srqn: 0,
            others: [0; 6],
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is ready to send, and the list is of one.
        let code = unsafe { inline::ibv_post_send(one, &raw mut write, &raw mut bad) };
        assert_eq!(code, 0);
    }
    let mut event = next_event(context);
    while event.event_type != event_type::CQ_ERR {
        // SAFETY: the event was taken above and is acknowledged once.
        unsafe { (library().ibv_ack_async_event)(&raw mut event) };
        event = next_event(context);
    }
    assert_eq!(event.element, small.addr() as u64);
    // SAFETY: the event is acknowledged, else the queue's end would wait for that; the rest ends
    // once, queue pairs first.
    unsafe {
        (library().ibv_ack_async_event)(&raw mut event);
        assert_eq!((library().ibv_destroy_qp)(one), 0);
        // One request may have overflown it as well as another.
        while has_event(context) {
            let mut event = next_event(context);
            (library().ibv_ack_async_event)(&raw mut event);
        }
        assert_eq!((library().ibv_destroy_cq)(small), 0);
    }
}

/// Whether an event of a device can be taken without waiting.
fn has_event(context: *mut ibv_context) -> bool {
    let mut polled = libc::pollfd {
        // SAFETY: the context is live.
        fd: unsafe { (*context).async_fd },
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, of our own.
    unsafe { libc::poll(&raw mut polled, 1, 0) > 0 }
}

#[test]
fn a_port_is_described_whole() {
    let mut port = ibv_port_attr::default();
    // SAFETY: the context is live and of this library.
    let code = unsafe { inline::ibv_query_port(library(), open(0), 1, &mut port) };
    assert_eq!(
        (code, port.state, port.active_mtu),
        (0, IBV_PORT_ACTIVE, IBV_MTU_4096)
    );
    // Behind what the old function fills in.
    assert_eq!(port.link_layer, IBV_LINK_LAYER_ETHERNET);
    assert!(port.gid_tbl_len > 0 && port.max_msg_sz >= 1 << 23);
}

#[test]
fn a_device_without_dma_bufs_says_so() {
    let register = library().ibv_reg_dmabuf_mr.expect("since 1.12");
    let access = c_int::try_from(IBV_ACCESS_LOCAL_WRITE).expect("low bits");
    // SAFETY: the domain is live; a descriptor that is none cannot be mapped.
    let region = unsafe { register(domain(open(0)), 0, BYTES, 0, -1, access) };
    assert!(region.is_null());
    let errno = std::io::Error::last_os_error().raw_os_error();
    assert_eq!(
        errno,
        Some(libc::EOPNOTSUPP),
        "a device that could would find the descriptor bad"
    );
}

#[test]
fn optional_access_is_taken_where_it_is_offered_as_such() {
    let mut bytes = vec![0_u8; BYTES];
    let register = library().ibv_reg_mr_iova2.expect("since 1.8");
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
    let start = bytes.as_mut_ptr();
    // Peers may know it by another address, with the same place in its page.
    let known_as = 0x10_0000 + (start.addr() as u64 & 0xfff);
    // SAFETY: the domain is live, and the bytes live until the registration has ended.
    let region = unsafe { register(domain(open(0)), start.cast(), BYTES, known_as, access) };
    assert!(!region.is_null(), "{}", std::io::Error::last_os_error());
    // SAFETY: the registration is live and ends once.
    assert_eq!(unsafe { (library().ibv_dereg_mr)(region) }, 0);
}
