//! Runs: groups of a batch that take the steps of a put together, so that the lock is taken once
//! for a run and not twice for a page. They are admitted in one critical section and copied without
//! the lock. They become visible in the critical section that admits the next run.
//!
//! Invariants:
//! - A group has the same effect on later groups of its batch as if each were put by itself.
//! - `a.page != b.page` for any two groups `a`, `b` of one run.
//! - A group that finds no memory after others of its run were admitted is tried again in the next
//!   run.

use pagelith_io::hashed_copy::{Copier, CopyMode};
use pagelith_tiers::policy::Recency;

use super::{GroupSource, PutBatch};
use crate::api::error::Error;
use crate::api::outcome::PutOutcome;
use crate::state::core::Core;
use crate::state::put_spec::ObjectSize;
use crate::state::shared::Shared;
use crate::state::ssd_admission;
use crate::write::put;
use crate::write::put::admit::{AdmitOutcome, admit};
use crate::write::put::copy::PreparedGroup;
use crate::write::put::new_keys;
use crate::write::put::new_keys::NewKeys;
use crate::write::put::publish::{self, publish};
use crate::write::put::{AdmittedGroup, Published};

/// Groups in a run. Sixteen were slower than four with one thread.
const RUN_GROUPS_MAX: usize = 4;
/// Bytes in a run, unless its first group has more: reserved memory that is not visible yet.
const RUN_BYTES_MAX: u64 = 1 << 20;
/// After this many copied bytes, the frames are queued for the flusher, so that a batch larger than
/// the arena makes progress.
const ENQUEUE_BYTES: u64 = 4 << 20;

/// A group of a run, by its number in the batch.
struct RunGroup {
    group: usize,
    sizes: Vec<ObjectSize>,
    /// Set if a lookup without the lock found none of its keys.
    new_keys: Option<NewKeys>,
}

/// A group that was admitted and is being copied.
struct CopyingGroup {
    group: usize,
    adopts: Vec<bool>,
    bytes: u64,
    /// An `Err` has the reserved memory of a group that has changed since its admission.
    prepared: Result<PreparedGroup, Box<AdmittedGroup>>,
}

/// Vectors that a batch reuses between its runs.
#[derive(Default)]
pub(crate) struct RunScratch {
    /// The run that is about to be admitted.
    next: Vec<RunGroup>,
    /// Members of `next` with reserved memory, by their number in it.
    admitted: Vec<(usize, AdmittedGroup)>,
    /// The previous run.
    copied: Vec<CopyingGroup>,
}

fn total_bytes(sizes: &[ObjectSize]) -> u64 {
    sizes.iter().filter_map(|size| size.length).sum()
}

impl PutBatch {
    /// Store the groups that can be stored now, run by run, and queue their frames for the flusher.
    pub(crate) fn try_runs(&mut self, shared: &Shared) {
        let runs = &mut RunScratch::default();
        let mut from = 0;
        loop {
            let end = self.gather_run(shared, from, runs);
            if runs.next.is_empty() && runs.copied.is_empty() && self.frames.is_empty() {
                break;
            }
            self.find_new_keys(shared, runs);
            let (copied, next) = (&runs.copied, &runs.next);
            let touched_groups: Vec<usize> = copied
                .iter()
                .map(|one| one.group)
                .chain(next.iter().map(|one| one.group))
                .collect();
            from = self.publish_and_admit(shared, runs, end);
            touched_groups.into_iter().for_each(|group| self.end_commit(shared, group));
            let RunScratch { next, admitted, copied, .. } = &mut *runs;
            let prepared = |(number, one): (usize, _)| self.prepare(shared, &next[number], one);
            copied.extend(admitted.drain(..).map(prepared));
            self.copy_run(shared, copied);
        }
    }

    /// One critical section: the copied run becomes visible, and the next run is admitted. Returns
    /// the first group that was not tried.
    fn publish_and_admit(&mut self, shared: &Shared, runs: &mut RunScratch, end: usize) -> usize {
        let mut core = shared.lock();
        self.publish(shared, &mut core, &mut runs.copied);
        let queued = (runs.next.is_empty() || self.unqueued_bytes >= ENQUEUE_BYTES)
            && !self.frames.is_empty();
        if queued {
            self.unqueued_bytes = 0;
            let last = self.recency_of(self.groups.len().saturating_sub(1));
            let request = (last.request, last.depth);
            let (admission, now) = (&shared.admission, shared.now());
            ssd_admission::enqueue(admission, now, &mut core, &mut self.frames, request);
        }
        let (end, full) = self.admit(shared, &mut core, runs, end);
        drop(core);
        if queued || full {
            shared.signals.flusher.raise();
        }
        end
    }

    /// Gather the next run from groups that pass [`put::check`]; returns the first group after it.
    fn gather_run(&mut self, shared: &Shared, from: usize, runs: &mut RunScratch) -> usize {
        let run = &mut runs.next;
        run.clear();
        let mut taken = 0;
        for i in from..self.groups.len() {
            let group = &self.groups[i];
            if !group.progress.is_ready() {
                continue;
            }
            let open = matches!(group.source, GroupSource::Open { .. });
            if run.len() == RUN_GROUPS_MAX || (open && !run.is_empty()) {
                return i;
            }
            let Some(sizes) = group.sizes(shared) else {
                self.set_outcome(i, Err(crate::write::open_group::not_open()), Vec::new());
                continue;
            };
            if let Err(error) =
                shared.check_open().and_then(|()| put::check(shared, group.kind(), &sizes))
            {
                self.set_outcome(i, Err(error), Vec::new());
                self.end_commit(shared, i);
                continue;
            }
            taken += total_bytes(&sizes);
            let same_page = |other: &RunGroup| other.sizes[0].key.same_page(&sizes[0].key);
            if !run.is_empty() && (taken > RUN_BYTES_MAX || run.iter().any(same_page)) {
                return i;
            }
            run.push(RunGroup { group: i, sizes, new_keys: None });
            if open {
                return i + 1;
            }
        }
        self.groups.len()
    }

    /// Look up, without the lock, whether these groups have only new keys. Pages of groups that are
    /// about to become visible are skipped, because they will soon be in the index.
    fn find_new_keys(&self, shared: &Shared, runs: &mut RunScratch) {
        let RunScratch { next, copied, .. } = runs;
        let unseen = |member: &&mut RunGroup| {
            let group = &self.groups[member.group];
            let page = &member.sizes[0].key;
            matches!(group.source, GroupSource::Caller(_))
                && group.progress.is_new()
                && !copied.iter().any(|one| self.groups[one.group].key(0).same_page(page))
        };
        let candidates =
            next.iter_mut().filter(unseen).map(|member| (&member.sizes[..], &mut member.new_keys));
        new_keys::find_new(shared, &mut candidates.collect::<Vec<_>>());
    }

    /// Admit the next run. Returns the first group that was not tried, and whether a group found no
    /// memory. A group is not tried if it finds no memory after another was admitted, or if it
    /// follows a group that replaces present objects.
    fn admit(
        &mut self,
        shared: &Shared,
        core: &mut Core,
        runs: &mut RunScratch,
        end: usize,
    ) -> (usize, bool) {
        let RunScratch { next: run, admitted, .. } = runs;
        let (mut full, mut end) = (false, end);
        for (at, member) in run.iter_mut().enumerate() {
            let group = &self.groups[member.group];
            let adopted = group.progress.adopted().iter();
            let adopted: Vec<_> = adopted.map(|a| a.as_ref().map(|(at, _)| *at)).collect();
            let (kind, sizes) = (group.kind(), &member.sizes[..]);
            let admitted_as_new =
                member.new_keys.take().and_then(|keys| keys.admit(shared, core, kind, sizes));
            let admit_by_lookup =
                || admit(shared, core, kind, sizes, group.progress.headers(), &adopted);
            match admitted_as_new.unwrap_or_else(admit_by_lookup) {
                AdmitOutcome::Admitted(mut one) => {
                    let has_existing = one.has_existing();
                    one.origin = self.origin;
                    admitted.push((at, one));
                    if has_existing {
                        // The objects that it replaces must still be present when it is published,
                        // so nothing may be evicted before.
                        end = member.group + 1;
                        break;
                    }
                }
                AdmitOutcome::NoMemory(_) if !admitted.is_empty() => {
                    end = member.group;
                    break;
                }
                AdmitOutcome::OverQuota => {
                    let first = &sizes[0].key;
                    let generation = core.generation(first.namespace());
                    let keys = sizes.iter().map(|size| shared.fingerprint(&size.key, generation));
                    let refused = publish::count_refused_put(core, first.namespace(), keys, true);
                    self.set_outcome(member.group, Ok(refused), Vec::new());
                }
                AdmitOutcome::NoMemory(error) => {
                    shared.count_busy(core, sizes.iter().map(|size| &size.key));
                    full = true;
                    self.set_outcome(member.group, Err(error), Vec::new());
                }
                AdmitOutcome::Done(outcome) => self.set_outcome(member.group, outcome, Vec::new()),
                AdmitOutcome::NeedHeaders(members) => {
                    if !self.groups[member.group].progress.need_headers(members) {
                        self.fail_changed(member.group);
                    }
                }
                AdmitOutcome::NeedObjects(members) => {
                    if !self.groups[member.group].progress.need_objects(members) {
                        self.fail_changed(member.group);
                    }
                }
            }
        }
        (end, full)
    }

    /// Prepare an admitted group for copying.
    fn prepare(
        &mut self,
        shared: &Shared,
        run_group: &RunGroup,
        mut admitted: AdmittedGroup,
    ) -> CopyingGroup {
        let at = self.recency_of(run_group.group);
        let group = &mut self.groups[run_group.group];
        if let GroupSource::Open { id, .. } = &group.source {
            admitted.open_group = Some(*id);
        }
        let adopts = std::mem::take(&mut admitted.adopts);
        let prepared = group.prepare(shared, admitted, &adopts, at);
        let bytes = total_bytes(&run_group.sizes);
        CopyingGroup { group: run_group.group, adopts, bytes, prepared }
    }

    /// Copy the bytes of a run.
    fn copy_run(&self, shared: &Shared, run: &mut [CopyingGroup]) {
        let begin_copy = |one| {
            let CopyingGroup { group, adopts, prepared, .. }: &mut CopyingGroup = one;
            Some((&self.groups[*group], &adopts[..], prepared.as_mut().ok()?.begin_copy()?))
        };
        let copies: Vec<_> = run.iter_mut().filter_map(begin_copy).collect();
        let mut copier = Copier::new(CopyMode::NonTemporal);
        for (group, adopts, copy) in copies {
            copy.fill(&shared.memory, &mut copier, |member| group.member_bytes(adopts, member));
        }
    }

    /// Make the groups of the copied run visible.
    fn publish(&mut self, shared: &Shared, core: &mut Core, run: &mut Vec<CopyingGroup>) {
        for CopyingGroup { group, adopts, bytes, prepared } in run.drain(..) {
            let outcome = match prepared {
                Ok(prepared) => self.publish_one(shared, core, group, &adopts, prepared),
                Err(admitted) => {
                    admitted.give_back(core);
                    let first = self.groups[group].key(0);
                    Err(Error::busy(format!("group changed during the put, retry it key={first}")))
                }
            };
            self.unqueued_bytes += bytes;
            self.set_outcome(group, outcome, adopts);
        }
    }

    /// The recency of a group.
    fn recency_of(&self, number: usize) -> Recency {
        Recency { depth: self.at.depth.saturating_add(number as u32), ..self.at }
    }

    fn publish_one(
        &mut self,
        shared: &Shared,
        core: &mut Core,
        number: usize,
        adopts: &[bool],
        prepared: PreparedGroup,
    ) -> crate::api::error::Result<PutOutcome> {
        let (group, at) = (&self.groups[number], self.recency_of(number));
        let confirmed = prepared.confirm(core);
        match confirmed.and_then(|copied| publish(shared, core, group.kind(), copied, at)) {
            Ok(Published { outcome, frames }) => {
                self.frames.extend(frames);
                Ok(outcome)
            }
            Err(returned) => {
                group.take_back(core, adopts, returned.members);
                Err(returned.error)
            }
        }
    }

    /// A read that did not yield the object once is not repeated.
    fn fail_changed(&mut self, number: usize) {
        let key = self.groups[number].key(0);
        let error = Error::busy(format!("object changed during the put, retry it key={key}"));
        self.set_outcome(number, Err(error), Vec::new());
    }
}
