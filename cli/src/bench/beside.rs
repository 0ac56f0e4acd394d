//! What takes turns with the store beside its limit: bare transfers that do one thing more, so that it is seen what that thing costs.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use clap::ValueEnum;
use pagelith::AlignedBuf;
use pagelith::io::fused::{Copier, Piece, Stores};
use pagelith::io::threads::no_thread;
use pagelith::layouts::checksum::{BLOCK_BYTES, block_lengths, checksum};

use super::{Op, Shape};
use crate::rng::SplitMix64;

/// Memory that is hashed instead of what was read: more than a core's cache.
const ELSEWHERE_BYTES: usize = 64 << 20;

/// What is done besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Beside {
    /// `get`: the checksums of what was read are made.
    Hashed,
    /// `get`: those of as many other bytes are, which nothing was read into.
    HashedElsewhere,
    /// `put`: what the store writes is written, a header before each object, out of as much memory.
    AsWritten,
    /// `put`: the same, and another thread copies each object there first, in one pass with its checksum.
    AsPut,
}

impl Beside {
    /// What it is beside.
    pub(super) fn op(self) -> Op {
        match self {
            Beside::Hashed | Beside::HashedElsewhere => Op::Get,
            Beside::AsWritten | Beside::AsPut => Op::Put,
        }
    }

    /// As it is asked for.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// What it is, for the report.
    pub(super) fn what(self) -> &'static str {
        match self {
            Beside::Hashed => "bare reads of the same extents, and their checksums",
            Beside::HashedElsewhere => "bare reads of the same extents, and checksums of other bytes",
            Beside::AsWritten => "bare writes of the store's pieces and a sync",
            Beside::AsPut => "bare writes of copied and hashed pieces and a sync",
        }
    }

    /// Whether what is written is what the store writes.
    pub(super) fn is_of_pieces(self) -> bool {
        self == Beside::AsWritten || self == Beside::AsPut
    }
}

/// The one thing more, with the memory for it, and what is to be written.
pub(super) struct Doing {
    beside: Option<Beside>,
    /// Hashed instead of what was read.
    elsewhere: Vec<AlignedBuf>,
    next: usize,
    /// What the next writes are of, the pieces of each in a row.
    writes: VecDeque<Vec<AlignedBuf>>,
    copying: Option<Copying>,
}

impl Doing {
    /// Ready to do it.
    pub(super) fn new(shape: Shape, beside: Option<Beside>) -> std::io::Result<Doing> {
        let count = match beside {
            Some(Beside::HashedElsewhere) => ELSEWHERE_BYTES.div_ceil(shape.object_bytes),
            Some(Beside::Hashed | Beside::AsWritten | Beside::AsPut) | None => 0,
        };
        let elsewhere = filled(shape, count)?;
        let copying = (beside == Some(Beside::AsPut)).then(|| Copying::begin(shape)).transpose()?;
        Ok(Doing { beside, elsewhere, next: 0, writes: VecDeque::new(), copying })
    }

    /// An object was read.
    pub(super) fn read(&mut self, buffer: &[u8]) {
        match self.beside {
            Some(Beside::Hashed) => hash(buffer),
            Some(Beside::HashedElsewhere) => {
                self.next = (self.next + 1) % self.elsewhere.len().max(1);
                self.elsewhere.get(self.next).into_iter().for_each(|other| hash(other));
            }
            Some(Beside::AsWritten | Beside::AsPut) | None => {}
        }
    }

    /// These pieces are not being written.
    pub(super) fn give(&mut self, pieces: Vec<AlignedBuf>) {
        match &self.copying {
            Some(copying) => copying.give(pieces),
            None => self.writes.push_back(pieces),
        }
    }

    /// The pieces of the next write; waits for them if they are being copied to.
    pub(super) fn take(&mut self) -> Option<Vec<AlignedBuf>> {
        match &self.copying {
            Some(copying) => copying.copied.recv().ok(),
            None => self.writes.pop_front(),
        }
    }
}

fn hash(bytes: &[u8]) {
    for block in bytes.chunks(BLOCK_BYTES as usize) {
        black_box(checksum(block));
    }
}

fn filled(shape: Shape, count: usize) -> std::io::Result<Vec<AlignedBuf>> {
    let mut memory = AlignedBuf::many(count, shape.object_bytes)?;
    SplitMix64::new(shape.seed).fill(memory.iter_mut());
    Ok(memory)
}

/// A thread that copies objects to where they are written from, as many ahead as there is memory: as who puts, beside the flusher.
struct Copying {
    fresh: Option<Sender<Vec<AlignedBuf>>>,
    copied: Receiver<Vec<AlignedBuf>>,
    thread: Option<JoinHandle<()>>,
}

impl Copying {
    fn begin(shape: Shape) -> std::io::Result<Copying> {
        let (fresh, next) = channel::<Vec<AlignedBuf>>();
        let (done, copied) = channel();
        // As the application's, of the store's side.
        let sources = filled(shape, shape.batch * (shape.depth + 1))?;
        let copying = move || {
            let mut sources = sources.iter().cycle();
            for mut pieces in next {
                copy(&mut sources, &mut pieces);
                if done.send(pieces).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().spawn(copying);
        let thread = thread.map_err(|error| std::io::Error::other(no_thread("copying", &error)))?;
        Ok(Copying { fresh: Some(fresh), copied, thread: Some(thread) })
    }

    fn give(&self, pieces: Vec<AlignedBuf>) {
        // Only a thread that is gone takes none, and then nothing comes of it either.
        let _ = self.fresh.as_ref().map(|fresh| fresh.send(pieces));
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.fresh = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Fill pieces, a header and an object and so on, each object in one pass with its checksums.
fn copy<'a>(sources: &mut impl Iterator<Item = &'a AlignedBuf>, pieces: &mut [AlignedBuf]) {
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut copier = Copier::new(Stores::of(bytes as u64));
    let pairs = pieces.as_chunks_mut::<2>().0;
    for ([header, object], source) in pairs.iter_mut().zip(sources) {
        header.fill(1);
        let lengths = block_lengths(0..source.len() as u64, BLOCK_BYTES);
        copier.copy([&mut object[..source.len()]], [Piece::Lent(source)], lengths, |sum| {
            black_box(sum);
        });
    }
}
