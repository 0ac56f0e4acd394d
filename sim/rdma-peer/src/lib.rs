//! A peer of a reliable queue pair that shares no code with `io/src/verbs`: it uses the bindings of
//! `ibverbs-sys`, which were generated from the headers of rdma-core, and chooses its GID, its
//! attributes and its packet numbers itself.

use std::ffi::CStr;
use std::io::Error;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use ibverbs_sys::*;

/// A completion takes no longer, also in an emulated machine.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Codes of the InfiniBand specification: 4096 bytes, 67 ms, 0.64 ms.
const MTU: ibv_mtu = IBV_MTU_4096;
const TIMEOUT: u8 = 14;
const RECEIVER_TIMER: u8 = 12;
const RETRIES: u8 = 6;
const READS: u8 = 8;
const REQUESTS: u32 = 16;
const PIECES: u32 = 4;

/// Facts that the other side needs.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress {
    pub queue_pair: u32,
    pub packet: u32,
    pub gid: [u8; 16],
}

/// An operation of the peer. Offsets and lengths are of its own memory.
#[derive(Clone, Copy, Debug)]
pub enum PeerOperation {
    Write { address: u64, key: u32 },
    WriteWithImmediate { address: u64, key: u32, immediate: u32 },
    Read { address: u64, key: u32 },
    Send,
}

/// A completion as the bindings report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCompletion {
    pub id: u64,
    pub status: u32,
    /// Valid after a success, as the following fields.
    pub opcode: u32,
    pub bytes: usize,
    pub immediate: Option<u32>,
}

/// One end of a connection.
pub struct Peer {
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    queue: *mut ibv_cq,
    region: *mut ibv_mr,
    pair: *mut ibv_qp,
    memory: Box<[u8]>,
    gid: ibv_gid_entry,
    packet: u32,
}

/// A pointer that a call returned, or its error.
fn created<T>(call: &str, pointer: *mut T) -> *mut T {
    assert!(!pointer.is_null(), "{call}: {}", Error::last_os_error());
    pointer
}

fn succeeded(call: &str, status: i32) {
    assert_eq!(status, 0, "{call}: {}", Error::from_raw_os_error(status.abs()));
}

impl Peer {
    /// A peer on the device of this name, at the IPv4 address of its first port, with `bytes` bytes
    /// of zeros that the other side may read and write.
    pub fn new(name: &str, bytes: usize) -> Peer {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        let access = access.0 as i32;
        let mut memory = vec![0; bytes].into_boxed_slice();
        // SAFETY: each object is used while it exists: `drop` destroys them in the reverse order.
        // The memory does not move.
        unsafe {
            let context = open(name);
            let gid = ipv4_gid(context);
            let domain = created("ibv_alloc_pd", ibv_alloc_pd(context));
            let start = memory.as_mut_ptr().cast();
            let region = created("ibv_reg_mr", ibv_reg_mr(domain, start, bytes, access));
            let queue = ibv_create_cq(context, 4 * REQUESTS as i32, null_mut(), null_mut(), 0);
            let queue = created("ibv_create_cq", queue);
            let mut init: ibv_qp_init_attr = zeroed();
            init.send_cq = queue;
            init.recv_cq = queue;
            init.qp_type = ibv_qp_type::IBV_QPT_RC;
            init.cap.max_send_wr = REQUESTS;
            init.cap.max_recv_wr = REQUESTS;
            init.cap.max_send_sge = PIECES;
            init.cap.max_recv_sge = PIECES;
            let pair = created("ibv_create_qp", ibv_create_qp(domain, &mut init));
            let mut attributes: ibv_qp_attr = zeroed();
            attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
            attributes.port_num = 1;
            attributes.qp_access_flags = access as u32;
            let mask = ibv_qp_attr_mask::IBV_QP_STATE
                | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
                | ibv_qp_attr_mask::IBV_QP_PORT
                | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
            succeeded("to INIT", ibv_modify_qp(pair, &mut attributes, mask.0 as i32));
            Peer { context, domain, queue, region, pair, memory, gid, packet: 0x00ab_cde0 }
        }
    }

    pub fn address(&self) -> PeerAddress {
        // SAFETY: the queue pair exists, and every member of the union has the same bytes.
        let (queue_pair, gid) = unsafe { ((*self.pair).qp_num, self.gid.gid.raw) };
        PeerAddress { queue_pair, packet: self.packet, gid }
    }

    /// Connect to the other side, to receive and to send.
    pub fn connect(&self, other: &PeerAddress) {
        // SAFETY: the queue pair exists, and the calls read the structure.
        unsafe {
            let mut attributes: ibv_qp_attr = zeroed();
            attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
            attributes.path_mtu = MTU;
            attributes.dest_qp_num = other.queue_pair;
            attributes.rq_psn = other.packet;
            attributes.max_dest_rd_atomic = READS;
            attributes.min_rnr_timer = RECEIVER_TIMER;
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.port_num = 1;
            attributes.ah_attr.grh.dgid.raw = other.gid;
            attributes.ah_attr.grh.sgid_index = self.gid.gid_index as u8;
            attributes.ah_attr.grh.hop_limit = 1;
            let mask = ibv_qp_attr_mask::IBV_QP_STATE
                | ibv_qp_attr_mask::IBV_QP_AV
                | ibv_qp_attr_mask::IBV_QP_PATH_MTU
                | ibv_qp_attr_mask::IBV_QP_DEST_QPN
                | ibv_qp_attr_mask::IBV_QP_RQ_PSN
                | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
            succeeded("to RTR", ibv_modify_qp(self.pair, &mut attributes, mask.0 as i32));
            attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
            attributes.sq_psn = self.packet;
            attributes.timeout = TIMEOUT;
            attributes.retry_cnt = RETRIES;
            attributes.rnr_retry = RETRIES;
            attributes.max_rd_atomic = READS;
            let mask = ibv_qp_attr_mask::IBV_QP_STATE
                | ibv_qp_attr_mask::IBV_QP_SQ_PSN
                | ibv_qp_attr_mask::IBV_QP_TIMEOUT
                | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
                | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
                | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
            succeeded("to RTS", ibv_modify_qp(self.pair, &mut attributes, mask.0 as i32));
        }
    }

    /// The address of a byte of its memory, and the key for it.
    pub fn remote(&self, offset: usize) -> (u64, u32) {
        // SAFETY: the region exists.
        (self.memory.as_ptr() as u64 + offset as u64, unsafe { (*self.region).rkey })
    }

    pub fn fill(&mut self, bytes: &[u8]) {
        // SAFETY: the range is this memory. The device may access it meanwhile, so it is volatile.
        unsafe {
            bytes
                .iter()
                .enumerate()
                .for_each(|(at, byte)| self.memory.as_mut_ptr().add(at).write_volatile(*byte))
        }
    }

    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.memory.len());
        // SAFETY: as in `fill`.
        (0..length)
            .map(|at| unsafe { self.memory.as_ptr().add(offset + at).read_volatile() })
            .collect()
    }

    /// A scatter list of its own memory.
    fn pieces(&self, pieces: &[(usize, usize)]) -> Vec<ibv_sge> {
        let piece = |(offset, length): &(usize, usize)| {
            // SAFETY: the region exists.
            let lkey = unsafe { (*self.region).lkey };
            ibv_sge {
                addr: self.memory.as_ptr() as u64 + *offset as u64,
                length: *length as u32,
                lkey,
            }
        };
        pieces.iter().map(piece).collect()
    }

    pub fn post_receive(&self, id: u64, pieces: &[(usize, usize)]) {
        let mut pieces = self.pieces(pieces);
        // SAFETY: the queue pair exists, and the call reads the lists.
        unsafe {
            let mut request: ibv_recv_wr = zeroed();
            request.wr_id = id;
            request.sg_list = pieces.as_mut_ptr();
            request.num_sge = pieces.len() as i32;
            let post = (*self.context).ops.post_recv.expect("post_recv");
            succeeded("ibv_post_recv", post(self.pair, &mut request, &mut null_mut()));
        }
    }

    pub fn post(&self, id: u64, pieces: &[(usize, usize)], operation: PeerOperation) {
        let mut pieces = self.pieces(pieces);
        // SAFETY: the queue pair exists, and the call reads the lists.
        unsafe {
            let mut request: ibv_send_wr = zeroed();
            request.wr_id = id;
            request.sg_list = pieces.as_mut_ptr();
            request.num_sge = pieces.len() as i32;
            request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
            let (opcode, address, key) = match operation {
                PeerOperation::Write { address, key } => {
                    (ibv_wr_opcode::IBV_WR_RDMA_WRITE, address, key)
                }
                PeerOperation::WriteWithImmediate { address, key, immediate } => {
                    request.__bindgen_anon_1.imm_data = immediate.to_be();
                    (ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, address, key)
                }
                PeerOperation::Read { address, key } => {
                    (ibv_wr_opcode::IBV_WR_RDMA_READ, address, key)
                }
                PeerOperation::Send => (ibv_wr_opcode::IBV_WR_SEND, 0, 0),
            };
            request.opcode = opcode;
            request.wr.rdma.remote_addr = address;
            request.wr.rdma.rkey = key;
            let post = (*self.context).ops.post_send.expect("post_send");
            succeeded("ibv_post_send", post(self.pair, &mut request, &mut null_mut()));
        }
    }

    /// The next completion.
    pub fn next(&self) -> PeerCompletion {
        let end = Instant::now() + WAIT_MAX;
        while Instant::now() < end {
            // SAFETY: the queue exists, and the call fills the structure if it returns 1.
            let (count, found) = unsafe {
                let mut found: ibv_wc = zeroed();
                let poll = (*self.context).ops.poll_cq.expect("poll_cq");
                (poll(self.queue, 1, &mut found), found)
            };
            assert!(count >= 0, "ibv_poll_cq: {count}");
            if count == 1 {
                return PeerCompletion {
                    id: found.wr_id(),
                    status: found.error().map_or(0, |(status, _)| status),
                    opcode: found.opcode(),
                    bytes: found.len(),
                    immediate: found.imm_data().map(u32::from_be),
                };
            }
            std::thread::yield_now();
        }
        panic!("no completion in {} s", WAIT_MAX.as_secs());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: each object exists, and is destroyed once, after those that use it.
        unsafe {
            succeeded("ibv_destroy_qp", ibv_destroy_qp(self.pair));
            succeeded("ibv_destroy_cq", ibv_destroy_cq(self.queue));
            succeeded("ibv_dereg_mr", ibv_dereg_mr(self.region));
            succeeded("ibv_dealloc_pd", ibv_dealloc_pd(self.domain));
            succeeded("ibv_close_device", ibv_close_device(self.context));
        }
    }
}

/// Names of all devices; none where there is no RDMA.
pub fn device_names() -> Vec<String> {
    let mut count = 0;
    // SAFETY: the list has as many entries as the call says, and is freed after the last use.
    unsafe {
        let list = ibv_get_device_list(&mut count);
        if list.is_null() {
            return Vec::new();
        }
        let name =
            |at| CStr::from_ptr(ibv_get_device_name(*list.add(at))).to_string_lossy().into_owned();
        let mut names: Vec<String> = (0..count as usize).map(name).collect();
        ibv_free_device_list(list);
        names.sort();
        names
    }
}

/// # Safety
///
/// The context is closed once.
unsafe fn open(name: &str) -> *mut ibv_context {
    let mut count = 0;
    // SAFETY: as in `device_names`; open contexts outlive the list.
    unsafe {
        let list = created("ibv_get_device_list", ibv_get_device_list(&mut count));
        let named = |at: &usize| {
            CStr::from_ptr(ibv_get_device_name(*list.add(*at))).to_bytes() == name.as_bytes()
        };
        let at = (0..count as usize).find(named).expect("a device of this name");
        let context = created("ibv_open_device", ibv_open_device(*list.add(at)));
        ibv_free_device_list(list);
        context
    }
}

/// The GID of the first port that is a RoCE v2 address of IPv4.
///
/// # Safety
///
/// The context is open.
unsafe fn ipv4_gid(context: *mut ibv_context) -> ibv_gid_entry {
    for index in 0..16 {
        // SAFETY: the call fills the structure if it succeeds; every member of the union has the
        // same bytes.
        unsafe {
            let mut entry: ibv_gid_entry = zeroed();
            let status =
                _ibv_query_gid_ex(context, 1, index, &mut entry, 0, size_of::<ibv_gid_entry>());
            let is_ipv4 = entry.gid.raw[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            if status == 0 && is_ipv4 && entry.gid_type == IBV_GID_TYPE_ROCE_V2 {
                return entry;
            }
        }
    }
    panic!("no RoCE v2 address of IPv4");
}
