//! One rail of one link: a queue pair, its posted requests, and its notices.
//!
//! Invariants:
//! - Completions of requests arrive in the order of posting. Any other order is a fault of the
//!   device, and ends the link: a completion that is lost, doubled or swapped hands back no memory.
//! - Notices arrive in order, numbered from 1 in their immediate values; the same rule applies.
//! - A notice is posted only if the peer has a receive for it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use pagelith_io::verbs::{
    Capacity, Completion, CompletionKind, CompletionQueue, Endpoint, LinkLayer, Operation,
    QueuePair, RemoteAccess, RemotePiece, SendRequest, Status, VerbsError,
};

use pagelith_layouts::ids::OpId;
use pagelith_mutants::{self as mutant, Mutant};

use super::host::RdmaHost;
use super::requests::PlannedRequest;

/// Maximum requests that are posted and not completed.
const SENDS_MAX: u32 = 256;
/// Maximum pieces of a request.
const PIECES_MAX: u32 = 16;
/// Notices that a client can receive before it reports them as polled.
pub(crate) const NOTICES_MAX: u32 = 256;
/// The operation of a notice has no bytes: its address is not used.
const NOWHERE: RemotePiece = RemotePiece { address: 0, key: 0 };
/// Marks the numbers of receives.
const RECEIVE: u64 = 1 << 63;

/// The failure of a rail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RailError {
    /// A call failed.
    #[error("{0}")]
    Verbs(#[from] VerbsError),
    /// A request failed.
    #[error("{0}")]
    Request(Status),
    /// The device reported a completion that it should not have.
    #[error("unexpected completion {0}")]
    Completion(String),
}

impl RailError {
    /// Whether the rail failed, and not the request alone or the peer's end.
    pub fn is_of_rail(&self) -> bool {
        match self {
            RailError::Request(status) => {
                *status != Status::REMOTE_ACCESS && *status != Status::FLUSHED
            }
            // The memory is no longer registered.
            RailError::Verbs(VerbsError::OutsideRegion { .. }) => false,
            RailError::Verbs(_) | RailError::Completion(_) => true,
        }
    }
}

/// Effect of a completed request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Wrote bytes of these pushes.
    Writes(Vec<WrittenBytes>),
    /// Read `bytes` bytes for a job.
    Read { job: u64, bytes: u64 },
}

/// Bytes of a push that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrittenBytes {
    pub op: OpId,
    /// Identifies the push on its link.
    pub push: u64,
    pub bytes: u64,
}

/// Requests that end with a signaled one.
struct Posted {
    id: u64,
    requests: u32,
    work: Work,
}

/// WRITEs without a notice after them.
#[derive(Default)]
struct OpenBatch {
    requests: u32,
    writes: Vec<WrittenBytes>,
}

/// One rail of a link.
pub(crate) struct RailQueue {
    /// Number of the rail at the host.
    pub host_rail: usize,
    name: String,
    link_layer: LinkLayer,
    completions: Arc<CompletionQueue>,
    pub pair: QueuePair,
    sends_max: u32,
    receives: u32,
    pieces_max: usize,
    /// Requests that are posted and not known to be completed.
    sends: u32,
    next_id: u64,
    posted: VecDeque<Posted>,
    open: OpenBatch,
    /// Bytes of WRITEs and READs that are posted and not completed.
    bytes: u64,
    /// Notices that the client can receive before it reports them as polled.
    notices_max: u64,
    /// Server: notices posted, and those that the client has reported as polled.
    notices: u64,
    notices_reported: u64,
    /// Client: notices polled, and those reported to the server.
    noticed: u64,
    noticed_reported: u64,
    /// Completions that were polled and not handled yet.
    polled: RefCell<Vec<Completion>>,
}

impl RailQueue {
    /// A queue pair on a rail of the host, not connected. `access` is the access of the peer; a
    /// peer with access posts notices, for which there are receives.
    pub fn new(
        host: &RdmaHost,
        host_rail: usize,
        packet: u32,
        access: RemoteAccess,
    ) -> Result<RailQueue, VerbsError> {
        let rail = &host.rails()[host_rail];
        let limits = *rail.device().limits();
        let receives = if access == RemoteAccess::NONE { 1 } else { NOTICES_MAX };
        // One more of each is the marker of a drain.
        let most = limits.max_qp_wr.saturating_sub(1);
        let capacity = Capacity {
            sends: SENDS_MAX.min(most),
            receives: receives.min(most),
            pieces: PIECES_MAX.min(limits.max_sge).max(1),
        };
        let attachment = rail.attachment()?;
        let link_layer = attachment.port.link_layer;
        let entries = capacity.sends + capacity.receives + 2;
        let completions = CompletionQueue::new(rail.device(), entries)?;
        let queues = (&completions, &completions);
        let pair = QueuePair::new(rail.domain(), queues, attachment, capacity, packet, access)?;
        let queue = RailQueue {
            host_rail,
            name: rail.to_string(),
            link_layer,
            completions,
            pair,
            sends_max: capacity.sends,
            receives: capacity.receives,
            pieces_max: capacity.pieces as usize,
            sends: 0,
            next_id: 0,
            posted: VecDeque::new(),
            open: OpenBatch::default(),
            bytes: 0,
            notices: 0,
            notices_reported: 0,
            notices_max: 0,
            noticed: 0,
            noticed_reported: 0,
            polled: RefCell::default(),
        };
        if access != RemoteAccess::NONE {
            for number in 0..u64::from(capacity.receives) {
                queue.pair.post_receive(RECEIVE | number, &[])?;
            }
        }
        Ok(queue)
    }

    /// The link layer of its port.
    pub fn link_layer(&self) -> LinkLayer {
        self.link_layer
    }

    /// Notices that the peer can post before this end reports them as polled.
    pub fn receives(&self) -> u32 {
        self.receives
    }

    /// Connect to the peer's queue pair. The client can receive `notices_max` notices on each rail
    /// before it reports them.
    pub fn connect(&mut self, peer: &Endpoint, notices_max: u32) -> Result<(), VerbsError> {
        self.pair.ready_to_receive(peer)?;
        self.pair.ready_to_send(peer)?;
        self.notices_max = notices_max.into();
        Ok(())
    }

    /// Requests that can be posted now, with room left for a notice.
    pub fn room(&self) -> usize {
        self.sends_max.saturating_sub(self.sends).saturating_sub(1) as usize
    }

    /// Maximum pieces of a request.
    pub fn pieces_max(&self) -> usize {
        self.pieces_max
    }

    /// Bytes that are posted and not completed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the device may access memory of this process for requests of this end.
    pub fn is_busy(&self) -> bool {
        !self.posted.is_empty() || self.open.requests > 0
    }

    /// The number of the next notice; `None` if the peer cannot receive it yet.
    pub fn next_notice(&self) -> Option<u64> {
        let unreported = self.notices - self.notices_reported;
        let has_receive = unreported < self.notices_max || mutant::on(Mutant::RdmaCreditsIgnored);
        has_receive.then_some(self.notices + 1)
    }

    /// Post WRITEs for a push. [`RailQueue::post_notice`] must follow.
    pub fn write(
        &mut self,
        (op, push): (OpId, u64),
        requests: &[PlannedRequest],
    ) -> Result<(), RailError> {
        let writes: Vec<SendRequest<'_>> = requests
            .iter()
            .map(|request| SendRequest {
                id: 0,
                signaled: false,
                operation: Operation::Write { from: &request.local, to: request.remote },
            })
            .collect();
        let bytes = requests.iter().map(|request| request.bytes).sum();
        self.open.requests += requests.len() as u32;
        self.open.writes.push(WrittenBytes { op, push, bytes });
        self.sends += requests.len() as u32;
        self.bytes += bytes;
        if mutant::on(Mutant::RdmaNoticeFirst) {
            self.post_notice()?;
        }
        Ok(self.pair.post_send(&writes)?)
    }

    /// Post the notice of the WRITEs since the last one, if there are any.
    pub fn post_notice(&mut self) -> Result<(), RailError> {
        if self.open.requests == 0 {
            return Ok(());
        }
        let open = std::mem::take(&mut self.open);
        self.notices += 1;
        let id = self.posted(open.requests + 1, Work::Writes(open.writes));
        self.sends += 1;
        // The count may exceed 32 bits; the client compares the lower ones.
        let immediate = self.notices as u32;
        let operation = Operation::WriteWithNotice { from: &[], to: NOWHERE, immediate };
        Ok(self.pair.post_send(&[SendRequest { id, signaled: true, operation }])?)
    }

    /// Post READs for a job.
    pub fn read(&mut self, job: u64, requests: &[PlannedRequest]) -> Result<(), RailError> {
        let bytes = requests.iter().map(|request| request.bytes).sum();
        let id = self.posted(requests.len() as u32, Work::Read { job, bytes });
        self.sends += requests.len() as u32;
        self.bytes += bytes;
        let last = requests.len() - 1;
        let reads: Vec<SendRequest<'_>> = requests
            .iter()
            .enumerate()
            .map(|(at, request)| SendRequest {
                id,
                signaled: at == last,
                operation: Operation::Read { to: &request.local, from: request.remote },
            })
            .collect();
        Ok(self.pair.post_send(&reads)?)
    }

    /// Note requests of which the last is signaled; returns its number.
    fn posted(&mut self, requests: u32, work: Work) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.posted.push_back(Posted { id, requests, work });
        id
    }

    /// The client has polled this number of notices.
    pub fn note_reported(&mut self, notices: u64) -> bool {
        let valid = (self.notices_reported..=self.notices).contains(&notices);
        if valid {
            self.notices_reported = notices;
        }
        valid
    }

    /// Notices polled.
    pub fn noticed(&self) -> u64 {
        self.noticed
    }

    /// The number of polled notices, if it is time to report it: half of what the client has
    /// announced was used. A rail may have more receives than that.
    pub fn report_due(&mut self) -> Option<u64> {
        let due = 2 * (self.noticed - self.noticed_reported) >= self.notices_max;
        if due {
            self.noticed_reported = self.noticed;
        }
        due.then_some(self.noticed)
    }

    /// Handle completions; appends the ended requests.
    pub fn poll(&mut self, done: &mut Vec<Work>) -> Result<(), RailError> {
        loop {
            let mut found = std::mem::take(&mut *self.polled.borrow_mut());
            if found.is_empty() {
                self.completions.poll(&mut found)?;
            }
            if found.is_empty() {
                return Ok(());
            }
            for completion in &found {
                self.handle(completion, done)?;
            }
        }
    }

    fn handle(&mut self, completion: &Completion, done: &mut Vec<Work>) -> Result<(), RailError> {
        let unexpected = || Err(RailError::Completion(format!("{completion:?}")));
        if completion.queue_pair != self.pair.number() {
            return unexpected();
        }
        if completion.status != Status::SUCCESS {
            return Err(RailError::Request(completion.status));
        }
        if completion.id & RECEIVE != 0 {
            let next = self.noticed + 1;
            if completion.kind != Some(CompletionKind::Notice(next as u32)) {
                return unexpected();
            }
            self.noticed = next;
            self.pair.post_receive(completion.id, &[])?;
            return Ok(());
        }
        // After any other completion, posted requests stay posted: the device may access memory for
        // it until the queue pair is down.
        if self.posted.front().is_none_or(|front| front.id != completion.id) {
            return unexpected();
        }
        if let Some(Posted { requests, work, .. }) = self.posted.pop_front() {
            self.sends -= requests;
            self.bytes -= match &work {
                Work::Writes(writes) => writes.iter().map(|written| written.bytes).sum(),
                Work::Read { bytes, .. } => *bytes,
            };
            done.push(work);
        }
        Ok(())
    }

    /// Make the next completion wake [`RailQueue::wake`]. True if there is one already.
    pub fn arm(&self) -> Result<bool, VerbsError> {
        self.completions.consume_events()?;
        self.completions.arm()?;
        let mut polled = self.polled.borrow_mut();
        self.completions.poll(&mut polled)?;
        Ok(!polled.is_empty())
    }

    /// Readable when a completion has arrived since [`RailQueue::arm`].
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.completions.as_fd()
    }

    /// The queue pair and its completion queue, to take them down.
    pub fn into_parts(self) -> (String, QueuePair, Arc<CompletionQueue>) {
        (self.name, self.pair, self.completions)
    }
}

impl fmt::Display for RailQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
