//! A store on its own ext4 on a loop device; faults are made in the backing file of the device.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use pagelith::Store;
use pagelith::layouts::key::ObjectKey;
use pagelith::layouts::record::{Record, RecordKind};

use super::Skip;
use super::fuse::end;
use crate::killed::Page;
use crate::killed::content::Rng;
use crate::killed::model::Device;
use crate::killed::workload::NAMESPACES;
use crate::loop_device::{LoopFs, Throttle};
use crate::report::LaneCounts;
use crate::work::StoreRun;

/// Approximate number of bytes written to the store before faults are made.
const WRITTEN: u64 = 6 << 20;

fn fs_and_life(seed: u64, options: &[&str]) -> Result<(LoopFs, StoreRun), Skip> {
    let fs = LoopFs::made_with(160, options)?;
    let life = StoreRun::new(&fs.path().join("store"), seed);
    Ok((fs, life))
}

/// Fills the store and ends the process, so that nothing is in memory.
fn filled(life: &mut StoreRun) {
    let store = life.open();
    life.work(&store, 400);
    life.flush(&store);
    end(life, store);
}

fn done(life: StoreRun, injected: u64) -> LaneCounts {
    LaneCounts { runs: 1, injected, detected: life.noticed.min(injected), ..life.seen }
}

/// The offset of a block of a file in the image.
fn place(extents: &[(u64, u64, u64)], at: u64) -> Option<u64> {
    let (from, image, _) =
        extents.iter().find(|(from, _, len)| (*from..from + len).contains(&at))?;
    Some(image + (at - from))
}

/// Flips, stale blocks and misplaced blocks in the image, while the store is open.
pub fn at_rest(_: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let (fs, mut life) = fs_and_life(seed, &[])?;
    filled(&mut life);
    let extents = fs.extents(&life.plan.dir.join("segments"));
    let image = image(&fs)?;
    let mut rng = Rng(seed);
    let block = |rng: &mut Rng| place(&extents, rng.below(WRITTEN / 4096) * 4096);
    let mut old = Vec::new();
    life.device = Device::Lying;
    let mut injected = 0;
    for round in 0..3 {
        let store = life.open();
        for _ in 0..12 {
            let (Some(to), Some(from)) = (block(&mut rng), block(&mut rng)) else { continue };
            let mut bytes = [0; 4096];
            match rng.below(3) {
                // One bit.
                0 => {
                    read(&image, to, &mut bytes)?;
                    bytes[rng.below(4096) as usize] ^= 1 << rng.below(8);
                }
                // An earlier content of the block.
                1 if !old.is_empty() => {
                    let (at, earlier): &(u64, [u8; 4096]) =
                        &old[rng.below(old.len() as u64) as usize];
                    write(&image, *at, earlier)?;
                    injected += 1;
                    continue;
                }
                // The content of another block.
                _ => read(&image, from, &mut bytes)?,
            }
            write(&image, to, &bytes)?;
            injected += 1;
        }
        life.work(&store, 100);
        if round == 0 {
            // These blocks are restored later.
            for _ in 0..40 {
                let (Some(at), mut bytes) = (block(&mut rng), [0; 4096]) else { continue };
                read(&image, at, &mut bytes)?;
                old.push((at, bytes));
            }
        }
        end(&mut life, store);
    }
    let store = life.open();
    life.check(&store);
    end(&mut life, store);
    Ok(done(life, injected))
}

/// A record: its sequence, offset and length in bytes.
type Place = (u64, usize, usize);

/// By key, the places of its records in the data file, oldest first.
fn records(bytes: &[u8]) -> HashMap<ObjectKey, Vec<Place>> {
    let mut found: HashMap<ObjectKey, Vec<Place>> = HashMap::new();
    for at in (0..bytes.len()).step_by(4096) {
        let Ok(record) = Record::decode(&bytes[at..]) else { continue };
        if let (RecordKind::Data, Some(member)) = (record.facts().kind, record.member(0)) {
            let place = (record.facts().sequence.0, at, record.record_bytes() as usize);
            found.entry(member.key).or_default().push(place);
        }
    }
    found.values_mut().for_each(|places| places.sort());
    found
}

/// Whole records of removed versions overwrite newer ones of the same pages: everything in them is
/// right except the place.
pub fn stale_records(_: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let (fs, mut life) = fs_and_life(seed, &[])?;
    // Few pages, so that most are removed and put again.
    life.plan.pages = 40;
    filled(&mut life);
    filled(&mut life);
    let path = life.plan.dir.join("segments");
    let (extents, image) = (fs.extents(&path), image(&fs)?);
    let store = life.open();
    let bytes = std::fs::read(&path).map_err(|e| e.to_string())?;
    let mut injected = 0;
    for places in records(&bytes).values() {
        let [.., (_, from, older), (_, to, newer)] = places[..] else { continue };
        if older != newer {
            continue;
        }
        for block in (0..newer).step_by(4096) {
            let Some(at) = place(&extents, (to + block) as u64) else { continue };
            write(&image, at, &bytes[from + block..from + block + 4096])?;
        }
        injected += 1;
    }
    life.device = Device::Failing;
    get_all(&mut life, &store);
    end(&mut life, store);
    let store = life.open();
    life.check(&store);
    end(&mut life, store);
    Ok(done(life, injected))
}

/// Gets every page.
fn get_all(life: &mut StoreRun, store: &Store) {
    for number in 0..life.plan.pages {
        for namespace in 0..NAMESPACES {
            life.get(store, Page { namespace, number });
        }
    }
}

/// Flips in one copy of the manifest and in a checkpoint, while the store is closed.
pub fn manifest_at_rest(_: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let (fs, mut life) = fs_and_life(seed, &[])?;
    filled(&mut life);
    let mut rng = Rng(seed);
    let mut injected = 0;
    for _ in 0..6 {
        // One valid copy suffices to open the store.
        let names =
            [["manifest.0", "checkpoint.0"], ["manifest.1", "checkpoint.1"]][rng.below(2) as usize];
        for name in names {
            let extents = fs.extents(&life.plan.dir.join(name));
            let len: u64 = extents.iter().map(|(_, _, len)| len).sum();
            // Most of a checkpoint is unused.
            let at = rng.below(len.clamp(1, 64 << 10));
            let (Some(place), image) = (place(&extents, at), image(&fs)?) else { continue };
            let mut byte = [0];
            read(&image, place, &mut byte)?;
            write(&image, place, &[byte[0] ^ 1 << rng.below(8)])?;
            injected += 1;
        }
        let store = life.open();
        life.check(&store);
        life.work(&store, 30);
        life.flush(&store);
        end(&mut life, store);
    }
    Ok(done(life, injected))
}

/// The device ends in the middle of the data: reads beyond fail with EIO, until it is restored.
pub fn eio(_: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    // Without a journal only data follows the first blocks.
    let (fs, mut life) = fs_and_life(seed, &["-O", "^has_journal"])?;
    filled(&mut life);
    let extents = fs.extents(&life.plan.dir.join("segments"));
    let store = life.open();
    let image = image(&fs)?;
    let len = image.metadata().map_err(|e| e.to_string())?.len();
    let end_of_device = place(&extents, (WRITTEN / 4 + Rng(seed).below(WRITTEN / 2)) / 4096 * 4096)
        .ok_or("no extent where the device is to end")?;
    fs.free_bytes();
    life.device = Device::Failing;
    let mut rest = vec![0; (len - end_of_device) as usize];
    read(&image, end_of_device, &mut rest)?;
    image.set_len(end_of_device).map_err(|e| e.to_string())?;
    // Only gets: a write beyond the end would extend the file again.
    get_all(&mut life, &store);
    life.take_counters(&store);
    let injected = store.stats().read_errors;
    store.abandon();
    image.set_len(len).map_err(|e| e.to_string())?;
    write(&image, end_of_device, &rest)?;
    life.device = Device::Healthy;
    let store = life.open();
    life.check(&store);
    end(&mut life, store);
    Ok(done(life, injected))
}

/// The data file ends early, not at a block boundary: short completions, none of which is a
/// success.
pub fn short(_: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let (_fs, mut life) = fs_and_life(seed, &[])?;
    filled(&mut life);
    let path = life.plan.dir.join("segments");
    let store = life.open();
    let file = File::options().read(true).write(true).open(&path).map_err(|e| e.to_string())?;
    let len = file.metadata().map_err(|e| e.to_string())?.len();
    let mut rest = vec![0; len as usize];
    read(&file, 0, &mut rest)?;
    life.device = Device::Failing;
    let cut = WRITTEN / 4 + Rng(seed).below(WRITTEN / 2);
    file.set_len(cut).map_err(|e| e.to_string())?;
    get_all(&mut life, &store);
    let injected = store.stats().read_errors;
    life.take_counters(&store);
    store.abandon();
    write(&file, cut, &rest[cut as usize..])?;
    file.sync_all().map_err(|e| e.to_string())?;
    life.device = Device::Healthy;
    let store = life.open();
    life.check(&store);
    end(&mut life, store);
    Ok(done(life, injected))
}

/// A device limited to 1 MiB/s of writes and 128 KiB/s of reads; calls have a fifth of a second.
pub fn throttled(_: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let (fs, mut life) = fs_and_life(seed, &[])?;
    let throttle = Throttle::new(&fs, 1 << 20)?;
    filled(&mut life);
    let store = life.open();
    throttle.read_too(&fs, 128 << 10)?;
    throttle.take_in_this_process()?;
    let usual = std::mem::replace(&mut life.timeout, Duration::from_millis(200));
    life.work(&store, 120);
    life.timeout = usual;
    throttle.let_this_process_go()?;
    life.take_counters(&store);
    store.abandon();
    throttle.drain(&fs);
    let store = life.open();
    life.check(&store);
    end(&mut life, store);
    let late = life.noticed;
    Ok(done(life, late))
}

/// A file system that another program fills: an existing store keeps working; a new one is refused
/// and leaves nothing.
pub fn full(_: &Path, seed: u64) -> Result<LaneCounts, Skip> {
    let (fs, mut life) = fs_and_life(seed, &[])?;
    let store = life.open();
    let rest = format!("of={}", fs.path().join("rest").display());
    let full = crate::loop_device::run("dd", &["if=/dev/zero", &rest, "bs=4096"]).unwrap_err();
    assert!(full.contains("No space left"), "{full}");
    life.work(&store, 300);
    assert!(life.flush(&store), "a store whose blocks are allocated needs none");
    end(&mut life, store);
    let mut other = StoreRun::new(&fs.path().join("other"), seed);
    let free = fs.free_bytes();
    for _ in 0..3 {
        let error = other.try_open().expect_err("no room");
        assert_eq!(error.kind, pagelith::ErrorKind::NoSpace, "{error}");
        assert!(!fs.path().join("other").exists() && fs.free_bytes() == free, "files are left");
        life.noticed += 1;
    }
    let store = life.open();
    life.check(&store);
    end(&mut life, store);
    // With space again, the refused store can be made.
    std::fs::remove_file(fs.path().join("rest")).map_err(|e| e.to_string())?;
    other.plan.ssd_mib = 20;
    let store = other.open();
    other.work(&store, 20);
    end(&mut other, store);
    Ok(done(life, 3))
}

fn image(fs: &LoopFs) -> Result<File, Skip> {
    File::options().read(true).write(true).open(fs.image()).map_err(|e| e.to_string())
}

fn read(file: &File, at: u64, bytes: &mut [u8]) -> Result<(), Skip> {
    file.read_exact_at(bytes, at).map_err(|e| format!("reading the image: {e}"))
}

fn write(file: &File, at: u64, bytes: &[u8]) -> Result<(), Skip> {
    file.write_all_at(bytes, at).map_err(|e| format!("writing the image: {e}"))
}
