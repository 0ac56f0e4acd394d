//! Snapshot reads of the core without its lock. All changes of a critical section become visible to
//! readers at once, when the lock is released.
//!
//! A reader enters the epoch, loads the [`Visibility`], does its lookups, and then validates the
//! snapshot: nothing that it read has changed since. If validation succeeds, all results are from
//! one state between two critical sections. If it fails, the reader tries again, and then takes the
//! lock.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crossbeam_epoch::{Atomic, Guard, Owned};
use pagelith_io::guarded_table::GuardedTable;
use pagelith_io::sync::{Arc, AtomicU64, MutexGuard};
use pagelith_tiers::policy::LastRequests;
use pagelith_tiers::ssd::guards::SegmentGuards;

use crate::memory::departed::DepartedReader;
use crate::memory::frames::FrameData;
use crate::memory::index::{Entry, IndexReader, ReadStamps, SsdLocation};
use crate::memory::namespaces::KnownNamespaces;
use crate::memory::visibility::{Visibility, VisibilityFilter};
use crate::state::core::Core;

/// Number of tries without the lock before the lock is taken.
pub(crate) const LOCK_FREE_TRIES: usize = 3;

/// The state that readers use without the lock.
pub(crate) struct ReadView {
    pub index: IndexReader,
    visibility: Atomic<Visibility>,
    pub last_requests: Arc<LastRequests>,
    /// Frame data, which readers enter by frame number.
    pub frames: GuardedTable<FrameData>,
    /// Counts of the readers of segments; `None` without an SSD tier.
    pub guards: Option<Arc<SegmentGuards>>,
    /// The current tick.
    pub tick: AtomicU64,
    /// Epoch of the last request.
    pub last_request: AtomicU64,
    /// Why objects left or were not taken.
    pub departed: DepartedReader,
    /// Namespaces in which objects were put.
    pub namespaces: Arc<KnownNamespaces>,
    /// Whether groups wait for other objects or for their base.
    has_pending_groups: std::sync::atomic::AtomicBool,
}

/// Version of the last published visibility. The core keeps it to detect that a new one is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotVersion {
    visibility: u64,
    ssd_unread: bool,
    quarantined: usize,
}

impl ReadView {
    pub fn of(core: &mut Core) -> ReadView {
        let read_view = ReadView {
            index: core.index.reader(),
            visibility: Atomic::new(Visibility::default()),
            last_requests: core.dram.frames.last_requests().clone(),
            frames: core.dram.frames.guarded_table(),
            guards: core.ssd.as_ref().map(|ssd| ssd.guards.clone()),
            tick: AtomicU64::new(core.now_tick()),
            last_request: AtomicU64::new(0),
            departed: core.departed.reader(),
            namespaces: core.namespaces.clone(),
            has_pending_groups: false.into(),
        };
        core.snapshot_version =
            SnapshotVersion { visibility: u64::MAX, ..SnapshotVersion::default() };
        read_view.publish(core);
        read_view
    }

    /// Make the changes of the critical section visible to readers.
    fn publish(&self, core: &mut Core) {
        let version = snapshot_version(core);
        if version != core.snapshot_version {
            core.snapshot_version = version;
            let quarantined = core.ssd.iter().flat_map(|ssd| ssd.health.quarantined_segments());
            let next = Owned::new(core.visibility.with_ssd_state(version.ssd_unread, quarantined));
            let epoch_guard = crossbeam_epoch::pin();
            let old = self.visibility.swap(next, AcqRel, &epoch_guard);
            // SAFETY: it is no longer reachable, and every reader that loaded it has an epoch
            // guard.
            unsafe { epoch_guard.defer_destroy(old) };
        }
        // Stored only on a change, because all sessions read it.
        let pending = !core.pending_groups.is_empty();
        if self.has_pending_groups() != pending {
            self.has_pending_groups.store(pending, Relaxed);
        }
        core.index.publish();
    }

    /// Whether groups wait for other objects or for their base.
    pub fn has_pending_groups(&self) -> bool {
        self.has_pending_groups.load(Relaxed)
    }

    /// Begin a snapshot read without the lock.
    pub fn read<'a>(&'a self, epoch_guard: &'a Guard) -> Snapshot<'a> {
        let loaded = self.visibility.load(Acquire, epoch_guard);
        // SAFETY: it is never null, and not freed before `epoch_guard` is dropped.
        let visibility = unsafe { loaded.deref() };
        Snapshot { read_view: self, visibility, stamps: ReadStamps::default() }
    }
}

impl Drop for ReadView {
    fn drop(&mut self) {
        // SAFETY: this is the only reference, so no reader uses the visibility any more.
        unsafe { drop(std::mem::take(&mut self.visibility).into_owned()) };
    }
}

fn snapshot_version(core: &Core) -> SnapshotVersion {
    let health = core.ssd.as_ref().map(|ssd| &ssd.health);
    SnapshotVersion {
        visibility: core.visibility.changes(),
        ssd_unread: health.is_some_and(|h| !h.reads()),
        quarantined: health.map_or(0, |h| h.quarantined()),
    }
}

/// A snapshot read without the core's lock. Its results are valid only if [`Snapshot::validate`]
/// returns true after the last lookup.
pub(crate) struct Snapshot<'a> {
    read_view: &'a ReadView,
    pub visibility: &'a Visibility,
    stamps: ReadStamps,
}

impl Snapshot<'_> {
    /// Reserve space for the lookups of `keys` keys.
    pub fn reserve(&self, keys: usize) {
        self.stamps.reserve(keys);
    }

    /// All entries with this fingerprint, visible or not.
    #[inline]
    pub fn entries(&self, fingerprint: u128) -> impl Iterator<Item = Entry> {
        self.read_view.index.find(fingerprint, &self.stamps)
    }

    /// The first visible entry with this fingerprint.
    pub fn find(&self, fingerprint: u128) -> Option<Entry> {
        self.entries(fingerprint).find(|entry| self.is_visible(entry))
    }

    /// Whether all results are from one state of the store.
    pub fn validate(&self, epoch_guard: &Guard) -> bool {
        let index_is_valid = self.read_view.index.validate(&self.stamps);
        // Loaded after the index is validated: a critical section whose index changes were visible
        // had published its visibility before them.
        let current = self.read_view.visibility.load(Relaxed, epoch_guard);
        index_is_valid && std::ptr::eq(current.as_raw(), self.visibility)
    }
}

impl VisibilityFilter for Snapshot<'_> {
    fn is_hidden_at(&self, location: SsdLocation) -> bool {
        self.visibility.hides(location)
    }

    fn link(&self, fingerprint: u128) -> Option<u64> {
        self.read_view.index.link(fingerprint, &self.stamps)
    }

    fn any_named(&self, name: u64, matches: impl Fn(&Entry) -> bool) -> bool {
        self.read_view.index.find_named(name, &self.stamps).any(|entry| matches(&entry))
    }
}

/// The core, locked.
pub(crate) struct CoreGuard<'a> {
    core: MutexGuard<'a, Core>,
    read_view: &'a ReadView,
}

impl<'a> CoreGuard<'a> {
    pub fn new(core: MutexGuard<'a, Core>, read_view: &'a ReadView) -> CoreGuard<'a> {
        CoreGuard { core, read_view }
    }
}

impl Deref for CoreGuard<'_> {
    type Target = Core;
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for CoreGuard<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Drop for CoreGuard<'_> {
    fn drop(&mut self) {
        self.read_view.publish(&mut self.core);
    }
}
