//! Power cuts: unsynced bytes are lost, in whole or in part, and everything that a flush covered is
//! present.

use std::path::Path;

use super::Skip;
use super::fuse::{disk_and_life, done};
use crate::fault_disk::{Cut, Fault, FileOp, Rule};
use crate::killed::ChildProcess;
use crate::killed::kill_disk::KillPoint;
use crate::killed::kill_points::POINTS;
use crate::killed::model::{Device, Model};
use crate::killed::workload::Plan;
use crate::report::LaneCounts;

/// Power cuts in a run.
const CUTS: u32 = 4;

fn cut_of(n: u64) -> Cut {
    if n == 0 { Cut::DropAll } else { Cut::Some }
}

/// Cut after the process ended without a close.
pub fn cut(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    cuts(dir, seed, &[], Device::Healthy)
}

/// Syncs fail before the cut: their data may be lost, and all older flushed data is present.
pub fn failed_sync_and_cut(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let rule = |file| Rule { on: FileOp::Sync, file, one_in: 10, fault: Fault::Eio };
    cuts(dir, seed, &["segments", "manifest", "checkpoint"].map(rule), Device::Healthy)
}

/// Syncs that lie. Flushed pages may be missing; no answer may be wrong.
pub fn lost_sync_and_cut(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    cuts(
        dir,
        seed,
        &[Rule { on: FileOp::Sync, file: "segments", one_in: 3, fault: Fault::Lost }],
        Device::Lying,
    )
}

/// Like [`cut`], while segments are reclaimed all the time: removed pages stay gone wherever
/// records move to.
pub fn cut_while_reclaiming(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let (disk, mut life) = disk_and_life(dir, seed)?;
    life.plan = Plan { ssd_mib: 20, reinsert: true, ..life.plan };
    life.model = Model::of_a_store(true);
    let mut blocks = 0;
    for round in 0..2 * CUTS {
        let store = life.open();
        life.check(&store);
        let steps = 100 + life.below(400) as u32;
        life.work(&store, steps);
        life.take_counters(&store);
        if round > 3 && !life.model.evicts {
            return Err("nothing was reclaimed in four lives".into());
        }
        store.abandon();
        blocks += u64::from(disk.power_cut(cut_of(life.below(3))) > 0);
    }
    let store = life.open();
    life.check(&store);
    drop(store.close());
    let seen = done(&disk, life);
    Ok(LaneCounts { injected: seen.injected + blocks, ..seen })
}

fn cuts(dir: &Path, seed: u64, rules: &[Rule], device: Device) -> Result<LaneCounts, Skip> {
    let (disk, mut life) = disk_and_life(dir, seed)?;
    life.device = device;
    let mut blocks = 0;
    for _ in 0..CUTS {
        let store = life.open();
        life.check(&store);
        disk.set(rules);
        let steps = 20 + life.below(150) as u32;
        life.work(&store, steps);
        life.take_counters(&store);
        store.abandon();
        disk.set(&[]);
        blocks += u64::from(disk.power_cut(cut_of(life.below(3))) > 0);
    }
    let store = life.open();
    life.check(&store);
    drop(store.close());
    let seen = done(&disk, life);
    // A cut is a fault too. Its effect shows in missing pages; the store does not count it.
    Ok(LaneCounts { injected: seen.injected + blocks, ..seen })
}

/// A process is killed, and the power is cut at the same time.
pub fn kill_and_cut(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let (disk, mut life) = disk_and_life(dir, seed)?;
    // Three lives put less than its capacity, so nothing may be evicted.
    life.plan = Plan { ssd_mib: 64, pages: 600, budget: 6 << 20, ..life.plan };
    for round in 0..3 {
        // At a named point, where most data is unsynced, or at any moment.
        let aimed = KillPoint {
            point: life.below(POINTS.len() as u64) as usize,
            nth: 1 + life.below(3) as u32,
        };
        let aim = (life.below(3) > 0).then_some(aimed);
        let plan = Plan { seed: (seed * 3 + round) & 0xffff_ffff, aim, ..life.plan.clone() };
        let mut victim = ChildProcess::start(&plan, None);
        let mut words = if aim.is_some() { 4000 } else { 2 + life.below(1500) };
        let mut alive = true;
        while alive && words > 0 {
            words -= 1;
            match victim.read_entry() {
                Some(word) => life.model.apply(word),
                None => alive = false,
            }
        }
        if alive {
            victim.kill();
            while let Some(word) = victim.read_entry() {
                life.model.apply(word);
            }
        } else {
            assert!(aim.is_some() && victim.was_killed(), "the child ended by itself");
        }
        // Its transfers in flight have ended once the files are unlocked.
        wait_until_free(disk.path());
        disk.power_cut(cut_of(life.below(3)));
        let store = life.open();
        assert!(!life.model.evicts, "a segment was reclaimed, the store is too small");
        life.check(&store);
        store.abandon();
        disk.power_cut(cut_of(life.below(3)));
    }
    let store = life.open();
    life.check(&store);
    drop(store);
    let seen = done(&disk, life);
    Ok(LaneCounts { injected: seen.injected + 6, ..seen })
}

fn wait_until_free(dir: &Path) {
    let Ok(file) = std::fs::File::options().read(true).write(true).open(dir.join("segments"))
    else {
        return;
    };
    file.lock().expect("a lock");
}
