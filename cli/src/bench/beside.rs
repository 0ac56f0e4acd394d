//! What takes turns with the store beside its limit: bare transfers that do one thing more, so that it is seen what that thing costs.

use std::hint::black_box;

use super::{Op, Shape};
use clap::ValueEnum;
use pagelith::AlignedBuf;
use pagelith::io::fused::{Copier, Piece, Stores};
use pagelith::layouts::checksum::{BLOCK_BYTES, block_lengths, checksum};

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
    /// `put`: the same, and each object is copied there first, in one pass with its checksum.
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

/// The one thing more, and the memory for it.
pub(super) struct Doing {
    beside: Option<Beside>,
    memory: Vec<AlignedBuf>,
    next: usize,
}

impl Doing {
    /// Ready to do it.
    pub(super) fn new(shape: Shape, beside: Option<Beside>) -> std::io::Result<Doing> {
        let count = match beside {
            Some(Beside::HashedElsewhere) => ELSEWHERE_BYTES.div_ceil(shape.object_bytes),
            // As the application's, of the store's side.
            Some(Beside::AsPut) => shape.batch * (shape.depth + 1),
            Some(Beside::Hashed | Beside::AsWritten) | None => 0,
        };
        let mut memory = AlignedBuf::many(count, shape.object_bytes)?;
        memory.iter_mut().flat_map(|buffer| buffer.chunks_mut(4096)).for_each(|page| page[0] = 1);
        Ok(Doing { beside, memory, next: 0 })
    }

    fn next(&mut self) -> Option<&AlignedBuf> {
        self.next = (self.next + 1) % self.memory.len().max(1);
        self.memory.get(self.next)
    }

    /// An object was read.
    pub(super) fn read(&mut self, buffer: &[u8]) {
        let hash = |bytes: &[u8]| {
            for block in bytes.chunks(BLOCK_BYTES as usize) {
                black_box(checksum(block));
            }
        };
        match self.beside {
            Some(Beside::Hashed) => hash(buffer),
            Some(Beside::HashedElsewhere) => self.next().into_iter().for_each(|other| hash(other)),
            Some(Beside::AsWritten | Beside::AsPut) | None => {}
        }
    }

    /// These are about to be written: a header and an object, and so on.
    pub(super) fn writes(&mut self, pieces: &mut [AlignedBuf]) {
        if self.beside != Some(Beside::AsPut) {
            return;
        }
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut copier = Copier::new(Stores::of(bytes as u64));
        for [header, object] in pieces.as_chunks_mut::<2>().0 {
            header.fill(self.next as u8);
            let Some(source) = self.next() else { continue };
            let lengths = block_lengths(0..source.len() as u64, BLOCK_BYTES);
            copier.copy([&mut object[..source.len()]], [Piece::Lent(source)], lengths, |sum| {
                black_box(sum);
            });
        }
    }
}
