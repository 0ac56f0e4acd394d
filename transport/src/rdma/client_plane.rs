//! The client's end of an RDMA data plane: it tells the server where it wants bytes and where bytes
//! of puts are, and knows by notices what has landed.
//!
//! Invariants:
//! - The server may write for an operation from its targets on until its outcome has arrived. Each
//!   placed frame before the outcome is handled only after its notice was polled.
//! - A range of exposed memory belongs to the link until all of its bytes have landed; otherwise
//!   until the outcome has arrived, or until the queue pairs of this end are down. A correct server
//!   writes each byte once, so it writes no more to a range that has landed.
//! - Only regions with remote access are named, and targets only in regions that were named before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagelith_io::buffer::Part;
use pagelith_io::verbs::RemoteAccess;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::placement::{self, NoticedItem, PlacedBody, TargetItem};
use pagelith_layouts::wire::rdma_regions::{self, RegionItem};
use pagelith_layouts::wire::shm_ref::ShownPiece;
use pagelith_layouts::wire::{Frame, FrameKind};
use pagelith_mutants::{self as mutant, Mutant};

use super::counters::StreamReason;
use super::peer_regions::PEER_REGIONS_MAX;
use super::rail_queue::RailQueue;
use super::rails::Rails;
use super::region::RdmaRegion;
use super::targets::TARGETS_MAX;
use crate::link_error::LinkError;

/// Least average length of the pieces of a transfer that RDMA moves: each piece of the client takes
/// a request of its own, while the stream copies short pieces in one call. The value is a guess: on
/// soft-RoCE devices the stream is always faster (benches/results/rdma.md), and no network card has
/// run this yet.
const PIECE_BYTES_MIN: u64 = 512;
/// Maximum pieces of a push that the server reads.
const SHOWN_PIECES_MAX: usize = 512;
/// Most bytes of a frame with regions or targets: what every server reads.
const BODY_BYTES_MAX: usize = pagelith_layouts::wire::CONTROL_BODY_LEAST as usize;

/// The client's end.
pub(crate) struct ClientPlane {
    pub(crate) rails: Rails,
    /// Numbers of the regions that the server knows.
    named: BTreeSet<u32>,
    /// Frames with regions, to send before any frame that uses them.
    frames: Vec<Frame>,
    /// Targets of operations whose requests are not sent.
    unsent: BTreeMap<OpId, Vec<TargetItem>>,
    /// Operations with targets that the server knows, and how many.
    live: BTreeMap<OpId, usize>,
    /// Targets of all operations.
    targets: usize,
}

impl ClientPlane {
    pub fn new(rails: Rails) -> ClientPlane {
        ClientPlane {
            rails,
            named: BTreeSet::new(),
            frames: Vec::new(),
            unsent: BTreeMap::new(),
            live: BTreeMap::new(),
            targets: 0,
        }
    }

    /// Take note of regions that were registered or unregistered since the last call.
    fn refresh(&mut self) {
        if !self.rails.own.refresh(&self.rails.host) {
            return;
        }
        let all: BTreeMap<u32, Arc<RdmaRegion>> =
            self.rails.own.all().iter().map(|region| (region.number(), region.clone())).collect();
        let (mut items, mut keys) = (Vec::new(), Vec::new());
        let rails = self.rails.queues.len() as u32;
        let gone: Vec<u32> =
            self.named.iter().copied().filter(|number| !all.contains_key(number)).collect();
        for number in gone {
            self.named.remove(&number);
            let removed = |rail| RegionItem { number, rail, base: 0, length: 0, chunk_bytes: 0 };
            items.extend((0..rails).map(removed));
            if 32 * items.len() >= BODY_BYTES_MAX / 2 {
                self.frames.push(region_frame(&mut items, &mut keys));
            }
        }
        for (number, region) in all {
            let wanted = region.access() != RemoteAccess::NONE && !self.named.contains(&number);
            if !wanted || self.named.len() >= PEER_REGIONS_MAX {
                continue;
            }
            let of_rail = |queue: &RailQueue| region.remote_keys(queue.host_rail);
            let Some(of_rails) = self.rails.queues.iter().map(of_rail).collect::<Option<Vec<_>>>()
            else {
                // Unregistered meanwhile.
                continue;
            };
            self.named.insert(number);
            for (rail, of_rail) in (0..).zip(of_rails) {
                let (base, length) = (region.base(), region.bytes());
                let chunk_bytes = region.chunk_bytes();
                items.push(RegionItem { number, rail, base, length, chunk_bytes });
                keys.extend(of_rail);
                if 32 * items.len() + 4 * keys.len() >= BODY_BYTES_MAX / 2 {
                    self.frames.push(region_frame(&mut items, &mut keys));
                }
            }
        }
        if !items.is_empty() {
            self.frames.push(region_frame(&mut items, &mut keys));
        }
    }

    /// Frames to send before any other.
    pub fn take_frames(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.frames)
    }

    /// Where the server shall write bytes of an item. Empty if none of the memory is registered, if
    /// its pieces are short, or if the operation's request is sent already.
    pub fn targets_of(
        &mut self,
        op: OpId,
        item: u32,
        offset: u64,
        parts: &[Part],
    ) -> Vec<TargetItem> {
        self.refresh();
        let mut found: Vec<TargetItem> = Vec::new();
        let (mut offset, mut bytes) = (offset, 0);
        for part in parts {
            let length = part.len() as u64;
            match self.region_offset(part, |access| access.write) {
                Some((region, at)) => {
                    bytes += length;
                    let adjacent = |last: &&mut TargetItem| {
                        last.region == region
                            && last.at + last.length == at
                            && last.offset + last.length == offset
                    };
                    match found.last_mut().filter(adjacent) {
                        Some(last) => last.length += length,
                        None => found.push(TargetItem { item, region, offset, at, length }),
                    }
                }
                None => self.note_stream(StreamReason::Unregistered, length),
            }
            offset += length;
        }
        if are_short(found.len(), bytes) {
            self.note_stream(StreamReason::Small, bytes);
            found.clear();
        }
        let is_sent = self.live.contains_key(&op);
        if is_sent || self.targets + found.len() > TARGETS_MAX { Vec::new() } else { found }
    }

    /// The region that the server knows and that has a part, and the part's offset in it.
    fn region_offset(
        &self,
        part: &Part,
        permits: impl Fn(RemoteAccess) -> bool,
    ) -> Option<(u32, u64)> {
        let found = self.rails.own.find(part.addr(), part.len())?;
        let number = found.region.number();
        let is_usable = permits(found.region.access()) && self.named.contains(&number);
        is_usable.then_some((number, found.at))
    }

    fn note_stream(&self, reason: StreamReason, bytes: u64) {
        self.rails.host.counters().note_stream(reason, bytes);
    }

    /// Add targets of an operation whose request is not sent.
    pub fn add_targets(&mut self, op: OpId, targets: Vec<TargetItem>) {
        self.targets += targets.len();
        self.unsent.entry(op).or_default().extend(targets);
    }

    /// The frames to send before the request of an operation. From now on the server may write.
    pub fn frames_of_request(&mut self, op: OpId) -> Vec<Frame> {
        let mut frames = self.take_frames();
        if let Some(targets) = self.unsent.remove(&op) {
            self.live.insert(op, targets.len());
            let bodies = targets.chunks(BODY_BYTES_MAX / TargetItem::BYTES);
            frames.extend(bodies.map(|targets| {
                Frame::new(FrameKind::Targets, op, placement::encode_targets(targets))
            }));
        }
        frames
    }

    /// Where the bytes of a push are, if the server can read all of them in a few pieces.
    pub fn shown(&mut self, parts: &[Part]) -> Option<Vec<ShownPiece>> {
        self.refresh();
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let mut pieces: Vec<ShownPiece> = Vec::new();
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let Some((region, at)) = self.region_offset(part, |access| access.read) else {
                self.note_stream(StreamReason::Unregistered, bytes);
                return None;
            };
            let length = part.len() as u64;
            let adjacent =
                |last: &&mut ShownPiece| last.region == region && last.at + last.length == at;
            match pieces.last_mut().filter(adjacent) {
                Some(last) => last.length += length,
                None => pieces.push(ShownPiece::new(region, at, length)),
            }
        }
        if are_short(pieces.len(), bytes) {
            self.note_stream(StreamReason::Small, bytes);
            return None;
        }
        if pieces.len() > SHOWN_PIECES_MAX {
            self.note_stream(StreamReason::Scattered, bytes);
            return None;
        }
        (!pieces.is_empty()).then_some(pieces)
    }

    /// Whether the server may write for an operation.
    pub fn is_live(&self, op: OpId) -> bool {
        self.live.contains_key(&op)
    }

    /// Whether the server may write for any operation.
    pub fn is_any_live(&self) -> bool {
        !self.live.is_empty()
    }

    /// Forget the targets of an operation whose request is not sent.
    pub fn retract(&mut self, op: OpId) {
        self.targets -= self.unsent.remove(&op).map_or(0, |targets| targets.len());
    }

    /// The outcome of an operation has arrived: the server writes nothing more for it.
    pub fn end_remote_access(&mut self, op: OpId) {
        self.targets -= self.live.remove(&op).unwrap_or(0);
        self.rails.note_access_ended(op);
    }

    /// Whether bytes have landed that the server has placed.
    pub fn has_landed(&self, op: OpId, placed: &PlacedBody) -> Result<bool, LinkError> {
        if !self.is_live(op) {
            return Err(LinkError::violation(format_args!(
                "bytes were placed without a target op={}",
                op.0
            )));
        }
        let queue = self.rails.queues.get(placed.rail as usize);
        let queue = queue.ok_or_else(|| LinkError::bad_field("rail", placed.rail))?;
        Ok(queue.noticed() >= placed.notice || mutant::on(Mutant::RdmaServerBelieved))
    }

    /// Count bytes that have landed.
    pub fn note_placed(&self, bytes: u64) {
        self.rails.host.counters().bytes_placed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Handle notices. Returns the frame that reports them, if it is time for it.
    pub fn poll(&mut self) -> Result<Option<Frame>, LinkError> {
        let before: u64 = self.rails.queues.iter().map(RailQueue::noticed).sum();
        self.rails.poll()?;
        let after: u64 = self.rails.queues.iter().map(RailQueue::noticed).sum();
        if after == before {
            return Ok(None);
        }
        self.rails.host.counters().notices.fetch_add(after - before, Ordering::Relaxed);
        let reports = (0..).zip(&mut self.rails.queues);
        let items: Vec<NoticedItem> = reports
            .filter_map(|(rail, queue)| Some(NoticedItem::new(rail, queue.report_due()?)))
            .collect();
        let body = (!items.is_empty()).then(|| placement::encode_noticed(&items));
        Ok(body.map(|body| Frame::new(FrameKind::Noticed, OpId(0), body)))
    }
}

/// Whether so many pieces are too short for RDMA.
fn are_short(pieces: usize, bytes: u64) -> bool {
    bytes < pieces as u64 * PIECE_BYTES_MIN
}

fn region_frame(items: &mut Vec<RegionItem>, keys: &mut Vec<u32>) -> Frame {
    let body = rdma_regions::encode(&std::mem::take(items), &std::mem::take(keys));
    Frame::new(FrameKind::Regions, OpId(0), body)
}
