//! Stores and clients over links with every fault, and checks that each planted bug of a link is
//! detected.

use pagelith_sim::link::PlantedBug;
use pagelith_sim::links::{LinksPlan, Tally, Topology, run};

const OPS: u32 = 600;

fn of(seeds: std::ops::Range<u64>, plant: PlantedBug, calm: bool) -> Tally {
    of_shape(seeds, None, plant, calm)
}

fn of_shape(
    seeds: std::ops::Range<u64>,
    shape: Option<Topology>,
    plant: PlantedBug,
    calm: bool,
) -> Tally {
    let ops = if plant == PlantedBug::StaleOutcome { 1000 } else { OPS };
    let mut sums = Tally::default();
    seeds
        .map(|seed| run(&LinksPlan { seed, ops, calm, shape, plant }))
        .for_each(|tally| sums.add(&tally));
    sums
}

/// `pagelith-sim links --seeds 0..200 --ops 2000` sends a million packets.
#[test]
fn faulty_links_cause_no_wrong_hit_and_no_late_write() {
    let sums = of(0..12, PlantedBug::None, false);
    assert!(sums.is_clean(), "{sums:?}");
    let met = [
        sums.duplicated,
        sums.reordered,
        sums.dropped,
        sums.flipped,
        sums.late,
        sums.cuts,
        sums.kills,
    ];
    assert!(
        met.iter().all(|count| *count > 10),
        "a run that meets nothing shows nothing: {sums:?}"
    );
    assert!(sums.hits > 1000 && sums.found_here > 500 && sums.removals > 100, "{sums:?}");
}

#[test]
fn referenced_bytes_stay_unchanged_and_are_released_for_gone_clients() {
    let sums = of_shape(0..12, Some(Topology::Shown), PlantedBug::None, false);
    assert!(sums.is_clean(), "{sums:?}");
    assert!(sums.shown > 1000 && sums.viewed > 50, "{sums:?}");
    assert!(
        sums.looked_late > 10 && sums.kills > 10,
        "a run that meets nothing shows nothing: {sums:?}"
    );
}

#[test]
fn mutual_peers_never_return_removed_objects() {
    let sums = of_shape(0..40, Some(Topology::Mutual), PlantedBug::None, false);
    assert!(sums.is_clean(), "{sums:?}");
    assert!(
        sums.questions > 5000 && sums.removals > 250 && sums.hits > 2500 && sums.kills > 25,
        "{sums:?}"
    );
}

#[test]
fn one_sided_transfers_touch_no_memory_after_it_was_given_back() {
    let shapes = [Topology::Rdma, Topology::RdmaBehind, Topology::RdmaFronts];
    for (shape, least) in shapes.into_iter().zip([1000, 500, 100]) {
        let sums = of_shape(0..10, Some(shape), PlantedBug::None, false);
        assert!(sums.is_clean(), "{shape:?} {sums:?}");
        let fabric = sums.fabric;
        assert!(fabric.placed > least && fabric.landed_late > least, "{shape:?} {fabric:?}");
        assert!(fabric.forced > 20, "{shape:?}: no queue pair was taken down {fabric:?}");
        assert!(sums.hits > 1000 && sums.kills > 20, "{shape:?} {sums:?}");
        // Offers of stores to their peers are not in registered memory there.
        assert!(fabric.fetched > least || shape == Topology::RdmaFronts, "{shape:?} {fabric:?}");
    }
}

#[test]
fn links_over_rdma_same_seed_gives_same_run() {
    let of = |seed| of_shape(seed..seed + 1, Some(Topology::Rdma), PlantedBug::None, false);
    assert_eq!(of(1), of(1));
    assert_ne!(of(1).trace, of(2).trace);
}

#[test]
fn calm_links_lose_nothing() {
    let sums = of(0..4, PlantedBug::None, true);
    assert!(sums.is_clean() && sums.dropped + sums.cuts + sums.kills == 0, "{sums:?}");
    assert!(sums.hits > 500, "{sums:?}");
}

#[test]
fn links_same_seed_gives_same_run() {
    for seed in [1, 2] {
        assert_eq!(
            of(seed..seed + 1, PlantedBug::None, false),
            of(seed..seed + 1, PlantedBug::None, false)
        );
    }
    assert_ne!(of(1..2, PlantedBug::None, false).trace, of(2..3, PlantedBug::None, false).trace);
}

/// A planted bug is detected by one of these seeds. Stale outcomes are detected by one in a dozen,
/// but by chance by none of the first forty.
fn detects(plant: PlantedBug, noticed: fn(&Tally) -> bool) {
    let sums = (0..400).map(|seed| of(seed..seed + 1, plant, false)).find(noticed);
    assert!(sums.is_some(), "{plant:?} was not noticed");
}

#[test]
fn planted_stale_outcome_is_detected() {
    detects(PlantedBug::StaleOutcome, |sums| sums.wrong > 0);
}

#[test]
fn planted_write_after_retract_is_detected() {
    detects(PlantedBug::WriteAfterRetract, |sums| sums.touched_late > 0);
    detects(PlantedBug::WriteAfterRetract, |sums| sums.held_late > 0);
}

#[test]
fn planted_early_push_completion_is_detected() {
    detects(PlantedBug::EarlyPushCompletion, |sums| sums.held_late > 0);
}

#[test]
fn planted_unverified_reader_is_detected() {
    detects(PlantedBug::Unverified, |sums| sums.wrong > 0);
}

/// A planted bug of one-sided transfers is detected by one of these seeds.
fn detects_over_rdma(plant: PlantedBug, noticed: fn(&Tally) -> bool) {
    let of = |seed| of_shape(seed..seed + 1, Some(Topology::Rdma), plant, false);
    assert!((0..100).map(of).any(|sums| noticed(&sums)), "{plant:?} was not noticed");
}

#[test]
fn planted_early_returns_of_memory_are_detected() {
    for plant in [
        PlantedBug::BackAtRetract,
        PlantedBug::BackAtStreamEnd,
        PlantedBug::BackAtServerFlush,
        PlantedBug::NoticeBeforeData,
    ] {
        detects_over_rdma(plant, |sums| sums.touched_late > 0);
    }
}

#[test]
fn planted_lack_of_receives_is_detected() {
    detects_over_rdma(PlantedBug::TooFewReceives, |sums| sums.fabric.unreceived > 0);
}

#[test]
fn planted_wrong_region_base_is_detected() {
    detects_over_rdma(PlantedBug::WrongRegionBase, |sums| sums.fabric.strayed > 0);
    detects_over_rdma(PlantedBug::WrongRegionBase, |sums| sums.fabric.outside > 0);
}
