//! Limits of namespaces: whether a group may be inserted, and eviction of a namespace's own frames.

use pagelith_io::clock::Mono;
use pagelith_layouts::align::align_up;
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::ids::{NamespaceId, SegmentId};
use pagelith_layouts::record;
use pagelith_tiers::policy::FrameId;
use pagelith_tiers::ssd::segments::SegmentState;

use crate::api::error::Error;
use crate::memory::tenants::{QueuedFrame, Tenant};
use crate::state::core::Core;

/// Most frames of a namespace that one put passes over because they were requested, and because
/// they cannot be evicted: the core lock is held meanwhile.
const PASSES_MAX: usize = 1024;

/// Whether a group is within the limits of its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaRoom {
    Fits,
    /// The namespace uses what it may, or the group alone exceeds a limit.
    Exceeded,
    /// The frames of the namespace cannot be evicted now.
    Busy,
}

/// The error of a put whose namespace has no evictable frame.
pub(crate) fn no_own_room(namespace: NamespaceId) -> Error {
    Error::busy(format!(
        "no room within namespaces.limits: the namespace's frames are unwritten, pinned or being \
         read; retry, or raise its dram_bytes namespace={namespace}"
    ))
}

/// Bytes of the arena for objects of these lengths.
fn padded(lengths: impl Iterator<Item = u64>) -> u64 {
    lengths.map(align_up).sum()
}

impl Core {
    /// Whether a group with objects of these lengths exceeds the limits of its namespace, whatever
    /// is evicted for it; `is_written` if it would go into the log too.
    pub fn exceeds_quota(
        &self,
        namespace: NamespaceId,
        lengths: impl Iterator<Item = u64> + Clone,
        is_written: bool,
    ) -> bool {
        let Some(tenant) = self.tenants.get(namespace) else { return false };
        let evicts = tenant.evicts_own();
        let record = || record::record_bytes(lengths.clone(), BLOCK_BYTES);
        let ssd_max = tenant.ssd_max().filter(|_| is_written && !evicts);
        if ssd_max.is_some_and(|max| tenant.ssd_bytes + record() > max) {
            return true;
        }
        let used = if evicts { 0 } else { tenant.dram_bytes };
        tenant.dram_max().is_some_and(|max| used + padded(lengths) > max)
    }

    /// Whether a group with objects of these lengths may be inserted into DRAM, and if `is_written`
    /// into the log. Frames of the namespace are evicted for it if its limits say so, but for that
    /// of its `base`.
    pub fn make_quota_room(
        &mut self,
        namespace: NamespaceId,
        lengths: impl Iterator<Item = u64> + Clone,
        is_written: bool,
        base: Option<FrameId>,
    ) -> QuotaRoom {
        let Some(max) = self.tenants.get(namespace).map(Tenant::dram_max) else {
            return QuotaRoom::Fits;
        };
        if self.exceeds_quota(namespace, lengths.clone(), is_written) {
            return QuotaRoom::Exceeded;
        }
        let Some(max) = max else { return QuotaRoom::Fits };
        match self.evict_own(namespace, max - padded(lengths), base) {
            true => QuotaRoom::Fits,
            false => QuotaRoom::Busy,
        }
    }

    /// The oldest part of the log to be dropped by a namespace that uses more than it may, in a
    /// sealed segment that `may` be read now.
    pub fn part_to_trim(
        &self,
        may: impl Fn(SegmentId) -> bool,
    ) -> Option<(NamespaceId, SegmentId)> {
        let ssd = self.ssd.as_ref()?;
        let is_sealed = |id| ssd.segments.get(id).state() == SegmentState::Sealed && may(id);
        self.tenants.part_to_trim(is_sealed)
    }

    /// Objects of a namespace whose tick is earlier were not requested for as long as its limits
    /// allow; 0 without such a limit.
    pub fn idle_before(&self, namespace: NamespaceId, now: Mono) -> u64 {
        let idle = self.tenants.get(namespace).and_then(Tenant::idle_max);
        let ticks = self.ssd.as_ref().map(|ssd| &ssd.tick_history);
        idle.zip(ticks).and_then(|(idle, ticks)| ticks.tick_before(now, idle)).unwrap_or(0)
    }

    /// Evict frames of a namespace until it uses at most `bytes` of the arena: those inserted
    /// first, but for `kept`, and for frames that were requested since they were last passed over.
    /// False if no other frame may be evicted now, of those that were examined.
    fn evict_own(&mut self, namespace: NamespaceId, bytes: u64, kept: Option<FrameId>) -> bool {
        let Some(tenant) = self.tenants.get(namespace) else { return true };
        // A frame that was requested is passed over, and may then turn out to be unevictable.
        let unevictable_max = PASSES_MAX.min(2 * tenant.queue_len());
        let (mut requested, mut unevictable) = (0, 0);
        loop {
            let Some(tenant) = self.tenants.get_mut(namespace) else { return true };
            if tenant.dram_bytes <= bytes {
                return true;
            }
            if unevictable >= unevictable_max {
                return false;
            }
            let Some(frame) = tenant.pop_frame() else { return false };
            let Some(objects) = self.live_objects(&frame) else { continue };
            let last = self.dram.frames.last_requests().get(frame.id);
            let request = last.map_or(frame.request, |at| at.request);
            let stays = Some(frame.id) == kept || !self.is_evictable(frame.id);
            let is_passed_over = request > frame.request && requested < PASSES_MAX;
            if stays || is_passed_over {
                unevictable += usize::from(stays);
                requested += usize::from(!stays);
                if let Some(tenant) = self.tenants.get_mut(namespace) {
                    tenant.push_frame(QueuedFrame { request, ..frame });
                }
                continue;
            }
            self.evict_frame(frame.id, false, None);
            self.count_own_evicted(namespace, objects);
        }
    }

    /// Number of objects of a frame that has not left.
    fn live_objects(&self, frame: &QueuedFrame) -> Option<u64> {
        let live = self.dram.frames.get(frame.id).filter(|f| f.serial == frame.serial)?;
        (!live.is_dead()).then_some(live.data.members.len() as u64)
    }

    /// Count objects of a namespace that left a tier because of a limit.
    pub fn count_own_evicted(&mut self, namespace: NamespaceId, objects: u64) {
        if let Some(tenant) = self.tenants.get_mut(namespace) {
            tenant.evicted += objects;
        }
    }
}
