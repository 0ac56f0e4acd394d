//! Operations that read, and the checks of their answers.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use pagelith::{
    AlignedBuf, CompletedBatch, CompletedGet, Get, GetOutcome, GetSlice, HitPolicy, MissCause,
    Options, PagesFound, PagesQuery, PoolQuery, Result, Tier,
};
use pagelith_io::clock::Clock;

use super::batch::{Batch, BatchWork, PendingGet};
use super::memory::MemoryShape;
use super::objects::{self, NAMESPACES, ObjectId, PAGES, PageKind, key};
use super::report::FindingKind;
use super::run::Run;

/// Offset from a block boundary of memory that cannot be read into directly, like an allocator's.
const OFFSET: usize = 16;

/// The requested range of a get.
pub(super) enum RequestedRange {
    /// The whole object, of the expected length.
    Whole(usize),
    Range(Range<usize>),
}

impl RequestedRange {
    fn len(&self) -> usize {
        match self {
            RequestedRange::Whole(len) => *len,
            RequestedRange::Range(range) => range.len(),
        }
    }

    fn whole(&self) -> Option<usize> {
        match self {
            RequestedRange::Whole(len) => Some(*len),
            RequestedRange::Range(_) => None,
        }
    }
}

impl Run<'_> {
    /// A page; half of the time one of a few.
    pub(super) fn some_page(&mut self) -> usize {
        let hot = self.rng.one_in(2);
        self.rng.below(if hot { 18 } else { PAGES as u64 }) as usize
    }

    /// An object that exists on pages of its kind.
    pub(super) fn some_oid(&mut self) -> ObjectId {
        let page = self.some_page();
        let singles = objects::singles(page);
        let parts: Vec<usize> = match objects::kind(page) {
            PageKind::Singles => singles.to_vec(),
            _ => {
                let attached = objects::attached(page).iter().flat_map(|(_, parts)| *parts);
                objects::base_form(page).iter().chain(attached).copied().collect()
            }
        };
        objects::oid(page, parts[self.rng.below(parts.len() as u64) as usize])
    }

    fn length(&self, oid: ObjectId) -> usize {
        self.oracle.length(oid).unwrap_or_else(|| objects::length(oid))
    }

    fn whole(&mut self, oid: ObjectId) -> PendingGet {
        let len = self.length(oid);
        let shape = MemoryShape::draw(&mut self.rng);
        let target = self.memory.target(len, shape, &mut self.rng);
        PendingGet { oid, from: 0, len, whole: Some(len), target }
    }

    fn part(&mut self, oid: ObjectId) -> PendingGet {
        let all = self.length(oid);
        let from = self.rng.below(all as u64) as usize;
        let len = 1 + self.rng.below((all - from) as u64) as usize;
        let (from, len) = match self.rng.below(4) {
            // To block boundaries.
            0 => (from / 32_768 * 32_768, all - from / 32_768 * 32_768),
            _ => (from, len),
        };
        let shape = MemoryShape::draw(&mut self.rng);
        let target = self.memory.target(len, shape, &mut self.rng);
        PendingGet { oid, from, len, whole: None, target }
    }

    pub(super) fn get_some(&mut self) {
        let count = [1, 1, 2, 4, 8][self.rng.below(5) as usize];
        let gets = (0..count).map(|_| {
            let oid = self.some_oid();
            self.whole(oid)
        });
        let gets = gets.collect();
        self.submit_gets(gets, false);
    }

    pub(super) fn get_page(&mut self) {
        let page = self.some_page();
        let gets: Vec<PendingGet> =
            self.parts_of(page).into_iter().map(|oid| self.whole(oid)).collect();
        self.submit_gets(gets, true);
    }

    /// The objects that a page is put as: its base group, or singles.
    fn parts_of(&self, page: usize) -> Vec<ObjectId> {
        match objects::kind(page) {
            PageKind::Singles => objects::oids(page, objects::singles(page)),
            _ => objects::oids(page, objects::base_form(page)),
        }
    }

    /// Two pages, the first mostly complete.
    pub(super) fn prefetch(&mut self) {
        let Some(store) = self.store.clone() else { return };
        let mut oids = self.parts_of_some_page();
        if self.rng.one_in(3) {
            oids.pop();
        }
        oids.extend(self.parts_of_some_page());
        self.note_pages(oids.iter().copied());
        self.reads_ahead = true;
        let timeout = self.rng.one_in(4).then(|| Duration::from_millis(self.rng.below(5)));
        let keys: Vec<_> = oids.iter().map(|oid| key(*oid)).collect();
        let taken = store.prefetch(&keys, self.options().timeout(timeout));
        self.trace(|| format!("  prefetch {taken} of {}", keys.len()));
        self.fold_hash(taken as u64);
        if taken > keys.len() {
            self.report(FindingKind::Wrong, format!("prefetch accepted {taken} of {}", keys.len()));
        }
    }

    fn parts_of_some_page(&mut self) -> Vec<ObjectId> {
        let page = self.some_page();
        self.parts_of(page)
    }

    /// Gets every object that the page may have.
    pub(super) fn get_all_of(&mut self, page: usize) {
        let of = objects::all().filter(|oid| objects::page_of(*oid) == page).collect::<Vec<_>>();
        let gets = of.into_iter().map(|oid| self.whole(oid)).collect();
        self.submit_gets(gets, false);
    }

    pub(super) fn get_ranges(&mut self) {
        let count = 1 + self.rng.below(4);
        let gets = (0..count).map(|_| {
            let oid = self.some_oid();
            self.part(oid)
        });
        let gets = gets.collect();
        self.submit_gets(gets, false);
    }

    fn options(&mut self) -> Options {
        let request = match self.rng.below(4) {
            0 => self.store.as_ref().map(|s| s.begin_request()),
            _ => None,
        };
        Options::default().request(request).depth(self.rng.below(8) as u32)
    }

    fn submit_gets(&mut self, gets: Vec<PendingGet>, page: bool) {
        let Some(session) = self.some_session() else { return };
        let options = self.options();
        self.trace(|| {
            let of = |g: &PendingGet| format!("{}[{}+{}]", g.oid, g.from, g.len);
            format!("  get {}", gets.iter().map(of).collect::<Vec<_>>().join(" "))
        });
        let request = |g: &PendingGet| Get {
            key: key(g.oid),
            range: g.whole.is_none().then(|| g.from as u64..(g.from + g.len) as u64),
            destination: g.target.destination(),
        };
        let requests = gets.iter().map(request).collect();
        let (start, begun) = (self.oracle.tick(), self.world.clock.now());
        let ticket = self.sessions[session].submit_get(requests, options);
        self.track_batch(session, ticket, start, begun, BatchWork::Get { gets, page });
    }

    /// A batch in flight completed.
    pub(super) fn complete_batch(&mut self, flight: Batch, done: CompletedBatch) {
        self.oracle.tick();
        let Batch { start, work, begun, may_be_late, .. } = flight;
        match (work, done) {
            (BatchWork::Get { gets, page }, CompletedBatch::Get(done)) => {
                if done.len() != gets.len() {
                    return self
                        .report(FindingKind::Error, "batch returned wrong number of outcomes");
                }
                self.complete_gets(gets, page, (start, may_be_late), done);
            }
            (BatchWork::Put(puts), CompletedBatch::Put(done)) => {
                self.complete_puts(puts, start, done)
            }
            _ => self.report(FindingKind::Error, "batch completed with wrong kind"),
        }
        let _ = begun;
        let oldest = self.flights.iter().map(|f| f.start).min();
        let oldest = oldest.unwrap_or_else(|| self.oracle.tick());
        self.oracle.oldest(oldest);
    }

    fn complete_gets(
        &mut self,
        gets: Vec<PendingGet>,
        page: bool,
        (start, may_be_late): (u32, bool),
        done: Vec<CompletedGet>,
    ) {
        self.may_be_late = may_be_late;
        let mut seen = Vec::with_capacity(gets.len());
        let oids: Vec<ObjectId> = gets.iter().map(|g| g.oid).collect();
        for (get, CompletedGet { outcome, destination, .. }) in gets.into_iter().zip(done) {
            drop(destination);
            if !get.target.guards_hold() {
                self.report(
                    FindingKind::Memory,
                    format!("write outside destination oid={}", get.oid),
                );
            }
            let from = get.from;
            let pieces = get.target.pieces().map(move |(at, bytes)| (from + at, bytes));
            let request = match get.whole {
                Some(len) => RequestedRange::Whole(len),
                None => RequestedRange::Range(get.from..get.from + get.len),
            };
            let no = self.answered(get.oid, start, &request, &outcome, pieces);
            seen.push((no, outcome));
            if !self.memory.retire(get.target) {
                self.report(FindingKind::Memory, "memory changed after get had ended");
            }
        }
        if page {
            self.check_group(&oids, start, &seen);
        }
    }

    /// Checks the answer of one get; returns the number of the put whose bytes it returned.
    pub(super) fn answered<'a>(
        &mut self,
        oid: ObjectId,
        start: u32,
        request: &RequestedRange,
        outcome: &Result<GetOutcome>,
        pieces: impl Iterator<Item = (usize, &'a [u8])> + Clone,
    ) -> Option<u32> {
        self.trace(|| format!("  oid={oid} {outcome:?}"));
        self.gets_answered += u64::from(outcome.is_ok());
        let stopped = self.world.disk.stopped();
        match outcome {
            Ok(GetOutcome::Hit { tier, bytes }) => {
                self.fold_hash(*bytes ^ (u64::from(*tier == Tier::Ssd) << 40));
                self.sums.reads_checked += 1;
                self.sums.bytes_checked += bytes;
                if *bytes != request.len() as u64 {
                    self.report(
                        FindingKind::Wrong,
                        format!("hit has wrong length oid={oid} bytes={bytes}"),
                    );
                }
                let answer = self.oracle.hit(oid, start, pieces, request.whole());
                let seen = self.judge(answer)?;
                self.sums.returned += u64::from(seen.returned);
                self.fold_hash(u64::from(seen.no));
                seen.sure.then_some(seen.no)
            }
            Ok(GetOutcome::Miss(cause)) => {
                self.fold_hash(*cause as u64 ^ 0x155);
                self.sums.misses += 1;
                if *cause == MissCause::Damaged {
                    self.ledger.detected(1);
                }
                let faulty = matches!(cause, MissCause::Damaged | MissCause::Unreadable);
                if stopped {
                    return None;
                }
                if faulty && !self.struck {
                    self.report(FindingKind::Lost, format!("{cause} without a fault oid={oid}"));
                } else if *cause == MissCause::Late {
                    if !self.lateness_excused && !self.may_be_late {
                        self.report(
                            FindingKind::Late,
                            format!("get is late without cause oid={oid}"),
                        );
                    }
                } else {
                    let answer = self.oracle.miss(oid, start, &format!("cause={cause}"));
                    self.judge(answer);
                }
                None
            }
            Err(error) => {
                self.fold_hash(error.kind as u64 ^ 0x1e44);
                let invalid = error.kind == pagelith::ErrorKind::Invalid;
                let has_wrong_length = match request {
                    RequestedRange::Whole(len) => self.oracle.may_have_another_length(oid, *len),
                    RequestedRange::Range(range) => self.oracle.may_be_shorter(oid, range.end),
                };
                let known = self.plan.setup.constant || has_wrong_length;
                if !(invalid && known) {
                    self.check_error("get", error);
                }
                None
            }
        }
    }

    /// Objects of one group, requested in one batch, all hit or all miss.
    fn check_group(
        &mut self,
        oids: &[ObjectId],
        start: u32,
        seen: &[(Option<u32>, Result<GetOutcome>)],
    ) {
        let page = objects::page_of(oids[0]);
        let grouped = matches!(objects::kind(page), PageKind::Pair | PageKind::Many);
        let absent = |o: &Result<GetOutcome>| matches!(o, Ok(GetOutcome::Miss(MissCause::Absent)));
        let missing = seen.iter().any(|(_, outcome)| absent(outcome));
        let mut puts: Vec<u32> = seen.iter().filter_map(|(no, _)| *no).collect();
        puts.dedup();
        let changed = oids.iter().any(|oid| self.oracle.was_taken_since(*oid, start));
        // With equal fingerprints a get tries candidates while others appear.
        if !grouped
            || changed
            || self.plan.setup.constant
            || self.struck
            || self.world.disk.stopped()
        {
            return;
        }
        let hits = seen.iter().any(|(_, o)| matches!(o, Ok(GetOutcome::Hit { .. })));
        if puts.len() > 1 || (missing && hits) {
            self.report(FindingKind::Wrong, format!("group is partial page={page} {seen:?}"));
        }
    }

    pub(super) fn get_borrowed(&mut self) {
        let count = 1 + self.rng.below(4);
        let oids: Vec<ObjectId> = (0..count).map(|_| self.some_oid()).collect();
        // Only block-aligned memory is read into directly; a drawn offset keeps runs reproducible.
        let lengths: Vec<usize> = oids.iter().map(|oid| self.length(*oid)).collect();
        let starts: Vec<usize> =
            oids.iter().map(|_| [0, OFFSET][self.rng.below(2) as usize]).collect();
        let mut memory: Vec<AlignedBuf> =
            lengths.iter().map(|len| AlignedBuf::new(len + OFFSET).expect("memory")).collect();
        let mut buffers: Vec<&mut [u8]> = memory
            .iter_mut()
            .zip(lengths.iter().zip(&starts))
            .map(|(memory, (len, start))| &mut memory[*start..start + len])
            .collect();
        buffers.iter_mut().for_each(|b| b.fill(0xEE));
        let cuts: Vec<usize> =
            buffers.iter().map(|b| self.rng.below(b.len() as u64 + 1) as usize).collect();
        let options = self.options();
        let start = self.oracle.tick();
        let mut pieces: Vec<[&mut [u8]; 2]> = buffers
            .iter_mut()
            .zip(&cuts)
            .map(|(b, cut)| {
                let (a, b) = b.split_at_mut(*cut);
                [a, b]
            })
            .collect();
        let mut gets: Vec<GetSlice<'_, '_>> = oids
            .iter()
            .zip(&mut pieces)
            .map(|(oid, pieces)| {
                // An empty piece is not allowed.
                let pieces = match (pieces[0].is_empty(), pieces[1].is_empty()) {
                    (true, _) => &mut pieces[1..],
                    (_, true) => &mut pieces[..1],
                    _ => &mut pieces[..],
                };
                GetSlice { key: key(*oid), range: None, pieces }
            })
            .collect();
        self.note_pages(oids.iter().copied());
        self.may_be_late = !self.flights.is_empty();
        let outcomes = self.timed("get_batch", None, |store| store.get_batch(&mut gets, options));
        drop(gets);
        drop(pieces);
        self.oracle.tick();
        for ((oid, buffer), outcome) in
            oids.iter().zip(&buffers).zip(outcomes.into_iter().flatten())
        {
            let len = buffer.len();
            self.answered(
                *oid,
                start,
                &RequestedRange::Whole(len),
                &outcome,
                std::iter::once((0, &buffer[..])),
            );
        }
    }

    pub(super) fn exists(&mut self) {
        let Some(store) = self.store.clone() else { return };
        let mut oids = Vec::new();
        for _ in 0..1 + self.rng.below(12) {
            let page = self.some_page();
            oids.extend(self.parts_of(page));
        }
        self.check_exists(&store, &oids);
    }

    pub(super) fn check_exists(&mut self, store: &Rc<pagelith::Store>, oids: &[ObjectId]) {
        let keys: Vec<_> = oids.iter().map(|oid| key(*oid)).collect();
        let expected_present = self.expected_presence(store, oids);
        let exists = store.exists_batch(&keys, Options::default());
        let prefix = store.exists_prefix(&keys, Options::default());
        let now = self.oracle.tick();
        let holes = exists.iter().position(|exists| !exists).unwrap_or(exists.len());
        if prefix != holes {
            self.report(FindingKind::Wrong, format!("exists_prefix={prefix} exists={exists:?}"));
        }
        let bits =
            exists.iter().fold(0u64, |bits, exists| bits.rotate_left(1) ^ u64::from(*exists));
        self.fold_hash(bits);
        // With equal fingerprints the index cannot distinguish objects.
        if self.plan.setup.constant || self.world.disk.stopped() {
            return;
        }
        for ((oid, exists), expected_present) in oids.iter().zip(&exists).zip(expected_present) {
            self.check_event_presence(*oid, expected_present, *exists);
            if *exists && !self.oracle.may_be_present(*oid, now) {
                self.report(
                    FindingKind::Wrong,
                    format!("exists though never put or removed oid={oid}"),
                );
            }
            if !exists {
                let answer = self.oracle.miss(*oid, now, "exists");
                self.judge(answer);
            } else {
                self.sums.durable_checked += u64::from(self.oracle.is_certain(*oid, now));
            }
        }
        for of in oids.chunk_by(|a, b| objects::page_of(*a) == objects::page_of(*b)) {
            let at = oids.iter().position(|oid| *oid == of[0]).unwrap_or(0);
            let page = objects::page_of(of[0]);
            let grouped = matches!(objects::kind(page), PageKind::Pair | PageKind::Many);
            let whole = of.len() == objects::base_form(page).len();
            let some = &exists[at..at + of.len()];
            if grouped && whole && some.iter().any(|h| *h) && !some.iter().all(|h| *h) {
                self.report(
                    FindingKind::Wrong,
                    format!("group exists partially page={page} {some:?}"),
                );
            }
        }
    }

    pub(super) fn exists_groups(&mut self) {
        let Some(store) = self.store.clone() else { return };
        let ns = self.rng.below(NAMESPACES as u64) as usize;
        let first = self.rng.below(PAGES as u64 / NAMESPACES as u64) as usize;
        let pages: Vec<usize> = (first..PAGES / NAMESPACES)
            .map(|at| at * NAMESPACES + ns)
            .filter(|page| matches!(objects::kind(*page), PageKind::Pair | PageKind::Many))
            .take(1 + self.rng.below(12) as usize)
            .collect();
        let Some(any) = pages.first() else { return };
        let (anchor, mamba, swa) = ([0, 1], [4, 5], [6]);
        let window = 1 + self.rng.below(3) as usize;
        let keys_of = |parts: &[usize]| -> Vec<_> {
            parts.iter().map(|part| key(objects::oid(*any, *part))).collect()
        };
        let (anchor_keys, mamba_keys, swa_keys) =
            (keys_of(&anchor), keys_of(&mamba), keys_of(&swa));
        let hashes: Vec<_> = pages.iter().map(|page| objects::page_hash(*page)).collect();
        let pools = [
            PoolQuery { objects: &mamba_keys, policy: HitPolicy::TrailingPages(1) },
            PoolQuery { objects: &swa_keys, policy: HitPolicy::TrailingPages(window) },
        ];
        let query = PagesQuery { pages: &hashes, anchor: &anchor_keys, pools: &pools };
        let found = match store.exists_groups(&query, Options::default()) {
            Ok(found) => found,
            Err(error) => return self.check_error("exists_groups", &error),
        };
        let exists = |parts: &[usize]| -> Vec<bool> {
            let ask = |page: &usize| {
                let keys: Vec<_> =
                    parts.iter().map(|part| key(objects::oid(*page, *part))).collect();
                store.exists_batch(&keys, Options::default()).iter().all(|exists| *exists)
            };
            pages.iter().map(ask).collect()
        };
        let expected =
            pages_found(&exists(&anchor), &[(exists(&mamba), 1), (exists(&swa), window)]);
        self.fold_hash(found.usable_pages as u64);
        if found != expected {
            self.report(
                FindingKind::Wrong,
                format!("exists_groups {found:?} expected={expected:?}"),
            );
        }
    }

    pub(super) fn view(&mut self) {
        let Some(store) = self.store.clone() else { return };
        if self.views.len() >= 2 || (!self.views.is_empty() && self.rng.one_in(2)) {
            let (view, oid, no) = self.views.remove(0);
            if !objects::Content::of(oid, no).is(0, &view) {
                self.report(FindingKind::Wrong, format!("bytes of view changed oid={oid} no={no}"));
            }
            return;
        }
        let oid = self.some_oid();
        let start = self.oracle.tick();
        match store.view(&key(oid)) {
            Ok(Some(view)) => {
                let answer =
                    self.oracle.hit(oid, start, std::iter::once((0, &view[..])), Some(view.len()));
                if let Some(seen) = self.judge(answer) {
                    self.views.push((view, oid, seen.no));
                }
            }
            Ok(None) => {}
            Err(error) => self.check_error("view", &error),
        }
    }
}

/// The expected [`pagelith::Store::exists_groups`]: pages present in the anchor and, with the
/// needed tail, in each pool.
fn pages_found(anchor: &[bool], pools: &[(Vec<bool>, usize)]) -> PagesFound {
    let boundary = anchor.iter().position(|exists| !exists).unwrap_or(anchor.len());
    let allows = |(exists, window): &(Vec<bool>, usize), length: usize| {
        length > 0 && exists[length.saturating_sub(*window)..length].iter().all(|exists| *exists)
    };
    let longest = |pool| (1..=boundary).rev().find(|length| allows(pool, *length)).unwrap_or(0);
    let stops: Vec<usize> =
        (1..=boundary).filter(|length| pools.iter().all(|pool| allows(pool, *length))).collect();
    PagesFound {
        usable_pages: stops.last().copied().unwrap_or(0),
        anchor_pages: boundary,
        pool_pages: pools.iter().map(longest).collect(),
        stops,
    }
}
