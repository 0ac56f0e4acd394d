//! `pagelith bench`: how fast the store is beside the limit of the same machine: what bare reads, writes or
//! copies of the same sizes reach in the same minute. Rounds of both take turns, so that whatever else the
//! machine does meets both; the figures are medians.

mod bare;
mod beside;
mod hash;
mod limit;
mod objects;
mod open;
mod put;
mod report;
mod round;
mod store;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use pagelith::AlignedBuf;
use pagelith::config::{Promote, Size};
use pagelith::layouts::align::align_up;
use serde::Serialize;

use self::beside::Beside;
use self::hash::Cold;
use self::limit::Limit;
use self::report::{Report, Summary};
use crate::exit::RunStatus;
use crate::output::out;
use crate::settings::{Defaults, StoreFlags};
use crate::temp_dir::TempDir;

/// Measure the store, and the limit it is measured against, in turns.
///
/// SSD reads are cold: O_DIRECT where there is, no DRAM tier, nothing promoted. The store verifies every
/// byte. It is one that has been running: it knows what
/// headers it has memory for (`ssd.headers_bytes`).
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Which tier
    #[arg(long, value_enum)]
    tier: BenchTier,
    /// What to do
    #[arg(long, value_enum)]
    op: Op,
    /// Bytes of an object
    #[arg(long, value_name = "SIZE", default_value_t = Size::mib(1))]
    object_bytes: Size,
    /// Objects of a batch, and operations in flight of the limit
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// Batches of gets in flight; 1 waits for each before the next
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    depth: u32,
    /// Seconds that the measurement takes, store and limit together, without filling
    #[arg(long, value_name = "T", default_value_t = 10.0)]
    seconds: f64,
    /// With `mixed`: one batch of gets at a time, beside a thread that puts so many bytes a second
    #[arg(long, value_name = "SIZE")]
    write_rate: Option<Size>,
    /// Memory that objects are read into
    #[arg(long, value_enum, default_value_t = Memory::Huge)]
    memory: Memory,
    /// With `get` on SSD: of a store that was opened a moment ago, and knows no header
    #[arg(long)]
    just_opened: bool,
    /// What else takes turns with the store and the limit, on SSD
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    beside: Vec<Beside>,
    /// Rounds of each
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Bytes of objects to read from or write over [default: 1GiB on SSD, 256MiB in DRAM]
    #[arg(long, value_name = "SIZE")]
    data: Option<Size>,
    /// Seed of contents and of the order of reads
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the store on SSD and for the limit's file, kept afterwards and used again by the next run with
    /// the same sizes; nothing lies there with --tier dram [default: a fresh one under the system's temporary directory, removed at the end]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// What moves the bytes to and from the SSD
    #[arg(long, value_name = "SIDE", value_parser = crate::settings::io_backend())]
    io: Option<pagelith::config::SsdIo>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A tier to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum BenchTier {
    /// The arena.
    Dram,
    /// The segment log.
    Ssd,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Op {
    /// Store new objects; on SSD until they are durable.
    Put,
    /// Read random objects.
    Get,
    /// Ask whether objects are there.
    Exists,
    /// As many batches of gets as of puts. Times are those of gets.
    Mixed,
    /// Open the store as a crash leaves it.
    Open,
    /// Open the store after it was closed.
    OpenClean,
}

/// What the application's memory is like, for the limit too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Memory {
    /// Huge pages, where the system has them.
    Huge,
    /// Pages of 4 KiB, as a host pool often has.
    Small,
    /// The same, registered.
    Registered,
}

/// How long a mapping of `AlignedBuf::many` is to be of huge pages, bytes.
const HUGE_FROM: u64 = 4 << 20;

impl Memory {
    /// `count` buffers side by side.
    fn buffers(self, count: usize, len: usize) -> std::io::Result<Vec<AlignedBuf>> {
        match self {
            Memory::Huge => {
                // A shorter mapping is of small pages.
                let least = HUGE_FROM.div_ceil(align_up(len.max(1) as u64)) as usize;
                let mut buffers = AlignedBuf::many(count.max(least), len)?;
                buffers.truncate(count);
                Ok(buffers)
            }
            Memory::Small | Memory::Registered => AlignedBuf::sparse(count, len),
        }
    }

    /// From where to where the buffers lie, if they are to be registered.
    fn registered(self, buffers: &[AlignedBuf]) -> Option<(*const u8, usize)> {
        let (first, last) = (buffers.first()?, buffers.last()?);
        let end = last.as_ptr() as usize + last.len();
        (self == Memory::Registered).then(|| (first.as_ptr(), end - first.as_ptr() as usize))
    }
}

/// The sizes of a measurement.
#[derive(Clone, Copy, Debug)]
struct Shape {
    tier: BenchTier,
    op: Op,
    object_bytes: usize,
    objects: u64,
    batch: usize,
    depth: usize,
    /// Objects that the index has room for, as far as is known before the store is open.
    index_objects: u64,
    /// Bytes a second of a writer beside.
    write_rate: Option<u64>,
    memory: Memory,
    /// Nothing is got before it is measured.
    just_opened: bool,
    round: Duration,
    rounds: u32,
    seed: u64,
}

impl BenchArgs {
    fn data(&self) -> Size {
        self.data.unwrap_or(match self.tier {
            BenchTier::Dram => Size::mib(256),
            BenchTier::Ssd => Size::gib(1),
        })
    }

    fn shape(&self) -> anyhow::Result<Shape> {
        let (object_bytes, data) = (self.object_bytes.bytes(), self.data().bytes());
        let batch = u64::from(self.batch);
        if object_bytes == 0 || data / object_bytes.max(1) < batch {
            bail!(
                "--data must hold at least one batch of objects --object-bytes={object_bytes} --data={data}"
            );
        }
        if !(self.seconds > 0.0 && self.seconds <= 86_400.0) {
            bail!("must be above 0 and at most a day --seconds={}", self.seconds);
        }
        let opens = matches!(self.op, Op::Open | Op::OpenClean);
        if opens && self.tier == BenchTier::Dram {
            bail!("there is nothing to be opened --tier=dram");
        }
        let ssd_gets = self.tier == BenchTier::Ssd && self.op == Op::Get;
        if self.just_opened && !ssd_gets {
            bail!(
                "what a store just opened does not know is only read on SSD: --just-opened is for --tier=ssd --op=get"
            );
        }
        if self.write_rate.is_some() && self.op != Op::Mixed {
            bail!("a writer beside is for --op=mixed");
        }
        for beside in &self.beside {
            if self.tier != BenchTier::Ssd || self.op != beside.op() {
                bail!("it is of another tier or operation --beside={}", beside.name());
            }
        }
        // All share the time.
        let sides = 2 + self.beside.len() as u32;
        let round = Duration::from_secs_f64(self.seconds / f64::from(sides * self.rounds));
        Ok(Shape {
            tier: self.tier,
            op: self.op,
            object_bytes: usize::try_from(object_bytes)?,
            objects: data / object_bytes,
            batch: self.batch as usize,
            depth: self.depth as usize,
            index_objects: index_objects(data / object_bytes),
            write_rate: self.write_rate.map(Size::bytes),
            memory: self.memory,
            just_opened: self.just_opened,
            round,
            rounds: self.rounds,
            seed: self.seed,
        })
    }

    /// Room for the data in the tier that is measured, and no other tier.
    fn sizes(&self) -> Defaults {
        // Each object has a header of a block or more, and reclaim needs free segments: an eighth covers both
        // from 64 KiB up, and small objects get a block each. Of large ones the last does not fit into a segment.
        let objects = self.data().bytes() / self.object_bytes.bytes().max(1);
        let padded = self.object_bytes.bytes().next_multiple_of(4096) + 4096;
        let eighths = if padded > 512 << 10 { 12 } else { 9 };
        let room = Size::from_bytes((objects * padded / 8 * eighths + (64 << 20)).next_multiple_of(1 << 20));
        match self.tier {
            BenchTier::Dram => Defaults { dram: room, ssd: Size::ZERO, shared: None },
            BenchTier::Ssd => Defaults { dram: Size::ZERO, ssd: room, shared: None },
        }
    }
}

/// Room in the index for this many objects and those that take their place.
fn index_objects(objects: u64) -> u64 {
    (2 * objects).max(65_536)
}

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<RunStatus> {
    let shape = args.shape()?;
    let mut fresh = TempDir::with_prefix("pagelith-bench");
    let dir = args.dir.clone().unwrap_or_else(|| fresh.path().to_owned());
    // Where there is a directory, the store is there, whatever the environment says.
    let named = args.dir.iter().filter(|_| args.tier == BenchTier::Ssd).map(|dir| dir.join("store"));
    let flags = StoreFlags::of(named.collect(), args.io);
    let config = flags.resolve(args.sizes(), Some(&dir.join("store")), &|config| {
        // Whatever the environment says, nothing may be read from memory that is to be read from SSD.
        // A store that has been running has had each page of its memory: the first touch of one can take a hundred times a put's copy.
        config.dram.prefault = !matches!(shape.op, Op::Open | Op::OpenClean);
        config.dram.promote = if args.tier == BenchTier::Ssd { Promote::Never } else { Promote::Always };
        config.index.max_objects = config.index.max_objects.or(Some(shape.index_objects));
    })?;
    fresh.make_for(config.ssd_dirs())?;
    if matches!(shape.op, Op::Open | Op::OpenClean) {
        let report = open::run(shape, config)?;
        return print(args, report.summary());
    }
    let mut store = store::Bench::open(shape, config.clone())?;
    let mut report = Report::new(shape, store.io());
    let cold =
        (shape.tier == BenchTier::Ssd && shape.op == Op::Get).then(|| Cold::new(shape.seed)).transpose()?;
    // Reads are measured over the very extents that the store reads, which only one of the two can have open.
    let shared = shape.tier == BenchTier::Ssd && shape.op == Op::Get;
    let mut limits = Vec::new();
    let mut limit_rounds = |report: &mut Report| {
        if limits.is_empty() {
            for beside in std::iter::once(None).chain(args.beside.iter().copied().map(Some)) {
                let limit = Limit::prepare(shape, beside, &dir.join("limit"), config.ssd_dirs(), args.io)?;
                limits.push(limit);
            }
        }
        for (at, limit) in limits.iter_mut().enumerate() {
            report.limit(at, limit.what(), limit.round()?);
        }
        anyhow::Ok(())
    };
    for _ in 0..shape.rounds {
        report.store(store.round()?);
        report.checksum(cold.as_ref().map(Cold::pass));
        if shared {
            let paused = store.pause()?;
            limit_rounds(&mut report)?;
            store = store::Bench::resume(shape, config.clone(), paused)?;
        } else {
            limit_rounds(&mut report)?;
        }
    }
    store.pause()?;
    print(args, report.summary())
}

fn print(args: &BenchArgs, summary: Summary) -> anyhow::Result<RunStatus> {
    if args.json {
        out!("{}", serde_json::to_string(&summary)?)?;
    } else {
        out!("{summary}")?;
    }
    Ok(RunStatus::Clean)
}
