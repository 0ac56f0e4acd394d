//! The types and constants of `io/src/verbs/abi.rs` against bindings that were generated from the
//! headers of rdma-core.

use std::collections::BTreeMap;
use std::mem::offset_of;

use ibverbs_sys::*;

#[allow(dead_code, missing_docs, unreachable_pub, reason = "the module is of another crate")]
#[path = "../../../io/src/verbs/abi.rs"]
mod abi;

/// Sizes and offsets of the bindings, by their expression in C. A field's path in the bindings
/// stands in brackets if it differs from its path in C.
macro_rules! layouts {
    ($($name:ident { $($field:literal [$($path:tt)+])* })*) => {
        fn layouts() -> BTreeMap<String, i64> {
            let mut all = BTreeMap::new();
            $(
                let name = stringify!($name);
                all.insert(format!("sizeof(struct {name})"), size_of::<$name>() as i64);
                $(
                    let path = format!("offsetof(struct {name}, {})", $field);
                    all.insert(path, offset_of!($name, $($path)+) as i64);
                )*
            )*
            all
        }
    };
}

/// Names of fields that are the same in C and in the bindings.
macro_rules! same {
    ($($name:ident { $($field:ident)* })*) => {
        fn same() -> BTreeMap<String, i64> {
            let mut all = BTreeMap::new();
            $(
                let name = stringify!($name);
                all.insert(format!("sizeof(struct {name})"), size_of::<$name>() as i64);
                $(
                    let path = format!("offsetof(struct {name}, {})", stringify!($field));
                    all.insert(path, offset_of!($name, $field) as i64);
                )*
            )*
            all
        }
    };
}

layouts! {
    ibv_send_wr {
        "wr_id" [wr_id] "next" [next] "sg_list" [sg_list] "num_sge" [num_sge] "opcode" [opcode]
        "send_flags" [send_flags] "imm_data" [__bindgen_anon_1.imm_data]
        "wr.rdma.remote_addr" [wr.rdma.remote_addr] "wr.rdma.rkey" [wr.rdma.rkey]
    }
}

same! {
    ibv_sge { addr length lkey }
    ibv_recv_wr { wr_id next sg_list num_sge }
    ibv_wc { imm_data qp_num src_qp wc_flags pkey_index slid sl dlid_path_bits }
    ibv_pd { context handle }
    ibv_mr { context pd addr length handle lkey rkey }
    ibv_comp_channel { context fd refcnt }
    ibv_cq { context channel cq_context handle cqe }
    ibv_qp { context qp_context pd send_cq recv_cq srq handle qp_num state qp_type }
    ibv_qp_cap { max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data }
    ibv_qp_init_attr { qp_context send_cq recv_cq srq cap qp_type sq_sig_all }
    ibv_global_route { dgid flow_label sgid_index hop_limit traffic_class }
    ibv_ah_attr { grh dlid sl src_path_bits static_rate is_global port_num }
    ibv_qp_attr {
        qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num
        qp_access_flags cap ah_attr alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify
        sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt
        rnr_retry alt_port_num alt_timeout rate_limit
    }
    ibv_gid_entry { gid gid_index port_num gid_type ndev_ifindex }
    ibv_port_attr {
        state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr
        qkey_viol_cntr pkey_tbl_len lid sm_lid lmc max_vl_num sm_sl subnet_timeout
        init_type_reply active_width active_speed phys_state link_layer flags port_cap_flags2
    }
    ibv_device_attr {
        fw_ver node_guid sys_image_guid max_mr_size page_size_cap vendor_id vendor_part_id hw_ver
        max_qp max_qp_wr device_cap_flags max_sge max_sge_rd max_cq max_cqe max_mr max_pd
        max_qp_rd_atom max_ee_rd_atom max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom
        atomic_cap max_ee max_rdd max_mw max_raw_ipv6_qp max_raw_ethy_qp max_mcast_grp
        max_mcast_qp_attach max_total_mcast_qp_attach max_ah max_fmr max_map_per_fmr max_srq
        max_srq_wr max_srq_sge max_pkeys local_ca_ack_delay phys_port_cnt
    }
    ibv_async_event { element event_type }
    ibv_context_ops { poll_cq req_notify_cq post_send post_recv }
    ibv_context { device ops cmd_fd async_fd num_comp_vectors }
}

/// Fields of `ibv_wc` that are private in the bindings. Their size and the fields after them are
/// compared.
const PRIVATE: [&str; 5] = ["wr_id", "status", "opcode", "vendor_err", "byte_len"];

macro_rules! constants {
    ($($c:ident = $value:expr;)*) => {
        fn constants() -> BTreeMap<String, i64> {
            BTreeMap::from([$((stringify!($c).to_owned(), i64::from($value)),)*])
        }
    };
}

constants! {
    IBV_QPT_RC = ibv_qp_type::IBV_QPT_RC;
    IBV_GID_TYPE_IB = IBV_GID_TYPE_IB;
    IBV_GID_TYPE_ROCE_V1 = IBV_GID_TYPE_ROCE_V1;
    IBV_GID_TYPE_ROCE_V2 = IBV_GID_TYPE_ROCE_V2;
    IBV_LINK_LAYER_INFINIBAND = IBV_LINK_LAYER_INFINIBAND;
    IBV_LINK_LAYER_ETHERNET = IBV_LINK_LAYER_ETHERNET;
    IBV_PORT_DOWN = ibv_port_state::IBV_PORT_DOWN;
    IBV_PORT_INIT = ibv_port_state::IBV_PORT_INIT;
    IBV_PORT_ARMED = ibv_port_state::IBV_PORT_ARMED;
    IBV_PORT_ACTIVE = ibv_port_state::IBV_PORT_ACTIVE;
    IBV_PORT_ACTIVE_DEFER = ibv_port_state::IBV_PORT_ACTIVE_DEFER;
    IBV_QPS_RESET = ibv_qp_state::IBV_QPS_RESET;
    IBV_QPS_INIT = ibv_qp_state::IBV_QPS_INIT;
    IBV_QPS_RTR = ibv_qp_state::IBV_QPS_RTR;
    IBV_QPS_RTS = ibv_qp_state::IBV_QPS_RTS;
    IBV_QPS_ERR = ibv_qp_state::IBV_QPS_ERR;
    IBV_ACCESS_LOCAL_WRITE = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    IBV_ACCESS_REMOTE_WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    IBV_ACCESS_REMOTE_READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    IBV_QP_STATE = ibv_qp_attr_mask::IBV_QP_STATE.0;
    IBV_QP_ACCESS_FLAGS = ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0;
    IBV_QP_PKEY_INDEX = ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0;
    IBV_QP_PORT = ibv_qp_attr_mask::IBV_QP_PORT.0;
    IBV_QP_AV = ibv_qp_attr_mask::IBV_QP_AV.0;
    IBV_QP_PATH_MTU = ibv_qp_attr_mask::IBV_QP_PATH_MTU.0;
    IBV_QP_TIMEOUT = ibv_qp_attr_mask::IBV_QP_TIMEOUT.0;
    IBV_QP_RETRY_CNT = ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0;
    IBV_QP_RNR_RETRY = ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0;
    IBV_QP_RQ_PSN = ibv_qp_attr_mask::IBV_QP_RQ_PSN.0;
    IBV_QP_MAX_QP_RD_ATOMIC = ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
    IBV_QP_MIN_RNR_TIMER = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
    IBV_QP_SQ_PSN = ibv_qp_attr_mask::IBV_QP_SQ_PSN.0;
    IBV_QP_MAX_DEST_RD_ATOMIC = ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0;
    IBV_QP_DEST_QPN = ibv_qp_attr_mask::IBV_QP_DEST_QPN.0;
    IBV_WR_RDMA_WRITE = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    IBV_WR_RDMA_WRITE_WITH_IMM = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
    IBV_WR_SEND = ibv_wr_opcode::IBV_WR_SEND;
    IBV_WR_RDMA_READ = ibv_wr_opcode::IBV_WR_RDMA_READ;
    IBV_SEND_SIGNALED = ibv_send_flags::IBV_SEND_SIGNALED.0;
    IBV_WC_SEND = ibv_wc_opcode::IBV_WC_SEND;
    IBV_WC_RDMA_WRITE = ibv_wc_opcode::IBV_WC_RDMA_WRITE;
    IBV_WC_RDMA_READ = ibv_wc_opcode::IBV_WC_RDMA_READ;
    IBV_WC_RECV = ibv_wc_opcode::IBV_WC_RECV;
    IBV_WC_RECV_RDMA_WITH_IMM = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    IBV_WC_WITH_IMM = ibv_wc_flags::IBV_WC_WITH_IMM.0;
    IBV_WC_SUCCESS = ibv_wc_status::IBV_WC_SUCCESS;
    IBV_WC_LOC_LEN_ERR = ibv_wc_status::IBV_WC_LOC_LEN_ERR;
    IBV_WC_LOC_QP_OP_ERR = ibv_wc_status::IBV_WC_LOC_QP_OP_ERR;
    IBV_WC_LOC_PROT_ERR = ibv_wc_status::IBV_WC_LOC_PROT_ERR;
    IBV_WC_WR_FLUSH_ERR = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
    IBV_WC_REM_INV_REQ_ERR = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR;
    IBV_WC_REM_ACCESS_ERR = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    IBV_WC_REM_OP_ERR = ibv_wc_status::IBV_WC_REM_OP_ERR;
    IBV_WC_RETRY_EXC_ERR = ibv_wc_status::IBV_WC_RETRY_EXC_ERR;
    IBV_WC_RNR_RETRY_EXC_ERR = ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR;
    IBV_EVENT_CQ_ERR = IBV_EVENT_CQ_ERR;
    IBV_EVENT_QP_FATAL = IBV_EVENT_QP_FATAL;
    IBV_EVENT_QP_REQ_ERR = IBV_EVENT_QP_REQ_ERR;
    IBV_EVENT_QP_ACCESS_ERR = IBV_EVENT_QP_ACCESS_ERR;
    IBV_EVENT_PATH_MIG_ERR = IBV_EVENT_PATH_MIG_ERR;
    IBV_EVENT_DEVICE_FATAL = IBV_EVENT_DEVICE_FATAL;
    IBV_EVENT_PORT_ACTIVE = IBV_EVENT_PORT_ACTIVE;
    IBV_EVENT_PORT_ERR = IBV_EVENT_PORT_ERR;
    IBV_EVENT_LID_CHANGE = IBV_EVENT_LID_CHANGE;
    IBV_EVENT_PKEY_CHANGE = IBV_EVENT_PKEY_CHANGE;
    IBV_EVENT_CLIENT_REREGISTER = IBV_EVENT_CLIENT_REREGISTER;
    IBV_EVENT_GID_CHANGE = IBV_EVENT_GID_CHANGE;
}

/// Expressions that the bindings lack or whose value differs.
fn differences(here: &[(String, i64)], bindings: &BTreeMap<String, i64>) -> Vec<String> {
    let differs = |(c, value): &(String, i64)| match bindings.get(c) {
        Some(found) if found == value => None,
        Some(found) => Some(format!("{c}: {value}, bindings {found}")),
        None => Some(format!("{c}: not in the bindings")),
    };
    here.iter().filter_map(differs).collect()
}

#[test]
fn types_and_constants_equal_those_of_the_bindings() {
    let private =
        |c: &str| PRIVATE.iter().any(|field| c == format!("offsetof(struct ibv_wc, {field})"));
    let here: Vec<_> =
        abi::layout().into_iter().chain(abi::values()).filter(|(c, _)| !private(c)).collect();
    let mut bindings = layouts();
    bindings.extend(same());
    bindings.extend(constants());
    println!("compared={}", here.len());
    assert!(here.len() > 240, "compared={}", here.len());
    assert_eq!(differences(&here, &bindings), [""; 0]);
    // A comparison that finds nothing would pass too.
    let planted = [("sizeof(struct ibv_sge)".to_owned(), 17), ("IBV_NO_SUCH".to_owned(), 0)];
    let found = ["sizeof(struct ibv_sge): 17, bindings 16", "IBV_NO_SUCH: not in the bindings"];
    assert_eq!(differences(&planted, &bindings), found);
}
