//! What namespaces with limits have in the log of a store that is opened. Checkpoints list objects
//! without their namespaces, so the footers are read.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::ids::Generation;
use pagelith_layouts::record::RecordKind;
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_tiers::ssd::footer::footer_entries;
use pagelith_tiers::ssd::recover::Recovered;
use pagelith_tiers::ssd::segments::SegmentState;
use pagelith_tiers::ssd::serial_queue::SerialQueue;
use pagelith_tiers::ssd::volume::Volume;

use crate::api::error::{Error, Result};
use crate::state::core::Core;

/// Count the records of namespaces with limits in all sealed segments. Does nothing if no bytes of
/// the log are limited. Fails if the device does not respond.
pub(crate) fn count(
    core: &mut Core,
    volume: &Volume,
    serial: &mut SerialQueue,
    recovered: &Recovered,
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
        let entries = match footer_entries(volume, serial, identity) {
            Ok(entries) => entries,
            Err(fault) if serial.is_late() => return Err(Error::from(fault).context("recover")),
            Err(fault) => {
                tracing::warn!(segment = id.0, %fault, "footer cannot be read, its records do not count for namespaces.limits");
                continue;
            }
        };
        let mut last = None;
        for e in entries.iter().filter(|e| e.kind == RecordKind::Data as u8) {
            let namespace = e.key.namespace();
            // The members of a record follow each other.
            let is_first = last.replace(e.record_block) != Some(e.record_block);
            if is_first && core.generation(namespace) == Generation(e.generation) {
                core.tenants.appended(namespace, (id, order), u64::from(e.record_blocks) * ALIGN);
            }
        }
    }
    Ok(())
}
