//! The write path: look, copy with checksums, publish.
//!
//! 1. [`admit`]: under the lock, what is present is told apart from what is new, and memory is set aside,
//!    evicting where needed. A full arena answers `Busy` here; nothing waits and nothing grows.
//! 2. [`fill`]: outside the lock, in the caller's thread, one copy into the arena and the block checksums.
//! 3. [`publish`]: under the lock again, the group becomes visible as a whole, unless its namespace was
//!    cleared or somebody else was first meanwhile; then it is queued for the flusher.

use std::sync::Arc;

use pagelith_io::buffer::Part;
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::footer;
use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{self, GroupKind, MEMBERS_MAX, OBJECT_BYTES_MAX};
use pagelith_tiers::dram::arena::Extent;
use pagelith_tiers::policy::{FrameId, Recency};

use crate::core::{Core, Job, SsdHealth};
use crate::error::{Error, ErrorKind, Result};
use crate::frame_io::Unpublished;
use crate::frames::{FrameData, FrameMember, FrameRef, FrameState};
use crate::index::{Entry, TICK_MODULUS};
use crate::outcome::PutOutcome;
use crate::shared::Shared;

/// One object of a group to be put.
pub(crate) struct Incoming<'a> {
    pub key: ObjectKey,
    pub pieces: Vec<&'a [u8]>,
}

impl Incoming<'_> {
    /// The pieces of a source.
    pub fn of<'a>(key: ObjectKey, parts: &'a [Part]) -> Incoming<'a> {
        Incoming { key, pieces: parts.iter().map(Part::bytes).collect() }
    }
}

/// What is known of a group before its bytes are looked at.
pub(crate) enum Admission {
    /// Nothing more to do.
    Settled(Result<PutOutcome>),
    /// Some members may be on SSD: an entry has their fingerprint, and only the header there can tell whether
    /// it is their key. By member.
    Doubtful(Vec<usize>),
    /// Memory is set aside.
    Admitted(Admitted),
}

/// A group with memory of its own, invisible so far.
pub(crate) struct Admitted {
    generation: Generation,
    fingerprints: Vec<u128>,
    extents: Vec<Extent>,
}

/// Check what does not depend on the store's state: every rule names what it refuses.
pub(crate) fn check(shared: &Shared, group: &[(ObjectKey, u64)]) -> Result<()> {
    let Some((first, _)) = group.first() else { return Err(Error::invalid("a group has no object")) };
    if group.len() > MEMBERS_MAX {
        let most = MEMBERS_MAX;
        return Err(Error::invalid(format!(
            "a group has too many objects objects={} max={most}",
            group.len()
        )));
    }
    for (i, (key, length)) in group.iter().enumerate() {
        if *length == 0 {
            return Err(Error::invalid(format!("object has no bytes key={key} length=0")));
        }
        let max = shared.object_bytes_max.min(OBJECT_BYTES_MAX);
        if *length > max {
            return Err(Error::invalid(format!("object is too large key={key} length={length} max={max}")));
        }
        if !key.same_page(first) {
            return Err(Error::invalid(format!("a group has objects of two pages key={key} other={first}")));
        }
        if group[..i].iter().any(|(k, _)| k == key) {
            return Err(Error::invalid(format!("a group has a key twice key={key}")));
        }
    }
    if let Some(volume) = &shared.volume {
        // One write takes a group whole: each object is a part, and so are its header and the segment's head.
        let most = volume.disk.facts().parts_max.saturating_sub(2);
        if group.len() > most {
            let objects = group.len();
            return Err(Error::invalid(format!(
                "a group has more objects than a write has parts objects={objects} max={most}"
            )));
        }
        let bytes = record::record_bytes(group.iter().map(|g| g.1), BLOCK_BYTES);
        let max = footer::record_bytes_max(volume.geometry.segment_bytes, group.len() as u64);
        if bytes > max {
            let detail =
                format!("group is larger than a segment's payload key={first} bytes={bytes} max={max}");
            return Err(Error::invalid(detail));
        }
    }
    Ok(())
}

/// Step 1. `present` tells of each member what its headers on SSD said: that it is there, with this length.
pub(crate) fn admit(
    shared: &Shared,
    group: &[(ObjectKey, u64)],
    present: Option<&[Option<u64>]>,
) -> Admission {
    let mut core = shared.lock();
    let generation = core.generation(group[0].0.namespace());
    let fingerprints: Vec<_> = group.iter().map(|(key, _)| shared.fingerprint(key, generation)).collect();
    let mut here = 0;
    let mut doubtful = Vec::new();
    for (i, ((key, length), fp)) in group.iter().zip(&fingerprints).enumerate() {
        let known = match core.find_memory(key, *fp, generation) {
            Some((frame, member)) => core.frames.get(frame.id).map(|f| f.data.members[member].extent.bytes),
            None => match present {
                Some(present) => {
                    let unclear = present[i].is_none() && !core.find_ssd(*fp).is_empty();
                    if unclear && !shared.config.constant_fingerprint() {
                        // The look at its header was late, or it was written meanwhile: not to be replaced.
                        core.counters.puts_busy += group.len() as u64;
                        let detail = format!("key may be present, its header was not read in time key={key}");
                        return Admission::Settled(Err(Error::busy(detail)));
                    }
                    present[i]
                }
                None if !core.find_ssd(*fp).is_empty() => {
                    doubtful.push(i);
                    continue;
                }
                None => None,
            },
        };
        if let Some(known) = known.filter(|known| known != length) {
            let detail =
                format!("key is present with another length key={key} present={known} given={length}");
            return Admission::Settled(Err(Error::invalid(detail)));
        }
        here += usize::from(known.is_some());
    }
    if here == group.len() {
        core.counters.puts_present += group.len() as u64;
        return Admission::Settled(Ok(PutOutcome::AlreadyPresent));
    }
    if !doubtful.is_empty() {
        return Admission::Doubtful(doubtful);
    }
    let extents = set_aside(&mut core, group).or_else(|| {
        // Leases that are over hold nothing back; without an SSD tier nobody else ends them.
        core.pins.expire(shared.now());
        set_aside(&mut core, group)
    });
    match extents {
        Some(extents) => Admission::Admitted(Admitted { generation, fingerprints, extents }),
        None => {
            core.counters.puts_busy += group.len() as u64;
            drop(core);
            shared.work.raise();
            let bytes: u64 = group.iter().map(|g| g.1).sum();
            Admission::Settled(Err(Error::busy(format!("arena is full of pages in use bytes={bytes}"))))
        }
    }
}

/// Memory for every member, or none.
pub(crate) fn set_aside(core: &mut Core, group: &[(ObjectKey, u64)]) -> Option<Vec<Extent>> {
    let mut extents = Vec::with_capacity(group.len());
    for (_, length) in group {
        let extent = loop {
            match core.space.alloc(*length) {
                Some(extent) => break Some(extent),
                None if core.evict_one(false) => {}
                None => break None,
            }
        };
        match extent {
            Some(extent) => extents.push(extent),
            None => {
                extents.into_iter().for_each(|e| core.space.free(e));
                return None;
            }
        }
    }
    Some(extents)
}

/// Steps 2 and 3.
pub(crate) fn store(
    shared: &Shared,
    group: &[Incoming<'_>],
    admitted: Admitted,
    at: Recency,
) -> Result<(PutOutcome, Option<FrameRef>)> {
    let filled: Option<Vec<_>> = group
        .iter()
        .zip(&admitted.extents)
        .map(|(object, extent)| Unpublished::new(*extent).fill(&shared.memory, &object.pieces))
        .collect();
    let Some(checksums) = filled else {
        let mut core = shared.lock();
        admitted.extents.iter().for_each(|e| core.space.free(*e));
        return Err(Error::new(ErrorKind::Internal, "extent and object have different lengths"));
    };
    let members = group.iter().zip(checksums).enumerate().map(|(i, (object, checksums))| FrameMember {
        key: object.key,
        fingerprint: admitted.fingerprints[i],
        extent: admitted.extents[i],
        checksums,
    });
    publish(shared, members.collect(), admitted.generation, at)
}

/// Queue the frames of a batch for the flusher, the last first: heads of chains become younger in the log
/// than their children, so that they outlive them.
pub(crate) fn enqueue(shared: &Shared, frames: &mut Vec<FrameRef>) {
    if frames.is_empty() {
        return;
    }
    if let Some(ssd) = shared.lock().ssd.as_mut() {
        ssd.queue.extend(frames.drain(..).rev().map(Job::Frame));
    }
    frames.clear();
    shared.work.raise();
}

/// Step 3.
fn publish(
    shared: &Shared,
    members: Vec<FrameMember>,
    generation: Generation,
    at: Recency,
) -> Result<(PutOutcome, Option<FrameRef>)> {
    let mut core = shared.lock();
    let objects = members.len() as u64;
    let key = members[0].key;
    let give_back = |core: &mut Core, members: &[FrameMember]| {
        members.iter().for_each(|m| core.space.free(m.extent));
    };
    if core.generation(key.namespace()) != generation {
        // Cleared while it was being copied: stored, and gone already.
        give_back(&mut core, &members);
        return Ok((PutOutcome::Stored, None));
    }
    let there = |core: &Core, m: &FrameMember| core.find_memory(&m.key, m.fingerprint, generation);
    if members.iter().all(|m| there(&core, m).is_some()) {
        give_back(&mut core, &members);
        core.counters.puts_present += objects;
        return Ok((PutOutcome::AlreadyPresent, None));
    }
    let writes = core.ssd.as_ref().is_some_and(|s| s.health == SsdHealth::On);
    if core.write_buffer_only && !writes {
        // There is no tier left that would keep it.
        give_back(&mut core, &members);
        core.counters.puts_refused += objects;
        core.counters.refused_objects += objects;
        return Ok((PutOutcome::Refused, None));
    }
    // First, so that a refusal leaves everything as it was.
    while core.index.len() + objects > core.index.capacity() {
        // What is on SSD too would keep its entries, and all of DRAM would go for nothing.
        if !core.evict_one(true) {
            give_back(&mut core, &members);
            core.counters.puts_refused += objects;
            core.counters.refused_objects += objects;
            return Ok((PutOutcome::Refused, None));
        }
    }
    // What of the group is there already, put by itself or in another group, is replaced: a page is whole.
    for m in &members {
        if let Some((frame, _)) = there(&core, m) {
            core.drop_frame(frame.id, true);
        }
        if !shared.config.constant_fingerprint() {
            while core.remove_entry(m.fingerprint, |e| e.frame.is_none()).is_some() {}
        }
    }
    let bytes: u64 = members.iter().map(|m| m.extent.bytes).sum();
    let data = Arc::new(FrameData {
        namespace: key.namespace(),
        generation,
        sequence: core.next_sequence(),
        group_kind: if objects > 1 { GroupKind::Base } else { GroupKind::Single },
        depth: at.depth,
        members,
    });
    let Some(frame) = insert(&mut core, data, at) else {
        return Err(Error::busy("too many pages in memory"));
    };
    core.counters.puts_stored += objects;
    core.counters.bytes_put += bytes;
    Ok((PutOutcome::Stored, frame))
}

/// Make a frame visible; with an SSD tier the inner `Some` names it for the queue. `None`, and everything
/// given back, if there is no number for it.
fn insert(core: &mut Core, data: Arc<FrameData>, at: Recency) -> Option<Option<FrameRef>> {
    let on_ssd = core.ssd.as_ref().is_some_and(|s| s.health == SsdHealth::On);
    let Some(frame) = core.frames.insert(data.clone(), FrameState::Queued, at) else {
        data.members.iter().for_each(|m| core.space.free(m.extent));
        return None;
    };
    link(core, frame.id, &data);
    match core.ssd.as_mut().filter(|_| on_ssd) {
        Some(ssd) => {
            ssd.unflushed_bytes += data.bytes();
            Some(Some(frame))
        }
        None => {
            if core.ssd.is_some() {
                core.counters.lost_objects += data.members.len() as u64;
            }
            core.settle_frame(frame);
            Some(None)
        }
    }
}

/// Enter a frame's objects into the index; there is room, the caller has seen to it.
pub(crate) fn link(core: &mut Core, id: FrameId, data: &FrameData) {
    let tick = (core.now_tick() % u64::from(TICK_MODULUS)) as u32;
    for m in &data.members {
        let entry = Entry {
            fingerprint: m.fingerprint,
            length: m.extent.bytes as u32,
            ssd: None,
            frame: Some(id.0),
            tick,
            freq: 0,
            pinned: false,
        };
        let inserted = core.index.insert(&entry);
        debug_assert!(inserted.is_ok(), "{inserted:?}");
    }
}
