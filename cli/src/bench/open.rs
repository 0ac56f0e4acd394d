//! Opening a store again and again, as a crash leaves it or after it was closed.

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
use super::store::Bench;
use super::{Op, Shape};

/// What opening is measured against.
const LIMIT: &str = "a bare read of as many entries of the checkpoint";

/// Bytes of a bare read.
const READ_BYTES: usize = 1 << 20;

/// Fill a store, leave it as it is to be opened, and open it in every round as often as there is time.
pub(super) fn run(shape: Shape, config: ValidConfig) -> anyhow::Result<Report> {
    let mut bench = Bench::open(shape, config.clone())?;
    let mut report = Report::new(shape, bench.io());
    if shape.op == Op::Open {
        // What no checkpoint has yet, as a crash finds it.
        bench.put_more(shape.objects / 8)?;
        bench.abandon();
    } else {
        bench.pause()?;
    }
    for _ in 0..shape.rounds {
        let (round, objects) = opens(shape, &config)?;
        report.store(round);
        report.limit(0, LIMIT, reads(shape, &config, objects)?);
    }
    Ok(report)
}

/// A round, and the objects that the last open found.
fn opens(shape: Shape, config: &ValidConfig) -> anyhow::Result<(Round, u64)> {
    let mut timer = Timer::start(shape.round);
    let (mut objects, mut last, mut opening) = (0, 0, Duration::ZERO);
    while !timer.is_over() {
        let begun = Instant::now();
        let store = Store::open(config.clone()).context("cannot open the store")?;
        opening += begun.elapsed();
        timer.ended(begun);
        last = store.opened().objects;
        objects += last;
        match shape.op {
            Op::OpenClean => _ = store.close().context("cannot close the store")?,
            Op::Open | Op::Put | Op::Get | Op::Exists | Op::Mixed => store.abandon(),
        }
    }
    // What lies between two opens is not opening.
    Ok((Round { time: opening, ..timer.stop(objects, 0) }, last))
}

/// Reads of so many objects' entries, past the page cache.
fn reads(shape: Shape, config: &ValidConfig, objects: u64) -> anyhow::Result<Round> {
    let [dir] = config.ssd_dirs() else { bail!("a store of several directories") };
    let mut file = OpenOptions::new();
    file.read(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let open = || file.open(dir.join(CHECKPOINTS[0])).context("cannot open the checkpoint");
    let mut buffer = AlignedBuf::new(READ_BYTES).context("no memory")?;
    let mut timer = Timer::start(shape.round);
    let mut read = 0;
    while !timer.is_over() {
        let begun = Instant::now();
        pass(open()?, &mut buffer, objects * CheckpointEntry::BYTES as u64)?;
        timer.ended(begun);
        read += objects;
    }
    Ok(timer.stop(read, 0))
}

fn pass(mut file: File, buffer: &mut [u8], bytes: u64) -> anyhow::Result<()> {
    let mut left = bytes;
    while left > 0 {
        match file.read(buffer).context("cannot read the checkpoint")? {
            0 => return Ok(()),
            n => left = left.saturating_sub(n as u64),
        }
    }
    Ok(())
}
