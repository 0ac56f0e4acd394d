//! What a session's batches do I/O with: its disk queue, its memory, its connections to peers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagelith_io::clock::Mono;
use pagelith_io::disk::{DiskFacts, Queue};
use pagelith_layouts::ids::SegmentId;
use pagelith_tiers::policy::Recency;
use rustc_hash::FxHashMap;

use crate::api::outcome::Ticket;
use crate::api::request::{Options, Request};
use crate::rpc::connections::PeerConnections;
use crate::state::sampler::Sampler;
use crate::state::scratch::Scratch;
use crate::state::shared::Shared;

/// What batches do I/O with.
pub(crate) struct SessionIo {
    pub shared: Arc<Shared>,
    pub queue: Option<Box<dyn Queue>>,
    pub facts: Option<DiskFacts>,
    pub scratch: Scratch,
    /// Operations whose batch gave up on them: the segment each reads from, and when it was submitted.
    pub orphans: FxHashMap<u64, (SegmentId, Mono)>,
    /// When the completion came that is looked at now.
    pub came: Mono,
    /// Which of the tallies is its own.
    pub counter_stripe: usize,
    pub last_token: u32,
    /// Which hits from DRAM are verified.
    pub sampler: Sampler,
    /// What is asked of peers.
    pub connections: Option<PeerConnections>,
    /// Whether hits bring their checksums: for who hands the bytes on.
    pub proofs: bool,
}

impl SessionIo {
    /// A token for a new operation of `ticket`: half of the ticket's number, so that nothing has to be looked up for whose it is, and a
    /// number of its own. None is under way for as long as either takes to come again.
    pub fn token(&mut self, ticket: Ticket) -> u64 {
        self.last_token = self.last_token.wrapping_add(1);
        ticket.0 << 32 | u64::from(self.last_token)
    }
}

/// Recency of a batch's first key.
pub(crate) fn recency(shared: &Shared, options: &Options) -> Recency {
    let Request(epoch) = options.request.unwrap_or_else(|| begin_request(shared));
    Recency { epoch, depth: options.depth }
}

/// A new request.
pub(crate) fn begin_request(shared: &Shared) -> Request {
    Request(shared.requests.fetch_add(1, Ordering::Relaxed) + 1)
}

/// A reader of a segment is done.
pub(crate) fn release_segment(shared: &Shared, segment: SegmentId) {
    if let Some(guards) = &shared.read_view.guards {
        guards.leave(segment);
    }
}
