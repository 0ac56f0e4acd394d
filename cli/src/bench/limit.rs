//! What the store is measured against: the same bytes moved with nothing around them. On SSD, bare reads or
//! writes of the store's own disk seam, of the same sizes, at the depth of a batch; in DRAM, a copy.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use pagelith::AlignedBuf;
use pagelith::config::SsdIo;
use pagelith::io::buffer::Part;
use pagelith::io::disk::{Completion, Disk, FileId, Op as DiskOp, Queue};
use pagelith::io::fault::FaultKind;
use pagelith::io::probe::{SideChoice, open_disk};
use pagelith::layouts::align::align_up;
use pagelith::layouts::checksum::{BLOCK_BYTES, checksum};

use super::round::{Round, Timer};
use super::{BenchTier, Op, Shape};
use crate::rng::SplitMix64;

const FILE: &str = "limit";
/// Longest that one transfer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How sequential writes are made: as large and as many at a time as the store's own by default.
const WRITE_BYTES: usize = 1 << 20;
const WRITE_DEPTH: usize = 8;

/// A limit, ready to be measured.
pub(super) enum Limit {
    /// Nothing to compare with.
    None,
    /// Copies in memory.
    Memory(Memory),
    /// Transfers of a file.
    File(Box<Bare>),
}

impl Limit {
    /// Make ready what the measurement needs.
    pub(super) fn prepare(shape: Shape, dir: &Path, io: Option<SsdIo>) -> anyhow::Result<Limit> {
        Ok(match (shape.op, shape.tier) {
            (Op::Exists, _) => Limit::None,
            (_, BenchTier::Dram) => Limit::Memory(Memory::new(shape)?),
            (_, BenchTier::Ssd) => Limit::File(Box::new(Bare::new(shape, dir, io)?)),
        })
    }

    /// What it is, for the report.
    pub(super) fn name(&self) -> Option<&'static str> {
        match self {
            Limit::None => None,
            Limit::Memory(m) if m.shape.op == Op::Get => Some("copy and checksum"),
            Limit::Memory(_) => Some("memcpy"),
            Limit::File(bare) if bare.shape.op == Op::Get => Some("bare reads"),
            Limit::File(_) => Some("bare writes and a sync"),
        }
    }

    /// One round; `None` if there is nothing to compare with.
    pub(super) fn round(&mut self) -> anyhow::Result<Option<Round>> {
        match self {
            Limit::None => Ok(None),
            Limit::Memory(memory) => Ok(Some(memory.round())),
            Limit::File(bare) if bare.shape.op == Op::Get => bare.reads().map(Some),
            Limit::File(bare) => bare.writes().map(Some),
        }
    }
}

/// Copies between buffers of the sizes that the store copies between.
pub(super) struct Memory {
    shape: Shape,
    from: AlignedBuf,
    to: AlignedBuf,
    rng: SplitMix64,
}

impl Memory {
    fn new(shape: Shape) -> anyhow::Result<Memory> {
        let stride = align_up(shape.object_bytes as u64) as usize;
        // As spread out as the store's objects, or the caches would do the work.
        let mut from = AlignedBuf::new(stride * usize::try_from(shape.objects)?).context("no memory")?;
        from.chunks_mut(4096).for_each(|page| page[0] = 1);
        let to = AlignedBuf::new(stride * shape.batch).context("no memory")?;
        Ok(Memory { shape, from, to, rng: SplitMix64::new(shape.seed) })
    }

    fn round(&mut self) -> Round {
        let (bytes, stride) = (self.shape.object_bytes, align_up(self.shape.object_bytes as u64) as usize);
        let timer = Timer::start(self.shape.round);
        let mut objects = 0;
        while !timer.is_over() {
            for slot in 0..self.shape.batch {
                let far = self.rng.within(0, self.shape.objects - 1) as usize * stride;
                let near = slot * stride;
                if self.shape.op == Op::Put {
                    self.from[far..far + bytes].copy_from_slice(&self.to[near..near + bytes]);
                    std::hint::black_box(&self.from[far..far + bytes]);
                    continue;
                }
                let blocks = self.from[far..far + bytes].chunks(BLOCK_BYTES as usize);
                for (from, to) in blocks.zip(self.to[near..near + bytes].chunks_mut(BLOCK_BYTES as usize)) {
                    to.copy_from_slice(from);
                    std::hint::black_box(checksum(to));
                }
            }
            objects += self.shape.batch as u64;
        }
        timer.stop(objects, objects * bytes as u64)
    }
}

/// Bare transfers of a file of the data's size.
pub(super) struct Bare {
    shape: Shape,
    file: FileId,
    queue: Box<dyn Queue>,
    /// Length of a transfer and of the file, in bytes.
    transfer: usize,
    len: u64,
    rng: SplitMix64,
    next: u64,
    done: Vec<Completion>,
    // The queue's files live in the disk, which must outlast it.
    _disk: Arc<dyn Disk>,
}

impl Bare {
    fn new(shape: Shape, dir: &Path, io: Option<SsdIo>) -> anyhow::Result<Bare> {
        let side = match io.unwrap_or_default() {
            SsdIo::Auto => SideChoice::Auto,
            SsdIo::Uring => SideChoice::Uring,
            SsdIo::Blocking => SideChoice::Blocking,
        };
        let disk = open_disk(&[dir.to_owned()], side)?;
        let object = align_up(shape.object_bytes as u64);
        let len = object * shape.objects;
        let (transfer, depth) = match shape.op {
            Op::Get => (object as usize, shape.batch * shape.in_flight),
            _ => (WRITE_BYTES, WRITE_DEPTH),
        };
        let (file, fresh) = match disk.open(0, FILE) {
            Ok((file, found)) if found == len => (file, false),
            Ok(_) => {
                disk.remove(0, FILE)?;
                (disk.create(0, FILE, len)?, true)
            }
            Err(fault) if fault.kind == FaultKind::NotFound => (disk.create(0, FILE, len)?, true),
            Err(fault) => return Err(fault.into()),
        };
        let queue = disk.queue(depth)?;
        let (rng, done) = (SplitMix64::new(shape.seed), Vec::new());
        let mut bare = Bare { shape, file, queue, transfer, len, rng, next: 0, done, _disk: disk };
        if fresh {
            // Blocks that were never written are read without asking the device.
            bare.write_all()?;
        }
        Ok(bare)
    }

    fn write_all(&mut self) -> anyhow::Result<()> {
        let mut at = 0;
        let mut spare = Vec::new();
        while at < self.len {
            let bytes = WRITE_BYTES.min((self.len - at) as usize);
            let buffer = match spare.pop().filter(|b: &AlignedBuf| b.len() == bytes) {
                Some(buffer) => buffer,
                None => self.noise(bytes)?,
            };
            let op = DiskOp::Write { file: self.file, offset: at, parts: vec![buffer.into_part()] };
            self.submit(op, &mut spare)?;
            at += bytes as u64;
        }
        self.drain(&mut spare)?;
        self.sync()
    }

    /// A buffer that no device can take for zeros or compress.
    fn noise(&mut self, bytes: usize) -> anyhow::Result<AlignedBuf> {
        let mut buffer = AlignedBuf::new(bytes).context("no memory for a transfer")?;
        for word in buffer.chunks_mut(8) {
            word.copy_from_slice(&self.rng.next_u64().to_le_bytes()[..word.len()]);
        }
        Ok(buffer)
    }

    /// Submit an operation, waiting for room; buffers that came back go to `spare`.
    fn submit(&mut self, op: DiskOp, spare: &mut Vec<AlignedBuf>) -> anyhow::Result<()> {
        let mut op = op;
        while let Err(back) = self.queue.submit(0, op) {
            op = back;
            self.take(spare)?;
        }
        Ok(())
    }

    /// Wait for one completion or more.
    fn take(&mut self, spare: &mut Vec<AlignedBuf>) -> anyhow::Result<u64> {
        self.queue.wait(&mut self.done, PATIENCE);
        if self.done.is_empty() {
            bail!("a transfer does not end waited_s={}", PATIENCE.as_secs());
        }
        let count = self.done.len() as u64;
        for completion in self.done.drain(..) {
            completion.result?;
            spare.extend(completion.op.into_parts().into_iter().filter_map(Part::into_buf));
        }
        Ok(count)
    }

    fn drain(&mut self, spare: &mut Vec<AlignedBuf>) -> anyhow::Result<u64> {
        let mut count = 0;
        while self.queue.in_flight() > 0 {
            count += self.take(spare)?;
        }
        Ok(count)
    }

    fn sync(&mut self) -> anyhow::Result<()> {
        self.submit(DiskOp::Sync { file: self.file }, &mut Vec::new())?;
        self.drain(&mut Vec::new()).map(|_| ())
    }

    /// Random reads, a new one for each that ends.
    fn reads(&mut self) -> anyhow::Result<Round> {
        let mut spare = Vec::new();
        for _ in 0..self.shape.batch * self.shape.in_flight {
            spare.push(AlignedBuf::new(self.transfer).context("no memory for a transfer")?);
        }
        let timer = Timer::start(self.shape.round);
        let mut count = 0;
        while !timer.is_over() {
            while let Some(buffer) = spare.pop() {
                let offset = self.rng.within(0, self.shape.objects - 1) * self.transfer as u64;
                let op = DiskOp::Read { file: self.file, offset, parts: vec![buffer.into_part()] };
                if self.queue.submit(0, op).is_err() {
                    bail!("the queue is shallower than a batch");
                }
            }
            count += self.take(&mut spare)?;
        }
        count += self.drain(&mut spare)?;
        Ok(timer.stop(count, count * self.shape.object_bytes as u64))
    }

    /// Sequential writes, and a sync at the end.
    fn writes(&mut self) -> anyhow::Result<Round> {
        let mut spare = Vec::new();
        for _ in 0..WRITE_DEPTH {
            spare.push(self.noise(self.transfer)?);
        }
        let timer = Timer::start(self.shape.round);
        let mut count = 0;
        while !timer.is_over() {
            while let Some(buffer) = spare.pop() {
                if self.next + self.transfer as u64 > self.len {
                    self.next = 0;
                }
                let op =
                    DiskOp::Write { file: self.file, offset: self.next, parts: vec![buffer.into_part()] };
                self.next += self.transfer as u64;
                if self.queue.submit(0, op).is_err() {
                    bail!("the queue is shallower than asked for");
                }
            }
            count += self.take(&mut spare)?;
        }
        count += self.drain(&mut spare)?;
        self.sync()?;
        Ok(timer.stop(count, count * self.transfer as u64))
    }
}
