//! Groups of a batch that go through the steps of a put together, so that the lock is met once a run and not twice a page:
//! they are admitted in one section, copied without the lock, and made visible in the section in which the next run is
//! admitted.
//!
//! What one group of a batch does to the next stays as if each were put by itself: groups of the same page are never in one
//! run, and a group that finds no room is tried again behind those that were admitted before it.

use pagelith_io::fused::{Copier, Stores};
use pagelith_tiers::policy::Recency;

use super::{From, Group, Needs, PutBatch};
use crate::api::error::Error;
use crate::api::outcome::PutOutcome;
use crate::state::core::Core;
use crate::state::shared::Shared;
use crate::write::put;
use crate::write::put::admit::{Admission, admit};
use crate::write::put::copied::CopiedGroup;
use crate::write::put::new_keys;
use crate::write::put::new_keys::NewKeys;
use crate::write::put::{Admitted, Size, Stored};

/// Groups of a run. Sixteen were slower than four from one thread.
const GROUPS: usize = 4;
/// Bytes of a run, unless its first group has more: memory that is set aside and not seen yet.
const BYTES: u64 = 1 << 20;
/// Bytes after which what was stored so far is handed to the flusher, so that a batch larger than the arena
/// makes progress.
const ENQUEUE_BYTES: u64 = 4 << 20;

/// A group of a run, by number.
struct Member {
    group: usize,
    sizes: Vec<Size>,
    /// Nothing was known of it, when that was asked without the lock.
    fresh: Option<NewKeys>,
}

/// A group that was admitted, on its way.
struct Copying {
    group: usize,
    adopts: Vec<bool>,
    bytes: u64,
    /// Or what was set aside, for a group that is no longer what was admitted.
    copied: Result<CopiedGroup, Box<Admitted>>,
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
}

fn bytes(sizes: &[Size]) -> u64 {
    sizes.iter().filter_map(|size| size.length).sum()
}

impl PutBatch {
    /// Store what can be stored now, run by run, and hand it to the flusher.
    pub(crate) fn try_runs(&mut self, shared: &Shared, runs: &mut Runs) {
        let mut from = 0;
        loop {
            let end = self.gather(shared, from, runs);
            if runs.next.is_empty() && runs.copied.is_empty() && self.frames.is_empty() {
                break;
            }
            self.look(shared, runs);
            let (copied, next) = (&runs.copied, &runs.next);
            let settled: Vec<usize> =
                copied.iter().map(|one| one.group).chain(next.iter().map(|one| one.group)).collect();
            from = self.turn(shared, runs, end);
            settled.into_iter().for_each(|group| self.settle_open(shared, group));
            let Runs { next, admitted, copied, .. } = &mut *runs;
            let prepared = |(of, one): (usize, _)| self.prepare(shared, &next[of], one);
            copied.extend(admitted.drain(..).map(prepared));
            self.copy(shared, copied);
        }
    }

    /// One section: what was copied becomes visible, and the next run is admitted. The first group that was not tried.
    fn turn(&mut self, shared: &Shared, runs: &mut Runs, end: usize) -> usize {
        let mut core = shared.lock();
        self.publish(shared, &mut core, &mut runs.copied);
        let queued =
            (runs.next.is_empty() || self.unqueued_bytes >= ENQUEUE_BYTES) && !self.frames.is_empty();
        if queued {
            self.unqueued_bytes = 0;
            put::enqueue(&mut core, &mut self.frames);
        }
        let (end, full) = self.admit(shared, &mut core, runs, end);
        drop(core);
        if queued || full {
            shared.work.raise();
        }
        end
    }

    /// The next groups that can go together and that no rule refuses; the first group behind them.
    fn gather(&mut self, shared: &Shared, from: usize, runs: &mut Runs) -> usize {
        let run = &mut runs.next;
        run.clear();
        let mut taken = 0;
        for i in from..self.groups.len() {
            let group = &mut self.groups[i];
            if group.outcome.is_some() {
                continue;
            }
            let open = matches!(group.from, From::Open(..));
            if run.len() == GROUPS || (open && !run.is_empty()) {
                return i;
            }
            let Some(sizes) = group.sizes(shared) else {
                group.outcome = Some(Err(crate::write::groups::gone()));
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
        new_keys::find_new(shared, &mut asked.collect::<Vec<_>>());
    }

    /// Step 1, of the next run: the first group that was not tried, and whether one found no memory. Not tried is one of the run if it found
    /// none behind one that did, or is behind one that something gives way to.
    fn admit(&mut self, shared: &Shared, core: &mut Core, runs: &mut Runs, end: usize) -> (usize, bool) {
        let Runs { next: run, admitted, .. } = runs;
        let (mut full, mut end) = (false, end);
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
                Admission::NoMemory(_) if !admitted.is_empty() => {
                    end = member.group;
                    break;
                }
                Admission::NoMemory(bytes) => {
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
    fn prepare(&mut self, shared: &Shared, of: &Member, mut admitted: Admitted) -> Copying {
        let at = self.at(of.group);
        let group = &mut self.groups[of.group];
        if let From::Open(id, _) = &group.from {
            admitted.open = Some(*id);
        }
        let adopts = admitted.adopts.clone();
        let copied = group.prepare(shared, admitted, at);
        Copying { group: of.group, adopts, bytes: bytes(&of.sizes), copied }
    }

    /// Step 2, of a run.
    fn copy(&self, shared: &Shared, run: &mut [Copying]) {
        let filling = |one| {
            let Copying { group, adopts, copied, .. }: &mut Copying = one;
            Some((&self.groups[*group], &adopts[..], copied.as_mut().ok()?.begin_copy()?))
        };
        let mut filling: Vec<_> = run.iter_mut().filter_map(filling).collect();
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
        copied: CopiedGroup,
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
            Admission::Done(outcome) => self.outcome = Some(outcome),
            Admission::MissingObjects => self.outcome = Some(Ok(PutOutcome::Waiting)),
            Admission::NeedHeaders(_) if self.probed.is_some() => self.outcome = Some(in_vain()),
            Admission::NeedHeaders(members) => self.needs = Needs::Headers(members),
            Admission::NeedObjects(_) if self.asked => self.outcome = Some(in_vain()),
            Admission::NeedObjects(members) => (self.needs, self.asked) = (Needs::Objects(members), true),
            Admission::Admitted(_) | Admission::NoMemory(_) => {}
        }
    }
}
