//! Tests of the oracle, call by call. Each rule has an allowed and a forbidden answer.

use super::*;

const A: ObjectId = 8;

#[derive(Clone)]
struct Case {
    oracle: Oracle,
    no: u32,
}

impl Case {
    fn new(roomy: bool) -> Case {
        Case { oracle: Oracle::new(roomy, false), no: 0 }
    }

    /// Puts and gets the outcome stored; returns the put number.
    fn put(&mut self) -> u32 {
        self.no += 1;
        self.oracle.tick();
        self.oracle.put_begun(A, self.no, 100);
        self.oracle.tick();
        self.oracle.put_stored(A, self.no);
        self.no
    }

    fn take(&mut self, acked: bool) {
        self.oracle.tick();
        self.oracle.removal_begun(A);
        self.oracle.tick();
        if acked {
            self.oracle.removed(A);
        }
    }

    fn flush(&mut self) {
        let start = self.oracle.tick();
        self.oracle.tick();
        self.oracle.flushed(start);
    }

    /// A get that began at `start` returns the bytes of put `no`.
    fn hit_since(&mut self, start: u32, no: u32) -> Result<ObservedVersion, Violation> {
        let mut bytes = [0; 100];
        Content::of(A, no).fill(&mut bytes);
        self.oracle.tick();
        self.oracle.hit(A, start, std::iter::once((0, &bytes[..])), Some(100))
    }

    fn hit(&mut self, no: u32) -> bool {
        let start = self.oracle.tick();
        self.hit_since(start, no).is_ok()
    }

    fn miss(&mut self) -> bool {
        let start = self.oracle.tick();
        self.oracle.tick();
        self.oracle.miss(A, start, "test").is_ok()
    }
}

#[test]
fn hit_with_bytes_of_other_put_is_wrong() {
    let mut c = Case::new(false);
    let put = c.put();
    assert!(c.hit(put) && !c.hit(put + 1));
    let mut bytes = [0; 100];
    Content::of(A + 1, put).fill(&mut bytes);
    let start = c.oracle.tick();
    let other = c.oracle.hit(A, start, std::iter::once((0, &bytes[..])), Some(100));
    assert!(matches!(other, Err(Violation::Bytes(_))), "{other:?}");
    let short = c.oracle.hit(A, start, std::iter::once((0, &bytes[..50])), Some(50));
    assert!(matches!(short, Err(Violation::Bytes(_))), "{short:?}");
}

#[test]
fn replaced_version_is_allowed_for_earlier_gets() {
    let mut c = Case::new(false);
    let old = c.put();
    let before = c.oracle.tick();
    let new = c.put();
    let after = c.oracle.tick();
    assert!(c.hit_since(before, old).is_ok());
    assert!(c.hit_since(after, old).is_err());
    assert!(c.hit_since(after, new).is_ok());
    c.oracle.rebooted(true);
    assert!(c.hit(old), "evicted, and found again because the newer one was lost");
}

#[test]
fn durable_version_hides_replaced_one_without_eviction() {
    let mut c = Case::new(true);
    let old = c.put();
    c.take(false);
    let new = c.put();
    c.flush();
    c.oracle.rebooted(true);
    assert!(c.hit(new));
    assert!(!c.hit(old));
}

#[test]
fn removed_version_never_comes_back() {
    let mut c = Case::new(false);
    let put = c.put();
    let before = c.oracle.tick();
    c.take(true);
    assert!(c.hit_since(before, put).is_ok(), "the get began before the remove");
    assert!(!c.hit(put) && c.miss());
    c.oracle.rebooted(true);
    assert!(!c.hit(put));
}

#[test]
fn failed_remove_may_have_taken_effect() {
    let mut c = Case::new(true);
    let put = c.put();
    c.flush();
    c.take(false);
    assert!(c.miss() && c.hit(put));
    c.oracle.rebooted(true);
    assert!(c.miss() && c.hit(put));
}

#[test]
fn miss_without_eviction_is_wrong() {
    let mut c = Case::new(true);
    c.put();
    assert!(!c.miss());
    c.oracle.rebooted(true);
    assert!(c.miss(), "no flush covered it");
    c.put();
    c.flush();
    c.oracle.rebooted(true);
    let start = c.oracle.tick();
    assert!(matches!(c.oracle.miss(A, start, "test"), Err(Violation::SyncedLost(_))));
    c.oracle.rebooted(false);
    assert!(c.miss(), "the process that runs could not read everything");
    c.oracle.rebooted(true);
    assert!(c.miss(), "and its checkpoint has what it read");
}

#[test]
fn miss_of_pinned_object_is_wrong() {
    let mut c = Case::new(false);
    c.put();
    assert!(c.miss());
    c.oracle.pinned(A);
    assert!(!c.miss());
    c.oracle.unpinned(A);
    assert!(c.miss());
}

#[test]
fn struck_read_excuses_misses_until_next_hit() {
    let mut c = Case::new(true);
    let put = c.put();
    c.flush();
    c.oracle.tick();
    c.oracle.struck(FaultEffect::Read);
    assert!(c.miss());
    let now = c.oracle.tick();
    c.oracle.oldest(now);
    assert!(c.hit(put) && !c.miss());
    c.oracle.struck(FaultEffect::Read);
    c.oracle.rebooted(true);
    assert!(!c.miss(), "it is durable, and the next process finds it");
}

#[test]
fn failed_write_excuses_unflushed_objects() {
    let mut c = Case::new(true);
    let put = c.put();
    c.flush();
    c.oracle.struck(FaultEffect::Write);
    assert!(c.miss(), "the tier may be turned off");
    c.oracle.rebooted(true);
    assert!(c.hit(put) && !c.miss(), "but the next process has the flushed object");
    c.oracle.struck(FaultEffect::Write);
    c.take(true);
    c.put();
    assert!(c.miss(), "memory alone has it, and evicts");
    assert!(!c.hit(put));
}

#[test]
fn removed_object_returns_only_after_lie() {
    for (what, comes_back) in [(FaultEffect::Rot, false), (FaultEffect::Lie, true)] {
        let mut c = Case::new(true);
        c.oracle.set_lying();
        let put = c.put();
        c.flush();
        c.take(true);
        c.oracle.struck(what);
        c.oracle.rebooted(true);
        assert!(c.miss());
        let start = c.oracle.tick();
        let seen = c.hit_since(start, put);
        assert_eq!(seen.is_ok_and(|seen| seen.returned), comes_back, "{what:?}");
        assert!(!c.hit(put + 1), "but never bytes of no put");
    }
}

#[test]
fn put_without_effect_is_never_visible() {
    let mut c = Case::new(false);
    c.oracle.tick();
    c.oracle.put_begun(A, 7, 100);
    assert!(c.hit(7), "it runs, and may have taken effect");
    c.oracle.put_nothing(A, 7);
    assert!(!c.hit(7));
    // An open group is committed twice; the second commit stores nothing.
    c.oracle.put_begun(A, 8, 100);
    c.oracle.tick();
    c.oracle.put_unknown(A, 8);
    c.oracle.put_begun(A, 8, 100);
    c.oracle.put_nothing(A, 8);
    assert!(c.hit(8));
}

#[test]
fn short_hit_does_not_identify_its_put() {
    let mut oracle = Oracle::new(false, false);
    let one = |oracle: &mut Oracle, no: u32| {
        oracle.tick();
        oracle.put_begun(A, no, 1);
        oracle.put_unknown(A, no);
    };
    (0..600).for_each(|no| one(&mut oracle, no));
    let start = oracle.tick();
    let seen =
        oracle.hit(A, start, std::iter::once((0, &[7u8][..])), Some(1)).expect("one of 600 has it");
    assert!(!seen.sure);
}

#[test]
fn hit_during_struck_read_is_not_made_durable_by_flush() {
    let mut c = Case::new(true);
    let put = c.put();
    c.flush();
    let start = c.oracle.tick();
    c.oracle.struck(FaultEffect::Read);
    c.oracle.may_be_dropped(crate::explore::objects::page_of(A));
    assert!(c.hit_since(start, put).is_ok());
    c.flush();
    c.oracle.rebooted(true);
    assert!(c.miss(), "its group was dropped, and a checkpoint has it so");
    let now = c.oracle.tick();
    c.oracle.oldest(now);
    assert!(c.hit(put));
    c.flush();
    c.oracle.rebooted(true);
    assert!(!c.miss(), "an object that is seen later is present");
}

#[test]
fn open_group_committed_twice_is_one_put() {
    let mut c = Case::new(false);
    c.no = 1;
    c.oracle.tick();
    c.oracle.put_begun(A, 1, 100);
    c.oracle.put_unknown(A, 1);
    c.oracle.tick();
    c.oracle.put_begun(A, 1, 100);
    assert!(c.hit(1));
    // The second commit finds no such group.
    c.oracle.put_nothing(A, 1);
    let start = c.oracle.tick();
    assert!(c.oracle.may_be_present(A, start));
}

#[test]
fn after_failed_sync_only_machine_crash_proves_durability() {
    for crashed in [false, true] {
        let mut c = Case::new(true);
        let put = c.put();
        c.oracle.struck(FaultEffect::Write);
        c.oracle.began_after_failed_sync();
        if crashed {
            c.oracle.machine_crashed();
        }
        c.oracle.rebooted(true);
        let now = c.oracle.tick();
        c.oracle.oldest(now);
        assert!(c.hit(put));
        c.flush();
        c.oracle.rebooted(true);
        assert_eq!(c.miss(), !crashed, "the device may have kept it in its cache alone");
    }
}

#[test]
fn concurrent_puts_may_be_ordered_either_way() {
    let mut c = Case::new(true);
    c.oracle.tick();
    c.oracle.put_begun(A, 1, 100);
    c.oracle.put_begun(A, 2, 100);
    c.take(true);
    for no in [1, 2] {
        c.oracle.tick();
        c.oracle.put_stored(A, no);
    }
    c.flush();
    c.oracle.rebooted(true);
    assert!(c.miss(), "both may have been cleared");
    assert!(c.clone().hit(1) && c.hit(2), "and so may have been either");
}

#[test]
fn put_during_struck_read_may_be_dropped() {
    for struck in [false, true] {
        let mut c = Case::new(true);
        c.oracle.tick();
        c.oracle.put_begun(A, 1, 100);
        if struck {
            c.oracle.struck(FaultEffect::Read);
        }
        c.oracle.tick();
        c.oracle.put_stored(A, 1);
        c.flush();
        assert_eq!(c.miss(), struck);
        c.oracle.rebooted(true);
        assert_eq!(c.miss(), struck);
    }
}
