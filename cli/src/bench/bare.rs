//! Bare transfers of a file, as the store's own disk seam makes them: what is left of the device's bandwidth when nothing
//! is found, verified or kept.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagelith::AlignedBuf;
use pagelith::config::SsdIo;
use pagelith::io::buffer::Part;
use pagelith::io::disk::{Completion, Disk, FileId, Op as DiskOp, Queue};
use pagelith::io::fault::FaultKind;
use pagelith::io::probe::{SideChoice, open_disk};
use pagelith::layouts::align::align_up;

use super::round::{Round, Timer};
use super::{Op, Shape};
use crate::rng::SplitMix64;

const FILE: &str = "limit";
/// Longest that one transfer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How sequential writes are made: as large and as many at a time as the store's own by default.
const WRITE_BYTES: usize = 1 << 20;
const WRITE_DEPTH: usize = 8;

/// Bare transfers of a file of the data's size.
pub(super) struct Bare {
    shape: Shape,
    file: FileId,
    queue: Box<dyn Queue>,
    /// Length of a read, of an object with its padding, and of the file, in bytes.
    read_bytes: usize,
    len: u64,
    rng: SplitMix64,
    /// Where the next write goes.
    next: u64,
    /// When each transfer in flight was begun, by token.
    begun: Vec<Instant>,
    free: Vec<u64>,
    done: Vec<Completion>,
    /// Buffers of the two kinds that wait for their next transfer.
    reads: Vec<AlignedBuf>,
    writes: Vec<AlignedBuf>,
    // The queue's files live in the disk, which must outlast it.
    _disk: Arc<dyn Disk>,
}

impl Bare {
    pub(super) fn new(shape: Shape, dir: &Path, io: Option<SsdIo>) -> anyhow::Result<Bare> {
        let side = match io.unwrap_or_default() {
            SsdIo::Auto => SideChoice::Auto,
            SsdIo::Uring => SideChoice::Uring,
            SsdIo::Blocking => SideChoice::Blocking,
        };
        let disk = open_disk(&[dir.to_owned()], side)?;
        let object = align_up(shape.object_bytes as u64);
        let len = (object * shape.objects).next_multiple_of(WRITE_BYTES as u64);
        let (file, fresh) = match disk.open(0, FILE) {
            Ok((file, found)) if found == len => (file, false),
            Ok(_) => {
                disk.remove(0, FILE)?;
                (disk.create(0, FILE, len)?, true)
            }
            Err(fault) if fault.kind == FaultKind::NotFound => (disk.create(0, FILE, len)?, true),
            Err(fault) => return Err(fault.into()),
        };
        let readers = if shape.op == Op::Put { 0 } else { shape.batch * shape.depth };
        let depth = readers + WRITE_DEPTH;
        let queue = disk.queue(depth)?;
        let mut bare = Bare {
            shape,
            file,
            queue,
            read_bytes: object as usize,
            len,
            rng: SplitMix64::new(shape.seed),
            next: 0,
            begun: vec![Instant::now(); depth],
            free: (0..depth as u64).collect(),
            done: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            _disk: disk,
        };
        for _ in 0..readers {
            bare.reads.push(AlignedBuf::new(object as usize).context("no memory for a transfer")?);
        }
        for _ in 0..WRITE_DEPTH {
            let noise = bare.noise(WRITE_BYTES)?;
            bare.writes.push(noise);
        }
        if fresh {
            // Blocks that were never written are read without asking the device.
            for _ in 0..len / WRITE_BYTES as u64 {
                bare.write()?;
            }
            bare.drain(None)?;
            bare.sync()?;
        }
        Ok(bare)
    }

    pub(super) fn op(&self) -> Op {
        self.shape.op
    }

    /// Random reads, sequential writes, or both with as many bytes of each; a new transfer for each that ends.
    pub(super) fn round(&mut self) -> anyhow::Result<Round> {
        let reads = self.shape.op != Op::Put;
        let writes = matches!(self.shape.op, Op::Put | Op::Mixed);
        let mut timer = Timer::start(self.shape.round);
        let (mut read, mut written) = (0u64, 0u64);
        while !timer.is_over() {
            while reads && !self.reads.is_empty() && (!writes || read <= written) {
                self.read()?;
                read += self.shape.object_bytes as u64;
            }
            while writes && !self.writes.is_empty() && (!reads || written <= read) {
                self.write()?;
                written += WRITE_BYTES as u64;
            }
            self.take(Some(&mut timer))?;
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
        let offset = self.rng.within(0, self.shape.objects - 1) * self.read_bytes as u64;
        self.submit(DiskOp::Read { file: self.file, offset, parts: vec![buffer.into_part()] })
    }

    fn write(&mut self) -> anyhow::Result<()> {
        if self.writes.is_empty() {
            self.take(None)?;
        }
        let buffer = self.writes.pop().context("more writes than buffers")?;
        let offset = self.next;
        self.next = (self.next + WRITE_BYTES as u64) % self.len;
        self.submit(DiskOp::Write { file: self.file, offset, parts: vec![buffer.into_part()] })
    }

    fn submit(&mut self, op: DiskOp) -> anyhow::Result<()> {
        let token = self.free.pop().context("more transfers than the queue takes")?;
        self.begun[token as usize] = Instant::now();
        if self.queue.submit(token, op).is_err() {
            bail!("the queue is shallower than asked for");
        }
        Ok(())
    }

    /// Wait for one completion or more.
    fn take(&mut self, mut timer: Option<&mut Timer>) -> anyhow::Result<()> {
        self.queue.wait(&mut self.done, PATIENCE);
        if self.done.is_empty() {
            bail!("a transfer does not end waited_s={}", PATIENCE.as_secs());
        }
        for completion in self.done.drain(..) {
            completion.result?;
            let counts = match (&completion.op, self.shape.op) {
                (DiskOp::Read { .. }, _) | (DiskOp::Write { .. }, Op::Put) => true,
                (DiskOp::Write { .. } | DiskOp::Sync { .. }, _) => false,
            };
            if let Some(timer) = timer.as_mut().filter(|_| counts) {
                timer.ended(self.begun[completion.token as usize]);
            }
            self.free.push(completion.token);
            let back = match &completion.op {
                DiskOp::Read { .. } => &mut self.reads,
                DiskOp::Write { .. } | DiskOp::Sync { .. } => &mut self.writes,
            };
            back.extend(completion.op.into_parts().into_iter().filter_map(Part::into_buf));
        }
        Ok(())
    }

    fn drain(&mut self, mut timer: Option<&mut Timer>) -> anyhow::Result<()> {
        while self.queue.in_flight() > 0 {
            self.take(timer.as_deref_mut())?;
        }
        Ok(())
    }

    fn sync(&mut self) -> anyhow::Result<()> {
        self.submit(DiskOp::Sync { file: self.file })?;
        self.drain(None)
    }

    /// A buffer that no device can take for zeros or compress.
    fn noise(&mut self, bytes: usize) -> anyhow::Result<AlignedBuf> {
        let mut buffer = AlignedBuf::new(bytes).context("no memory for a transfer")?;
        for word in buffer.chunks_mut(8) {
            word.copy_from_slice(&self.rng.next_u64().to_le_bytes()[..word.len()]);
        }
        Ok(buffer)
    }
}
