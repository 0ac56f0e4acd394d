//! The rails of one link, each with the peer's port that it reaches, and the registered memory that
//! their requests use.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::OpId;

use super::host::RdmaHost;
use super::own_regions::OwnRegions;
use super::rail_health::{PeerHost, RestOf};
use super::rail_queue::{RailError, RailQueue, Work};
use super::take_down::TakeDown;
use crate::link_error::LinkError;

/// The part that the data planes of both ends share.
pub(crate) struct Rails {
    pub(super) host: Arc<RdmaHost>,
    peer: PeerHost,
    /// In the order of the server's rails frame.
    pub(super) queues: Vec<RailQueue>,
    pub(super) own: OwnRegions,
    /// Operations that were retracted while a device may access memory for them, and since when.
    retracted: BTreeMap<OpId, Mono>,
    /// When the byte stream of the link was seen to have ended while bytes were awaited that the
    /// peer's device writes.
    stream_ended: Option<Mono>,
}

impl Rails {
    pub fn new(host: Arc<RdmaHost>, peer: PeerHost, queues: Vec<RailQueue>) -> Rails {
        let (own, retracted) = (OwnRegions::new(), BTreeMap::new());
        Rails { host, peer, queues, own, retracted, stream_ended: None }
    }

    /// Handle completions.
    pub fn poll(&mut self) -> Result<Vec<Work>, LinkError> {
        let mut done = Vec::new();
        for at in 0..self.queues.len() {
            let queue = &mut self.queues[at];
            let before = (done.len(), queue.noticed());
            if let Err(error) = queue.poll(&mut done) {
                return Err(self.failed(at, &error));
            }
            if (done.len(), queue.noticed()) != before {
                self.host.rails()[queue.host_rail].note_success();
            }
        }
        Ok(done)
    }

    /// The error of a link whose rail failed.
    pub fn failed(&self, rail: usize, error: &RailError) -> LinkError {
        let queue = &self.queues[rail];
        if error.is_of_rail()
            && let Some(rest) =
                self.host.rails()[queue.host_rail].note_failure(self.peer, self.host.now())
        {
            let (suspended_s, peer) = (rest.length.as_secs(), self.peer);
            match rest.of {
                RestOf::Peer => tracing::warn!(
                    rail = %queue, ?peer, suspended_s,
                    "rail failed several times and is suspended for this peer; check port and cable"
                ),
                RestOf::Rail => tracing::warn!(
                    rail = %queue, suspended_s,
                    "rail failed with several peers and is suspended for all; check port and cable"
                ),
            }
        }
        LinkError::Rdma { rail: queue.to_string(), detail: error.to_string() }
    }

    /// Note that an operation was cancelled while a device may access memory for it.
    pub fn note_retracted(&mut self, op: OpId, now: Mono) {
        self.retracted.entry(op).or_insert(now);
    }

    /// Note that no device accesses memory for an operation any more.
    pub fn note_access_ended(&mut self, op: OpId) {
        self.retracted.remove(&op);
    }

    /// Note that the byte stream has ended, while bytes are awaited.
    pub fn note_stream_ended(&mut self, now: Mono) {
        self.stream_ended.get_or_insert(now);
    }

    /// Whether the byte stream has ended, while bytes were awaited.
    pub fn has_stream_ended(&self) -> bool {
        self.stream_ended.is_some()
    }

    /// Time until the oldest cancelled operation, or the last bytes of an ended stream, have been
    /// awaited for `most`; `None` if there are none.
    pub fn retract_due(&self, now: Mono, most: Duration) -> Option<Duration> {
        let oldest = self.retracted.values().chain(&self.stream_ended).min()?;
        Some(most.saturating_sub(now.since(*oldest)))
    }

    /// Make the next completion wake one of [`Rails::wakes`]. True if there is one already, or if a
    /// device failed, which the next poll reports.
    pub fn arm(&self) -> bool {
        // Without a short circuit: each rail must be armed.
        self.queues.iter().fold(false, |any, queue| any | queue.arm().unwrap_or(true))
    }

    /// The descriptors of the completion queues.
    pub fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(RailQueue::wake)
    }

    /// Whether a device may access memory for requests of this end.
    pub fn is_busy(&self) -> bool {
        self.queues.iter().any(RailQueue::is_busy)
    }

    /// Take the queue pairs down; `revokes` tells whether memory waits for it.
    pub fn take_down(self, revokes: bool) -> TakeDown {
        TakeDown::begin(self.host, self.queues, revokes)
    }
}
