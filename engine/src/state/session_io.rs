//! Resources that the batches of a session share: its disk queue, its buffers, its connections to
//! peers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagelith_io::clock::Mono;
use pagelith_io::disk::{DiskFacts, Queue};
use pagelith_layouts::ids::SegmentId;
use pagelith_tiers::policy::Recency;
use rustc_hash::FxHashMap;

use crate::api::outcome::Ticket;
use crate::api::request::{Options, RequestEpoch};
use crate::rpc::connections::PeerConnections;
use crate::state::scratch::Scratch;
use crate::state::shared::Shared;
use crate::state::verify_sampler::VerifySampler;

/// Resources of a session. Each batch operation takes it by reference.
pub(crate) struct SessionIo {
    pub shared: Arc<Shared>,
    pub queue: Option<Box<dyn Queue>>,
    pub facts: Option<DiskFacts>,
    pub scratch: Scratch,
    /// Reads in flight whose batch has ended: the segment of each, and when it was submitted.
    pub orphans: FxHashMap<u64, (SegmentId, Mono)>,
    /// When the completion that is being processed arrived.
    pub completed_at: Mono,
    /// Its stripe of [`ReadState::counters`].
    pub counter_stripe: usize,
    pub last_token: u32,
    /// Selects the hits from DRAM that are verified.
    pub sampler: VerifySampler,
    /// Connections to peers; `None` without peers.
    pub connections: Option<PeerConnections>,
    /// Hits return an [`ObjectMeta`](crate::api::outcome::ObjectMeta): set for sessions that
    /// forward the bytes.
    pub wants_meta: bool,
}

impl SessionIo {
    /// A token for a new operation of `ticket`: the low half of the ticket's number, so that the
    /// batch of a completion is found without a table, and a counter. No operation is in flight for
    /// so long that either number wraps around.
    pub fn token(&mut self, ticket: Ticket) -> u64 {
        self.last_token = self.last_token.wrapping_add(1);
        ticket.0 << 32 | u64::from(self.last_token)
    }
}

/// Recency of the first key of a batch.
pub(crate) fn recency(shared: &Shared, options: &Options) -> Recency {
    let RequestEpoch(request) = options.request.unwrap_or_else(|| begin_request(shared));
    Recency { request, depth: options.depth }
}

/// Begin a request; its number is the highest one.
pub(crate) fn begin_request(shared: &Shared) -> RequestEpoch {
    RequestEpoch(shared.read_view.last_request.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Release a reader's guard on a segment.
pub(crate) fn release_segment(shared: &Shared, segment: SegmentId) {
    if let Some(guards) = &shared.read_view.guards {
        guards.leave(segment);
    }
}
