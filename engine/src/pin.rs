//! Pins and leases, as callers hold them.

use std::sync::Arc;
use std::time::Duration;

use pagelith_layouts::key::ObjectKey;

use crate::core::Core;
use crate::shared::Shared;
use crate::visibility::Sight;

/// Keeps objects from being evicted or reclaimed until it is dropped. Removing and clearing are stronger.
pub struct Pin {
    shared: Arc<Shared>,
    fingerprints: Vec<u128>,
    objects: usize,
}

impl Pin {
    pub(crate) fn new(shared: Arc<Shared>, keys: &[ObjectKey]) -> Pin {
        let mut fingerprints = Vec::new();
        let objects = here(&shared, keys, |core, fp| {
            core.pins.pin(fp);
            fingerprints.push(fp);
        });
        Pin { shared, fingerprints, objects }
    }

    /// How many of the objects were here and are pinned.
    pub fn pinned(&self) -> usize {
        self.objects
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut core = self.shared.lock();
        self.fingerprints.iter().for_each(|fp| core.pins.unpin(*fp));
    }
}

/// Do `each` for those of `keys` that are here, and for what they are attached to: without that they are not seen.
/// How many are here.
fn here(shared: &Shared, keys: &[ObjectKey], mut each: impl FnMut(&mut Core, u128)) -> usize {
    let mut core = shared.lock();
    let mut objects = 0;
    for key in keys {
        let fingerprint = shared.fingerprint(key, core.generation(key.namespace()));
        let Some(entry) = core.index.find(fingerprint).find(|e| core.is_visible(e)) else { continue };
        objects += 1;
        each(&mut core, fingerprint);
        let link = core.index.link(fingerprint).filter(|_| entry.attached);
        let base = link.and_then(|name| core.index.find_named(name).find(|e| !e.attached));
        if let Some(base) = base {
            each(&mut core, base.fingerprint);
        }
    }
    objects
}

/// See [`crate::Store::lease`].
pub(crate) fn lease(shared: &Shared, keys: &[ObjectKey], duration: Duration) -> usize {
    let until = shared.now().after(duration);
    here(shared, keys, |core, fp| core.pins.lease(fp, until))
}
