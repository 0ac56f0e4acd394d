//! The client's end of one-sided transfers: targets that the server may write to, and memory that
//! comes back only when nothing can land in it any more.
//!
//! Invariants:
//! - Memory of an operation whose targets were sent comes back when its outcome has arrived, after
//!   every notice that its placed ranges name was polled; or when the client's own queue pair is
//!   down.
//! - What follows a placed range in the stream is handled only after its notice was polled.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_layouts::ids::OpId;
use pagelith_transport::link::LinkEvent;

use super::fabric::Fabric;
use super::memory::Target;
use crate::link::exposed::{ExposedMemory, RangeKey};

/// Time after a retract at which the client takes its queue pair down if its memory is not back.
pub const GIVEN_UP_MAX: Duration = Duration::from_millis(100);
/// Receives that the client posts when it connects; it posts each again when it has polled it.
const RECEIVES: u64 = 256;

/// The memory of a cancelled operation.
struct Retracting {
    since: Mono,
    ranges: Vec<(RangeKey, Vec<Part>)>,
}

/// One-sided transfers at the client's end.
pub(in crate::link) struct RdmaClient {
    /// Shortest part in bytes that gets a target.
    least: u64,
    /// Operations whose targets were sent and whose outcome has not arrived.
    in_flight: BTreeSet<OpId>,
    retracting: BTreeMap<OpId, Retracting>,
    /// Notices polled so far.
    polled: u64,
    has_receives: bool,
    /// Planted bug: it posts one receive.
    pub has_one_receive: bool,
}

impl RdmaClient {
    pub fn new(least: u64) -> RdmaClient {
        let (in_flight, retracting) = Default::default();
        let (polled, has_receives, has_one_receive) = Default::default();
        RdmaClient { least, in_flight, retracting, polled, has_receives, has_one_receive }
    }

    fn target(&self, fabric: &Fabric, part: &Part) -> Option<(u32, u64)> {
        let len = part.len() as u64;
        if len < self.least.max(1) { None } else { fabric.region_offset(part.addr() as u64, len) }
    }

    /// The targets of an operation that is about to be requested.
    pub fn targets(
        &mut self,
        fabric: &mut Fabric,
        exposed: &ExposedMemory,
        op: OpId,
    ) -> Vec<Target> {
        let mut targets = Vec::new();
        for ((_, item, from), parts) in exposed.ranges(op) {
            let mut offset = from;
            for part in parts {
                let len = part.len() as u64;
                if let Some((region, at)) = self.target(fabric, part) {
                    targets.push(Target { item, offset, region, at, len });
                    fabric.expose(part.addr() as u64, len);
                }
                offset += len;
            }
        }
        if !targets.is_empty() {
            self.in_flight.insert(op);
            if !std::mem::replace(&mut self.has_receives, true) {
                fabric.post_receives(if self.has_one_receive { 1 } else { RECEIVES });
            }
        }
        targets
    }

    /// Polls notices, and posts their receives again.
    pub fn poll_notices(&mut self, fabric: &mut Fabric) {
        let notices = fabric.take_notices();
        self.polled += notices;
        fabric.post_receives(notices);
    }

    /// Whether this notice was polled.
    pub fn has_polled(&self, notice: u64) -> bool {
        notice <= self.polled
    }

    /// The outcome of an operation arrived: nothing of it can land any more.
    pub fn outcome(&mut self, op: OpId, events: &mut Vec<LinkEvent>) {
        self.in_flight.remove(&op);
        let back = self.retracting.remove(&op);
        events.extend(back.into_iter().flat_map(|back| back.ranges).map(retracted));
    }

    /// Moves the memory of an operation to which something may still land out of `exposed`.
    pub fn retract(&mut self, fabric: &Fabric, exposed: &mut ExposedMemory, op: OpId, since: Mono) {
        if !self.in_flight.contains(&op) {
            return;
        }
        let reachable = self.reachable(fabric, exposed, op);
        let ranges = reachable.into_iter().filter_map(|name| Some((name, exposed.take(name)?)));
        let ranges: Vec<_> = ranges.collect();
        if !ranges.is_empty() {
            let retracting = Retracting { since, ranges: Vec::new() };
            self.retracting.entry(op).or_insert(retracting).ranges.extend(ranges);
        }
    }

    /// The exposed ranges of an operation that have a target.
    fn reachable(&self, fabric: &Fabric, exposed: &ExposedMemory, op: OpId) -> Vec<RangeKey> {
        let has_target = |(_, parts): &(RangeKey, &[Part])| {
            parts.iter().any(|part| self.target(fabric, part).is_some())
        };
        exposed.ranges(op).filter(has_target).map(|(name, _)| name).collect()
    }

    /// At the end of the link: all memory to which something may still land.
    pub fn retract_all(&mut self, fabric: &Fabric, exposed: &mut ExposedMemory, now: Mono) {
        let ops: Vec<OpId> = self.in_flight.iter().copied().collect();
        ops.into_iter().for_each(|op| self.retract(fabric, exposed, op, now));
    }

    /// Number of ranges that wait until nothing can land in them.
    pub fn held(&self) -> usize {
        self.retracting.values().map(|one| one.ranges.len()).sum()
    }

    /// The queue pair is down: everything comes back.
    pub fn give_back(&mut self, events: &mut Vec<LinkEvent>) {
        let all = std::mem::take(&mut self.retracting);
        events.extend(all.into_values().flat_map(|back| back.ranges).map(retracted));
    }

    /// Keeps the memory for ever; returns the number of ranges.
    pub fn leak(&mut self) -> u64 {
        let all = std::mem::take(&mut self.retracting);
        let ranges: Vec<_> = all.into_values().flat_map(|back| back.ranges).collect();
        let count = ranges.len() as u64;
        std::mem::forget(ranges);
        count
    }

    /// Time until the queue pair must be taken down for memory that does not come back.
    pub fn due(&self, now: Mono) -> Option<Duration> {
        let since = self.retracting.values().map(|one| one.since).min()?;
        Some(since.after(GIVEN_UP_MAX).since(now))
    }
}

fn retracted(((op, item, offset), parts): (RangeKey, Vec<Part>)) -> LinkEvent {
    LinkEvent::Retracted { op, item, offset, parts }
}
