//! Borrowed views of objects in DRAM.

use std::sync::{Arc, Weak};

use pagelith_io::buffer::Part;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, checksum};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::dram::arena::ArenaMemory;
use pagelith_tiers::policy::Recency;

use crate::api::error::Result;
use crate::api::outcome::MissCause;
use crate::memory::namespaces::NamespaceCounts;
use crate::memory::visibility::VisibilityFilter;
use crate::read::locate;
use crate::read::touch_hits::touch_guarded;
use crate::state::frame_access::FrameGuard;
use crate::state::read_view::CoreGuard;
use crate::state::shared::Shared;

/// An object's bytes in the arena. Its frame is guarded while the view lives. A store that is
/// closed or dropped still releases its files; the arena lives as long as its last view.
pub struct View {
    guard: FrameGuard,
    member: usize,
    memory: Arc<ArenaMemory>,
    shared: Weak<Shared>,
}

impl View {
    /// The bytes as a [`Part`], for readers of the arena; it must be dropped before the view.
    pub(crate) fn part(&self) -> Part {
        self.guard.part(&self.memory, self.member)
    }

    /// The checksums of its blocks.
    pub(crate) fn checksums(&self) -> &[Checksum] {
        &self.guard.data.members[self.member].checksums
    }

    /// Bytes of the arena that the view keeps: those of its whole frame.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.guard.data.bytes()
    }
}

impl std::ops::Deref for View {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.guard.bytes(&self.memory, self.member)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // The memory of a dropped store is not reused.
        if let Some(shared) = self.shared.upgrade() {
            shared.lock().release_frame(self.guard.frame);
        }
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View(len={})", self.len())
    }
}

/// See [`crate::Store::view`].
pub(crate) fn view(shared: &Arc<Shared>, key: &ObjectKey) -> Result<Option<View>> {
    shared.check_open()?;
    let mut core = shared.lock();
    let generation = core.generation(key.namespace());
    let fingerprint = shared.fingerprint(key, generation);
    let Some((frame, member)) = core.find_memory(key, fingerprint, generation) else {
        return Ok(None);
    };
    if !core.index.find(fingerprint).any(|e| e.frame == Some(frame.id.0) && core.is_visible(&e)) {
        return Ok(None);
    }
    let Some(guard) = FrameGuard::new(&mut core, frame) else { return Ok(None) };
    Ok(verified(shared, core, guard, member, key))
}

/// As [`view`], for a get of an object whose length `fits`: it counts as used.
pub(crate) fn of_hit(
    shared: &Arc<Shared>,
    key: &ObjectKey,
    at: Recency,
    fits: impl Fn(u64) -> bool,
) -> Result<Option<View>> {
    shared.check_open()?;
    let mut core = shared.lock();
    let found = locate::guard_in_memory(shared, &mut core, key, at, fits);
    let Some((guard, member)) = found else { return Ok(None) };
    touch_guarded(shared, &mut core, key, guard.frame, at);
    Ok(verified(shared, core, guard, member, key))
}

/// The view of a guarded frame's member; `None` if the frame is damaged, which drops it.
fn verified(
    shared: &Arc<Shared>,
    core: CoreGuard<'_>,
    guard: FrameGuard,
    member: usize,
    key: &ObjectKey,
) -> Option<View> {
    let frame = guard.frame;
    let verified = core.dram.frames.get(frame.id).is_some_and(|f| f.verified);
    drop(core);
    let view =
        View { guard, member, memory: shared.memory.clone(), shared: Arc::downgrade(shared) };
    if verified {
        return Some(view);
    }
    let whole = (0..view.guard.data.members.len()).all(|m| {
        let blocks = view.guard.bytes(&shared.memory, m).chunks(BLOCK_BYTES as usize);
        blocks.zip(&view.guard.data.members[m].checksums).all(|(b, sum)| checksum(b) == *sum)
    });
    let mut core = shared.lock();
    if !whole {
        core.counters.miss(MissCause::Damaged);
        let counts = core.namespaces.counts(key.namespace());
        counts.into_iter().for_each(NamespaceCounts::count_miss);
        core.drop_damaged(frame.id);
        drop(core);
        return None;
    }
    if let Some(f) = core.dram.frames.get_ref(frame) {
        f.verified = true;
    }
    drop(core);
    Some(view)
}
