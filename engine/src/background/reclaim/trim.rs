//! Drops the records of a namespace that uses more of the log than it may from a sealed segment.
//! Nothing is moved: the other records of the segment stay where they are.

use std::collections::BTreeMap;
use std::time::Duration;

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::footer::FooterEntry;
use pagelith_layouts::ids::{Generation, NamespaceId, SegmentId};
use pagelith_layouts::record::RecordKind;
use pagelith_mutants::{self as mutant, Mutant};

use super::{RETRY_AFTER, Reclaimer};
use crate::background::log_context::LogContext;
use crate::memory::departed::Departure;
use crate::memory::index::SsdLocation;
use crate::state::core::Core;
use crate::state::shared::Shared;

impl Reclaimer {
    /// Drop the records of a namespace that uses more of the log than it may, but for pinned ones.
    /// They stay on the device until the segment is reclaimed, and may return after a crash.
    pub(super) fn trim(
        &mut self,
        cx: &mut LogContext,
        namespace: NamespaceId,
        entries: &[FooterEntry],
    ) {
        let Some(segment) = self.current.as_ref().map(|r| r.identity.segment) else { return };
        let shared = cx.shared.clone();
        let mut core = shared.lock();
        let kept = drop_records(&shared, &mut core, (segment, namespace), entries);
        let seen = bytes_of(namespace, core.generation(namespace), entries);
        let order = core.ssd.as_ref().map(|ssd| ssd.segments.get(segment).order);
        let remaining =
            order.map_or(0, |order| core.tenants.trimmed(namespace, order, (seen, kept)));
        drop(core);
        tracing::debug!(segment = segment.0, %namespace, remaining, "trim");
        // Pinned records stay; a later trim tries them again, since pins end.
        self.defer_for(cx, if remaining > 0 { RETRY_AFTER } else { Duration::ZERO }, false);
    }
}

/// Bytes of a namespace's records of a generation.
fn bytes_of(namespace: NamespaceId, generation: Generation, entries: &[FooterEntry]) -> u64 {
    let of_namespace = entries.iter().filter(|e| {
        e.kind == RecordKind::Data as u8
            && e.key.namespace() == namespace
            && e.generation == generation.0
    });
    let records: BTreeMap<u32, u64> =
        of_namespace.map(|e| (e.record_sector, u64::from(e.record_sectors) * ALIGN)).collect();
    records.into_values().sum()
}

/// Drop the objects of a namespace from a segment, but for records with a pinned object; returns
/// the bytes of these.
fn drop_records(
    shared: &Shared,
    core: &mut Core,
    (segment, namespace): (SegmentId, NamespaceId),
    entries: &[FooterEntry],
) -> u64 {
    let current = core.generation(namespace);
    let of_namespace =
        |e: &&FooterEntry| e.kind == RecordKind::Data as u8 && e.key.namespace() == namespace;
    let mut pinned: BTreeMap<u32, u64> = BTreeMap::new();
    for e in entries.iter().filter(of_namespace).filter(|e| e.generation == current.0) {
        let (fingerprint, location) =
            (shared.fingerprint(&e.key, current), SsdLocation::of_entry(segment, e));
        let is_there = || core.index.find(fingerprint).any(|i| i.ssd == Some(location));
        if core.pins.is_pinned(fingerprint) && is_there() && !mutant::on(Mutant::PinIgnored) {
            pinned.insert(e.record_sector, u64::from(e.record_sectors) * ALIGN);
        }
    }
    let mut dropped = 0;
    for e in entries.iter().filter(of_namespace).filter(|e| !pinned.contains_key(&e.record_sector))
    {
        let fingerprint = shared.fingerprint(&e.key, Generation(e.generation));
        let location = SsdLocation::of_entry(segment, e);
        // The event of the clear covers cleared objects: no event for each key.
        let key = (e.generation == current.0).then_some(&e.key);
        dropped += u64::from(core.drop_ssd(fingerprint, location, key, Departure::EvictedSsd));
    }
    core.count_own_evicted(namespace, dropped);
    pinned.into_values().sum()
}
