//! Pins and leases, as callers hold them.

use std::sync::Arc;
use std::time::Duration;

use pagelith_layouts::key::ObjectKey;

use crate::shared::Shared;

/// Keeps objects from being evicted or reclaimed until it is dropped. Removing and clearing are stronger.
pub struct Pin {
    shared: Arc<Shared>,
    fingerprints: Vec<u128>,
}

impl Pin {
    pub(crate) fn new(shared: Arc<Shared>, keys: &[ObjectKey]) -> Pin {
        let fingerprints = here(&shared, keys, |core, fp| core.pins.pin(fp));
        Pin { shared, fingerprints }
    }

    /// How many of the objects were here and are pinned.
    pub fn pinned(&self) -> usize {
        self.fingerprints.len()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut core = self.shared.lock();
        self.fingerprints.iter().for_each(|fp| core.pins.unpin(*fp));
    }
}

/// Do `each` for those of `keys` that are here; their fingerprints.
fn here(shared: &Shared, keys: &[ObjectKey], each: impl Fn(&mut crate::core::Core, u128)) -> Vec<u128> {
    let mut core = shared.lock();
    let mut found = Vec::new();
    for key in keys {
        let fingerprint = shared.fingerprint(key, core.generation(key.namespace()));
        if core.index.contains(fingerprint) {
            each(&mut core, fingerprint);
            found.push(fingerprint);
        }
    }
    found
}

/// See [`crate::Store::lease`].
pub(crate) fn lease(shared: &Shared, keys: &[ObjectKey], duration: Duration) -> usize {
    let until = shared.now().after(duration);
    here(shared, keys, |core, fp| core.pins.lease(fp, until)).len()
}
