//! Servers of one model with different tensor-parallel sizes on one store: how a rank writes its
//! pages, and how another rank reads them by ranged gets.

use std::ops::Range;

use pagelith::layouts::checksum::BLOCK_BYTES;
use pagelith::layouts::geometry::reshard::{self, RangeRead, ReshardPlan};
use pagelith::layouts::geometry::{
    Attention, Draft, Dtype, Extents, Geometry, HeadAttention, LatentAttention, LatentRow, Layout,
    Model, Placement, Pool, presets,
};
use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::{GetOutcome, GetSlice, Options, PutOutcome, PutSlice, Result, Store, Tier};

use super::helpers::namespace;
use super::tensor::{Rank, Tensor, untouched};

/// Pages of a host pool; the second one is read.
pub const PAGES: usize = 2;
pub const READ: usize = 1;

const TOKENS: usize = 16;
/// 1 KiB a row: with 2 layers of 16 tokens a head is one checksum block.
const DIM: usize = 512;

/// Layout of a server's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    pub layout: Layout,
    /// `tp_lcm_size`, on the sizes that divide it.
    pub lcm: Option<u16>,
}

impl Side {
    pub fn of(layout: Layout) -> Side {
        Side { layout, lcm: None }
    }

    pub fn split(layout: Layout, lcm: u16) -> Side {
        Side { layout, lcm: Some(lcm) }
    }

    fn lcm_at(&self, tp: u16) -> Option<u16> {
        self.lcm.filter(|lcm| lcm.is_multiple_of(tp))
    }

    fn at(&self, rank: u16, tp: u16) -> Placement {
        Placement {
            tp_lcm_size: self.lcm_at(tp),
            ..Placement::tensor_parallel(self.layout, rank, tp)
        }
    }
}

/// A pool of a model, in the layouts of writers and readers.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub tensor: Tensor,
    pub writer: Side,
    pub reader: Side,
}

pub fn mha(role: Role, heads: u16, writer: Side, reader: Side) -> Case {
    let layers = if role == Role::Draft { 1 } else { 2 };
    Case {
        tensor: Tensor { role, heads: Some(heads), layers, tokens: TOKENS, dim: DIM },
        writer,
        reader,
    }
}

pub fn mla(role: Role, layout: Layout) -> Case {
    let layers = if role == Role::Draft { 1 } else { 3 };
    let side = Side::of(layout);
    Case {
        tensor: Tensor { role, heads: None, layers, tokens: TOKENS, dim: DIM },
        writer: side,
        reader: side,
    }
}

/// One get of a reader.
#[derive(Clone, Debug)]
pub struct Read {
    pub key: ObjectKey,
    pub object_bytes: u64,
    pub range: Range<u64>,
    /// (offset, length) in the reader's buffer, in the order of the range.
    pub pieces: Vec<(usize, usize)>,
    /// Ranges of the plan that it covers.
    pub moves: usize,
}

impl Read {
    /// Bytes that the store reads for it: whole checksum blocks.
    pub fn bytes_read(&self) -> u64 {
        let block = u64::from(BLOCK_BYTES);
        let end = self.range.end.next_multiple_of(block).min(self.object_bytes);
        end - self.range.start / block * block
    }
}

impl Case {
    pub fn model(&self) -> Model {
        let of = |layers: u32| match self.tensor.heads {
            Some(heads) => Attention::Heads(HeadAttention {
                layers,
                kv_heads: heads.into(),
                k_dim: DIM as u32,
                v_dim: DIM as u32,
                dtype: Dtype::Half,
            }),
            None => Attention::Latent(LatentAttention {
                layers,
                row: LatentRow::Parts {
                    lora_rank: DIM as u32 - 64,
                    rope_dim: 64,
                    dtype: Dtype::Half,
                },
            }),
        };
        let target = if self.tensor.heads.is_some() { 2 } else { 3 };
        Model {
            page_tokens: TOKENS as u32,
            attention: of(target),
            draft: Some(Draft { attention: of(1), indexer: None, window: None }),
            ..presets::model("llama-3-8b").expect("a preset")
        }
    }

    /// Whether a writer of this size can use this layout.
    pub fn writes_at(&self, tp: u16) -> bool {
        self.writer.lcm.is_none() || self.writer.lcm_at(tp).is_some()
    }

    fn rank(&self, side: Side, rank: u16, tp: u16) -> Rank {
        let groups = side.lcm_at(tp).map_or(1, |lcm| lcm / tp);
        Rank { layout: side.layout, rank, tp, groups, pages: PAGES }
    }

    fn pool(&self, side: Side, rank: u16, tp: u16) -> Pool {
        let geometry = Geometry::new(&self.model(), &side.at(rank, tp)).expect("they go together");
        geometry.pool(self.tensor.role, "kv").expect("the pool").clone()
    }

    /// The buffer that a reader must end up with.
    pub fn expected(&self, rank: u16, tp: u16) -> Vec<u8> {
        self.tensor.buffer(&self.rank(self.reader, rank, tp), Some(READ))
    }

    /// Put all pages of all ranks of a writer, one group per head group (or rank); returns the
    /// outcomes.
    pub fn write(&self, store: &Store, namespace: NamespaceId, tp: u16) -> Vec<Result<PutOutcome>> {
        let mut outcomes = Vec::new();
        for rank in 0..tp {
            let pool = self.pool(self.writer, rank, tp);
            let buffer = self.tensor.buffer(&self.rank(self.writer, rank, tp), None);
            let extents = Extents::new(&pool, PAGES as u64).expect("small");
            assert_eq!(extents.buffer_bytes(), [buffer.len() as u64], "one buffer");
            assert_eq!(
                pool.writes,
                rank == 0 || self.tensor.heads.is_some(),
                "one rank stores the objects that all have"
            );
            if !pool.writes {
                continue;
            }
            for page in 0..PAGES {
                let mut keys = Vec::new();
                pool.keys(namespace, hash(page), &mut keys).expect("keys");
                let pieces: Vec<Vec<&[u8]>> = (0..keys.len())
                    .map(|component| {
                        let chunks = extents.chunks(page as u64, component).expect("in range");
                        chunks
                            .map(|c| &buffer[c.offset as usize..(c.offset + c.len) as usize])
                            .collect()
                    })
                    .collect();
                let objects: Vec<_> = keys
                    .iter()
                    .zip(&pieces)
                    .map(|(key, pieces)| PutSlice { key: *key, pieces })
                    .collect();
                let groups: Vec<_> =
                    objects.chunk_by(|a, b| a.key.shard() == b.key.shard()).collect();
                outcomes.extend(store.put_groups(&groups, Options::default()));
            }
        }
        outcomes
    }

    /// The gets of a reader's rank for the page: one per contiguous range of an object.
    pub fn reads(&self, namespace: NamespaceId, wrote: u16, rank: u16, tp: u16) -> Vec<Read> {
        let (writer, reader) = (self.writer.at(0, wrote), self.reader.at(rank, tp));
        let role = self.tensor.role;
        let plans = reshard::plan(&self.model(), &writer, &reader, role, "kv").expect("a plan");
        let extents = Extents::new(&self.pool(self.reader, rank, tp), PAGES as u64).expect("small");
        let mut reads = Vec::new();
        for ReshardPlan { component, sources } in &plans {
            for source in sources {
                let (name, shard) = (&source.component, source.shard);
                let key =
                    ObjectKey::new(namespace, hash(READ), role, "kv", name, shard).expect("a key");
                for read in source.reads(&extents, READ as u64, *component).expect("of this pool") {
                    let RangeRead { range, chunks } = read;
                    let moves = source.moves.iter().filter(|m| range.contains(&m.from)).count();
                    let pieces =
                        chunks.iter().map(|c| (c.offset as usize, c.len as usize)).collect();
                    reads.push(Read { key, object_bytes: source.bytes, range, pieces, moves });
                }
            }
        }
        reads
    }

    /// Memory of a reader's rank before any read.
    pub fn empty(&self, rank: u16, tp: u16) -> Vec<u8> {
        let extents = Extents::new(&self.pool(self.reader, rank, tp), PAGES as u64).expect("small");
        untouched(extents.buffer_bytes()[0])
    }
}

/// The page's place in a prompt.
pub fn hash(page: usize) -> PrefixHash {
    PrefixHash([page as u8 + 1; 32])
}

/// Each writer has its own pages, so that a reader finds only that writer's.
pub fn namespace_of(tp: u16) -> NamespaceId {
    namespace(&format!("written at {tp}"))
}

/// Get all of it in one batch, straight into the buffer.
pub fn get(store: &Store, reads: &[Read], buffer: &mut [u8]) -> Vec<Result<GetOutcome>> {
    get_all(store, &mut [(reads, buffer)])
}

/// The gets of several readers in one batch.
pub fn get_all(store: &Store, readers: &mut [(&[Read], &mut [u8])]) -> Vec<Result<GetOutcome>> {
    let mut pieces: Vec<(&Read, Vec<&mut [u8]>)> = Vec::new();
    for (reads, buffer) in readers {
        let carved = carve(buffer, reads);
        pieces.extend(reads.iter().zip(carved));
    }
    let mut gets: Vec<_> = pieces
        .iter_mut()
        .map(|(read, pieces)| GetSlice { key: read.key, range: Some(read.range.clone()), pieces })
        .collect();
    store.get_batch(&mut gets, Options::default())
}

/// The pieces of each read as slices of the buffer; no two may overlap.
fn carve<'b>(buffer: &'b mut [u8], reads: &[Read]) -> Vec<Vec<&'b mut [u8]>> {
    let placed = reads.iter().enumerate().flat_map(|(read, r)| {
        r.pieces.iter().enumerate().map(move |(piece, (offset, len))| (*offset, *len, read, piece))
    });
    let mut placed: Vec<_> = placed.collect();
    placed.sort_unstable();
    let (mut rest, mut at, mut slices) = (buffer, 0, Vec::new());
    for (offset, len, read, piece) in placed {
        let skip = offset.checked_sub(at).expect("two pieces overlap");
        let (slice, tail) = rest.split_at_mut(skip).1.split_at_mut(len);
        slices.push((read, piece, slice));
        (rest, at) = (tail, offset + len);
    }
    slices.sort_unstable_by_key(|(read, piece, _)| (*read, *piece));
    let mut carved: Vec<Vec<&mut [u8]>> = reads.iter().map(|_| Vec::new()).collect();
    for (read, _, slice) in slices {
        carved[read].push(slice);
    }
    carved
}

/// Whether the reader has its page: every get is a hit with every byte of its range.
pub fn restored(reads: &[Read], outcomes: &[Result<GetOutcome>], from: Tier) -> bool {
    assert_eq!(reads.len(), outcomes.len());
    reads.iter().zip(outcomes).all(|(read, outcome)| {
        *outcome == Ok(GetOutcome::Hit { tier: from, bytes: read.range.end - read.range.start })
    })
}
