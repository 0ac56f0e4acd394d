//! Plain transfers of a file through the store's disk interface: the bandwidth of the device
//! without lookup, verification and storage; or with one additional task ([`super::baseline`]).

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagelith::AlignedBuf;
use pagelith::config::SsdIo;
use pagelith::io::buffer::Part;
use pagelith::io::disk::{Completion, Disk, FileId, Op as DiskOp, Queue};
use pagelith::io::fault::FaultKind;
use pagelith::io::probe::{BackendChoice, open_disk};
use pagelith::io::registered::Registration;
use pagelith::layouts::align::{ALIGN, align_up};
use pagelith::layouts::footer::FooterEntry;
use pagelith::layouts::ids::SegmentId;
use pagelith::layouts::names::SEGMENTS;

use super::baseline::{Baseline, ExtraWork};
use super::round::{Round, Timer};
use super::shape::{BenchOp, BenchShape};
use crate::on_disk::{
    LockMode, OnDisk,
    segment::{Footer, Segment},
};
use crate::rng::SplitMix64;

const FILE: &str = "limit";
/// Maximum time of one transfer.
const TRANSFER_TIME_MAX: Duration = Duration::from_secs(60);
/// Size and depth of sequential writes: the store's defaults.
const WRITE_BYTES: usize = 1 << 20;
const WRITE_DEPTH: usize = 8;
/// Memory from which objects are written: like the arena of a store without a DRAM tier.
const ARENA_BYTES: usize = 64 << 20;
/// Bytes of the header before each object.
const HEADER_BYTES: usize = 4096;

/// The file for the transfers. It is open only during a round.
pub(super) struct LimitFile {
    pub(super) shape: BenchShape,
    pub(super) baseline: Option<Baseline>,
    dir: PathBuf,
    name: &'static str,
    side: BackendChoice,
    /// The extents to read at random: (offset, length), multiples of 4096.
    extents: Vec<(u64, usize)>,
    /// Offset of the next write.
    next: u64,
    rng: SplitMix64,
}

impl LimitFile {
    /// The extents of a closed store, of one directory, whose segments are sealed.
    pub(super) fn of_store(
        shape: BenchShape,
        baseline: Option<Baseline>,
        dirs: &[PathBuf],
        io: Option<SsdIo>,
    ) -> anyhow::Result<LimitFile> {
        let [dir] = dirs else {
            bail!("the limit needs a store of one directory dirs={}", dirs.len())
        };
        let disk = OnDisk::open(dirs, LockMode::Probe)?;
        let Ok((manifest, _)) = disk.manifest() else { bail!("the store has no manifest") };
        let mut extents = Vec::new();
        for id in (0..manifest.superblock().segment_count).map(SegmentId) {
            let Some(segment) = Segment::load(&disk, &manifest, id)? else { continue };
            let Footer::Sealed { entries, .. } = &segment.footer else { continue };
            let (_, start) = disk.segment_location(id, manifest.superblock());
            let place =
                |e: &FooterEntry| start + u64::from(e.record_sector + e.payload_sector) * ALIGN;
            extents.extend(
                entries
                    .iter()
                    .filter(|e| e.length > 0)
                    .map(|e| (place(e), align_up(e.length) as usize)),
            );
        }
        if extents.is_empty() {
            bail!("the store has no objects on SSD");
        }
        Ok(LimitFile { extents, name: SEGMENTS, ..LimitFile::named(shape, baseline, dir, io) })
    }

    /// A separate file of the size of the data, completely written.
    pub(super) fn created(
        shape: BenchShape,
        baseline: Option<Baseline>,
        dir: &Path,
        io: Option<SsdIo>,
    ) -> anyhow::Result<LimitFile> {
        let object = align_up(shape.object_bytes as u64);
        let extents = (0..shape.objects).map(|i| (i * object, object as usize)).collect();
        let file = LimitFile { extents, ..LimitFile::named(shape, baseline, dir, io) };
        let len = (object * shape.objects).next_multiple_of(WRITE_BYTES as u64);
        let disk = open_disk(std::slice::from_ref(&file.dir), file.side)?;
        let is_new = match disk.open(0, FILE) {
            Ok((_, found)) if found == len => false,
            Ok(_) => {
                disk.remove(0, FILE)?;
                true
            }
            Err(fault) if fault.kind == FaultKind::NotFound => true,
            Err(fault) => return Err(fault.into()),
        };
        if is_new {
            disk.create(0, FILE, len)?;
            drop(disk);
            // Reads of blocks that were never written do not reach the device.
            let mut transfers = Transfers::open(&file)?;
            let mut written = 0;
            while written < len {
                written += transfers.write()?;
            }
            transfers.drain(None)?;
            transfers.sync()?;
        }
        Ok(file)
    }

    fn named(
        shape: BenchShape,
        baseline: Option<Baseline>,
        dir: &Path,
        io: Option<SsdIo>,
    ) -> LimitFile {
        let side = match io.unwrap_or_default() {
            SsdIo::Auto => BackendChoice::Auto,
            SsdIo::Uring => BackendChoice::Uring,
            SsdIo::Blocking => BackendChoice::Blocking,
        };
        let rng = SplitMix64::new(shape.seed);
        LimitFile {
            shape,
            baseline,
            dir: dir.to_owned(),
            name: FILE,
            side,
            extents: Vec::new(),
            next: 0,
            rng,
        }
    }

    /// One round.
    pub(super) fn round(&mut self) -> anyhow::Result<Round> {
        let mut transfers = Transfers::open(self)?;
        let round = transfers.round();
        (self.rng, self.next) = (transfers.rng, transfers.next);
        round
    }
}

/// Transfers in flight.
struct Transfers<'f> {
    shape: BenchShape,
    /// Whether writes consist of headers and objects, like the store's.
    is_of_pieces: bool,
    extra: ExtraWork,
    extents: &'f [(u64, usize)],
    file: FileId,
    queue: Box<dyn Queue>,
    len: u64,
    rng: SplitMix64,
    next: u64,
    /// When each transfer in flight was begun, by token.
    begun: Vec<Instant>,
    free: Vec<u64>,
    done: Vec<Completion>,
    /// Buffers that wait for their next read.
    reads: Vec<AlignedBuf>,
    /// Writes in flight.
    writing: usize,
    _registration: Registration,
    // The queue's files live in the disk, which must outlast it.
    _disk: Arc<dyn Disk>,
}

impl<'f> Transfers<'f> {
    fn open(of: &'f LimitFile) -> anyhow::Result<Transfers<'f>> {
        let shape = of.shape;
        let disk = open_disk(std::slice::from_ref(&of.dir), of.side)?;
        let (file, len) = disk.open(0, of.name)?;
        let readers = if shape.op == BenchOp::Put { 0 } else { shape.batch * shape.depth };
        let depth = readers + WRITE_DEPTH;
        let queue = disk.queue(depth)?;
        let is_of_pieces = of.baseline.is_some_and(Baseline::is_of_pieces);
        let mut transfers = Transfers {
            shape,
            is_of_pieces,
            extra: ExtraWork::new(shape, of.baseline).context("no memory for a transfer")?,
            extents: &of.extents,
            file,
            queue,
            len,
            rng: of.rng.clone(),
            next: of.next,
            begun: vec![Instant::now(); depth],
            free: (0..depth as u64).collect(),
            done: Vec::new(),
            reads: Vec::new(),
            writing: 0,
            _registration: Registration::none(),
            _disk: disk,
        };
        let longest = of.extents.iter().map(|e| e.1).max().unwrap_or(0);
        transfers.reads =
            shape.memory.buffers(readers, longest).context("no memory for a transfer")?;
        if let Some((base, len)) = shape.memory.registered(&transfers.reads) {
            transfers._registration = transfers._disk.register(base as usize, len)?;
        }
        // Touch the pages before the clock runs.
        transfers
            .reads
            .iter_mut()
            .flat_map(|buffer| buffer.chunks_mut(4096))
            .for_each(|page| page[0] = 1);
        if shape.op != BenchOp::Get {
            // Random bytes, which a device cannot compress.
            let mut writes = pieces(shape, is_of_pieces).context("no memory for a transfer")?;
            transfers.rng.fill(writes.iter_mut().flatten());
            writes.into_iter().for_each(|pieces| transfers.extra.give(pieces));
        }
        Ok(transfers)
    }

    /// Random reads, sequential writes, or both with the same number of bytes. Each completed
    /// transfer is followed by a new one.
    fn round(&mut self) -> anyhow::Result<Round> {
        let reads = self.shape.op != BenchOp::Put;
        let writes = matches!(self.shape.op, BenchOp::Put | BenchOp::Mixed);
        let mut timer = Timer::start(self.shape.round);
        let (mut read, mut written) = (0u64, 0u64);
        while !timer.is_over() {
            while reads && !self.reads.is_empty() && (!writes || read <= written) {
                self.read()?;
                read += self.shape.object_bytes as u64;
            }
            while writes && self.writing < WRITE_DEPTH && (!reads || written <= read) {
                written += self.write()?;
            }
            self.complete(Some(&mut timer))?;
        }
        self.drain(Some(&mut timer))?;
        if writes {
            self.sync()?;
        }
        let bytes = read + written;
        Ok(timer.stop(bytes / self.shape.object_bytes as u64, bytes))
    }

    fn read(&mut self) -> anyhow::Result<()> {
        let buffer = self.reads.pop().context("more reads than buffers")?;
        let (offset, _) = self.extents[self.rng.within(0, self.extents.len() as u64 - 1) as usize];
        self.submit(DiskOp::Read { file: self.file, offset, parts: vec![buffer.into_part()] })
    }

    /// Submit a write; returns the bytes of objects in it.
    fn write(&mut self) -> anyhow::Result<u64> {
        while self.writing == WRITE_DEPTH {
            self.complete(None)?;
        }
        let pieces = self.extra.take().context("more writes than buffers")?;
        let bytes: u64 = pieces.iter().map(|piece| align_up(piece.len() as u64)).sum();
        let objects = match self.is_of_pieces {
            true => pieces.len() as u64 / 2 * self.shape.object_bytes as u64,
            false => bytes,
        };
        if bytes > self.len {
            bail!("--data is less than one write bytes={bytes} data={}", self.len);
        }
        let offset = if self.next + bytes > self.len { 0 } else { self.next };
        self.next = offset + bytes;
        let parts = pieces.into_iter().map(AlignedBuf::into_part).collect();
        self.submit(DiskOp::Write { file: self.file, offset, parts })?;
        self.writing += 1;
        Ok(objects)
    }

    fn submit(&mut self, op: DiskOp) -> anyhow::Result<()> {
        let token = self.free.pop().context("more transfers than the queue takes")?;
        self.begun[token as usize] = Instant::now();
        if self.queue.submit(token, op).is_err() {
            bail!("the disk queue refused an operation within its depth");
        }
        Ok(())
    }

    /// Wait for at least one completion, and process the completions.
    fn complete(&mut self, mut timer: Option<&mut Timer>) -> anyhow::Result<()> {
        self.queue.wait(&mut self.done, TRANSFER_TIME_MAX);
        if self.done.is_empty() {
            bail!("a transfer did not complete waited_s={}", TRANSFER_TIME_MAX.as_secs());
        }
        for completion in self.done.drain(..) {
            completion.result?;
            let counts = match (&completion.op, self.shape.op) {
                (DiskOp::Read { .. }, _) | (DiskOp::Write { .. }, BenchOp::Put) => true,
                (DiskOp::Write { .. } | DiskOp::Sync { .. }, _) => false,
            };
            if let Some(timer) = timer.as_mut().filter(|_| counts) {
                timer.record(self.begun[completion.token as usize]);
            }
            self.free.push(completion.token);
            let writes = matches!(completion.op, DiskOp::Write { .. });
            let buffers = completion.op.into_parts().into_iter().filter_map(Part::into_buf);
            if writes {
                self.writing -= 1;
                self.extra.give(buffers.collect());
                continue;
            }
            for buffer in buffers {
                self.extra.read(&buffer);
                self.reads.push(buffer);
            }
        }
        Ok(())
    }

    fn drain(&mut self, mut timer: Option<&mut Timer>) -> anyhow::Result<()> {
        while self.queue.in_flight() > 0 {
            self.complete(timer.as_deref_mut())?;
        }
        Ok(())
    }

    fn sync(&mut self) -> anyhow::Result<()> {
        self.submit(DiskOp::Sync { file: self.file })?;
        self.drain(None)
    }
}

/// The buffers of writes: 1 MiB each, which stay in the CPU cache; or alternating headers and
/// objects in more memory than the cache holds.
fn pieces(shape: BenchShape, is_of_pieces: bool) -> std::io::Result<VecDeque<Vec<AlignedBuf>>> {
    if !is_of_pieces {
        let buffers = AlignedBuf::many(WRITE_DEPTH, WRITE_BYTES)?;
        return Ok(buffers.into_iter().map(|buffer| vec![buffer]).collect());
    }
    let padded = align_up(shape.object_bytes as u64) as usize;
    let in_a_write = (WRITE_BYTES / padded).max(1);
    let writes = (ARENA_BYTES / (in_a_write * padded)).max(WRITE_DEPTH + 1);
    // Padded to whole blocks, as they are written.
    let objects = AlignedBuf::many(writes * in_a_write, padded)?;
    let headers = AlignedBuf::many(writes * in_a_write, HEADER_BYTES)?;
    let mut records = headers.into_iter().zip(objects).map(|(header, object)| [header, object]);
    Ok((0..writes).map(|_| records.by_ref().take(in_a_write).flatten().collect()).collect())
}
