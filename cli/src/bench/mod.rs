//! `pagelith bench`: the speed of the store relative to the limit of the machine: plain reads,
//! writes or copies of the same sizes in the same minute. Rounds of both alternate, so that other
//! load on the machine affects both. The figures are medians.

mod baseline;
mod file_transfers;
mod hash;
mod limit;
mod objects;
mod open;
mod put;
mod report;
mod round;
mod shape;
mod store;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use pagelith::config::{Promote, Size, SsdAdmissionRule};

use self::baseline::Baseline;
use self::hash::ColdMemory;
use self::limit::Limit;
use self::report::{Report, Summary};
use self::shape::{BenchOp, BenchShape, BenchTier, BufferKind};
use crate::exit::RunStatus;
use crate::output::out;
use crate::settings::{StoreDefaults, StoreFlags};
use crate::temp_dir::TempDir;

/// Measure the store and its limit in alternating rounds.
///
/// SSD reads are cold: O_DIRECT if available, no DRAM tier, no promotion. The store verifies every
/// byte. It is in the state of a running store: it has cached as many headers as fit in
/// `ssd.headers_bytes`.
#[derive(Args, Debug)]
#[command(
    after_help = "Example: pagelith bench --tier ssd --op get --object-bytes 64KiB --data 4GiB --dir /mnt/nvme/kv"
)]
pub(crate) struct BenchArgs {
    /// Tier to measure
    #[arg(long, value_enum)]
    tier: BenchTier,
    /// Operation to measure
    #[arg(long, value_enum)]
    op: BenchOp,
    /// Bytes of an object
    #[arg(long, value_name = "SIZE", default_value_t = Size::mib(1))]
    object_bytes: Size,
    /// Objects per batch, and operations in flight of the limit
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// Batches of gets in flight; 1 waits for each batch before the next
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    depth: u32,
    /// Seconds of the whole measurement, store and limit together, without filling the store
    #[arg(long, value_name = "T", default_value_t = 10.0)]
    seconds: f64,
    /// With `mixed`: one batch of gets at a time, while a thread puts this number of bytes per
    /// second
    #[arg(long, value_name = "SIZE")]
    write_rate: Option<Size>,
    /// Memory into which objects are read
    #[arg(long, value_enum, default_value_t = BufferKind::Huge)]
    memory: BufferKind,
    /// With `get` on SSD: measure a store that was just opened and has cached no header
    #[arg(long)]
    just_opened: bool,
    /// Further baselines that alternate with the store and the limit, on SSD
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    beside: Vec<Baseline>,
    /// Number of rounds of each
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Bytes of the objects that are read or overwritten [default: 1GiB on SSD, 256MiB in DRAM]
    #[arg(long, value_name = "SIZE")]
    data: Option<Size>,
    /// Seed of contents and of the order of reads
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the store on SSD and for the file of the limit, kept afterwards and reused by
    /// the next run with the same sizes; not used with --tier dram [default: a new one under the
    /// system's temporary directory, removed at the end]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// I/O backend of the SSD tier
    #[arg(long, value_name = "BACKEND", value_parser = crate::settings::io_backend())]
    io: Option<pagelith::config::SsdIo>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl BenchArgs {
    fn data(&self) -> Size {
        self.data.unwrap_or(match self.tier {
            BenchTier::Dram => Size::mib(256),
            BenchTier::Ssd => Size::gib(1),
        })
    }

    fn shape(&self) -> anyhow::Result<BenchShape> {
        let (object_bytes, data) = (self.object_bytes.bytes(), self.data().bytes());
        let batch = u64::from(self.batch);
        if object_bytes == 0 || data / object_bytes.max(1) < batch {
            bail!(
                "--data must hold at least one batch of objects --object-bytes={object_bytes} --data={data}"
            );
        }
        if !(self.seconds > 0.0 && self.seconds <= 86_400.0) {
            bail!("--seconds must be above 0 and at most a day --seconds={}", self.seconds);
        }
        let opens = matches!(self.op, BenchOp::Open | BenchOp::OpenClean);
        if opens && self.tier == BenchTier::Dram {
            bail!("a DRAM tier cannot be opened, --op=open needs --tier=ssd --tier=dram");
        }
        let ssd_gets = self.tier == BenchTier::Ssd && self.op == BenchOp::Get;
        if self.just_opened && !ssd_gets {
            bail!("--just-opened is only for --tier=ssd --op=get");
        }
        if self.write_rate.is_some() && self.op != BenchOp::Mixed {
            bail!("--write-rate is only for --op=mixed");
        }
        for baseline in &self.beside {
            if self.tier != BenchTier::Ssd || self.op != baseline.op() {
                bail!("the baseline is for another tier or operation --beside={}", baseline.name());
            }
        }
        // The store, the limit and the baselines share the time.
        let sides = 2 + self.beside.len() as u32;
        let round = Duration::from_secs_f64(self.seconds / f64::from(sides * self.rounds));
        Ok(BenchShape {
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

    /// Sizes with room for the data in the measured tier, and without the other tier.
    fn sizes(&self) -> StoreDefaults {
        // Each object has a header of at least a block, and reclaim needs free segments: an eighth
        // covers both from 64 KiB up, and each small object gets an additional block. Large objects
        // leave free space at the end of segments.
        let objects = self.data().bytes() / self.object_bytes.bytes().max(1);
        let padded = self.object_bytes.bytes().next_multiple_of(4096) + 4096;
        let eighths = if padded > 512 << 10 { 12 } else { 9 };
        let room = Size::from_bytes(
            (objects * padded / 8 * eighths + (64 << 20)).next_multiple_of(1 << 20),
        );
        match self.tier {
            BenchTier::Dram => StoreDefaults { dram: room, ssd: Size::ZERO, shared: None },
            BenchTier::Ssd => StoreDefaults { dram: Size::ZERO, ssd: room, shared: None },
        }
    }
}

/// Index capacity for this many objects and those that replace them.
fn index_objects(objects: u64) -> u64 {
    (2 * objects).max(65_536)
}

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<RunStatus> {
    let shape = args.shape()?;
    let mut temp_dir = TempDir::with_prefix("pagelith-bench");
    let dir = args.dir.clone().unwrap_or_else(|| temp_dir.path().to_owned());
    // A given directory overrides the environment.
    let named =
        args.dir.iter().filter(|_| args.tier == BenchTier::Ssd).map(|dir| dir.join("store"));
    let flags = StoreFlags::of(named.collect(), args.io);
    let config = flags.resolve(args.sizes(), Some(&dir.join("store")), &|config| {
        // The measurement overrides the environment. A running store has touched each page of its
        // memory; the first touch of a page can take a hundred times as long as the copy of a put.
        // And objects to be read from SSD must not be in memory, and all must have been written.
        config.dram.prefault = !matches!(shape.op, BenchOp::Open | BenchOp::OpenClean);
        config.dram.promote =
            if args.tier == BenchTier::Ssd { Promote::Never } else { Promote::Always };
        config.ssd.admission = SsdAdmissionRule::Through;
        config.index.max_objects = config.index.max_objects.or(Some(shape.index_objects));
    })?;
    temp_dir.make_for(config.ssd_dirs())?;
    if matches!(shape.op, BenchOp::Open | BenchOp::OpenClean) {
        let report = open::run(shape, config)?;
        return print(args, report.summary());
    }
    let mut store = store::Bench::open(shape, config.clone())?;
    let mut report = Report::new(shape, store.io());
    let cold_memory = (shape.tier == BenchTier::Ssd && shape.op == BenchOp::Get)
        .then(|| ColdMemory::new(shape.seed))
        .transpose()?;
    // The limit of gets reads the same extents as the store, and only one of the two can have the
    // files open.
    let shares_files = shape.tier == BenchTier::Ssd && shape.op == BenchOp::Get;
    let mut limits = Vec::new();
    let mut limit_rounds = |report: &mut Report| {
        if limits.is_empty() {
            for baseline in std::iter::once(None).chain(args.beside.iter().copied().map(Some)) {
                let limit = Limit::prepare(
                    shape,
                    baseline,
                    &dir.join("limit"),
                    config.ssd_dirs(),
                    args.io,
                )?;
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
        report.checksum(cold_memory.as_ref().map(ColdMemory::pass));
        if shares_files {
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
