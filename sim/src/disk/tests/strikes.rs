//! Random faults: what each kind leaves on the disk, returns to a reader, and leaves after a crash.

use std::collections::BTreeMap;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::disk::{Disk, Op};
use pagelith_io::fault::{FaultKind, FaultOp};

use super::{Fixture, read, write};
use crate::clock::SimClock;
use crate::disk::{CrashMode, DiskFault, FaultPlan, FaultRates, FileOffset, SimDisk, StrikeRecord};

/// Makes `fault` strike the next operation that it can strike, and nothing else.
fn strike(b: &Fixture, fault: DiskFault) {
    b.disk.inject(FaultPlan::Strike { fault, nth: 1 });
}

/// A disk whose file has blocks of 1, 2, ..., 16, all durable, by `seed`.
fn full(seed: u64) -> Fixture {
    let mut b = Fixture::new(seed);
    b.disk.set_faults(FaultRates::new(seed));
    (0..16).for_each(|i| b.write(i, 1, i as u8 + 1));
    b.sync();
    b
}

/// Reads blocks and returns the bytes that the reader gets.
fn see(b: &mut Fixture, first: u64, count: usize) -> Result<Vec<u8>, FaultKind> {
    let file = b.file;
    b.submit(0, read(file, first, count));
    let done = b.finish().pop().expect("one completion");
    done.result.map_err(|f| f.kind)?;
    Ok(done.op.into_parts().iter().flat_map(|p| p.bytes().to_vec()).collect())
}

fn only(b: &Fixture) -> StrikeRecord {
    let struck = b.disk.take_struck();
    assert_eq!(struck.len(), 1, "{struck:?}");
    struck[0].clone()
}

fn bytes(b: &Fixture) -> Vec<u8> {
    b.disk.peek(0, "f", 0, 16 * 4096).expect("the file")
}

fn block_of(hit: &Option<FileOffset>) -> u64 {
    hit.as_ref().expect("a place").offset / 4096
}

#[test]
fn struck_reads_and_writes_fail_like_real_disk() {
    use DiskFault::*;
    for (fault, kind) in [(ReadError, FaultKind::Device), (ShortRead, FaultKind::Short)] {
        let mut b = full(1);
        strike(&b, fault);
        assert_eq!(
            (see(&mut b, 3, 2), see(&mut b, 3, 1)),
            (Err(kind), Ok(vec![4; 4096])),
            "{fault}"
        );
        assert_eq!((only(&b).fault, only_failed(&b)), (fault, kind));
    }
    let mut shapes = BTreeMap::<_, usize>::new();
    for seed in 0..40 {
        for (fault, kind) in [(WriteError, FaultKind::Device), (ShortWrite, FaultKind::Short)] {
            let mut b = full(seed);
            strike(&b, fault);
            let file = b.file;
            assert_eq!(b.run(write(file, 4, 2, 99)), Err(kind));
            let after = bytes(&b);
            let new: Vec<bool> =
                after[4 * 4096..6 * 4096].chunks(512).map(|s| *s == [99; 512]).collect();
            assert_eq!(
                after.iter().filter(|b| **b == 99).count(),
                512 * new.iter().filter(|n| **n).count()
            );
            let prefix = new.is_sorted_by(|a, b| a >= b);
            *shapes.entry((fault, prefix)).or_default() += 1;
            assert_eq!((only(&b).len, only_failed(&b)), (8192, kind));
        }
    }
    // A short write is a prefix; one that fails leaves any sectors.
    assert_eq!(shapes.get(&(ShortWrite, false)), None);
    assert!(shapes.get(&(WriteError, false)) > shapes.get(&(WriteError, true)), "{shapes:?}");
}

/// The failure of the only operation that failed, by the log.
fn only_failed(b: &Fixture) -> FaultKind {
    let failed: Vec<_> = b.disk.log().iter().filter_map(|op| op.fault).collect();
    assert_eq!(failed.len(), 1);
    failed[0]
}

#[test]
fn bad_block_stays_bad_until_written() {
    let mut b = full(1);
    strike(&b, DiskFault::BadBlock);
    assert_eq!(see(&mut b, 3, 4), Err(FaultKind::Device));
    let struck = only(&b);
    let bad = block_of(&struck.hit);
    assert!((3..7).contains(&bad), "{struck}");
    let b2 = |b: &mut Fixture| {
        (see(b, bad, 1).is_ok(), see(b, bad - 1, 1).is_ok(), see(b, bad + 1, 1).is_ok())
    };
    assert_eq!(b2(&mut b), (false, true, true));
    b.disk.crash(CrashMode::DropAll, 1);
    b.disk.clear_faults();
    let mut b = b.reopen();
    assert_eq!(b2(&mut b), (false, true, true), "neither a crash nor better times heal it");
    b.write(bad, 1, 77);
    assert_eq!((b2(&mut b), see(&mut b, bad, 1)), ((true, true, true), Ok(vec![77; 4096])));
    assert_eq!(b.disk.struck(), [], "one strike, however often it is felt");
}

#[test]
fn lost_write_is_acknowledged_and_changes_nothing() {
    let mut b = full(1);
    let before = bytes(&b);
    strike(&b, DiskFault::LostWrite);
    b.write(5, 2, 99);
    b.sync();
    assert!(bytes(&b) == before);
    b.disk.crash(CrashMode::KeepAll, 1);
    assert!(bytes(&b) == before);
    let struck = only(&b);
    assert_eq!(
        (struck.op, struck.offset, struck.len, struck.effective),
        (FaultOp::Write, 20480, 8192, true)
    );
    let mut b = b.reopen();
    strike(&b, DiskFault::LostWrite);
    b.write(5, 1, 6);
    assert!(!only(&b).effective, "an unchanged block is not lost data");
}

#[test]
fn torn_write_leaves_prefix_suffix_or_any_sectors() {
    let mut shapes = BTreeMap::<_, usize>::new();
    for seed in 0..200 {
        let mut b = full(seed);
        strike(&b, DiskFault::TornWrite);
        b.write(7, 1 + seed as usize % 2, 99);
        b.sync();
        b.disk.crash(CrashMode::DropAll, 0);
        let after = bytes(&b);
        let written = &after[7 * 4096..(8 + seed as usize % 2) * 4096];
        let new: Vec<bool> = written.chunks(512).map(|s| *s == [99; 512]).collect();
        assert!(new.contains(&true) && new.contains(&false), "seed={seed}");
        assert_eq!(
            after.iter().filter(|b| **b == 99).count(),
            512 * new.iter().filter(|n| **n).count()
        );
        let shape = (new.is_sorted_by(|a, b| a >= b), new.is_sorted());
        *shapes.entry(shape).or_default() += 1;
        assert!(only(&b).effective);
    }
    assert!(
        shapes.len() == 3 && shapes.values().all(|n| *n > 30),
        "prefix, suffix, any: {shapes:?}"
    );
    // Never none and never all of eight sectors, which chance alone would give once in 128 times.
    let mut b = full(1);
    b.disk.set_faults(FaultRates::new(2).with(DiskFault::TornWrite, 1_000_000));
    for i in 0..2000 {
        let byte = 100 + (i % 2) as u8;
        let before = b.disk.peek(0, "f", 0, 4096).expect("a block");
        b.write(0, 1, byte);
        let after = b.disk.peek(0, "f", 0, 4096).expect("a block");
        let old = after
            .chunks(512)
            .zip(before.chunks(512))
            .filter(|(a, b)| a == b && a[0] != byte)
            .count();
        let new = after.chunks(512).filter(|s| **s == [byte; 512]).count();
        let same = before.chunks(512).filter(|s| **s == [byte; 512]).count();
        assert!(
            old + new == 8 && old < 8 && (old > 0 || same > 0),
            "i={i} old={old} new={new} same={same}"
        );
    }
}

#[test]
fn misdirected_write_lands_whole_at_other_range() {
    let mut hits = BTreeMap::<_, usize>::new();
    for seed in 0..200 {
        let mut b = full(seed);
        strike(&b, DiskFault::MisdirectedWrite);
        b.write(5, 2, 99);
        b.sync();
        b.disk.crash(CrashMode::DropAll, 0);
        let struck = only(&b);
        let hit = block_of(&struck.hit);
        let expected: Vec<u8> =
            (0..16).map(|i| if (hit..hit + 2).contains(&i) { 99 } else { i as u8 + 1 }).collect();
        let seen: Vec<u8> = (0..16).map(|i| b.block(i)).collect();
        assert_eq!(seen, expected, "{struck}");
        *hits.entry(hit).or_default() += 1;
    }
    // Everywhere it fits, and never over the addressed range.
    let places: Vec<u64> = hits.keys().copied().collect();
    assert_eq!(places, [0, 1, 2, 3, 7, 8, 9, 10, 11, 12, 13, 14]);
}

#[test]
fn misdirected_read_returns_other_range() {
    let mut hits = BTreeMap::<_, usize>::new();
    for seed in 0..100 {
        let mut b = full(seed);
        strike(&b, DiskFault::MisdirectedRead);
        let seen = see(&mut b, 15, 1).expect("a read");
        let struck = only(&b);
        assert_eq!((seen, struck.effective), (vec![block_of(&struck.hit) as u8 + 1; 4096], true));
        assert_eq!(see(&mut b, 15, 1), Ok(vec![16; 4096]), "only once");
        *hits.entry(block_of(&struck.hit)).or_default() += 1;
    }
    assert!(hits.len() > 10 && !hits.contains_key(&15), "{hits:?}");
}

/// A write to `manifest.0` on a disk of two directories with files of two kinds hits only
/// manifests.
#[test]
fn misdirection_stays_within_files_of_same_kind() {
    let mut hits = BTreeMap::<_, usize>::new();
    for seed in 0..100 {
        let disk = SimDisk::new(SimClock::new(), 2, seed);
        disk.set_faults(FaultRates::new(seed).with(DiskFault::MisdirectedWrite, 1_000_000));
        let process = disk.connect();
        let file = process.create(0, "manifest.0", 8192).expect("room");
        process.create(1, "manifest.1", 12288).expect("room");
        process.create(0, "manifest.old", 1 << 20).expect("room");
        process.create(0, "segments", 1 << 20).expect("room");
        let lonely = process.create(1, "LOCK", 4096).expect("room");
        let mut queue = process.queue(2).expect("a queue");
        queue.submit(1, write(file, 0, 1, 9)).expect("room");
        queue.submit(2, write(lonely, 0, 1, 8)).expect("room");
        super::drain(queue.as_mut());
        let struck = disk.take_struck();
        assert_eq!(struck.len(), 1, "a write with no other place to go lands where it should");
        assert_eq!(disk.peek(1, "LOCK", 0, 1), Some(vec![8]));
        let FileOffset { dir, name, offset } = struck[0].hit.clone().expect("a place");
        assert_eq!(disk.peek(dir, &name, offset, 4096), Some(vec![9; 4096]));
        assert_eq!(disk.peek(0, "manifest.0", 0, 1), Some(vec![0]));
        *hits.entry((dir, name, offset)).or_default() += 1;
    }
    let hits: Vec<_> =
        hits.keys().map(|(dir, name, offset)| (*dir, name.as_str(), *offset)).collect();
    assert_eq!(
        hits,
        [
            (0, "manifest.0", 4096),
            (1, "manifest.1", 0),
            (1, "manifest.1", 4096),
            (1, "manifest.1", 8192)
        ]
    );
}

#[test]
fn bit_flip_changes_one_bit_in_memory_or_at_rest() {
    for seed in 0..50 {
        let mut b = full(seed);
        let before = bytes(&b);
        strike(&b, DiskFault::BitFlipRead);
        let seen = see(&mut b, 2, 3).expect("a read");
        let changed = |was: &[u8], is: &[u8]| -> Vec<(u64, u32)> {
            let bits = was.iter().zip(is).map(|(a, b)| (a ^ b).count_ones());
            (0..).zip(bits).filter(|(_, bits)| *bits > 0).collect()
        };
        let at = only(&b).hit.expect("a place").offset;
        assert_eq!(changed(&before[2 * 4096..5 * 4096], &seen), [(at - 2 * 4096, 1)]);
        assert!(bytes(&b) == before, "the place is as it was");

        strike(&b, DiskFault::BitFlipAtRest);
        b.write(2, 3, 99);
        let mut whole = before.clone();
        whole[2 * 4096..5 * 4096].fill(99);
        let at = only(&b).hit.expect("a place").offset;
        assert_eq!(changed(&whole, &bytes(&b)), [(at, 1)]);
        b.sync();
        b.disk.crash(CrashMode::DropAll, 0);
        assert_eq!(changed(&whole, &bytes(&b)), [(at, 1)], "it is durable");
    }
}

#[test]
fn stale_read_returns_content_before_last_write() {
    let mut b = full(1);
    strike(&b, DiskFault::StaleRead);
    assert_eq!(see(&mut b, 0, 1), Ok(vec![1; 4096]), "no write since");
    assert_eq!(b.disk.struck(), []);
    b.disk.set_faults(FaultRates::new(1).with(DiskFault::StaleRead, 1_000_000));
    b.write(4, 1, 50);
    b.write(4, 1, 60);
    let two = see(&mut b, 3, 2).expect("a read");
    assert_eq!((two[0], two[4096]), (4, 50));
    let struck = only(&b);
    assert_eq!(
        (struck.fault, struck.hit.clone(), struck.effective),
        (DiskFault::StaleRead, None, true)
    );
    // A lost write never was in its place.
    b.disk.crash(CrashMode::DropAll, 0);
    let mut b = b.reopen();
    assert_eq!(see(&mut b, 4, 1), Ok(vec![5; 4096]));
    assert!(b.disk.take_struck().iter().all(|s| !s.effective));
    b.write(4, 1, 70);
    b.sync();
    b.disk.crash(CrashMode::DropAll, 0);
    let mut b = b.reopen();
    assert_eq!(see(&mut b, 4, 1), Ok(vec![5; 4096]), "but a crash keeps the durable bytes");
    b.disk.clear_faults();
    assert_eq!(see(&mut b, 4, 1), Ok(vec![70; 4096]));
}

#[test]
fn struck_sync_data_is_never_durable() {
    let mut b = full(1);
    b.write(0, 1, 99);
    strike(&b, DiskFault::SyncError);
    let file = b.file;
    assert_eq!(b.run(Op::Sync { file }), Err(FaultKind::Device));
    b.sync();
    assert_eq!(b.block(0), 99, "reads still see it");
    b.disk.crash(CrashMode::DropAll, 0);
    assert_eq!(b.block(0), 1, "the retry has not made it durable");
    assert_eq!(only(&b).fault, DiskFault::SyncError);
}

#[test]
fn struck_create_fails_with_no_space_and_leaves_nothing() {
    let b = full(1);
    strike(&b, DiskFault::NoSpace);
    let first = b.process.create(0, "g", 4096).map_err(|f| (f.kind, f.errno));
    assert_eq!((first, b.disk.names(0)), (Err((FaultKind::NoSpace, 28)), vec!["f".to_string()]));
    b.process.create(0, "g", 4096).expect("only once");
    let struck = only(&b);
    assert_eq!((struck.op, struck.name.as_str(), struck.len), (FaultOp::Create, "g", 4096));
}

#[test]
fn delayed_operation_is_late_and_executes_once() {
    for (fault, late) in
        [(DiskFault::Slow, 100 * 100_000), (DiskFault::Stuck, 7_000_000_000 + 100_000)]
    {
        let mut b = full(1);
        b.disk.set_faults(FaultRates::new(1).stuck_for(Duration::from_secs(7)));
        strike(&b, fault);
        let (file, from) = (b.file, b.now());
        b.submit(1, write(file, 3, 1, 99));
        b.submit(2, read(file, 8, 1));
        let mut done = Vec::new();
        b.queue.wait(&mut done, Duration::from_millis(1));
        let tokens: Vec<u64> = done.drain(..).map(|c| c.token).collect();
        assert_eq!((tokens, b.block(3)), (vec![2], 4), "the next one overtakes it");
        b.disk.clear_faults();
        let ops = b.disk.ops_done();
        b.queue.wait(&mut done, Duration::from_secs(60));
        assert_eq!((b.now().0 - from.0, done.len(), b.block(3)), (late, 1, 99));
        assert_eq!(b.disk.ops_done(), ops + 1, "once");
        assert_eq!(only(&b).fault, fault);
    }
}

#[test]
fn fault_rates_apply_only_to_named_files() {
    let run = |rates: FaultRates, name: &str| {
        let disk = SimDisk::new(SimClock::new(), 1, 1);
        let process = disk.connect();
        let file = process.create(0, name, 16 * 4096).expect("room");
        let mut queue = process.queue(1).expect("a queue");
        disk.set_faults(rates);
        for i in 0..4000 {
            queue.submit(i, write(file, i % 16, 1, i as u8)).expect("room");
            super::drain(queue.as_mut());
        }
        (disk.struck(), disk.trace_hash())
    };
    let rates = |seed| {
        FaultRates::new(seed)
            .with(DiskFault::LostWrite, 100_000)
            .with(DiskFault::TornWrite, 50_000)
            .with(DiskFault::Slow, 20_000)
            .with(DiskFault::ReadError, 1_000_000)
            .only(&["seg", "man"])
    };
    let (struck, trace) = run(rates(1), "segments");
    let count = |fault| struck.iter().filter(|s| s.fault == fault).count();
    let [lost, torn, slow] =
        [DiskFault::LostWrite, DiskFault::TornWrite, DiskFault::Slow].map(count);
    assert!((320..480).contains(&lost), "lost={lost}");
    assert!((150..250).contains(&torn), "torn={torn}");
    assert!((50..110).contains(&slow), "slow={slow}");
    assert_eq!(lost + torn + slow, struck.len());
    assert!(struck.is_sorted_by_key(|s| s.at) && struck.is_sorted_by_key(|s| s.n));
    assert!((struck.clone(), trace) == run(rates(1), "segments"), "the seed decides");
    assert!(trace != run(rates(2), "segments").1, "and another seed decides otherwise");
    assert_eq!(run(rates(1), "checkpoint.0").0, []);
}

#[test]
fn faults_and_log_survive_crash_but_not_restore() {
    let mut b = full(1);
    let copy = b.disk.snapshot();
    b.disk.set_faults(FaultRates::new(1).with(DiskFault::LostWrite, 1_000_000));
    b.write(0, 1, 99);
    b.disk.crash(CrashMode::Random, 1);
    let mut b = b.reopen();
    b.write(0, 1, 99);
    assert_eq!((b.block(0), b.disk.struck().len()), (1, 2));
    let line = b.disk.struck()[0].to_string();
    assert!(
        line.contains("lost_write write file=sim0/f offset=0 len=4096 effective=true"),
        "{line}"
    );
    assert!(b.disk.log_tail(9).contains("len=4096 struck=lost_write\n"), "{}", b.disk.log_tail(9));
    b.disk.restore(&copy);
    let mut b = b.reopen();
    b.write(0, 1, 99);
    assert_eq!((b.block(0), b.disk.struck()), (99, vec![]));
}

#[test]
fn planned_strike_counts_only_eligible_operations() {
    let mut b = full(1);
    b.disk.inject(FaultPlan::Strike { fault: DiskFault::LostWrite, nth: 3 });
    b.disk.inject(FaultPlan::Strike { fault: DiskFault::BitFlipAtRest, nth: 3 });
    for i in 0..5 {
        b.write(i, 1, 99);
        see(&mut b, i, 1).expect("a read");
        b.sync();
    }
    let struck: Vec<_> = b.disk.struck().iter().map(|s| (s.fault, s.offset / 4096)).collect();
    assert_eq!(
        struck,
        [(DiskFault::LostWrite, 2), (DiskFault::BitFlipAtRest, 3)],
        "one an operation"
    );
    strike(&b, DiskFault::LostWrite);
    b.disk.clear_faults();
    b.write(9, 1, 99);
    assert_eq!((b.block(9), b.disk.struck().len()), (99, 2), "an order ends like the rest");
}

#[test]
#[should_panic(expected = "rates exceed one million op=write sum=1000001")]
fn rates_above_one_million_panic() {
    let _ = FaultRates::new(1).with(DiskFault::LostWrite, 1_000_000).with(DiskFault::TornWrite, 1);
}

#[test]
fn disk_fault_kinds_are_ordered_and_each_strikes() {
    let ops = [FaultOp::Read, FaultOp::Write, FaultOp::Sync, FaultOp::Create];
    for (i, fault) in DiskFault::ALL.into_iter().enumerate() {
        assert_eq!(fault as usize, i, "{fault}");
        let struck = ops.iter().filter(|op| fault.strikes(**op)).count();
        assert_eq!(struck, if fault.delays() { 3 } else { 1 }, "{fault}");
    }
}

impl Fixture {
    fn now(&self) -> Mono {
        use pagelith_io::clock::Clock;
        self.clock.now()
    }
}
