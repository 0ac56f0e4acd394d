//! Hints of callers about the future use of objects.

use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::{FrameId, WATCHED_OBJECTS, WATCHED_PAGES};

use crate::api::error::Result;
use crate::api::hint::{Hint, Priority, check_namespace};
use crate::memory::pins::ClientName;
use crate::memory::visibility::VisibilityFilter;
use crate::read::pin;
use crate::state::hints::watched_hash;
use crate::state::shared::Shared;

/// Objects that are demoted under one acquisition of the lock.
const LOCKED_OBJECTS: usize = 256;

/// The holder of what this process retains; no client has this name.
const THIS_PROCESS: &str = "hints of this process";

/// See [`crate::Store::hint`].
pub(crate) fn hint(shared: &Shared, keys: &[ObjectKey], hint: Hint) -> Result<usize> {
    hint_of(shared, &ClientName::from(THIS_PROCESS), keys, hint)
}

/// As [`hint`], of this client.
pub(crate) fn hint_of(
    shared: &Shared,
    client: &ClientName,
    keys: &[ObjectKey],
    hint: Hint,
) -> Result<usize> {
    shared.check_open()?;
    let Some(first) = keys.first() else { return Ok(0) };
    check_namespace(keys)?;
    match hint {
        Hint::Retain(duration) => pin::retain(shared, client, keys, duration),
        Hint::ExpectedBack(duration) => {
            let (last, now) = (last_objects(shared, keys), shared.now());
            let until = now.after(duration);
            match shared.hints.expected_back(first.namespace(), &last, until, now) {
                true => pin::lease_for_client(shared, client, keys.iter().copied(), duration),
                false => Ok(0),
            }
        }
        Hint::Priority(Priority::High) => Ok(prefer(shared, keys)),
        Hint::Priority(Priority::Low) => Ok(demote(shared, keys, Tiers::Dram)),
        Hint::Demote if shared.ssd.volume.is_some() => Ok(demote(shared, keys, Tiers::Dram)),
        Hint::Demote | Hint::SessionEnded => {
            let last = last_objects(shared, keys);
            let is_followed = shared.hints.session_ended(first.namespace(), &last);
            Ok(if is_followed { demote(shared, keys, Tiers::All) } else { 0 })
        }
    }
}

/// The tiers that objects leave first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tiers {
    Dram,
    All,
}

/// The objects that are watched: the last of each of the last pages. The first page of a prompt is
/// not, if there are others, because other sessions may begin alike.
fn last_objects(shared: &Shared, keys: &[ObjectKey]) -> Vec<u64> {
    let mut last: Vec<&ObjectKey> = Vec::new();
    let head = &keys[0];
    for key in keys.iter().rev() {
        if last.iter().any(|seen| seen.same_page(key)) {
            continue;
        }
        if last.len() == WATCHED_PAGES || !last.is_empty() && head.same_page(key) {
            break;
        }
        last.push(key);
    }
    let of_page = |page: &ObjectKey| {
        let page = *page;
        let objects = keys.iter().rev().filter(move |key| key.same_page(&page));
        objects.take(WATCHED_OBJECTS / WATCHED_PAGES)
    };
    let generation = shared.lock().generation(head.namespace());
    let watched = last.iter().rev().flat_map(|page| of_page(page));
    watched.map(|key| watched_hash(shared.fingerprint(key, generation))).collect()
}

fn prefer(shared: &Shared, keys: &[ObjectKey]) -> usize {
    let mut preferred = 0;
    for keys in keys.chunks(LOCKED_OBJECTS) {
        let core = shared.lock();
        for key in keys {
            let fingerprint = shared.fingerprint(key, core.generation(key.namespace()));
            let found = core.index.find(fingerprint).find(|entry| core.is_visible(entry));
            let Some(frame) = found.and_then(|entry| entry.frame) else { continue };
            core.dram.frames.last_requests().prefer(FrameId(frame));
            preferred += 1;
        }
    }
    preferred
}

fn demote(shared: &Shared, keys: &[ObjectKey], tiers: Tiers) -> usize {
    let mut present = 0;
    for keys in keys.chunks(LOCKED_OBJECTS) {
        let mut core = shared.lock();
        for key in keys {
            let fingerprint = shared.fingerprint(key, core.generation(key.namespace()));
            let found = core.index.find(fingerprint).find(|entry| core.is_visible(entry));
            let Some(entry) = found else { continue };
            match (tiers, entry.frame) {
                (Tiers::All, _) => {
                    present += usize::from(core.demote(fingerprint, |e| *e == entry))
                }
                (Tiers::Dram, Some(frame)) => {
                    core.demote_frame(FrameId(frame));
                    present += 1;
                }
                (Tiers::Dram, None) => {}
            }
        }
    }
    present
}
