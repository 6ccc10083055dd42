//! The layouts and constants of this crate against the C headers of libibverbs, by a C program.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_core_sys::*;

/// What the C program prints: one number for each expression.
fn numbers_in_c(expressions: &[String]) -> Vec<u64> {
    let mut source = String::from(
        "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include <stddef.h>\n\
         #include <stdio.h>\nint main(void) {\n",
    );
    for expression in expressions {
        writeln!(
            source,
            "printf(\"%llu\\n\", (unsigned long long)({expression}));"
        )
        .expect("a C compiler and a folder of our own");
    }
    source += "return 0; }\n";
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let name = format!("rdma-core-sys.{}.{call}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("a C compiler and a folder of our own");
    let (file, program) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&file, source).expect("a C compiler and a folder of our own");
    let compiled = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(&file)
        .status()
        .expect("a C compiler and a folder of our own");
    assert!(compiled.success(), "the C program compiles");
    let output = Command::new(&program)
        .stderr(Stdio::inherit())
        .output()
        .expect("a C compiler and a folder of our own");
    std::fs::remove_dir_all(folder).expect("a C compiler and a folder of our own");
    let text = String::from_utf8(output.stdout).expect("a C compiler and a folder of our own");
    text.lines()
        .map(|line| line.parse().expect("a C compiler and a folder of our own"))
        .collect()
}

/// Compares what each C expression and each Rust expression say.
fn compare(pairs: &[(String, u64)]) {
    let expressions: Vec<String> = pairs.iter().map(|pair| pair.0.clone()).collect();
    let numbers = numbers_in_c(&expressions);
    assert_eq!(numbers.len(), pairs.len());
    for ((expression, ours), theirs) in pairs.iter().zip(numbers) {
        assert_eq!(*ours, theirs, "{expression}");
    }
}

macro_rules! layouts {
    ($( $name:ident { $( $field:ident $(as $member:literal)? ),* } )*) => {
        vec![$(
            (format!("sizeof(struct {})", stringify!($name)), size_of::<$name>() as u64),
            $( (
                format!("offsetof(struct {}, {})", stringify!($name), layouts!(@ $field $($member)?)),
                offset_of!($name, $field) as u64,
            ), )*
        )*]
    };
    (@ $field:ident $member:literal) => { $member };
    (@ $field:ident) => { stringify!($field) };
}

#[test]
fn layouts_are_those_of_the_headers() {
    compare(&layouts! {
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        ibv_device_attr { node_guid, max_mr_size, max_qp, max_qp_wr, max_sge, max_cqe, max_mr,
            max_qp_rd_atom, max_qp_init_rd_atom, atomic_cap, max_srq, max_srq_wr, max_pkeys,
            phys_port_cnt }
        ibv_port_attr { state, active_mtu, gid_tbl_len, max_msg_sz, lid, link_layer, port_cap_flags2 }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_pd { handle }
        ibv_mr { pd, addr, length, lkey, rkey }
        ibv_sge { addr, length, lkey }
        ibv_comp_channel { fd, refcnt }
        ibv_cq { channel, cq_context, cqe, mutex, cond, comp_events_completed }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            slid, dlid_path_bits }
        ibv_cq_ex { comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode,
            read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags }
        ibv_cq_init_attr_ex { cq_context, channel, comp_vector, wc_flags, comp_mask, flags,
            parent_domain }
        ibv_qp { pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond }
        ibv_qp_cap { max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_init_attr_ex { comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl,
            rx_hash_conf, source_qpn, send_ops_flags }
        ibv_global_route { flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_attr { path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr,
            pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout,
            retry_cnt, rnr_retry, rate_limit }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr,
            remote_srqn as "qp_type" }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_srq { pd, handle, mutex }
        ibv_srq_attr { max_sge, srq_limit }
        ibv_srq_init_attr { attr }
        ibv_qp_ex { comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add,
            wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm,
            wr_set_inline_data, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort }
        ibv_async_event { event_type }
        rdma_event_channel { fd }
        rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth,
            flow_control, retry_count, rnr_retry_count, srq, qp_num }
    });
}

/// Structures of which only the first members are known here.
#[test]
fn first_members_lie_where_the_headers_have_them() {
    let offset = |of: &str| format!("offsetof(struct {of})");
    compare(&[
        (
            offset("ibv_device, transport_type"),
            offset_of!(ibv_device, transport_type) as u64,
        ),
        (
            offset("rdma_cm_id, channel"),
            offset_of!(rdma_cm_id, channel) as u64,
        ),
        (
            offset("rdma_cm_id, context"),
            offset_of!(rdma_cm_id, context) as u64,
        ),
        (
            offset("rdma_cm_event, listen_id"),
            offset_of!(rdma_cm_event, listen_id) as u64,
        ),
        (
            offset("rdma_cm_event, event"),
            offset_of!(rdma_cm_event, event) as u64,
        ),
        (
            offset("rdma_cm_event, status"),
            offset_of!(rdma_cm_event, status) as u64,
        ),
        (
            offset("rdma_cm_event, param.conn"),
            offset_of!(rdma_cm_event, conn) as u64,
        ),
    ]);
}

#[test]
fn members_of_unions_lie_where_the_headers_have_them() {
    let atomic = |field| format!("offsetof(struct ibv_send_wr, wr.atomic.{field})");
    let base = offset_of!(ibv_send_wr, wr);
    compare(&[
        (
            atomic("remote_addr"),
            (base + offset_of!(ibv_wr_atomic, remote_addr)) as u64,
        ),
        (
            atomic("compare_add"),
            (base + offset_of!(ibv_wr_atomic, compare_add)) as u64,
        ),
        (
            atomic("swap"),
            (base + offset_of!(ibv_wr_atomic, swap)) as u64,
        ),
        (
            atomic("rkey"),
            (base + offset_of!(ibv_wr_atomic, rkey)) as u64,
        ),
        (
            "offsetof(struct ibv_send_wr, wr.rdma.rkey)".into(),
            (base + offset_of!(ibv_wr_rdma, rkey)) as u64,
        ),
    ]);
}

#[test]
fn distances_before_a_context_are_those_of_the_headers() {
    let distance = |member: &str| {
        format!(
            "offsetof(struct verbs_context, context) - offsetof(struct verbs_context, {member})"
        )
    };
    compare(&[
        (distance("sz"), before_context::SZ as u64),
        (
            distance("create_qp_ex"),
            before_context::CREATE_QP_EX as u64,
        ),
        (
            distance("create_cq_ex"),
            before_context::CREATE_CQ_EX as u64,
        ),
        (distance("query_port"), before_context::QUERY_PORT as u64),
    ]);
}

macro_rules! constants {
    ($( $c:ident = $ours:expr ),* $(,)?) => {
        vec![$( (stringify!($c).to_owned(), u64::from($ours)) ),*]
    };
}

#[test]
fn constants_are_those_of_the_headers() {
    compare(&constants! {
        IBV_WC_SUCCESS = wc_status::SUCCESS, IBV_WC_LOC_LEN_ERR = wc_status::LOC_LEN_ERR,
        IBV_WC_LOC_QP_OP_ERR = wc_status::LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR = wc_status::LOC_PROT_ERR,
        IBV_WC_WR_FLUSH_ERR = wc_status::WR_FLUSH_ERR, IBV_WC_MW_BIND_ERR = wc_status::MW_BIND_ERR,
        IBV_WC_BAD_RESP_ERR = wc_status::BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR = wc_status::LOC_ACCESS_ERR,
        IBV_WC_REM_INV_REQ_ERR = wc_status::REM_INV_REQ_ERR,
        IBV_WC_REM_ACCESS_ERR = wc_status::REM_ACCESS_ERR, IBV_WC_REM_OP_ERR = wc_status::REM_OP_ERR,
        IBV_WC_RETRY_EXC_ERR = wc_status::RETRY_EXC_ERR,
        IBV_WC_RNR_RETRY_EXC_ERR = wc_status::RNR_RETRY_EXC_ERR,
        IBV_WC_REM_ABORT_ERR = wc_status::REM_ABORT_ERR, IBV_WC_FATAL_ERR = wc_status::FATAL_ERR,
        IBV_WC_RESP_TIMEOUT_ERR = wc_status::RESP_TIMEOUT_ERR,
        IBV_WC_GENERAL_ERR = wc_status::GENERAL_ERR,
        IBV_WC_RECV = IBV_WC_RECV, IBV_WC_RDMA_READ = IBV_WC_RDMA_READ,
        IBV_WC_COMP_SWAP = IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD = IBV_WC_FETCH_ADD,
        IBV_WC_RECV_RDMA_WITH_IMM = IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM = IBV_WC_WITH_IMM,
        IBV_WC_EX_WITH_BYTE_LEN = IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_IMM = IBV_WC_EX_WITH_IMM,
        IBV_WC_EX_WITH_QP_NUM = IBV_WC_EX_WITH_QP_NUM,
        IBV_QPS_RESET = qp_state::RESET, IBV_QPS_INIT = qp_state::INIT, IBV_QPS_RTR = qp_state::RTR,
        IBV_QPS_RTS = qp_state::RTS, IBV_QPS_SQD = qp_state::SQD, IBV_QPS_ERR = qp_state::ERR,
        IBV_QP_STATE = qp_attr_mask::STATE, IBV_QP_ACCESS_FLAGS = qp_attr_mask::ACCESS_FLAGS,
        IBV_QP_PKEY_INDEX = qp_attr_mask::PKEY_INDEX, IBV_QP_PORT = qp_attr_mask::PORT,
        IBV_QP_AV = qp_attr_mask::AV, IBV_QP_PATH_MTU = qp_attr_mask::PATH_MTU,
        IBV_QP_TIMEOUT = qp_attr_mask::TIMEOUT, IBV_QP_RETRY_CNT = qp_attr_mask::RETRY_CNT,
        IBV_QP_RNR_RETRY = qp_attr_mask::RNR_RETRY, IBV_QP_RQ_PSN = qp_attr_mask::RQ_PSN,
        IBV_QP_MAX_QP_RD_ATOMIC = qp_attr_mask::MAX_QP_RD_ATOMIC,
        IBV_QP_MIN_RNR_TIMER = qp_attr_mask::MIN_RNR_TIMER, IBV_QP_SQ_PSN = qp_attr_mask::SQ_PSN,
        IBV_QP_MAX_DEST_RD_ATOMIC = qp_attr_mask::MAX_DEST_RD_ATOMIC,
        IBV_QP_DEST_QPN = qp_attr_mask::DEST_QPN, IBV_QPT_RC = IBV_QPT_RC,
        IBV_WR_RDMA_WRITE_WITH_IMM = wr_opcode::RDMA_WRITE_WITH_IMM, IBV_WR_SEND = wr_opcode::SEND,
        IBV_WR_SEND_WITH_IMM = wr_opcode::SEND_WITH_IMM, IBV_WR_RDMA_READ = wr_opcode::RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP = wr_opcode::ATOMIC_CMP_AND_SWP,
        IBV_WR_ATOMIC_FETCH_AND_ADD = wr_opcode::ATOMIC_FETCH_AND_ADD,
        IBV_SEND_FENCE = IBV_SEND_FENCE, IBV_SEND_SIGNALED = IBV_SEND_SIGNALED,
        IBV_SEND_SOLICITED = IBV_SEND_SOLICITED, IBV_SEND_INLINE = IBV_SEND_INLINE,
        IBV_ACCESS_LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE,
        IBV_ACCESS_REMOTE_READ = IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC = IBV_ACCESS_REMOTE_ATOMIC,
        IBV_ACCESS_ON_DEMAND = IBV_ACCESS_ON_DEMAND, IBV_ACCESS_MW_BIND = IBV_ACCESS_MW_BIND,
        IBV_ACCESS_OPTIONAL_RANGE = IBV_ACCESS_OPTIONAL_RANGE,
        IBV_ACCESS_RELAXED_ORDERING = IBV_ACCESS_RELAXED_ORDERING,
        IBV_QP_INIT_ATTR_PD = IBV_QP_INIT_ATTR_PD,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        IBV_QP_EX_WITH_RDMA_WRITE = IBV_QP_EX_WITH_RDMA_WRITE,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        IBV_QP_EX_WITH_SEND = IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_RDMA_READ = IBV_QP_EX_WITH_RDMA_READ,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        IBV_CQ_INIT_ATTR_MASK_FLAGS = IBV_CQ_INIT_ATTR_MASK_FLAGS,
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
        IBV_PORT_DOWN = IBV_PORT_DOWN, IBV_PORT_ACTIVE = IBV_PORT_ACTIVE,
        IBV_LINK_LAYER_ETHERNET = IBV_LINK_LAYER_ETHERNET,
        IBV_LINK_LAYER_INFINIBAND = IBV_LINK_LAYER_INFINIBAND,
        IBV_MTU_256 = IBV_MTU_256, IBV_MTU_4096 = IBV_MTU_4096,
        IBV_GID_TYPE_IB = IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1 = IBV_GID_TYPE_ROCE_V1,
        IBV_GID_TYPE_ROCE_V2 = IBV_GID_TYPE_ROCE_V2,
        IBV_ATOMIC_NONE = IBV_ATOMIC_NONE, IBV_ATOMIC_HCA = IBV_ATOMIC_HCA,
        IBV_ATOMIC_GLOB = IBV_ATOMIC_GLOB,
        IBV_EVENT_CQ_ERR = event_type::CQ_ERR, IBV_EVENT_QP_FATAL = event_type::QP_FATAL,
        IBV_EVENT_QP_REQ_ERR = event_type::QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR = event_type::QP_ACCESS_ERR,
        IBV_EVENT_COMM_EST = event_type::COMM_EST, IBV_EVENT_SQ_DRAINED = event_type::SQ_DRAINED,
        IBV_EVENT_PATH_MIG = event_type::PATH_MIG, IBV_EVENT_PATH_MIG_ERR = event_type::PATH_MIG_ERR,
        IBV_EVENT_DEVICE_FATAL = event_type::DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE = event_type::PORT_ACTIVE,
        IBV_EVENT_PORT_ERR = event_type::PORT_ERR, IBV_EVENT_LID_CHANGE = event_type::LID_CHANGE,
        IBV_EVENT_SRQ_ERR = event_type::SRQ_ERR,
        IBV_EVENT_SRQ_LIMIT_REACHED = event_type::SRQ_LIMIT_REACHED,
        IBV_EVENT_QP_LAST_WQE_REACHED = event_type::QP_LAST_WQE_REACHED,
        IBV_EVENT_GID_CHANGE = event_type::GID_CHANGE,
    });
}

#[test]
fn constants_of_the_connection_manager_are_those_of_the_headers() {
    compare(&constants! {
        RDMA_CM_EVENT_ADDR_RESOLVED = cm_event_type::ADDR_RESOLVED,
        RDMA_CM_EVENT_ADDR_ERROR = cm_event_type::ADDR_ERROR,
        RDMA_CM_EVENT_ROUTE_RESOLVED = cm_event_type::ROUTE_RESOLVED,
        RDMA_CM_EVENT_ROUTE_ERROR = cm_event_type::ROUTE_ERROR,
        RDMA_CM_EVENT_CONNECT_REQUEST = cm_event_type::CONNECT_REQUEST,
        RDMA_CM_EVENT_CONNECT_RESPONSE = cm_event_type::CONNECT_RESPONSE,
        RDMA_CM_EVENT_CONNECT_ERROR = cm_event_type::CONNECT_ERROR,
        RDMA_CM_EVENT_UNREACHABLE = cm_event_type::UNREACHABLE,
        RDMA_CM_EVENT_REJECTED = cm_event_type::REJECTED,
        RDMA_CM_EVENT_ESTABLISHED = cm_event_type::ESTABLISHED,
        RDMA_CM_EVENT_DISCONNECTED = cm_event_type::DISCONNECTED,
        RDMA_CM_EVENT_DEVICE_REMOVAL = cm_event_type::DEVICE_REMOVAL,
        RDMA_CM_EVENT_TIMEWAIT_EXIT = cm_event_type::TIMEWAIT_EXIT,
    });
    let whole = |number: i32| u64::try_from(number).unwrap();
    compare(&[
        ("RDMA_PS_TCP".to_owned(), whole(RDMA_PS_TCP)),
        ("IBV_TRANSPORT_IB".to_owned(), whole(IBV_TRANSPORT_IB)),
        ("IBV_TRANSPORT_IWARP".to_owned(), whole(IBV_TRANSPORT_IWARP)),
    ]);
}
