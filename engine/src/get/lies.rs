//! Where objects lie on SSD, for clients that read them there themselves.

use std::fmt;
use std::ops::Range;

use pagelith_io::clock::Mono;
use pagelith_io::sync::Arc;
use pagelith_layouts::ids::SegmentId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::mutant::{self, Mutant};
use pagelith_tiers::policy::Recency;

use super::GetBatch;
use crate::plan::is_whole_blocks;
use crate::session::{SessionIo, release_segment};
use crate::shared::Shared;
use crate::slot::{Aim, Slot};

/// Bytes of an object on SSD. Their segment is not used for anything else as long as this is there.
pub(crate) struct LiesOnSsd {
    shared: Arc<Shared>,
    segment: SegmentId,
    /// Which of the store's segment files, in the order of its directories.
    pub file: usize,
    /// Where in it the bytes that were asked for begin.
    pub at: u64,
}

impl LiesOnSsd {
    /// Say of a slot's object where it lies, if that is what was asked.
    pub fn note(shared: &Arc<Shared>, slot: &mut Slot) {
        let lies = LiesOnSsd::of(shared, slot);
        if let Some(proof) = &mut slot.proof {
            proof.lies = lies;
        }
    }

    /// Where a slot's object lies, if that is what was asked, of whole blocks, and the slot holds its segment.
    fn of(shared: &Arc<Shared>, slot: &Slot) -> Option<LiesOnSsd> {
        let expected = slot
            .expected
            .as_ref()
            .filter(|_| slot.aim == Aim::Place && is_whole_blocks(&slot.want, slot.length))?;
        let (volume, guards) = (shared.volume.as_ref()?, shared.published.guards.as_ref()?);
        let segment = expected.identity.segment;
        let start = if mutant::on(Mutant::LentFromStart) { 0 } else { slot.want.start };
        let offset = expected.offset + expected.payload_delta + start;
        let (file, at) = volume.place(segment, offset);
        let file = volume.segments.iter().position(|of| *of == file)?;
        guards.enter_again(segment);
        Some(LiesOnSsd { shared: shared.clone(), segment, file, at })
    }
}

impl Drop for LiesOnSsd {
    fn drop(&mut self) {
        release_segment(&self.shared, self.segment);
    }
}

impl fmt::Debug for LiesOnSsd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LiesOnSsd { segment, file, at, .. } = self;
        write!(f, "LiesOnSsd {{ segment: {segment:?}, file: {file}, at: {at} }}")
    }
}

impl GetBatch {
    /// Ask where these bytes lie on SSD.
    pub fn places(
        io: &mut SessionIo,
        wanted: impl Iterator<Item = (ObjectKey, Option<Range<u64>>)>,
        at: Recency,
        deadline: Mono,
    ) -> GetBatch {
        let slots = wanted.map(|(key, range)| Slot::place(key, range)).collect();
        Self::begin_slots(io, slots, at, deadline)
    }
}
