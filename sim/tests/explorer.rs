//! A few seeds of the explorer in every test run; `pagelith-sim run` runs many.

use pagelith_sim::explore::{ExplorePlan, FaultChoice, RunTotals, explore, shrink};

const OPS: usize = 1500;

/// Runs seeds; a finding fails the test with the commands to reproduce it.
fn check(seeds: std::ops::Range<u64>, faults: FaultChoice, constant: bool) -> RunTotals {
    let mut sums = RunTotals::default();
    for seed in seeds {
        let plan = ExplorePlan::of_seed(seed, OPS, faults, constant);
        let (own, findings) = explore(&plan);
        if let Some(finding) = findings.first() {
            let shrunk = shrink(&plan, finding, 40);
            panic!(
                "seed={seed} {finding:?}\nreplay: pagelith-sim replay --seed {seed} --ops {OPS} --faults {faults}{}\n\
                 shrunk to {} operations: {:#?}",
                if constant { " --constant-fingerprint" } else { "" },
                shrunk.plan.ops.len(),
                shrunk.plan.ops,
            );
        }
        sums.add(&own);
    }
    sums
}

#[test]
fn seeds_without_faults() {
    let sums = check(0..12, FaultChoice::None, false);
    assert!(sums.faults.is_empty(), "{:?}", sums.faults);
    assert!(sums.reads_checked > 1000 && sums.crashes > 20 && sums.clean_reboots > 5, "{sums:?}");
    assert!(sums.durable_checked > 1000, "what must be there was hardly looked at: {sums:?}");
}

#[test]
fn seeds_with_faults() {
    let sums = check(0..24, FaultChoice::Mixed, false);
    let injected: u64 = sums.faults.values().map(|f| f.injected).sum();
    let explained: u64 = sums.faults.values().map(|f| f.detected + f.harmless).sum();
    assert!(injected > 100, "{:?}", sums.faults);
    assert_eq!(injected, explained, "{:?}", sums.faults);
}

/// Seeds that found a bug of the store, each of a kind that none of the first ten thousand seeds
/// had shown. A change of the explorer's operations changes these runs.
#[test]
fn seeds_that_found_bugs_stay_clean() {
    for seed in [
        227, 8_297, 13_342, 16_629, 35_348, 43_445, 46_783, 48_987, 51_515, 52_387, 59_391, 64_210,
        67_647, 79_917, 81_005, 86_181, 91_985,
    ] {
        let plan = ExplorePlan::of_seed(seed, 5000, FaultChoice::Mixed, false);
        let (_, findings) = explore(&plan);
        assert!(findings.is_empty(), "seed={seed} {findings:?}");
    }
}

#[test]
fn seeds_with_one_fingerprint_for_all_keys() {
    check(0..6, FaultChoice::None, true);
}

#[test]
fn explorer_same_seed_gives_same_trace() {
    for seed in [3, 4, 5, 6] {
        let plan = ExplorePlan::of_seed(seed, OPS, FaultChoice::Mixed, false);
        let (a, b) = (explore(&plan), explore(&plan));
        assert_eq!(a, b, "seed={seed}");
    }
    let traces: std::collections::BTreeSet<u64> = (0..4)
        .map(|s| explore(&ExplorePlan::of_seed(s, 200, FaultChoice::None, false)).0.trace_hash)
        .collect();
    assert_eq!(traces.len(), 4, "seeds do not matter");
}
