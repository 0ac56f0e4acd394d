//! Notes hits for admission to SSD. Frames that were refused are queued for SSD once they are worth
//! it.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;
use pagelith_tiers::policy::admission::{BatchKind, TouchedPage};

use crate::memory::frames::FrameRef;
use crate::read::item::{BatchItem, ItemOutcome};
use crate::state::core::Core;
use crate::state::shared::Shared;
use crate::state::ssd_admission::policy_key;

/// Note the hits of a batch of gets. Each page counts once.
pub(crate) fn touch_hits(shared: &Shared, items: &[BatchItem], at: Recency) {
    if !shared.admission.is_on() {
        return;
    }
    let (mut pages, mut first_items) = pages_of(items, at.depth);
    // Only a frame that has no place on SSD can have been refused.
    let mut refused = Vec::new();
    if first_items.iter().any(|item| item.only_in_memory) {
        let core = shared.lock();
        for (at, item) in first_items.drain(..).enumerate().filter(|(_, s)| s.only_in_memory) {
            if let Some((frame, base)) = refused_frame(&core, item) {
                pages[at].on_ssd = false;
                pages[at].page = base.map_or(pages[at].page, policy_key);
                refused.push((at, frame));
            }
        }
    }
    let mut write = Vec::new();
    shared.admission.touch(shared.now(), at.request, BatchKind::Get, (&pages, 0), &mut write);
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

/// Note a hit of an object in a frame that is guarded to be sent.
pub(crate) fn touch_guarded(
    shared: &Shared,
    core: &mut Core,
    key: &ObjectKey,
    frame: FrameRef,
    at: Recency,
) {
    let Some(f) = core.dram.frames.get_live(frame).filter(|_| shared.admission.is_on()) else {
        return;
    };
    let page = touched_page(f.data.base.as_deref().unwrap_or(key), f.data.bytes(), at.depth);
    let page = TouchedPage { on_ssd: !f.refused, attached: f.data.is_attached(), ..page };
    let mut write = Vec::new();
    shared.admission.touch(shared.now(), at.request, BatchKind::Get, (&[page], 0), &mut write);
    if write.contains(&true) {
        core.requeue_frame(frame.id);
        shared.signals.flusher.raise();
    }
}

/// A page that is taken to be on SSD.
fn touched_page(key: &ObjectKey, bytes: u64, depth: u32) -> TouchedPage {
    let bytes = bytes + ALIGN;
    let page = policy_key(key);
    TouchedPage { page, bytes, depth, on_ssd: true, required: false, attached: false }
}

/// The pages of hits, and the first item of each. The first item of all has this depth.
fn pages_of(items: &[BatchItem], depth: u32) -> (Vec<TouchedPage>, Vec<&BatchItem>) {
    let (mut pages, mut first_items) = (Vec::new(), Vec::new());
    for item in items {
        let Some(ItemOutcome::Hit(hit)) = item.outcome() else { continue };
        let depth = depth.saturating_add(item.depth_offset);
        let page = touched_page(&item.key, hit.bytes, depth);
        let page = TouchedPage { attached: item.attached, ..page };
        match pages.last_mut().filter(|last: &&mut TouchedPage| last.page == page.page) {
            Some(last) => last.bytes += hit.bytes,
            None => {
                pages.push(page);
                first_items.push(item);
            }
        }
    }
    (pages, first_items)
}

/// The frame of an item's object, if admission keeps it off SSD, and the base of the object.
fn refused_frame<'a>(
    core: &'a Core,
    item: &BatchItem,
) -> Option<(FrameRef, Option<&'a ObjectKey>)> {
    let generation = core.generation(item.key.namespace());
    let (frame, _) = core.find_memory(&item.key, item.fingerprint, generation)?;
    let data = &core.dram.frames.get(frame.id).filter(|f| f.refused)?.data;
    Some((frame, data.base.as_deref()))
}
