//! Segments that were kept ready and found without a head: nothing in them counts, and nothing may come to count later.
//!
//! A crash can leave a record in such a segment, not synced, without the head that went before it. That nothing was
//! found this time is then the head's doing: the day its block cannot be read, the segment would be read record by
//! record, and what had been removed meanwhile would be there again. So the incarnation is raised at once.

use std::collections::BTreeSet;

use pagelith_io::fault::IoFault;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::ids::{Incarnation, SegmentId, Sequence};
use pagelith_layouts::manifest::Manifest;

use super::recover::{Recovered, UNREADABLE_SEQUENCES};
use super::serial::Serial;
use super::volume::{Full, Volume};

/// Raise the incarnation of segments that are free and may hold records of their present one.
pub(super) fn disown(
    volume: &Volume,
    manifest: &mut Manifest,
    serial: &mut Serial,
    ids: &[SegmentId],
    found: &mut Recovered,
) -> Result<(), IoFault> {
    let mut blocks = BTreeSet::new();
    for id in ids {
        let s = found.segments.get_mut(*id);
        s.incarnation = Incarnation(s.incarnation.0 + 1);
        blocks.extend(manifest.set_segment(*id, s.incarnation, s.order));
    }
    if blocks.is_empty() {
        return Ok(());
    }
    // One copy after the other, as always. While the second is whole a failure of the first costs nothing: the next
    // change of the manifest begins with the first again. After one of the second the first must not be touched.
    for (copy, file) in volume.manifests.into_iter().enumerate() {
        let written = blocks.iter().try_for_each(|block| {
            serial.write(file, u64::from(*block) * ALIGN, &manifest.block(*block))?;
            found.bytes_written += ALIGN;
            Ok(())
        });
        match written.and_then(|()| serial.sync(file)) {
            Ok(()) => {}
            Err(fault) if copy > 0 && !serial.is_late() => {
                found.full = Full::of(Err(fault), Some(copy))?;
            }
            Err(fault) if serial.is_late() => return Err(fault),
            Err(fault) => {
                tracing::warn!(%fault, "segments without a head keep their incarnation");
                keep_incarnations(ids, found);
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The same without a change of the manifest: what may lie in these segments stays older than all that comes, and every
/// removal is kept until they are used.
pub(super) fn keep_incarnations(ids: &[SegmentId], found: &mut Recovered) {
    if ids.is_empty() {
        return;
    }
    for id in ids {
        found.segments.get_mut(*id).min_sequence = Sequence(0);
    }
    found.next_sequence.0 = found.next_sequence.0.saturating_add(UNREADABLE_SEQUENCES);
}
