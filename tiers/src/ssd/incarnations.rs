//! Segments that recovery finds without a header: their records must not count, neither now nor at
//! a later open.
//!
//! A crash can leave an unsynced record in a spare segment without the header that precedes it.
//! Recovery ignores this record only because the header's sector is readable and empty. If that
//! sector becomes unreadable, a later open would scan the segment, find the record, and bring back
//! an object that was removed in the meantime. So the incarnation is raised at once.

use std::collections::BTreeSet;

use pagelith_io::fault::IoFault;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::ids::{Incarnation, SegmentId, Sequence};
use pagelith_layouts::manifest::Manifest;

use super::recovered::{Recovered, UNREADABLE_SEQUENCES};
use super::serial_queue::SerialQueue;
use super::volume::{FileSystemFull, Volume};

/// Raise the incarnation of free segments that may have records of their current incarnation.
pub(super) fn raise_incarnations(
    volume: &Volume,
    manifest: &mut Manifest,
    serial: &mut SerialQueue,
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
    // One copy after the other. If the first copy fails, the second is intact, and the next change
    // of the manifest begins with the first again. If the second copy fails, the first must not be
    // written.
    for (copy, file) in volume.manifests.into_iter().enumerate() {
        let written = blocks.iter().try_for_each(|block| {
            serial.write(file, u64::from(*block) * ALIGN, &manifest.block(*block))?;
            found.bytes_written += ALIGN;
            Ok(())
        });
        match written.and_then(|()| serial.sync(file)) {
            Ok(()) => {}
            Err(fault) if copy > 0 && !serial.is_late() => {
                found.full = FileSystemFull::of(Err(fault), Some(copy))?;
            }
            Err(fault) if serial.is_late() => return Err(fault),
            Err(fault) => {
                tracing::warn!(%fault, "manifest cannot be written, segments without a header keep their incarnation");
                keep_incarnations(ids, found);
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The alternative to [`raise_incarnations`] that does not change the manifest: records in these
/// segments get older sequences than all later ones, and all tombstones are kept until the segments
/// are reused.
pub(super) fn keep_incarnations(ids: &[SegmentId], found: &mut Recovered) {
    if ids.is_empty() {
        return;
    }
    for id in ids {
        found.segments.get_mut(*id).min_sequence = Sequence(0);
    }
    found.next_sequence.0 = found.next_sequence.0.saturating_add(UNREADABLE_SEQUENCES);
}
