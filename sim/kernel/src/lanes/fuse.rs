//! A store over the FUSE fault disk, in this process.

use std::path::Path;
use std::time::Duration;

use pagelith::Store;

use super::Skip;
use crate::fault_disk::{Fault, FaultDisk, FileOp, Rule};
use crate::killed::model::Device;
use crate::report::LaneCounts;
use crate::work::StoreRun;

/// Prefix of the store's data files; its manifest, checkpoints and the rest begin differently.
const DATA: &str = "segments";
/// Every file of a store, and none that was created to probe the disk.
const FILES: [&str; 3] = [DATA, "manifest", "checkpoint"];

/// An empty store on an empty fault disk.
pub(super) fn disk_and_life(dir: &Path, seed: u64) -> Result<(FaultDisk, StoreRun), Skip> {
    let at = dir.join("mount");
    std::fs::create_dir(&at).map_err(|e| e.to_string())?;
    let disk = FaultDisk::mount(&at, seed)?;
    let life = StoreRun::new(disk.path(), seed);
    Ok((disk, life))
}

/// Ends the process in one of three ways.
pub(super) fn end(life: &mut StoreRun, store: Store) {
    life.take_counters(&store);
    match life.below(3) {
        // A failing device may fail the close too.
        0 => drop(store.close()),
        1 => store.abandon(),
        _ => drop(store),
    }
}

/// One run: without faults, then with `rules`, then checked twice. `device` tells what `rules` may
/// cause.
fn life_with(
    dir: &Path,
    seed: u64,
    rules: &[Rule],
    device: Device,
    timeout: Duration,
) -> Result<LaneCounts, Skip> {
    let (disk, mut life) = disk_and_life(dir, seed)?;
    let store = life.open();
    life.work(&store, 250);
    life.flush(&store);
    end(&mut life, store);

    let store = life.open();
    disk.set(rules);
    life.device = device;
    let usual = (life.timeout, life.over_max);
    life.timeout = timeout;
    if timeout < STALLED_CALL_MAX {
        life.over_max = STALLED_CALL_MAX;
    }
    life.work(&store, 350);
    (life.timeout, life.over_max) = usual;
    if rules.iter().any(|r| r.on == FileOp::Read && r.fault == Fault::Short && r.one_in == 1) {
        // None of its reads transferred all bytes.
        assert_eq!(store.stats().hits_ssd, 0, "wrong bytes: a short read was a hit");
    }
    if seed.is_multiple_of(2) {
        disk.set(&[]);
    }
    end(&mut life, store);
    disk.set(&[]);

    for _ in 0..2 {
        let store = life.open();
        life.check(&store);
        life.work(&store, 50);
        life.flush(&store);
        end(&mut life, store);
    }
    Ok(done(&disk, life))
}

/// The run's counters.
pub(super) fn done(disk: &FaultDisk, life: StoreRun) -> LaneCounts {
    let injected = disk.take_injected();
    LaneCounts { runs: 1, injected, detected: life.noticed.min(injected), ..life.seen }
}

const USUAL: Duration = Duration::from_secs(2);

fn on(on: FileOp, one_in: u64, fault: Fault) -> [Rule; 3] {
    FILES.map(|file| Rule { on, file, one_in, fault })
}

/// Some sectors of a write are lost.
pub fn torn_write(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    life_with(
        dir,
        seed,
        &[Rule { on: FileOp::Write, file: DATA, one_in: 6, fault: Fault::Torn }],
        Device::Lying,
        USUAL,
    )
}

/// Writes are lost.
pub fn lost_write(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    life_with(
        dir,
        seed,
        &[Rule { on: FileOp::Write, file: DATA, one_in: 6, fault: Fault::Lost }],
        Device::Lying,
        USUAL,
    )
}

/// Writes land at another offset.
pub fn misdirected_write(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    life_with(
        dir,
        seed,
        &[Rule { on: FileOp::Write, file: DATA, one_in: 6, fault: Fault::Misdirected }],
        Device::Lying,
        USUAL,
    )
}

/// Reads return the bytes of another offset.
pub fn misdirected_read(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    life_with(dir, seed, &on(FileOp::Read, 6, Fault::Misdirected), Device::Failing, USUAL)
}

/// Bits flip in reads.
pub fn flip_in_read(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    life_with(dir, seed, &on(FileOp::Read, 6, Fault::Flip), Device::Failing, USUAL)
}

/// Bits flip in writes.
pub fn flip_in_write(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    life_with(
        dir,
        seed,
        &[Rule { on: FileOp::Write, file: DATA, one_in: 6, fault: Fault::Flip }],
        Device::Lying,
        USUAL,
    )
}

/// Transfers of which half is done, again and again, until the kernel gives up with a byte missing.
pub fn short(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let [reads, ..] = on(FileOp::Read, 1, Fault::Short);
    let [writes, ..] = on(FileOp::Write, 1, Fault::Short);
    let reading = seed.is_multiple_of(2);
    life_with(
        dir,
        seed,
        &[if reading { reads } else { writes }],
        if reading { Device::Failing } else { Device::Healthy },
        USUAL,
    )
}

/// Reads fail.
pub fn eio_read(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    life_with(dir, seed, &on(FileOp::Read, 4, Fault::Eio), Device::Failing, USUAL)
}

/// Writes fail.
pub fn eio_write(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    life_with(dir, seed, &on(FileOp::Write, 8, Fault::Eio), Device::Healthy, USUAL)
}

/// The file system below has no space for allocated blocks: thin provisioning, snapshots.
pub fn no_space(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    life_with(dir, seed, &on(FileOp::Write, 8, Fault::NoSpace), Device::Healthy, USUAL)
}

/// Delay of a late operation.
const LATE_MS: u32 = 3000;
/// Limit that separates calls with a deadline from calls that wait for their operation.
const STALLED_CALL_MAX: Duration = Duration::from_millis(LATE_MS as u64 * 2 / 3);

/// Reads, writes and syncs take much longer than the timeout of calls.
pub fn stall(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let late = |on| Rule { on, file: DATA, one_in: 30, fault: Fault::Late(LATE_MS) };
    life_with(
        dir,
        seed,
        &[FileOp::Read, FileOp::Write, FileOp::Sync].map(late),
        Device::Healthy,
        Duration::from_millis(150),
    )
}

/// All faults at once.
pub fn all(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let mut rules = Vec::new();
    for fault in [Fault::Eio, Fault::Misdirected, Fault::Flip, Fault::Short, Fault::Late(300)] {
        rules.push(Rule { on: FileOp::Read, file: DATA, one_in: 40, fault });
    }
    for fault in [
        Fault::Eio,
        Fault::NoSpace,
        Fault::Lost,
        Fault::Torn,
        Fault::Misdirected,
        Fault::Flip,
        Fault::Short,
        Fault::Late(300),
    ] {
        rules.push(Rule { on: FileOp::Write, file: DATA, one_in: 60, fault });
    }
    life_with(dir, seed, &rules, Device::Lying, USUAL)
}

/// Bits of the data flip at rest, while the store runs and while it is closed.
pub fn flip_at_rest(dir: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let (disk, mut life) = disk_and_life(dir, seed)?;
    let store = life.open();
    life.work(&store, 400);
    life.flush(&store);
    end(&mut life, store);
    life.device = Device::Lying;
    for _ in 0..2 {
        let store = life.open();
        // About the amount written so far.
        (0..20).for_each(|_| disk.flip_at_rest(DATA, Some(6 << 20)));
        life.work(&store, 150);
        end(&mut life, store);
    }
    let store = life.open();
    life.check(&store);
    end(&mut life, store);
    Ok(done(&disk, life))
}
