//! What namespaces with limits have in the log of a store that is opened. Checkpoints list objects
//! without their namespaces, so the footers are read.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::{self, FINGERPRINT_KEY_BYTES};
use pagelith_layouts::ids::Generation;
use pagelith_layouts::record::RecordKind;
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_tiers::ssd::footer::footer_entries;
use pagelith_tiers::ssd::recover::Recovered;
use pagelith_tiers::ssd::segments::SegmentState;
use pagelith_tiers::ssd::serial_queue::SerialQueue;
use pagelith_tiers::ssd::volume::Volume;

use crate::api::error::{Error, Result};
use crate::memory::index::SsdLocation;
use crate::state::core::Core;
use crate::state::shared::CONSTANT_FINGERPRINT;

/// Count the records of namespaces with limits in all sealed segments; of a namespace that evicts
/// its own, those with an object in the index: it has dropped the others. `secret` is the key of
/// fingerprints, if they are not constant. Does nothing if no bytes of the log are limited. Fails
/// if the device does not respond.
pub(crate) fn count(
    core: &mut Core,
    volume: &Volume,
    serial: &mut SerialQueue,
    recovered: &Recovered,
    secret: Option<&[u8; FINGERPRINT_KEY_BYTES]>,
) -> Result<()> {
    if !core.tenants.iter().any(|tenant| tenant.ssd_max().is_some()) {
        return Ok(());
    }
    for (id, segment) in recovered.segments.iter() {
        if segment.state() != SegmentState::Sealed {
            continue;
        }
        let (incarnation, order) = (segment.incarnation, segment.order);
        let identity = SegmentIdentity { store: volume.store, segment: id, incarnation };
        let entries = match footer_entries(volume, serial, identity, segment.data_end) {
            Ok(entries) => entries,
            Err(fault) if serial.is_late() => return Err(Error::from(fault).context("recover")),
            Err(fault) => {
                tracing::warn!(segment = id.0, %fault, "segment cannot be read, its records do not count for namespaces.limits");
                continue;
            }
        };
        let mut counted = None;
        for e in entries.iter().filter(|e| e.kind == RecordKind::Data as u8) {
            let (namespace, generation) = (e.key.namespace(), Generation(e.generation));
            // The members of a record follow each other.
            if counted == Some(e.record_sector) || core.generation(namespace) != generation {
                continue;
            }
            let Some(tenant) = core.tenants.get(namespace) else { continue };
            let fingerprint = secret.map_or(CONSTANT_FINGERPRINT, |secret| {
                checksum::fingerprint(secret, &e.key, generation)
            });
            let location = Some(SsdLocation::of_entry(id, e));
            let is_there = || core.index.find(fingerprint).any(|i| i.ssd == location);
            if !tenant.evicts_own() || is_there() {
                counted = Some(e.record_sector);
                core.tenants.appended(namespace, (id, order), u64::from(e.record_sectors) * ALIGN);
            }
        }
    }
    Ok(())
}
