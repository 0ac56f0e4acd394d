//! Faults that the harness must detect, planted in the store before the replay.

use pagelith::config::{Config, MachineLimits, Size};
use pagelith::layouts::geometry::{Layout, Placement, presets};
use pagelith::layouts::ids::PrefixHash;
use pagelith::{Options, PutOutcome, PutSlice, Store};

use super::pages::{ModelChoice, Object, Pages};
use super::plan::{ReplayPlan, Target};
use super::report::Report;
use super::run;
use super::source::RequestSource;
use crate::content::Content;
use crate::exit::RunStatus;
use crate::workload::Chat;

const SEED: u64 = 7;
/// The first request, and some that share pages with it.
const REQUESTS: u64 = 20;

fn plan(model: &str, dir: &std::path::Path) -> ReplayPlan {
    let model = presets::model(model).expect("a preset");
    let placement = Placement::single(Layout::PageFirst);
    let chosen = ModelChoice { model: &model, placement: &placement, pools: None, scale: 512 };
    let mut config = Config::default();
    (config.dram.bytes, config.ssd.bytes) = (Size::mib(32), Size::mib(64));
    (config.staging.bytes, config.ssd.dirs) = (Size::mib(2), vec![dir.join("store")]);
    ReplayPlan {
        target: Target::Embedded(Box::new(
            config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid"),
        )),
        pages: Pages::of_model("chat", SEED, &chosen).expect("pages"),
        content: Content::new(SEED),
        reopen_at: None,
    }
}

/// The correct contents of a page's objects.
fn contents(plan: &ReplayPlan, objects: &[Object], page: PrefixHash) -> Vec<Vec<u8>> {
    let content = |object: &Object| {
        let mut bytes = vec![0; object.bytes];
        plan.content.fill(&object.key(page), &mut bytes);
        bytes
    };
    objects.iter().map(content).collect()
}

/// Put these contents as objects of a page: as one group, or each object by itself.
fn put(store: &Store, objects: &[Object], page: PrefixHash, contents: &[Vec<u8>], together: bool) {
    let pieces: Vec<[&[u8]; 1]> = contents.iter().map(|bytes| [&bytes[..]]).collect();
    let slice = |(object, pieces): (&Object, _)| (object.key(page), pieces);
    let objects: Vec<PutSlice<'_>> = objects
        .iter()
        .zip(&pieces)
        .map(slice)
        .map(|(key, pieces)| PutSlice { key, pieces })
        .collect();
    let outcomes = if together {
        store.put_groups(&[&objects], Options::default())
    } else {
        store.put_batch(&objects, Options::default())
    };
    assert!(outcomes.iter().all(|outcome| *outcome == Ok(PutOutcome::Stored)), "{outcomes:?}");
}

/// Replay on a store that `plant` has prepared, given the pages of the first request.
fn replay_on(model: &str, plant: impl FnOnce(&ReplayPlan, &Store, &[PrefixHash])) -> Report {
    let dir = tempfile::tempdir().expect("a directory");
    let plan = plan(model, dir.path());
    let first: Vec<PrefixHash> =
        Chat::new(SEED).next_request().hash_ids.into_iter().map(Pages::hash).collect();
    let Target::Embedded(config) = &plan.target else { panic!("a store of this process") };
    let store = Store::open((**config).clone()).expect("a store");
    plant(&plan, &store, &first);
    store.close().expect("closed");
    run::replay(&plan, RequestSource::chat(SEED, Some(REQUESTS))).expect("replayed").0
}

const HYBRID: &str = "deepseek-v3.2+deepseek-v3.2-mtp";

#[test]
fn correct_content_gives_no_problem() {
    let report = replay_on(HYBRID, |plan, store, pages| {
        let base = plan.pages.base();
        put(store, base, pages[0], &contents(plan, base, pages[0]), true);
    });
    assert_eq!((report.wrong_bytes, report.partial_groups), (0, 0), "{report:?}");
    assert!(report.prefix_hits.dram + report.prefix_hits.ssd > 0, "{report:?}");
    assert_eq!(super::run_status(&report), RunStatus::Clean);
}

#[test]
fn flipped_byte_of_any_object_is_a_wrong_byte() {
    for model in [HYBRID, "qwen3-next"] {
        for flipped in 0..plan(model, std::path::Path::new("/nowhere")).pages.base().len() {
            let report = replay_on(model, |plan, store, pages| {
                let base = plan.pages.base();
                for page in pages {
                    let mut contents = contents(plan, base, *page);
                    let last = contents[flipped].len() - 1;
                    contents[flipped][last] ^= 1;
                    put(store, base, *page, &contents, true);
                }
                // A page without its trailing objects is not read.
                for unit in plan.pages.trailing_units(pages) {
                    put(
                        store,
                        unit.objects,
                        unit.hash,
                        &contents(plan, unit.objects, unit.hash),
                        true,
                    );
                }
            });
            assert!(report.wrong_bytes > 0, "model={model} object={flipped} {report:?}");
            assert_eq!(super::run_status(&report), RunStatus::Problems);
        }
    }
}

#[test]
fn page_without_one_of_its_objects_is_a_partial_group() {
    for missing in 0..4 {
        let report = replay_on(HYBRID, |plan, store, pages| {
            let base = plan.pages.base();
            let kept: Vec<Object> =
                base.iter().enumerate().filter(|(i, _)| *i != missing).map(|(_, o)| *o).collect();
            assert_eq!(kept.len(), 3);
            put(store, &kept, pages[0], &contents(plan, &kept, pages[0]), false);
        });
        // Counted once: then the replay has put the missing object.
        assert_eq!(
            (report.partial_groups, report.wrong_bytes),
            (1, 0),
            "missing={missing} {report:?}"
        );
        assert_eq!(super::run_status(&report), RunStatus::Problems);
    }
}

#[test]
fn trailing_object_without_its_page_is_a_partial_group() {
    let report = replay_on("qwen3-next", |plan, store, pages| {
        for unit in plan.pages.trailing_units(pages) {
            put(store, unit.objects, unit.hash, &contents(plan, unit.objects, unit.hash), false);
        }
    });
    assert_eq!((report.partial_groups, report.wrong_bytes), (1, 0), "{report:?}");
    assert_eq!(super::run_status(&report), RunStatus::Problems);
}
