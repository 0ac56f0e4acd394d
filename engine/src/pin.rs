//! Pins and leases, as callers hold them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::shared::Shared;
use crate::visibility::Sight;

/// Keeps objects from being evicted or reclaimed until it is dropped. Removing and clearing are stronger. A store that is closed or
/// dropped lets go of its memory and its files all the same.
pub struct Pin {
    shared: Weak<Shared>,
    fingerprints: Vec<u128>,
    objects: usize,
}

impl Pin {
    pub(crate) fn new(shared: &Arc<Shared>, keys: &[ObjectKey]) -> Pin {
        let mut core = shared.lock();
        let here = here(shared, &core, keys.iter().copied());
        Pin::of(shared, &mut core, here)
    }

    /// For another process, which is believed nothing: at most `most` rows of its own, and as many of all together as there
    /// may be objects.
    pub(crate) fn bounded(
        shared: &Arc<Shared>,
        keys: impl Iterator<Item = ObjectKey>,
        most: usize,
    ) -> Result<Pin> {
        let mut core = shared.lock();
        let here = here(shared, &core, keys);
        let (rows, (pinned, _)) = (here.fingerprints.len(), core.pins.count());
        if rows > most {
            return Err(Error::busy(format!("too much is pinned on this link objects={rows} room={most}")));
        }
        check_all(shared, pinned + rows)?;
        Ok(Pin::of(shared, &mut core, here))
    }

    fn of(shared: &Arc<Shared>, core: &mut Core, here: Here) -> Pin {
        let Here { objects, fingerprints, .. } = here;
        fingerprints.iter().for_each(|fp| core.pins.pin(*fp));
        Pin { shared: Arc::downgrade(shared), fingerprints, objects }
    }

    /// How many of the objects were here and are pinned.
    pub fn pinned(&self) -> usize {
        self.objects
    }

    /// How many rows it takes: what its objects are attached to is pinned too.
    pub(crate) fn rows(&self) -> usize {
        self.fingerprints.len()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut core = shared.lock();
        self.fingerprints.iter().for_each(|fp| core.pins.unpin(*fp));
    }
}

/// What there is of some keys.
struct Here {
    objects: usize,
    /// Theirs, and those of what they are attached to: without that they are not seen.
    fingerprints: Vec<u128>,
    /// Of each of those, whose it is.
    namespaces: Vec<NamespaceId>,
}

fn here(shared: &Shared, core: &Core, keys: impl Iterator<Item = ObjectKey>) -> Here {
    let mut here = Here { objects: 0, fingerprints: Vec::new(), namespaces: Vec::new() };
    for key in keys {
        let fingerprint = shared.fingerprint(&key, core.generation(key.namespace()));
        let Some(entry) = core.index.find(fingerprint).find(|e| core.is_visible(e)) else { continue };
        here.objects += 1;
        here.fingerprints.push(fingerprint);
        let link = core.index.link(fingerprint).filter(|_| entry.attached);
        let base = link.and_then(|name| core.index.find_named(name).find(|e| !e.attached));
        here.fingerprints.extend(base.map(|base| base.fingerprint));
        here.namespaces.resize(here.fingerprints.len(), key.namespace());
    }
    here
}

/// An error if other processes would have more pinned, or leased, than there may be objects.
fn check_all(shared: &Shared, rows: usize) -> Result<()> {
    let max = usize::try_from(shared.config.max_objects()).unwrap_or(usize::MAX);
    if rows <= max {
        return Ok(());
    }
    Err(Error::busy(format!("too much is pinned or leased objects={rows} max={max}")))
}

/// See [`crate::Store::lease`].
pub(crate) fn lease(shared: &Shared, keys: &[ObjectKey], duration: Duration) -> usize {
    let mut core = shared.lock();
    let here = here(shared, &core, keys.iter().copied());
    leased(shared, &mut core, &here, duration)
}

/// As [`lease`], for another process.
pub(crate) fn lease_bounded(
    shared: &Shared,
    keys: impl Iterator<Item = ObjectKey>,
    duration: Duration,
) -> Result<usize> {
    let mut core = shared.lock();
    let here = here(shared, &core, keys);
    let rows = |core: &Core| core.pins.count().1 + here.fingerprints.len();
    if check_all(shared, rows(&core)).is_err() {
        core.pins.expire(shared.now());
        check_all(shared, rows(&core))?;
    }
    Ok(leased(shared, &mut core, &here, duration))
}

fn leased(shared: &Shared, core: &mut Core, here: &Here, duration: Duration) -> usize {
    let until = shared.now().after(duration);
    let each = here.fingerprints.iter().zip(&here.namespaces);
    each.for_each(|(fp, namespace)| core.pins.lease(*fp, *namespace, until));
    here.objects
}
