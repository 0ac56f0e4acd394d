//! The server's end of an RDMA data plane: it writes the bytes of gets to where the client wants
//! them, and reads the bytes of puts from where the client shows them.
//!
//! Invariants:
//! - Requests access memory of the client only inside of regions that it has named.
//! - The placed frame of each WRITE is sent, and its notice is posted after it: so the largest
//!   notice that the placed frames of an operation name bounds everything written for it.
//! - Memory of this end is in use until the completion of its last request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::placement::{self, PlacedBody};
use pagelith_layouts::wire::shm_ref::{ItemRange, ShmRefBody};

use super::counters::StreamReason;
use super::peer_regions::PeerRegions;
use super::rail_queue::{RailError, Work, WrittenBytes};
use super::rails::Rails;
use super::requests::{LocalRange, PlannedRequest, RemoteRange, plan};
use super::targets::{Targets, Wanted};
use crate::exposures::ExposureKey;
use crate::link::Push;
use crate::link_error::LinkError;

/// Maximum bytes of one placement: one rail moves as many before the next one gets its turn.
pub(crate) const STRIPE_BYTES: u64 = 1 << 20;
/// No more is placed for an operation with this number of bytes posted and not completed: at most
/// 5 MiB are, with the placement that reaches it.
const POSTED_BYTES_MAX: u64 = 4 << 20;

/// Maximum ranges that are being read or wait for it. Of a further one, the client sends the bytes.
const READS_MAX: usize = 4096;

/// Placement of the next bytes of a push.
pub(crate) enum Placement {
    /// They are being written; the body of the placed frame.
    Placed(PlacedBody),
    /// At most this number of them travels on the stream.
    OnStream(u64),
    /// They wait for completions of requests, or until the client reports notices as polled.
    Blocked,
}

/// A range that was read from the client's memory.
pub(crate) struct ReadDone {
    /// The exposed range that it fills, or a part of it.
    pub key: ExposureKey,
    /// The range that the client showed.
    pub range: ItemRange,
    /// Bytes read: fewer than shown if the operation was cancelled.
    pub bytes: u64,
}

/// Work completed since the last poll.
#[derive(Default)]
pub(crate) struct Completed {
    pub writes: Vec<WrittenBytes>,
    pub reads: Vec<ReadDone>,
}

/// A range that is read from the client's memory.
struct ReadJob {
    done: ReadDone,
    /// Ranges not posted yet, of both sides.
    local: VecDeque<LocalRange>,
    remote: VecDeque<(u32, u64, u64)>,
    left: u64,
    /// Bytes that are posted and not completed.
    posted: u64,
}

/// The server's end.
pub(crate) struct ServerPlane {
    pub(crate) rails: Rails,
    regions: PeerRegions,
    targets: Targets,
    jobs: BTreeMap<u64, ReadJob>,
    last_job: u64,
    /// Bytes of each operation that are posted and not completed.
    posted: BTreeMap<OpId, u64>,
}

impl ServerPlane {
    pub fn new(rails: Rails) -> ServerPlane {
        let regions = PeerRegions::new(rails.queues.len());
        let (jobs, posted) = (BTreeMap::new(), BTreeMap::new());
        ServerPlane { rails, regions, targets: Targets::default(), jobs, last_job: 0, posted }
    }

    /// Regions that the client names.
    pub fn receive_regions(&mut self, body: &[u8]) -> Result<(), LinkError> {
        self.regions.receive(body)
    }

    /// Targets of an operation.
    pub fn receive_targets(&mut self, op: OpId, body: &[u8]) -> Result<(), LinkError> {
        self.targets.receive(op, body, &self.regions)
    }

    /// Notices that the client has polled.
    pub fn receive_noticed(&mut self, body: &[u8]) -> Result<(), LinkError> {
        for item in placement::decode_noticed(body)?.iter() {
            let queue = self.rails.queues.get_mut(item.rail as usize);
            if !queue.is_some_and(|queue| queue.note_reported(item.notices)) {
                return Err(LinkError::bad_field("notices", item.notices));
            }
        }
        Ok(())
    }

    /// Forget where the client wants the bytes of an operation: its outcome is being sent.
    pub fn note_outcome(&mut self, op: OpId) {
        self.targets.remove(op);
    }

    /// Handle completions, and post the requests that waited for them.
    pub fn poll(&mut self) -> Result<Completed, LinkError> {
        let mut completed = Completed::default();
        for work in self.rails.poll()? {
            match work {
                Work::Writes(writes) => {
                    writes.iter().for_each(|done| self.note_completed(done.op, done.bytes));
                    completed.writes.extend(writes);
                }
                Work::Read { job, bytes } => {
                    let Some(found) = self.jobs.get_mut(&job) else { continue };
                    found.posted -= bytes;
                    found.done.bytes += bytes;
                    let op = found.done.range.0;
                    if found.left == 0 && found.posted == 0 {
                        completed.reads.extend(self.jobs.remove(&job).map(|found| found.done));
                    }
                    self.note_completed(op, bytes);
                }
            }
        }
        let counters = self.rails.host.counters();
        let written = completed.writes.iter().map(|done| done.bytes).sum();
        counters.bytes_written.fetch_add(written, Ordering::Relaxed);
        let read = completed.reads.iter().map(|done| done.bytes).sum();
        counters.bytes_read.fetch_add(read, Ordering::Relaxed);
        self.post_reads()?;
        Ok(completed)
    }

    fn note_completed(&mut self, op: OpId, bytes: u64) {
        if let Some(posted) = self.posted.get_mut(&op) {
            *posted -= bytes;
            if *posted == 0 {
                self.posted.remove(&op);
            }
        }
        if !self.is_live(op) {
            self.rails.note_access_ended(op);
        }
    }

    /// Whether the device may access memory for an operation.
    pub fn is_live(&self, op: OpId) -> bool {
        self.posted.contains_key(&op) || self.jobs.values().any(|job| job.done.range.0 == op)
    }

    /// Write the next bytes of a push, which begin at `offset` of the item, or as many as fit.
    pub fn place(
        &mut self,
        push: &Push,
        id: u64,
        offset: u64,
        bytes: &[&[u8]],
    ) -> Result<Placement, LinkError> {
        if let Wanted::OnStream(length) = self.targets.at(push.op, push.item, offset) {
            return Ok(Placement::OnStream(length));
        }
        if self.posted.get(&push.op).is_some_and(|posted| *posted >= POSTED_BYTES_MAX) {
            return Ok(Placement::Blocked);
        }
        let local = self.find_own(bytes.iter().map(|bytes| (bytes.as_ptr() as usize, bytes.len())));
        if local.is_empty() {
            let length = bytes.first().map_or(0, |bytes| bytes.len() as u64);
            self.rails.host.counters().note_stream(StreamReason::Unregistered, length);
            return Ok(Placement::OnStream(length));
        }
        let Some(rail) = self.free_rail(true) else { return Ok(Placement::Blocked) };
        let remote =
            self.remote_of(push, offset, local.iter().map(|range| range.length).sum(), rail);
        let requests = self.plan(rail, &local, &remote)?;
        let length: u64 = requests.iter().map(|request| request.bytes).sum();
        if length == 0 {
            return Err(LinkError::violation(format_args!(
                "the region of a get was removed before its outcome op={} item={}",
                push.op, push.item
            )));
        }
        let queue = &mut self.rails.queues[rail];
        let Some(notice) = queue.next_notice() else { return Ok(Placement::Blocked) };
        if let Err(error) = queue.write((push.op, id), &requests) {
            return Err(self.rails.failed(rail, &error));
        }
        *self.posted.entry(push.op).or_default() += length;
        // At most a stripe, so it fits.
        Ok(Placement::Placed(PlacedBody { notice, length: length as u32, rail: rail as u32 }))
    }

    /// Post the notices of the WRITEs since the last call.
    pub fn post_notices(&mut self) -> Result<(), LinkError> {
        for rail in 0..self.rails.queues.len() {
            if let Err(error) = self.rails.queues[rail].post_notice() {
                return Err(self.rails.failed(rail, &error));
            }
        }
        Ok(())
    }

    /// Registered ranges of these addresses, up to the first that is not registered.
    fn find_own(&mut self, pieces: impl Iterator<Item = (usize, usize)>) -> Vec<LocalRange> {
        self.rails.own.refresh(&self.rails.host);
        pieces.map_while(|(address, length)| self.rails.own.find(address, length)).collect()
    }

    /// The client's memory for `length` bytes of a push, as far as they have targets and requests
    /// fit the queue.
    fn remote_of(&self, push: &Push, offset: u64, length: u64, rail: usize) -> Vec<RemoteRange> {
        let (mut done, mut found) = (0, Vec::new());
        while done < length
            && found.len() < self.rails.queues[rail].room()
            && let Wanted::In { region, at, length: of_target } =
                self.targets.at(push.op, push.item, offset + done)
        {
            let now = of_target.min(length - done);
            if !self.regions.remote(rail, (region, at, now), &mut found) {
                break;
            }
            done += now;
        }
        found
    }

    fn plan(
        &self,
        rail: usize,
        local: &[LocalRange],
        remote: &[RemoteRange],
    ) -> Result<Vec<PlannedRequest>, LinkError> {
        let queue = &self.rails.queues[rail];
        let most = (queue.room(), queue.pieces_max());
        plan(queue.host_rail, local, remote.iter().copied(), most)
            .map_err(|error| self.rails.failed(rail, &RailError::Verbs(error)))
    }

    /// The rail with the fewest bytes in flight of those with room; for WRITEs, the client must be
    /// able to receive a notice on it.
    fn free_rail(&self, for_writes: bool) -> Option<usize> {
        let queues = self.rails.queues.iter().enumerate();
        queues
            .filter(|(_, queue)| queue.room() > 0)
            .filter(|(_, queue)| !for_writes || queue.next_notice().is_some())
            .min_by_key(|(_, queue)| queue.bytes())
            .map(|(rail, _)| rail)
    }

    /// Begin to read a range that the client shows into `memory`, addresses and lengths in order.
    /// False if some of it is not registered.
    pub fn begin_read(
        &mut self,
        key: ExposureKey,
        range: ItemRange,
        shown: &ShmRefBody<'_>,
        memory: &[(usize, usize)],
    ) -> Result<bool, LinkError> {
        let remote: VecDeque<_> =
            shown.pieces.iter().map(|piece| (piece.region, piece.at, piece.length)).collect();
        if let Some((region, ..)) =
            remote.iter().find(|(region, at, length)| !self.regions.has(*region, *at, *length))
        {
            return Err(LinkError::bad_field("region", region));
        }
        if self.jobs.len() >= READS_MAX {
            self.rails.host.counters().note_stream(StreamReason::Scattered, shown.length);
            return Ok(false);
        }
        let local = self.find_own(memory.iter().copied());
        if local.len() < memory.len() {
            self.rails.host.counters().note_stream(StreamReason::Unregistered, shown.length);
            return Ok(false);
        }
        self.last_job += 1;
        let done = ReadDone { key, range, bytes: 0 };
        let (local, left) = (local.into(), shown.length);
        self.jobs.insert(self.last_job, ReadJob { done, local, remote, left, posted: 0 });
        Ok(true)
    }

    /// Post READs as far as there is room.
    pub fn post_reads(&mut self) -> Result<(), LinkError> {
        let waiting: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| job.left > 0).map(|(id, _)| *id).collect();
        for id in waiting {
            while let Some(job) = self.jobs.get(&id).filter(|job| job.left > 0) {
                let op = job.done.range.0;
                let posted = self.posted.get(&op).copied().unwrap_or(0);
                let Some(rail) = self.free_rail(false).filter(|_| posted < POSTED_BYTES_MAX) else {
                    break;
                };
                let (local, mut remote) = (window(&job.local), Vec::new());
                let mut left = STRIPE_BYTES;
                for (region, at, length) in &job.remote {
                    let now = left.min(*length);
                    if now == 0 || !self.regions.remote(rail, (*region, *at, now), &mut remote) {
                        break;
                    }
                    left -= now;
                }
                let requests = self.plan(rail, &local, &remote)?;
                let bytes: u64 = requests.iter().map(|request| request.bytes).sum();
                if bytes == 0 {
                    // The client has removed the region meanwhile.
                    return Err(LinkError::violation(format_args!(
                        "the region of a put was removed before its outcome op={op}"
                    )));
                }
                if let Err(error) = self.rails.queues[rail].read(id, &requests) {
                    return Err(self.rails.failed(rail, &error));
                }
                *self.posted.entry(op).or_default() += bytes;
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.advance(bytes);
                }
            }
        }
        Ok(())
    }

    /// Retract the memory of an operation: no more of it is posted. Returns the READs that have
    /// ended by that.
    pub fn retract(&mut self, op: OpId) -> Vec<ReadDone> {
        for job in self.jobs.values_mut().filter(|job| job.done.range.0 == op) {
            job.left = 0;
        }
        let ended = |job: &ReadJob| job.done.range.0 == op && job.posted == 0;
        let ids: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| ended(job)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.jobs.remove(&id)).map(|job| job.done).collect()
    }
}

impl ReadJob {
    /// Note that `bytes` more bytes are posted.
    fn advance(&mut self, bytes: u64) {
        self.left -= bytes;
        self.posted += bytes;
        let mut left = bytes;
        while let Some(front) = self.local.front_mut().filter(|_| left > 0) {
            let now = left.min(front.length);
            (front.at, front.length, left) = (front.at + now, front.length - now, left - now);
            if front.length == 0 {
                self.local.pop_front();
            }
        }
        let mut left = bytes;
        while let Some((_, at, length)) = self.remote.front_mut().filter(|_| left > 0) {
            let now = left.min(*length);
            (*at, *length, left) = (*at + now, *length - now, left - now);
            if *length == 0 {
                self.remote.pop_front();
            }
        }
    }
}

/// The first ranges, at most a stripe.
fn window(ranges: &VecDeque<LocalRange>) -> Vec<LocalRange> {
    let mut left = STRIPE_BYTES;
    let cut = |range: &LocalRange| {
        let length = range.length.min(left);
        left -= length;
        (length > 0).then(|| LocalRange { length, ..range.clone() })
    };
    ranges.iter().map_while(cut).collect()
}
