//! Namespaces with limits, and what they use of the tiers.
//!
//! Invariants, under the core's lock:
//! - `dram_bytes` of a tenant is the sum of the padded bytes of its frames that are not freed.
//! - `ssd_bytes` of a tenant is the sum of its rows in `parts`.
//! - A part counts the records of one generation of its namespace that were appended to a segment,
//!   until the segment is free, the namespace is cleared, or the part is trimmed. So removed
//!   objects count, and so do records that reclaim has moved until their old segment is free.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pagelith_layouts::ids::{NamespaceId, SegmentId, SegmentOrder};
use pagelith_tiers::policy::FrameId;
use rustc_hash::FxHashMap;

use crate::config::{NamespaceLimits, WhenFull};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Frames that have left are dropped from a tenant's queue once it is longer than twice the number
/// of its frames and this.
const QUEUE_SLACK: usize = 64;

/// A frame in the queue of its tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedFrame {
    pub id: FrameId,
    pub serial: u64,
    /// Epoch of its last request when it was put into the queue.
    pub request: u64,
}

/// A namespace with limits.
#[derive(Debug)]
pub(crate) struct Tenant {
    limits: NamespaceLimits,
    pub dram_bytes: u64,
    pub ssd_bytes: u64,
    /// Objects whose put was refused because of a limit.
    pub puts_refused: u64,
    /// Objects that were not written to SSD because of a limit.
    pub writes_refused: u64,
    /// Objects that left a tier because of a limit.
    pub evicted: u64,
    /// Its frames, the next to be evicted first. Some may have left.
    frames: VecDeque<QueuedFrame>,
    /// Number of its frames that are not freed.
    frame_count: usize,
}

impl Tenant {
    pub fn new(limits: NamespaceLimits) -> Tenant {
        Tenant {
            limits,
            dram_bytes: 0,
            ssd_bytes: 0,
            puts_refused: 0,
            writes_refused: 0,
            evicted: 0,
            frames: VecDeque::new(),
            frame_count: 0,
        }
    }

    pub fn namespace(&self) -> NamespaceId {
        self.limits.namespace
    }

    pub fn evicts_own(&self) -> bool {
        self.limits.when_full == WhenFull::EvictOwn
    }

    /// Most bytes of the arena.
    pub fn dram_max(&self) -> Option<u64> {
        self.limits.dram_bytes.map(|bytes| bytes.bytes())
    }

    /// Most bytes of the log.
    pub fn ssd_max(&self) -> Option<u64> {
        self.limits.ssd_bytes.map(|bytes| bytes.bytes())
    }

    /// Longest time without a request.
    pub fn idle_max(&self) -> Option<Duration> {
        self.limits.idle_days.map(|days| DAY * days)
    }

    /// Length of the queue of frames.
    pub fn queue_len(&self) -> usize {
        self.frames.len()
    }

    /// Take the first frame of the queue; it may have left.
    pub fn pop_frame(&mut self) -> Option<QueuedFrame> {
        self.frames.pop_front()
    }

    /// Return a frame to the end of the queue.
    pub fn push_frame(&mut self, frame: QueuedFrame) {
        self.frames.push_back(frame);
    }
}

/// All namespaces with limits.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    tenants: Vec<Tenant>,
    rows: FxHashMap<NamespaceId, usize>,
    /// Bytes of the log by tenant and order of the segment.
    parts: BTreeMap<(usize, SegmentOrder), (SegmentId, u64)>,
}

impl Tenants {
    pub fn new(limits: &[NamespaceLimits]) -> Tenants {
        let tenants: Vec<_> = limits.iter().cloned().map(Tenant::new).collect();
        let rows = tenants.iter().enumerate().map(|(row, t)| (t.namespace(), row)).collect();
        Tenants { tenants, rows, parts: BTreeMap::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants.iter()
    }

    /// The tenant of a namespace, if it has limits.
    pub fn get(&self, namespace: NamespaceId) -> Option<&Tenant> {
        self.rows.get(&namespace).map(|row| &self.tenants[*row])
    }

    /// As [`Tenants::get`], mutable.
    pub fn get_mut(&mut self, namespace: NamespaceId) -> Option<&mut Tenant> {
        if self.tenants.is_empty() {
            return None;
        }
        self.rows.get(&namespace).map(|row| &mut self.tenants[*row])
    }

    /// A frame of `bytes` bytes was inserted. `is_live` tells whether a frame has not left.
    pub fn frame_inserted(
        &mut self,
        namespace: NamespaceId,
        frame: QueuedFrame,
        bytes: u64,
        is_live: impl Fn(&QueuedFrame) -> bool,
    ) {
        let Some(tenant) = self.get_mut(namespace) else { return };
        tenant.dram_bytes += bytes;
        if !tenant.evicts_own() || tenant.dram_max().is_none() {
            return;
        }
        tenant.frame_count += 1;
        tenant.frames.push_back(frame);
        if tenant.frames.len() > 2 * tenant.frame_count + QUEUE_SLACK {
            tenant.frames.retain(|queued| is_live(queued));
        }
    }

    /// It was freed.
    pub fn frame_freed(&mut self, namespace: NamespaceId, bytes: u64) {
        let Some(tenant) = self.get_mut(namespace) else { return };
        tenant.dram_bytes -= bytes;
        tenant.frame_count = tenant.frame_count.saturating_sub(1);
    }

    /// A record of `bytes` bytes was appended to a segment of this order.
    pub fn appended(
        &mut self,
        namespace: NamespaceId,
        (segment, order): (SegmentId, SegmentOrder),
        bytes: u64,
    ) {
        let Some(row) = self.rows.get(&namespace).copied() else { return };
        self.tenants[row].ssd_bytes += bytes;
        self.parts.entry((row, order)).or_insert((segment, 0)).1 += bytes;
    }

    /// The segment of this order is free.
    pub fn segment_freed(&mut self, order: SegmentOrder) {
        for row in 0..self.tenants.len() {
            self.set_part((row, order), 0);
        }
    }

    /// The namespace was cleared.
    pub fn cleared(&mut self, namespace: NamespaceId) {
        let Some(row) = self.rows.get(&namespace).copied() else { return };
        let all: Vec<_> = self.parts_of(row).map(|(order, _)| order).collect();
        all.into_iter().for_each(|order| self.set_part((row, order), 0));
    }

    /// Of a tenant's part of the segment of this order, `seen` bytes of records were examined, and
    /// all but `kept` dropped. Returns what remains: a damaged header hides its record.
    pub fn trimmed(
        &mut self,
        namespace: NamespaceId,
        order: SegmentOrder,
        (seen, kept): (u64, u64),
    ) -> u64 {
        let Some(row) = self.rows.get(&namespace).copied() else { return 0 };
        let before = self.parts.get(&(row, order)).map_or(0, |(_, bytes)| *bytes);
        let remaining = before.saturating_sub(seen) + kept.min(before);
        self.set_part((row, order), remaining);
        remaining
    }

    /// The oldest part that `is_sealed` of a tenant which uses more of the log than it may, and
    /// which evicts its own objects.
    pub fn part_to_trim(
        &self,
        is_sealed: impl Fn(SegmentId) -> bool,
    ) -> Option<(NamespaceId, SegmentId)> {
        let exceeds = |tenant: &Tenant| {
            tenant.evicts_own() && tenant.ssd_max().is_some_and(|max| tenant.ssd_bytes > max)
        };
        let over = self.tenants.iter().enumerate().filter(|(_, tenant)| exceeds(tenant));
        let mut oldest = over.filter_map(|(row, tenant)| {
            let (_, segment) = self.parts_of(row).find(|(_, segment)| is_sealed(*segment))?;
            Some((tenant.namespace(), segment))
        });
        oldest.next()
    }

    fn parts_of(&self, row: usize) -> impl Iterator<Item = (SegmentOrder, SegmentId)> + '_ {
        let orders = (row, SegmentOrder(0))..=(row, SegmentOrder(u64::MAX));
        self.parts.range(orders).map(|((_, order), (segment, _))| (*order, *segment))
    }

    fn set_part(&mut self, part: (usize, SegmentOrder), bytes: u64) {
        let Some((segment, before)) = self.parts.remove(&part) else { return };
        let tenant = &mut self.tenants[part.0];
        tenant.ssd_bytes = tenant.ssd_bytes - before + bytes;
        if bytes > 0 {
            self.parts.insert(part, (segment, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Size;

    fn id(n: u8) -> NamespaceId {
        NamespaceId([n; 16])
    }

    fn limits(n: u8, when_full: WhenFull) -> NamespaceLimits {
        let bytes = Some(Size::from_bytes(100));
        NamespaceLimits {
            dram_bytes: bytes,
            ssd_bytes: bytes,
            when_full,
            ..NamespaceLimits::of(id(n))
        }
    }

    fn place(order: u64) -> (SegmentId, SegmentOrder) {
        (SegmentId(order as u32 + 10), SegmentOrder(order))
    }

    #[test]
    fn bytes_of_the_log_are_those_of_unfreed_untrimmed_and_uncleared_parts() {
        let mut tenants = Tenants::new(&[limits(1, WhenFull::Refuse), limits(2, WhenFull::Refuse)]);
        for order in 1..=3 {
            tenants.appended(id(1), place(order), 10);
            tenants.appended(id(2), place(order), 1);
            tenants.appended(id(3), place(order), 1000);
        }
        let bytes = |tenants: &Tenants| tenants.iter().map(|t| t.ssd_bytes).collect::<Vec<_>>();
        assert_eq!(bytes(&tenants), [30, 3]);
        tenants.segment_freed(SegmentOrder(1));
        assert_eq!(bytes(&tenants), [20, 2]);
        assert_eq!(tenants.trimmed(id(1), SegmentOrder(2), (8, 2)), 4, "2 bytes were not seen");
        assert_eq!(bytes(&tenants), [14, 2]);
        assert_eq!(tenants.trimmed(id(1), SegmentOrder(2), (9, 4)), 4, "more than counted");
        tenants.cleared(id(2));
        assert_eq!(bytes(&tenants), [14, 0]);
        tenants.segment_freed(SegmentOrder(2));
        tenants.segment_freed(SegmentOrder(3));
        assert_eq!(bytes(&tenants), [0, 0]);
    }

    #[test]
    fn oldest_sealed_part_of_a_tenant_that_evicts_its_own_is_trimmed() {
        let mut tenants =
            Tenants::new(&[limits(1, WhenFull::Refuse), limits(2, WhenFull::EvictOwn)]);
        for order in 1..=3 {
            tenants.appended(id(1), place(order), 50);
            tenants.appended(id(2), place(order), 33);
        }
        assert_eq!(tenants.part_to_trim(|_| true), None, "99 of 100 bytes are used");
        tenants.appended(id(2), place(3), 33);
        assert_eq!(tenants.part_to_trim(|_| true), Some((id(2), SegmentId(11))));
        let sealed = |segment| segment != SegmentId(11);
        assert_eq!(tenants.part_to_trim(sealed), Some((id(2), SegmentId(12))));
        assert_eq!(tenants.part_to_trim(|_| false), None);
    }

    #[test]
    fn queue_of_frames_does_not_grow_with_those_that_left() {
        let mut tenants = Tenants::new(&[limits(1, WhenFull::EvictOwn)]);
        for serial in 0..10_000 {
            let frame = QueuedFrame { id: FrameId(serial as u32), serial, request: 0 };
            tenants.frame_inserted(id(1), frame, 4096, |queued| queued.serial + 3 > serial);
            if serial >= 3 {
                tenants.frame_freed(id(1), 4096);
            }
        }
        let tenant = tenants.get_mut(id(1)).expect("a tenant");
        assert_eq!((tenant.dram_bytes, tenant.frame_count), (3 * 4096, 3));
        assert!(tenant.queue_len() <= 2 * 4 + QUEUE_SLACK + 1, "{}", tenant.queue_len());
    }
}
