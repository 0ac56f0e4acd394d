//! What threads know of the core that do not have its lock, and when they learn of a change: when the lock is given back,
//! all of it at once.
//!
//! A reader pins the epoch, takes the [`Visibility`], looks things up, and asks whether all of it holds: nothing that it
//! looked at has changed since. If so, there was a moment at which the store was as it says, and no critical section was
//! halfway through then. If not, it tries again, and then takes the lock like everybody else.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crossbeam_epoch::{Atomic, Guard, Owned};
use pagelith_io::kept::Kept;
use pagelith_io::sync::{Arc, AtomicU64, MutexGuard};
use pagelith_tiers::policy::Touches;
use pagelith_tiers::ssd::guards::SegmentGuards;

use crate::memory::frames::FrameData;
use crate::memory::index::{Entry, Marks, Reader, SsdPlace};
use crate::memory::visibility::{Visibility, VisibilityFilter};
use crate::state::core::Core;

/// How often something is tried without the lock.
pub(crate) const TRIES: usize = 3;

/// What is told to readers.
pub(crate) struct ReadView {
    pub index: Reader,
    visibility: Atomic<Visibility>,
    pub touches: Arc<Touches>,
    /// What frames hold, for who enters them by number.
    pub frames: Kept<FrameData>,
    /// What segments are held by, if there are any.
    pub guards: Option<Arc<SegmentGuards>>,
    /// Whether the policy of DRAM has to be told of every request: that needs the lock.
    pub counts_touches: bool,
    /// The tick that counts as now.
    pub tick: AtomicU64,
}

/// What the last publication was of: the core's, to see whether there is anything new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotVersion {
    visibility: u64,
    unread: bool,
    quarantined: usize,
}

impl ReadView {
    pub fn of(core: &mut Core) -> ReadView {
        let published = ReadView {
            index: core.index.reader(),
            visibility: Atomic::new(Visibility::default()),
            touches: core.frames.touches().clone(),
            frames: core.frames.kept(),
            guards: core.ssd.as_ref().map(|ssd| ssd.guards.clone()),
            counts_touches: core.policy.counts_touches(),
            tick: AtomicU64::new(core.now_tick()),
        };
        core.edition = SnapshotVersion { visibility: u64::MAX, ..SnapshotVersion::default() };
        published.publish(core);
        published
    }

    /// Readers see from here on what the core has become.
    fn publish(&self, core: &mut Core) {
        let edition = edition(core);
        if edition != core.edition {
            core.edition = edition;
            let quarantined = core.ssd.iter().flat_map(|ssd| ssd.health.quarantined_segments());
            let next = Owned::new(core.visibility.with(edition.unread, quarantined));
            let pin = crossbeam_epoch::pin();
            let old = self.visibility.swap(next, AcqRel, &pin);
            // SAFETY: it is not reachable any more, and whoever took it from there has the epoch pinned.
            unsafe { pin.defer_destroy(old) };
        }
        core.index.publish();
    }

    /// Begin to read without the lock.
    pub fn read<'a>(&'a self, pin: &'a Guard) -> Snapshot<'a> {
        let taken = self.visibility.load(Acquire, pin);
        // SAFETY: never null, and not freed before `pin` goes.
        let visibility = unsafe { taken.deref() };
        Reading { published: self, visibility, marks: Marks::default() }
    }
}

impl Drop for ReadView {
    fn drop(&mut self) {
        // SAFETY: nobody else has this any more, so nobody reads what it published.
        unsafe { drop(std::mem::take(&mut self.visibility).into_owned()) };
    }
}

fn edition(core: &Core) -> SnapshotVersion {
    let health = core.ssd.as_ref().map(|ssd| &ssd.health);
    SnapshotVersion {
        visibility: core.visibility.changes(),
        unread: health.is_some_and(|h| !h.reads()),
        quarantined: health.map_or(0, |h| h.quarantined()),
    }
}

/// A look at the store without its lock. What it finds counts only if it [holds](Snapshot::validate).
pub(crate) struct Snapshot<'a> {
    published: &'a ReadView,
    pub visibility: &'a Visibility,
    marks: Marks,
}

impl Snapshot<'_> {
    /// Make room for looks at so many keys.
    pub fn expect(&self, keys: usize) {
        self.marks.expect(keys);
    }

    /// All entries with this fingerprint, visible or not.
    #[inline]
    pub fn entries(&self, fingerprint: u128) -> impl Iterator<Item = Entry> {
        self.read_view.index.find(fingerprint, &self.marks)
    }

    /// The first visible entry with this fingerprint.
    pub fn find(&self, fingerprint: u128) -> Option<Entry> {
        self.entries(fingerprint).find(|entry| self.is_visible(entry))
    }

    /// Whether all that was found was so at one moment.
    pub fn holds(&self, pin: &Guard) -> bool {
        let index = self.read_view.index.holds(&self.marks);
        // Behind the index: a section that a look at the index saw the end of has published before.
        let now = self.read_view.visibility.load(Relaxed, pin);
        index && std::ptr::eq(now.as_raw(), self.visibility)
    }
}

impl VisibilityFilter for Snapshot<'_> {
    fn is_hidden_at(&self, place: SsdPlace) -> bool {
        self.visibility.hides(place)
    }

    fn link(&self, fingerprint: u128) -> Option<u64> {
        self.read_view.index.link(fingerprint, &self.marks)
    }

    fn any_named(&self, name: u64, is: impl Fn(&Entry) -> bool) -> bool {
        self.read_view.index.find_named(name, &self.marks).any(|entry| is(&entry))
    }
}

/// The core, locked.
pub(crate) struct CoreGuard<'a> {
    core: MutexGuard<'a, Core>,
    published: &'a ReadView,
}

impl<'a> CoreGuard<'a> {
    pub fn new(core: MutexGuard<'a, Core>, published: &'a ReadView) -> CoreGuard<'a> {
        CoreGuard { core, published }
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
