//! Groups of a batch that go through the steps of a put together, so that the lock is met once a run and not twice a page:
//! they are admitted in one section, copied without the lock, and made visible in the section in which the next run is
//! admitted.
//!
//! What one group of a batch does to the next stays as if each were put by itself: groups of the same page are never in one
//! run, and a group that finds no room is tried again behind those that were admitted before it.

use std::sync::Arc;

use pagelith_io::fused::{Copier, Stores};
use pagelith_tiers::policy::Recency;
use smallvec::SmallVec;

use super::{From, Group, Needs, PutBatch};
use crate::core::Core;
use crate::error::Error;
use crate::frames::FrameData;
use crate::outcome::PutOutcome;
use crate::put::admit::{Admission, admit};
use crate::put::copied::Copied;
use crate::put::fresh::{self, Fresh};
use crate::put::in_lane::{InLane, Making};
use crate::put::{self, Admitted, Leaving, Size, Stored};
use crate::shared::Shared;

/// Groups of a run: longer ones were no faster from a thread that has the lock to itself.
const GROUPS: usize = 4;
/// Of one behind which others had the lock: whoever comes to it finds what all of the core's own state has become, once a run.
const GROUPS_LONG: usize = 16;
/// Bytes of a run, unless its first group has more: memory that is set aside and not seen yet.
const BYTES: u64 = 1 << 20;
/// Bytes after which what was stored so far is handed to the flusher, so that a batch larger than the arena
/// makes progress.
const ENQUEUE_BYTES: u64 = 4 << 20;

/// A group of a run, by number.
struct Member {
    group: usize,
    sizes: SmallVec<[Size; 1]>,
    /// Nothing was known of it, when that was asked without the lock.
    fresh: Option<Fresh>,
}

/// A group that was admitted, on its way.
struct Copying {
    group: usize,
    adopts: Vec<bool>,
    bytes: u64,
    /// Or what was set aside, for a group that is no longer what was admitted.
    copied: Result<Copied, Box<Admitted>>,
}

/// What a session keeps from one run to the next, and from one batch to the next: lists, of which none holds anything of a store between two batches.
#[derive(Default)]
pub(crate) struct Runs {
    /// The run that is about to be admitted.
    next: Vec<Member>,
    /// Of it those that have memory, by number.
    admitted: Vec<(usize, Admitted)>,
    /// The run before.
    copied: Vec<Copying>,
    /// What those held that made room.
    retired: Vec<Arc<FrameData>>,
    leaving: Leaving,
    making: Making,
    /// Of the session.
    tally: usize,
    /// Others had the core's lock when it was asked for last.
    among_others: bool,
}

impl Runs {
    /// Of a session that counts so.
    pub fn of(tally: usize) -> Runs {
        // Those that begin side by side are to make room in different lanes.
        Runs { making: Making::from(tally), tally, ..Runs::default() }
    }
}

fn bytes(sizes: &[Size]) -> u64 {
    sizes.iter().filter_map(|size| size.length).sum()
}

impl PutBatch {
    /// Store what can be stored now, run by run, and hand it to the flusher.
    pub(super) fn try_runs(&mut self, shared: &Shared, runs: &mut Runs) {
        let mut from = 0;
        loop {
            let end = self.gather(shared, from, runs);
            if runs.next.is_empty() && runs.copied.is_empty() && self.frames.is_empty() {
                break;
            }
            self.look(shared, runs);
            let (copied, next) = (&runs.copied, &runs.next);
            let settled: SmallVec<[usize; 2 * GROUPS_LONG]> =
                copied.iter().map(|one| one.group).chain(next.iter().map(|one| one.group)).collect();
            from = self.turn(shared, runs, end);
            settled.into_iter().for_each(|group| self.settle_open(shared, group));
            let Runs { next, admitted, copied, retired, .. } = &mut *runs;
            let prepared = |(of, one): (usize, _)| self.prepare(shared, &next[of], one, retired);
            copied.extend(admitted.drain(..).map(prepared));
            retired.clear();
            self.copy(shared, copied);
        }
    }

    /// One section: what was copied becomes visible, and the next run is admitted. The first group that was not tried.
    fn turn(&mut self, shared: &Shared, runs: &mut Runs, end: usize) -> usize {
        if let Some(end) = self.turn_in_lane(shared, runs, end) {
            return end;
        }
        let Runs { copied, retired, among_others, .. } = &mut *runs;
        let fingerprints: SmallVec<[u128; GROUPS_LONG]> =
            copied.iter().filter_map(|one| one.copied.as_ref().ok()).flat_map(Copied::fingerprints).collect();
        let (mut core, others) = shared.lock_among_others();
        *among_others = others;
        let left = core.frames.retire_into(std::mem::take(retired));
        // What the look at them has brought into the cache has made room for the bytes meanwhile.
        core.index.prefetch_to_write(&fingerprints);
        self.publish(shared, &mut core, copied);
        let queued = self.is_to_enqueue(&runs.next);
        if queued {
            self.unqueued_bytes = 0;
            put::enqueue(&mut core, &mut self.frames);
        }
        let (end, full) = self.admit(shared, &mut core, runs, end);
        if shared.lanes.is_some() {
            core.frames.spare_numbers();
        }
        runs.retired = core.frames.retire_into(Vec::new());
        drop(core);
        drop(left);
        if queued || full {
            shared.work.raise();
        }
        end
    }

    /// The same beside others who put; `None` if something is left that takes the core.
    fn turn_in_lane(&mut self, shared: &Shared, runs: &mut Runs, end: usize) -> Option<usize> {
        let pin = crossbeam_epoch::pin();
        let Runs { next, admitted, copied, making, retired, among_others, tally, .. } = &mut *runs;
        let lanes = shared.lanes.as_ref()?;
        let fingerprints: SmallVec<[u128; GROUPS_LONG]> =
            copied.iter().filter_map(|one| one.copied.as_ref().ok()).flat_map(Copied::fingerprints).collect();
        lanes.index.prefetch(&fingerprints);
        let mut lane = InLane::enter(shared, lanes, &pin, copied.len(), fingerprints.len())?;
        *among_others = true;
        copied.retain_mut(|one| !self.publish_in_lane(&mut lane, making, one));
        lane.order(making);
        let queued = self.is_to_enqueue(next) && copied.is_empty();
        if queued {
            self.unqueued_bytes = 0;
            lane.section.enqueue(&mut self.frames);
        }
        let groups = next
            .iter_mut()
            .map(|member| (self.groups[member.group].kind(), &member.sizes[..], &mut member.fresh));
        let tried = match copied.is_empty() {
            true => lane.admit(groups, making, retired, |at, one| admitted.push((at, one))),
            false => 0,
        };
        shared.tallies.add_puts(*tally, lane.leave());
        admitted.iter_mut().for_each(|(_, one)| one.came = self.came);
        if queued {
            shared.work.raise();
        }
        match next.get(tried) {
            _ if !copied.is_empty() => None,
            None => Some(end),
            // What none of is admitted is for who has the core.
            Some(_) if tried == 0 => None,
            Some(next) => Some(next.group),
        }
    }

    /// Step 3 of a group, if it is plain.
    fn publish_in_lane(&mut self, lane: &mut InLane<'_>, making: &mut Making, one: &mut Copying) -> bool {
        let (at, group) = (self.at(one.group), &self.groups[one.group]);
        let Some(copied) = one.copied.as_mut().ok() else { return false };
        let Some(frame) = lane.publish(group.kind(), copied, at, making) else { return false };
        if lane.listeners.writes {
            self.frames.push(frame);
        }
        self.unqueued_bytes += one.bytes;
        let group = &mut self.groups[one.group];
        (group.takes_in, group.outcome) = (std::mem::take(&mut one.adopts), Some(Ok(PutOutcome::Stored)));
        true
    }

    /// Whether it is time to hand to the flusher what is visible.
    fn is_to_enqueue(&self, next: &[Member]) -> bool {
        (next.is_empty() || self.unqueued_bytes >= ENQUEUE_BYTES) && !self.frames.is_empty()
    }

    /// The next groups that can go together and that no rule refuses; the first group behind them.
    fn gather(&mut self, shared: &Shared, from: usize, runs: &mut Runs) -> usize {
        let most = if runs.among_others { GROUPS_LONG } else { GROUPS };
        let run = &mut runs.next;
        run.clear();
        let mut taken = 0;
        for i in from..self.groups.len() {
            let group = &mut self.groups[i];
            if group.outcome.is_some() {
                continue;
            }
            let open = matches!(group.from, From::Open(..));
            if run.len() == most || (open && !run.is_empty()) {
                return i;
            }
            let Some(sizes) = group.sizes(shared) else {
                group.outcome = Some(Err(crate::groups::gone()));
                continue;
            };
            if let Err(error) = shared.check_open().and_then(|()| put::check(shared, group.kind(), &sizes)) {
                group.outcome = Some(Err(error));
                self.settle_open(shared, i);
                continue;
            }
            taken += bytes(&sizes);
            let same_page = |other: &Member| other.sizes[0].key.same_page(&sizes[0].key);
            if !run.is_empty() && (taken > BYTES || run.iter().any(same_page)) {
                return i;
            }
            run.push(Member { group: i, sizes, fresh: None });
            if open {
                return i + 1;
            }
        }
        self.groups.len()
    }

    /// Ask without the lock whether anything is known of these groups. Of the pages of those that are about to become visible it is, soon.
    fn look(&self, shared: &Shared, runs: &mut Runs) {
        let Runs { next, copied, .. } = runs;
        let unseen = |member: &&mut Member| {
            let group = &self.groups[member.group];
            let page = &member.sizes[0].key;
            matches!(group.from, From::Lent(_))
                && group.probed.is_none()
                && group.adopted.is_empty()
                && !copied.iter().any(|one| self.groups[one.group].key(0).same_page(page))
        };
        let asked = next.iter_mut().filter(unseen).map(|member| (&member.sizes[..], &mut member.fresh));
        fresh::look(shared, &mut asked.collect::<SmallVec<[_; GROUPS_LONG]>>());
    }

    /// Step 1, of the next run: the first group that was not tried, and whether one found no memory. Not tried is one of the run if it found
    /// none behind one that did, or is behind one that something gives way to.
    fn admit(&mut self, shared: &Shared, core: &mut Core, runs: &mut Runs, end: usize) -> (usize, bool) {
        let Runs { next: run, admitted, leaving, .. } = runs;
        let (mut full, mut end) = (false, end);
        put::prefetch(core, run.len(), leaving);
        for (at, member) in run.iter_mut().enumerate() {
            let group = &mut self.groups[member.group];
            let adopted: Vec<_> = group.adopted.iter().map(|a| a.as_ref().map(|(at, _)| *at)).collect();
            let (kind, sizes) = (group.kind(), &member.sizes[..]);
            let fresh = member.fresh.take().and_then(|fresh| fresh.admit(shared, core, kind, sizes));
            let looked = || admit(shared, core, kind, sizes, group.probed.as_deref(), &adopted);
            match fresh.unwrap_or_else(looked) {
                Admission::Admitted(mut one) => {
                    let met = one.met_some();
                    one.came = self.came;
                    admitted.push((at, one));
                    if met {
                        // What it met here must still be there when it is published: nobody makes room before.
                        end = member.group + 1;
                        break;
                    }
                }
                Admission::NoRoom(_) if !admitted.is_empty() => {
                    end = member.group;
                    break;
                }
                Admission::NoRoom(bytes) => {
                    core.count_busy(sizes.iter().map(|size| &size.key), shared.now());
                    full = true;
                    let detail = format!("arena is full of pages in use bytes={bytes}");
                    group.outcome = Some(Err(Error::busy(detail)));
                }
                other => group.not_admitted(other, &sizes[0]),
            }
        }
        (end, full)
    }

    /// A group as it will be once it was copied.
    fn prepare(
        &mut self,
        shared: &Shared,
        of: &Member,
        mut admitted: Admitted,
        left: &mut Vec<Arc<FrameData>>,
    ) -> Copying {
        let at = self.at(of.group);
        let group = &mut self.groups[of.group];
        if let From::Open(id, _) = &group.from {
            admitted.open = Some(*id);
        }
        let adopts = admitted.adopts.clone();
        let copied = group.prepare(shared, admitted, at, left);
        Copying { group: of.group, adopts, bytes: bytes(&of.sizes), copied }
    }

    /// Step 2, of a run.
    fn copy(&self, shared: &Shared, run: &mut [Copying]) {
        let filling = |one| {
            let Copying { group, adopts, copied, .. }: &mut Copying = one;
            Some((&self.groups[*group], &adopts[..], copied.as_mut().ok()?.filling()?))
        };
        let mut filling: SmallVec<[_; GROUPS_LONG]> = run.iter_mut().filter_map(filling).collect();
        let mut copier = Copier::new(Stores::PastCache);
        for (group, adopts, filling) in &mut filling {
            filling.fill(&shared.memory, &mut copier, |member| group.bytes(adopts, member));
        }
    }

    /// Step 3.
    fn publish(&mut self, shared: &Shared, core: &mut Core, run: &mut Vec<Copying>) {
        for Copying { group, adopts, bytes, copied } in run.drain(..) {
            let outcome = match copied {
                Ok(copied) => self.publish_one(shared, core, group, &adopts, copied),
                Err(admitted) => {
                    admitted.give_back(core);
                    let first = self.groups[group].key(0);
                    Err(Error::busy(format!("the group changed while it was looked at key={first}")))
                }
            };
            self.unqueued_bytes += bytes;
            let group = &mut self.groups[group];
            (group.takes_in, group.outcome) = (adopts, Some(outcome));
        }
    }

    /// When a group is asked for.
    fn at(&self, number: usize) -> Recency {
        Recency { depth: self.at.depth.saturating_add(number as u32), ..self.at }
    }

    fn publish_one(
        &mut self,
        shared: &Shared,
        core: &mut Core,
        number: usize,
        adopts: &[bool],
        copied: Copied,
    ) -> crate::Result<PutOutcome> {
        let (group, at) = (&self.groups[number], self.at(number));
        match put::publish::publish(shared, core, group.kind(), copied, at) {
            Stored::Done(outcome, frames) => {
                self.frames.extend(frames);
                Ok(outcome)
            }
            Stored::Back(error, members) => {
                group.take_back(core, adopts, members);
                Err(error)
            }
        }
    }
}

impl Group {
    /// What becomes of a group that has no memory of its own after admission.
    fn not_admitted(&mut self, admission: Admission, first: &Size) {
        // What was asked for once and did not come is not asked for again.
        let in_vain =
            || Err(Error::busy(format!("an object changed while it was looked at key={}", first.key)));
        match admission {
            Admission::Settled(outcome) => self.outcome = Some(outcome),
            Admission::Incomplete => self.outcome = Some(Ok(PutOutcome::Waiting)),
            Admission::Doubtful(_) if self.probed.is_some() => self.outcome = Some(in_vain()),
            Admission::Doubtful(members) => self.needs = Needs::Headers(members),
            Admission::Adopt(_) if self.asked => self.outcome = Some(in_vain()),
            Admission::Adopt(members) => (self.needs, self.asked) = (Needs::Objects(members), true),
            Admission::Admitted(_) | Admission::NoRoom(_) => {}
        }
    }
}
