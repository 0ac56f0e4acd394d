//! The hit ratio of the store against an independent simulation: an LRU list of pages, one page per
//! id. Both get the same requests. The hit ratio of a store of one tier with the same capacity must
//! be within a percentage point of the list's.
#![allow(clippy::print_stdout, reason = "a skip is printed")]

mod common;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use common::pagelith;
use pagelith_cli::trace::Trace;
use pagelith_cli::workload::Chat;

/// Two objects of 4 KiB.
const PAGE_BYTES: u64 = 8192;
/// Permitted difference of the hit ratios: the store's arena is not a list of equal slots.
const TOLERANCE: f64 = 0.01;

/// Share of the requested pages in the longest stored prefix of their request, with a capacity of
/// `capacity` pages. The first page of a request is the most recent one, so that the ends of chains
/// are evicted first.
fn reference(requests: impl Iterator<Item = Vec<u64>>, capacity: usize) -> f64 {
    let mut used: HashMap<u64, u64> = HashMap::new();
    let mut by_use: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut now, mut hits, mut requested) = (0, 0, 0);
    for ids in requests {
        requested += ids.len();
        hits += ids.iter().take_while(|id| used.contains_key(*id)).count();
        for id in ids.iter().rev() {
            now += 1;
            if let Some(before) = used.insert(*id, now) {
                by_use.remove(&before);
            }
            by_use.insert(now, *id);
            if used.len() > capacity
                && let Some((_, oldest)) = by_use.pop_first()
            {
                used.remove(&oldest);
            }
        }
    }
    hits as f64 / requested as f64
}

fn store(pages: usize, more: &[&str]) -> f64 {
    let dram = format!("--dram={}", pages as u64 * PAGE_BYTES);
    let args =
        [&["replay", "--json", "--ssd=0", "--policy=lru", "--object-bytes=4KiB", &dram], more]
            .concat();
    let ran = pagelith(&args);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["wrong_bytes"], 0, "{ran:?}");
    ran.json()["prefix_hit_ratio"].as_f64().unwrap()
}

fn chat(requests: usize) -> impl Iterator<Item = Vec<u64>> {
    let mut chat = Chat::new(1);
    (0..requests).map(move |_| chat.next_request().hash_ids)
}

fn trace(path: &Path) -> impl Iterator<Item = Vec<u64>> {
    Trace::open(path).unwrap().map(|request| request.unwrap().hash_ids)
}

#[test]
fn built_in_workload_hits_as_often_as_an_lru_list() {
    for pages in [500, 2000] {
        let expected = reference(chat(1500), pages);
        let found = store(pages, &["--requests=1500", "--seed=1"]);
        assert!(
            (found - expected).abs() < TOLERANCE,
            "pages={pages} expected={expected} found={found}"
        );
    }
    // The measure can tell capacities apart.
    assert!(reference(chat(1500), 2000) - reference(chat(1500), 500) > 5.0 * TOLERANCE);
}

/// Needs the trace `mooncake_conversation.jsonl.gz`, which is not part of this repository.
#[test]
fn real_trace_hits_as_often_as_an_lru_list() {
    let Some(path) = std::env::var_os("TEST_PAGELITH_TRACE").map(PathBuf::from) else {
        println!("skipped: TEST_PAGELITH_TRACE does not name mooncake_conversation.jsonl.gz");
        return;
    };
    // Known figures of this trace, so that a mistake in the list itself shows.
    for (pages, known) in [(5_483, 0.126), (18_279, 0.279), (usize::MAX, 0.366)] {
        let expected = reference(trace(&path), pages);
        assert!(
            (expected - known).abs() < 0.001,
            "pages={pages} expected={expected} known={known}"
        );
    }
    for pages in [5_483, 18_279] {
        let expected = reference(trace(&path), pages);
        let found = store(pages, &["--trace", &path.to_string_lossy()]);
        assert!(
            (found - expected).abs() < TOLERANCE,
            "pages={pages} expected={expected} found={found}"
        );
    }
}
