//! Groups that are not visible yet: base groups that are not committed, and attached groups whose
//! base is absent. Their objects are in the arena, in no frame and no index entry, until the group
//! is committed, its base is published, or its deadline passes. Guarded by the core's lock.
//!
//! Invariants:
//! - `bytes` is the sum of the padded bytes of all members' extents.
//! - `required` counts the required objects of all uncommitted groups, at most [`REQUIRED_MAX`].
//! - `earliest` is not after the deadline of any group.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::{Generation, NamespaceId, PrefixHash};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::MEMBERS_MAX;
use pagelith_tiers::policy::Recency;

use crate::api::error::{Error, Result};
use crate::memory::departed::Departure;
use crate::memory::frames::{FrameMember, Members};
use crate::state::core::Core;
use crate::state::put_spec::{Location, ObjectSize, PutKind, group_conflict};

/// Limit of objects that all open groups require together; each takes about 350 bytes of memory.
pub(crate) const REQUIRED_MAX: usize = 65_536;

/// Limit of attached groups that wait for a base on one page.
pub(crate) const ATTACHED_OF_PAGE_MAX: usize = MEMBERS_MAX;

type Page = (NamespaceId, PrefixHash);

fn page_of(key: &ObjectKey) -> Page {
    (key.namespace(), key.hash())
}

/// An attached group whose base is absent.
#[derive(Debug)]
pub(crate) struct AttachedGroup {
    pub base: ObjectKey,
    pub generation: Generation,
    pub at: Recency,
    pub members: Members,
    /// Locations of those members that were present when the group was put.
    pub existing: Vec<Option<Location>>,
}

impl AttachedGroup {
    fn bytes(&self) -> u64 {
        self.members.iter().map(|m| m.extent.padded_bytes()).sum()
    }
}

/// State of a required object of an open group.
#[derive(Debug)]
pub(crate) enum MemberState {
    /// Not put yet.
    Empty,
    /// Being copied by a caller; its length in bytes.
    Filling(u64),
    Filled(FrameMember),
    /// Taken by the commit in progress; its extent's bytes and padded bytes.
    Taken {
        length: u64,
        padded: u64,
    },
}

impl MemberState {
    /// Length of the object in bytes, if it was put or is being put.
    pub fn length(&self) -> Option<u64> {
        match self {
            MemberState::Empty => None,
            MemberState::Filling(length) => Some(*length),
            MemberState::Filled(member) => Some(member.extent.bytes),
            MemberState::Taken { length, .. } => Some(*length),
        }
    }

    /// Arena bytes that it takes.
    fn padded(&self) -> u64 {
        match self {
            MemberState::Filled(member) => member.extent.padded_bytes(),
            MemberState::Taken { padded, .. } => *padded,
            MemberState::Empty | MemberState::Filling(_) => 0,
        }
    }
}

/// A base group that was begun and is not committed: an open group.
#[derive(Debug)]
pub(crate) struct UncommittedGroup {
    /// Its objects, in the order of their storage on SSD.
    pub required: Arc<[ObjectKey]>,
    pub members: Vec<MemberState>,
    pub generation: Generation,
    pub at: Recency,
    deadline: Mono,
    /// Links that joined it. When the last of them ends, the group is dropped, unless
    /// `joined_locally`.
    links: u32,
    /// A caller in this process joined it.
    joined_locally: bool,
    /// A commit is in progress.
    pub committing: bool,
    /// Objects were removed while the commit in progress had taken them.
    pub lost_members: bool,
}

impl UncommittedGroup {
    fn requires_exactly(&self, keys: &[ObjectKey]) -> bool {
        self.required.len() == keys.len() && keys.iter().all(|k| self.required.contains(k))
    }

    /// Arena bytes of the objects that were put.
    pub fn bytes(&self) -> u64 {
        self.members.iter().map(MemberState::padded).sum()
    }

    /// Length of object `i` in bytes, if it was put and is not taken by a commit.
    pub fn filled(&self, i: usize) -> Option<u64> {
        match self.members.get(i)? {
            MemberState::Filled(member) => Some(member.extent.bytes),
            MemberState::Empty | MemberState::Filling(_) | MemberState::Taken { .. } => None,
        }
    }

    /// Whether object `i` was put.
    pub fn is_put(&self, i: usize) -> bool {
        self.members.get(i).is_some_and(|member_state| {
            matches!(member_state, MemberState::Filled(_) | MemberState::Taken { .. })
        })
    }

    /// Take object `i` for a commit.
    pub fn take_member(&mut self, i: usize) -> Option<FrameMember> {
        let member_state = self.members.get_mut(i)?;
        let MemberState::Filled(member) = std::mem::replace(member_state, MemberState::Empty)
        else {
            return None;
        };
        *member_state = MemberState::Taken {
            length: member.extent.bytes,
            padded: member.extent.padded_bytes(),
        };
        Some(member)
    }

    /// Undo [`UncommittedGroup::take_member`]. A member that was removed meanwhile is returned, and
    /// the caller must free it.
    pub fn restore_member(&mut self, member: FrameMember) -> Option<FrameMember> {
        let at = self.required.iter().position(|key| *key == member.key);
        match at.and_then(|at| self.members.get_mut(at)) {
            Some(member_state @ MemberState::Taken { .. }) => {
                *member_state = MemberState::Filled(member);
                None
            }
            Some(MemberState::Empty | MemberState::Filling(_) | MemberState::Filled(_)) | None => {
                Some(member)
            }
        }
    }

    /// Remove an object that was put. The caller must free the returned member; a taken member is
    /// freed by the commit that took it.
    fn remove_member(&mut self, key: &ObjectKey) -> Option<FrameMember> {
        let at = self.required.iter().position(|k| k == key)?;
        let member_state = self.members.get_mut(at)?;
        match std::mem::replace(member_state, MemberState::Empty) {
            MemberState::Filled(member) => Some(member),
            MemberState::Taken { .. } => {
                self.lost_members = true;
                None
            }
            other @ (MemberState::Empty | MemberState::Filling(_)) => {
                *member_state = other;
                None
            }
        }
    }

    /// Whether a commit has taken objects.
    fn has_taken(&self) -> bool {
        self.members.iter().any(|member_state| matches!(member_state, MemberState::Taken { .. }))
    }

    /// Lengths of the objects that were put or are being put.
    pub fn lengths(&self) -> Vec<u64> {
        self.members.iter().filter_map(MemberState::length).collect()
    }

    fn into_members(self) -> impl Iterator<Item = FrameMember> {
        self.members.into_iter().filter_map(|member_state| match member_state {
            MemberState::Filled(member) => Some(member),
            MemberState::Empty | MemberState::Filling(_) | MemberState::Taken { .. } => None,
        })
    }
}

/// All pending groups. The maps are ordered, so that groups dropped together free their memory in
/// the same order in every run.
#[derive(Debug, Default)]
pub(crate) struct PendingGroups {
    open: BTreeMap<u64, UncommittedGroup>,
    open_of: BTreeMap<Page, Vec<u64>>,
    attached: BTreeMap<Page, Vec<(Mono, AttachedGroup)>>,
    next_id: u64,
    bytes: u64,
    /// Objects that all open groups require.
    required: usize,
    /// No deadline is earlier.
    earliest: Mono,
}

impl PendingGroups {
    /// Join the open group of exactly these objects, or begin it. Returns its ID and its objects in
    /// the group's order.
    pub fn join(
        &mut self,
        required: &[ObjectKey],
        generation: Generation,
        at: Recency,
        deadline: Mono,
        over_link: bool,
    ) -> Result<(u64, Arc<[ObjectKey]>)> {
        self.check_overlap_of(required)?;
        let page = page_of(&required[0]);
        let ids = self.open_of.get(&page).into_iter().flatten();
        let found =
            ids.copied().find(|id| self.open.get(id).is_some_and(|g| g.requires_exactly(required)));
        if let Some((id, group)) = found.and_then(|id| Some((id, self.open.get_mut(&id)?))) {
            group.links += u32::from(over_link);
            group.joined_locally |= !over_link;
            return Ok((id, group.required.clone()));
        }
        let objects = self.required + required.len();
        if objects > REQUIRED_MAX {
            let detail = format!(
                "open groups require too many objects objects={objects} max={REQUIRED_MAX}"
            );
            return Err(Error::busy(detail));
        }
        self.next_id += 1;
        self.required = objects;
        self.note_deadline(deadline);
        let members = required.iter().map(|_| MemberState::Empty).collect();
        let required: Arc<[ObjectKey]> = required.into();
        let group = UncommittedGroup {
            required: required.clone(),
            members,
            generation,
            at,
            deadline,
            links: u32::from(over_link),
            joined_locally: !over_link,
            committing: false,
            lost_members: false,
        };
        self.open.insert(self.next_id, group);
        self.open_of.entry(page).or_default().push(self.next_id);
        Ok((self.next_id, required))
    }

    /// A link that joined the group has ended. If none is left, the group expires now.
    fn release_link(&mut self, id: u64) {
        let Some(open) = self.open.get_mut(&id) else { return };
        open.links = open.links.saturating_sub(1);
        if open.links == 0 && !open.joined_locally {
            open.deadline = Mono::default();
            self.earliest = Mono::default();
        }
    }

    /// Add a deadline to `earliest`.
    fn note_deadline(&mut self, deadline: Mono) {
        let none = self.open.is_empty() && self.attached.is_empty();
        self.earliest = if none { deadline } else { self.earliest.min(deadline) };
    }

    /// An error if an open group with another set of objects requires one of these.
    pub fn check_overlap(&self, kind: PutKind<'_>, group: &[ObjectSize]) -> Result<()> {
        match kind {
            PutKind::Single => Ok(()),
            _ if self.open.is_empty() => Ok(()),
            PutKind::Base | PutKind::Attached(_) => {
                self.check_overlap_of(&group.iter().map(|o| o.key).collect::<Vec<_>>())
            }
        }
    }

    fn check_overlap_of(&self, keys: &[ObjectKey]) -> Result<()> {
        let Some(first) = keys.first() else { return Ok(()) };
        for id in self.open_of.get(&page_of(first)).into_iter().flatten() {
            let Some(open) = self.open.get(id).filter(|g| !g.requires_exactly(keys)) else {
                continue;
            };
            if let Some(key) = keys.iter().find(|k| open.required.contains(k)) {
                return Err(group_conflict(key, &open.required, keys.iter()));
            }
        }
        Ok(())
    }

    /// An open group.
    pub fn get(&self, id: u64) -> Option<&UncommittedGroup> {
        self.open.get(&id)
    }

    /// As [`PendingGroups::get`]. The caller must report changed members with
    /// [`PendingGroups::add_bytes`].
    pub fn get_mut(&mut self, id: u64) -> Option<&mut UncommittedGroup> {
        self.open.get_mut(&id)
    }

    /// Add `added` padded bytes to `bytes` and subtract `removed`.
    pub fn add_bytes(&mut self, added: u64, removed: u64) {
        self.bytes = (self.bytes + added).saturating_sub(removed);
    }

    /// Arena bytes of all members.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Remove an open group. The caller owns its members.
    pub fn take(&mut self, id: u64) -> Option<UncommittedGroup> {
        let group = self.open.remove(&id)?;
        self.required -= group.required.len();
        let page = page_of(&group.required[0]);
        if let Some(ids) = self.open_of.get_mut(&page) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.open_of.remove(&page);
            }
        }
        self.add_bytes(0, group.bytes());
        Some(group)
    }

    /// Keep an attached group until its base is published, or until the deadline.
    pub fn add_attached(&mut self, attached: AttachedGroup, deadline: Mono) {
        self.add_bytes(attached.bytes(), 0);
        self.note_deadline(deadline);
        self.attached.entry(page_of(&attached.base)).or_default().push((deadline, attached));
    }

    /// Whether a pending group attaches exactly these objects to this base.
    pub fn contains_attached(&self, base: &ObjectKey, members: &[FrameMember]) -> bool {
        let groups = self.attached.get(&page_of(base)).into_iter().flatten();
        let holds = |a: &AttachedGroup, m: &FrameMember| a.members.iter().any(|n| n.key == m.key);
        groups
            .filter(|(_, a)| a.base == *base && a.members.len() == members.len())
            .any(|(_, a)| members.iter().all(|m| holds(a, m)))
    }

    /// An error if as many groups wait for a base on this page as may: each put and each lookup of
    /// an absent object searches them.
    pub fn check_page(&self, base: &ObjectKey) -> Result<()> {
        match self.attached.get(&page_of(base)).is_some_and(|g| g.len() >= ATTACHED_OF_PAGE_MAX) {
            true => Err(Error::busy(format!(
                "too many attached groups wait for a base on this page; put the base first \
                 max={ATTACHED_OF_PAGE_MAX} base={base}"
            ))),
            false => Ok(()),
        }
    }

    /// Whether any attached group is pending.
    pub fn has_attached(&self) -> bool {
        !self.attached.is_empty()
    }

    /// Take the groups attached to one of these objects, which are of one page.
    pub fn take_attached(&mut self, keys: &[ObjectKey]) -> Vec<AttachedGroup> {
        let Some(page) = keys.first().map(page_of) else { return Vec::new() };
        let Some(all) = self.attached.remove(&page) else { return Vec::new() };
        let (taken, rest): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, a)| keys.contains(&a.base));
        if !rest.is_empty() {
            self.attached.insert(page, rest);
        }
        let taken: Vec<AttachedGroup> = taken.into_iter().map(|(_, a)| a).collect();
        self.add_bytes(0, taken.iter().map(AttachedGroup::bytes).sum());
        taken
    }

    /// Whether a commit has taken objects of this namespace, which are not visible yet.
    pub fn is_committing_in(&self, namespace: NamespaceId) -> bool {
        let of = |g: &UncommittedGroup| {
            g.required.first().is_some_and(|key| key.namespace() == namespace)
        };
        self.open.values().any(|group| group.has_taken() && of(group))
    }

    /// Remove every group for which `drops` is true, given its page, deadline and generation. The
    /// caller owns the members. A group with taken members stays.
    fn take_where(&mut self, drops: impl Fn(Page, Mono, Generation) -> bool) -> Vec<Members> {
        let due = |(id, g): (&u64, &UncommittedGroup)| {
            (!g.has_taken() && drops(page_of(&g.required[0]), g.deadline, g.generation))
                .then_some(*id)
        };
        let ids: Vec<u64> = self.open.iter().filter_map(due).collect();
        let mut out: Vec<Members> = ids
            .into_iter()
            .filter_map(|id| self.take(id))
            .map(|g| g.into_members().collect())
            .collect();
        let mut bytes = 0;
        for (page, groups) in &mut self.attached {
            groups.retain_mut(|(deadline, a)| {
                let due = drops(*page, *deadline, a.generation);
                if due {
                    bytes += a.bytes();
                    out.push(std::mem::take(&mut a.members));
                }
                !due
            });
        }
        self.attached.retain(|_, groups| !groups.is_empty());
        self.add_bytes(0, bytes);
        let open = self.open.values().map(|g| g.deadline);
        let attached = self.attached.values().flatten().map(|(deadline, _)| *deadline);
        self.earliest = open.chain(attached).min().unwrap_or(Mono(u64::MAX));
        out
    }

    /// Remove the removed objects from open groups, and the attached groups that have such an
    /// object or base. The caller owns the members.
    fn take_removed(&mut self, gone: &BTreeSet<ObjectKey>) -> Vec<FrameMember> {
        let mut out = Vec::new();
        let mut freed = 0;
        let pages: BTreeSet<Page> = gone.iter().map(page_of).collect();
        for page in pages {
            for id in self.open_of.get(&page).cloned().unwrap_or_default() {
                let Some(open) = self.open.get_mut(&id) else { continue };
                let before = open.bytes();
                out.extend(gone.iter().filter_map(|key| open.remove_member(key)));
                freed += before - open.bytes();
            }
            let Some(groups) = self.attached.get_mut(&page) else { continue };
            groups.retain_mut(|(_, a)| {
                let is_removed =
                    gone.contains(&a.base) || a.members.iter().any(|m| gone.contains(&m.key));
                if is_removed {
                    freed += a.bytes();
                    out.extend(a.members.drain(..));
                }
                !is_removed
            });
            if groups.is_empty() {
                self.attached.remove(&page);
            }
        }
        self.add_bytes(0, freed);
        out
    }

    /// Whether no group is pending.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.attached.is_empty()
    }

    /// Whether a pending group has or requires this object.
    pub fn contains(&self, key: &ObjectKey) -> bool {
        let page = page_of(key);
        let open = self.open_of.get(&page).into_iter().flatten();
        let mut open = open.filter_map(|id| self.open.get(id));
        let mut attached = self.attached.get(&page).into_iter().flatten();
        open.any(|group| group.required.contains(key))
            || attached.any(|(_, group)| group.members.iter().any(|m| m.key == *key))
    }

    /// Number of open and attached groups.
    pub fn len(&self) -> u64 {
        (self.open.len() + self.attached.values().map(Vec::len).sum::<usize>()) as u64
    }
}

impl Core {
    /// Close an open group and free its members.
    pub fn close_group(&mut self, id: u64) {
        let group = self.pending_groups.take(id);
        self.free_members(group.map(|g| g.into_members().collect()).into_iter().collect());
    }

    /// An error if `bytes` more would exceed the limit, half of the arena. The oldest open group is
    /// exempt, so that at least one group becomes complete. An attached group (`group` is `None`)
    /// is exempt if nothing is pending.
    pub fn check_pending_capacity(
        &mut self,
        now: Mono,
        group: Option<u64>,
        bytes: u64,
    ) -> Result<()> {
        let max = self.dram.space.capacity_bytes() / 2;
        let full = |core: &Core| {
            let exempt = match group {
                Some(id) => core.pending_groups.open.keys().next() == Some(&id),
                None => core.pending_groups.bytes() == 0,
            };
            !exempt && core.pending_groups.bytes() + bytes > max
        };
        if full(self) {
            self.drop_expired_groups(now);
        }
        if !full(self) {
            return Ok(());
        }
        let waiting = self.pending_groups.bytes();
        let detail = format!(
            "incomplete groups use too much memory waiting={waiting} bytes={bytes} max={max}"
        );
        Err(Error::busy(detail))
    }

    /// Drop and count the groups whose deadline has passed.
    pub fn drop_expired_groups(&mut self, now: Mono) {
        if now < self.pending_groups.earliest {
            return;
        }
        let dropped = self.pending_groups.take_where(|_, deadline, _| deadline <= now);
        self.counters.groups_dropped += dropped.len() as u64;
        let members = dropped.iter().flatten();
        members.for_each(|m| self.departed.note(m.fingerprint, Departure::Incomplete));
        self.free_members(dropped);
    }

    /// A link that joined these groups has ended. Groups that nothing else joined are dropped and
    /// counted; a group that is being committed is dropped once the commit has failed.
    pub fn release_group_links(&mut self, ids: impl Iterator<Item = u64>, now: Mono) {
        ids.for_each(|id| self.pending_groups.release_link(id));
        self.drop_expired_groups(now);
    }

    /// Drop and count all pending groups: the store is closing.
    pub fn drop_pending_groups(&mut self) {
        let dropped = self.pending_groups.take_where(|_, _, _| true);
        self.counters.groups_dropped += dropped.len() as u64;
        let members = dropped.iter().flatten();
        members.for_each(|m| self.departed.note(m.fingerprint, Departure::Incomplete));
        self.free_members(dropped);
    }

    /// Free pending objects that were removed, and groups attached to removed bases.
    pub fn remove_from_pending_groups(&mut self, gone: &BTreeSet<ObjectKey>) {
        let members = self.pending_groups.take_removed(gone);
        self.free_members(vec![members.into()]);
    }

    /// Drop the pending groups of a cleared namespace.
    pub fn clear_pending_groups(&mut self, namespace: NamespaceId) {
        let dropped = self.pending_groups.take_where(|(ns, _), _, _| ns == namespace);
        self.free_members(dropped);
    }

    fn free_members(&mut self, groups: Vec<Members>) {
        groups.into_iter().flatten().for_each(|m| self.dram.space.free(m.extent));
    }
}
