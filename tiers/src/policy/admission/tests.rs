use super::*;

const PAGE_BYTES: u64 = 1 << 16;
/// Pages of the log.
const CAPACITY_PAGES: u64 = 1000;

fn admission(settings: AdmissionSettings) -> Admission {
    Admission::new(settings, CAPACITY_PAGES * PAGE_BYTES, 4 * CAPACITY_PAGES)
}

fn worth() -> AdmissionSettings {
    AdmissionSettings::of_rule(AdmissionRule::Worth)
}

/// A page with a hash that scatters.
fn page(n: u64) -> TouchedPage {
    let z = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let page = PolicyKey(z ^ (z >> 31));
    let (bytes, depth) = (PAGE_BYTES, 0);
    TouchedPage { page, bytes, depth, on_ssd: false, required: false, attached: false }
}

/// Decisions of one batch.
fn touch(
    admission: &mut Admission,
    request: u64,
    kind: BatchKind,
    pages: &[TouchedPage],
) -> Vec<bool> {
    let mut write = Vec::new();
    admission.touch(request, kind, pages, 0, &mut write);
    let written = write.iter().filter(|write| **write).count() as u64;
    admission.appended(written * PAGE_BYTES);
    write
}

/// Pages of documents that are requested again and again, and as many pages that never are. Each
/// request is for a document of 5 pages and then for 5 new pages. Returns the decisions of the last
/// tenth: of documents, and of the others.
fn run(admission: &mut Admission, requests: u64) -> (Vec<bool>, Vec<bool>) {
    let (mut documents, mut others) = (Vec::new(), Vec::new());
    for request in 0..requests {
        let document: Vec<_> = (0..5).map(|n| page(request % 40 * 5 + n)).collect();
        let new: Vec<_> = (0..5).map(|n| page(1_000_000 + request * 5 + n)).collect();
        let kept = touch(admission, 2 * request + 1, BatchKind::Put, &document);
        let refused = touch(admission, 2 * request + 2, BatchKind::Put, &new);
        if request * 10 >= requests * 9 {
            documents.extend(kept);
            others.extend(refused);
        }
    }
    (documents, others)
}

#[test]
fn everything_is_written_before_anything_is_learned() {
    let mut admission = admission(worth());
    for request in 0..CAPACITY_PAGES / 20 {
        let pages: Vec<_> = (0..9).map(|n| page(request * 9 + n)).collect();
        assert_eq!(touch(&mut admission, request + 1, BatchKind::Put, &pages), [true; 9]);
    }
}

#[test]
fn pages_that_return_are_written_and_others_are_refused() {
    let mut admission = admission(worth());
    let (documents, others) = run(&mut admission, 5000);
    assert!(documents.iter().all(|write| *write), "all documents are written");
    let written = others.iter().filter(|write| **write).count();
    assert!(written * 20 < others.len(), "written={written} of {}", others.len());
    assert!(admission.counts().refused > 0);
}

#[test]
fn same_calls_give_the_same_decisions() {
    let decisions = || run(&mut admission(worth()), 3000);
    assert_eq!(decisions(), decisions());
}

#[test]
fn workload_that_begins_to_return_is_written_again() {
    let mut admission = admission(worth());
    run(&mut admission, 5000);
    // Now pages are requested again once, 100 requests later.
    let mut written = 0;
    for request in 0..4000_u64 {
        let new: Vec<_> = (0..5).map(|n| page(9_000_000 + request * 5 + n)).collect();
        let kept = touch(&mut admission, 100_000 + request, BatchKind::Put, &new);
        if let Some(before) = request.checked_sub(100) {
            let old: Vec<_> = (0..5).map(|n| page(9_000_000 + before * 5 + n)).collect();
            touch(&mut admission, 200_000 + request, BatchKind::Get, &old);
        }
        written += if request >= 3500 { kept.iter().filter(|kept| **kept).count() } else { 0 };
    }
    assert!(written > 500 * 5 * 9 / 10, "written={written}");
}

#[test]
fn no_page_after_a_refused_one_is_written_unless_it_is_required() {
    let mut admission = admission(AdmissionSettings::of_rule(AdmissionRule::SecondTouch));
    let pages: Vec<_> = (0..4).map(page).collect();
    assert_eq!(touch(&mut admission, 1, BatchKind::Put, &pages), [false; 4]);
    let (new, required) = (page(9), TouchedPage { required: true, ..page(10) });
    let mixed = [pages[0], pages[1], new, pages[2], required];
    let write = touch(&mut admission, 2, BatchKind::Put, &mixed);
    assert_eq!(write, [true, true, false, false, true]);
    // The next batch of the same request, too; another request is not concerned.
    assert_eq!(touch(&mut admission, 2, BatchKind::Put, &pages[3..]), [false]);
    assert_eq!(touch(&mut admission, 3, BatchKind::Put, &pages[3..]), [true]);
}

#[test]
fn page_before_a_refused_one_is_written_also_if_it_is_put_later() {
    let mut admission = admission(AdmissionSettings::of_rule(AdmissionRule::SecondTouch));
    let at = |n: u64| TouchedPage { depth: n as u32, ..page(n) };
    touch(&mut admission, 1, BatchKind::Put, &[at(1), at(3), at(4)]);
    // The tail first, as groups are committed one by one.
    for (n, is_written) in [(5, false), (4, true), (2, false), (3, false), (1, true)] {
        let write = touch(&mut admission, 2, BatchKind::Put, &[at(n)]);
        assert_eq!(write, [is_written], "{n}");
    }
}

#[test]
fn state_is_written_unless_its_page_was_refused() {
    let mut admission = admission(AdmissionSettings::of_rule(AdmissionRule::SecondTouch));
    let state = |n: u64| TouchedPage { attached: true, ..page(n) };
    assert_eq!(touch(&mut admission, 1, BatchKind::Put, &[page(1), state(1)]), [false; 2]);
    // A call of its own.
    assert_eq!(touch(&mut admission, 2, BatchKind::Put, &[state(1)]), [false]);
    let (required, on_ssd) =
        (TouchedPage { required: true, ..state(1) }, TouchedPage { on_ssd: true, ..state(1) });
    assert_eq!(touch(&mut admission, 2, BatchKind::Put, &[required, on_ssd]), [true, false]);
    assert_eq!(touch(&mut admission, 3, BatchKind::Get, &[page(1)]), [true]);
    assert_eq!(touch(&mut admission, 3, BatchKind::Get, &[state(1)]), [true]);
    assert_eq!(touch(&mut admission, 4, BatchKind::Put, &[state(9)]), [true], "unknown page");
}

#[test]
fn writes_begin_again_after_a_victim_of_great_worth() {
    let mut admission = admission(worth());
    let hot = page(1 << 40);
    let mut documents = |reclaims: bool| {
        let mut written = Vec::new();
        for request in 0..6000 {
            touch(&mut admission, 2 * request + 1, BatchKind::Get, &[hot]);
            let document: Vec<_> = (0..5).map(|n| page(request % 40 * 5 + n)).collect();
            written.extend(touch(&mut admission, 2 * request + 2, BatchKind::Put, &document));
        }
        if reclaims {
            // A wrong hint may give up a page that every request has.
            admission.reclaim([Some(hot.page)]);
        }
        written
    };
    assert!(documents(true).iter().all(|written| *written));
    let written = documents(false);
    assert!(written[..100].iter().all(|written| !written));
    assert!(written[written.len() - 1000..].iter().all(|written| *written));
}

#[test]
fn page_touched_twice_in_a_row_by_a_request_counts_once() {
    let mut admission = admission(AdmissionSettings::of_rule(AdmissionRule::SecondTouch));
    let twice = [page(1), page(1)];
    assert_eq!(touch(&mut admission, 1, BatchKind::Put, &twice), [false, false]);
    assert_eq!(touch(&mut admission, 1, BatchKind::Put, &twice), [false, false]);
    assert_eq!(touch(&mut admission, 2, BatchKind::Put, &twice), [true, true]);
}

#[test]
fn page_on_ssd_is_touched_and_not_written() {
    let mut admission = admission(AdmissionSettings::of_rule(AdmissionRule::SecondTouch));
    let there = TouchedPage { on_ssd: true, ..page(1) };
    assert_eq!(touch(&mut admission, 1, BatchKind::Get, &[there]), [false]);
    assert_eq!(touch(&mut admission, 2, BatchKind::Put, &[page(1)]), [true]);
}

#[test]
fn refused_page_that_is_put_again_is_counted() {
    let mut admission = admission(AdmissionSettings::of_rule(AdmissionRule::SecondTouch));
    touch(&mut admission, 1, BatchKind::Put, &[page(1), page(2)]);
    assert_eq!(admission.counts(), AdmissionCounts { refused: 2, refused_put_again: 0 });
    touch(&mut admission, 2, BatchKind::Put, &[page(1)]);
    assert_eq!(admission.counts(), AdmissionCounts { refused: 2, refused_put_again: 1 });
    touch(&mut admission, 3, BatchKind::Put, &[page(1)]);
    assert_eq!(admission.counts().refused_put_again, 1, "it was written in the meantime");
}

#[test]
fn removed_page_is_forgotten() {
    let mut admission = admission(AdmissionSettings::of_rule(AdmissionRule::SecondTouch));
    touch(&mut admission, 1, BatchKind::Put, &[page(1)]);
    admission.forget(page(1).page);
    assert_eq!(touch(&mut admission, 2, BatchKind::Put, &[page(1)]), [false]);
}

#[test]
fn budget_is_held_within_five_percent_over_each_lap() {
    for (rule, share) in
        [(AdmissionRule::Worth, 30), (AdmissionRule::Through, 50), (AdmissionRule::SecondTouch, 60)]
    {
        let mut admission =
            admission(AdmissionSettings { budget: true, ..AdmissionSettings::of_rule(rule) });
        let (mut granted, mut written, mut since) = (0_u64, 0_u64, (0, 0));
        let mut laps = 0;
        for request in 0..20_000_u64 {
            // Two of three requests are for pages that were touched before.
            let first = if request % 3 == 0 { 1_000_000 + request * 4 } else { request % 700 * 4 };
            let pages: Vec<_> = (0..4).map(|n| page(first + n)).collect();
            let write = touch(&mut admission, request + 1, BatchKind::Put, &pages);
            written += write.iter().filter(|write| **write).count() as u64;
            granted += 4 * PAGE_BYTES * share / 100;
            admission.grant(4 * PAGE_BYTES * share / 100);
            if written - since.1 >= CAPACITY_PAGES {
                let spent = (written - since.1) * PAGE_BYTES;
                let allowed = granted - since.0;
                assert!(spent * 100 <= allowed * 105, "{rule:?} spent={spent} allowed={allowed}");
                (since, laps) = ((granted, written), laps + 1);
            }
        }
        assert!(laps > 10, "{rule:?} laps={laps}");
    }
}

#[test]
fn rules_are_found_only_by_their_names() {
    for name in ADMISSION_RULES {
        assert!(AdmissionRule::of_name(name).is_some(), "{name}");
    }
    assert_eq!(AdmissionRule::of_name("all"), None);
}

#[test]
fn restored_admission_refuses_what_it_had_learned_to_refuse() {
    let mut before = admission(worth());
    assert_eq!(before.learned(), None);
    run(&mut before, 5000);
    let learned = before.learned().expect("it has learned");
    let mut after = admission(worth());
    after.restore(&learned);
    assert_eq!(after.learned(), Some(learned));
    let new: Vec<_> = (0..5).map(|n| page(7_000_000 + n)).collect();
    assert_eq!(touch(&mut after, 1, BatchKind::Put, &new), [false; 5]);
    // It goes on learning: documents are recognized when they return.
    let (documents, _) = run(&mut after, 5000);
    assert!(documents.iter().all(|write| *write), "all documents are written");
}

#[test]
fn change_of_workload_is_noticed_while_little_is_written() {
    let mut admission = admission(worth());
    // Pages that are never requested again, of which one in 50 is written.
    for n in 0..60_000_u64 {
        let new = TouchedPage { required: n % 50 == 0, ..page(1_000_000 + n) };
        touch(&mut admission, n + 1, BatchKind::Put, &[new]);
    }
    // Now each page is requested again, 500 pages later.
    let mut written = 0;
    for n in 0..20_000_u64 {
        let new = touch(&mut admission, 100_000 + 2 * n, BatchKind::Put, &[page(9_000_000 + n)]);
        written += u64::from(n >= 18_000 && new[0]);
        if let Some(before) = n.checked_sub(500) {
            let there = TouchedPage { on_ssd: true, ..page(9_000_000 + before) };
            touch(&mut admission, 100_001 + 2 * n, BatchKind::Get, &[there]);
        }
    }
    assert!(written > 1900, "written={written} of 2000");
}
