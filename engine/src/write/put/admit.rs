//! Admission of a put: determine which objects of the group are present, and reserve memory for the
//! others.

use std::borrow::Cow;
use std::collections::BTreeSet;

use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_tiers::policy::FrameId;

use super::AdmittedGroup;
use crate::api::error::{Error, Result};
use crate::api::outcome::PutOutcome;
use crate::memory::visibility::VisibilityFilter;
use crate::read::get::ProbedObject;
use crate::state::core::Core;
use crate::state::group_memory::{self, Reservation};
use crate::state::put_spec::{Location, ObjectSize, PutKind, PutOrigin, group_conflict};
use crate::state::quota::{self, QuotaRoom};
use crate::state::shared::Shared;

/// A member of the group that is already stored as a single object. Its bytes must be read, so that
/// they can be stored again with the group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StandaloneMember {
    /// Index of the member in the group.
    pub member: usize,
    /// Length in bytes.
    pub length: u64,
    /// Its location. Bytes that were read from another location are not accepted.
    pub location: Location,
}

/// Result of the admission of a group, before its bytes are read.
pub(crate) enum AdmitOutcome {
    /// The put of the group has its outcome.
    Done(Result<PutOutcome>),
    /// These members (by index) may be on SSD: an entry has their fingerprint, and only the record
    /// header on SSD shows whether it has their key.
    NeedHeaders(Vec<usize>),
    /// These members are present as single objects: their bytes must be read to become the group's.
    NeedObjects(Vec<StandaloneMember>),
    /// Memory is not available now.
    NoMemory(Error),
    /// The group exceeds a limit of its namespace.
    OverQuota,
    /// Memory is reserved.
    Admitted(AdmittedGroup),
}

/// An object that is already present.
struct PresentObject {
    location: Location,
    length: u64,
    kind: GroupKind,
    /// It is attached to a base that is absent: it is invisible, and a put replaces it.
    is_invisible: bool,
    /// Keys of all objects of its frame or record, including its own.
    members: Vec<ObjectKey>,
}

/// Whether an object is present.
enum KeyState {
    Absent,
    Present(PresentObject),
    /// Its record header on SSD must be read first.
    NeedsHeader,
    /// The header was not read, or is outdated.
    Unclear,
}

/// Result for the group of the members that are present.
enum GroupState {
    /// All members are present, as this group.
    Present,
    /// The group can be stored. These members are present as single objects.
    New(Vec<StandaloneMember>),
}

/// Admit a group. `probed` is the header on SSD of each member, after headers were requested.
/// `adopted` is the location from which the bytes of a standalone member were read, if they were.
pub(crate) fn admit(
    shared: &Shared,
    core: &mut Core,
    kind: PutKind<'_>,
    group: &[ObjectSize],
    probed: Option<&[Option<ProbedObject>]>,
    adopted: &[Option<Location>],
) -> AdmitOutcome {
    let generation = core.generation(group[0].key.namespace());
    let fingerprints: Vec<u128> =
        group.iter().map(|o| shared.fingerprint(&o.key, generation)).collect();
    let mut found = Vec::with_capacity(group.len());
    let mut need_headers = Vec::new();
    for (i, (object, fp)) in group.iter().zip(&fingerprints).enumerate() {
        match key_state(shared, core, &object.key, *fp, probed.map(|p| p[i].as_ref())) {
            KeyState::Absent => found.push(None),
            KeyState::Present(object) => found.push(Some(object)),
            KeyState::NeedsHeader => {
                need_headers.push(i);
                found.push(None);
            }
            KeyState::Unclear => {
                shared.count_busy(core, group.iter().map(|o| &o.key));
                let key = object.key;
                let detail = format!(
                    "cannot tell whether the key is present: its record header was not read in \
                     time; retry key={key}"
                );
                return AdmitOutcome::Done(Err(Error::busy(detail)));
            }
        }
    }
    if !need_headers.is_empty() {
        return AdmitOutcome::NeedHeaders(need_headers);
    }
    let group_state = core
        .pending_groups
        .check_overlap(kind, group)
        .and_then(|()| classify_group(kind, group, &found));
    let standalone_members = match group_state {
        Err(error) => return AdmitOutcome::Done(Err(error)),
        Ok(GroupState::Present) => {
            // Those that an open group found present were counted then.
            core.counters.puts_present +=
                group.iter().filter(|o| o.length.is_some()).count() as u64;
            return AdmitOutcome::Done(Ok(PutOutcome::AlreadyPresent));
        }
        Ok(GroupState::New(standalone_members)) => standalone_members,
    };
    let standalone = |i: usize| standalone_members.iter().find(|a| a.member == i);
    if group
        .iter()
        .enumerate()
        .any(|(i, object)| object.length.is_none() && standalone(i).is_none())
    {
        // Some objects of the group were never put.
        return AdmitOutcome::Done(Ok(PutOutcome::Waiting));
    }
    let was_read =
        |a: &StandaloneMember| adopted.get(a.member).copied().flatten() == Some(a.location);
    if !standalone_members.iter().all(was_read) {
        return AdmitOutcome::NeedObjects(
            standalone_members.into_iter().filter(|a| !was_read(a)).collect(),
        );
    }
    let mut sizes = Cow::Borrowed(group);
    let mut adopts = Vec::new();
    if !standalone_members.is_empty() {
        adopts.resize(group.len(), false);
        for a in &standalone_members {
            adopts[a.member] = true;
            let object = &mut sizes.to_mut()[a.member];
            (object.length, object.in_arena) = (Some(a.length), false);
        }
        // The lengths of adopted members are known only now.
        let lengths: Vec<u64> = sizes.iter().filter_map(|o| o.length).collect();
        if let Err(error) = super::check_bytes(shared, &group[0].key, &lengths) {
            return AdmitOutcome::Done(Err(error));
        }
    }
    let reservation = Reservation::with_capacity(sizes.len());
    let mut admission =
        reserve_memory(shared, core, (generation, fingerprints), (kind, &sizes), reservation);
    if let AdmitOutcome::Admitted(admitted) = &mut admission {
        if found.iter().any(Option::is_some) {
            admitted.existing = found.iter().map(|f| f.as_ref().map(|f| f.location)).collect();
        }
        admitted.adopts = adopts;
    }
    admission
}

/// Reserve memory for all objects of a group, those included that it adopts or replaces. The
/// generation and fingerprints are those of its objects.
pub(crate) fn reserve_memory(
    shared: &Shared,
    core: &mut Core,
    (generation, fingerprints): (Generation, Vec<u128>),
    (kind, group): (PutKind<'_>, &[ObjectSize]),
    mut reservation: Reservation,
) -> AdmitOutcome {
    let (namespace, lengths) =
        (group[0].key.namespace(), group.iter().filter_map(|object| object.length));
    let base = match kind {
        PutKind::Attached(base) => frame_of(shared, core, base),
        PutKind::Single | PutKind::Base => None,
    };
    match core.make_quota_room(namespace, lengths.clone(), core.ssd.is_some(), base) {
        QuotaRoom::Fits => {}
        QuotaRoom::Exceeded => return AdmitOutcome::OverQuota,
        QuotaRoom::Busy => return AdmitOutcome::NoMemory(quota::no_own_room(namespace)),
    }
    core.expire_due(|| shared.now());
    let mut reserve = |core: &mut Core| group_memory::reserve_group(core, group, &mut reservation);
    let reserved = reserve(core) || {
        core.expire(shared.now());
        reserve(core)
    };
    if !reserved {
        return AdmitOutcome::NoMemory(group_memory::no_room(lengths.sum()));
    }
    let (existing, adopts, open_group, origin) = (Vec::new(), Vec::new(), None, PutOrigin::Put);
    AdmitOutcome::Admitted(AdmittedGroup {
        generation,
        fingerprints,
        reservation,
        existing,
        adopts,
        open_group,
        origin,
    })
}

/// The frame of a base, which a put of what is attached to it must not evict. `None` also if no
/// namespace has limits.
pub(super) fn frame_of(shared: &Shared, core: &Core, base: &ObjectKey) -> Option<FrameId> {
    if core.tenants.is_empty() {
        return None;
    }
    let generation = core.generation(base.namespace());
    let found = core.find_memory(base, shared.fingerprint(base, generation), generation);
    found.map(|(frame, _)| frame.id)
}

/// Whether one object is present. `probed` is `None` before headers were requested, and
/// `Some(None)` if no header was read.
fn key_state(
    shared: &Shared,
    core: &Core,
    key: &ObjectKey,
    fingerprint: u128,
    probed: Option<Option<&ProbedObject>>,
) -> KeyState {
    let generation = core.generation(key.namespace());
    if let Some((id, member)) = core.find_memory(key, fingerprint, generation) {
        let Some(frame) = core.dram.frames.get(id.id) else { return KeyState::Unclear };
        let seen =
            core.index.find(fingerprint).any(|e| e.frame == Some(id.id.0) && core.is_visible(&e));
        return KeyState::Present(PresentObject {
            location: Location::Frame(id),
            length: frame.data.members[member].extent.bytes,
            kind: frame.data.group_kind,
            is_invisible: !seen,
            members: frame.data.members.iter().map(|m| m.key).collect(),
        });
    }
    let may_be_on_ssd = !core.find_ssd(fingerprint).is_empty();
    match probed {
        None if may_be_on_ssd => KeyState::NeedsHeader,
        None => KeyState::Absent,
        // The record on SSD with this fingerprint was read, and has another key.
        Some(None) if shared.config.constant_fingerprint() || !may_be_on_ssd => KeyState::Absent,
        // The header was read too late, or the object was written meanwhile: it must not be
        // replaced.
        Some(None) => KeyState::Unclear,
        Some(Some(probed)) => {
            let own = probed.members.iter().find(|(k, _)| k == key).map(|(_, location)| *location);
            let is_own_record = |e: &crate::memory::index::Entry| {
                e.ssd.is_some() && e.ssd == own && !core.is_hidden(e)
            };
            // With equal fingerprints an entry of a generation that was cleared since may be found.
            let entry = core
                .index
                .find(fingerprint)
                .find(|e| is_own_record(e) && probed.generation == Some(generation));
            match (entry, own, probed.kind) {
                (Some(entry), Some(location), Some(kind)) => KeyState::Present(PresentObject {
                    location: Location::Ssd(location),
                    length: probed.length,
                    kind,
                    is_invisible: !core.is_visible(&entry),
                    members: probed.members.iter().map(|(key, _)| *key).collect(),
                }),
                // It was removed since, or it was in memory when the header was requested.
                _ if may_be_on_ssd && !shared.config.constant_fingerprint() => KeyState::Unclear,
                _ => KeyState::Absent,
            }
        }
    }
}

/// Decide from the members that are present whether the group is present, new or in conflict.
fn classify_group(
    kind: PutKind<'_>,
    group: &[ObjectSize],
    found: &[Option<PresentObject>],
) -> Result<GroupState> {
    let mut given: Option<BTreeSet<ObjectKey>> = None;
    let mut same = true;
    let mut standalone_members = Vec::new();
    for (member, (object, found)) in group.iter().zip(found).enumerate() {
        let (ObjectSize { key, length, .. }, Some(found)) =
            (object, found.as_ref().filter(|f| !f.is_invisible))
        else {
            same = false;
            continue;
        };
        if let Some(length) = length.filter(|length| *length != found.length) {
            let present = found.length;
            let detail = format!(
                "key is present with another length key={key} present={present} given={length}"
            );
            return Err(Error::invalid(detail));
        }
        if kind == PutKind::Single {
            return Ok(GroupState::Present);
        }
        if found.kind == GroupKind::Single {
            same = false;
            standalone_members.push(StandaloneMember {
                member,
                length: found.length,
                location: found.location,
            });
            continue;
        }
        let attached = found.kind == GroupKind::Attached;
        let present: BTreeSet<ObjectKey> = found.members.iter().copied().collect();
        let given = given.get_or_insert_with(|| group.iter().map(|o| o.key).collect());
        if present != *given || attached != matches!(kind, PutKind::Attached(_)) {
            return Err(group_conflict(key, &found.members, group.iter().map(|o| &o.key)));
        }
    }
    if same { Ok(GroupState::Present) } else { Ok(GroupState::New(standalone_members)) }
}
