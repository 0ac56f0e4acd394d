//! Operations that remove, pin, lease, flush and scrub.

use std::time::Duration;

use pagelith::{Options, ScrubOptions};
use pagelith_io::clock::Clock;

use super::batch::BatchWork;
use super::objects::{self, NAMESPACES, ObjectId, PAGES, PARTS, key};
use super::report::FindingKind;
use super::run::Run;

/// Most pins held at once.
const PINS_MAX: usize = 10;

impl Run<'_> {
    fn with_timeout(timeout: Option<Duration>) -> Options {
        Options::default().timeout(timeout)
    }

    /// Removes up to three objects; `timeout` of the call.
    pub(super) fn remove(&mut self, timeout: Option<Duration>) {
        self.drain_half_the_time();
        let mut oids: Vec<ObjectId> = (0..1 + self.rng.below(3)).map(|_| self.some_oid()).collect();
        oids.sort_unstable();
        oids.dedup();
        let keys: Vec<_> = oids.iter().map(|oid| key(*oid)).collect();
        self.note_pages(oids.iter().copied());
        let start = self.oracle.tick();
        for oid in &oids {
            let page = objects::page_of(*oid);
            // Other objects of its group, and objects attached to it.
            for part in 0..PARTS {
                let mate = objects::oid(page, part);
                if mate == *oid || !objects::base_form(page).is_empty() {
                    self.oracle.removal_begun(mate);
                }
            }
        }
        let outcome =
            self.timed("remove", timeout, |store| store.remove(&keys, Self::with_timeout(timeout)));
        self.trace(|| format!("  remove {oids:?} {outcome:?}"));
        let now = self.oracle.tick();
        match outcome {
            Some(Ok(removed)) => {
                self.fold_hash(removed as u64);
                if removed > keys.len() {
                    self.report(
                        FindingKind::Wrong,
                        format!(
                            "remove reports too many objects removed={removed} requested={}",
                            keys.len()
                        ),
                    );
                }
                for oid in &oids {
                    self.removed(*oid);
                }
                self.check_gone(&oids, now.min(start));
            }
            Some(Err(error)) => {
                self.fold_hash(error.kind as u64 ^ 0xde1);
                if timeout.is_none() {
                    self.check_error("remove", &error);
                }
            }
            None => {}
        }
    }

    /// An object is removed, with its group and the objects attached to it. Objects attached to
    /// other members are removed too if the group was present, which is unknown.
    fn removed(&mut self, oid: ObjectId) {
        let (page, part) = (objects::page_of(oid), objects::part_of(oid));
        let mut gone = vec![part];
        let base = objects::base_form(page);
        if objects::kind(page) != objects::PageKind::Mixed && base.contains(&part) {
            gone.extend(base);
        }
        for (of, parts) in objects::attached(page) {
            if *of == part || parts.contains(&part) {
                gone.extend(*parts);
            }
        }
        gone.iter().for_each(|part| self.oracle.removed(objects::oid(page, *part)));
    }

    /// Removed objects do not exist, unless a put of them is in flight.
    fn check_gone(&mut self, oids: &[ObjectId], _since: u32) {
        let Some(store) = self.store.clone() else { return };
        if self.plan.setup.constant || self.world.disk.stopped() {
            return;
        }
        for oid in oids {
            let putting = |c: &BatchWork| matches!(c, BatchWork::Put(puts) if puts.iter().any(|p| p.members.contains(oid)));
            if self.flights.iter().any(|f| putting(&f.work)) {
                continue;
            }
            if store.exists_batch(&[key(*oid)], Options::default())[0] {
                self.report(FindingKind::Wrong, format!("object exists after remove oid={oid}"));
            }
        }
    }

    pub(super) fn clear(&mut self, timeout: Option<Duration>) {
        self.drain_half_the_time();
        let ns = self.rng.below(NAMESPACES as u64) as usize;
        self.clear_one(ns, timeout);
    }

    pub(super) fn clear_one(&mut self, ns: usize, timeout: Option<Duration>) {
        self.oracle.tick();
        let inside = || {
            (ns..PAGES)
                .step_by(NAMESPACES)
                .flat_map(|page| (0..PARTS).map(move |p| objects::oid(page, p)))
        };
        for oid in inside() {
            self.oracle.removal_begun(oid);
        }
        let namespace = objects::namespace(ns);
        let outcome = self
            .timed("clear", timeout, |store| store.clear(namespace, Self::with_timeout(timeout)));
        self.trace(|| format!("  clear {ns} {outcome:?}"));
        self.oracle.tick();
        match outcome {
            Some(Ok(_)) => inside().for_each(|oid| self.oracle.removed(oid)),
            Some(Err(error)) if timeout.is_none() => self.check_error("clear", &error),
            _ => {}
        }
    }

    pub(super) fn pin(&mut self) {
        let Some(store) = self.store.clone() else { return };
        while self.pins.len() >= PINS_MAX {
            self.unpin();
        }
        for _ in 0..1 + self.rng.below(3) {
            let oid = self.some_oid();
            let pin = store.pin(&[key(oid)]);
            let pinned = pin.pinned() == 1;
            let now = self.oracle.tick();
            // With equal fingerprints it may be a pin of another object.
            let is_exact = !self.plan.setup.constant;
            if !pinned && is_exact && !self.world.disk.stopped() {
                let answer = self.oracle.miss(oid, now, "pin");
                self.judge(answer);
            }
            self.trace(|| format!("  pin {oid} pinned={pinned}"));
            let counts = pinned && is_exact && !self.struck;
            if counts {
                self.oracle.pinned(oid);
            }
            self.pins.push((pin, counts.then_some(oid)));
        }
    }

    pub(super) fn unpin(&mut self) {
        if self.pins.is_empty() {
            return;
        }
        let at = self.rng.below(self.pins.len() as u64) as usize;
        let (pin, oid) = self.pins.swap_remove(at);
        drop(pin);
        if let Some(oid) = oid {
            self.oracle.unpinned(oid);
        }
    }

    pub(super) fn lease(&mut self) {
        let Some(store) = self.store.clone() else { return };
        let keys = [key(self.some_oid()), key(self.some_oid())];
        let time = Duration::from_millis(1 + self.rng.below(200));
        let leased = store.lease(&keys, time);
        if leased > keys.len() {
            self.report(
                FindingKind::Wrong,
                format!("lease reports too many objects leased={leased} requested=2"),
            );
        }
    }

    pub(super) fn flush(&mut self) {
        self.drain_half_the_time();
        let timeout = self.rng.one_in(6).then(|| Duration::from_millis(self.rng.below(5)));
        let start = self.oracle.tick();
        let outcome =
            self.timed("flush", timeout, |store| store.flush(Options::default().timeout(timeout)));
        self.trace(|| format!("  flush {outcome:?}"));
        match outcome {
            Some(Ok(report)) => {
                self.fold_hash(report.durable_objects);
                self.flushed(start, report.lost_objects);
            }
            Some(Err(error)) if timeout.is_none() => self.check_error("flush", &error),
            _ => {}
        }
    }

    /// Verifies sealed segments.
    pub(super) fn scrub(&mut self) {
        let Some(store) = self.store.clone() else { return };
        // A scrub reads everything.
        self.noted_pages = None;
        let rate = [0, 1 << 20, 64 << 20][self.rng.below(3) as usize];
        let timeout = Duration::from_millis(1 + self.rng.below(200));
        let begun = self.world.clock.now();
        let outcome = store.scrub(ScrubOptions::default().bytes_per_s(rate).timeout(timeout));
        let took = self.world.clock.now().since(begun);
        self.take_strikes();
        self.trace(|| format!("  scrub {outcome:?}"));
        // The last read has its own deadline.
        self.check_time("scrub", took, timeout + self.plan.setup.deadline());
        match outcome {
            Ok(report) => {
                self.ledger.detected(report.damaged);
                self.sums.scrubbed += report.objects;
                if report.damaged + report.unreadable > 0
                    && !self.struck
                    && !self.world.disk.stopped()
                {
                    self.report(
                        FindingKind::Lost,
                        format!("scrub found damage without a fault {report:?}"),
                    );
                }
            }
            Err(error) => self.check_error("scrub", &error),
        }
    }

    /// A call that waits for the disk may also wait for a reader that only this thread could poll:
    /// half of the time there is none.
    fn drain_half_the_time(&mut self) {
        if self.rng.one_in(2) {
            self.drain();
        }
    }

    /// A flush or close that began at `start` succeeded with `lost` objects lost.
    pub(super) fn flushed(&mut self, start: u32, lost: u64) {
        self.oracle.tick();
        if self.plan.setup.ssd_mib == 0 {
            return;
        }
        // What a limit kept off SSD is reported with what admission refused.
        let limits = self.store.as_ref().map(|store| store.stats().limits).unwrap_or_default();
        let is_partial = limits.values().any(|limit| limit.writes_refused > 0);
        if is_partial {
            return;
        }
        if lost == 0 {
            self.oracle.flushed(start);
        } else if !self.struck && !self.world.disk.stopped() {
            self.report(
                FindingKind::Lost,
                format!("flush lost objects without a fault lost={lost}"),
            );
        }
    }
}
