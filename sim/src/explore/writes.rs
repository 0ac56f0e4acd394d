//! Operations that put, and the checks of their answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pagelith::{
    CompletedPut, Error, ErrorKind, Options, Put, PutGroup, PutOutcome, PutSlice, Result, Source,
};
use pagelith_io::clock::Clock;

use super::batch::{BatchWork, PendingPut};
use super::objects::{self, Content, OTHER_FORM, ObjectId, PageKind, key};
use super::report::FindingKind;
use super::run::{OpenGroup, Run};

/// Additional bytes of an object that is put with another length.
const LONGER: usize = 3;

fn bytes_of(oid: ObjectId, no: u32, len: usize) -> Arc<[u8]> {
    let mut bytes = vec![0; len];
    Content::of(oid, no).fill(&mut bytes);
    Arc::from(bytes)
}

impl Run<'_> {
    fn next_no(&mut self) -> u32 {
        self.no += 1;
        self.no
    }

    /// A form of the page: its group, or one of its singles.
    fn form(&mut self, page: usize) -> Vec<ObjectId> {
        let singles = objects::singles(page);
        let single = match objects::kind(page) {
            PageKind::Singles => true,
            PageKind::Mixed => self.rng.one_in(3),
            PageKind::Pair | PageKind::Many => false,
        };
        match single {
            true => {
                vec![objects::oid(page, singles[self.rng.below(singles.len() as u64) as usize])]
            }
            false => objects::oids(page, objects::base_form(page)),
        }
    }

    fn plain(&mut self, page: usize) -> PendingPut {
        let members = self.form(page);
        PendingPut { no: self.next_no(), base: None, members, odd: false, open: None }
    }

    pub(super) fn put_page(&mut self) {
        let page = self.some_page();
        let put = self.plain(page);
        self.submit_puts(vec![put], 0);
    }

    pub(super) fn put_many(&mut self) {
        let first = self.some_page();
        let count = 2 + self.rng.below(5) as usize;
        let pages: BTreeSet<usize> = (0..count).map(|i| (first + i * 3) % objects::PAGES).collect();
        let puts = pages.into_iter().map(|page| self.plain(page)).collect();
        self.submit_puts(puts, 0);
    }

    /// A put with another length, or of a conflicting group.
    pub(super) fn put_other(&mut self) {
        let page = self.some_page();
        let no = self.next_no();
        let (members, longer) = match objects::kind(page) {
            PageKind::Mixed => (objects::oids(page, &OTHER_FORM), 0),
            PageKind::Singles => (vec![objects::oid(page, 5)], LONGER),
            PageKind::Pair | PageKind::Many => return self.put_page(),
        };
        self.submit_puts(
            vec![PendingPut { no, base: None, members, odd: true, open: None }],
            longer,
        );
    }

    pub(super) fn attach(&mut self) {
        let page = self.some_page();
        let all = objects::attached(page);
        if all.is_empty() {
            return self.put_page();
        }
        let (base, parts) = all[self.rng.below(all.len() as u64) as usize];
        let (base, members) = (Some(objects::oid(page, base)), objects::oids(page, parts));
        let no = self.next_no();
        self.submit_puts(vec![PendingPut { no, base, members, odd: false, open: None }], 0);
    }

    fn begun(&mut self, put: &PendingPut, longer: usize) {
        for oid in &put.members {
            self.oracle.put_begun(*oid, put.no, objects::length(*oid) + longer);
        }
    }

    fn submit_puts(&mut self, puts: Vec<PendingPut>, longer: usize) {
        let Some(session) = self.some_session() else { return };
        self.trace(|| {
            let of = |p: &PendingPut| format!("no={} {:?} base={:?}", p.no, p.members, p.base);
            format!("  put {}", puts.iter().map(of).collect::<Vec<_>>().join("; "))
        });
        let (start, begun) = (self.oracle.tick(), self.world.clock.now());
        let group = |put: &PendingPut| {
            let object = |oid: &ObjectId| {
                let bytes = bytes_of(*oid, put.no, objects::length(*oid) + longer);
                Put { key: key(*oid), source: Source::shared(bytes) }
            };
            PutGroup { objects: put.members.iter().map(object).collect(), base: put.base.map(key) }
        };
        let groups = puts.iter().map(group).collect();
        puts.iter().for_each(|put| self.begun(put, longer));
        let depth = self.rng.below(8) as u32;
        let options = Options::default().depth(depth);
        let ticket = self.sessions[session].submit_put(groups, options);
        self.track_batch(session, ticket, start, begun, BatchWork::Put(puts));
    }

    pub(super) fn complete_puts(
        &mut self,
        puts: Vec<PendingPut>,
        start: u32,
        done: Vec<CompletedPut>,
    ) {
        let mut outcomes = done.into_iter().map(|d| d.outcome);
        for put in puts {
            let own: Vec<_> = outcomes.by_ref().take(put.members.len()).collect();
            self.put_ended(put, start, own);
        }
    }

    /// The put of a group ended, with one outcome per object.
    fn put_ended(&mut self, put: PendingPut, start: u32, outcomes: Vec<Result<PutOutcome>>) {
        self.trace(|| format!("  no={} {outcomes:?}", put.no));
        let nothing = |run: &mut Self| {
            put.members.iter().for_each(|oid| run.oracle.put_nothing(*oid, put.no));
        };
        // Otherwise it is still open, or the next caller that joins it gets another id.
        let over = |o: &Result<PutOutcome>| {
            matches!(o, Ok(PutOutcome::Stored | PutOutcome::AlreadyPresent))
        };
        if put.open.is_some() && outcomes.iter().all(over) {
            self.groups.retain(|g| Some(g.id) != put.open);
        }
        if outcomes.is_empty() {
            // The group was not open any more.
            return nothing(self);
        }
        if outcomes.len() != put.members.len() {
            return self.report(FindingKind::Error, "put returned wrong number of outcomes");
        }
        if let Some(Err(error)) = outcomes.iter().find(|o| o.is_err()) {
            self.fold_hash(error.kind as u64 ^ 0xbad);
            return self.put_failed(&put, error);
        }
        let count = |outcome| outcomes.iter().filter(|o| **o == Ok(outcome)).count();
        let (stored, present) = (count(PutOutcome::Stored), count(PutOutcome::AlreadyPresent));
        let (waiting, refused) = (count(PutOutcome::Waiting), count(PutOutcome::Refused));
        self.fold_hash((stored << 24 | present << 16 | waiting << 8 | refused) as u64);
        self.sums.puts_stored += stored as u64;
        self.sums.puts_present += present as u64;
        let all = put.members.len();
        let mixed = objects::kind(objects::page_of(put.members[0])) == PageKind::Mixed;
        let uniform = [stored, present, waiting, refused].contains(&all);
        let taken_in = mixed && stored > 0 && stored + present == all;
        if !uniform && !taken_in {
            self.report(
                FindingKind::Wrong,
                format!("outcomes that cannot be together {outcomes:?}"),
            );
        }
        if waiting > 0 && put.base.is_none() && put.open.is_none() {
            self.report(FindingKind::Wrong, format!("put without base waits no={}", put.no));
        }
        for (oid, outcome) in put.members.iter().zip(&outcomes) {
            match outcome {
                Ok(PutOutcome::Stored) => self.oracle.put_stored(*oid, put.no),
                Ok(PutOutcome::Waiting) if put.open.is_none() => {
                    self.oracle.put_waits(*oid, put.no)
                }
                Ok(PutOutcome::AlreadyPresent) => {
                    self.oracle.put_nothing(*oid, put.no);
                    if !self.oracle.may_be_present(*oid, start) {
                        let text =
                            format!("present though never put or removed oid={oid} no={}", put.no);
                        self.report(FindingKind::Wrong, text);
                    }
                }
                _ => self.oracle.put_nothing(*oid, put.no),
            }
        }
    }

    fn put_failed(&mut self, put: &PendingPut, error: &Error) {
        let mixed = objects::kind(objects::page_of(put.members[0])) == PageKind::Mixed;
        let nothing = matches!(error.kind, ErrorKind::Invalid | ErrorKind::Busy);
        for oid in &put.members {
            match nothing {
                true => self.oracle.put_nothing(*oid, put.no),
                false => self.oracle.put_unknown(*oid, put.no),
            }
        }
        let other =
            |oid: &ObjectId| self.oracle.may_have_another_length(*oid, objects::length(*oid));
        let conflict = put.odd || mixed || put.members.iter().any(other);
        let gone = put.open.is_some() && error.kind == ErrorKind::Unavailable;
        let right = error.kind == ErrorKind::Invalid && conflict;
        if !right && !gone {
            self.check_error("put", error);
        }
    }

    pub(super) fn put_borrowed(&mut self) {
        let first = self.some_page();
        let count = 1 + self.rng.below(3) as usize;
        let pages: BTreeSet<usize> = (0..count).map(|i| (first + i * 3) % objects::PAGES).collect();
        let puts: Vec<PendingPut> = pages.into_iter().map(|page| self.plain(page)).collect();
        let start = self.oracle.tick();
        puts.iter().for_each(|put| self.begun(put, 0));
        let bytes: Vec<Vec<Arc<[u8]>>> = puts
            .iter()
            .map(|p| p.members.iter().map(|o| bytes_of(*o, p.no, objects::length(*o))).collect())
            .collect();
        let cut = self.rng.next_u64() as usize;
        let halves = |b: &'_ Arc<[u8]>| cut % b.len();
        let pieces: Vec<Vec<[&[u8]; 2]>> = bytes
            .iter()
            .map(|of| of.iter().map(|b| b.split_at(halves(b)).into()).collect())
            .collect();
        let slices: Vec<Vec<PutSlice<'_>>> = puts
            .iter()
            .zip(&pieces)
            .map(|(put, pieces)| {
                put.members
                    .iter()
                    .zip(pieces)
                    .map(|(oid, pieces)| PutSlice { key: key(*oid), pieces: non_empty(pieces) })
                    .collect()
            })
            .collect();
        let timeout = self.rng.one_in(4).then(|| Duration::from_millis(self.rng.below(50)));
        let options = Options::default().timeout(timeout);
        let groups: Vec<&[PutSlice<'_>]> = slices.iter().map(Vec::as_slice).collect();
        puts.iter().for_each(|put| self.note_pages(put.members.clone()));
        let outcomes =
            self.timed("put_groups", timeout, |store| store.put_groups(&groups, options));
        self.oracle.tick();
        for (put, outcome) in puts.into_iter().zip(outcomes.into_iter().flatten()) {
            let mixed = objects::kind(objects::page_of(put.members[0])) == PageKind::Mixed;
            let each: Vec<_> = put.members.iter().map(|_| outcome.clone()).collect();
            if mixed && put.members.len() > 1 && outcome == Ok(PutOutcome::Stored) {
                // The outcome does not say which of them kept their bytes.
                self.oracle.put_stored(put.members[0], put.no);
                put.members[1..].iter().for_each(|oid| self.oracle.put_unknown(*oid, put.no));
                continue;
            }
            self.put_ended(put, start, each);
        }
    }

    /// Pages with groups that may be begun.
    fn some_grouped_page(&mut self) -> usize {
        loop {
            // Few pages, so that begun groups are continued.
            let page = self.rng.below(24) as usize;
            if !objects::base_form(page).is_empty() {
                return page;
            }
        }
    }

    pub(super) fn fill(&mut self) {
        let Some(store) = self.store.clone() else { return };
        let page = self.some_grouped_page();
        let oids = objects::oids(page, objects::base_form(page));
        let keys: Vec<_> = oids.iter().map(|oid| key(*oid)).collect();
        let mixed = objects::kind(page) == PageKind::Mixed;
        let group = match store.begin_group(&keys, Options::default()) {
            Ok(group) => group,
            Err(error) if mixed && error.kind == ErrorKind::Invalid => return,
            Err(error) => return self.check_error("begin_group", &error),
        };
        let at = match self.groups.iter().position(|g| g.id == group.id()) {
            Some(at) => at,
            None => {
                self.groups.retain(|g| g.page != page);
                let no = self.next_no();
                self.groups.push(OpenGroup { page, id: group.id(), no, filled: Vec::new() });
                self.groups.len() - 1
            }
        };
        let no = self.groups[at].no;
        let all = self.rng.one_in(2);
        let one = self.rng.below(oids.len() as u64) as usize;
        for (i, oid) in oids.iter().enumerate().filter(|(i, _)| all || *i == one) {
            let _ = i;
            let start = self.oracle.tick();
            let bytes = bytes_of(*oid, no, objects::length(*oid));
            let slice = PutSlice { key: key(*oid), pieces: &[&bytes] };
            let outcome = match self.rng.one_in(3) {
                true => group.try_put(&slice),
                false => {
                    let outcomes =
                        self.timed("group put", None, |_| group.put(&[slice], Options::default()));
                    outcomes.and_then(|mut o| o.pop()).unwrap_or(Ok(PutOutcome::Refused))
                }
            };
            self.trace(|| format!("  fill oid={oid} no={no} {outcome:?}"));
            let filled = self.groups[at].filled.contains(oid);
            match outcome {
                Ok(PutOutcome::Waiting) => self.groups[at].filled.push(*oid),
                Ok(PutOutcome::AlreadyPresent)
                    if filled || self.oracle.may_be_present(*oid, start) => {}
                Ok(other) => {
                    self.report(FindingKind::Wrong, format!("put into a group oid={oid} {other:?}"))
                }
                // Its deadline has passed, or its namespace was cleared.
                Err(error) if error.kind == ErrorKind::Unavailable => {}
                Err(error) => self.check_error("put into a group", &error),
            }
        }
        let missing = group.missing();
        if missing.iter().any(|key| !keys.contains(key)) {
            self.report(
                FindingKind::Wrong,
                format!("group misses objects that it does not require {missing:?}"),
            );
        }
    }

    pub(super) fn commit(&mut self) {
        if self.groups.is_empty() {
            return;
        }
        let at = self.rng.below(self.groups.len() as u64) as usize;
        let OpenGroup { page, id, no, .. } = self.groups[at];
        let busy = |c: &BatchWork| matches!(c, BatchWork::Put(puts) if puts.iter().any(|p| p.open == Some(id)));
        if self.flights.iter().any(|f| busy(&f.work)) {
            return;
        }
        let Some(session) = self.some_session() else { return };
        let members = objects::oids(page, objects::base_form(page));
        let put = PendingPut { no, base: None, members, odd: false, open: Some(id) };
        let (start, begun) = (self.oracle.tick(), self.world.clock.now());
        self.trace(|| format!("  commit page={page} no={no}"));
        self.begun(&put, 0);
        let ticket = self.sessions[session].submit_commit(id, Options::default());
        self.track_batch(session, ticket, start, begun, BatchWork::Put(vec![put]));
    }

    pub(super) fn abort(&mut self) {
        let Some(store) = self.store.clone() else { return };
        if self.groups.is_empty() {
            return;
        }
        let at = self.rng.below(self.groups.len() as u64) as usize;
        let OpenGroup { page, id, .. } = self.groups[at];
        let busy = |c: &BatchWork| matches!(c, BatchWork::Put(puts) if puts.iter().any(|p| p.open == Some(id)));
        if self.flights.iter().any(|f| busy(&f.work)) {
            return;
        }
        self.groups.remove(at);
        let oids = objects::oids(page, objects::base_form(page));
        let keys: Vec<_> = oids.iter().map(|oid| key(*oid)).collect();
        if let Ok(group) = store.begin_group(&keys, Options::default()) {
            group.abort();
        }
    }
}

/// The pieces without an empty first one.
fn non_empty<'a, 'b>(pieces: &'a [&'b [u8]; 2]) -> &'a [&'b [u8]] {
    if pieces[0].is_empty() { &pieces[1..] } else { &pieces[..] }
}
