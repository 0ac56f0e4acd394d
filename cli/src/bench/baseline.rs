//! Additional baselines: plain transfers with one additional task, which show the cost of that
//! task.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use clap::ValueEnum;
use pagelith::AlignedBuf;
use pagelith::io::hashed_copy::{Copier, CopyMode, SourcePiece};
use pagelith::io::threads::thread_start_fault;
use pagelith::layouts::checksum::{BLOCK_BYTES, block_lengths, checksum};

use super::shape::{BenchOp, BenchShape};
use crate::rng::SplitMix64;

/// Bytes of memory that is hashed instead of the read bytes: more than the cache of a core.
const OTHER_BYTES: usize = 64 << 20;

/// A baseline, by its additional task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Baseline {
    /// `get`: compute the checksums of the read bytes.
    Hashed,
    /// `get`: compute the checksums of the same number of other bytes.
    HashedElsewhere,
    /// `put`: write the store's pieces, a header before each object, out of the same amount of
    /// memory.
    AsWritten,
    /// `put`: as before, but another thread first copies each object there, and computes its
    /// checksum in one pass.
    AsPut,
}

impl Baseline {
    /// The operation of the baseline.
    pub(super) fn op(self) -> BenchOp {
        match self {
            Baseline::Hashed | Baseline::HashedElsewhere => BenchOp::Get,
            Baseline::AsWritten | Baseline::AsPut => BenchOp::Put,
        }
    }

    /// The name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The description for the report.
    pub(super) fn what(self) -> &'static str {
        match self {
            Baseline::Hashed => "bare reads of the same extents, and their checksums",
            Baseline::HashedElsewhere => {
                "bare reads of the same extents, and checksums of other bytes"
            }
            Baseline::AsWritten => "bare writes of the store's pieces and a sync",
            Baseline::AsPut => "bare writes of copied and hashed pieces and a sync",
        }
    }

    /// Whether writes consist of headers and objects, like the store's.
    pub(super) fn is_of_pieces(self) -> bool {
        self == Baseline::AsWritten || self == Baseline::AsPut
    }
}

/// The additional task with its memory, and the buffers to write.
pub(super) struct ExtraWork {
    baseline: Option<Baseline>,
    /// Memory that is hashed instead of the read bytes.
    other_memory: Vec<AlignedBuf>,
    next: usize,
    /// The pieces of each of the next writes, in order.
    writes: VecDeque<Vec<AlignedBuf>>,
    copier: Option<CopyThread>,
}

impl ExtraWork {
    /// Prepare the task.
    pub(super) fn new(shape: BenchShape, baseline: Option<Baseline>) -> std::io::Result<ExtraWork> {
        let count = match baseline {
            Some(Baseline::HashedElsewhere) => OTHER_BYTES.div_ceil(shape.object_bytes),
            Some(Baseline::Hashed | Baseline::AsWritten | Baseline::AsPut) | None => 0,
        };
        let other_memory = filled(shape, count)?;
        let copier =
            (baseline == Some(Baseline::AsPut)).then(|| CopyThread::start(shape)).transpose()?;
        Ok(ExtraWork { baseline, other_memory, next: 0, writes: VecDeque::new(), copier })
    }

    /// Process an object that was read.
    pub(super) fn read(&mut self, buffer: &[u8]) {
        match self.baseline {
            Some(Baseline::Hashed) => hash(buffer),
            Some(Baseline::HashedElsewhere) => {
                self.next = (self.next + 1) % self.other_memory.len().max(1);
                self.other_memory.get(self.next).into_iter().for_each(|other| hash(other));
            }
            Some(Baseline::AsWritten | Baseline::AsPut) | None => {}
        }
    }

    /// Return pieces after their write.
    pub(super) fn give(&mut self, pieces: Vec<AlignedBuf>) {
        match &self.copier {
            Some(copier) => copier.give(pieces),
            None => self.writes.push_back(pieces),
        }
    }

    /// The pieces of the next write; waits for the copy thread.
    pub(super) fn take(&mut self) -> Option<Vec<AlignedBuf>> {
        match &self.copier {
            Some(copier) => copier.copied.recv().ok(),
            None => self.writes.pop_front(),
        }
    }
}

fn hash(bytes: &[u8]) {
    for block in bytes.chunks(BLOCK_BYTES as usize) {
        black_box(checksum(block));
    }
}

fn filled(shape: BenchShape, count: usize) -> std::io::Result<Vec<AlignedBuf>> {
    let mut memory = AlignedBuf::many(count, shape.object_bytes)?;
    SplitMix64::new(shape.seed).fill(memory.iter_mut());
    Ok(memory)
}

/// A thread that copies objects into the pieces of writes, as far ahead as there is memory: like a
/// caller of put while the flusher runs.
struct CopyThread {
    free: Option<Sender<Vec<AlignedBuf>>>,
    copied: Receiver<Vec<AlignedBuf>>,
    thread: Option<JoinHandle<()>>,
}

impl CopyThread {
    fn start(shape: BenchShape) -> std::io::Result<CopyThread> {
        let (free, next) = channel::<Vec<AlignedBuf>>();
        let (done, copied) = channel();
        // Like the buffers of the application.
        let sources = filled(shape, shape.batch * (shape.depth + 1))?;
        let body = move || {
            let mut sources = sources.iter().cycle();
            for mut pieces in next {
                copy(&mut sources, &mut pieces);
                if done.send(pieces).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().spawn(body);
        let thread =
            thread.map_err(|error| std::io::Error::other(thread_start_fault("copying", &error)))?;
        Ok(CopyThread { free: Some(free), copied, thread: Some(thread) })
    }

    fn give(&self, pieces: Vec<AlignedBuf>) {
        // Fails only after the thread has ended; then `take` fails too.
        let _ = self.free.as_ref().map(|free| free.send(pieces));
    }
}

impl Drop for CopyThread {
    fn drop(&mut self) {
        self.free = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Fill pieces, which are alternately headers and objects. Each object is copied and hashed in one
/// pass.
fn copy<'a>(sources: &mut impl Iterator<Item = &'a AlignedBuf>, pieces: &mut [AlignedBuf]) {
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut copier = Copier::new(CopyMode::of(bytes as u64));
    let pairs = pieces.as_chunks_mut::<2>().0;
    for ([header, object], source) in pairs.iter_mut().zip(sources) {
        header.fill(1);
        let lengths = block_lengths(0..source.len() as u64, BLOCK_BYTES);
        copier.copy(
            [&mut object[..source.len()]],
            [SourcePiece::Private(source)],
            lengths,
            |sum| {
                black_box(sum);
            },
        );
    }
}
