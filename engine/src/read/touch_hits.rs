//! Notes hits for admission to SSD. Frames that were refused are queued for SSD once they are worth
//! it.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::admission::{BatchKind, TouchedPage};

use crate::memory::frames::FrameRef;
use crate::read::slot::{Settled, Slot};
use crate::state::core::Core;
use crate::state::shared::Shared;
use crate::state::ssd_admission::page_hash;

/// Note the hits of a batch of gets. Each page counts once.
pub(crate) fn touch_hits(shared: &Shared, slots: &[Slot], epoch: u64) {
    if !shared.admission.is_on() {
        return;
    }
    let (mut pages, mut first_slots) = pages_of(slots);
    // Only a frame that has no place on SSD can have been refused.
    let mut refused = Vec::new();
    if first_slots.iter().any(|slot| slot.only_in_memory) {
        let core = shared.lock();
        for (at, slot) in first_slots.drain(..).enumerate().filter(|(_, s)| s.only_in_memory) {
            if let Some(frame) = refused_frame(&core, slot) {
                pages[at].on_ssd = false;
                refused.push((at, frame));
            }
        }
    }
    let mut write = Vec::new();
    shared.admission.touch(shared.now(), epoch, BatchKind::Get, (&pages, 0), &mut write);
    refused.retain(|(at, _)| write[*at]);
    if !refused.is_empty() {
        let mut core = shared.lock();
        // The last first, like the frames of a put.
        for (_, frame) in refused.into_iter().rev() {
            if core.dram.frames.get_live(frame).is_some_and(|frame| frame.refused) {
                core.requeue_frame(frame.id);
            }
        }
        drop(core);
        shared.signals.flusher.raise();
    }
}

/// Note a hit of an object in a frame that is held to be sent.
pub(crate) fn touch_held(
    shared: &Shared,
    core: &mut Core,
    key: &ObjectKey,
    frame: FrameRef,
    epoch: u64,
) {
    let Some(f) = core.dram.frames.get_live(frame).filter(|_| shared.admission.is_on()) else {
        return;
    };
    let page = TouchedPage { on_ssd: !f.refused, ..touched(key, f.data.bytes()) };
    let mut write = Vec::new();
    shared.admission.touch(shared.now(), epoch, BatchKind::Get, (&[page], 0), &mut write);
    if write.contains(&true) {
        core.requeue_frame(frame.id);
        shared.signals.flusher.raise();
    }
}

/// A page that is taken to be on SSD.
fn touched(key: &ObjectKey, bytes: u64) -> TouchedPage {
    TouchedPage { page: page_hash(key), bytes: bytes + ALIGN, on_ssd: true, required: false }
}

/// The pages of hits, and the first slot of each.
fn pages_of(slots: &[Slot]) -> (Vec<TouchedPage>, Vec<&Slot>) {
    let (mut pages, mut first_slots) = (Vec::new(), Vec::new());
    for slot in slots {
        let Some(Settled::Hit(hit)) = slot.settled() else { continue };
        let page = touched(&slot.key, hit.bytes);
        match pages.last_mut().filter(|last: &&mut TouchedPage| last.page == page.page) {
            Some(last) => last.bytes += hit.bytes,
            None => {
                pages.push(page);
                first_slots.push(slot);
            }
        }
    }
    (pages, first_slots)
}

/// The frame of a slot's object, if admission keeps it off SSD.
fn refused_frame(core: &Core, slot: &Slot) -> Option<FrameRef> {
    let generation = core.generation(slot.key.namespace());
    let (frame, _) = core.find_memory(&slot.key, slot.fingerprint, generation)?;
    core.dram.frames.get(frame.id).filter(|f| f.refused).map(|_| frame)
}
