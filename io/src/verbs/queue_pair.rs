//! Reliable queue pairs.
//!
//! This file moves a queue pair through four states. It is created in INIT, where receives can be
//! posted; [`QueuePair::ready_to_receive`] and [`QueuePair::ready_to_send`] connect it; an error,
//! or [`QueuePair::fail`], ends it. After [`QueuePair::destroy`] returns, or after both markers of
//! a [`Drain`] are flushed, no operation of the peer changes memory through it.

use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

use rustix::io::Errno;

use super::abi;
use super::completion::{Completion, CompletionQueue, Status};
use super::device::Device;
use super::error::{Result, VerbsError, last_errno};
use super::gid::{Gid, GidEntry};
use super::library::{Handle, check};
use super::memory::{LocalPiece, ProtectionDomain, RemoteAccess};
use super::port::{LinkLayer, Mtu, Port};
use super::request::{Operation, SendRequest, raw_list};

/// Acknowledgements are awaited for 4.096 us * 2^14 = 67 ms.
const TIMEOUT: u8 = 14;
/// Retries without an acknowledgement. 7 would mean "for ever" in some providers.
const RETRIES: u8 = 6;
/// Retries while the peer has no receive posted.
const RECEIVER_RETRIES: u8 = 6;
/// The peer waits 0.64 ms before such a retry (code 12 of the InfiniBand specification).
const RECEIVER_TIMER: u8 = 12;
/// Routers on the way.
const HOPS: u8 = 64;
/// READs in flight.
const READS_MAX: u8 = 16;
/// Packet numbers have 24 bits.
const PACKET_NUMBERS: u32 = 0x00ff_ffff;
/// Requests that one call hands to the provider.
const POSTED_MAX: usize = 16;

/// The sizes of a queue pair. One more request fits each queue: the marker of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Send requests that are posted and not completed.
    pub sends: u32,
    /// Receives that are posted and not completed.
    pub receives: u32,
    /// Pieces of a request's scatter list.
    pub pieces: u32,
}

/// Where a queue pair is attached.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The port.
    pub port: Port,
    /// The GID, from that port's table.
    pub gid: GidEntry,
}

/// Address of a queue pair: a peer connects to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The number of the queue pair.
    pub queue_pair: u32,
    /// The number of the first packet that it sends.
    pub packet: u32,
    /// The GID.
    pub gid: Gid,
    /// The local identifier of InfiniBand; 0 over Ethernet.
    pub lid: u16,
    /// The port's MTU.
    pub mtu: Mtu,
    /// READs in flight that it answers.
    pub reads: u8,
}

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Created: it accepts receives.
    Init,
    /// It receives.
    ReadyToReceive,
    /// It sends and receives.
    ReadyToSend,
    /// It failed: requests are flushed.
    Error,
    /// Another state, by its number.
    Other(u32),
}

/// A queue pair of the reliable connected type.
pub struct QueuePair {
    qp: Handle<abi::Qp>,
    number: u32,
    packet: u32,
    attachment: Attachment,
    used: Used,
    released: bool,
}

/// Objects that must exist as long as the queue pair.
#[derive(Clone)]
struct Used {
    domain: Arc<ProtectionDomain>,
    _sends: Arc<CompletionQueue>,
    _receives: Arc<CompletionQueue>,
}

impl QueuePair {
    /// A queue pair in INIT. Its completions go to `sends` and `receives`, which may be the same
    /// queue; `packet` is the number of its first packet, of which 24 bits count and which differs
    /// from that of earlier queue pairs. `access` bounds what the peer may do with any region.
    ///
    /// # Panics
    ///
    /// If a completion queue is of another device.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        (sends, receives): (&Arc<CompletionQueue>, &Arc<CompletionQueue>),
        attachment: Attachment,
        capacity: Capacity,
        packet: u32,
        access: RemoteAccess,
    ) -> Result<QueuePair> {
        let device = domain.device();
        assert!(
            sends.is_of(device) && receives.is_of(device),
            "completion queues belong to the domain's device"
        );
        let cap = checked(device, capacity)?;
        let mut init = abi::QpInitAttr {
            send_cq: sends.cq.pointer(),
            recv_cq: receives.cq.pointer(),
            cap,
            qp_type: abi::qp_type::RC,
            ..abi::QpInitAttr::default()
        };
        // SAFETY: the domain and both queues exist, and the queue pair keeps them.
        let qp =
            unsafe { (device.library.functions.ibv_create_qp)(domain.pd.pointer(), &raw mut init) };
        let qp = Handle::new(qp, "ibv_create_qp", device.name())?;
        // SAFETY: the library returned the structure, and does not change its number.
        let number = unsafe { (*qp.pointer()).qp_num };
        let used =
            Used { domain: domain.clone(), _sends: sends.clone(), _receives: receives.clone() };
        let packet = packet & PACKET_NUMBERS;
        let pair = QueuePair { qp, number, packet, attachment, used, released: false };
        let attributes = abi::QpAttr {
            qp_state: abi::qp_state::INIT,
            port_num: pair.attachment.port.number,
            qp_access_flags: access.flags().cast_unsigned(),
            ..abi::QpAttr::default()
        };
        use abi::qp_mask as m;
        pair.modify(attributes, m::STATE | m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS)?;
        Ok(pair)
    }

    fn device(&self) -> &Arc<Device> {
        self.used.domain.device()
    }

    /// The number, which its completions have.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The address for the peer.
    pub fn endpoint(&self) -> Endpoint {
        let Attachment { port, gid } = &self.attachment;
        Endpoint {
            queue_pair: self.number,
            packet: self.packet,
            gid: gid.gid,
            lid: port.lid,
            mtu: port.mtu,
            reads: self.device().limits().max_reads_in.min(READS_MAX),
        }
    }

    /// Connect to the peer, and receive from it.
    pub fn ready_to_receive(&self, peer: &Endpoint) -> Result<()> {
        use abi::qp_mask as m;
        let Attachment { port, gid } = &self.attachment;
        let grh = abi::GlobalRoute {
            dgid: abi::RawGid(peer.gid.0),
            sgid_index: gid.index,
            hop_limit: HOPS,
            ..abi::GlobalRoute::default()
        };
        // Inside of an InfiniBand subnet, which the first half of a GID names, the LID suffices.
        let same_subnet = gid.gid.0[..8] == peer.gid.0[..8];
        let global = port.link_layer != LinkLayer::InfiniBand || !same_subnet;
        let attributes = abi::QpAttr {
            qp_state: abi::qp_state::RTR,
            path_mtu: port.mtu.min(peer.mtu).code(),
            dest_qp_num: peer.queue_pair,
            rq_psn: peer.packet & PACKET_NUMBERS,
            max_dest_rd_atomic: self.endpoint().reads,
            min_rnr_timer: RECEIVER_TIMER,
            ah_attr: abi::AhAttr {
                grh,
                dlid: peer.lid,
                is_global: u8::from(global),
                port_num: port.number,
                ..abi::AhAttr::default()
            },
            ..abi::QpAttr::default()
        };
        let path = m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN;
        self.modify(attributes, m::STATE | path | m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER)
    }

    /// Send to the peer. The queue pair receives already.
    pub fn ready_to_send(&self, peer: &Endpoint) -> Result<()> {
        use abi::qp_mask as m;
        let own = self.device().limits().max_reads_out;
        let attributes = abi::QpAttr {
            qp_state: abi::qp_state::RTS,
            sq_psn: self.packet,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RECEIVER_RETRIES,
            max_rd_atomic: own.min(peer.reads).min(READS_MAX),
            ..abi::QpAttr::default()
        };
        let retries = m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY;
        self.modify(attributes, m::STATE | m::SQ_PSN | retries | m::MAX_RD_ATOMIC)
    }

    /// To the error state. Posted requests are flushed.
    pub fn fail(&self) -> Result<()> {
        let attributes = abi::QpAttr { qp_state: abi::qp_state::ERR, ..abi::QpAttr::default() };
        self.modify(attributes, abi::qp_mask::STATE)
    }

    fn modify(&self, mut attributes: abi::QpAttr, mask: i32) -> Result<()> {
        let modify = self.device().library.functions.ibv_modify_qp;
        let call = match attributes.qp_state {
            abi::qp_state::INIT => "ibv_modify_qp to INIT",
            abi::qp_state::RTR => "ibv_modify_qp to RTR",
            abi::qp_state::RTS => "ibv_modify_qp to RTS",
            _ => "ibv_modify_qp to ERR",
        };
        // SAFETY: the queue pair exists, and the call reads the fields that the mask names.
        let status = unsafe { modify(self.qp.pointer(), &raw mut attributes, mask) };
        check(status, call, self.device().name())
    }

    /// The state as the device reports it.
    pub fn state(&self) -> Result<State> {
        let query = self.device().library.functions.ibv_query_qp;
        let (mut attributes, mut init) = (abi::QpAttr::default(), abi::QpInitAttr::default());
        let mask = abi::qp_mask::STATE;
        // SAFETY: the queue pair exists, and the call fills both structures.
        let status = unsafe { query(self.qp.pointer(), &raw mut attributes, mask, &raw mut init) };
        check(status, "ibv_query_qp", self.device().name())?;
        Ok(match attributes.qp_state {
            abi::qp_state::INIT => State::Init,
            abi::qp_state::RTR => State::ReadyToReceive,
            abi::qp_state::RTS => State::ReadyToSend,
            abi::qp_state::ERR => State::Error,
            other => State::Other(other),
        })
    }

    /// Post requests, in order. Local pieces stay registered until the request completes; a device
    /// refuses access to others.
    pub fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<()> {
        let post = self.device().ops().post_send;
        for (number, group) in requests.chunks(POSTED_MAX).enumerate() {
            let mut list = [abi::SendWr::default(); POSTED_MAX];
            for (raw, request) in list.iter_mut().zip(group) {
                *raw = request.raw();
            }
            let base = list.as_mut_ptr();
            for at in 1..group.len() {
                list[at - 1].next = base.wrapping_add(at);
            }
            let mut refused = null_mut();
            let missing = Errno::NOSYS.raw_os_error();
            // SAFETY: the queue pair exists; the provider copies the list, whose scatter lists are
            // borrowed by `requests`, before it returns.
            let status = post.map_or(missing, |post| unsafe {
                post(self.qp.pointer(), list.as_mut_ptr(), &raw mut refused)
            });
            // The provider names the request that it refused.
            let posted = list.iter().position(|raw| std::ptr::eq(raw, refused)).unwrap_or(0);
            check_post(status, "ibv_post_send", number * POSTED_MAX + posted)?;
        }
        Ok(())
    }

    /// Post a receive. A peer's SEND fills its pieces; a notice consumes it and needs none.
    pub fn post_receive(&self, id: u64, pieces: &[LocalPiece]) -> Result<()> {
        let (sg_list, num_sge) = raw_list(pieces);
        let mut raw = abi::RecvWr { wr_id: id, sg_list, num_sge, ..abi::RecvWr::default() };
        let (mut refused, missing) = (null_mut(), Errno::NOSYS.raw_os_error());
        // SAFETY: as in `post_send`.
        let status = self.device().ops().post_recv.map_or(missing, |post| unsafe {
            post(self.qp.pointer(), &raw mut raw, &raw mut refused)
        });
        check_post(status, "ibv_post_recv", 0)
    }

    /// Begin to take the queue pair down, so that its memory can be reused: a marker receive, the
    /// error state, then a marker send. Feed every completion to the [`Drain`] until it is done.
    ///
    /// A queue pair that failed already may never flush the marker receive, and some devices flush
    /// no marker send: limit the wait, then [`destroy`](QueuePair::destroy) it.
    pub fn begin_drain(&self, markers: DrainMarkers) -> Result<Drain> {
        // Receives that are posted in the error state are not flushed by every device.
        self.post_receive(markers.receive, &[])?;
        self.fail()?;
        let operation = Operation::Send { from: &[] };
        self.post_send(&[SendRequest { id: markers.send, signaled: true, operation }])?;
        Ok(Drain { queue_pair: self.number, markers, send: false, receive: false })
    }

    /// Destroy the queue pair. After this returns without an error, the device is done with it. An
    /// error leaks it, with everything that it uses.
    pub fn destroy(mut self) -> Result<()> {
        self.release()
    }

    /// Destroy the object, once.
    fn release(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        let destroy = self.device().library.functions.ibv_destroy_qp;
        // SAFETY: the queue pair exists, and is destroyed once. Both callers end the life of
        // `self`, so it is not used afterwards.
        let status = unsafe { destroy(self.qp.pointer()) };
        let result = check(status, "ibv_destroy_qp", self.device().name());
        if let Err(error) = &result {
            tracing::error!(%error, number = self.number, "queue pair stays alive, leaked");
            std::mem::forget(self.used.clone());
        }
        result
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // A failure is logged.
        let _ = self.release();
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("number", &self.number).finish_non_exhaustive()
    }
}

/// The capacity as C has it, with room for the markers of a drain.
fn checked(device: &Device, capacity: Capacity) -> Result<abi::QpCap> {
    let limits = device.limits();
    let sends = capacity.sends.saturating_add(1);
    let receives = capacity.receives.saturating_add(1);
    let asked = [
        ("sends", sends, limits.max_qp_wr),
        ("receives", receives, limits.max_qp_wr),
        ("pieces", capacity.pieces, limits.max_sge),
    ];
    if let Some(&(what, asked, limit)) = asked.iter().find(|(_, asked, limit)| asked > limit) {
        let device = device.name().to_owned();
        return Err(VerbsError::CapacityTooLarge { device, what, asked, limit });
    }
    Ok(abi::QpCap {
        max_send_wr: sends,
        max_recv_wr: receives,
        max_send_sge: capacity.pieces,
        max_recv_sge: capacity.pieces,
        max_inline_data: 0,
    })
}

fn check_post(status: i32, call: &'static str, posted: usize) -> Result<()> {
    match status {
        0 => Ok(()),
        -1 => Err(VerbsError::PostRefused { call, posted, errno: last_errno() }),
        errno => Err(VerbsError::PostRefused { call, posted, errno: errno.saturating_abs() }),
    }
}

/// The numbers of the requests that mark the ends of both queues. No other request has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainMarkers {
    /// The number of the receive.
    pub receive: u64,
    /// The number of the send.
    pub send: u64,
}

/// The progress of taking a queue pair down.
#[derive(Debug)]
pub struct Drain {
    queue_pair: u32,
    markers: DrainMarkers,
    send: bool,
    receive: bool,
}

impl Drain {
    /// Note a completion. Returns whether both markers were flushed.
    pub fn observe(&mut self, completion: &Completion) -> bool {
        if completion.queue_pair == self.queue_pair && completion.status == Status::FLUSHED {
            self.send |= completion.id == self.markers.send;
            self.receive |= completion.id == self.markers.receive;
        }
        self.is_done()
    }

    /// Whether both markers were flushed.
    pub fn is_done(&self) -> bool {
        self.send && self.receive
    }
}
