//! Groups of two to ten objects: put at once, begun and committed, and attached to one another.
//! Plans of at most twelve operations are crashed in every way after every change, and again at
//! every change of the recovery. No get ever returns part of a group, an attached group without its
//! base, or an uncommitted group.
//!
//! `TEST_PAGELITH_SIM_FALLS=N` adds N random crashes at each point.

mod support;

use pagelith_sim::disk::{CrashMode, FaultPlan, SimDisk};
use pagelith_sim::env::SimWorld;
use pagelith_sim::model::Put;
use support::check::{CRASHES, record};
use support::objects::{ATTACHED as POOLS, FORMS, key, keys};
use support::plan::Step::*;
use support::plan::{Plan, Shape, Step};
use support::run::Run;

/// Most operations of a plan.
const STEPS_MAX: usize = 12;
const CHECKPOINTED: Shape = Shape { checkpoint: 1, ..Shape::ROOMY };
const COLD: Shape = Shape { cold: true, ..CHECKPOINTED };
const MOVING: Shape = Shape { recency: true, checkpoint: 1, ..Shape::TIGHT };

fn crashes() -> Vec<(CrashMode, u64)> {
    let more = match std::env::var("TEST_PAGELITH_SIM_FALLS") {
        Ok(text) => text.parse().expect("TEST_PAGELITH_SIM_FALLS=N"),
        Err(_) => 0,
    };
    CRASHES.into_iter().chain((0..more).map(|i| (CrashMode::Random, 100 + i))).collect()
}

fn check(name: &'static str, shape: Shape, steps: &[Step], after: &[Step]) {
    assert!(steps.len() <= STEPS_MAX, "plan={name} steps={}", steps.len());
    let plan = Plan { name, shape, steps: steps.to_vec(), after: after.to_vec() };
    let recorded = record(&plan, None);
    assert!(
        recorded.points.len() > 20,
        "a plan that hardly writes points={}",
        recorded.points.len()
    );
    let found = recorded.findings(&crashes(), true, 5);
    eprintln!("plan={} points={}", plan.name, recorded.points.len());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

const BEGUN: [Step; 12] = [
    Begin(0, 2),
    Member(0, 2, 0),
    Flush,
    Members(0, 2),
    Commit(0, 2),
    Flush,
    Begin(2, 3),
    Members(2, 3),
    Fill(10, 8),
    Commit(2, 3),
    Attach(2, 0),
    Flush,
];

#[test]
fn committed_open_group_survives_every_crash_point() {
    check(
        "committed_open_group_survives_every_crash_point",
        CHECKPOINTED,
        &BEGUN,
        &[Commit(0, 2), Members(2, 3), Commit(2, 3)],
    );
}

#[test]
fn committed_open_group_without_dram_survives_every_crash_point() {
    check(
        "committed_open_group_without_dram_survives_every_crash_point",
        COLD,
        &BEGUN,
        &[Base(0, 2), Base(2, 3)],
    );
}

#[test]
fn uncommitted_open_group_is_absent_after_every_crash_point() {
    let steps = [
        Begin(0, 2),
        Members(0, 2),
        Attach(2, 0),
        Flush,
        Expire,
        Commit(0, 2),
        Group(2),
        Begin(1, 4),
        Members(1, 4),
        Close,
        Commit(1, 4),
        Flush,
    ];
    check(
        "uncommitted_open_group_is_absent_after_every_crash_point",
        CHECKPOINTED,
        &steps,
        &[Base(0, 2), Base(1, 4), Get(2)],
    );
}

const ATTACHED: [Step; 12] = [
    Attach(0, 0),
    Attach(0, 2),
    Flush,
    Group(0),
    Flush,
    Attach(0, 1),
    Attach(1, 0),
    Base(1, 2),
    Fill(10, 6),
    Flush,
    Attach(1, 1),
    Close,
];

#[test]
fn attached_groups_survive_every_crash_point() {
    check(
        "attached_groups_survive_every_crash_point",
        CHECKPOINTED,
        &ATTACHED,
        &[Group(0), Base(1, 2)],
    );
}

#[test]
fn attached_groups_without_dram_survive_every_crash_point() {
    let name = "attached_groups_without_dram_survive_every_crash_point";
    check(name, COLD, &ATTACHED, &[Group(0), Attach(0, 0), Base(1, 2)]);
}

#[test]
fn removed_base_removes_its_attached_groups() {
    let steps = [
        Group(0),
        Attach(0, 0),
        Attach(0, 1),
        Flush,
        Remove(0),
        Fill(10, 6),
        Base(0, 3),
        Flush,
        Take(0, "m"),
        Close,
        Remove(0),
        Flush,
    ];
    check(
        "removed_base_removes_its_attached_groups",
        CHECKPOINTED,
        &steps,
        &[Group(0), Attach(0, 0)],
    );
}

#[test]
fn standalone_object_keeps_its_bytes_in_a_group() {
    let steps = [
        Single(0),
        Flush,
        Base(0, 3),
        Single(1),
        Fill(10, 6),
        Begin(1, 4),
        Members(1, 4),
        Commit(1, 4),
        Flush,
        RemoveSingle(0),
        Single(0),
        Flush,
    ];
    check(
        "standalone_object_keeps_its_bytes_in_a_group",
        CHECKPOINTED,
        &steps,
        &[Base(0, 3), Base(1, 4)],
    );
}

#[test]
fn successive_groups_of_the_same_objects_survive_crashes() {
    let steps = [
        Group(0),
        Flush,
        Base(0, 1),
        Remove(0),
        Base(0, 1),
        Attach(0, 0),
        Flush,
        Fill(10, 6),
        Remove(0),
        Base(0, 2),
        Flush,
        Abandon,
    ];
    check(
        "successive_groups_of_the_same_objects_survive_crashes",
        CHECKPOINTED,
        &steps,
        &[Base(0, 0), Base(0, 4)],
    );
}

#[test]
fn clear_drops_waiting_and_attached_groups() {
    let steps = [
        Group(0),
        Attach(0, 0),
        Attach(2, 1),
        Begin(4, 2),
        Members(4, 2),
        Flush,
        Clear(0),
        Commit(4, 2),
        Group(2),
        Group(0),
        Flush,
        Get(2),
    ];
    check(
        "clear_drops_waiting_and_attached_groups",
        CHECKPOINTED,
        &steps,
        &[Base(4, 2), Attach(0, 0)],
    );
}

#[test]
fn base_and_attached_group_in_different_segments_survive_moves() {
    let steps = [
        Base(0, 2),
        Pin(0),
        Fill(10, 5),
        Attach(0, 0),
        Pin(0),
        Fill(20, 6),
        Attach(0, 1),
        Pin(0),
        Fill(30, 14),
        Flush,
        Fill(60, 8),
        Flush,
    ];
    let shape = Shape { checkpoint: 1, ..Shape::TIGHT };
    check(
        "base_and_attached_group_in_different_segments_survive_moves",
        shape,
        &steps,
        &[Attach(0, 0), Base(0, 2)],
    );
}

#[test]
fn moved_base_and_attached_group_survive_crashes_during_checkpoints() {
    let steps = [
        Base(0, 2),
        Attach(0, 0),
        Fill(10, 8),
        Get(0),
        Fill(20, 8),
        Attach(0, 2),
        Get(0),
        Fill(30, 8),
        Flush,
        Get(0),
        Fill(50, 8),
        Flush,
    ];
    let name = "moved_base_and_attached_group_survive_crashes_during_checkpoints";
    check(name, MOVING, &steps, &[Get(0), Base(0, 2)]);
}

#[test]
fn removed_base_stays_absent_while_the_log_wraps_without_dram() {
    let steps = [
        Base(0, 3),
        Attach(0, 1),
        Base(1, 2),
        Attach(1, 0),
        Flush,
        Fill(10, 6),
        Remove(0),
        Take(1, "m"),
        Fill(20, 14),
        Base(0, 2),
        Fill(40, 8),
        Flush,
    ];
    let name = "removed_base_stays_absent_while_the_log_wraps_without_dram";
    check(name, Shape { cold: true, ..MOVING }, &steps, &[Group(0), Base(1, 2)]);
}

#[test]
fn groups_survive_reopening_from_a_checkpoint() {
    let steps = [
        Base(0, 3),
        Attach(0, 0),
        Close,
        Attach(0, 2),
        Remove(0),
        Close,
        Group(0),
        Attach(2, 0),
        Base(2, 4),
        Close,
        Take(2, "n"),
        Flush,
    ];
    check(
        "groups_survive_reopening_from_a_checkpoint",
        Shape::ROOMY,
        &steps,
        &[Attach(0, 0), Attach(2, 0)],
    );
}

/// The offset of these bytes in the segments of a small store.
fn find(disk: &SimDisk, bytes: &[u8]) -> u64 {
    let blocks = (0..).map(|block| block * 4096);
    let mut blocks =
        blocks.map_while(|at| disk.peek(0, "segments", at, bytes.len()).map(|found| (at, found)));
    blocks.find(|(_, found)| found == bytes).expect("it is on the disk").0
}

/// The number of objects left of a page of ten, and of the group attached to it, after damage to
/// one byte: of the payload of its member `of`, or of the header of their record.
fn after_damage(of: &str, header: bool) -> [usize; 2] {
    let world = SimWorld::new(1);
    let mut run = Run::new(&world, Shape { cold: true, ..Shape::ROOMY });
    assert!(run.open());
    [Base(0, 3), Attach(0, 0), Flush].into_iter().for_each(|step| run.step(step));
    let (base, attached) = (keys(0, FORMS[3]), keys(0, POOLS[0].1));
    let all = [&base[..], &attached].concat();
    assert!(run.get_keys(&all).expect("a disk that runs").values().all(Option::is_some));
    let at = match header {
        true => find(&world.disk, &run.contents.of(&base[0], Put(1))[..64]) - 4096,
        false => find(&world.disk, &run.contents.of(&key(0, of), Put(1))[..64]),
    };
    world.disk.inject(FaultPlan::FlipBit {
        dir: 0,
        name: "segments".into(),
        offset: at + 3,
        bit: 1,
    });
    assert!(run.wrong.is_empty(), "{:?}", run.wrong);
    // Only the damaged object is read: the others must be dropped with it.
    run.get_keys(&[key(0, of)]);
    let answers = run.get_keys(&all).expect("a disk that runs");
    let count_present = |some: &[_]| some.iter().filter(|key| answers[*key].is_some()).count();
    let left = [count_present(&base), count_present(&attached)];
    world.crash(CrashMode::KeepAll);
    left
}

#[test]
fn damaged_object_loses_its_group_and_attached_objects() {
    for (of, header) in [("d", false), ("k", false), ("g", false), ("d", true), ("k", true)] {
        assert_eq!(after_damage(of, header), [0, 0], "of={of} header={header}");
    }
}
