//! Pins and leases, as callers hold them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::align::align_up;
use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::FrameId;

use crate::api::error::{Error, Result};
use crate::memory::index::Entry;
use crate::memory::pins::client::HoldTotals;
use crate::memory::pins::{ClientName, PinTarget};
use crate::memory::visibility::VisibilityFilter;
use crate::state::core::Core;
use crate::state::shared::Shared;

/// Keeps objects from being evicted or reclaimed until it is dropped. Removing and clearing are stronger. A store that is closed or
/// dropped lets go of its memory and its files all the same.
pub struct Pin {
    shared: Weak<Shared>,
    fingerprints: Vec<u128>,
    objects: usize,
    /// Whose it is, of a client's.
    client: Option<ClientName>,
}

impl Pin {
    pub(crate) fn new(shared: &Arc<Shared>, keys: &[ObjectKey]) -> Pin {
        let mut core = shared.lock();
        let Here { objects, rows } = here(shared, &core, keys.iter().copied());
        let fingerprints = fingerprints(&rows);
        fingerprints.iter().for_each(|fp| core.pins.pin(*fp));
        Pin { shared: Arc::downgrade(shared), fingerprints, objects, client: None }
    }

    /// For another process, which is believed nothing: at most `most` rows of its connection, and a share of the store for that client and
    /// for all of them.
    pub(crate) fn bounded(
        shared: &Arc<Shared>,
        client: &ClientName,
        keys: impl Iterator<Item = ObjectKey>,
        most: usize,
    ) -> Result<Pin> {
        let mut core = shared.lock();
        let Here { objects, rows } = here(shared, &core, keys);
        if rows.len() > most {
            let count = rows.len();
            return Err(Error::busy(format!("too much is pinned on this link objects={count} room={most}")));
        }
        hold(shared, &mut core, client, &rows, None)?;
        let (shared, fingerprints) = (Arc::downgrade(shared), fingerprints(&rows));
        Ok(Pin { shared, fingerprints, objects, client: Some(client.clone()) })
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
        match &self.client {
            Some(client) => core.pins.release_for_client(client, &self.fingerprints),
            None => self.fingerprints.iter().for_each(|fp| core.pins.unpin(*fp)),
        }
    }
}

/// What there is of some keys.
struct Here {
    objects: usize,
    /// Theirs, and those of what they are attached to: without that they are not seen.
    rows: Vec<PinTarget>,
}

fn fingerprints(rows: &[PinTarget]) -> Vec<u128> {
    rows.iter().map(|row| row.fingerprint).collect()
}

fn here(shared: &Shared, core: &Core, keys: impl Iterator<Item = ObjectKey>) -> Here {
    let mut here = Here { objects: 0, rows: Vec::new() };
    for key in keys {
        let fingerprint = shared.fingerprint(&key, core.generation(key.namespace()));
        let Some(entry) = core.index.find(fingerprint).find(|e| core.is_visible(e)) else { continue };
        here.objects += 1;
        let namespace = key.namespace();
        here.rows.push(row(core, namespace, &entry));
        let link = core.index.link(fingerprint).filter(|_| entry.attached);
        let base = link.and_then(|name| core.index.find_named(name).find(|e| !e.attached));
        here.rows.extend(base.map(|base| row(core, namespace, &base)));
    }
    here
}

/// The row of an object that is to be pinned: all that lies with it in memory is kept there with it, and an object that does not lie there
/// may be read into it.
fn row(core: &Core, namespace: NamespaceId, entry: &Entry) -> PinTarget {
    let Entry { fingerprint, length, .. } = *entry;
    let frame = entry.frame.and_then(|frame| core.frames.get(FrameId(frame)));
    match frame.and_then(|f| Some((f.data.members.first()?.fingerprint, f.data.bytes()))) {
        Some((group, bytes)) => PinTarget { fingerprint, namespace, group, bytes },
        None => PinTarget { fingerprint, namespace, group: fingerprint, bytes: align_up(length.into()) },
    }
}

/// Pin or lease for a client; leases that are over make room.
fn hold(
    shared: &Shared,
    core: &mut Core,
    client: &ClientName,
    rows: &[PinTarget],
    lease: Option<Mono>,
) -> Result<()> {
    let most = HoldTotals::of(&shared.config);
    core.pins.hold_for_client(client, rows, lease, &most).or_else(|_| {
        core.pins.expire(shared.now());
        core.pins.hold_for_client(client, rows, lease, &most)
    })
}

/// See [`crate::Store::lease`].
pub(crate) fn lease(shared: &Shared, keys: &[ObjectKey], duration: Duration) -> usize {
    let mut core = shared.lock();
    let Here { objects, rows } = here(shared, &core, keys.iter().copied());
    let until = shared.now().after(duration);
    rows.iter().for_each(|row| core.pins.lease(row.fingerprint, row.namespace, until));
    objects
}

/// As [`lease`], for another process.
pub(crate) fn lease_bounded(
    shared: &Shared,
    client: &ClientName,
    keys: impl Iterator<Item = ObjectKey>,
    duration: Duration,
) -> Result<usize> {
    let mut core = shared.lock();
    let Here { objects, rows } = here(shared, &core, keys);
    hold(shared, &mut core, client, &rows, Some(shared.now().after(duration)))?;
    Ok(objects)
}
