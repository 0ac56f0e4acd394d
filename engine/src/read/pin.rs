//! Pins of callers, which last until they are released, and leases, which last until a given time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::align::align_up;
use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::FrameId;

use crate::api::error::{Error, Result};
use crate::memory::index::Entry;
use crate::memory::pins::client::PinTotals;
use crate::memory::pins::{ClientName, PinTarget};
use crate::memory::visibility::VisibilityFilter;
use crate::state::core::Core;
use crate::state::shared::Shared;

/// Prevents eviction and reclaim of objects until it is dropped. Removing and clearing take
/// precedence. A store that is closed or dropped still releases its memory and its files.
pub struct Pin {
    shared: Weak<Shared>,
    fingerprints: Vec<u128>,
    objects: usize,
    /// The client that owns the pin, if it is not this process.
    client: Option<ClientName>,
}

impl Pin {
    pub(crate) fn new(shared: &Arc<Shared>, keys: &[ObjectKey]) -> Pin {
        let mut core = shared.lock();
        let PresentKeys { objects, rows } = find_present(shared, &core, keys.iter().copied());
        let fingerprints = fingerprints(&rows);
        fingerprints.iter().for_each(|fp| core.pins.pin(*fp));
        Pin { shared: Arc::downgrade(shared), fingerprints, objects, client: None }
    }

    /// Pin for another process, which is not trusted: at most `rows_max` rows for its connection,
    /// and bounded shares of the store for that client and for all clients.
    pub(crate) fn for_client(
        shared: &Arc<Shared>,
        client: &ClientName,
        keys: impl Iterator<Item = ObjectKey>,
        rows_max: usize,
    ) -> Result<Pin> {
        let mut core = shared.lock();
        let PresentKeys { objects, rows } = find_present(shared, &core, keys);
        if rows.len() > rows_max {
            let count = rows.len();
            return Err(Error::busy(format!(
                "too much is pinned on this link objects={count} room={rows_max}"
            )));
        }
        pin_for_client(shared, &mut core, client, &rows, None)?;
        let (shared, fingerprints) = (Arc::downgrade(shared), fingerprints(&rows));
        Ok(Pin { shared, fingerprints, objects, client: Some(client.clone()) })
    }

    /// How many of the objects were present and are pinned.
    pub fn pinned(&self) -> usize {
        self.objects
    }

    /// Whether the objects are still pinned: not after a close.
    pub fn is_held(&self) -> bool {
        self.shared.upgrade().is_some_and(|shared| shared.check_open().is_ok())
    }

    /// How many rows the pin has; the bases of attached objects are pinned too.
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

/// The present objects of some keys.
struct PresentKeys {
    objects: usize,
    /// Rows of the objects, and of the bases of attached objects, without which those are not
    /// visible.
    rows: Vec<PinTarget>,
}

fn fingerprints(rows: &[PinTarget]) -> Vec<u128> {
    rows.iter().map(|row| row.fingerprint).collect()
}

fn find_present(
    shared: &Shared,
    core: &Core,
    keys: impl Iterator<Item = ObjectKey>,
) -> PresentKeys {
    let mut present = PresentKeys { objects: 0, rows: Vec::new() };
    for key in keys {
        let fingerprint = shared.fingerprint(&key, core.generation(key.namespace()));
        let Some(entry) = core.index.find(fingerprint).find(|e| core.is_visible(e)) else {
            continue;
        };
        present.objects += 1;
        let namespace = key.namespace();
        present.rows.push(row(core, namespace, &entry));
        let link = core.index.link(fingerprint).filter(|_| entry.attached);
        let base = link.and_then(|name| core.index.find_named(name).find(|e| !e.attached));
        present.rows.extend(base.map(|base| row(core, namespace, &base)));
    }
    present
}

/// The row of an object to be pinned. A pinned object keeps its whole frame in DRAM; an object
/// without a frame may be promoted into one.
fn row(core: &Core, namespace: NamespaceId, entry: &Entry) -> PinTarget {
    let Entry { fingerprint, length, .. } = *entry;
    let frame = entry.frame.and_then(|frame| core.dram.frames.get(FrameId(frame)));
    match frame.and_then(|f| Some((f.data.members.first()?.fingerprint, f.data.bytes()))) {
        Some((group, bytes)) => PinTarget { fingerprint, namespace, group, bytes },
        None => {
            PinTarget { fingerprint, namespace, group: fingerprint, bytes: align_up(length.into()) }
        }
    }
}

/// Pin or lease for a client. If the bounds are exceeded, expired leases are dropped first.
fn pin_for_client(
    shared: &Shared,
    core: &mut Core,
    client: &ClientName,
    rows: &[PinTarget],
    lease: Option<Mono>,
) -> Result<()> {
    let totals_max = PinTotals::of(&shared.config);
    core.pins.pin_for_client(client, rows, lease, &totals_max).or_else(|_| {
        core.pins.expire(shared.now());
        core.pins.pin_for_client(client, rows, lease, &totals_max)
    })
}

/// See [`crate::Store::lease`].
pub(crate) fn lease(shared: &Shared, keys: &[ObjectKey], duration: Duration) -> usize {
    let mut core = shared.lock();
    let PresentKeys { objects, rows } = find_present(shared, &core, keys.iter().copied());
    let until = shared.now().after(duration);
    rows.iter().for_each(|row| core.pins.lease(row.fingerprint, row.namespace, until));
    objects
}

/// As [`lease_for_client`], also of objects that are absent: their lease begins when they are
/// stored.
pub(crate) fn retain(
    shared: &Shared,
    client: &ClientName,
    keys: &[ObjectKey],
    duration: Duration,
) -> Result<usize> {
    let Some(first) = keys.first() else { return Ok(0) };
    // Under one lock: each object is either present or absent, also if it is being put.
    let (mut core, now) = (shared.lock(), shared.now());
    let core = &mut *core;
    let generation = core.generation(first.namespace());
    let is_absent = |fp: &u128| !core.index.find(*fp).any(|entry| core.is_visible(&entry));
    let fingerprints = keys.iter().map(|key| shared.fingerprint(key, generation));
    let absent: Vec<u128> = fingerprints.filter(is_absent).collect();
    let PresentKeys { objects, rows } = find_present(shared, core, keys.iter().copied());
    let until = now.after(duration);
    core.pins.early.check(client, &absent).or_else(|_| {
        core.pins.expire(now);
        core.pins.early.check(client, &absent)
    })?;
    pin_for_client(shared, core, client, &rows, Some(until))?;
    core.pins.early.add(client, first.namespace(), &absent, until);
    Ok(objects)
}

/// Begin the early leases of objects that are stored now. What exceeds the bounds of its client is
/// not kept.
pub(crate) fn begin_early_leases(
    shared: &Shared,
    core: &mut Core,
    objects: impl Iterator<Item = (ObjectKey, u128)>,
) {
    if core.pins.early.is_empty() {
        return;
    }
    let (now, most) = (shared.now(), PinTotals::of(&shared.config));
    for (key, fingerprint) in objects {
        let Some(lease) = core.pins.early.take(fingerprint, now) else { continue };
        let rows = find_present(shared, core, std::iter::once(key)).rows;
        // Expired leases are not ended here: that examines all of them, for each object.
        let _ = core.pins.pin_for_client(&lease.client, &rows, Some(lease.until), &most);
    }
}

/// As [`lease`], within the bounds of a client.
pub(crate) fn lease_for_client(
    shared: &Shared,
    client: &ClientName,
    keys: impl Iterator<Item = ObjectKey>,
    duration: Duration,
) -> Result<usize> {
    let mut core = shared.lock();
    let PresentKeys { objects, rows } = find_present(shared, &core, keys);
    pin_for_client(shared, &mut core, client, &rows, Some(shared.now().after(duration)))?;
    Ok(objects)
}
