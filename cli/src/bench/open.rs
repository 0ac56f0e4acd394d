//! Repeated opens of a store, after a simulated crash or after a close.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagelith::config::ValidConfig;
use pagelith::layouts::checkpoint::CheckpointEntry;
use pagelith::layouts::names::CHECKPOINTS;
use pagelith::{AlignedBuf, Store};
use rustix::fs::OFlags;

use super::report::Report;
use super::round::{Round, Timer};
use super::shape::{BenchOp, BenchShape};
use super::store::Bench;

/// The limit of opens.
const LIMIT: &str = "a bare read of as many entries of the checkpoint";

/// Bytes of a plain read.
const READ_BYTES: usize = 1 << 20;

/// Fill a store, crash or close it, and open it in each round as often as time permits.
pub(super) fn run(shape: BenchShape, config: ValidConfig) -> anyhow::Result<Report> {
    let mut bench = Bench::open(shape, config.clone())?;
    let mut report = Report::new(shape, bench.io());
    if shape.op == BenchOp::Open {
        // Objects that are not in a checkpoint yet.
        bench.put_more(shape.objects / 8)?;
        bench.abandon();
    } else {
        bench.pause()?;
    }
    for _ in 0..shape.rounds {
        let (round, objects) = open_round(shape, &config)?;
        report.store(round);
        report.limit(0, LIMIT, read_round(shape, &config, objects)?);
    }
    Ok(report)
}

/// A round of opens, and the number of objects at the last open.
fn open_round(shape: BenchShape, config: &ValidConfig) -> anyhow::Result<(Round, u64)> {
    let mut timer = Timer::start(shape.round);
    let (mut objects, mut last, mut opening) = (0, 0, Duration::ZERO);
    while !timer.is_over() {
        let begun = Instant::now();
        let store = Store::open(config.clone()).context("cannot open the store")?;
        opening += begun.elapsed();
        timer.record(begun);
        last = store.opened().objects;
        objects += last;
        match shape.op {
            BenchOp::OpenClean => _ = store.close().context("cannot close the store")?,
            BenchOp::Open | BenchOp::Put | BenchOp::Get | BenchOp::Exists | BenchOp::Mixed => {
                store.abandon()
            }
        }
    }
    // Without the time between the opens.
    Ok((Round { time: opening, ..timer.stop(objects, 0) }, last))
}

/// A round of reads of the checkpoint entries of `objects` objects, with O_DIRECT.
fn read_round(shape: BenchShape, config: &ValidConfig, objects: u64) -> anyhow::Result<Round> {
    let [dir] = config.ssd_dirs() else { bail!("the limit needs a store of one directory") };
    let mut file = OpenOptions::new();
    file.read(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let open = || file.open(dir.join(CHECKPOINTS[0])).context("cannot open the checkpoint");
    let mut buffer = AlignedBuf::new(READ_BYTES).context("no memory")?;
    let mut timer = Timer::start(shape.round);
    let mut read = 0;
    while !timer.is_over() {
        let begun = Instant::now();
        read_up_to(open()?, &mut buffer, objects * CheckpointEntry::BYTES as u64)?;
        timer.record(begun);
        read += objects;
    }
    Ok(timer.stop(read, 0))
}

fn read_up_to(mut file: File, buffer: &mut [u8], bytes: u64) -> anyhow::Result<()> {
    let mut left = bytes;
    while left > 0 {
        match file.read(buffer).context("cannot read the checkpoint")? {
            0 => return Ok(()),
            n => left = left.saturating_sub(n as u64),
        }
    }
    Ok(())
}
