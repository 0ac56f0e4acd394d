//! Types and constants of the binary interface of libibverbs: the part that RC queue pairs need.
//!
//! Each name stands next to its C name, so that a test can compare sizes, offsets and values with
//! `infiniband/verbs.h`. A union is flattened to its largest members that are used here.

use std::ffi::{c_int, c_uint, c_void};

/// A structure with the fields of a C structure. A field's path in C stands in brackets if it
/// differs from its name here; a field with empty brackets has none. `part` structures are the
/// first fields of larger ones.
macro_rules! structures {
    ($($part:ident $c:literal $rust:ident {
        $($field:ident $([$($path:literal)?])?: $type:ty,)*
    })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $rust { $(pub $field: $type,)* }

            impl Default for $rust {
                fn default() -> Self {
                    // SAFETY: the fields are integers, raw pointers, optional functions and arrays
                    // of those. All zeros is a valid value of each.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*

        /// C expressions of sizes and offsets, and their values here.
        #[cfg(test)]
        pub fn layout() -> Vec<(String, i64)> {
            let mut all = Vec::new();
            let mut add = |c: String, value: usize| all.push((c, value as i64));
            $(
                if stringify!($part) == "whole" {
                    add(format!("sizeof({})", $c), size_of::<$rust>());
                }
                $(
                    let path = structures!(@path $field $([$($path)?])?);
                    if !path.is_empty() {
                        let offset = std::mem::offset_of!($rust, $field);
                        add(format!("offsetof({}, {path})", $c), offset);
                    }
                )*
            )*
            all
        }
    };
    (@path $field:ident) => { stringify!($field) };
    (@path $field:ident []) => { "" };
    (@path $field:ident [$path:literal]) => { $path };
}

/// Constants in modules, each with its C name.
macro_rules! constants {
    ($($module:ident: $type:ty { $($name:ident $c:ident = $value:expr;)* })*) => {
        $(
            #[allow(dead_code, reason = "the fake library of the tests needs more of them")]
            pub mod $module { $(pub const $name: $type = $value;)* }
        )*

        /// C constants, and their values here.
        #[cfg(test)]
        pub fn values() -> Vec<(String, i64)> {
            vec![$($((stringify!($c).to_owned(), i64::from($module::$name)),)*)*]
        }
    };
}

constants! {
    qp_type: u32 { RC IBV_QPT_RC = 2; }
    gid_type: u32 {
        IB IBV_GID_TYPE_IB = 0;
        ROCE_V1 IBV_GID_TYPE_ROCE_V1 = 1;
        ROCE_V2 IBV_GID_TYPE_ROCE_V2 = 2;
    }
    link_layer: u8 {
        INFINIBAND IBV_LINK_LAYER_INFINIBAND = 1;
        ETHERNET IBV_LINK_LAYER_ETHERNET = 2;
    }
    port_state: u32 {
        DOWN IBV_PORT_DOWN = 1;
        INIT IBV_PORT_INIT = 2;
        ARMED IBV_PORT_ARMED = 3;
        ACTIVE IBV_PORT_ACTIVE = 4;
        ACTIVE_DEFER IBV_PORT_ACTIVE_DEFER = 5;
    }
    qp_state: u32 {
        RESET IBV_QPS_RESET = 0;
        INIT IBV_QPS_INIT = 1;
        RTR IBV_QPS_RTR = 2;
        RTS IBV_QPS_RTS = 3;
        ERR IBV_QPS_ERR = 6;
    }
    access: i32 {
        LOCAL_WRITE IBV_ACCESS_LOCAL_WRITE = 1;
        REMOTE_WRITE IBV_ACCESS_REMOTE_WRITE = 1 << 1;
        REMOTE_READ IBV_ACCESS_REMOTE_READ = 1 << 2;
    }
    qp_mask: i32 {
        STATE IBV_QP_STATE = 1;
        ACCESS_FLAGS IBV_QP_ACCESS_FLAGS = 1 << 3;
        PKEY_INDEX IBV_QP_PKEY_INDEX = 1 << 4;
        PORT IBV_QP_PORT = 1 << 5;
        AV IBV_QP_AV = 1 << 7;
        PATH_MTU IBV_QP_PATH_MTU = 1 << 8;
        TIMEOUT IBV_QP_TIMEOUT = 1 << 9;
        RETRY_CNT IBV_QP_RETRY_CNT = 1 << 10;
        RNR_RETRY IBV_QP_RNR_RETRY = 1 << 11;
        RQ_PSN IBV_QP_RQ_PSN = 1 << 12;
        MAX_RD_ATOMIC IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
        MIN_RNR_TIMER IBV_QP_MIN_RNR_TIMER = 1 << 15;
        SQ_PSN IBV_QP_SQ_PSN = 1 << 16;
        MAX_DEST_RD_ATOMIC IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
        DEST_QPN IBV_QP_DEST_QPN = 1 << 20;
    }
    opcode: u32 {
        WRITE IBV_WR_RDMA_WRITE = 0;
        WRITE_WITH_IMM IBV_WR_RDMA_WRITE_WITH_IMM = 1;
        SEND IBV_WR_SEND = 2;
        READ IBV_WR_RDMA_READ = 4;
    }
    send_flag: u32 { SIGNALED IBV_SEND_SIGNALED = 1 << 1; }
    wc_opcode: u32 {
        SEND IBV_WC_SEND = 0;
        WRITE IBV_WC_RDMA_WRITE = 1;
        READ IBV_WC_RDMA_READ = 2;
        RECV IBV_WC_RECV = 1 << 7;
        RECV_WITH_IMM IBV_WC_RECV_RDMA_WITH_IMM = (1 << 7) + 1;
    }
    wc_flag: u32 { WITH_IMM IBV_WC_WITH_IMM = 1 << 1; }
    status: u32 {
        SUCCESS IBV_WC_SUCCESS = 0;
        LOC_LEN IBV_WC_LOC_LEN_ERR = 1;
        LOC_QP_OP IBV_WC_LOC_QP_OP_ERR = 2;
        LOC_PROT IBV_WC_LOC_PROT_ERR = 4;
        WR_FLUSH IBV_WC_WR_FLUSH_ERR = 5;
        REM_INV_REQ IBV_WC_REM_INV_REQ_ERR = 9;
        REM_ACCESS IBV_WC_REM_ACCESS_ERR = 10;
        REM_OP IBV_WC_REM_OP_ERR = 11;
        RETRY_EXC IBV_WC_RETRY_EXC_ERR = 12;
        RNR_RETRY_EXC IBV_WC_RNR_RETRY_EXC_ERR = 13;
    }
    event: u32 {
        CQ_ERR IBV_EVENT_CQ_ERR = 0;
        QP_FATAL IBV_EVENT_QP_FATAL = 1;
        QP_REQ_ERR IBV_EVENT_QP_REQ_ERR = 2;
        QP_ACCESS_ERR IBV_EVENT_QP_ACCESS_ERR = 3;
        PATH_MIG_ERR IBV_EVENT_PATH_MIG_ERR = 7;
        DEVICE_FATAL IBV_EVENT_DEVICE_FATAL = 8;
        PORT_ACTIVE IBV_EVENT_PORT_ACTIVE = 9;
        PORT_ERR IBV_EVENT_PORT_ERR = 10;
        LID_CHANGE IBV_EVENT_LID_CHANGE = 11;
        PKEY_CHANGE IBV_EVENT_PKEY_CHANGE = 12;
        CLIENT_REREGISTER IBV_EVENT_CLIENT_REREGISTER = 17;
        GID_CHANGE IBV_EVENT_GID_CHANGE = 18;
    }
}

/// A function pointer that is never called here.
type Unused = *const c_void;

/// `union ibv_gid`. Its other member consists of 64-bit integers: hence the alignment.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawGid(pub [u8; 16]);

/// `struct ibv_device`, accessed by the library only.
#[repr(C)]
pub struct DeviceEntry([u8; 0]);

structures! {
    whole "struct ibv_sge" Sge { addr: u64, length: u32, lkey: u32, }

    whole "struct ibv_send_wr" SendWr {
        wr_id: u64, next: *mut SendWr, sg_list: *mut Sge, num_sge: c_int, opcode: c_uint,
        send_flags: c_uint, imm_data: u32,
        remote_addr["wr.rdma.remote_addr"]: u64, rkey["wr.rdma.rkey"]: u32,
        padding[]: u32, other_members[]: [u64; 9],
    }

    whole "struct ibv_recv_wr" RecvWr {
        wr_id: u64, next: *mut RecvWr, sg_list: *mut Sge, num_sge: c_int,
    }

    whole "struct ibv_wc" Wc {
        wr_id: u64, status: c_uint, opcode: c_uint, vendor_err: u32, byte_len: u32, imm_data: u32,
        qp_num: u32, src_qp: u32, wc_flags: c_uint, pkey_index: u16, slid: u16, sl: u8,
        dlid_path_bits: u8,
    }

    whole "struct ibv_pd" Pd { context: *mut Context, handle: u32, }

    whole "struct ibv_mr" Mr {
        context: *mut Context, pd: *mut Pd, addr: *mut c_void, length: usize, handle: u32,
        lkey: u32, rkey: u32,
    }

    whole "struct ibv_comp_channel" Channel { context: *mut Context, fd: c_int, refcnt: c_int, }

    part "struct ibv_cq" Cq {
        context: *mut Context, channel: *mut Channel, cq_context: *mut c_void, handle: u32,
        cqe: c_int,
    }

    part "struct ibv_qp" Qp {
        context: *mut Context, qp_context: *mut c_void, pd: *mut Pd, send_cq: *mut Cq,
        recv_cq: *mut Cq, srq: *mut c_void, handle: u32, qp_num: u32, state: c_uint,
        qp_type: c_uint,
    }

    whole "struct ibv_qp_cap" QpCap {
        max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32,
        max_inline_data: u32,
    }

    whole "struct ibv_qp_init_attr" QpInitAttr {
        qp_context: *mut c_void, send_cq: *mut Cq, recv_cq: *mut Cq, srq: *mut c_void, cap: QpCap,
        qp_type: c_uint, sq_sig_all: c_int,
    }

    whole "struct ibv_global_route" GlobalRoute {
        dgid: RawGid, flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8,
    }

    whole "struct ibv_ah_attr" AhAttr {
        grh: GlobalRoute, dlid: u16, sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8,
        port_num: u8,
    }

    whole "struct ibv_qp_attr" QpAttr {
        qp_state: c_uint, cur_qp_state: c_uint, path_mtu: c_uint, path_mig_state: c_uint,
        qkey: u32, rq_psn: u32, sq_psn: u32, dest_qp_num: u32, qp_access_flags: c_uint,
        cap: QpCap, ah_attr: AhAttr, alt_ah_attr: AhAttr, pkey_index: u16, alt_pkey_index: u16,
        en_sqd_async_notify: u8, sq_draining: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8,
        min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8, rnr_retry: u8,
        alt_port_num: u8, alt_timeout: u8, rate_limit: u32,
    }

    whole "struct ibv_gid_entry" GidEntry {
        gid: RawGid, gid_index: u32, port_num: u32, gid_type: u32, ndev_ifindex: u32,
    }

    // The library's symbol fills these fields; later versions of the header have more of them.
    part "struct ibv_port_attr" PortAttr {
        state: c_uint, max_mtu: c_uint, active_mtu: c_uint, gid_tbl_len: c_int,
        port_cap_flags: u32, max_msg_sz: u32, bad_pkey_cntr: u32, qkey_viol_cntr: u32,
        pkey_tbl_len: u16, lid: u16, sm_lid: u16, lmc: u8, max_vl_num: u8, sm_sl: u8,
        subnet_timeout: u8, init_type_reply: u8, active_width: u8, active_speed: u8,
        phys_state: u8, link_layer: u8, flags: u8, port_cap_flags2: u16,
    }

    whole "struct ibv_device_attr" DeviceAttr {
        fw_ver: [u8; 64], node_guid: u64, sys_image_guid: u64, max_mr_size: u64,
        page_size_cap: u64, vendor_id: u32, vendor_part_id: u32, hw_ver: u32, max_qp: c_int,
        max_qp_wr: c_int, device_cap_flags: c_uint, max_sge: c_int, max_sge_rd: c_int,
        max_cq: c_int, max_cqe: c_int, max_mr: c_int, max_pd: c_int, max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int, max_res_rd_atom: c_int, max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int, atomic_cap: c_uint, max_ee: c_int, max_rdd: c_int,
        max_mw: c_int, max_raw_ipv6_qp: c_int, max_raw_ethy_qp: c_int, max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int, max_total_mcast_qp_attach: c_int, max_ah: c_int,
        max_fmr: c_int, max_map_per_fmr: c_int, max_srq: c_int, max_srq_wr: c_int,
        max_srq_sge: c_int, max_pkeys: u16, local_ca_ack_delay: u8, phys_port_cnt: u8,
    }

    whole "struct ibv_async_event" AsyncEvent { element: u64, event_type: c_uint, }

    whole "struct ibv_context_ops" ContextOps {
        before_poll_cq[]: [Unused; 11],
        poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
        before_post_send[]: [Unused; 12],
        post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
        after_post_recv[]: [Unused; 5],
    }

    part "struct ibv_context" Context {
        device: *mut DeviceEntry, ops: ContextOps, cmd_fd: c_int, async_fd: c_int,
        num_comp_vectors: c_int,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_is_aligned_as_the_union_of_the_header() {
        assert_eq!((size_of::<RawGid>(), align_of::<RawGid>()), (16, 8));
    }
}
