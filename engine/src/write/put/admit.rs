//! Step 1 of a put: what of the group is here already, and memory for what is not.

use std::borrow::Cow;
use std::collections::BTreeSet;

use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;

use super::{Admitted, At, Came, Kind, Room, Size, expire};
use crate::api::error::{Error, Result};
use crate::api::outcome::PutOutcome;
use crate::memory::visibility::VisibilityFilter;
use crate::read::get::Probed;
use crate::state::core::Core;
use crate::state::shared::Shared;

/// An object that is here by itself, and is to be read so that it can be stored with its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone {
    /// Which member of the group.
    pub member: usize,
    /// Length in bytes.
    pub length: u64,
    /// Where it is: what is read from elsewhere is not it.
    pub at: At,
}

/// What is known of a group before its bytes are looked at.
pub(crate) enum Admission {
    /// Nothing more to do.
    Settled(Result<PutOutcome>),
    /// Some members may be on SSD: an entry has their fingerprint, and only the header there can tell whether
    /// it is their key. By member.
    Doubtful(Vec<usize>),
    /// Some members are here by themselves: their bytes are to be the group's.
    Adopt(Vec<Alone>),
    /// Objects are missing that were never put.
    Incomplete,
    /// There is no memory for so many bytes now.
    NoRoom(u64),
    /// Memory is set aside.
    Admitted(Admitted),
}

/// An object that is here already.
struct Found {
    at: At,
    length: u64,
    kind: GroupKind,
    /// It is attached to a base that is not here: nobody sees it, and a put takes its place.
    hidden: bool,
    /// The keys of all objects that lie with it, its own among them.
    with: Vec<ObjectKey>,
}

/// What is known of an object.
enum Known {
    Absent,
    Here(Found),
    /// Only a look at its header on SSD can tell.
    Doubtful,
    /// That look was in vain, or is no longer true.
    Unclear,
}

/// What the members that are here make of the group.
enum Judged {
    /// Each is here, as this group.
    Present,
    /// Nothing of it stands in the way, but these are here by themselves.
    New(Vec<Alone>),
}

/// `probed` tells of each member what its header on SSD said, once that was asked for; `adopted`, if it has a
/// word of a member, from where its bytes were read when it was here by itself.
pub(crate) fn admit(
    shared: &Shared,
    core: &mut Core,
    kind: Kind<'_>,
    group: &[Size],
    probed: Option<&[Option<Probed>]>,
    adopted: &[Option<At>],
) -> Admission {
    let generation = core.generation(group[0].key.namespace());
    let fingerprints: Vec<u128> = group.iter().map(|o| shared.fingerprint(&o.key, generation)).collect();
    let mut found = Vec::with_capacity(group.len());
    let mut doubtful = Vec::new();
    for (i, (object, fp)) in group.iter().zip(&fingerprints).enumerate() {
        match known(shared, core, &object.key, *fp, probed.map(|p| p[i].as_ref())) {
            Known::Absent => found.push(None),
            Known::Here(here) => found.push(Some(here)),
            Known::Doubtful => {
                doubtful.push(i);
                found.push(None);
            }
            Known::Unclear => {
                core.count_busy(group.iter().map(|o| &o.key), shared.now());
                let key = object.key;
                let detail = format!("key may be present, its header was not read in time key={key}");
                return Admission::Settled(Err(Error::busy(detail)));
            }
        }
    }
    if !doubtful.is_empty() {
        return Admission::Doubtful(doubtful);
    }
    let judged = core.waiting.check_overlap(kind, group).and_then(|()| judge(kind, group, &found));
    let alone = match judged {
        Err(error) => return Admission::Settled(Err(error)),
        Ok(Judged::Present) => {
            core.counters.puts_present += group.len() as u64;
            return Admission::Settled(Ok(PutOutcome::AlreadyPresent));
        }
        Ok(Judged::New(alone)) => alone,
    };
    let is_alone = |i: usize| alone.iter().find(|a| a.member == i);
    if group.iter().enumerate().any(|(i, object)| object.length.is_none() && is_alone(i).is_none()) {
        return Admission::Incomplete;
    }
    let was_read = |a: &Alone| adopted.get(a.member).copied().flatten() == Some(a.at);
    if !alone.iter().all(was_read) {
        return Admission::Adopt(alone.into_iter().filter(|a| !was_read(a)).collect());
    }
    let mut sizes = Cow::Borrowed(group);
    let mut adopts = Vec::new();
    if !alone.is_empty() {
        adopts.resize(group.len(), false);
        for a in &alone {
            adopts[a.member] = true;
            let object = &mut sizes.to_mut()[a.member];
            (object.length, object.in_arena) = (Some(a.length), false);
        }
        // What was not put by its writer is known only now.
        let lengths: Vec<u64> = sizes.iter().filter_map(|o| o.length).collect();
        if let Err(error) = super::check_bytes(shared, &group[0].key, &lengths) {
            return Admission::Settled(Err(error));
        }
    }
    let room = Room::of(sizes.len());
    let mut admission = memory(shared, core, (generation, fingerprints), &sizes, room);
    if let Admission::Admitted(admitted) = &mut admission {
        if found.iter().any(Option::is_some) {
            admitted.here = found.iter().map(|f| f.as_ref().map(|f| f.at)).collect();
        }
        admitted.adopts = adopts;
    }
    admission
}

/// Memory for a group of which nothing is here, and what its objects are known by in this generation.
pub(crate) fn memory(
    shared: &Shared,
    core: &mut Core,
    (generation, fingerprints): (Generation, Vec<u128>),
    group: &[Size],
    mut room: Room,
) -> Admission {
    let mut set_aside = |core: &mut Core| super::set_aside(core, group, &mut room);
    let enough = set_aside(core) || {
        expire(shared, core);
        set_aside(core)
    };
    if !enough {
        return Admission::NoRoom(group.iter().filter_map(|o| o.length).sum());
    }
    let (here, adopts, open, came) = (Vec::new(), Vec::new(), None, Came::Put);
    Admission::Admitted(Admitted { generation, fingerprints, room, here, adopts, open, came })
}

/// What is known of one object; `probed` is the outer `None` before its header was asked for.
fn known(
    shared: &Shared,
    core: &Core,
    key: &ObjectKey,
    fingerprint: u128,
    probed: Option<Option<&Probed>>,
) -> Known {
    let generation = core.generation(key.namespace());
    if let Some((id, member)) = core.find_memory(key, fingerprint, generation) {
        let Some(frame) = core.frames.get(id.id) else { return Known::Unclear };
        let seen = core.index.find(fingerprint).any(|e| e.frame == Some(id.id.0) && core.is_visible(&e));
        return Known::Here(Found {
            at: At::Frame(id),
            length: frame.data.members[member].extent.bytes,
            kind: frame.data.group_kind,
            hidden: !seen,
            with: frame.data.members.iter().map(|m| m.key).collect(),
        });
    }
    let may_be_on_ssd = !core.find_ssd(fingerprint).is_empty();
    match probed {
        None if may_be_on_ssd => Known::Doubtful,
        None => Known::Absent,
        // What is on SSD with its fingerprint was looked at, and is another's.
        Some(None) if shared.config.constant_fingerprint() || !may_be_on_ssd => Known::Absent,
        // The look at its header was late, or it was written meanwhile: not to be replaced.
        Some(None) => Known::Unclear,
        Some(Some(probed)) => {
            let own = probed.siblings.iter().find(|(k, _)| k == key).map(|(_, place)| *place);
            let lies =
                |e: &crate::memory::index::Entry| e.ssd.is_some() && e.ssd == own && !core.is_hidden(e);
            // With equal fingerprints an entry is found also of a generation that was cleared since.
            let entry =
                core.index.find(fingerprint).find(|e| lies(e) && probed.generation == Some(generation));
            match (entry, own, probed.kind) {
                (Some(entry), Some(place), Some(kind)) => Known::Here(Found {
                    at: At::Ssd(place),
                    length: probed.length,
                    kind,
                    hidden: !core.is_visible(&entry),
                    with: probed.siblings.iter().map(|(key, _)| *key).collect(),
                }),
                // It has left since, or it was in memory then.
                _ if may_be_on_ssd && !shared.config.constant_fingerprint() => Known::Unclear,
                _ => Known::Absent,
            }
        }
    }
}

/// What those of the group that are here mean for it.
fn judge(kind: Kind<'_>, group: &[Size], found: &[Option<Found>]) -> Result<Judged> {
    let mut own: Option<BTreeSet<ObjectKey>> = None;
    let mut same = true;
    let mut alone = Vec::new();
    for (member, (object, found)) in group.iter().zip(found).enumerate() {
        let (Size { key, length, .. }, Some(found)) = (object, found.as_ref().filter(|f| !f.hidden)) else {
            same = false;
            continue;
        };
        if let Some(length) = length.filter(|length| *length != found.length) {
            let known = found.length;
            let detail =
                format!("key is present with another length key={key} present={known} given={length}");
            return Err(Error::invalid(detail));
        }
        if kind == Kind::Single {
            return Ok(Judged::Present);
        }
        if found.kind == GroupKind::Single {
            same = false;
            alone.push(Alone { member, length: found.length, at: found.at });
            continue;
        }
        let attached = found.kind == GroupKind::Attached;
        let others: BTreeSet<ObjectKey> = found.with.iter().copied().collect();
        let own = own.get_or_insert_with(|| group.iter().map(|o| o.key).collect());
        if others != *own || attached != matches!(kind, Kind::Attached(_)) {
            return Err(two_groups(key, &found.with, group.iter().map(|o| &o.key)));
        }
    }
    if same { Ok(Judged::Present) } else { Ok(Judged::New(alone)) }
}

/// The error for an object that is of one group and is put with another.
pub(crate) fn two_groups<'a>(
    key: &ObjectKey,
    has: &[ObjectKey],
    given: impl Iterator<Item = &'a ObjectKey>,
) -> Error {
    let (has, given) = (names(has.iter()), names(given));
    Error::invalid(format!("an object is in a group of other objects key={key} has={has} given={given}"))
}

/// Pool, component and shard of each key.
fn names<'a>(keys: impl Iterator<Item = &'a ObjectKey>) -> String {
    let name = |key: &ObjectKey| {
        let text = key.to_string();
        text.splitn(3, '/').nth(2).unwrap_or_default().to_owned()
    };
    keys.map(name).collect::<Vec<_>>().join(",")
}
